//! Unwinds a stack outside of its process, from registers and a copy of the top of the stack.
//!
//! The steps and the tables are those of the agent. Memory beyond the copy is read when a step
//! needs it. The thread may have run on by then, so frames that were found this way are marked.
//!
//! Only the stack pointer and the pc are known of a thread that sleeps and was not stopped. Many
//! stacks need no more: the frames below have saved what a frame needs. To find out, the stack is
//! unwound twice, with two different values in all other registers. Neither value is an address.
//! A rule that follows such a value, or decides by it, ends the walk. A walk that reaches the root
//! twice, the same way, has not used them.
//!
//! # Invariants
//! - The copy and all that is read belong to another process: any bytes are ordinary input.
//! - A sleeper's stack that could be another one is not returned.
//!
//! # Does not
//! - stop threads;
//! - read memory in any way but the one that it is given.

use std::sync::atomic::{AtomicU64, Ordering};

use traceprof_abi::unwind::{EndReason, Memory, RSP, Registers, Snapshot, unwind};

use super::fingerprint::StackFingerprint;

/// Frames of a stack at most: more than a sample has, as they need no memory of the target.
const DEPTH_MAX: usize = 8192;
/// No frame word is this: a pc with all bits set is stored without the uppermost.
const UNSET: u64 = u64::MAX;
/// Below the stack pointer of a leaf, x86_64 code may keep values.
const RED_ZONE: u64 = 128;
/// How far above the stack pointer to look where the mapping is not known.
const UNKNOWN_SPAN: u64 = 64 << 10;
const PAGE: u64 = 4096;
/// Values for unknown registers, far from all memory that a process can have: one is aligned to a
/// word, one is not.
const UNKNOWN: [u64; 2] = [0xA5C3_5A3C_9669_F000, 0x5AC3_A53C_6996_0FFB];

/// The copy of a stack.
#[derive(Debug, Clone, Copy)]
pub struct StackCopy<'a> {
    /// Where it starts (AVMA).
    pub avma: u64,
    /// What lies there.
    pub bytes: &'a [u8],
}

/// A stack that was unwound outside of its process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteStack {
    /// Frame words, leaf first.
    pub frames: Vec<u64>,
    /// Why there are no more.
    pub end: EndReason,
    /// The first frame that may be later than the copy; one past the last frame if only the end of
    /// the stack may be.
    pub late: Option<usize>,
}

/// Unwinds stacks, one after the other.
#[derive(Debug)]
pub struct RemoteUnwinder {
    words: Vec<AtomicU64>,
}

impl Default for RemoteUnwinder {
    fn default() -> Self {
        Self { words: (0..DEPTH_MAX).map(|_| AtomicU64::new(UNSET)).collect() }
    }
}

impl RemoteUnwinder {
    /// Unwinds a stack. `read` reads the process's memory, as far as it exists, and returns how
    /// many bytes it read.
    pub fn unwind(
        &mut self,
        snapshot: &Snapshot<'_>,
        registers: &Registers,
        copy: StackCopy<'_>,
        read: &mut dyn FnMut(u64, &mut [u8]) -> usize,
    ) -> RemoteStack {
        self.unwind_with_fingerprint(snapshot, registers, copy, read).0
    }

    /// Unwinds a stack and returns its fingerprint, to recognise it when the thread sleeps at the
    /// same place later.
    pub fn unwind_with_fingerprint(
        &mut self,
        snapshot: &Snapshot<'_>,
        registers: &Registers,
        copy: StackCopy<'_>,
        read: &mut dyn FnMut(u64, &mut [u8]) -> usize,
    ) -> (RemoteStack, StackFingerprint) {
        let mut memory = RemoteMemory {
            snapshot,
            copy,
            read,
            words: &self.words,
            bounds: (0, 0),
            page: (UNSET, [0; PAGE as usize]),
            late: None,
            loaded: Vec::new(),
            missing: Vec::new(),
        };
        memory.bound(registers.sp);
        let unwound = unwind(snapshot, registers, &mut memory, &self.words);
        let late = memory.late.filter(|&depth| depth <= unwound.depth);
        let place = (registers.sp, registers.pc);
        let fingerprint = StackFingerprint::new(place, memory.loaded, memory.missing);
        let used = self.words.iter_mut().take(unwound.depth);
        let frames = used.map(|word| std::mem::replace(word.get_mut(), UNSET)).collect();
        (RemoteStack { frames, end: unwound.end, late }, fingerprint)
    }

    /// Unwinds the stack of a thread that sleeps with this stack pointer and pc, and returns its
    /// frame words, leaf first. `None` if they depend on other registers, or if there is no root.
    ///
    /// The caller ensures that the thread does not run from before the copy is taken until this
    /// returns, or drops the result.
    pub fn unwind_sleeping(
        &mut self,
        snapshot: &Snapshot<'_>,
        (sp, pc): (u64, u64),
        copy: StackCopy<'_>,
        read: &mut dyn FnMut(u64, &mut [u8]) -> usize,
    ) -> Option<(Vec<u64>, StackFingerprint)> {
        let mut walk = |unknown: u64| {
            let mut registers = Registers { pc, sp, fp: unknown, gpr: [unknown; 16] };
            registers.gpr[RSP] = sp;
            self.unwind_with_fingerprint(snapshot, &registers, copy, read)
        };
        let [(stack, fingerprint), (other, _)] = UNKNOWN.map(&mut walk);
        let is_proven = stack.end == EndReason::Root && stack.frames == other.frames;
        let is_exact = is_proven && other.end == stack.end && fingerprint.is_complete();
        is_exact.then_some((stack.frames, fingerprint))
    }
}

struct RemoteMemory<'a> {
    snapshot: &'a Snapshot<'a>,
    copy: StackCopy<'a>,
    read: &'a mut dyn FnMut(u64, &mut [u8]) -> usize,
    /// Where the frames go: how many there are says which one a load is for.
    words: &'a [AtomicU64],
    bounds: (u64, u64),
    /// The page that was read last, by its address.
    page: (u64, [u8; PAGE as usize]),
    late: Option<usize>,
    /// The words that were asked for, by their addresses.
    loaded: Vec<(u64, u64)>,
    /// The addresses of those that could not be read.
    missing: Vec<u64>,
}

impl RemoteMemory<'_> {
    fn bound(&mut self, sp: u64) {
        let lowest = sp.saturating_sub(RED_ZONE);
        self.bounds = match self.snapshot.writable(sp) {
            Some((lo, hi)) => (lowest.max(lo), hi),
            None => (lowest, sp.saturating_add(UNKNOWN_SPAN)),
        };
    }

    fn copied(&self, avma: u64) -> Option<u64> {
        let at = usize::try_from(avma.checked_sub(self.copy.avma)?).ok()?;
        self.copy.bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
    }

    /// A word of the stack, and from which frame on they may be of a later time.
    fn word(&mut self, avma: u64) -> Option<u64> {
        if let Some(word) = self.copied(avma) {
            return Some(word);
        }
        let word = self.read_now(avma)?;
        if self.late.is_none() {
            // Relaxed: this thread has written them.
            let is_unset = |word: &AtomicU64| word.load(Ordering::Relaxed) == UNSET;
            self.late = self.words.iter().position(is_unset);
        }
        Some(word)
    }

    /// A word that lies in one page, read now.
    fn read_now(&mut self, avma: u64) -> Option<u64> {
        let start = avma & !(PAGE - 1);
        if self.page.0 != start {
            let got = (self.read)(start, &mut self.page.1);
            self.page.0 = if got == self.page.1.len() { start } else { UNSET };
            if got < self.page.1.len() {
                return None;
            }
        }
        let at = (avma - start) as usize;
        self.page.1.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
    }
}

impl Memory for RemoteMemory<'_> {
    fn load(&mut self, avma: u64) -> Option<u64> {
        let word = self.word(avma);
        match word {
            Some(word) => self.loaded.push((avma, word)),
            None => self.missing.push(avma),
        }
        word
    }

    fn rebound(&mut self, sp: u64) -> bool {
        self.bound(sp);
        let word = sp & !7;
        self.copied(word).is_some() || self.read_now(word).is_some()
    }

    fn bounds(&self) -> (u64, u64) {
        self.bounds
    }

    fn load_code(&mut self, avma: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        ((self.read)(avma, &mut bytes) == bytes.len()).then(|| u64::from_le_bytes(bytes))
    }
}
