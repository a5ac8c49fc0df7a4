//! Keeps a panic of a parser, caused by a hostile file, inside the parser.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

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
    fn panic_becomes_none_and_the_next_call_works() {
        assert_eq!(contain(|| -> u32 { panic!("hostile") }), None);
        assert_eq!(contain(|| 7), Some(7));
        assert!(!QUIET.get());
    }
}
