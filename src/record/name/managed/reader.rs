//! Reads the functions of new managed frames from the target.
//!
//! # Invariants
//! - Each function is read once, and its names are kept. Later samples read nothing of the target.
//! - The memory for known functions is bounded. When it is used up, all are forgotten, and those
//!   that are still in use are read again.

use std::collections::HashSet;
use std::mem;
use std::sync::Arc;

use traceprof_abi::runtime::word::{ManagedFrame, sections};

use crate::proc::ProcessMemory;
use crate::record::batch::Batch;
use crate::record::batch::functions::FunctionKey;
use crate::runtime::{Function, Runtime};

/// The largest number of functions that are known at once.
const KNOWN_MAX: usize = 1 << 18;
/// The largest number of bytes of functions that are known at once. Ordinary programs have a few
/// megabytes.
const BYTES_MAX: usize = 64 << 20;

/// Reads functions, and remembers which ones it has read.
#[derive(Debug, Default)]
pub(crate) struct FunctionReader {
    known: HashSet<FunctionKey>,
    /// The bytes of the known functions.
    bytes: usize,
    /// The functions to read now, by runtime.
    wanted: Vec<Vec<(u64, u32)>>,
    /// Whether a function was gone before it was read.
    has_lost: bool,
}

impl FunctionReader {
    /// Reads the functions that the new traces of a batch are the first to use, while the process
    /// runs the program of these runtimes.
    pub(crate) fn read(&mut self, batch: &mut Batch, runtimes: &[Arc<Runtime>], pid: i32) {
        if runtimes.is_empty() {
            return;
        }
        self.collect(batch);
        if self.known.len() > KNOWN_MAX || self.bytes > BYTES_MAX {
            self.known.clear();
            self.bytes = 0;
            batch.functions.is_fresh = true;
            self.collect(batch);
        }
        let memory = ProcessMemory::of(pid);
        for (number, wanted) in self.wanted.iter_mut().enumerate() {
            let Some(runtime) = runtimes.get(number) else { continue };
            let wanted = mem::take(wanted);
            let read = runtime.functions(&memory, &wanted);
            let key = |(object, cookie)| FunctionKey { runtime: number as u8, object, cookie };
            let keys: Vec<FunctionKey> = wanted.into_iter().map(key).collect();
            for (key, read) in keys.iter().zip(&read) {
                if read.as_ref().is_err_and(|gone| gone.is_transient()) {
                    // The next batch with the function reads it again.
                    self.known.remove(key);
                }
            }
            self.has_lost |= read.iter().any(Result::is_err);
            self.bytes += read.iter().flatten().map(Function::bytes).sum::<usize>();
            let read = read.into_iter().map(|function| function.map(Arc::new));
            batch.functions.read.extend(keys.into_iter().zip(read));
        }
        self.wanted.clear();
    }

    /// Returns whether a function was gone before it was read, since the last call.
    pub(crate) fn takes_lost(&mut self) -> bool {
        mem::take(&mut self.has_lost)
    }

    /// Adds the unknown functions of a batch to those that are wanted.
    fn collect(&mut self, batch: &Batch) {
        self.wanted.clear();
        for entry in batch.traces.entries().iter().filter(|entry| !entry.preserved) {
            for section in sections(batch.traces.frames_of(entry)) {
                let runtime = usize::from(section.runtime);
                for frame in section.frames().filter(ManagedFrame::is_named) {
                    if self.known.insert(FunctionKey::of(section.runtime, &frame)) {
                        if self.wanted.len() <= runtime {
                            self.wanted.resize(runtime + 1, Vec::new());
                        }
                        self.wanted[runtime].push((frame.object, frame.cookie));
                    }
                }
            }
        }
    }
}
