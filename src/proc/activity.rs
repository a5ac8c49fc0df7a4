//! The activity of a thread: its system call, the kernel functions it sleeps in, its descriptors.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};

use super::{gone, malformed};

/// The longest line: a number of up to eleven characters, eight numbers of up to eighteen, and the
/// separators.
const LINE_MAX: usize = 11 + 8 * 19 + 1;

/// The activity of a thread, from `/proc/PID/task/TID/syscall`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskActivity {
    /// The thread runs, or is ready to run.
    Running,
    /// The thread is blocked outside a system call (a page fault, a stop).
    Blocked {
        /// The stack pointer.
        sp: u64,
        /// The program counter.
        pc: u64,
    },
    /// The thread is blocked in a system call.
    Syscall {
        /// The system call's number.
        number: u64,
        /// The arguments.
        args: [u64; 6],
        /// The stack pointer.
        sp: u64,
        /// The address after the system call instruction.
        pc: u64,
    },
}

/// Returns the current activity of a thread. The kernel shows the state of a sleeping thread only
/// if the thread did not run meanwhile, so the values belong together.
///
/// # Errors
/// `NotFound` if the thread has exited, `PermissionDenied` if it may not be traced.
pub fn task_activity(pid: i32, tid: i32) -> io::Result<TaskActivity> {
    let mut file = fs::File::open(format!("/proc/{pid}/task/{tid}/syscall")).map_err(gone)?;
    let mut bytes = [0; LINE_MAX];
    // The kernel returns such a line in one read.
    let got = file.read(&mut bytes).map_err(gone)?;
    let line = bytes.get(..got).unwrap_or_default().trim_ascii();
    parse(line).ok_or_else(|| malformed("syscall", line))
}

/// Parses `running`, `-1 SP PC`, or the call's number and arguments before these.
fn parse(line: &[u8]) -> Option<TaskActivity> {
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    let number = match words.next()? {
        "running" => return Some(TaskActivity::Running),
        word => u64::try_from(word.parse::<i64>().ok()?).ok(),
    };
    let mut address = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    let Some(number) = number else {
        return Some(TaskActivity::Blocked { sp: address()?, pc: address()? });
    };
    let mut args = [0; 6];
    for arg in &mut args {
        *arg = address()?;
    }
    Some(TaskActivity::Syscall { number, args, sp: address()?, pc: address()? })
}

/// Returns the kernel function that a thread sleeps in; `None` if the thread runs, or the kernel
/// does not show it.
pub fn wait_channel(pid: i32, tid: i32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{pid}/task/{tid}/wchan")).ok()?;
    (!name.is_empty() && name != "0").then_some(name)
}

/// Returns the address that a system call with these arguments waits for a change of.
pub fn waited_address(number: u64, args: &[u64; 6]) -> Option<u64> {
    let [avma, operation, ..] = *args;
    let is_wait = matches!(
        operation as i32 & libc::FUTEX_CMD_MASK,
        libc::FUTEX_WAIT
            | libc::FUTEX_WAIT_BITSET
            | libc::FUTEX_LOCK_PI
            | libc::FUTEX_WAIT_REQUEUE_PI
    );
    (number as i64 == libc::SYS_futex && is_wait).then_some(avma)
}

/// Whether a system call with these arguments may wait for a change of an address. The kernel
/// restarts some interrupted calls in a way that hides what they were.
pub fn may_wait_on_address(number: u64, args: &[u64; 6]) -> bool {
    waited_address(number, args).is_some() || number as i64 == libc::SYS_restart_syscall
}

/// Returns the kernel functions of a sleeping thread, innermost first. Needs root's rights.
pub fn kernel_stack(pid: i32, tid: i32) -> io::Result<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/stack"))?;
    // `[<0>] futex_wait+0x6e/0xf0`; the kernel hides the addresses.
    let function = |line: &str| line.split_once("] ").map_or(line, |(_, rest)| rest).to_owned();
    Ok(text.lines().map(function).collect())
}

/// Returns the kernel's name for an open descriptor of a process.
pub fn descriptor(pid: i32, number: i32) -> io::Result<OsString> {
    fs::read_link(format!("/proc/{pid}/fd/{number}")).map(OsString::from)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn lines_are_read_and_others_refused() {
        assert_eq!(parse(b"running"), Some(TaskActivity::Running));
        let blocked = TaskActivity::Blocked { sp: 0x7ffd_0000_0010, pc: 0x40_1000 };
        assert_eq!(parse(b"-1 0x7ffd00000010 0x401000"), Some(blocked));
        let args = [3, 0x10, 0, 4, 5, u64::MAX];
        let asleep = TaskActivity::Syscall { number: 202, args, sp: 0x20, pc: 0x30 };
        let line = b"202 0x3 0x10 0x0 0x4 0x5 0xffffffffffffffff 0x20 0x30";
        assert_eq!(parse(line), Some(asleep));
        for wrong in [&b""[..], b"x", b"-1", b"-1 0x1", b"0 0x1 0x2", b"0 1 2 3 4 5 6 7 8", b"\xff"]
        {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
        let longest = format!("{} {}", i32::MIN, ["0xffffffffffffffff"; 8].join(" "));
        assert!(longest.len() < LINE_MAX);
    }

    #[test]
    fn a_thread_runs_or_sleeps_in_its_call() {
        const FUTEX: u64 = libc::SYS_futex as u64;
        let pid = std::process::id() as i32;
        let (sender, receiver) = channel();
        let (wake, woken) = channel::<()>();
        let is_over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            sender.send(nix::unistd::gettid().as_raw()).unwrap();
            woken.recv().unwrap_err();
            // Relaxed: the flag publishes no other data.
            while !until.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let tid = receiver.recv().unwrap();
        let await_it = |wanted: fn(TaskActivity) -> bool| {
            while !wanted(task_activity(pid, tid).unwrap()) {
                std::thread::yield_now();
            }
        };
        await_it(|it| matches!(it, TaskActivity::Syscall { number: FUTEX, .. }));
        drop(wake);
        await_it(|it| it == TaskActivity::Running);
        is_over.store(true, Ordering::Relaxed);
        thread.join().unwrap();
        assert_eq!(task_activity(pid, i32::MAX).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
