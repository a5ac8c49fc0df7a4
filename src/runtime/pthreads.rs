//! The threads that glibc has started in a process: the function that each of them runs.
//!
//! glibc describes its threads to debuggers (`libthread_db`): constants in the library say where
//! the fields are, and the loader has the lists of all threads.
//!
//! # Does not
//! - know threads of glibc before 2.34, which has the lists elsewhere, or those of musl.

use std::collections::HashSet;

use object::elf::EM_X86_64;

use super::memory::{MemoryPiece, TargetMemory, word};
use crate::elf::{Definitions, Elf};

/// The beginning of the names of constants for debuggers.
const CONSTANT: &str = "_thread_db_";
/// A constant that only the library with the threads has.
const FIRST_CONSTANT: &str = "_thread_db_pthread_tid";
/// The loader's own data.
const LOADER_DATA: &str = "_rtld_global";
/// The size of a constant in bytes: the size of a field in bits, a number of fields, an offset.
const CONSTANT_BYTES: usize = 12;
/// Maximum offset of a field, in bytes.
const OFFSET_MAX: u32 = 1 << 16;
/// Maximum number of threads in a list.
const THREADS_MAX: usize = 1 << 15;

/// Where a thread has its fields, and the loader's data the lists, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PthreadFields {
    list: u64,
    tid: u64,
    /// The function that the thread runs; its argument is behind it.
    start: u64,
    /// In the loader's data: threads with a stack of glibc's, and with one of their own.
    heads: [u64; 2],
}

/// What a file says about threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PthreadExports {
    fields: Option<PthreadFields>,
    /// The address (SVMA) of the loader's data.
    loader_data: Option<u64>,
}

impl PthreadExports {
    /// Reads a file.
    pub fn of(bytes: &[u8]) -> Self {
        let elf = Elf::parse(bytes).ok().filter(|elf| elf.machine() == EM_X86_64.0);
        let Some(elf) = elf else { return Self::default() };
        let names = Definitions::of(&elf);
        Self {
            fields: fields(&elf, &names),
            loader_data: names.exported(LOADER_DATA).map(|it| it.svma),
        }
    }
}

fn fields(elf: &Elf<'_>, names: &Definitions<'_, '_>) -> Option<PthreadFields> {
    names.exported(FIRST_CONSTANT)?;
    let constants = names.exported_after(CONSTANT);
    let field = |name: &str, bits: u32| {
        let (_, found) = constants.iter().find(|(known, _)| *known == name)?;
        let constant = MemoryPiece { avma: 0, bytes: elf.data(found.svma)?.get(..CONSTANT_BYTES)? };
        let [size, count, offset] = [0, 4, 8].map(|at| constant.half(at));
        let is_known = (size, count) == (Some(bits), Some(1));
        offset.filter(|offset| is_known && *offset <= OFFSET_MAX).map(u64::from)
    };
    Some(PthreadFields {
        list: field("pthread_list", 128)?,
        tid: field("pthread_tid", 32)?,
        start: field("pthread_start_routine", 64)?,
        heads: [
            field("rtld_global__dl_stack_used", 128)?,
            field("rtld_global__dl_stack_user", 128)?,
        ],
    })
}

/// A thread that glibc knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Pthread {
    /// The id in its own namespace.
    pub(super) tid: u32,
    /// The address (AVMA) of what glibc keeps of it, above its stack.
    pub(super) avma: u64,
    /// The function that it runs (AVMA), 0 for the first thread, and the argument.
    pub(super) start: u64,
    pub(super) argument: u64,
}

/// The lists of all threads of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pthreads {
    fields: PthreadFields,
    /// The addresses (AVMAs) of the lists.
    heads: [u64; 2],
}

impl Pthreads {
    /// Finds the lists by what the files of a process say, each with its load bias.
    pub fn of<'e>(files: impl Iterator<Item = (&'e PthreadExports, u64)>) -> Option<Self> {
        let (mut fields, mut loader_data) = (None, None);
        for (exports, bias) in files {
            fields = fields.or(exports.fields);
            loader_data = loader_data.or(exports.loader_data.map(|svma| svma.wrapping_add(bias)));
        }
        let (fields, data) = (fields?, loader_data?);
        Some(Self { fields, heads: fields.heads.map(|offset| data.wrapping_add(offset)) })
    }

    /// Returns what runs in threads with these ids, as far as they are there.
    pub(super) fn find(&self, memory: &dyn TargetMemory, tids: &HashSet<u32>) -> Vec<Pthread> {
        let once = || self.heads.map(|head| self.in_list(memory, head, tids)).concat();
        // What glibc keeps of a thread that ends is used for the next one.
        let first = once();
        let second: HashSet<Pthread> = once().into_iter().collect();
        first.into_iter().filter(|it| second.contains(it)).take(tids.len()).collect()
    }

    fn in_list(&self, memory: &dyn TargetMemory, head: u64, tids: &HashSet<u32>) -> Vec<Pthread> {
        let mut found = Vec::new();
        let mut next = word(memory, head);
        for _ in 0..THREADS_MAX {
            let Some(entry) = next.filter(|entry| *entry != head) else { break };
            let avma = entry.wrapping_sub(self.fields.list);
            let [tid, start] = [self.fields.tid, self.fields.start].map(|it| avma.wrapping_add(it));
            let mut bytes = [0; 28];
            if !memory.read_pieces(&[(entry, 8), (tid, 4), (start, 16)], &mut bytes) {
                break;
            }
            let read = MemoryPiece { avma: 0, bytes: &bytes };
            next = read.word(0);
            let (Some(tid), Some(start), Some(argument)) =
                (read.half(8), read.word(12), read.word(20))
            else {
                break;
            };
            if tids.contains(&tid) {
                found.push(Pthread { tid, avma, start, argument });
            }
        }
        found
    }

    /// Returns lists in which the fields are one behind the other.
    #[cfg(test)]
    pub(super) fn for_test(heads: [u64; 2]) -> Self {
        Self { fields: PthreadFields { list: 0, tid: 16, start: 24, heads: [0, 0] }, heads }
    }
}
