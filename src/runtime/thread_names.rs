//! The names that programs give their threads in language runtimes.

use std::any::Any;
use std::collections::HashSet;
use std::fmt;

use super::memory::TargetMemory;

/// Threads whose names are wanted, by their ids in their own namespace.
#[derive(Debug, Clone, Copy)]
pub struct WantedNames<'a> {
    /// The threads.
    pub tids: &'a HashSet<u32>,
    /// The id of the first thread, which is that of the process.
    pub first: u32,
}

/// A runtime in which threads have names: those that the program has given them, or what they are
/// for.
pub trait NamesThreads: fmt::Debug {
    /// Returns the names of wanted threads, each with its id in its own namespace. A thread
    /// that is not there now has none.
    fn thread_names(
        &self,
        memo: &mut ThreadNameMemo,
        memory: &dyn TargetMemory,
        wanted: WantedNames<'_>,
    ) -> Vec<(u32, String)>;
}

/// What a runtime remembers from one reading of names for the next one. Each kind of runtime has a
/// type of its own for it.
#[derive(Debug, Default)]
pub struct ThreadNameMemo(Option<Box<dyn Any + Send>>);

impl ThreadNameMemo {
    /// Takes what was kept. A runtime of another kind may have kept something else, which is
    /// dropped.
    pub(super) fn take<T: Any + Default>(&mut self) -> Box<T> {
        let kept: Option<Box<dyn Any>> = self.0.take().map(|kept| kept as Box<dyn Any>);
        kept.and_then(|kept| kept.downcast().ok()).unwrap_or_default()
    }

    /// Keeps something for the next reading.
    pub(super) fn keep<T: Any + Send>(&mut self, kept: Box<T>) {
        self.0 = Some(kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_of_the_same_kind_is_taken() {
        let mut memo = ThreadNameMemo::default();
        assert_eq!(*memo.take::<u64>(), 0);
        memo.keep(Box::new(7_u64));
        assert_eq!(*memo.take::<u64>(), 7);
        memo.keep(Box::new(7_u64));
        assert_eq!(*memo.take::<String>(), "");
        assert_eq!(*memo.take::<u64>(), 0, "it was dropped");
    }
}
