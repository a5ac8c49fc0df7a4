//! The threads of a live program of Node.js.

use super::roles::{NodeExports, ThreadRole};
use super::worker::worker_name;
use crate::runtime::memory::TargetMemory;
use crate::runtime::pthreads::Pthreads;
use crate::runtime::{NamesThreads, ThreadNameMemo, WantedNames};

/// The name of the thread that runs the program.
const MAIN: &str = "main";

/// The threads of Node.js in a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeThreads {
    /// The addresses (AVMAs) of the functions that threads run.
    starts: Vec<(u64, ThreadRole)>,
    /// The threads of the process, if its library is known.
    pthreads: Option<Pthreads>,
}

impl NodeThreads {
    /// Takes Node.js in a process that has loaded the file, with this load bias.
    pub fn of(exports: &NodeExports, bias: u64, pthreads: Option<Pthreads>) -> Self {
        let starts = exports.starts.iter().map(|(svma, role)| (svma.wrapping_add(bias), *role));
        Self { starts: starts.collect(), pthreads }
    }
}

impl NamesThreads for NodeThreads {
    fn thread_names(
        &self,
        _: &mut ThreadNameMemo,
        memory: &dyn TargetMemory,
        wanted: WantedNames<'_>,
    ) -> Vec<(u32, String)> {
        let first = wanted.tids.get(&wanted.first).map(|tid| (*tid, MAIN.to_owned()));
        let threads = self.pthreads.map(|it| it.find(memory, wanted.tids)).unwrap_or_default();
        let named = threads.into_iter().filter_map(|thread| {
            let (_, role) = self.starts.iter().find(|(start, _)| *start == thread.start)?;
            let name = match role {
                ThreadRole::Named(name) => (*name).to_owned(),
                ThreadRole::Worker => worker_name(memory, &thread),
            };
            Some((thread.tid, name))
        });
        first.into_iter().chain(named).collect()
    }
}
