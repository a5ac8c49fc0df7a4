//! The budget of this process's descriptors.
//!
//! Whatever a recording must open to go on, such as the next file of a trace or the list of
//! threads, may use every descriptor. Each other use leaves some of them free and does without a
//! descriptor beyond that, so that nothing which was sampled is lost because something else was
//! opened.
//!
//! # Safety
//! One closure runs between fork and exec; it makes a system call only.
//!
//! # Invariants
//! - The kernel returns the lowest free number. A descriptor whose number is beyond the share of
//!   its use therefore shows that this share is used up, whoever holds it. Nothing is counted, so
//!   nothing can be counted wrong.
#![allow(unsafe_code, reason = "pre_exec")]

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::OnceLock;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// The lowest limit with which a recording works. A small program takes some 40 at most.
pub const DESCRIPTORS_MIN: u64 = 64;
/// The number of descriptors that all optional uses leave free, unless the limit is low.
const KEPT: u64 = 64;
/// One in this many descriptors is left free under a low limit.
const KEPT_SHARE: u64 = 8;
/// The number of descriptors that are left free in any case.
const KEPT_MIN: u64 = 16;

/// The soft and hard limit before [`raise_descriptor_limit`].
static ORIGINAL: OnceLock<(u64, u64)> = OnceLock::new();

/// A use of descriptors that a recording can do without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DescriptorUse {
    /// Files of the target that stay open: a program may load more of them at any time.
    Files,
    /// Events that sample.
    Events,
    /// Whatever only saves time when it stays open, or has a substitute.
    Savings,
}

impl DescriptorUse {
    /// Returns the number of descriptors that this use must leave free under a limit.
    fn kept(self, limit: u64) -> u64 {
        let kept = (limit / KEPT_SHARE).clamp(KEPT_MIN, KEPT);
        match self {
            Self::Files => kept,
            Self::Events => kept + kept / 2,
            Self::Savings => (kept * 2).max(limit / 2),
        }
    }

    /// Returns the number of descriptors up to which this use may open more.
    pub fn share(self) -> u64 {
        let limit = descriptor_limit();
        limit.saturating_sub(self.kept(limit))
    }

    /// Returns how many descriptors this use may open now.
    pub fn left(self) -> u64 {
        // The open directory is one of the entries.
        let open = fs::read_dir("/proc/self/fd").map_or(u64::MAX, |all| all.count() as u64);
        self.share().saturating_sub(open.saturating_sub(1))
    }

    /// Checks that so many more descriptors are within this use's share.
    ///
    /// # Errors
    /// EMFILE, as if the limit had been reached.
    pub fn check(self, wanted: u64) -> io::Result<()> {
        if wanted > self.left() { Err(too_many()) } else { Ok(()) }
    }

    /// Returns a descriptor that has just been opened, or closes it if it is beyond this use's
    /// share.
    ///
    /// # Errors
    /// EMFILE, as if the limit had been reached.
    pub fn admit<T: AsFd>(self, opened: T) -> io::Result<T> {
        if self.allows(&opened) { Ok(opened) } else { Err(too_many()) }
    }

    /// Whether a descriptor that has just been opened is within this use's share.
    pub fn allows(self, opened: &impl AsFd) -> bool {
        (opened.as_fd().as_raw_fd() as u64) < self.share()
    }
}

fn too_many() -> io::Error {
    io::Error::from_raw_os_error(libc::EMFILE)
}

/// Returns the limit of this process's descriptors.
pub fn descriptor_limit() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft)
}

/// Raises the limit of this process's descriptors as far as the kernel allows, and returns it.
///
/// One descriptor for each thread of a target may exceed a shell's default limit.
pub fn raise_descriptor_limit() -> u64 {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        ORIGINAL.get_or_init(|| (soft, hard));
        // A refusal leaves the limit as it is.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
    descriptor_limit()
}

/// Gives the program the limit that this process had before [`raise_descriptor_limit`].
///
/// Programs that use select(2) break with descriptors above 1023, and others close every descriptor
/// up to the limit.
pub fn with_original_limit(command: &mut Command) {
    let Some((soft, hard)) = ORIGINAL.get().copied() else { return };
    let before_exec = move || Ok(setrlimit(Resource::RLIMIT_NOFILE, soft, hard)?);
    // SAFETY: the closure is async-signal-safe: it makes one system call, allocates nothing and
    // takes no lock.
    unsafe { command.pre_exec(before_exec) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_use_leaves_descriptors_to_the_more_important_ones() {
        use DescriptorUse::{Events, Files, Savings};
        for limit in [DESCRIPTORS_MIN, 100, 256, 1024, 4096, 20_000, 1 << 20, u64::MAX] {
            let [files, events, savings] = [Files, Events, Savings].map(|it| it.kept(limit));
            assert!(KEPT_MIN <= files && files < events && events < savings, "{limit}");
            assert!(savings < limit, "{limit}");
        }
        assert_eq!([Files, Events, Savings].map(|it| it.kept(64)), [16, 24, 32]);
        assert_eq!([Files, Events, Savings].map(|it| it.kept(1024)), [64, 96, 512]);
    }

    #[test]
    fn descriptor_beyond_the_share_is_closed_and_refused() {
        let high = |number: u64| {
            let file = fs::File::open("/dev/null").unwrap();
            nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_DUPFD_CLOEXEC(number as i32)).map(
                |copy| {
                    use std::os::fd::FromRawFd;
                    // SAFETY: the kernel just returned it to us alone.
                    unsafe { std::os::fd::OwnedFd::from_raw_fd(copy) }
                },
            )
        };
        let share = DescriptorUse::Savings.share().min(i32::MAX as u64);
        let refused = DescriptorUse::Savings.admit(high(share).unwrap()).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EMFILE));
        assert!(!std::path::Path::new(&format!("/proc/self/fd/{share}")).exists(), "still open");
        assert!(DescriptorUse::Savings.admit(fs::File::open("/dev/null").unwrap()).is_ok());
    }

    #[test]
    fn as_many_are_left_as_can_be_opened() {
        let use_it = DescriptorUse::Savings;
        let left = use_it.left();
        assert!(left > 0 && use_it.check(left.saturating_add(1000)).is_err());
        assert!(use_it.check(1).is_ok());
    }

    #[test]
    fn started_program_has_the_original_limit() {
        let shown = |change: fn(&mut Command)| {
            let mut shell = Command::new("sh");
            shell.args(["-c", "ulimit -Sn; ulimit -Hn"]);
            change(&mut shell);
            String::from_utf8(shell.output().unwrap().stdout).unwrap()
        };
        let before = shown(|_| {});
        let raised = raise_descriptor_limit();
        assert_eq!(raised, getrlimit(Resource::RLIMIT_NOFILE).unwrap().1);
        assert_eq!(shown(with_original_limit), before);
    }
}
