//! Victims: small programs that check themselves, and their state as seen from outside.

use std::hash::{Hash, Hasher};
use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::proc;

/// Compiles a victim once and returns its path. The file is beside the tests, as each test runs in
/// its own process.
pub(super) fn build(name: &str, source: &str, flags: &[&str]) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let mut key = std::hash::DefaultHasher::new();
    (source, flags).hash(&mut key);
    let directory = tests.ancestors().nth(2).unwrap().join("victims");
    let directory = directory.join(format!("{:016x}", key.finish()));
    std::fs::create_dir_all(&directory).unwrap();
    let lock = std::fs::File::create(directory.join("lock")).unwrap();
    let _lock = Flock::lock(lock, FlockArg::LockExclusive).unwrap();
    let program = directory.join(name);
    if !program.exists() {
        let (file, fresh) = (directory.join(format!("{name}.c")), directory.join("fresh"));
        std::fs::write(&file, source).unwrap();
        let made = Command::new("cc")
            .args(["-O1", "-pthread", "-w", "-o"])
            .arg(&fresh)
            .args(flags)
            .arg(&file)
            .status()
            .unwrap();
        assert!(made.success(), "cc {name}");
        std::fs::rename(&fresh, &program).unwrap();
    }
    program
}

pub(super) struct Victim {
    pub(super) child: Child,
    pub(super) pid: i32,
    pub(super) output: BufReader<ChildStdout>,
    name: String,
    /// The directory of a program that other users may execute.
    _directory: Option<tempfile::TempDir>,
}

impl Victim {
    /// Starts a command and waits for its first line.
    pub(super) fn start(mut command: Command) -> Victim {
        let name = format!("{command:?}");
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "{name}");
        let pid = child.id() as i32;
        Victim { child, pid, output, name, _directory: None }
    }

    pub(super) fn as_user(program: PathBuf, id: u32) -> Victim {
        let directory = tempfile::tempdir().unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(directory.path(), open).unwrap();
        let copy = directory.path().join(program.file_name().unwrap());
        std::fs::copy(program, &copy).unwrap();
        let mut command = Command::new(copy);
        command.uid(id).gid(id);
        let mut victim = Victim::start(command);
        victim._directory = Some(directory);
        victim
    }

    pub(super) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid), signal).unwrap();
    }

    pub(super) fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }

    /// Ends the victim with SIGTERM and checks its exit code.
    pub(super) fn expect(mut self, code: i32) {
        self.signal(Signal::SIGTERM);
        self.expect_end(code);
    }

    /// Waits for the victim's exit and checks its exit code.
    pub(super) fn expect_end(&mut self, code: i32) {
        let deadline = Instant::now() + Duration::from_secs(20);
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None if Instant::now() > deadline => {
                    panic!("{}: does not end: {}", self.name, states(self.pid));
                }
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        assert_eq!((status.code(), status.signal()), (Some(code), None), "{}", self.name);
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns what the threads of a process are doing, for a message.
pub(super) fn states(pid: i32) -> String {
    let read = |tid: i32, name: &str| {
        std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/{name}")).unwrap_or_default()
    };
    let lines = proc::tasks(pid).unwrap_or_default().into_iter().map(|tid| {
        let status = read(tid, "status");
        let wanted =
            ["Name", "State", "TracerPid", "SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt"];
        let kept = status.lines().filter(|line| wanted.iter().any(|key| line.starts_with(key)));
        let kept = kept.collect::<Vec<_>>().join(" ");
        format!("{tid}: {kept} syscall {}", read(tid, "syscall"))
    });
    lines.collect::<Vec<_>>().join("; ")
}

/// The state of a process that an attach must leave unchanged.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct VisibleState {
    maps: Vec<String>,
    signals: (u64, u64),
    masks: Vec<(i32, u64)>,
    descriptors: Vec<(String, PathBuf)>,
    tracer: i32,
    stopped: bool,
}

impl VisibleState {
    /// Reads the state until it equals `before` again, for at most five seconds.
    ///
    /// The kernel returns a thread to its state by itself after the detach. On a busy machine, the
    /// thread's mask looks changed until then.
    pub(super) fn settled(pid: i32, before: &VisibleState) -> VisibleState {
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            let look = VisibleState::at(pid, true);
            if look == *before || Instant::now() >= deadline {
                return look;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Reads the state. `steady` says that the victim's thread list does not change by itself.
    pub(super) fn at(pid: i32, steady: bool) -> VisibleState {
        let status = proc::status(pid).unwrap();
        let tids = proc::tasks(pid).unwrap();
        // A ticking victim blocks the alarm while it takes the alarm.
        const ALARM: u64 = 1 << (libc::SIGALRM - 1);
        let mask = |tid| Some((tid, proc::task_status(pid, tid).ok()?.blocked & !ALARM));
        let masks = if steady { tids.into_iter().filter_map(mask).collect() } else { Vec::new() };
        let maps = if steady { proc::mappings(pid).unwrap() } else { Vec::new() };
        let mut descriptors: Vec<_> = std::fs::read_dir(format!("/proc/{pid}/fd"))
            .unwrap()
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let name = entry.file_name().to_string_lossy().into_owned();
                Some((name, std::fs::read_link(entry.path()).ok()?))
            })
            .collect();
        descriptors.sort();
        VisibleState {
            maps: maps
                .iter()
                // The program itself may grow its heap and its stack.
                .filter(|m| m.path != "[heap]" && m.path != "[stack]")
                .map(|m| format!("{:x}-{:x} {} {}", m.start, m.end, m.exec, m.path.display()))
                .collect(),
            signals: (status.caught, status.ignored),
            masks,
            descriptors,
            tracer: status.tracer,
            stopped: status.state == 'T',
        }
    }
}

/// Waits until none of these segments exists any more. A child that another test has forked, and
/// that has not called exec yet, holds all segments that this process had attached.
pub(super) fn assert_segments_gone(ids: [i32; 3]) {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let left = segments_among(ids);
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "{left:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the lines of the system's list that concern these segments.
fn segments_among(ids: [i32; 3]) -> Vec<String> {
    let listed = std::fs::read_to_string("/proc/sysvipc/shm").unwrap();
    let is_ours = |line: &&str| {
        let id = line.split_ascii_whitespace().nth(1).and_then(|id| id.parse().ok());
        id.is_some_and(|id: i32| ids.contains(&id))
    };
    listed.lines().filter(is_ours).map(String::from).collect()
}
