//! The tables segment as both processes read it.
//!
//! ```text
//! header    magic, version, snapshot (offset; swapped with a release store)
//! snapshot  counts, ranges[] sorted by start, writable[] sorted by start
//! module    head, blocks[] (one for each 256 bytes of text), lows[], ids[], rules[]
//! ```
//! A row is valid from its address to that of the next row. `blocks[b]` counts the rows below block
//! `b`; within the block a row's address is its byte in `lows`; its rule is `rules[ids[row]]`.
//!
//! # Safety
//! This is the one place where offsets in the tables segment become references.
//!
//! # Invariants
//! - What a published snapshot reaches is not written while a reader may still use the snapshot.
//!   Modules are only ever added, and snapshots share them.
//! - Every offset and count is checked against the segment before it is followed: wrong contents
//!   give wrong frames, never a read outside the segment.

use core::marker::PhantomData;

use super::rule::Rule;
use crate::sync::{AtomicU64, Ordering};

/// First word of a tables segment ("tracetab").
pub const MAGIC: u64 = u64::from_be_bytes(*b"tracetab");
/// Bytes of text that share one entry of a module's block index.
pub const BLOCK: u64 = 256;
/// Alignment of everything that the writer places.
pub const ALIGN: u64 = 16;

/// Where the caller's rbx is, for modules some of whose frames are found through it (the dynamic
/// linker's lazy binding): n for `[cfa + 8 * n]`, 0 for the frame's own, and this for nowhere.
pub const RBX_LOST: i16 = i16::MIN;

/// The head of the segment, at offset 0.
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

/// The head of a snapshot. Its ranges follow, then its writable ranges.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct SnapshotHead {
    /// Number of executable ranges.
    pub ranges: u32,
    /// Number of writable ranges.
    pub writable: u32,
    /// Number of the snapshot, from 1 on.
    pub generation: u64,
    /// Raised when an address may mean something else than before: see [`super::trace_flags`].
    pub epoch: u32,
    /// Number + 1 of the writable range that is the first thread's stack, or 0 if none is.
    pub stack: u32,
}

/// An executable range of the target.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// First address (AVMA).
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// What to subtract, wrapping, from an AVMA to get the module's SVMA.
    pub bias: u64,
    /// Offset of the module's head, or 0 for anonymous code.
    pub module: u32,
    /// For growth.
    pub reserved: u32,
}

/// A range of memory that can be read and written: where stacks may lie.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Writable {
    /// First address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
}

/// The head of a module's table.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModuleHead {
    /// SVMA of the first block, a multiple of [`BLOCK`].
    pub base: u64,
    /// Number of blocks; the index has one word more.
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
    /// Number of the rule for addresses in front of the first row or behind the last block.
    pub default_rule: u32,
    /// Offset of the slots that rbx is saved in, one i16 for each rule, or 0 if the module does not
    /// need them. See [`RBX_LOST`].
    pub rbx_slots: u32,
    /// For growth.
    pub reserved: [u32; 3],
}

#[cfg(not(loom))]
const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<Header>() == 64 && offset_of!(Header, snapshot) == 16);
    assert!(size_of::<SnapshotHead>() == 24 && offset_of!(SnapshotHead, stack) == 20);
    assert!(size_of::<Range>() == 32 && offset_of!(Range, module) == 24);
    assert!(size_of::<Writable>() == 16);
    assert!(size_of::<ModuleHead>() == 56 && offset_of!(ModuleHead, default_rule) == 36);
    assert!(crate::layout::TABLES_LEN <= u32::MAX as u64);
};

/// Types whose every bit pattern is a value.
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

/// A mapped tables segment.
#[derive(Debug, Clone, Copy)]
pub struct Tables {
    base: *const u8,
    len: usize,
}

// SAFETY: the segment is read only through this type; what is shared is published with a release
// store and not written afterwards.
unsafe impl Send for Tables {}
// SAFETY: as above.
unsafe impl Sync for Tables {}

impl Tables {
    /// Takes the address and length at which the segment is mapped.
    ///
    /// # Safety
    /// `base` is aligned to 16 bytes, and `len` bytes from it on are mapped readable for as long as
    /// any copy of the value, or a snapshot from it, is used. Whoever writes the segment publishes
    /// as [`Header::snapshot`] says and leaves alone what a snapshot in use reaches.
    pub const unsafe fn new(base: *const u8, len: usize) -> Self {
        Self { base, len }
    }

    /// The current snapshot, to be taken once for each sample.
    pub fn snapshot(&self) -> Option<Snapshot<'_>> {
        if size_of::<Header>() > self.len {
            return None;
        }
        // SAFETY: mapped and aligned by the promise of `new`; zeroes are a valid header, and it
        // consists of atomics, so the other process may write it.
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
        Some(Snapshot {
            segment,
            ranges: segment.slice(ranges, head.ranges)?,
            writable: segment.slice(writable, head.writable)?,
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
    /// `count` values at an offset, if they lie within the segment and are aligned.
    #[inline]
    fn slice<T: Plain>(self, offset: u64, count: u32) -> Option<&'a [T]> {
        // No overflow: a u32 times at most 56.
        let bytes = u64::from(count).wrapping_mul(size_of::<T>() as u64);
        let end = offset.checked_add(bytes)?;
        if end > self.len as u64 || offset & (align_of::<T>() as u64).wrapping_sub(1) != 0 {
            return None;
        }
        // SAFETY: `offset` is not beyond the end of the mapping.
        let start = unsafe { self.base.add(offset as usize) }.cast::<T>();
        // SAFETY: in bounds, aligned (`base` is to 16 bytes, more than any `T` asks), any bytes are
        // a `T`, and published bytes are not written while the snapshot is in use.
        Some(unsafe { core::slice::from_raw_parts(start, count as usize) })
    }
}

/// The target's mappings and tables at one time.
#[derive(Debug, Clone, Copy)]
pub struct Snapshot<'a> {
    segment: Segment<'a>,
    ranges: &'a [Range],
    writable: &'a [Writable],
    stack: u32,
    generation: u64,
    epoch: u16,
}

// SAFETY: shared references to plain bytes, and a pointer that is used the same way.
unsafe impl Send for Snapshot<'_> {}
// SAFETY: as above.
unsafe impl Sync for Snapshot<'_> {}

/// Number of leading elements for which `below` holds, `below` being monotonic. At most 32 steps.
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
    /// Number of the snapshot, from 1 on.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// What addresses mean: see [`super::trace_flags`].
    pub fn epoch(&self) -> u16 {
        self.epoch
    }

    /// The executable range that an address lies in.
    #[inline]
    pub fn range(&self, avma: u64) -> Option<&'a Range> {
        let above = partition(self.ranges, |range| range.start <= avma);
        self.ranges.get(above.wrapping_sub(1)).filter(|range| avma < range.end)
    }

    /// The readable and writable range [lo, hi) that an address lies in.
    #[inline]
    pub fn writable(&self, avma: u64) -> Option<(u64, u64)> {
        let above = partition(self.writable, |range| range.start <= avma);
        let range = self.writable.get(above.wrapping_sub(1))?;
        (avma < range.end).then_some((range.start, range.end))
    }

    /// One past the last address of the first thread's stack, if this address lies in it. The
    /// kernel joins that mapping with no other one.
    pub fn stack_end(&self, avma: u64) -> Option<u64> {
        let range = self.writable.get((self.stack as usize).wrapping_sub(1))?;
        (range.start <= avma && avma < range.end).then_some(range.end)
    }

    /// The table of a range's module; `None` for anonymous code.
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
    /// The rule at an address of the module.
    #[inline]
    pub fn rule(&self, svma: u64) -> Rule {
        self.rule_and_rbx(svma).0
    }

    /// The rule at an address of the module, and where it keeps the caller's rbx.
    #[inline]
    pub fn rule_and_rbx(&self, svma: u64) -> (Rule, i16) {
        let id = self.row(svma).and_then(|row| self.ids.get(row));
        let id = id.map_or(self.default_rule as usize, |&id| id as usize);
        let rule = self.rules.get(id).copied().unwrap_or(Rule::BAD);
        (rule, self.rbx_slots.get(id).copied().unwrap_or(RBX_LOST))
    }

    /// The number of the row at an address.
    #[inline]
    pub fn row(&self, svma: u64) -> Option<usize> {
        let distance = svma.checked_sub(self.base)?;
        let block = usize::try_from(distance / BLOCK).ok()?;
        let low = (distance % BLOCK) as u8;
        let first = *self.blocks.get(block)? as usize;
        let next = *self.blocks.get(block.wrapping_add(1))? as usize;
        // At most one row for each byte of the block, whatever the index says.
        let in_block = self.lows.get(first..next).filter(|rows| rows.len() <= BLOCK as usize)?;
        let up_to = in_block.iter().take_while(|&&row| row <= low).count();
        first.wrapping_add(up_to).checked_sub(1)
    }
}
