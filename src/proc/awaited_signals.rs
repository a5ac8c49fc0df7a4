//! The signals that a process waits for, through descriptors or in a call.

use std::fs;
use std::path::Path;

use super::{TaskActivity, read_memory, task_activity};

/// Returns the signals of all signalfds of a process; bit 0 is signal 1. An unreadable one counts
/// as empty.
pub fn signalfd_masks(pid: i32) -> u64 {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return 0 };
    let masks = descriptors.filter_map(Result::ok).filter_map(|descriptor| {
        let is_signalfd =
            fs::read_link(descriptor.path()).ok()? == Path::new("anon_inode:[signalfd]");
        let number = descriptor.file_name();
        let place = Path::new("/proc").join(pid.to_string()).join("fdinfo").join(number);
        is_signalfd.then(|| fs::read_to_string(place).ok().as_deref().and_then(parse)).flatten()
    });
    masks.fold(0, |all, mask| all | mask)
}

/// Returns the signals that a thread currently waits for, with `sigwaitinfo` or a similar call; bit
/// 0 is signal 1. An unreadable set counts as empty.
pub fn awaited_in_call(pid: i32, tid: i32) -> u64 {
    let Ok(TaskActivity::Syscall { number, args: [set, ..], .. }) = task_activity(pid, tid) else {
        return 0;
    };
    if number as i64 != libc::SYS_rt_sigtimedwait {
        return 0;
    }
    let bytes = read_memory(pid, set, size_of::<u64>()).ok();
    bytes.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

fn parse(text: &str) -> Option<u64> {
    let mask = text.lines().find_map(|line| line.strip_prefix("sigmask:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::{SigSet, Signal};
    use nix::sys::signalfd::{SfdFlags, SignalFd};

    use super::*;

    #[test]
    fn masks_of_descriptors_are_read() {
        let text = "pos:\t0\nflags:\t02\nmnt_id:\t15\nsigmask:\t0000000000400800\n";
        assert_eq!(parse(text), Some(0x40_0800));
        assert_eq!(parse("pos:\t0\n"), None);
        let mut waited_for = SigSet::empty();
        waited_for.add(Signal::SIGURG);
        let descriptor = SignalFd::with_flags(&waited_for, SfdFlags::SFD_CLOEXEC).unwrap();
        let bit = 1 << (Signal::SIGURG as i32 - 1);
        assert_eq!(signalfd_masks(std::process::id() as i32) & bit, bit);
        drop(descriptor);
    }
    #[test]
    fn set_of_a_call_is_read_while_it_waits() {
        let pid = std::process::id() as i32;
        let mut waited_for = SigSet::empty();
        waited_for.add(Signal::SIGURG);
        waited_for.add(Signal::SIGWINCH);
        let bits = [Signal::SIGURG, Signal::SIGWINCH].map(|it| 1u64 << (it as i32 - 1));
        let (sender, receiver) = std::sync::mpsc::channel();
        // The thread waits until the process exits.
        std::thread::spawn(move || {
            waited_for.thread_block().unwrap();
            sender.send(nix::unistd::gettid().as_raw()).unwrap();
            waited_for.wait()
        });
        let tid = receiver.recv().unwrap();
        let start = std::time::Instant::now();
        while awaited_in_call(pid, tid) != bits[0] | bits[1] {
            assert!(start.elapsed().as_secs() < 20, "{:x}", awaited_in_call(pid, tid));
        }
        assert_eq!(
            awaited_in_call(pid, nix::unistd::gettid().as_raw()),
            0,
            "this thread does not wait"
        );
    }
}
