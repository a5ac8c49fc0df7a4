//! The signal that ended a process.
//!
//! # Safety
//! One `ioctl` that no crate in use wraps: it fills a structure of integers.
#![allow(unsafe_code, reason = "asks a descriptor of a process with a bare ioctl")]

use std::os::fd::{AsRawFd, BorrowedFd};

use procfs::process::Process;

/// `PIDFD_GET_INFO` for the first version of the structure.
const GET_INFO: libc::c_ulong = 0xC040_FF0B;
/// `PIDFD_INFO_EXIT`.
const INFO_EXIT: u64 = 1 << 3;

/// The kernel's `struct pidfd_info`, first version.
#[repr(C)]
#[derive(Default)]
struct Info {
    mask: u64,
    control_group: u64,
    ids: [u32; 11],
    exit_code: i32,
}
const _: () = assert!(size_of::<Info>() == 64);

/// Returns the signal that ended the process of a descriptor, if it has ended by one and if that
/// can be known. Its parent may have waited for it already: then only Linux 6.15 and later tell.
/// Before that, the process has its status itself, and shows it to those who may trace it.
pub fn exit_signal(process: BorrowedFd<'_>, pid: i32) -> Option<i32> {
    let status = status_of_descriptor(process).or_else(|| status_of_zombie(pid))?;
    (libc::WIFSIGNALED(status)).then(|| libc::WTERMSIG(status))
}

fn status_of_descriptor(process: BorrowedFd<'_>) -> Option<i32> {
    let mut info = Info { mask: INFO_EXIT, ..Info::default() };
    // SAFETY: fills the structure, which has the size that the request's number contains.
    let result = unsafe { libc::ioctl(process.as_raw_fd(), GET_INFO, &raw mut info) };
    (result == 0 && info.mask & INFO_EXIT != 0).then_some(info.exit_code)
}

fn status_of_zombie(pid: i32) -> Option<i32> {
    let stat = Process::new(pid).ok()?.stat().ok()?;
    stat.exit_code.filter(|_| stat.state == 'Z')
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::proc::{open_pidfd, wait_readable};

    #[test]
    fn a_process_tells_its_signal_before_its_parent_has_waited() {
        for (command, expected) in [("exit 11", None), ("kill -SEGV $$", Some(libc::SIGSEGV))] {
            let mut child = Command::new("sh").args(["-c", command]).spawn().unwrap();
            let pid = child.id() as i32;
            let process = open_pidfd(pid).unwrap();
            wait_readable(process.as_fd(), Instant::now() + Duration::from_secs(20)).unwrap();
            assert_eq!(exit_signal(process.as_fd(), pid), expected, "{command}");
            child.wait().unwrap();
            // Linux 6.15 and later tell afterwards, too.
            let late = exit_signal(process.as_fd(), pid);
            assert!(late == expected || late.is_none(), "{command}: {late:?}");
        }
        let alive = open_pidfd(std::process::id() as i32).unwrap();
        assert_eq!(exit_signal(alive.as_fd(), std::process::id() as i32), None);
    }
}
