//! Unwinds a stack outside its process, from registers and a copy of the top of the stack.
//!
//! The steps and the tables are those of the agent. Memory beyond the copy is read when a step
//! needs it. The thread may have continued by then, so frames that were found this way are marked.
//!
//! Of a thread that sleeps and was not stopped, only the stack pointer and the pc are known. Many
//! stacks need no more, because the inner frames have saved the registers that a frame needs. To
//! find out, the stack is unwound twice, with two different values in all other registers. Neither
//! value is an address. A rule that follows such a value, or decides by it, ends the walk. Two
//! walks that reach the root the same way have not used the values.
//!
//! Functions that frames have in slots are read from objects. The collector of their runtime moves
//! and frees these, so they are read only of a thread that does not run meanwhile.
//!
//! # Invariants
//! - The copy and all memory that is read belong to another process. Arbitrary bytes are expected
//!   input.
//! - An ambiguous stack of a sleeping thread is not returned.
//!
//! # Does not
//! - stop threads;
//! - read memory other than through the function that is passed in.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use traceprof_abi::unwind::{EndReason, Memory, RSP, Registers, Snapshot, unwind};

use super::fingerprint::StackFingerprint;

/// Maximum number of frames of a stack. A sample has fewer; these frames need no memory of the
/// target.
const DEPTH_MAX: usize = 8192;
/// A value that is not a frame word: the topmost bit of a pc is cleared when it is stored.
const UNSET: u64 = u64::MAX;
/// Bytes below the stack pointer in which x86_64 leaf code may keep values.
const RED_ZONE: u64 = 128;
/// Bytes above the stack pointer that belong to the stack where the mapping is not known.
const UNKNOWN_SPAN: u64 = 64 << 10;
const PAGE: u64 = 4096;
/// Maximum number of pages with objects that are read for one stack.
const OBJECT_PAGES_MAX: usize = 1024;
/// Values for unknown registers, far from any memory that a process can have. One is aligned to a
/// word, the other is not.
const UNKNOWN: [u64; 2] = [0xA5C3_5A3C_9669_F000, 0x5AC3_A53C_6996_0FFB];

/// The copy of a stack.
#[derive(Debug, Clone, Copy)]
pub struct StackCopy<'a> {
    /// Start address (AVMA).
    pub avma: u64,
    /// The copied bytes.
    pub bytes: &'a [u8],
}

/// A stack that was unwound outside its process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteStack {
    /// Frame words, leaf first.
    pub frames: Vec<u64>,
    /// The reason why the walk ended.
    pub end: EndReason,
    /// Index of the first frame that may be later than the copy. It is the number of frames if only
    /// the end of the stack may be later.
    pub late: Option<usize>,
}

/// Unwinds stacks, one at a time.
#[derive(Debug)]
pub struct RemoteUnwinder {
    words: Vec<AtomicU64>,
    reads_objects: bool,
}

impl Default for RemoteUnwinder {
    fn default() -> Self {
        let words = (0..DEPTH_MAX).map(|_| AtomicU64::new(UNSET)).collect();
        Self { words, reads_objects: false }
    }
}

impl RemoteUnwinder {
    /// Creates an unwinder that also reads the objects to which frames refer.
    ///
    /// In a process with a runtime that has such frames, the caller ensures that a thread does not
    /// run from before its registers are read until its stack is unwound, or drops the result.
    pub fn with_objects() -> Self {
        Self { reads_objects: true, ..Self::default() }
    }

    /// Unwinds a stack. `read` reads the process's memory, as far as it exists, and returns the
    /// number of bytes read.
    pub fn unwind(
        &mut self,
        snapshot: &Snapshot<'_>,
        registers: &Registers,
        copy: StackCopy<'_>,
        read: &mut dyn FnMut(u64, &mut [u8]) -> usize,
    ) -> RemoteStack {
        self.unwind_with_fingerprint(snapshot, registers, copy, read).0
    }

    /// Unwinds a stack and also returns its fingerprint, which recognises the stack if the thread
    /// later sleeps at the same location.
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
            objects: self.reads_objects.then(HashMap::new),
            loaded: Vec::new(),
            missing: Vec::new(),
        };
        memory.bound(registers.sp);
        let unwound = unwind(snapshot, registers, &mut memory, &self.words);
        let late = memory.late.filter(|&depth| depth <= unwound.depth);
        let point = (registers.sp, registers.pc);
        let fingerprint = StackFingerprint::new(point, memory.loaded, memory.missing);
        let used = self.words.iter_mut().take(unwound.depth);
        let frames = used.map(|word| std::mem::replace(word.get_mut(), UNSET)).collect();
        (RemoteStack { frames, end: unwound.end, late }, fingerprint)
    }

    /// Unwinds the stack of a thread that sleeps with this stack pointer and pc, and returns its
    /// frame words, leaf first. Returns `None` if they depend on other registers, or if the walk
    /// does not reach the root.
    ///
    /// The caller ensures that the thread does not run from before the copy is made until this
    /// function returns. Otherwise the caller drops the result.
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
    /// The frame words. The number of them that are set says which frame a load is for.
    words: &'a [AtomicU64],
    bounds: (u64, u64),
    /// Address and contents of the page that was read last.
    page: (u64, [u8; PAGE as usize]),
    late: Option<usize>,
    /// The pages with objects that were read; `None` if no objects are read.
    objects: Option<HashMap<u64, Option<Box<[u8]>>>>,
    /// Addresses and values of the words that were loaded.
    loaded: Vec<(u64, u64)>,
    /// Addresses of the words that could not be read.
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

    /// Returns a word of the stack, and notes the frame from which on words may be later than the
    /// copy.
    fn word(&mut self, avma: u64) -> Option<u64> {
        if let Some(word) = self.copied(avma) {
            return Some(word);
        }
        let word = self.read_now(avma)?;
        if self.late.is_none() {
            // Relaxed: this thread wrote them.
            let is_unset = |word: &AtomicU64| word.load(Ordering::Relaxed) == UNSET;
            self.late = self.words.iter().position(is_unset);
        }
        Some(word)
    }

    /// Reads a word that is inside one page from the process.
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

    fn load_object(&mut self, avma: u64) -> Option<u64> {
        let pages = self.objects.as_mut()?;
        let start = avma & !(PAGE - 1);
        if pages.len() >= OBJECT_PAGES_MAX && !pages.contains_key(&start) {
            return None;
        }
        let page = pages.entry(start).or_insert_with(|| {
            let mut bytes = vec![0; PAGE as usize].into_boxed_slice();
            ((self.read)(start, &mut bytes) == bytes.len()).then_some(bytes)
        });
        let bytes = page.as_ref()?.get((avma - start) as usize..)?.first_chunk();
        let word = bytes.map(|bytes| u64::from_le_bytes(*bytes))?;
        self.loaded.push((avma, word));
        Some(word)
    }

    fn load_code(&mut self, avma: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        ((self.read)(avma, &mut bytes) == bytes.len()).then(|| u64::from_le_bytes(bytes))
    }
}
