//! Keeps a panic of a parser, caused by a hostile file, inside the parser; and the time that it takes
//! within bounds.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// The largest debug information takes some seconds, once. What takes longer is made to.
const TIME_MAX: Duration = Duration::from_secs(60);

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `parse`; `None` if it panicked. Nothing is printed for such a panic: it is the file's fault
/// and its effect, a missing name, is visible.
///
/// The caller throws away whatever `parse` was changing when it gets `None`: that is what makes
/// `AssertUnwindSafe` true.
pub(super) fn contain<T>(parse: impl FnOnce() -> T) -> Option<T> {
    install_hook();
    QUIET.set(true);
    let result = panic::catch_unwind(AssertUnwindSafe(parse)).ok();
    QUIET.set(false);
    result
}

/// The time that one source of names may take in all. It is looked at between questions: what a
/// [`Parser`](super::parser::Parser) or Go's table says of a batch of addresses, and debug information
/// that is spread of one, is not interrupted.
#[derive(Debug, Default)]
pub(super) struct Allowance {
    spent: Duration,
}

impl Allowance {
    /// Runs `parse` as [`contain`] does, and counts its time.
    pub(super) fn spend<T>(&mut self, parse: impl FnOnce() -> T) -> Option<T> {
        let started = thread_time();
        let result = contain(parse);
        self.spent += thread_time().saturating_sub(started);
        result
    }

    /// Nothing is left.
    pub(super) fn is_spent(&self) -> bool {
        self.spent >= TIME_MAX
    }
}

/// The time that this thread has run: waiting for others takes none of it.
fn thread_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// Wraps the process's panic hook once; other panics, and other threads', go to it unchanged.
fn install_hook() {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                previous(info);
            }
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_counted() {
        let mut allowance = Allowance::default();
        assert_eq!(allowance.spend(|| panic!("hostile")), None::<()>);
        let turns = || (0..3_000_000_u64).map(std::hint::black_box).sum::<u64>();
        assert_eq!(allowance.spend(turns), Some(4_499_998_500_000));
        assert!(allowance.spent > Duration::from_micros(100) && !allowance.is_spent());
        allowance.spent += TIME_MAX;
        assert!(allowance.is_spent());
    }

    #[test]
    fn panic_becomes_none_and_the_next_call_works() {
        assert_eq!(contain(|| -> u32 { panic!("hostile") }), None);
        assert_eq!(contain(|| 7), Some(7));
        assert!(!QUIET.get());
    }
}
