//! Every message that can be provoked, in one table: `tests/messages.txt`. A row is a shell's line,
//! the exit code, and what is on the standard error. `UPDATE=1` writes the codes and texts anew.
//!
//! # Invariants
//! - Lines run one after the other in one folder, and leave nothing in it.
//! - What differs from run to run has a name such as `$gone`, in lines and in messages.

use std::collections::BTreeMap;
use std::fs;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;

use nix::sys::ptrace;
use nix::unistd::{Pid, gettid};
use tempfile::TempDir;

use crate::cli::write_trace;
use crate::common::{
    Target, is_root, needs_recording, program_for_everyone, scratch_dir, skip, together, wait_until,
};
use crate::snapshot;

const TABLE: &str = "tests/messages.txt";
/// What each line starts with: the other user.
const PRELUDE: &str = "nobody() { setpriv --reuid=65534 --regid=65534 --clear-groups -- \"$@\"; }";

/// The folder and the processes that the lines name.
struct Stage {
    folder: TempDir,
    names: Vec<(&'static str, String)>,
    /// The program that its own parent has not waited for, and one that runs.
    children: Vec<Child>,
    _traced: Target,
}

impl Stage {
    fn new() -> Self {
        let folder = scratch_dir();
        let path = folder.path();
        fs::create_dir(path.join("bin")).unwrap();
        program_for_everyone(Path::new(env!("CARGO_BIN_EXE_traceprof")), &path.join("bin"));
        write_trace(&path.join("x.trace"), 3);
        fs::create_dir(path.join("folder")).unwrap();
        fs::write(path.join("empty"), "").unwrap();
        fs::write(path.join("text"), "hello, world\n".repeat(100)).unwrap();
        fs::write(path.join("script"), "#!/no/such/interpreter\n").unwrap();
        fs::set_permissions(path.join("script"), Permissions::from_mode(0o755)).unwrap();
        let whole = fs::read(path.join("x.trace")).unwrap();
        fs::write(path.join("cut.trace"), &whole[..whole.len() / 2]).unwrap();
        fs::set_permissions(path.join("cut.trace"), Permissions::from_mode(0o600)).unwrap();

        let mut gone = Command::new("true").spawn().unwrap();
        gone.wait().unwrap();
        let zombie = Command::new("true").spawn().unwrap();
        let is_zombie = || status_of(zombie.id(), "State:").starts_with('Z');
        assert!(wait_until(std::time::Duration::from_secs(10), is_zombie));
        let other = Command::new("sleep").arg("1000").spawn().unwrap();
        let traced = Target::start("prey", &["spin"]);
        ptrace::seize(Pid::from_raw(traced.pid()), ptrace::Options::empty()).unwrap();
        let names = [
            ("gone", gone.id().to_string()),
            ("zombie", zombie.id().to_string()),
            ("other", other.id().to_string()),
            ("traced", traced.pid().to_string()),
            ("tracer", status_of(traced.pid() as u32, "TracerPid:")),
            ("tests", std::process::id().to_string()),
            ("thread", sleeping_thread()),
            ("init", format!("1 ({})", status_of(1, "Name:"))),
        ];
        Self { folder, names: names.into(), children: vec![zombie, other], _traced: traced }
    }

    /// Runs a line. Returns its exit code and what it says, in the form of the table.
    fn said_by(&self, line: &str) -> String {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &format!("{PRELUDE}\n{line}")]).current_dir(self.folder.path());
        let path = std::env::var("PATH").unwrap();
        let own = self.folder.path().join("bin");
        shell.env("PATH", format!("{}:{path}", own.display())).env_remove("COLUMNS");
        shell.env("NO_COLOR", "1").env("LC_ALL", "C.UTF-8").envs(self.names.iter().cloned());
        let output = shell.stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!text.contains("panicked"), "{line}: {text}");
        let mut text = text.replace(&*self.folder.path().to_string_lossy(), "$PWD");
        for (name, value) in &self.names {
            text = with_name(&text, value, name);
        }
        let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
        let code = output.status.code().expect("an exit");
        assert!(code != 2 || output.stdout.is_empty(), "{line}: output of a usage error");
        format!("[{code}] {}", lines.join("\n    ")).trim_end().to_owned()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for child in &mut self.children {
            // It may have exited.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns the text with a name in place of each number of this value.
fn with_name(text: &str, value: &str, name: &str) -> String {
    let mut named = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(value) {
        let (before, after) = (&rest[..at], &rest[at + value.len()..]);
        let is_digit = |letter: Option<char>| letter.is_some_and(|it| it.is_ascii_digit());
        let is_part = is_digit(before.chars().next_back()) || is_digit(after.chars().next());
        named.push_str(before);
        named.push_str(&if is_part { value.to_owned() } else { format!("${name}") });
        rest = after;
    }
    named + rest
}

/// Returns the names and the contents of all files.
fn files_in(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.map(|path| (path.clone(), fs::read(path).unwrap_or_default())).collect()
}

/// Returns the id of a new thread, which lives as long as the process.
fn sleeping_thread() -> String {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        tell.send(gettid()).unwrap();
        loop {
            thread::park();
        }
    });
    told.recv().unwrap().to_string()
}

fn status_of(pid: u32, field: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim().to_owned()
}

#[test]
fn every_message_and_its_exit_code() {
    needs_recording!();
    if !is_root() {
        skip!("root: needed to act as two users");
    }
    let _machine = together();
    let table = Path::new(env!("CARGO_MANIFEST_DIR")).join(TABLE);
    let table = fs::read_to_string(table).unwrap();
    let stage = Stage::new();
    let before = files_in(stage.folder.path());
    let mut actual = String::new();
    let mut rows = 0;
    for line in table.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            actual.push_str(&format!("$ {command}\n{}\n", stage.said_by(command)));
            rows += 1;
        } else if line.starts_with('#') {
            actual.push_str(line);
            actual.push('\n');
        } else if line.is_empty() && !actual.ends_with("\n\n") {
            actual.push('\n');
        }
    }
    assert!(rows > 100, "{rows} rows");
    assert!(files_in(stage.folder.path()) == before, "a command that failed wrote a file");
    drop(stage);
    snapshot::check(TABLE, actual.as_bytes());
}
