//! The program that the sources sample, as far as they need it.

use traceprof_abi::layout::{Operation, REPLACED};
use traceprof_abi::sync::Ordering;

use crate::record::contract::event::Event;
use crate::record::contract::observer::Observer;
use crate::record::source::wall::LiveThread;
use crate::record::target::attach::Attached;

/// The target's threads; the store keeps them.
pub(crate) trait TargetThreads {
    /// Returns the live threads: the id here, and the id in the target.
    fn alive(&self) -> impl Iterator<Item = (i32, u32)>;

    /// Returns the same with names.
    fn named(&self) -> impl Iterator<Item = (i32, u32, &str)>;

    /// Returns the same with the numbers of their lives, and their starts if these were during the
    /// recording.
    fn lives(&self) -> impl Iterator<Item = LiveThread>;

    /// Returns two counts, at least one of which changes with the set of live threads.
    fn version(&self) -> (usize, usize);

    /// Returns when a thread ended, and all of its CPU time if the kernel reported it.
    fn end_of(&self, life: u32) -> Option<(u64, Option<u64>)>;

    /// Checks whether the process has executed another program, or is about to end.
    fn is_program_gone(&self) -> bool;
}

/// The program: its agent, its threads, and the observer of the recording.
pub(crate) struct Program<'s, 'a, T> {
    /// The agent in it.
    pub(crate) attached: &'s mut Attached<'a>,
    /// Its threads.
    pub(crate) threads: &'s T,
    /// The observer.
    pub(crate) observer: &'s mut dyn Observer,
}

impl<T> Program<'_, '_, T> {
    /// Reports a notice to the user.
    pub(crate) fn notice(&mut self, text: impl Into<String>) {
        self.observer.event(Event::Notice(text.into()));
    }

    /// Has the agent check its handlers; true if the one for this signal is not ours any more.
    ///
    /// This stops a thread of the target for a moment.
    pub(crate) fn is_handler_replaced(&mut self, index: usize) -> bool {
        if self.attached.enter(Operation::Look).is_err() {
            return false;
        }
        let action = &self.attached.data().control().signals[index];
        // Relaxed: the entry has returned.
        action.installed.load(Ordering::Relaxed) == REPLACED
    }
}
