//! Whether a thread holds the lock of its interpreter, the GIL.
//!
//! From 3.12 on, a thread-local variable has the thread's state while the thread holds the lock.
//! Before, all threads share one lock, and one variable has the state of the thread that holds it.

use super::PythonLayout;
use crate::context::TlsLocation;
use crate::runtime::WordReader;

impl PythonLayout {
    /// Returns the way to the variable with the thread's state, if there is such a variable.
    pub(super) fn state_variable(&self) -> Option<TlsLocation> {
        TlsLocation::of(self.state_kind, self.state_offset, self.state_module)
    }

    /// Whether [`holds_lock`] can tell who holds the lock.
    pub fn tells_lock(&self) -> bool {
        self.current_state != 0 || self.state_variable().is_some()
    }
}

/// Whether the thread with this thread pointer holds the lock of its interpreter. False if the way
/// to the answer is unreadable.
///
/// The caller is that thread, or ensures that it does not run meanwhile, or drops the result.
pub fn holds_lock(
    layout: &PythonLayout,
    thread_pointer: u64,
    memory: &mut impl WordReader,
) -> bool {
    let mut load = |avma: u64| if avma & 7 == 0 { memory.load(avma) } else { None };
    if layout.current_state == 0 {
        let way = layout.state_variable();
        let variable = way.and_then(|way| way.variable(thread_pointer, &mut load).ok().flatten());
        return variable.and_then(load).is_some_and(|state| state != 0);
    }
    let state = load(layout.current_state).unwrap_or(0);
    let owner = state.wrapping_add(u64::from(layout.state_pointer));
    state != 0 && thread_pointer != 0 && load(owner) == Some(thread_pointer)
}
