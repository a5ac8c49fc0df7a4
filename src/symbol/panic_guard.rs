//! Contains panics of parsers that hostile files cause, and limits the time of parsers.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;
use std::time::Duration;

use crate::proc::thread_time;

/// Maximum time of one source of names. The largest debug information takes some seconds, once.
/// More is a hostile input.
const TIME_MAX: Duration = Duration::from_secs(60);

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `parse`, and returns `None` if it panics. The panic prints nothing: the file caused it, and
/// the missing name shows it.
///
/// On `None` the caller discards everything that `parse` was changing. That makes
/// `AssertUnwindSafe` correct.
pub(super) fn contain<T>(parse: impl FnOnce() -> T) -> Option<T> {
    install_hook();
    QUIET.set(true);
    let result = panic::catch_unwind(AssertUnwindSafe(parse)).ok();
    QUIET.set(false);
    result
}

/// The total time that one source of names may use.
///
/// The caller checks it between calls. A running call is not interrupted: a batch of addresses for
/// a [`Parser`](super::parser::Parser) or Go's table, or one address for split DWARF.
#[derive(Debug, Default)]
pub(super) struct TimeBudget {
    spent: Duration,
}

impl TimeBudget {
    /// Runs `parse` like [`contain`], and adds its time.
    pub(super) fn spend<T>(&mut self, parse: impl FnOnce() -> T) -> Option<T> {
        let started = thread_time();
        let result = contain(parse);
        self.spent += thread_time().saturating_sub(started);
        result
    }

    /// Returns whether the budget is used up.
    pub(super) fn is_spent(&self) -> bool {
        self.spent >= TIME_MAX
    }
}

/// Wraps the process's panic hook once. Other panics, and those of other threads, reach the old
/// hook unchanged.
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
        let mut allowance = TimeBudget::default();
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
