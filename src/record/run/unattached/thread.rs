//! A thread of a process without an agent.

use crate::record::batch::threads::{ThreadChange, ThreadKey, ThreadLife};
use crate::record::store::threads::Exit;

/// A thread, from its start to its end.
#[derive(Debug, Clone)]
pub(super) struct UnattachedThread {
    /// Unique in the recording of all such processes.
    number: u32,
    tid: i32,
    name: String,
    start_ns: u64,
    /// Whether the writer knows the thread.
    is_announced: bool,
    /// Whether it has samples.
    pub(super) is_sampled: bool,
}

impl UnattachedThread {
    pub(super) fn new(number: u32, tid: i32, name: String, start_ns: u64) -> Self {
        Self { number, tid, name, start_ns, is_announced: false, is_sampled: false }
    }

    pub(super) fn key(&self) -> ThreadKey {
        (self.number, 0)
    }

    pub(super) fn tid(&self) -> i32 {
        self.tid
    }

    /// Returns the name, for threads that this one starts.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Announces the thread to the writer, unless it is known.
    pub(super) fn announce(&mut self, pid: i32, news: &mut Vec<ThreadChange>) {
        if !std::mem::replace(&mut self.is_announced, true) {
            let life = ThreadLife {
                tid: self.tid,
                inner: (pid as u32, self.tid as u32),
                name: self.name.clone(),
                start_ns: self.start_ns,
            };
            news.push(ThreadChange::Seen { key: self.key(), life });
        }
    }

    /// Sets the name.
    pub(super) fn rename(&mut self, name: String, news: &mut Vec<ThreadChange>) {
        if self.is_announced && self.name != name {
            news.push(ThreadChange::Renamed { key: self.key(), name: name.clone() });
        }
        self.name = name;
    }

    /// Ends the life.
    pub(super) fn exit(&self, time_ns: u64) -> Exit {
        Exit { key: self.key(), tid: self.tid, time_ns, cpu_ns: None }
    }
}
