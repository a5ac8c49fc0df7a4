//! Signals that a process waits for through descriptors.

use std::fs;
use std::path::Path;

/// The signals of all its signalfds; bit 0 is signal 1. What cannot be read counts as none.
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
}
