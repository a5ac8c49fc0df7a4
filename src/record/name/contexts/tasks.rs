//! The names of the tasks that threads run in their language runtimes, as a tag of samples.

use std::collections::HashMap;
use std::sync::Arc;

use traceprof_abi::runtime::RuntimeBlock;

use super::{ContextReader, Contexts, otel_record};
use crate::inject;
use crate::proc::{self, ProcessMemory};
use crate::record::batch::Batch;
use crate::record::target::modules::AddressMap;
use crate::runtime::{TaskKind, TaskName, running_task, task_name};
use crate::trace::{TASK_TAG, TagKind, VIRTUAL_THREAD_TAG};

/// The tags that have the names, by what has the name.
const TAGS: [(TaskKind, &str); 2] =
    [(TaskKind::Asyncio, TASK_TAG), (TaskKind::VirtualThread, VIRTUAL_THREAD_TAG)];

/// Returns the bytes under which a name gets its number.
fn key(name: &TaskName) -> Vec<u8> {
    [&[name.kind as u8][..], name.name.as_bytes()].concat()
}

/// The blocks of the runtimes whose tasks are known, and can be read from outside.
pub(super) fn blocks(addresses: &AddressMap) -> Vec<RuntimeBlock> {
    let runtimes = addresses.runtimes.iter().filter(|runtime| runtime.has_tasks());
    runtimes.map(|runtime| runtime.block).collect()
}

impl ContextReader {
    /// Returns the number of the name of the task that a thread runs, or 0.
    pub(super) fn task_of(&self, tid: i32, inner_tid: u32) -> u32 {
        if self.runtimes.is_empty() {
            return 0;
        }
        let read = |avma, into: &mut [u8]| inject::read_part(self.pid, avma, into);
        let pointer = proc::thread_pointer(tid, read);
        let pointer = pointer.or_else(|| self.noted_thread_pointer(inner_tid));
        pointer.map_or(0, |pointer| self.task_at((pointer, inner_tid)))
    }

    /// Like [`Self::task_of`], with the thread's pointer.
    pub(super) fn task_at(&self, (pointer, inner_tid): (u64, u32)) -> u32 {
        let read = |avma, into: &mut [u8]| inject::read_part(self.pid, avma, into);
        // A thread without a block of its own would have the task of its creator.
        if self.runtimes.is_empty() || !otel_record::is_own(pointer, inner_tid, read) {
            return 0;
        }
        let name = running_task(&self.runtimes, pointer, &ProcessMemory::of(self.pid));
        name.map_or(0, |name| self.sets.number(&key(&name)))
    }

    /// Returns the tag and the name with a number.
    pub(super) fn task_name(&self, number: u32) -> Option<(&'static str, Arc<str>)> {
        let bytes = self.sets.get(number)?;
        let (kind, name) = bytes.split_first()?;
        let (_, tag) = TAGS.into_iter().find(|(known, _)| *known as u8 == *kind)?;
        Some((tag, Arc::from(std::str::from_utf8(name).ok()?)))
    }
}

/// Gives the samples lasting numbers of their tasks' names.
pub(super) fn number(contexts: &mut Contexts, batch: &mut Batch) {
    let mut known: HashMap<u64, u32> = HashMap::new();
    for sample in batch.samples.iter_mut().filter(|sample| sample.task != 0) {
        let id = std::mem::take(&mut sample.task);
        let number = *known.entry(id).or_insert_with(|| {
            let name = batch.attributes.get(&id).and_then(|bytes| task_name(bytes));
            name.map_or(0, |name| contexts.outside.sets.number(&key(&name)))
        });
        sample.task = u64::from(number);
        contexts.stats.tags_lost += u64::from(number == 0);
    }
}

/// Gives the samples the names of their tasks as a tag. A tag of the application's own with the
/// same name stays.
pub(super) fn name(contexts: &mut Contexts, batch: &mut Batch) {
    let mut known: HashMap<u64, Option<(usize, u32)>> = HashMap::new();
    let mut samples = std::mem::take(&mut batch.samples);
    for sample in samples.iter_mut().filter(|sample| sample.task != 0) {
        let number = std::mem::take(&mut sample.task);
        let named = *known.entry(number).or_insert_with(|| {
            let (tag, name) = contexts.outside.task_name(u32::try_from(number).ok()?)?;
            let index = contexts.tags.index_of(tag, TagKind::Text)?;
            let text = contexts.texts.admit_task(&name).then(|| batch.text(&name))?;
            Some((index, u32::try_from(text).ok()?))
        });
        match named {
            Some((index, text)) if sample.tags[index] == 0 => sample.tags[index] = text,
            Some(_) => {}
            None => contexts.stats.tags_lost += 1,
        }
    }
    batch.samples = samples;
}
