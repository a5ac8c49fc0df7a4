//! The scheduler's counts of a thread, read repeatedly.
//!
//! The files stay open. Where there are too few descriptors, each read opens them again, which
//! takes a few microseconds more.
//!
//! # Invariants
//! - A value belongs to the thread that it was opened for, whoever has its id later: descriptors
//!   stay with their thread, and files that are opened again must show the same start time.
//! - A read through open files allocates nothing.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::Mode;

use super::{DescriptorUse, gone};

/// The longest line: three numbers of up to twenty digits, each with the character after it.
const SCHEDSTAT_MAX: usize = 3 * 21;
/// The length of the id, the name (at most 63 bytes in the kernel), the state, and the separators.
const STAT_START: usize = 96;

/// The position of the start time among the fields that follow the name.
const START_TIME: usize = 19;
/// The length of a `stat` line up to the start time: the name, and twenty numbers.
const STAT_IDENTITY: usize = STAT_START + 20 * 21;

/// The scheduler's counts of a thread.
#[derive(Debug)]
pub struct TaskClock(ClockFiles);

#[derive(Debug)]
enum ClockFiles {
    /// Two descriptors.
    Open(OpenFiles),
    /// None; the start time in clock ticks identifies the thread.
    Reopened { pid: i32, tid: i32, start_time: u64 },
}

#[derive(Debug)]
struct OpenFiles {
    schedstat: File,
    stat: File,
}

/// How often and how long a thread has had a processor since it started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Turns {
    /// The time on a processor in nanoseconds, for a running thread up to the last clock tick.
    pub run_ns: u64,
    /// The time in nanoseconds for which the thread was ready and waited for a processor, without
    /// the current wait.
    pub wait_ns: u64,
    /// The number of times that the thread got a processor. A thread whose `count` and `run_ns` did
    /// not change has not run, unless it runs all the time.
    pub count: u64,
}

impl TaskClock {
    /// Opens the counts of a thread. The value keeps two descriptors, or none if that would take
    /// too many of this process.
    ///
    /// # Errors
    /// `NotFound` if the thread has exited; the error of the open if not even a read has a
    /// descriptor.
    pub fn open(pid: i32, tid: i32) -> io::Result<Self> {
        let opened = OpenFiles::of(pid, tid)?;
        let start_time = opened.start_time()?;
        Ok(Self(match opened.admitted() {
            Ok(opened) => ClockFiles::Open(opened),
            Err(_) => ClockFiles::Reopened { pid, tid, start_time },
        }))
    }

    /// Whether each read opens the files again.
    pub fn is_reopened(&self) -> bool {
        matches!(self.0, ClockFiles::Reopened { .. })
    }

    /// Returns the counts so far, all zero if the kernel does not count.
    ///
    /// # Errors
    /// `NotFound` if the thread has exited.
    pub fn turns(&self) -> io::Result<Turns> {
        self.read(OpenFiles::turns)
    }

    /// Returns the state letter, as in [`super::Status::state`].
    ///
    /// # Errors
    /// `NotFound` if the thread has exited.
    pub fn state(&self) -> io::Result<char> {
        self.read(OpenFiles::state)
    }

    fn read<T>(&self, read: impl FnOnce(&OpenFiles) -> io::Result<T>) -> io::Result<T> {
        match self.0 {
            ClockFiles::Open(ref files) => read(files),
            ClockFiles::Reopened { pid, tid, start_time } => {
                let files = OpenFiles::of(pid, tid)?;
                if files.start_time()? != start_time {
                    return Err(io::ErrorKind::NotFound.into());
                }
                read(&files)
            }
        }
    }
}

impl OpenFiles {
    fn of(pid: i32, tid: i32) -> io::Result<Self> {
        // Both files are opened through one directory: between two lookups, the id may pass to
        // another thread.
        let path = format!("/proc/{pid}/task/{tid}");
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let folder =
            open(path.as_str(), flags, Mode::empty()).map_err(|error| gone(error.into()))?;
        Ok(Self { schedstat: file(&folder, "schedstat")?, stat: file(&folder, "stat")? })
    }

    /// Returns the files if they may stay open.
    fn admitted(self) -> io::Result<Self> {
        let Self { schedstat, stat } = self;
        let saving = DescriptorUse::Savings;
        Ok(Self { schedstat: saving.admit(schedstat)?, stat: saving.admit(stat)? })
    }

    fn turns(&self) -> io::Result<Turns> {
        let mut bytes = [0; SCHEDSTAT_MAX];
        let got = read(&self.schedstat, &mut bytes)?;
        parse_turns(got).ok_or_else(|| malformed("schedstat"))
    }

    fn state(&self) -> io::Result<char> {
        let mut bytes = [0; STAT_START];
        let got = read(&self.stat, &mut bytes)?;
        parse_state(got).ok_or_else(|| malformed("stat"))
    }

    fn start_time(&self) -> io::Result<u64> {
        let mut bytes = [0; STAT_IDENTITY];
        let got = read(&self.stat, &mut bytes)?;
        parse_start_time(got).ok_or_else(|| malformed("stat"))
    }
}

fn file(folder: &OwnedFd, name: &str) -> io::Result<File> {
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
    let file = openat(folder.as_fd(), name, flags, Mode::empty());
    file.map(File::from).map_err(|error| gone(error.into()))
}

/// Returns the file's current first bytes.
fn read<'a>(file: &File, into: &'a mut [u8]) -> io::Result<&'a [u8]> {
    let got = file.read_at(into, 0).map_err(gone)?;
    Ok(&into[..got])
}

fn malformed(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{name} of a thread cannot be understood"))
}

pub(super) fn parse_turns(bytes: &[u8]) -> Option<Turns> {
    let mut words = bytes.trim_ascii().split(|&byte| byte == b' ').map(number);
    let (run_ns, wait_ns, count) = (words.next()??, words.next()??, words.next()??);
    Some(Turns { run_ns, wait_ns, count })
}

fn number(digits: &[u8]) -> Option<u64> {
    let add = |sum: u64, digit: &u8| {
        let value = digit.checked_sub(b'0').filter(|value| *value < 10)?;
        sum.checked_mul(10)?.checked_add(u64::from(value))
    };
    if digits.is_empty() { None } else { digits.iter().try_fold(0, add) }
}

/// Parses the state letter. The name may contain any bytes; after it come numbers.
fn parse_state(bytes: &[u8]) -> Option<char> {
    let name_end = bytes.iter().rposition(|&byte| byte == b')')?;
    match bytes.get(name_end + 1..)? {
        [b' ', state, b' ', ..] if state.is_ascii_alphabetic() => Some(char::from(*state)),
        _ => None,
    }
}

/// Parses the start time. The name may contain any bytes; after it come numbers.
fn parse_start_time(bytes: &[u8]) -> Option<u64> {
    let name_end = bytes.iter().rposition(|&byte| byte == b')')?;
    let fields = bytes.get(name_end + 1..)?.trim_ascii_start();
    let mut fields = fields.split(|&byte| byte == b' ').skip(START_TIME);
    // A number at the end of the bytes may go on behind them.
    let (start_time, _next) = (fields.next()?, fields.next()?);
    number(start_time)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::proc;

    fn own_tid() -> i32 {
        nix::unistd::gettid().as_raw()
    }

    #[test]
    fn lines_are_read_and_others_refused() {
        let turns = |run_ns, wait_ns, count| Some(Turns { run_ns, wait_ns, count });
        let max = format!("{0} {0} {0}\n", u64::MAX);
        assert_eq!(parse_turns(max.as_bytes()), turns(u64::MAX, u64::MAX, u64::MAX));
        assert!(max.len() <= SCHEDSTAT_MAX);
        assert_eq!(parse_turns(b"12 3 4\n"), turns(12, 3, 4));
        for wrong in [&b""[..], b"1 2", b"1 2 x", b"1 -2 3", b"1  2 3", b"18446744073709551616 1 1"]
        {
            assert_eq!(parse_turns(wrong), None, "{wrong:?}");
        }
        assert_eq!(parse_state(b"12 (a) R b) (x) S 1 12 12"), Some('S'));
        for wrong in [&b""[..], b"12 (name", b"12 (name) ", b"12 (name) 5 1", b"12 (name)S 1"] {
            assert_eq!(parse_state(wrong), None, "{wrong:?}");
        }
    }

    /// Returns the counts of a thread without an open descriptor.
    fn reopened(pid: i32, tid: i32) -> TaskClock {
        let start_time = proc::task_stat(pid, tid).unwrap().start_time;
        TaskClock(ClockFiles::Reopened { pid, tid, start_time })
    }

    #[test]
    fn the_start_time_is_read_as_elsewhere() {
        let (pid, tid) = (std::process::id() as i32, own_tid());
        let expected = proc::task_stat(pid, tid).unwrap().start_time;
        assert_eq!(OpenFiles::of(pid, tid).unwrap().start_time().unwrap(), expected);
        let line = format!("7 (a) R b) S {}99 100 5", "1 ".repeat(18));
        assert_eq!(parse_start_time(line.as_bytes()), Some(99));
        let cut = line.strip_suffix(" 100 5").unwrap();
        for wrong in [cut, "7 (a) S 1 2", "7 (a", ""] {
            assert_eq!(parse_start_time(wrong.as_bytes()), None, "{wrong}");
        }
        let longest = format!("7 ({}) S {}", "n".repeat(63), format!("{} ", u64::MAX).repeat(20));
        assert!(
            parse_start_time(&longest.as_bytes()[..STAT_IDENTITY.min(longest.len())]).is_some()
        );
    }

    #[test]
    fn files_that_are_opened_again_must_be_of_the_same_thread() {
        let (pid, tid) = (std::process::id() as i32, own_tid());
        let clock = reopened(pid, tid);
        assert!(clock.is_reopened() && !TaskClock::open(pid, tid).unwrap().is_reopened());
        assert_eq!(clock.state().unwrap(), 'R');
        let before = clock.turns().unwrap();
        std::thread::sleep(Duration::from_millis(2));
        assert!(clock.turns().unwrap().count > before.count);
        let start_time = proc::task_stat(pid, tid).unwrap().start_time + 1;
        let other = TaskClock(ClockFiles::Reopened { pid, tid, start_time });
        for outcome in [other.turns().err(), other.state().err()] {
            assert_eq!(outcome.map(|error| error.kind()), Some(io::ErrorKind::NotFound));
        }
    }

    #[test]
    fn thread_that_sleeps_has_no_turns_and_one_that_wakes_has() {
        let (name_it, named) = channel();
        let (wake, woken) = channel::<()>();
        let thread = std::thread::spawn(move || {
            name_it.send(own_tid()).unwrap();
            woken.recv().unwrap();
            name_it.send(own_tid()).unwrap();
            woken.recv().unwrap_err();
        });
        let pid = std::process::id() as i32;
        let clock = TaskClock::open(pid, named.recv().unwrap()).unwrap();
        let at_rest = || {
            while clock.state().unwrap() != 'S' {
                std::thread::sleep(Duration::from_millis(1));
            }
            clock.turns().unwrap()
        };
        let before = at_rest();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(clock.turns().unwrap(), before);
        assert!(before.count > 0 && before.run_ns > 0);
        wake.send(()).unwrap();
        named.recv().unwrap();
        let after = at_rest();
        assert!(after.count > before.count && after.run_ns > before.run_ns, "{before:?} {after:?}");
        drop(wake);
        thread.join().unwrap();
        let has_gone = || {
            let outcomes =
                [clock.turns().err(), clock.state().err()].map(|it| it.map(|e| e.kind()));
            outcomes == [Some(io::ErrorKind::NotFound); 2]
        };
        let since = Instant::now();
        while !has_gone() {
            assert!(since.elapsed() < Duration::from_secs(60), "{:?}", clock.turns());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn time_that_a_thread_runs_is_counted() {
        let pid = std::process::id() as i32;
        let clock = TaskClock::open(pid, own_tid()).unwrap();
        assert_eq!(clock.state().unwrap(), 'R');
        let before = clock.turns().unwrap();
        let mut sum = 0u64;
        while clock.turns().unwrap().run_ns < before.run_ns + 20_000_000 {
            sum = std::hint::black_box(sum + 1);
        }
        let used = proc::task_cpu_or_ticks_ns(pid, own_tid()).unwrap();
        assert!(used >= before.run_ns + 20_000_000);
    }

    #[test]
    fn a_thread_that_is_not_there_cannot_be_opened() {
        let pid = std::process::id() as i32;
        let outcome = TaskClock::open(pid, i32::MAX);
        assert_eq!(outcome.err().map(|error| error.kind()), Some(io::ErrorKind::NotFound));
    }

    #[test]
    #[ignore = "a measurement, for release builds"]
    fn reads_take_this_long() {
        const ROUNDS: u32 = 100_000;
        let clock = TaskClock::open(std::process::id() as i32, own_tid()).unwrap();
        let since = Instant::now();
        (0..ROUNDS).for_each(|_| assert!(clock.turns().is_ok()));
        let turns = since.elapsed() / ROUNDS;
        let since = Instant::now();
        (0..ROUNDS).for_each(|_| assert!(clock.state().is_ok()));
        let state = since.elapsed() / ROUNDS;
        let clock = reopened(std::process::id() as i32, own_tid());
        let since = Instant::now();
        (0..ROUNDS).for_each(|_| assert!(clock.turns().is_ok()));
        eprintln!("turns {turns:?}, state {state:?}, reopened {:?}", since.elapsed() / ROUNDS);
    }
}
