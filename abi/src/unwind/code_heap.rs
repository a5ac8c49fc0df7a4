//! The tables of code that a runtime generates and frees while handlers read them.
//!
//! ```text
//! heap   first and last address, log2 of a segment's size, number of pages, interpreter layout
//!        one word for each page: its offset, or 0 while no code of its segments is known
//! page   one word for each of 512 segments: the offset of the table of its code, or 0
//! table  start and length of the code, number of rows, what tells the code from later code there,
//!        offsets of the rows, rules of the rows
//! ```
//! A segment is the unit in which the runtime allocates code, so no segment has two pieces of code.
//! The recorder replaces the table of a segment with one store. It reuses the memory of a replaced
//! table only when no handler runs that began before the store.
//!
//! The runtime frees code, and uses its block for other code of the same size, before the recorder
//! sees that. So a table also says which number the runtime has in its description of the code. A
//! reader compares the number for each frame, and a table of earlier code is no table.
//!
//! # Invariants
//! - Every offset and count is checked before it is followed. Wrong contents give wrong frames,
//!   never a read outside the words.
//! - Everything is an atomic word, so reading a table that is being written is no data race.

use core::ops::Range;

use super::rule::Rule;
use crate::sync::{AtomicU64, Ordering};

/// Number of segments that share a page. The models of loom have fewer words.
pub const PAGE_SEGMENTS: usize = if cfg!(loom) { 2 } else { 512 };
/// Number of words of a heap before those of its pages.
const HEAP_WORDS: usize = 4;
/// Number of words of a table before its rows.
const TABLE_WORDS: usize = 4;
/// Most binary digits of a segment's size.
const SHIFT_MAX: u32 = 16;

/// Where HotSpot's interpreter keeps what a handler reads of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InterpreterLayout {
    /// Number of the runtime's block.
    pub runtime: u8,
    /// Offset of the saved position from the frame pointer, in words.
    pub position_slot: i8,
}

impl InterpreterLayout {
    fn to_bits(self) -> u64 {
        u64::from_le_bytes([self.runtime, self.position_slot as u8, 0, 0, 0, 0, 0, 0])
    }

    fn from_bits(bits: u64) -> Self {
        let [runtime, slot, ..] = bits.to_le_bytes();
        Self { runtime, position_slot: slot as i8 }
    }
}

/// The addresses of a heap of code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeapSpan {
    /// First address (AVMA).
    pub low: u64,
    /// One past the last address that the heap can ever have.
    pub high: u64,
    /// log2 of the size of a segment in bytes.
    pub shift: u32,
}

impl HeapSpan {
    /// Returns the number of pages for all segments, if the span is valid.
    pub fn pages(&self) -> Option<usize> {
        if self.shift > SHIFT_MAX {
            return None;
        }
        let bytes = self.high.checked_sub(self.low).filter(|bytes| *bytes > 0)?;
        let segments = (bytes.wrapping_sub(1) >> self.shift).wrapping_add(1);
        usize::try_from(segments).ok().map(|segments| segments.div_ceil(PAGE_SEGMENTS))
    }

    /// Returns the number of the segment that contains an address.
    pub fn segment(&self, avma: u64) -> Option<usize> {
        let is_inside = self.low <= avma && avma < self.high && self.shift <= SHIFT_MAX;
        is_inside.then(|| (avma.wrapping_sub(self.low) >> self.shift) as usize)
    }

    /// Returns the numbers of the segments that a range of addresses has a part of.
    pub fn segments(&self, range: &Range<u64>) -> Option<Range<usize>> {
        let last = range.end.checked_sub(1).filter(|last| *last >= range.start)?;
        Some(self.segment(range.start)?..self.segment(last)?.checked_add(1)?)
    }

    /// Returns the number of bytes that the heap needs, without its pages.
    pub fn bytes(&self) -> Option<u64> {
        (self.pages()?.checked_add(HEAP_WORDS)? as u64).checked_mul(8)
    }
}

/// What tells a piece of code from one that the runtime puts in its place: four bytes that the
/// runtime stores with the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CodeIdentity {
    /// The address (AVMA) of the bytes, a multiple of 4. 0 if nothing tells.
    pub at: u64,
    /// The bytes.
    pub value: u32,
    /// How many bytes before these the byte is that the runtime clears when it frees the block. 0
    /// if there is none. What tells stays in a free block, and the end of it may have other code.
    pub used_before: u32,
}

impl CodeIdentity {
    /// Returns the address (AVMA) of the word that has the bytes.
    #[inline]
    pub fn word(&self) -> u64 {
        self.at & !7
    }

    /// Returns the address (AVMA) of the byte that is cleared.
    #[inline]
    pub fn used(&self) -> Option<u64> {
        let at = self.at.wrapping_sub(u64::from(self.used_before));
        (self.used_before > 0).then_some(at)
    }

    /// Whether the word has the bytes.
    #[inline]
    pub fn is_in(&self, word: u64) -> bool {
        word.wrapping_shr((self.at as u32 & 4).wrapping_mul(8)) as u32 == self.value
    }
}

/// The rows of a piece of code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodeRows<'a> {
    /// Address of the first instruction (AVMA).
    pub start: u64,
    /// Length of the code in bytes.
    pub length: u32,
    /// What tells it from later code.
    pub identity: CodeIdentity,
    /// Rules and the offsets from which on they apply, in ascending order.
    pub rows: &'a [(u32, Rule)],
}

impl CodeRows<'_> {
    /// Returns the number of bytes that the table needs.
    pub fn bytes(&self) -> u64 {
        let offsets = self.rows.len().div_ceil(2);
        (TABLE_WORDS.wrapping_add(offsets).wrapping_add(self.rows.len()) as u64).wrapping_mul(8)
    }

    /// Writes the table, if the words have room for it there.
    pub fn store(&self, words: &[AtomicU64], offset: u64) -> Option<()> {
        let at = index(offset)?;
        let len = usize::try_from(self.bytes() / 8).ok()?;
        let words = words.get(at..at.checked_add(len)?)?;
        let count = u64::from(self.length) | (self.rows.len() as u64) << 32;
        let CodeIdentity { at, value, used_before } = self.identity;
        let head = [self.start, count, at, u64::from(value) | u64::from(used_before) << 32];
        let offsets = self.rows.chunks(2).map(|pair| {
            let offset = |at: usize| pair.get(at).map_or(0, |(offset, _)| u64::from(*offset));
            offset(0) | offset(1) << 32
        });
        let rules = self.rows.iter().map(|(_, rule)| rule.to_bits());
        for (word, value) in words.iter().zip(head.into_iter().chain(offsets).chain(rules)) {
            // Relaxed: published by the Release in `CodeHeap::publish`.
            word.store(value, Ordering::Relaxed);
        }
        Some(())
    }
}

/// Returns the index of the word at an offset.
fn index(offset: u64) -> Option<usize> {
    if offset & 7 == 0 { usize::try_from(offset >> 3).ok() } else { None }
}

/// A heap of code in the words of a tables segment.
#[derive(Debug, Clone, Copy)]
pub struct CodeHeap<'a> {
    words: &'a [AtomicU64],
    pages: &'a [AtomicU64],
    span: HeapSpan,
    interpreter: InterpreterLayout,
}

impl<'a> CodeHeap<'a> {
    /// Returns the heap at an offset.
    pub fn at(words: &'a [AtomicU64], offset: u64) -> Option<Self> {
        let (head, rest) = words.get(index(offset)?..)?.split_first_chunk::<HEAP_WORDS>()?;
        let [low, high, counts, interpreter] = head;
        // Relaxed, all: written before the snapshot that names the heap was published.
        let counts = counts.load(Ordering::Relaxed);
        let span = HeapSpan {
            low: low.load(Ordering::Relaxed),
            high: high.load(Ordering::Relaxed),
            shift: counts as u32,
        };
        let pages = rest.get(..(counts >> 32) as usize)?;
        let interpreter = InterpreterLayout::from_bits(interpreter.load(Ordering::Relaxed));
        (span.pages() == Some(pages.len())).then_some(Self { words, pages, span, interpreter })
    }

    /// Writes a heap without code. Its words are zero before.
    pub fn create(
        words: &'a [AtomicU64],
        offset: u64,
        span: HeapSpan,
        interpreter: InterpreterLayout,
    ) -> Option<Self> {
        let pages = span.pages()?;
        let head = words.get(index(offset)?..)?.first_chunk::<HEAP_WORDS>()?;
        let counts = u64::from(span.shift) | (pages as u64) << 32;
        let values = [span.low, span.high, counts, interpreter.to_bits()];
        for (word, value) in head.iter().zip(values) {
            // Relaxed: published with the snapshot that names the heap.
            word.store(value, Ordering::Relaxed);
        }
        Self::at(words, offset)
    }

    /// Returns the heap's addresses.
    pub fn span(&self) -> HeapSpan {
        self.span
    }

    /// Returns where the interpreter keeps what a handler reads of its frames.
    pub fn interpreter(&self) -> InterpreterLayout {
        self.interpreter
    }

    /// Returns the table of the code at an address, if one is known.
    #[inline]
    pub fn table(&self, avma: u64) -> Option<CodeTable<'a>> {
        let segment = self.span.segment(avma)?;
        // Acquire: pairs with the Release in `publish_page`; makes the page's zeros visible.
        let page = self.pages.get(segment / PAGE_SEGMENTS)?.load(Ordering::Acquire);
        let page = self.page(page)?;
        // Acquire: pairs with the Release in `publish`; makes the table visible.
        let table = page.get(segment % PAGE_SEGMENTS)?.load(Ordering::Acquire);
        CodeTable::at(self.words, table).filter(|table| table.contains(avma))
    }

    fn page(&self, offset: u64) -> Option<&'a [AtomicU64; PAGE_SEGMENTS]> {
        if offset == 0 {
            return None;
        }
        self.words.get(index(offset)?..)?.first_chunk()
    }

    /// Returns the numbers of pages of these segments that do not exist yet.
    pub fn missing_pages(&self, segments: Range<usize>) -> impl Iterator<Item = usize> {
        let last = segments.end.saturating_sub(1) / PAGE_SEGMENTS;
        // Relaxed: only the recorder writes them, and it is the one that asks.
        let is_missing = |page: &usize| {
            self.pages.get(*page).is_some_and(|word| word.load(Ordering::Relaxed) == 0)
        };
        (segments.start / PAGE_SEGMENTS..last.wrapping_add(1)).filter(is_missing)
    }

    /// Publishes a page, whose words are zero.
    pub fn publish_page(&self, number: usize, offset: u64) {
        if let Some(page) = self.pages.get(number) {
            // Release: pairs with the Acquire in `table`; makes the page's zeros visible.
            page.store(offset, Ordering::Release);
        }
    }

    /// Publishes the table of these segments, or with 0 that they have no code. Segments without a
    /// page are left out.
    pub fn publish(&self, segments: Range<usize>, table: u64) {
        for segment in segments {
            // Relaxed: only the recorder writes pages.
            let page = self.pages.get(segment / PAGE_SEGMENTS).map(|it| it.load(Ordering::Relaxed));
            let page = page.and_then(|page| self.page(page));
            if let Some(word) = page.and_then(|page| page.get(segment % PAGE_SEGMENTS)) {
                // Release: pairs with the Acquire in `table`; makes the table visible.
                word.store(table, Ordering::Release);
            }
        }
    }
}

/// The table of a piece of code.
#[derive(Debug, Clone, Copy)]
pub struct CodeTable<'a> {
    start: u64,
    length: u32,
    identity: CodeIdentity,
    offsets: &'a [AtomicU64],
    rules: &'a [AtomicU64],
}

impl<'a> CodeTable<'a> {
    fn at(words: &'a [AtomicU64], offset: u64) -> Option<Self> {
        if offset == 0 {
            return None;
        }
        let (head, rest) = words.get(index(offset)?..)?.split_first_chunk::<TABLE_WORDS>()?;
        // Relaxed, all: visible since the Acquire in `CodeHeap::table`.
        let [start, counts, at, value] = head.each_ref().map(|word| word.load(Ordering::Relaxed));
        let identity = CodeIdentity { at, value: value as u32, used_before: (value >> 32) as u32 };
        let rows = (counts >> 32) as usize;
        let (offsets, rest) = rest.split_at_checked(rows.div_ceil(2))?;
        let rules = rest.get(..rows)?;
        Some(Self { start, length: counts as u32, identity, offsets, rules })
    }

    /// Whether the code contains an address.
    pub fn contains(&self, avma: u64) -> bool {
        avma.wrapping_sub(self.start) < u64::from(self.length)
    }

    /// Returns what tells the code from later code.
    #[inline]
    pub fn identity(&self) -> CodeIdentity {
        self.identity
    }

    /// Returns the rule at an address of the code.
    #[inline]
    pub fn rule(&self, avma: u64) -> Rule {
        let offset = avma.wrapping_sub(self.start) as u32;
        let (mut from, mut len) = (0usize, self.rules.len());
        while len > 0 {
            let half = len >> 1;
            let middle = from.wrapping_add(half);
            if self.offset(middle).is_some_and(|row| row <= offset) {
                from = middle.wrapping_add(1);
                len = len.wrapping_sub(half).wrapping_sub(1);
            } else {
                len = half;
            }
        }
        let rule = self.rules.get(from.wrapping_sub(1));
        // Relaxed: as in `at`.
        rule.map_or(Rule::BAD, |word| Rule::from_bits(word.load(Ordering::Relaxed)))
    }

    fn offset(&self, row: usize) -> Option<u32> {
        // Relaxed: as in `at`.
        let pair = self.offsets.get(row >> 1)?.load(Ordering::Relaxed);
        Some(if row & 1 == 0 { pair as u32 } else { (pair >> 32) as u32 })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::super::rule::op;
    use super::*;

    const SPAN: HeapSpan = HeapSpan { low: 0x7000_0000, high: 0x7020_0000, shift: 7 };
    const LAYOUT: InterpreterLayout = InterpreterLayout { runtime: 2, position_slot: -8 };

    fn rule(cfa_off: i32) -> Rule {
        Rule { cfa_off, ..Rule::plain(op::SP) }
    }

    fn words(count: usize) -> Vec<AtomicU64> {
        (0..count).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn rules_are_found_by_segment_and_row() {
        let words = words(4096);
        let heap = CodeHeap::create(&words, 64, SPAN, LAYOUT).unwrap();
        assert_eq!(heap.interpreter(), LAYOUT);
        assert_eq!(heap.span().bytes(), Some((4 + 32) * 8));
        // The code is in segments 511 to 513, of two pages.
        let start = SPAN.low + 511 * 128 + 40;
        let rows = [(0, rule(8)), (4, rule(16)), (0x60, rule(32))];
        let identity = CodeIdentity { at: start - 4, value: 7, used_before: 9 };
        let code = CodeRows { start, length: 0x100, identity, rows: &rows };
        assert_eq!(heap.missing_pages(511..514).collect::<Vec<_>>(), [0, 1]);
        heap.publish_page(0, 8192);
        heap.publish_page(1, 8192 + 4096);
        assert_eq!(heap.missing_pages(0..1024).count(), 0);
        assert_eq!(code.bytes(), (4 + 2 + 3) * 8);
        code.store(&words, 1024).unwrap();
        heap.publish(511..514, 1024);
        let found = |offset: u64| {
            let heap = CodeHeap::at(&words, 64).unwrap();
            let avma = start.wrapping_add(offset);
            heap.table(avma).map(|table| table.rule(avma).cfa_off)
        };
        assert_eq!([0, 3, 4, 0x5f, 0x60, 0xff].map(found), [8, 8, 16, 16, 32, 32].map(Some));
        assert_eq!(heap.table(start).unwrap().identity(), identity);
        assert_eq!(found(0x100), None, "behind the code");
        assert_eq!(found(0u64.wrapping_sub(1)), None, "before it, in its segment");
        assert_eq!(found(0x1_0000), None, "no code is known there");
        assert_eq!(found(0x20_0000), None, "behind the heap");
        heap.publish(511..514, 0);
        assert_eq!(found(0), None);
    }

    #[test]
    fn damaged_words_give_no_table_outside_them() {
        let mut random = 0x5EED_u64;
        let mut next = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        let (mut found, mut missed) = (0, 0);
        let rows = [(0, rule(8)), (0x40, rule(16)), (0x41, rule(24))];
        for _ in 0..20_000 {
            let words = words(700);
            let heap = CodeHeap::create(&words, 0, SPAN, LAYOUT).unwrap();
            heap.publish_page(0, 640);
            let identity = CodeIdentity::default();
            let code = CodeRows { start: SPAN.low, length: 0x200, identity, rows: &rows };
            code.store(&words, 5000).unwrap();
            heap.publish(0..4, 5000);
            for _ in 0..next() % 8 {
                let at = [next() % 700, next() % 8, 80 + next() % 4, 625 + next() % 8];
                let value = [next() % 6000, next(), SPAN.low, ((next() % 64) << 32) | 0xffff];
                words[at[(next() % 4) as usize] as usize]
                    .store(value[(next() % 4) as usize], Ordering::Relaxed);
            }
            let Some(heap) = CodeHeap::at(&words, 0) else { continue };
            for _ in 0..8 {
                let avma = SPAN.low + next() % 1024;
                match heap.table(avma).map(|table| table.rule(avma)) {
                    Some(rule) => found += usize::from(rule.op == op::SP),
                    None => missed += 1,
                }
            }
        }
        assert!(found > 1000 && missed > 1000, "{found} found, {missed} missed");
    }

    #[test]
    fn identities_are_one_half_of_a_word() {
        let word = 0x1111_2222_3333_4444;
        for (at, value) in [(0x1000, 0x3333_4444), (0x1004, 0x1111_2222)] {
            let identity = CodeIdentity { at, value, used_before: 0 };
            assert_eq!(identity.word(), 0x1000);
            assert!(identity.is_in(word) && !identity.is_in(!word));
            assert!(!CodeIdentity { value: value + 1, ..identity }.is_in(word));
        }
    }

    #[test]
    fn spans_that_cannot_be_are_refused() {
        let bad = [
            HeapSpan { low: 8, high: 8, shift: 7 },
            HeapSpan { low: 16, high: 8, shift: 7 },
            HeapSpan { low: 0, high: 128, shift: 17 },
        ];
        let words = words(64);
        for span in bad {
            assert_eq!(span.pages(), None, "{span:?}");
            assert!(CodeHeap::create(&words, 0, span, LAYOUT).is_none());
        }
        assert!(CodeHeap::at(&words, 4).is_none(), "not aligned");
        assert!(CodeHeap::at(&words, 8 * 62).is_none(), "no room");
    }
}
