//! What the process does with SIGCHLD while it traces.
//!
//! With an inherited SIG_IGN, or an application's SA_NOCLDSTOP, no SIGCHLD would tell of a stop, and every
//! wait for one would take its whole slice.
//!
//! # Invariants
//! - The action is the process's, and several threads may trace at once: the first one saves it, and the
//!   last one puts it back.
//!
//! # Safety
//! Only the default action and what was there before are installed.
#![allow(unsafe_code, reason = "the action of a signal is changed")]

use std::sync::{Mutex, PoisonError};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// While one of these lives, the process is told of every stop of a child.
#[derive(Debug)]
pub(super) struct Hearing(());

/// How many live, and what was installed before the first of them.
static HEARING: Mutex<(usize, Option<SigAction>)> = Mutex::new((0, None));

impl Hearing {
    pub(super) fn begin() -> nix::Result<Hearing> {
        let mut hearing = HEARING.lock().unwrap_or_else(PoisonError::into_inner);
        if hearing.0 == 0 {
            let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
            // SAFETY: installs no handler.
            hearing.1 = Some(unsafe { sigaction(Signal::SIGCHLD, &default) }?);
        }
        hearing.0 += 1;
        Ok(Hearing(()))
    }
}

impl Drop for Hearing {
    fn drop(&mut self) {
        let mut hearing = HEARING.lock().unwrap_or_else(PoisonError::into_inner);
        hearing.0 = hearing.0.saturating_sub(1);
        let before = if hearing.0 == 0 { hearing.1.take() } else { None };
        if let Some(before) = before {
            // SAFETY: what was installed before, by whoever did so.
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

    /// As two sessions that look at sleepers: the second begins before the first has ended. Other tests
    /// trace too, so it is in a process of its own.
    #[test]
    fn the_last_of_several_puts_back_what_the_first_one_found() {
        if std::env::var_os(ALONE).is_none() {
            let name = "inject::hearing::tests::\
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
        let first = Hearing::begin().unwrap();
        let second = Hearing::begin().unwrap();
        assert!(!ignores());
        drop(first);
        assert!(!ignores(), "the second hears nothing any more");
        drop(second);
        assert!(ignores(), "it is not as it was");
        // Once more: nothing of before counts.
        drop(Hearing::begin().unwrap());
        assert!(ignores());
    }
}
