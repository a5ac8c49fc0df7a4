//! Scans of the heaps of code: what a machine has generated since the last one, with its unwind
//! rules.
//!
//! A scan notes all new blobs, which costs little. Their code is followed in this order: where
//! handlers had no rules, what may not have been complete, what is no method, and the rest, ahead
//! of its use. Most methods are in no sample.
//!
//! # Invariants
//! - Code is followed again until two scans have found the same bytes: the machine may have been
//!   writing it.
//! - A block that was not read yet is not one without code: a scan that ends early leaves it to the
//!   next one.
//! - What one machine can make a scan do is bounded by its budget, and by the maps of its heaps.
//! - The known blocks do not overlap, and each is within its heap: heaps are apart from each other,
//!   and blocks of a heap that is gone are forgotten. At the end of what a scan has compared with a
//!   map, and at the start of the first segment that waits, no known block goes on but one that the
//!   machine has cut there.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

use traceprof_abi::unwind::code_heap::{HeapSpan, InterpreterLayout};

use super::blob::{BlobKind, CodeBlob};
use super::blob_code::BlobCode;
use super::code_changes::{BudgetLeft, CodeChanges, ScanBudget, ScanDepth, ScannedCode};
use super::heap_watch::WatchedHeap;
use super::heaps::{CodeHeap, code_heaps};
use super::known_blocks::{BlockSeal, KnownBlock, KnownBlocks};
use super::machine::JavaMachine;
use super::segment_map::SegmentMap;
use super::thaw::{EnteredThreads, has_barriers};
use crate::proc::monotonic_ns;
use crate::runtime::memory::TargetMemory;
use crate::runtime::pages::TargetPages;

/// Maximum number of blobs that are read at once, and the bytes of a block that have all of one.
const HEADS_MAX: usize = 1024;
const HEAD_BYTES: u64 = 512;
/// Maximum number of blocks whose code is read at once, of bytes of all of them, and of one.
const BATCH_MAX: usize = 128;
const BATCH_BYTES_MAX: u64 = 512 << 10;
const PIECE_MAX: u64 = 64 << 10;
/// Maximum number of blocks whose seals a scan compares: two milliseconds.
const SEALS_MAX: usize = 4096;
/// Maximum number of free blocks of a heap that a scan looks at.
const FREE_MAX: usize = 512;

/// The code of a machine that was scanned.
#[derive(Debug, Default)]
pub struct CodeScan {
    blocks: KnownBlocks,
    /// The heaps of the last scan.
    heaps: Vec<WatchedHeap>,
    /// How the machine described its heaps when seals were compared. `None` if it does not.
    state: Option<HeapsState>,
    /// How it described them in the last scan.
    last_state: Option<HeapsState>,
    /// Native methods that store the stack pointer in the thread, by the offset there. One of them
    /// enters virtual threads.
    entered: EnteredThreads,
    /// Addresses in code that the next scan follows first.
    demanded: Vec<u64>,
    clock: ScanClock,
}

/// The clock of scans, in nanoseconds: CLOCK_MONOTONIC, but in tests.
#[derive(Debug, Clone, Copy)]
struct ScanClock(fn() -> u64);

impl Default for ScanClock {
    fn default() -> Self {
        Self(monotonic_ns)
    }
}

/// How a machine describes its heaps. Blocks that are allocated or freed change that.
#[derive(Debug, Clone, PartialEq, Eq)]
struct HeapsState(Vec<(u64, Option<Vec<u8>>)>);

impl HeapsState {
    /// Reads descriptions of so many bytes.
    fn read(heaps: &[CodeHeap], len: usize, pages: &TargetPages<'_>) -> Self {
        Self(heaps.iter().map(|heap| (heap.at, pages.bytes(heap.at, len))).collect())
    }
}

/// Hashes the code of a method without what the machine changes in it while it runs: the targets of
/// calls, and the classes and methods that it passes to them. No rule depends on these.
fn hash_method(bytes: &[u8], hasher: &mut impl Hasher) {
    let mut from = 0;
    while let Some(rest) = bytes.get(from..).filter(|rest| !rest.is_empty()) {
        let changes_after = |at: usize| match rest.get(at..)? {
            [0xe8, ..] => Some((at + 1, 4)),
            [0x48 | 0x49, 0xb8..=0xbf, ..] => Some((at + 2, 8)),
            _ => None,
        };
        let found = (0..rest.len()).find_map(changes_after);
        let (end, skipped) = found.unwrap_or((rest.len(), 0));
        rest.get(..end).unwrap_or(rest).hash(hasher);
        from += end + skipped;
    }
}

/// What a scan reads from.
struct ScannedMachine<'a> {
    machine: &'a JavaMachine,
    memory: &'a dyn TargetMemory,
    heaps: &'a [CodeHeap],
}

impl ScannedMachine<'_> {
    /// Returns the blob of a block, and the block's seal.
    fn blob(&self, block: &Range<u64>, pages: &TargetPages<'_>) -> (Option<CodeBlob>, BlockSeal) {
        let layout = &self.machine.layout;
        let heap = self.heaps.iter().find(|heap| heap.reserved.contains(&block.start));
        let contents = heap.and_then(|heap| heap.contents(block.start, &layout.heaps, pages));
        // A machine changes a block's length and its map one after the other.
        let contents = contents.filter(|contents| contents.end <= block.end);
        let blob = contents.and_then(|contents| CodeBlob::read(layout, &contents, pages));
        (blob, BlockSeal::read(layout, block.start, pages))
    }
}

/// Returns the addresses of heaps.
fn spans(heaps: &[CodeHeap]) -> Vec<HeapSpan> {
    let span = |heap: &CodeHeap| HeapSpan {
        low: heap.reserved.start,
        high: heap.reserved.end,
        shift: heap.shift,
    };
    heaps.iter().map(span).collect()
}

impl JavaMachine {
    /// Returns the addresses of the heaps of code, in the order of [`Self::code`].
    pub fn heap_spans(&self, memory: &dyn TargetMemory) -> Vec<HeapSpan> {
        let heaps = code_heaps(&self.layout.heaps, &TargetPages::of(memory)).unwrap_or_default();
        spans(&heaps)
    }

    /// Returns where the interpreter keeps what a handler reads of its frames.
    pub fn interpreter_layout(&self, runtime: u8) -> InterpreterLayout {
        InterpreterLayout { runtime, ..self.entries.interpreter }
    }
}

impl CodeScan {
    /// Reads what the heaps have now, and follows what is new.
    pub fn scan(
        &mut self,
        machine: &JavaMachine,
        memory: &dyn TargetMemory,
        depth: ScanDepth,
        budget: ScanBudget,
    ) -> CodeChanges {
        let left = BudgetLeft::of(budget);
        let pages = TargetPages::of(memory);
        let mut changes = CodeChanges::default();
        let layout = &machine.layout.heaps;
        let Some(heaps) = code_heaps(layout, &pages) else { return changes };
        changes.spans = spans(&heaps);
        let state = layout.heap_len.map(|len| HeapsState::read(&heaps, len, &pages));
        let has_moved_now = state.is_none() || state != self.last_state;
        // The maps are as before, unless a block was freed and another one of the same length was
        // allocated elsewhere. Stacks ask for what is in that one.
        let reads_maps = has_moved_now || depth != ScanDepth::Maps || !self.demanded.is_empty();
        let scanned = ScannedMachine { machine, memory, heaps: &heaps };
        self.blocks.begin();
        if reads_maps && self.read_maps(&scanned, &mut changes).is_none() {
            // A process that ends has no maps any more. What was known stays.
            return changes;
        }
        let read_ns = (self.clock.0)();
        self.sift(budget.blocks, read_ns, &mut changes);
        changes.has_moved = state.is_none() || state != self.state;
        self.last_state = state;
        if depth != ScanDepth::Maps {
            self.blocks.begin_seals();
            self.state.clone_from(&self.last_state);
        }
        if depth == ScanDepth::Blocks {
            self.blocks.recheck_stubs();
        }
        if has_moved_now || self.blocks.compares_seals() {
            let free = self.note_free(&scanned);
            self.compare_seals(&scanned, &free, &mut changes);
        }
        let avmas = std::mem::take(&mut self.demanded);
        self.blocks.want_at(&avmas);
        self.read_wanted(&scanned, &left, &mut changes);
        self.follow_pending(&scanned, &avmas, &left, &mut changes);
        changes.is_behind =
            self.blocks.has_wanted() || self.heaps.iter().any(WatchedHeap::is_changed);
        changes.has_news = changes.is_behind
            || self.blocks.is_unsettled()
            || !changes.removed.is_empty()
            || !changes.added.is_empty();
        changes.left_out = self.blocks.left_out;
        changes
    }

    /// Starts with a clock of its own.
    #[cfg(test)]
    pub(super) fn with_clock(clock: fn() -> u64) -> Self {
        Self { clock: ScanClock(clock), ..Self::default() }
    }

    /// Makes the next scan first follow the code at these addresses.
    pub fn demand(&mut self, avmas: impl IntoIterator<Item = u64>) {
        self.demanded.extend(avmas);
    }

    /// Makes the next scan follow the code of a block, even if it is as before.
    pub fn read_again(&mut self, start: u64) {
        self.blocks.read_again(start);
    }

    /// Returns when this blob was first seen where it is, in CLOCK_MONOTONIC nanoseconds. `None` if
    /// its block was not read, or had something else.
    pub fn since_of(&self, blob: &CodeBlob) -> Option<u64> {
        self.blocks.since_of(blob)
    }

    /// Whether the code that is at an address was there at this time, in CLOCK_MONOTONIC
    /// nanoseconds. Other code may have been there before. `is_new`: at that time, a handler had no
    /// table of the code that ran.
    pub fn was_there(&self, avma: u64, time_ns: u64, is_new: bool) -> bool {
        self.blocks.was_there(avma, time_ns, is_new)
    }

    /// Reads the maps of the heaps. `None` if they cannot be read.
    fn read_maps(&mut self, scanned: &ScannedMachine<'_>, changes: &mut CodeChanges) -> Option<()> {
        let maps = scanned.heaps.iter().enumerate().map(|(number, heap)| {
            let buffer = self.heaps.get_mut(number).map(WatchedHeap::take_spare);
            SegmentMap::read(heap, scanned.memory, buffer.unwrap_or_default())
        });
        let maps = maps.collect::<Option<Vec<_>>>()?;
        self.watch(maps, changes);
        Some(())
    }

    /// Takes over the maps of the heaps.
    fn watch(&mut self, maps: Vec<SegmentMap>, changes: &mut CodeChanges) {
        for heap in self.heaps.drain(maps.len().min(self.heaps.len())..) {
            self.blocks.replace(&heap.map.span(), (&[], None), &mut changes.removed);
        }
        for (number, map) in maps.into_iter().enumerate() {
            match self.heaps.get_mut(number) {
                Some(heap) if heap.map.is_of_same_heap(&map) => heap.update(map),
                Some(heap) => {
                    self.blocks.replace(&heap.map.span(), (&[], None), &mut changes.removed);
                    *heap = WatchedHeap::of(map);
                }
                None => self.heaps.push(WatchedHeap::of(map)),
            }
        }
    }

    /// Compares the blocks of changed segments with those that are known. The maps were as they are
    /// at this time.
    ///
    /// A scan looks at a segment at most twice: on the way back to the block that a part begins
    /// with, and on the way to the end of the part. Neither way leads across the end of the part
    /// before, where a block ends or begins.
    fn sift(&mut self, most: usize, read_ns: u64, changes: &mut CodeChanges) {
        let mut left = most;
        for heap in &mut self.heaps {
            while let Some(part) = heap.first().filter(|_| left > 0) {
                let boundary = heap.map.boundary_before(part.start);
                // A block that was cut here began at a segment that is as before.
                let avma = heap.map.avma(boundary);
                let cut = self.blocks.forget_across(avma, &mut changes.removed);
                let start = cut.map_or(boundary, |it| heap.map.segment(it).min(boundary));
                let (found, end) = heap.map.blocks(&(start..part.end), left);
                changes.segments += part.start - boundary + end.saturating_sub(start);
                left = left.saturating_sub(found.len().max(1));
                let span = heap.map.avma(start)..heap.map.avma(end);
                let found = (&found[..], heap.known_ns);
                self.blocks.replace(&span, found, &mut changes.removed);
                heap.note_known(end);
            }
            // What a scan removes, the next one no longer knows: the rest of a change has no time.
            heap.known_ns = (!heap.is_changed()).then_some(read_ns);
        }
    }

    /// Notes and returns the blocks that the machine has freed.
    fn note_free(&mut self, scanned: &ScannedMachine<'_>) -> BTreeSet<u64> {
        let layout = &scanned.machine.layout.heaps;
        // Most were free before.
        let len = layout.header_len as usize + size_of::<u64>();
        let pieces: Vec<_> = self.blocks.vacant(HEADS_MAX).map(|start| (start, len)).collect();
        let pages = TargetPages::of_pieces(scanned.memory, &pieces);
        let free = scanned.heaps.iter().map(|heap| heap.free_blocks(layout, &pages, FREE_MAX));
        let free = free.flatten().collect();
        let read_ns = (self.clock.0)();
        self.blocks.note_free(&free, read_ns);
        free
    }

    /// Finds other code in blocks that are as before, but for these.
    fn compare_seals(
        &mut self,
        scanned: &ScannedMachine<'_>,
        free: &BTreeSet<u64>,
        changes: &mut CodeChanges,
    ) {
        let layout = &scanned.machine.layout;
        let bytes = BlockSeal::bytes(layout);
        let blocks = self.blocks.next_seals(SEALS_MAX, free);
        for some in blocks.chunks(HEADS_MAX) {
            let piece = |(start, end): &(u64, u64)| (*start, (end - start).min(bytes) as usize);
            let wanted: Vec<(u64, usize)> = some.iter().map(piece).collect();
            let pages = TargetPages::of_pieces(scanned.memory, &wanted);
            let read_ns = (self.clock.0)();
            for (start, _) in some {
                let seal = BlockSeal::read(layout, *start, &pages);
                changes.others += usize::from(self.blocks.compare(*start, &seal, read_ns));
            }
        }
    }

    /// Reads the blobs of blocks that are new, or may have changed, as far as the budget goes.
    fn read_wanted(
        &mut self,
        scanned: &ScannedMachine<'_>,
        left: &BudgetLeft,
        changes: &mut CodeChanges,
    ) {
        let mut wanted = self.blocks.take_wanted();
        while !wanted.is_empty() && !left.is_used_up(changes) {
            let rest = wanted.keys().nth(HEADS_MAX).copied();
            let rest = rest.map(|start| wanted.split_off(&start)).unwrap_or_default();
            let some = std::mem::replace(&mut wanted, rest);
            let piece =
                |(start, end): (&u64, &u64)| (*start, (end - start).min(HEAD_BYTES) as usize);
            let pieces: Vec<(u64, usize)> = some.iter().map(piece).collect();
            let pages = TargetPages::of_pieces(scanned.memory, &pieces);
            for (start, end) in some {
                let (blob, seal) = scanned.blob(&(start..end), &pages);
                let read_ns = (self.clock.0)();
                self.blocks.note_blob(start..end, (blob, seal), read_ns, &mut changes.removed);
            }
        }
        self.blocks.want(wanted);
    }

    /// Follows code that has no rules, or may have others, as far as the budget goes.
    fn follow_pending(
        &mut self,
        scanned: &ScannedMachine<'_>,
        demanded: &[u64],
        left: &BudgetLeft,
        changes: &mut CodeChanges,
    ) {
        let entered = self.entered.len();
        self.read_blocks(scanned, self.blocks.pending_at(demanded), left, changes);
        self.read_blocks(scanned, self.blocks.open(), left, changes);
        self.read_blocks(scanned, self.blocks.pending_stubs(), left, changes);
        if self.entered.len() != entered {
            // The functions to which thawed frames return are followed again.
            let stubs = self.blocks.reopen(has_barriers);
            self.read_blocks(scanned, stubs, left, changes);
        }
        let ahead = left.ahead();
        while !ahead.is_used_up(changes) {
            let some = self.blocks.pending_methods(BATCH_MAX);
            if some.is_empty() {
                break;
            }
            self.read_blocks(scanned, some, &ahead, changes);
        }
    }

    /// Follows the code of blocks, as far as the budget goes.
    fn read_blocks(
        &mut self,
        scanned: &ScannedMachine<'_>,
        mut wanted: BTreeMap<u64, u64>,
        left: &BudgetLeft,
        changes: &mut CodeChanges,
    ) {
        while !wanted.is_empty() && !left.is_used_up(changes) {
            let (mut some, mut bytes) = (Vec::new(), 0);
            while some.len() < BATCH_MAX && bytes < BATCH_BYTES_MAX {
                let Some((start, end)) = wanted.pop_first() else { break };
                bytes += (end - start).min(PIECE_MAX);
                some.push((start, end));
            }
            let piece = |(start, end): &(u64, u64)| (*start, (end - start).min(PIECE_MAX) as usize);
            let pieces: Vec<(u64, usize)> = some.iter().map(piece).collect();
            let pages = TargetPages::of_pieces(scanned.memory, &pieces);
            for (start, end) in some {
                if left.is_used_up(changes) {
                    return;
                }
                changes.blocks += 1;
                self.read_block(scanned, start..end, &pages, changes);
            }
        }
    }

    /// Follows the code of a block, unless it is what was followed before.
    fn read_block(
        &mut self,
        scanned: &ScannedMachine<'_>,
        block: Range<u64>,
        pages: &TargetPages<'_>,
        changes: &mut CodeChanges,
    ) {
        let (machine, layout) = (scanned.machine, &scanned.machine.layout);
        let (blob, seal) = scanned.blob(&block, pages);
        let read_ns = (self.clock.0)();
        let code = blob.as_ref().filter(|blob| blob.kind != BlobKind::Workspace);
        let bytes = code.and_then(|blob| blob.bytes(pages));
        if let (Some(blob), Some(bytes)) = (&blob, &bytes) {
            self.entered.note(blob, bytes);
        }
        let entered = blob.as_ref().filter(|blob| has_barriers(blob)).map(|_| &self.entered);
        let mut hasher = DefaultHasher::new();
        match (&bytes, blob.as_ref().and_then(|blob| blob.compiled.as_ref())) {
            (Some(bytes), Some(_)) => hash_method(bytes, &mut hasher),
            _ => bytes.hash(&mut hasher),
        }
        entered.hash(&mut hasher);
        let hash = hasher.finish();
        let known = self.blocks.get(block.start);
        if known.is_some_and(|known| known.hash == Some(hash) && known.blob == blob) {
            self.blocks.note_same(block.start, seal, read_ns);
            return;
        }
        let changed = known
            .filter(|known| known.blob == blob && known.hash.is_some())
            .map_or(0, |known| known.changed.saturating_add(1));
        let known = KnownBlock {
            end: block.end,
            blob: blob.clone(),
            arrival: self.blocks.arrival(block.start, blob.as_ref(), read_ns),
            seen_ns: read_ns,
            seal,
            hash: Some(hash),
            same: 0,
            changed,
        };
        let is_replaced = self.blocks.insert(block.start, known).is_some();
        let (Some(blob), Some(bytes)) = (blob, bytes) else {
            changes.removed.extend(is_replaced.then_some(block));
            return;
        };
        let code = BlobCode { machine, pages, blob: &blob, bytes: &bytes };
        let followed = code.follow(&self.entered);
        changes.instructions += if followed.is_cut { bytes.len() } else { followed.instructions };
        changes.unknown += followed.unknown;
        changes.cut += usize::from(followed.is_cut);
        let (start, length) = (blob.code.start, bytes.len() as u32);
        let identity = seal.identity(layout, &blob);
        changes.added.push(ScannedCode { block, start, length, identity, rows: followed.rows });
    }
}
