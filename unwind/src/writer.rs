//! The recorder's side of the tables segment. It adds modules and publishes snapshots.
//!
//! # Invariants
//! - The bytes of a module never change after [`TableWriter::add_module`] has returned.
//! - The bytes of a snapshot are reused only after [`TableWriter::recycle`].
//! - A heap of code has its addresses alone, whatever is mapped there.
//!
//! # Does not
//! - map or populate memory: it only says how much of the segment is used.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use traceprof_abi::ABI_VERSION;
use traceprof_abi::runtime::RuntimeBlock;
use traceprof_abi::unwind::tables::{ALIGN, Header, MAGIC, ModuleHead, Range};

use super::code_memory::CodeMemory;
use super::compile::ModuleTable;

/// Snapshot memory is allocated in multiples of this many bytes, so that a slightly larger one fits
/// as well.
const SNAPSHOT_STEP: u64 = 4096;

/// The offset of a module's table in the segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModuleRef(u32);

/// An executable mapping of the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExecRange {
    /// First address (AVMA).
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// The value to subtract, wrapping, from an AVMA to get the module's SVMA.
    pub bias: u64,
    /// The module's table, or `None` for anonymous code, which is assumed to keep frame pointers.
    pub module: Option<ModuleRef>,
}

/// The error for a segment that has no space left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TablesFull {
    /// Number of bytes requested.
    pub wanted: u64,
    /// Number of bytes left.
    pub left: u64,
}

impl fmt::Display for TablesFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wanted, left } = self;
        write!(f, "unwind tables full: {wanted} bytes needed, {left} left")
    }
}

impl std::error::Error for TablesFull {}

/// Memory of a snapshot in the segment.
#[derive(Debug, Clone, Copy)]
struct Area {
    offset: u64,
    len: u64,
}

/// Writes the tables segment.
#[derive(Debug)]
pub struct TableWriter<'a> {
    pub(super) words: &'a [AtomicU64],
    used: u64,
    generation: u64,
    epoch: u32,
    stack_end: u64,
    runtimes: Vec<RuntimeBlock>,
    current: Option<Area>,
    /// Replaced snapshots that a handler may still read.
    retired: Vec<Area>,
    free: Vec<Area>,
    pub(super) code: CodeMemory<'a>,
}

impl<'a> TableWriter<'a> {
    /// Creates a writer over the recorder's own zeroed, writable mapping of the segment. It writes
    /// the header at once, so the first page must be populated.
    ///
    /// # Panics
    /// If the segment is too small for the header.
    pub fn new(words: &'a [AtomicU64]) -> Self {
        let used = size_of::<Header>() as u64;
        assert!(words.len() as u64 * 8 >= used, "tables segment smaller than its header");
        let writer = Self {
            words,
            used,
            generation: 0,
            epoch: 0,
            stack_end: 0,
            runtimes: Vec::new(),
            current: None,
            retired: Vec::new(),
            free: Vec::new(),
            code: CodeMemory::default(),
        };
        // Relaxed: the target does not see the segment yet.
        writer.words[0].store(MAGIC, Ordering::Relaxed);
        writer.words[1].store(u64::from(ABI_VERSION), Ordering::Relaxed);
        writer
    }

    /// Returns the number of bytes from the start of the segment that are in use and must be
    /// populated.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Returns the number of bytes that the module's table needs.
    pub fn module_bytes(module: &ModuleTable) -> u64 {
        module_layout(module).1
    }

    /// Adds a module's table.
    pub fn add_module(&mut self, module: &ModuleTable) -> Result<ModuleRef, TablesFull> {
        let ([blocks, lows, ids, rules, rbx], len) = module_layout(module);
        let at = self.allocate(len)?;
        // The segment is shorter than 4 GiB (asserted in `abi`), so its offsets fit.
        let offset_of = |part: u64| (at + part) as u32;
        let head = ModuleHead {
            base: module.base,
            block_count: (module.blocks.len() - 1) as u32,
            row_count: module.lows.len() as u32,
            blocks: offset_of(blocks),
            lows: offset_of(lows),
            ids: offset_of(ids),
            rules: offset_of(rules),
            rule_count: module.rules.len() as u32,
            default_rule: module.default_rule,
            rbx_slots: if module.rbx_slots.is_empty() { 0 } else { offset_of(rbx) },
            reserved: [0; 3],
        };
        self.write(at, &module_head_bytes(&head));
        self.write(at + blocks, &le_bytes(&module.blocks, |word| word.to_le_bytes()));
        self.write(at + lows, &module.lows);
        self.write(at + ids, &le_bytes(&module.ids, |word| word.to_le_bytes()));
        self.write(at + rules, &le_bytes(&module.rules, |rule| rule.to_bits().to_le_bytes()));
        self.write(at + rbx, &le_bytes(&module.rbx_slots, |slot| slot.to_le_bytes()));
        Ok(ModuleRef(at as u32))
    }

    /// Sets the epoch of later snapshots. In a new epoch an address may have another meaning than
    /// before.
    pub fn begin_epoch(&mut self, epoch: u16) {
        self.epoch = u32::from(epoch);
    }

    /// Sets the end of the first thread's stack for later snapshots, 0 if unknown.
    pub fn end_stack_at(&mut self, end: u64) {
        self.stack_end = end;
    }

    /// Sets the runtimes of later snapshots. Frame words name a runtime by its position here.
    pub fn set_runtimes(&mut self, runtimes: Vec<RuntimeBlock>) {
        self.runtimes = runtimes;
    }

    /// Publishes the target's mappings: the executable ranges, and the ranges [lo, hi) that can be
    /// read and written. Both may be in any order. Empty ranges are left out.
    pub fn publish(
        &mut self,
        ranges: &[ExecRange],
        writable: &[(u64, u64)],
    ) -> Result<(), TablesFull> {
        let mut ranges: Vec<Range> = ranges
            .iter()
            .map(|range| Range {
                start: range.start,
                end: range.end,
                bias: range.bias,
                module: range.module.map_or(0, |module| module.0),
                heap: 0,
            })
            .collect();
        self.code.replace(&mut ranges);
        ranges.retain(|range| range.start < range.end);
        ranges.sort_by_key(|range| range.start);
        let mut writable: Vec<(u64, u64)> =
            writable.iter().copied().filter(|(lo, hi)| lo < hi).collect();
        writable.sort_unstable();

        let head = u64::from(ranges.len() as u32) | (writable.len() as u64) << 32;
        let stack = writable.iter().position(|(_, end)| *end == self.stack_end);
        let stack = stack.map_or(0, |number| number as u64 + 1);
        let epoch = u64::from(self.epoch) | stack << 32;
        let mut words = vec![head, self.generation + 1, epoch, self.runtimes.len() as u64];
        for range in &ranges {
            let table = u64::from(range.module) | u64::from(range.heap) << 32;
            words.extend([range.start, range.end, range.bias, table]);
        }
        words.extend(writable.iter().flat_map(|&(lo, hi)| [lo, hi]));
        words.extend(self.runtimes.iter().flat_map(RuntimeBlock::words));
        let area = self.snapshot_area(words.len() as u64 * 8)?;
        self.write(area.offset, &le_bytes(&words, |word| word.to_le_bytes()));
        // Release: pairs with the Acquire in `Tables::snapshot`; makes this snapshot and the
        // modules that it names visible.
        self.words[2].store(area.offset, Ordering::Release);
        self.generation += 1;
        self.retired.extend(self.current.replace(area));
        self.code.note_snapshot();
        Ok(())
    }

    /// Makes the memory of replaced snapshots available for reuse, and that of the tables of code
    /// that were replaced before [`Self::begin_grace`]. The caller ensures that no handler still
    /// runs that started before the last [`Self::publish`], or before [`Self::begin_grace`].
    pub fn recycle(&mut self) {
        self.free.append(&mut self.retired);
        self.code.recycle();
    }

    fn snapshot_area(&mut self, bytes: u64) -> Result<Area, TablesFull> {
        if let Some(index) = self.free.iter().position(|area| area.len >= bytes) {
            return Ok(self.free.swap_remove(index));
        }
        let len = bytes.next_multiple_of(SNAPSHOT_STEP);
        let offset = self.allocate(len)?;
        Ok(Area { offset, len })
    }

    pub(super) fn allocate(&mut self, bytes: u64) -> Result<u64, TablesFull> {
        let at = self.used.next_multiple_of(ALIGN);
        let left = (self.words.len() as u64 * 8).saturating_sub(at);
        if bytes > left {
            return Err(TablesFull { wanted: bytes, left });
        }
        self.used = at + bytes;
        Ok(at)
    }

    /// Writes bytes at a multiple of 8. The remainder of the last word becomes zero.
    fn write(&self, offset: u64, bytes: &[u8]) {
        let words = &self.words[(offset / 8) as usize..][..bytes.len().div_ceil(8)];
        for (word, chunk) in words.iter().zip(bytes.chunks(8)) {
            let mut value = [0; 8];
            value[..chunk.len()].copy_from_slice(chunk);
            // Relaxed: published by the Release in `publish`.
            word.store(u64::from_le_bytes(value), Ordering::Relaxed);
        }
    }
}

/// Returns the offsets of blocks, lows, ids, rules and rbx slots from the header, and the total
/// length.
fn module_layout(module: &ModuleTable) -> ([u64; 5], u64) {
    let mut at = size_of::<ModuleHead>() as u64;
    let parts = [
        module.blocks.len() * 4,
        module.lows.len(),
        module.ids.len() * 2,
        module.rules.len() * 8,
        module.rbx_slots.len() * 2,
    ];
    let offsets = parts.map(|len| {
        let start = at.next_multiple_of(ALIGN);
        at = start + len as u64;
        start
    });
    (offsets, at)
}

fn module_head_bytes(head: &ModuleHead) -> Vec<u8> {
    let words = [
        head.block_count,
        head.row_count,
        head.blocks,
        head.lows,
        head.ids,
        head.rules,
        head.rule_count,
        head.default_rule,
        head.rbx_slots,
    ];
    let mut bytes = head.base.to_le_bytes().to_vec();
    bytes.extend(le_bytes(&words, |word| word.to_le_bytes()));
    bytes.extend(le_bytes(&head.reserved, |word| word.to_le_bytes()));
    bytes
}

fn le_bytes<T, const N: usize>(items: &[T], bytes: impl Fn(&T) -> [u8; N]) -> Vec<u8> {
    items.iter().flat_map(bytes).collect()
}
