//! The running kernel: its version, and which of the newer system calls it has.
//!
//! # Safety
//! The probes pass numbers, and a structure that lives across the call. None of them changes
//! anything.
#![allow(unsafe_code, reason = "system calls that no crate in use wraps")]

use std::io;
use std::ptr;

/// Major and minor number of a kernel.
pub type KernelVersion = (u32, u32);

/// Returns the version of the running kernel; `None` if its release has another form.
pub fn kernel_version() -> Option<KernelVersion> {
    let name = nix::sys::utsname::uname().ok()?;
    parse_version(name.release().to_str()?)
}

/// Parses major and minor number of a release like `6.1.0-13-amd64`.
fn parse_version(release: &str) -> Option<KernelVersion> {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// A system call, or a form of one, that Linux has since one of its newer versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewerCall {
    /// `pidfd_open`.
    PidfdOpen,
    /// `openat2`.
    Openat2,
    /// `close_range`.
    CloseRange,
    /// `madvise` with `MADV_POPULATE_WRITE`.
    PopulateWrite,
}

impl NewerCall {
    /// All calls, the oldest first.
    pub const ALL: [Self; 4] =
        [Self::PidfdOpen, Self::Openat2, Self::CloseRange, Self::PopulateWrite];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Self::PidfdOpen => "pidfd_open",
            Self::Openat2 => "openat2",
            Self::CloseRange => "close_range",
            Self::PopulateWrite => "MADV_POPULATE_WRITE",
        }
    }

    /// Returns the first version of Linux with this call.
    pub fn since(self) -> KernelVersion {
        match self {
            Self::PidfdOpen => (5, 3),
            Self::Openat2 => (5, 6),
            Self::CloseRange => (5, 9),
            Self::PopulateWrite => (5, 14),
        }
    }

    /// Whether the kernel has the call, and no filter of this process refuses it.
    pub fn is_permitted(self) -> bool {
        match self {
            Self::PidfdOpen => super::open_pidfd(std::process::id() as i32).is_ok(),
            Self::Openat2 => {
                let how = [libc::O_PATH as u64, 0, 0];
                let root = c"/".as_ptr();
                let (none, len) = (libc::AT_FDCWD, size_of_val(&how));
                // SAFETY: the kernel reads the path and `len` bytes of `how`.
                let fd =
                    unsafe { libc::syscall(libc::SYS_openat2, none, root, &raw const how, len) };
                // SAFETY: opened above, and nothing else uses it. -1 is no descriptor.
                unsafe { libc::close(fd as i32) };
                fd >= 0
            }
            Self::CloseRange => close_range(u32::MAX, u32::MAX).is_ok(),
            Self::PopulateWrite => {
                // SAFETY: an empty range. The kernel checks the advice before the length.
                unsafe { libc::madvise(ptr::null_mut(), 0, POPULATE_WRITE) == 0 }
            }
        }
    }
}

/// The advice that makes pages present as a write would.
pub const POPULATE_WRITE: i32 = 23;

/// Closes descriptors from one number to another, both included.
pub fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: takes numbers. An older C library has no function for this call.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_releases() {
        for (release, expected) in [
            ("6.1.0-13-amd64", Some((6, 1))),
            ("6.18.44-fc-v669", Some((6, 18))),
            ("5.15", Some((5, 15))),
            ("6", None),
            ("", None),
        ] {
            assert_eq!(parse_version(release), expected, "{release}");
        }
        assert!(kernel_version().is_some_and(|version| version >= (3, 0)));
    }

    #[test]
    fn a_kernel_has_the_calls_of_its_version() {
        let version = kernel_version().unwrap();
        for call in NewerCall::ALL {
            if version >= call.since() {
                assert!(call.is_permitted(), "{}", call.name());
            }
        }
    }
}
