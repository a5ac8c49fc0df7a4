//! Reads the managed frames of a thread from outside its process.
//!
//! A thread's frames depend on the words from which they were read: from the thread's block, the
//! runtime's structures and the code objects. If these words are the same later, the frames are the
//! same. [`ManagedInputs`] compares them with far fewer reads than another walk takes.

use std::collections::HashMap;

use traceprof_abi::context::is_own_block;
use traceprof_abi::layout::FRAME_WORDS_MAX;
use traceprof_abi::runtime::lua::LuaStacks;
use traceprof_abi::runtime::{self, Captured, CapturedThread, RuntimeBlock, WordReader, capture};
use traceprof_abi::sync::{AtomicU64, Ordering};
use traceprof_abi::unwind::Registers;

use super::memory::{TargetMemory, TargetWords};
use crate::proc::ProcessMemory;

const PAGE: usize = 4096;
const WORD: usize = size_of::<u64>();
/// Maximum number of pages that are read for one thread.
const PAGES_MAX: usize = 1024;
/// Maximum distance of two words that are read in one piece: a piece costs the kernel more than the
/// bytes between them.
const NEAR: u64 = 512;

/// The identity of a thread of the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ManagedThread {
    /// The thread pointer.
    pub pointer: u64,
    /// The thread's id in its own pid namespace.
    pub inner_tid: u32,
}

impl ManagedThread {
    /// Returns whether the block belongs to the thread, and not to its creator.
    pub fn is_own(&self, memory: &dyn TargetMemory) -> bool {
        is_own_block(self.pointer, self.inner_tid, |avma| TargetWords(memory).load(avma))
    }

    /// Returns whether the thread holds the lock that it needs to run functions of one of the
    /// process's runtimes.
    ///
    /// The caller ensures that the thread does not run meanwhile, or drops the result.
    pub fn holds_lock(&self, blocks: &[RuntimeBlock], memory: &dyn TargetMemory) -> bool {
        let mut words = TargetWords(memory);
        blocks.iter().any(|block| runtime::holds_lock(block, self.pointer, &mut words))
    }
}

/// The managed frames of a thread.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ManagedStack {
    /// The frame words: a section for each runtime that has frames of the thread.
    pub words: Vec<u64>,
    /// What they were read from.
    pub inputs: ManagedInputs,
}

/// The words of the target that a thread's managed frames were read from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ManagedInputs {
    /// The pieces in which the words are read, as addresses and lengths.
    pieces: Vec<(u64, usize)>,
    /// The words, each with its offset in the pieces.
    words: Vec<(usize, u64)>,
    /// Whether a word could not be read.
    is_incomplete: bool,
}

impl ManagedInputs {
    fn of(loads: HashMap<u64, Option<u64>>) -> Self {
        let is_incomplete = loads.values().any(Option::is_none);
        let mut loads: Vec<(u64, u64)> =
            loads.into_iter().filter_map(|(avma, word)| Some((avma, word?))).collect();
        loads.sort_unstable();
        let mut inputs = Self { is_incomplete, ..Self::default() };
        let mut used = 0;
        for (avma, word) in loads {
            match inputs.pieces.last_mut() {
                Some((start, len)) if avma.saturating_sub(*start + *len as u64) <= NEAR => {
                    let grown = (avma - *start) as usize + WORD;
                    used += grown - *len;
                    *len = grown;
                }
                _ => {
                    inputs.pieces.push((avma, WORD));
                    used += WORD;
                }
            }
            inputs.words.push((used - WORD, word));
        }
        inputs
    }

    /// Returns whether the words are the same now, so that the frames are the same.
    ///
    /// The caller ensures that the thread does not run meanwhile, or drops the result.
    pub fn hold(&self, memory: &ProcessMemory) -> bool {
        if self.is_incomplete {
            return false;
        }
        let mut bytes = vec![0; self.pieces.iter().map(|(_, len)| len).sum()];
        let is_read = memory.read_pieces(&self.pieces, &mut bytes);
        let is_same = |(at, word): &(usize, u64)| {
            let found = bytes.get(*at..).and_then(|rest| rest.first_chunk());
            found.map(|bytes| u64::from_le_bytes(*bytes)) == Some(*word)
        };
        is_read && self.words.iter().all(is_same)
    }
}

/// The target's memory, read by pages.
struct PagedMemory<'m> {
    memory: &'m dyn TargetMemory,
    /// The readable bytes of each page that was asked for.
    pages: HashMap<u64, Vec<u8>>,
    /// The words that were asked for.
    loads: HashMap<u64, Option<u64>>,
}

impl WordReader for PagedMemory<'_> {
    fn load(&mut self, avma: u64) -> Option<u64> {
        if let Some(known) = self.loads.get(&avma) {
            return *known;
        }
        let (number, at) = (avma / PAGE as u64, (avma % PAGE as u64) as usize);
        if !self.pages.contains_key(&number) && self.pages.len() >= PAGES_MAX {
            return None;
        }
        let memory = self.memory;
        let page = self.pages.entry(number).or_insert_with(|| {
            let mut bytes = vec![0; PAGE];
            let got = memory.read(number * PAGE as u64, &mut bytes);
            bytes.truncate(got);
            bytes
        });
        let word = page.get(at..).and_then(|rest| rest.first_chunk());
        let word = word.map(|word| u64::from_le_bytes(*word));
        self.loads.insert(avma, word);
        word
    }
}

/// Reads managed frames of threads.
#[derive(Debug)]
pub struct ManagedReader {
    words: Vec<AtomicU64>,
}

impl Default for ManagedReader {
    fn default() -> Self {
        Self { words: (0..FRAME_WORDS_MAX).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl ManagedReader {
    /// Returns the managed frames of a thread that sleeps with this stack pointer. `blocks` are
    /// those of the process's runtimes. Returns `None` if the thread has no block of its own, as a
    /// thread that `clone` created without one.
    ///
    /// The caller ensures that the thread does not run meanwhile, or drops the result.
    pub fn read(
        &mut self,
        blocks: &[RuntimeBlock],
        (thread, stack): (ManagedThread, u64),
        memory: &dyn TargetMemory,
    ) -> Option<ManagedStack> {
        let captured = CapturedThread { stack, ..CapturedThread::of(thread.pointer) };
        self.read_from(blocks, (captured, thread.inner_tid), memory)
    }

    /// Like [`Self::read`], of a thread that is stopped with these registers.
    pub fn read_stopped(
        &mut self,
        blocks: &[RuntimeBlock],
        thread: ManagedThread,
        registers: &Registers,
        memory: &dyn TargetMemory,
    ) -> Option<ManagedStack> {
        let is_in_loop = runtime::loop_of(blocks).is_some_and(|code| code.contains(&registers.pc));
        let captured = CapturedThread {
            pointer: thread.pointer,
            pc: registers.pc,
            stack: registers.sp,
            loop_stack: if is_in_loop { registers.sp } else { 0 },
            lua: LuaStacks::default(),
            registers: registers.of_interpreter(),
        };
        self.read_from(blocks, (captured, thread.inner_tid), memory)
    }

    fn read_from(
        &mut self,
        blocks: &[RuntimeBlock],
        (thread, inner_tid): (CapturedThread, u32),
        memory: &dyn TargetMemory,
    ) -> Option<ManagedStack> {
        let mut paged = PagedMemory { memory, pages: HashMap::new(), loads: HashMap::new() };
        if !is_own_block(thread.pointer, inner_tid, |avma| paged.load(avma)) {
            return None;
        }
        let mut used = 0;
        for numbered in blocks.iter().enumerate() {
            let room = self.words.get(used..).unwrap_or_default();
            if let Captured::Section { words, .. } = capture(numbered, thread, &mut paged, room) {
                used += words;
            }
        }
        // Relaxed: no other thread has the words.
        let words = self.words.iter().take(used).map(|word| word.load(Ordering::Relaxed)).collect();
        Some(ManagedStack { words, inputs: ManagedInputs::of(paged.loads) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the inputs with these words of this process.
    fn inputs(words: &[&u64]) -> ManagedInputs {
        let loads = words.iter().map(|word| (&raw const **word as u64, Some(**word)));
        ManagedInputs::of(loads.collect())
    }

    #[test]
    fn inputs_hold_until_one_of_their_words_changes() {
        let own = ProcessMemory::of(std::process::id() as i32);
        let mut words: Vec<u64> = (1000..3000).collect();
        let places = [0, 1, 5, 71, 1000, 1999];
        let inputs = inputs(&places.map(|at| &words[at]));
        let lens: Vec<usize> = inputs.pieces.iter().map(|(_, len)| *len).collect();
        assert_eq!(lens, [48, 8, 8, 8], "near words are one piece");
        assert!(inputs.hold(&own));
        for at in places {
            words[at] ^= 1 << 40;
            assert!(!inputs.hold(&own), "{at}");
            words[at] ^= 1 << 40;
        }
        for at in [2, 6, 72, 1500] {
            words[at] = 0;
        }
        assert!(inputs.hold(&own), "no word of them has changed");
    }

    #[test]
    fn inputs_with_an_unreadable_word_never_hold() {
        let own = ProcessMemory::of(std::process::id() as i32);
        assert!(ManagedInputs::default().hold(&own));
        assert!(!ManagedInputs::of(HashMap::from([(16, None)])).hold(&own));
        assert!(!ManagedInputs::of(HashMap::from([(16, Some(0))])).hold(&own));
        assert!(!ManagedInputs::of(HashMap::from([(u64::MAX - 7, Some(0))])).hold(&own));
    }

    #[test]
    fn thread_without_a_block_of_its_own_has_no_frames() {
        let block = vec![0u64; 0x400];
        let memory = ProcessMemory::of(std::process::id() as i32);
        let mut reader = ManagedReader::default();
        let thread = ManagedThread { pointer: block.as_ptr() as u64, inner_tid: 7 };
        assert_eq!(reader.read(&[], (thread, 0), &memory), None);
        let mut block = block;
        block[0x2d0 / 8] = 7;
        let thread = ManagedThread { pointer: block.as_ptr() as u64, inner_tid: 7 };
        assert_eq!(reader.read(&[], (thread, 0), &memory).map(|it| it.words), Some(Vec::new()));
    }
}
