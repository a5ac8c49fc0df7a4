//! The sources' view of the program that they sample.

use traceprof_abi::layout::{Operation, REPLACED};
use traceprof_abi::sync::Ordering;

use crate::record::contract::event::Event;
use crate::record::contract::observer::Observer;
use crate::record::source::wall::LiveThread;
use crate::record::target::attach::Attached;

/// The target's threads, as the store keeps them.
pub(crate) trait TargetThreads {
    /// Returns the live threads: the recorder's id for each, and the target's.
    fn alive(&self) -> impl Iterator<Item = (i32, u32)>;

    /// Returns the live threads with their names.
    fn named(&self) -> impl Iterator<Item = (i32, u32, &str)>;

    /// Returns the live threads with the numbers of their lives.
    ///
    /// Threads that started during the recording also have their start times.
    fn lives(&self) -> impl Iterator<Item = LiveThread>;

    /// Returns two counts; at least one of them changes with the set of live threads.
    fn version(&self) -> (usize, usize);

    /// Returns the time in nanoseconds at which a thread exited, and its CPU time if the kernel
    /// reported it.
    fn end_of(&self, life: u32) -> Option<(u64, Option<u64>)>;

    /// Returns whether the process has executed another program or is exiting.
    fn is_program_gone(&self) -> bool;
}

/// The program: its agent, its threads, and the observer of the recording.
pub(crate) struct Program<'s, 'a, T> {
    /// The agent in the program.
    pub(crate) attached: &'s mut Attached<'a>,
    /// The program's threads.
    pub(crate) threads: &'s T,
    /// The observer of the recording.
    pub(crate) observer: &'s mut dyn Observer,
}

impl<T> Program<'_, '_, T> {
    /// Reports a notice to the user.
    pub(crate) fn notice(&mut self, text: impl Into<String>) {
        self.observer.event(Event::Notice(text.into()));
    }

    /// Makes the agent check its handlers; returns whether the one for this signal was replaced.
    ///
    /// This stops a thread of the target for a moment.
    pub(crate) fn is_handler_replaced(&mut self, index: usize) -> bool {
        if self.attached.enter(Operation::CheckHandlers).is_err() {
            return false;
        }
        let action = &self.attached.data().control().signals[index];
        // Relaxed: the entry has returned.
        action.installed.load(Ordering::Relaxed) == REPLACED
    }
}
