//! The tables segment, as both processes read it.
//!
//! ```text
//! header    magic, version, snapshot (offset; swapped with a release store)
//! snapshot  counts, ranges[] sorted by start, writable[] sorted by start
//! module    head, blocks[] (one for each 256 bytes of text), lows[], ids[], rules[]
//! ```
//! A row is valid from its address up to the next row's. `blocks[b]` counts the rows before block
//! `b`. Within a block, a row's address is its byte in `lows`. The row's rule is `rules[ids[row]]`.
//!
//! # Safety
//! Only this module turns offsets in the tables segment into references.
//!
//! # Invariants
//! - Nothing that a published snapshot reaches is written while a reader may still use the
//!   snapshot. Modules are only ever added, and snapshots share them. Only a heap of code changes:
//!   see [`super::code_heap`].
//! - Every offset and count is checked against the segment before it is followed. Wrong contents
//!   give wrong frames, never a read outside the segment.

use core::marker::PhantomData;

use super::code_heap::CodeHeap;
use super::rule::Rule;
use crate::runtime::RuntimeBlock;
use crate::sync::{AtomicU64, Ordering};

/// First word of a tables segment ("tracetab").
pub const MAGIC: u64 = u64::from_be_bytes(*b"tracetab");
/// Number of text bytes that share one entry of a module's block index.
pub const BLOCK: u64 = 256;
/// Alignment of everything that the writer puts into the segment.
pub const ALIGN: u64 = 16;

/// The location of the caller's rbx is not known. A location is n for `[cfa + 8 * n]`, or 0 for the
/// frame's own rbx. Only modules with frames that are found through rbx have locations (the dynamic
/// linker's lazy binding).
pub const RBX_LOST: i16 = i16::MIN;

/// The header of the segment, at offset 0.
#[repr(C)]
#[derive(Debug)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`crate::ABI_VERSION`].
    pub version: AtomicU64,
    /// Offset of the current snapshot, or 0 for none.
    pub snapshot: AtomicU64,
    /// For growth.
    pub reserved: [AtomicU64; 5],
}

/// The header of a snapshot. The executable ranges follow it, then the writable ranges, then the
/// blocks of runtimes.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct SnapshotHead {
    /// Number of executable ranges.
    pub ranges: u32,
    /// Number of writable ranges.
    pub writable: u32,
    /// The number of the snapshot, counting from 1.
    pub generation: u64,
    /// Incremented when the meaning of an address may have changed: see [`super::trace_flags`].
    pub epoch: u32,
    /// Index + 1 of the writable range that is the first thread's stack, or 0 for none.
    pub stack: u32,
    /// Number of runtimes.
    pub runtimes: u32,
    /// For growth.
    pub reserved: u32,
}

/// An executable range of the target.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// First address (AVMA).
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// The value to subtract (wrapping) from an AVMA to get the module's SVMA.
    pub bias: u64,
    /// Offset of the module's header, or 0 for anonymous code.
    pub module: u32,
    /// Offset of the [`CodeHeap`], or 0 if this is no heap of code.
    pub heap: u32,
}

/// A readable and writable memory range, which may contain stacks.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Writable {
    /// First address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
}

/// The header of a module's table.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModuleHead {
    /// SVMA of the first block, a multiple of [`BLOCK`].
    pub base: u64,
    /// Number of blocks. The index has one more word.
    pub block_count: u32,
    /// Number of rows.
    pub row_count: u32,
    /// Offset of the block index, u32 words.
    pub blocks: u32,
    /// Offset of the rows' low address bytes.
    pub lows: u32,
    /// Offset of the rows' rule numbers, u16 words.
    pub ids: u32,
    /// Offset of the rules.
    pub rules: u32,
    /// Number of rules.
    pub rule_count: u32,
    /// Index of the rule for addresses before the first row or after the last block.
    pub default_rule: u32,
    /// Offset of the locations of rbx, one i16 for each rule, or 0 if the module needs none. See
    /// [`RBX_LOST`].
    pub rbx_slots: u32,
    /// For growth.
    pub reserved: [u32; 3],
}

#[cfg(not(loom))]
const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<Header>() == 64 && offset_of!(Header, snapshot) == 16);
    assert!(size_of::<SnapshotHead>() == 32 && offset_of!(SnapshotHead, runtimes) == 24);
    assert!(size_of::<Range>() == 32 && offset_of!(Range, heap) == 28);
    assert!(size_of::<Writable>() == 16);
    assert!(size_of::<ModuleHead>() == 56 && offset_of!(ModuleHead, default_rule) == 36);
    assert!(crate::layout::TABLES_LEN <= u32::MAX as u64);
};

/// Types for which every bit pattern is a valid value.
///
/// # Safety
/// `repr(C)` or primitive, no padding, no invalid bit pattern, no references.
unsafe trait Plain: Copy {}
// SAFETY: primitives and `repr(C)` structs of integers without padding.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for u16 {}
// SAFETY: as above.
unsafe impl Plain for i16 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for Rule {}
// SAFETY: as above.
unsafe impl Plain for SnapshotHead {}
// SAFETY: as above.
unsafe impl Plain for Range {}
// SAFETY: as above.
unsafe impl Plain for Writable {}
// SAFETY: as above.
unsafe impl Plain for ModuleHead {}
// SAFETY: as above.
unsafe impl Plain for RuntimeBlock {}

/// A mapped tables segment.
#[derive(Debug, Clone, Copy)]
pub struct Tables {
    base: *const u8,
    len: usize,
}

// SAFETY: the segment is only read through this type. Shared data is published with a release store
// and not written afterwards.
unsafe impl Send for Tables {}
// SAFETY: as above.
unsafe impl Sync for Tables {}

impl Tables {
    /// Wraps the segment that is mapped at `base` with length `len`.
    ///
    /// # Safety
    /// `base` is aligned to 16 bytes, and `len` bytes from it stay mapped readable for as long as
    /// any copy of the value, or a snapshot from it, is in use. The writer of the segment publishes
    /// through [`Header::snapshot`]. It does not write what a snapshot in use reaches, except that
    /// it writes the words of a [`CodeHeap`] and of its tables atomically.
    pub const unsafe fn new(base: *const u8, len: usize) -> Self {
        Self { base, len }
    }

    /// Returns the current snapshot. A handler takes it once for each sample.
    pub fn snapshot(&self) -> Option<Snapshot<'_>> {
        if size_of::<Header>() > self.len {
            return None;
        }
        // SAFETY: the caller of `new` promised that it is mapped and aligned. Zeroes are a valid
        // header. It consists of atomics, so the other process may write it.
        let header = unsafe { &*self.base.cast::<Header>() };
        // Relaxed: written once, before the target could see the segment.
        let known = header.magic.load(Ordering::Relaxed) == MAGIC
            && header.version.load(Ordering::Relaxed) == u64::from(crate::ABI_VERSION);
        // Acquire: pairs with the Release in `TableWriter::publish`; makes the snapshot and the
        // modules that it names visible.
        let offset = header.snapshot.load(Ordering::Acquire);
        if !known || offset == 0 {
            return None;
        }
        let segment = Segment { base: self.base, len: self.len, life: PhantomData };
        let head = segment.slice::<SnapshotHead>(offset, 1)?.first()?;
        let ranges = offset.wrapping_add(size_of::<SnapshotHead>() as u64);
        let writable =
            ranges.wrapping_add(u64::from(head.ranges).wrapping_mul(size_of::<Range>() as u64));
        let runtimes = writable
            .wrapping_add(u64::from(head.writable).wrapping_mul(size_of::<Writable>() as u64));
        Some(Snapshot {
            segment,
            ranges: segment.slice(ranges, head.ranges)?,
            writable: segment.slice(writable, head.writable)?,
            runtimes: segment.slice(runtimes, head.runtimes)?,
            stack: head.stack,
            generation: head.generation,
            epoch: head.epoch as u16,
        })
    }
}

#[derive(Debug, Clone, Copy)]
struct Segment<'a> {
    base: *const u8,
    len: usize,
    life: PhantomData<&'a [u8]>,
}

impl<'a> Segment<'a> {
    /// Returns `count` values at an offset, if they are within the segment and aligned.
    #[inline]
    fn slice<T: Plain>(self, offset: u64, count: u32) -> Option<&'a [T]> {
        // No overflow: the product is a u32 times at most 256.
        let bytes = u64::from(count).wrapping_mul(size_of::<T>() as u64);
        let end = offset.checked_add(bytes)?;
        if end > self.len as u64 || offset & (align_of::<T>() as u64).wrapping_sub(1) != 0 {
            return None;
        }
        // SAFETY: `offset` is at most the length of the mapping.
        let start = unsafe { self.base.add(offset as usize) }.cast::<T>();
        // SAFETY: the range is in bounds and aligned (`base` to 16 bytes, more than any `T` needs).
        // Any bytes are a valid `T`, and published bytes are not written while the snapshot is in
        // use.
        Some(unsafe { core::slice::from_raw_parts(start, count as usize) })
    }

    /// Returns all words of the segment.
    #[inline]
    fn words(self) -> &'a [AtomicU64] {
        // SAFETY: the caller of `Tables::new` promised that they are mapped and aligned. Any value
        // is valid, and the other process may write atomics.
        unsafe { core::slice::from_raw_parts(self.base.cast::<AtomicU64>(), self.len >> 3) }
    }
}

/// The target's mappings and tables at one time.
#[derive(Debug, Clone, Copy)]
pub struct Snapshot<'a> {
    segment: Segment<'a>,
    ranges: &'a [Range],
    writable: &'a [Writable],
    runtimes: &'a [RuntimeBlock],
    stack: u32,
    generation: u64,
    epoch: u16,
}

// SAFETY: it holds shared references to plain bytes, and a pointer that is only used to make such
// references.
unsafe impl Send for Snapshot<'_> {}
// SAFETY: as above.
unsafe impl Sync for Snapshot<'_> {}

/// Returns the number of leading elements for which `below` holds. `below` is monotonic. It takes
/// at most 32 steps.
#[inline]
fn partition<T>(items: &[T], below: impl Fn(&T) -> bool) -> usize {
    let (mut from, mut len) = (0usize, items.len());
    while len > 0 {
        let half = len >> 1;
        let middle = from.wrapping_add(half);
        match items.get(middle) {
            Some(item) if below(item) => {
                from = middle.wrapping_add(1);
                len = len.wrapping_sub(half).wrapping_sub(1);
            }
            _ => len = half,
        }
    }
    from
}

impl<'a> Snapshot<'a> {
    /// Returns the number of the snapshot, counting from 1.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the epoch of the meaning of addresses: see [`super::trace_flags`].
    pub fn epoch(&self) -> u16 {
        self.epoch
    }

    /// Returns the runtimes of the process. The recorder publishes them only where programs may
    /// read their thread pointer.
    #[inline]
    pub fn runtimes(&self) -> &'a [RuntimeBlock] {
        self.runtimes
    }

    /// Returns the executable range that contains an address.
    #[inline]
    pub fn range(&self, avma: u64) -> Option<&'a Range> {
        let above = partition(self.ranges, |range| range.start <= avma);
        self.ranges.get(above.wrapping_sub(1)).filter(|range| avma < range.end)
    }

    /// Returns the readable and writable range [lo, hi) that contains an address.
    #[inline]
    pub fn writable(&self, avma: u64) -> Option<(u64, u64)> {
        let above = partition(self.writable, |range| range.start <= avma);
        let range = self.writable.get(above.wrapping_sub(1))?;
        (avma < range.end).then_some((range.start, range.end))
    }

    /// Returns the end of the first thread's stack (one past the last address), if the stack
    /// contains this address. The kernel never merges that mapping with another one.
    pub fn stack_end(&self, avma: u64) -> Option<u64> {
        let range = self.writable.get((self.stack as usize).wrapping_sub(1))?;
        (range.start <= avma && avma < range.end).then_some(range.end)
    }

    /// Returns the heap of code that a range is.
    #[inline]
    pub fn heap(&self, range: &Range) -> Option<CodeHeap<'a>> {
        if range.heap == 0 {
            return None;
        }
        CodeHeap::at(self.segment.words(), u64::from(range.heap))
    }

    /// Returns the table of a range's module, or `None` for anonymous code.
    #[inline]
    pub fn module(&self, range: &Range) -> Option<Module<'a>> {
        if range.module == 0 {
            return None;
        }
        let head = self.segment.slice::<ModuleHead>(u64::from(range.module), 1)?.first()?;
        let blocks =
            self.segment.slice(u64::from(head.blocks), head.block_count.checked_add(1)?)?;
        Some(Module {
            base: head.base,
            blocks,
            lows: self.segment.slice(u64::from(head.lows), head.row_count)?,
            ids: self.segment.slice(u64::from(head.ids), head.row_count)?,
            rules: self.segment.slice(u64::from(head.rules), head.rule_count)?,
            default_rule: head.default_rule,
            rbx_slots: match head.rbx_slots {
                0 => &[],
                offset => self.segment.slice(u64::from(offset), head.rule_count)?,
            },
        })
    }
}

/// A module's table.
#[derive(Debug, Clone, Copy)]
pub struct Module<'a> {
    base: u64,
    blocks: &'a [u32],
    lows: &'a [u8],
    ids: &'a [u16],
    rules: &'a [Rule],
    default_rule: u32,
    rbx_slots: &'a [i16],
}

impl Module<'_> {
    /// Returns the rule at an address of the module.
    #[inline]
    pub fn rule(&self, svma: u64) -> Rule {
        self.rule_and_rbx(svma).0
    }

    /// Returns the rule at an address of the module and where the caller's rbx is.
    #[inline]
    pub fn rule_and_rbx(&self, svma: u64) -> (Rule, i16) {
        let id = self.row(svma).and_then(|row| self.ids.get(row));
        let id = id.map_or(self.default_rule as usize, |&id| id as usize);
        let rule = self.rules.get(id).copied().unwrap_or(Rule::BAD);
        (rule, self.rbx_slots.get(id).copied().unwrap_or(RBX_LOST))
    }

    /// Returns the index of the row at an address.
    #[inline]
    pub fn row(&self, svma: u64) -> Option<usize> {
        let distance = svma.checked_sub(self.base)?;
        let block = usize::try_from(distance / BLOCK).ok()?;
        let low = (distance % BLOCK) as u8;
        let first = *self.blocks.get(block)? as usize;
        let next = *self.blocks.get(block.wrapping_add(1))? as usize;
        // A block has at most one row for each of its bytes, whatever the index says.
        let in_block = self.lows.get(first..next).filter(|rows| rows.len() <= BLOCK as usize)?;
        let up_to = in_block.iter().take_while(|&&row| row <= low).count();
        first.wrapping_add(up_to).checked_sub(1)
    }
}
