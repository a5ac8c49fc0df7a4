//! A terminal inside tmux, which a test drives and reads.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use super::wait_until;

/// Timeout of an expected text, for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A shell in a terminal of its own tmux server, which exits when the value is dropped.
pub(crate) struct Tmux {
    dir: TempDir,
}

impl Tmux {
    /// Starts a terminal of this size. The shell's prompt is `$ `.
    pub(crate) fn start(width: u32, height: u32) -> Self {
        let tmux = Self { dir: tempfile::tempdir().expect("temporary directory") };
        let (width, height) = (width.to_string(), height.to_string());
        let size = ["-x", &width, "-y", &height];
        let shell = "env -u NO_COLOR PS1='$ ' sh";
        tmux.run(&[&["new-session", "-d"][..], &size, &[shell]].concat());
        tmux.wait_for("$");
        tmux
    }

    /// Returns the directory of temporary files of programs in the terminal.
    pub(crate) fn temporary(&self) -> PathBuf {
        let path = self.dir.path().join("tmp");
        std::fs::create_dir_all(&path).expect("a directory");
        path
    }

    /// Types a line.
    pub(crate) fn type_line(&self, line: &str) {
        self.type_text(line);
        self.press_key("Enter");
    }

    /// Types a text without an end of line.
    pub(crate) fn type_text(&self, text: &str) {
        self.run(&["send-keys", "-l", "--", text]);
    }

    /// Presses a key, by tmux's name for it.
    pub(crate) fn press_key(&self, key: &str) {
        self.run(&["send-keys", key]);
    }

    /// Resizes the terminal.
    pub(crate) fn resize(&self, width: u32, height: u32) {
        let (width, height) = (width.to_string(), height.to_string());
        self.run(&["resize-window", "-x", &width, "-y", &height]);
    }

    /// Returns the text on the screen.
    pub(crate) fn screen(&self) -> String {
        self.run(&["capture-pane", "-p"])
    }

    /// Returns the text on the screen with its colours as escape codes.
    pub(crate) fn colored(&self) -> String {
        self.run(&["capture-pane", "-p", "-e"])
    }

    /// Waits until the screen contains this text.
    pub(crate) fn wait_for(&self, part: &str) {
        self.wait_for_screen(&|screen| screen.contains(part), part);
    }

    /// Waits until this condition holds for the text on the screen.
    pub(crate) fn wait_for_screen(&self, is_there: &dyn Fn(&str) -> bool, what: &str) {
        let found = wait_until(PATIENCE, || is_there(&self.screen()));
        assert!(found, "no {what:?} on the screen:\n{}", self.screen());
    }

    /// Returns the process id of the shell.
    pub(crate) fn shell(&self) -> i32 {
        self.run(&["display-message", "-p", "#{pane_pid}"]).trim().parse().expect("a pid")
    }

    fn run(&self, args: &[&str]) -> String {
        let mut command = Command::new("tmux");
        command.arg("-u").arg("-f").arg("/dev/null").arg("-S").arg(self.dir.path().join("socket"));
        command.args(args).env("TMPDIR", self.temporary()).env("TERM", "xterm-256color");
        let output = command.output().expect("tmux, which scripts/test installs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "tmux {args:?}: {error}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(self.dir.path().join("socket")).arg("kill-server");
        // The server may already have exited.
        let _ = command.output();
    }
}
