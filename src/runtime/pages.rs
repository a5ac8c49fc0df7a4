//! Reads of the target's memory by pages, for an operation that follows many pointers.
//!
//! # Invariants
//! - An operation reads a bounded number of pages, so lists that have no end come to one.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::Range;

use super::memory::TargetMemory;

const PAGE: usize = 4096;
/// Maximum number of pages of one operation: 64 MiB. The methods of the largest compiled code take
/// a hundredth of it.
pub(super) const PAGES_MAX: usize = 1 << 14;
/// Maximum length in bytes of what is read in one piece.
const PIECE_MAX: usize = 4 << 20;
/// Maximum number of bytes of one operation that are read without being kept.
const ONCE_MAX: usize = 32 << 20;
/// Number of bytes of a text that are read at once. Most texts end in them.
const TEXT_PART: usize = 64;

/// The memory of the target, each page of which is read once.
pub(super) struct TargetPages<'m> {
    memory: &'m dyn TargetMemory,
    /// What was read in pieces before, in the order of their addresses: the address and the bytes.
    pieces: Vec<(u64, Range<usize>)>,
    piece_bytes: Vec<u8>,
    /// Number of bytes that were read without being kept.
    once: Cell<usize>,
    /// The readable bytes of each page that was asked for.
    pages: RefCell<HashMap<u64, Vec<u8>>>,
}

impl<'m> TargetPages<'m> {
    /// Starts an operation that knows nothing of the memory yet.
    pub(super) fn of(memory: &'m dyn TargetMemory) -> Self {
        Self {
            memory,
            pieces: Vec::new(),
            piece_bytes: Vec::new(),
            once: Cell::default(),
            pages: RefCell::default(),
        }
    }

    /// Reads pieces, given by their addresses and lengths, in the order of the addresses. What is
    /// unreadable of them is left out.
    pub(super) fn of_pieces(memory: &'m dyn TargetMemory, wanted: &[(u64, usize)]) -> Self {
        let mut bytes = vec![0; wanted.iter().map(|(_, len)| len).sum()];
        let is_whole = memory.read_pieces(wanted, &mut bytes);
        let (mut pieces, mut at) = (Vec::with_capacity(wanted.len()), 0);
        for (avma, len) in wanted {
            // One unreadable piece hides all of them.
            let got = if is_whole { *len } else { memory.read(*avma, &mut bytes[at..at + len]) };
            pieces.push((*avma, at..at + got));
            at += len;
        }
        Self { pieces, piece_bytes: bytes, ..Self::of(memory) }
    }

    /// Returns bytes that were read in a piece.
    fn in_piece(&self, avma: u64, len: usize) -> Option<&[u8]> {
        let after = self.pieces.partition_point(|(start, _)| *start <= avma);
        let (start, bytes) = self.pieces.get(after.checked_sub(1)?)?;
        let at = usize::try_from(avma - start).ok()?;
        self.piece_bytes.get(bytes.clone())?.get(at..at.checked_add(len)?)
    }

    /// Fills the buffer from this address on.
    fn fill(&self, avma: u64, into: &mut [u8]) -> Option<()> {
        if let Some(bytes) = self.in_piece(avma, into.len()) {
            into.copy_from_slice(bytes);
            return Some(());
        }
        let mut pages = self.pages.borrow_mut();
        let mut done = 0;
        while done < into.len() {
            let at = avma.checked_add(done as u64)?;
            let (number, offset) = (at / PAGE as u64, (at % PAGE as u64) as usize);
            if !pages.contains_key(&number) && pages.len() >= PAGES_MAX {
                return None;
            }
            let page = pages.entry(number).or_insert_with(|| {
                let mut bytes = vec![0; PAGE];
                let got = self.memory.read(number * PAGE as u64, &mut bytes);
                bytes.truncate(got);
                bytes
            });
            let rest = page.get(offset..).filter(|rest| !rest.is_empty())?;
            let len = rest.len().min(into.len() - done);
            into.get_mut(done..done + len)?.copy_from_slice(rest.get(..len)?);
            done += len;
        }
        Some(())
    }

    /// Fills the buffer from this address on with bytes that are not needed again. `None` if they
    /// are unreadable, or too many.
    pub(super) fn read_once(&self, avma: u64, into: &mut [u8]) -> Option<()> {
        let once = self.once.get().checked_add(into.len()).filter(|it| *it <= ONCE_MAX)?;
        self.once.set(once);
        (self.memory.read(avma, into) == into.len()).then_some(())
    }

    fn array<const N: usize>(&self, avma: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(avma, &mut bytes).map(|()| bytes)
    }

    /// Returns the bytes at an address. `None` if they are unreadable, or too many.
    pub(super) fn bytes(&self, avma: u64, len: usize) -> Option<Vec<u8>> {
        if len > PIECE_MAX {
            return None;
        }
        let mut bytes = vec![0; len];
        self.fill(avma, &mut bytes).map(|()| bytes)
    }

    pub(super) fn byte(&self, avma: u64) -> Option<u8> {
        self.array(avma).map(|[byte]| byte)
    }

    pub(super) fn short(&self, avma: u64) -> Option<u16> {
        self.array(avma).map(u16::from_le_bytes)
    }

    pub(super) fn half(&self, avma: u64) -> Option<u32> {
        self.array(avma).map(u32::from_le_bytes)
    }

    pub(super) fn word(&self, avma: u64) -> Option<u64> {
        self.array(avma).map(u64::from_le_bytes)
    }

    /// Returns a pointer that is neither null nor misaligned.
    pub(super) fn pointer(&self, avma: u64) -> Option<u64> {
        self.word(avma).filter(|it| *it != 0 && it.is_multiple_of(8))
    }

    /// Returns a text that ends with a byte 0, of a limited length.
    pub(super) fn text(&self, avma: u64, len_max: usize) -> Option<String> {
        let mut text = Vec::new();
        while text.len() < len_max {
            let at = avma.checked_add(text.len() as u64)?;
            let to_page_end = PAGE - (at % PAGE as u64) as usize;
            let part = self.bytes(at, to_page_end.min(TEXT_PART).min(len_max - text.len()))?;
            match part.iter().position(|byte| *byte == 0) {
                Some(end) => {
                    text.extend(part.get(..end)?);
                    return String::from_utf8(text).ok();
                }
                None => text.extend(part),
            }
        }
        None
    }
}
