//! A terminal that nobody looks at.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use super::wait_until;

/// How long something may take to appear on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A shell in a terminal of its own server, which ends with the value.
pub(crate) struct Tmux {
    dir: TempDir,
}

impl Tmux {
    /// A terminal of this size; the shell's prompt is `$ `.
    pub(crate) fn start(width: u32, height: u32) -> Self {
        let tmux = Self { dir: tempfile::tempdir().expect("temporary directory") };
        let (width, height) = (width.to_string(), height.to_string());
        let size = ["-x", &width, "-y", &height];
        let shell = "env -u NO_COLOR PS1='$ ' sh";
        tmux.run(&[&["new-session", "-d"][..], &size, &[shell]].concat());
        tmux.sees("$");
        tmux
    }

    /// Where programs in it have their temporary files.
    pub(crate) fn temporary(&self) -> PathBuf {
        let path = self.dir.path().join("tmp");
        std::fs::create_dir_all(&path).expect("a directory");
        path
    }

    /// Types a line.
    pub(crate) fn types(&self, line: &str) {
        self.run(&["send-keys", "-l", line]);
        self.presses("Enter");
    }

    /// Presses a key, by tmux's name for it.
    pub(crate) fn presses(&self, key: &str) {
        self.run(&["send-keys", key]);
    }

    /// Gives the terminal another size.
    pub(crate) fn resizes(&self, width: u32, height: u32) {
        let (width, height) = (width.to_string(), height.to_string());
        self.run(&["resize-window", "-x", &width, "-y", &height]);
    }

    /// What is on the screen.
    pub(crate) fn screen(&self) -> String {
        self.run(&["capture-pane", "-p"])
    }

    /// The same with its colours, as escape codes.
    pub(crate) fn colored(&self) -> String {
        self.run(&["capture-pane", "-p", "-e"])
    }

    /// Waits for this on the screen.
    pub(crate) fn sees(&self, part: &str) {
        self.sees_all(&|screen| screen.contains(part), part);
    }

    /// Waits until this holds for what is on the screen.
    pub(crate) fn sees_all(&self, is_there: &dyn Fn(&str) -> bool, what: &str) {
        let found = wait_until(PATIENCE, || is_there(&self.screen()));
        assert!(found, "no {what:?} on the screen:\n{}", self.screen());
    }

    /// The process of the shell.
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
        // It may be gone already.
        let _ = command.output();
    }
}
