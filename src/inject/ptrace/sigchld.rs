//! The action of SIGCHLD while this process traces.
//!
//! With an inherited SIG_IGN or SA_NOCLDSTOP, no SIGCHLD would report a stop, and every wait for a
//! stop would take its full slice.
//!
//! # Invariants
//! - The action belongs to the process, and several threads may trace at once. The first one saves
//!   the action, and the last one restores it.
//!
//! # Safety
//! This module installs only the default action and the saved one.
#![allow(unsafe_code, reason = "the action of a signal is changed")]

use std::sync::{Mutex, PoisonError};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// A guard: while one lives, SIGCHLD reports every stop of a child to the process.
#[derive(Debug)]
pub(in crate::inject) struct DefaultSigchld(());

/// The number of live guards, and the action before the first of them.
static REPLACED: Mutex<(usize, Option<SigAction>)> = Mutex::new((0, None));

impl DefaultSigchld {
    pub(in crate::inject) fn install() -> nix::Result<DefaultSigchld> {
        let mut replaced = REPLACED.lock().unwrap_or_else(PoisonError::into_inner);
        if replaced.0 == 0 {
            let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
            // SAFETY: installs no handler.
            replaced.1 = Some(unsafe { sigaction(Signal::SIGCHLD, &default) }?);
        }
        replaced.0 += 1;
        Ok(DefaultSigchld(()))
    }
}

impl Drop for DefaultSigchld {
    fn drop(&mut self) {
        let mut replaced = REPLACED.lock().unwrap_or_else(PoisonError::into_inner);
        replaced.0 = replaced.0.saturating_sub(1);
        let before = if replaced.0 == 0 { replaced.1.take() } else { None };
        if let Some(before) = before {
            // SAFETY: reinstalls the action that was installed before.
            let _ = unsafe { sigaction(Signal::SIGCHLD, &before) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const ALONE: &str = "TRACEPROF_TEST_HEARING";

    /// Whether the process ignores SIGCHLD now.
    fn ignores() -> bool {
        let status = crate::proc::status(std::process::id() as i32).unwrap();
        status.ignored >> (libc::SIGCHLD - 1) & 1 == 1
    }

    /// The second trace starts before the first has finished. Other tests trace, too, so this test
    /// runs in a process of its own.
    #[test]
    fn the_last_of_several_puts_back_what_the_first_one_found() {
        if std::env::var_os(ALONE).is_none() {
            let name = "inject::ptrace::sigchld::tests::\
                        the_last_of_several_puts_back_what_the_first_one_found";
            let mut alone = Command::new(std::env::current_exe().unwrap());
            let output = alone.args(["--exact", name]).env(ALONE, "1").output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("1 passed"), "{text}");
            return;
        }
        let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
        // SAFETY: installs no handler.
        unsafe { sigaction(Signal::SIGCHLD, &ignore) }.unwrap();
        let first = DefaultSigchld::install().unwrap();
        let second = DefaultSigchld::install().unwrap();
        assert!(!ignores());
        drop(first);
        assert!(!ignores(), "the second trace gets no SIGCHLD any more");
        drop(second);
        assert!(ignores(), "the action is not restored");
        // Once more, to check that no state is left over.
        drop(DefaultSigchld::install().unwrap());
        assert!(ignores());
    }
}
