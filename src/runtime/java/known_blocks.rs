//! The blocks of the heaps of code that are known, and what tells whether they have other contents.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use traceprof_abi::unwind::code_heap::CodeIdentity;

use super::arrival::Arrival;
use super::blob::{BlobKind, CodeBlob};
use super::layout::MachineLayout;
use crate::runtime::pages::TargetPages;

/// Maximum number of blocks. 240 MB of code have a quarter of it.
const BLOCKS_MAX: usize = 1 << 18;
/// Number of scans with the same bytes as before after which code is taken to be complete.
const SAME_SCANS: u8 = 1;
/// Number of changes of the code of one blob after which it is no longer read in each scan.
const CHANGES_MAX: u8 = 8;

/// What a block says of its contents. It costs little to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct BlockSeal {
    is_used: bool,
    /// The address of the blob's name.
    name: u64,
    /// The number of the compilation, in the blob of a method.
    compile_id: u32,
}

impl BlockSeal {
    /// Number of bytes of a block that have it.
    pub(super) fn bytes(layout: &MachineLayout) -> u64 {
        let fields = [layout.blob.name.end(), layout.compiled.compile_id.end()];
        layout.heaps.header_len + fields[0].max(fields[1])
    }

    /// Reads the seal of a block. What is unreadable is zero.
    pub(super) fn read(layout: &MachineLayout, start: u64, pages: &TargetPages<'_>) -> Self {
        let contents = start.saturating_add(layout.heaps.header_len);
        let compile_id = layout.compiled.compile_id.read(pages, contents).unwrap_or(0);
        Self {
            is_used: layout.heaps.is_used.read(pages, start).is_some_and(|it| it != 0),
            name: layout.blob.name.read(pages, contents).unwrap_or(0),
            compile_id: compile_id as u32,
        }
    }

    /// Returns what tells the code of a blob with this seal from later code.
    pub(super) fn identity(&self, layout: &MachineLayout, blob: &CodeBlob) -> CodeIdentity {
        let (offset, value) = match blob.compiled {
            Some(compiled) => (layout.compiled.compile_id.at, compiled.compile_id),
            // Part of the address: no method has the name of a stub.
            None => (layout.blob.name.at, self.name as u32),
        };
        let at = blob.start.wrapping_add(offset);
        let used =
            offset.wrapping_add(layout.heaps.header_len).checked_sub(layout.heaps.is_used.at);
        match used.and_then(|used| u32::try_from(used).ok()) {
            Some(used_before) if at.is_multiple_of(4) => CodeIdentity { at, value, used_before },
            _ => CodeIdentity::default(),
        }
    }
}

/// A block that was read.
#[derive(Debug)]
pub(super) struct KnownBlock {
    pub(super) end: u64,
    /// `None` if the block is free, or has no possible blob.
    pub(super) blob: Option<CodeBlob>,
    pub(super) seal: BlockSeal,
    /// When the blob came. Without one, when that was first seen.
    pub(super) arrival: Arrival,
    /// When the block was last found to have this blob, or none, in CLOCK_MONOTONIC nanoseconds.
    pub(super) seen_ns: u64,
    /// A hash of all that the rules were made of. `None` if there are none yet.
    pub(super) hash: Option<u64>,
    /// Number of scans that have found the same since.
    pub(super) same: u8,
    /// How often the code of this blob has changed.
    pub(super) changed: u8,
}

impl KnownBlock {
    /// Whether the machine may still be writing the code.
    fn is_open(&self) -> bool {
        let has_rules = self.blob.is_some() && self.hash.is_some();
        has_rules && self.same < SAME_SCANS && self.changed < CHANGES_MAX
    }

    fn is_method(&self) -> bool {
        self.blob.as_ref().is_some_and(|blob| blob.kind == BlobKind::Compiled)
    }

    /// Returns when this blob came. `None` if the block had something else.
    fn arrival_of(&self, blob: &CodeBlob) -> Option<Arrival> {
        let is_same = self.blob.as_ref().is_some_and(|known| known.is_same(blob));
        is_same.then_some(self.arrival)
    }

    /// Returns when the block was last seen without code. `None` if it had code then.
    fn vacant_ns(&self) -> Option<u64> {
        self.blob.is_none().then_some(self.seen_ns)
    }

    /// Whether the contents are others than those that were read.
    fn is_other(&self, seal: &BlockSeal) -> bool {
        match &self.blob {
            Some(blob) if blob.compiled.is_some() => self.seal != *seal,
            // What no method has there may be anything.
            Some(_) => (self.seal.is_used, self.seal.name) != (seal.is_used, seal.name),
            None => self.seal.is_used != seal.is_used || seal.is_used && self.seal != *seal,
        }
    }
}

/// All blocks, by their starts.
#[derive(Debug, Default)]
pub(super) struct KnownBlocks {
    known: BTreeMap<u64, KnownBlock>,
    /// The ends of blocks whose blobs are to be read, by their starts: new ones, and known ones.
    wanted: BTreeMap<u64, u64>,
    /// The known ones whose code is to be followed: methods, and others.
    pending: BTreeSet<u64>,
    pending_stubs: BTreeSet<u64>,
    /// The known ones whose code may not be complete.
    open: BTreeSet<u64>,
    /// The known ones without a blob.
    vacant: BTreeSet<u64>,
    /// For each wanted block that is not known, when its place was last seen without code.
    fresh: BTreeMap<u64, Option<u64>>,
    /// The blocks that this scan has removed: their ends, and when each was last seen without code.
    gone: BTreeMap<u64, (u64, Option<u64>)>,
    /// Where the comparison of seals goes on.
    sealed: Option<u64>,
    /// Number of blocks for which there was no room.
    pub(super) left_out: usize,
}

impl KnownBlocks {
    pub(super) fn get(&self, start: u64) -> Option<&KnownBlock> {
        self.known.get(&start)
    }

    /// Returns when this blob was first seen where it is.
    pub(super) fn since_of(&self, blob: &CodeBlob) -> Option<u64> {
        let (_, block) = self.known.range(..=blob.start).next_back()?;
        block.arrival_of(blob).map(|it| it.since_ns)
    }

    /// Whether the code at an address was there at this time, if it is there now. See
    /// [`Arrival::is_before`].
    pub(super) fn was_there(&self, avma: u64, time_ns: u64, is_new: bool) -> bool {
        let block = self.known.range(..=avma).next_back().map(|(_, block)| block);
        block.is_some_and(|block| {
            avma < block.end && block.blob.is_some() && block.arrival.is_before(time_ns, is_new)
        })
    }

    /// Returns when a blob came that was read now.
    pub(super) fn arrival(&self, start: u64, blob: Option<&CodeBlob>, read_ns: u64) -> Arrival {
        let known = self.known.get(&start);
        let vacant_ns = match known {
            Some(known) => known.vacant_ns(),
            None => self.fresh.get(&start).copied().flatten(),
        };
        let before = known.zip(blob).and_then(|(known, blob)| known.arrival_of(blob));
        before.unwrap_or(Arrival { since_ns: read_ns, vacant_ns })
    }

    /// Begins a scan.
    pub(super) fn begin(&mut self) {
        self.gone.clear();
    }

    /// Whether blocks are to be read.
    pub(super) fn has_wanted(&self) -> bool {
        !self.wanted.is_empty() || self.pending().next().is_some()
    }

    /// Whether a later scan has something to do, even if nothing changes.
    pub(super) fn is_unsettled(&self) -> bool {
        self.has_wanted() || !self.open.is_empty() || self.sealed.is_some()
    }

    /// Adds a block that was read, and returns the one that it replaces.
    pub(super) fn insert(&mut self, start: u64, block: KnownBlock) -> Option<KnownBlock> {
        self.sort(start, &block);
        self.fresh.remove(&start);
        self.known.insert(start, block)
    }

    /// Notes that a block was found as before, with its seal, at this time.
    pub(super) fn note_same(&mut self, start: u64, seal: BlockSeal, seen_ns: u64) {
        let Some(mut block) = self.known.remove(&start) else { return };
        (block.same, block.seal) = (block.same.saturating_add(1), seal);
        block.seen_ns = seen_ns;
        self.sort(start, &block);
        self.known.insert(start, block);
    }

    fn sort(&mut self, start: u64, block: &KnownBlock) {
        let (is_pending, is_method) =
            (block.blob.is_some() && block.hash.is_none(), block.is_method());
        let sets = [
            (&mut self.open, block.is_open()),
            (&mut self.vacant, block.blob.is_none()),
            (&mut self.pending, is_pending && is_method),
            (&mut self.pending_stubs, is_pending && !is_method),
        ];
        for (set, is_in) in sets {
            if is_in {
                set.insert(start);
            } else {
                set.remove(&start);
            }
        }
    }

    /// Makes the next scan follow the code of a block, even if it is as before.
    pub(super) fn read_again(&mut self, start: u64) {
        if let Some(block) = self.known.get_mut(&start) {
            (block.hash, block.same) = (None, 0);
            self.open.remove(&start);
            self.set_pending(start);
        }
    }

    /// Takes the code of these blobs for incomplete. Returns the blocks.
    pub(super) fn reopen(&mut self, is_meant: impl Fn(&CodeBlob) -> bool) -> BTreeMap<u64, u64> {
        let mut found = BTreeMap::new();
        for (start, block) in &mut self.known {
            if block.blob.as_ref().is_some_and(&is_meant) {
                block.same = 0;
                self.open.insert(*start);
                found.insert(*start, block.end);
            }
        }
        found
    }

    /// Makes the next scan look whether code that is no method has changed. Some grows.
    pub(super) fn recheck_stubs(&mut self) {
        for (start, block) in &self.known {
            let is_stub =
                |blob: &CodeBlob| blob.compiled.is_none() && blob.kind != BlobKind::Workspace;
            if block.blob.as_ref().is_some_and(is_stub) {
                self.pending_stubs.insert(*start);
            }
        }
    }

    /// Forgets a known or wanted block that contains this address and begins before it. Returns its
    /// start.
    pub(super) fn forget_across(
        &mut self,
        avma: u64,
        removed: &mut Vec<Range<u64>>,
    ) -> Option<u64> {
        let known = self.known.range(..avma).next_back().map(|(start, block)| (*start, block.end));
        let wanted = self.wanted.range(..avma).next_back().map(|(start, end)| (*start, *end));
        let across = [known, wanted].into_iter().flatten().filter(|(_, end)| *end > avma);
        let (start, _) = across.min()?;
        self.remove(start, removed);
        Some(start)
    }

    fn remove(&mut self, start: u64, removed: &mut Vec<Range<u64>>) {
        let wanted = self.wanted.remove(&start);
        let fresh = self.fresh.remove(&start).flatten();
        for set in [&mut self.open, &mut self.vacant, &mut self.pending, &mut self.pending_stubs] {
            set.remove(&start);
        }
        let known = self.known.remove(&start);
        let before = known.as_ref().map(|block| (block.end, block.vacant_ns()));
        let before = before.or(wanted.map(|end| (end, fresh)));
        self.gone.extend(before.map(|before| (start, before)));
        removed.extend(known.map(|block| start..block.end));
    }

    /// Returns when the place of a block was last seen without code, before this scan. `map_ns` is
    /// the time of the last map of which all blocks are known.
    fn vacant_before(&self, (start, end): (u64, u64), map_ns: Option<u64>) -> Option<u64> {
        let before = self.gone.range(..end).rev();
        let mut across = before.take_while(|(_, (its_end, _))| *its_end > start);
        across.try_fold(map_ns?, |least, (_, (_, vacant_ns))| Some(least.min((*vacant_ns)?)))
    }

    /// Takes over the blocks that a span has now. `map_ns` is the time of the last map of which all
    /// blocks are known.
    pub(super) fn replace(
        &mut self,
        span: &Range<u64>,
        (found, map_ns): (&[(u64, u64)], Option<u64>),
        removed: &mut Vec<Range<u64>>,
    ) {
        let is_there = |block: &(u64, u64)| found.binary_search(block).is_ok();
        let known = self.known.range(span.clone()).map(|(start, block)| (*start, block.end));
        let wanted = self.wanted.range(span.clone()).map(|(start, end)| (*start, *end));
        let gone: Vec<(u64, u64)> = known.chain(wanted).filter(|block| !is_there(block)).collect();
        for (start, _) in gone {
            self.remove(start, removed);
        }
        for (start, end) in found {
            if self.known.contains_key(start) {
                continue;
            }
            if self.known.len() + self.wanted.len() < BLOCKS_MAX {
                if self.wanted.insert(*start, *end).is_none() {
                    let vacant_ns = self.vacant_before((*start, *end), map_ns);
                    self.fresh.insert(*start, vacant_ns);
                }
            } else {
                self.left_out += 1;
            }
        }
    }

    /// Takes the blocks whose blobs are to be read.
    pub(super) fn take_wanted(&mut self) -> BTreeMap<u64, u64> {
        std::mem::take(&mut self.wanted)
    }

    /// Gives back the blocks that were not read.
    pub(super) fn want(&mut self, blocks: BTreeMap<u64, u64>) {
        self.wanted.extend(blocks);
    }

    /// Wants the blobs of the known blocks to be read that contain one of these addresses.
    pub(super) fn want_at(&mut self, avmas: &[u64]) {
        let found = self.at(avmas).collect::<Vec<_>>();
        self.wanted.extend(found);
    }

    /// Returns the blocks that contain one of these addresses and whose code is to be followed.
    pub(super) fn pending_at(&self, avmas: &[u64]) -> BTreeMap<u64, u64> {
        let sets = [&self.pending, &self.pending_stubs];
        let is_pending = |(start, _): &(u64, u64)| sets.iter().any(|set| set.contains(start));
        self.at(avmas).filter(is_pending).collect()
    }

    fn at(&self, avmas: &[u64]) -> impl Iterator<Item = (u64, u64)> {
        avmas.iter().filter_map(|avma| {
            let (start, block) = self.known.range(..=*avma).next_back()?;
            (*avma < block.end).then_some((*start, block.end))
        })
    }

    /// Returns the blocks whose code may not be complete.
    pub(super) fn open(&self) -> BTreeMap<u64, u64> {
        self.open.iter().filter_map(|start| self.ends(*start)).collect()
    }

    /// Returns the blocks without a method whose code is to be followed.
    pub(super) fn pending_stubs(&self) -> BTreeMap<u64, u64> {
        self.pending_stubs.iter().filter_map(|start| self.ends(*start)).collect()
    }

    /// Returns the first blocks with a method whose code is to be followed.
    pub(super) fn pending_methods(&self, most: usize) -> BTreeMap<u64, u64> {
        self.pending.iter().take(most).filter_map(|start| self.ends(*start)).collect()
    }

    fn ends(&self, start: u64) -> Option<(u64, u64)> {
        Some((start, self.known.get(&start)?.end))
    }

    fn pending(&self) -> impl Iterator<Item = &u64> {
        self.pending.iter().chain(&self.pending_stubs)
    }

    fn set_pending(&mut self, start: u64) {
        let Some(block) = self.known.get(&start) else { return };
        let set = if block.is_method() { &mut self.pending } else { &mut self.pending_stubs };
        set.insert(start);
    }

    /// Notes the blob of a block that was read at this time, and wants its code to be followed. The
    /// rules of another one are gone.
    pub(super) fn note_blob(
        &mut self,
        block: Range<u64>,
        (blob, seal): (Option<CodeBlob>, BlockSeal),
        read_ns: u64,
        removed: &mut Vec<Range<u64>>,
    ) {
        let start = block.start;
        if let Some(known) = self.known.get_mut(&start).filter(|known| known.blob == blob) {
            let is_other = known.seal != seal;
            (known.seal, known.seen_ns) = (seal, read_ns);
            if is_other && blob.is_some() {
                self.set_pending(start);
            }
            return;
        }
        let arrival = self.arrival(start, blob.as_ref(), read_ns);
        let (end, hash, same, changed) = (block.end, None, 0, 0);
        let known = KnownBlock { end, blob, seal, arrival, seen_ns: read_ns, hash, same, changed };
        let before = self.insert(start, known);
        removed.extend(before.filter(|before| before.hash.is_some()).map(|_| block));
    }

    /// Makes this scan and the next ones compare the seals of all blocks.
    pub(super) fn begin_seals(&mut self) {
        self.sealed.get_or_insert(0);
    }

    /// Whether the seals of all blocks are being compared.
    pub(super) fn compares_seals(&self) -> bool {
        self.sealed.is_some()
    }

    /// Returns the first blocks without a blob.
    pub(super) fn vacant(&self, most: usize) -> impl Iterator<Item = u64> {
        self.vacant.iter().take(most).copied()
    }

    /// Notes blocks that were free at this time.
    pub(super) fn note_free(&mut self, starts: &BTreeSet<u64>, seen_ns: u64) {
        for start in starts {
            match self.known.get_mut(start) {
                Some(block) if block.blob.is_none() => block.seen_ns = seen_ns,
                Some(block) => drop(self.wanted.insert(*start, block.end)),
                None => {}
            }
        }
    }

    /// Returns blocks whose seals are to be compared now, at most so many: all, one part after the
    /// other, or those without a blob but these.
    pub(super) fn next_seals(&mut self, most: usize, free: &BTreeSet<u64>) -> Vec<(u64, u64)> {
        let Some(from) = self.sealed else {
            if self.vacant.len() > most {
                self.begin_seals();
            }
            let vacant = self.vacant.iter().filter(|start| !free.contains(start));
            return vacant.take(most).filter_map(|start| self.ends(*start)).collect();
        };
        let blocks = self.known.range(from..).take(most);
        let blocks: Vec<_> = blocks.map(|(start, block)| (*start, block.end)).collect();
        self.sealed = blocks.last().map(|(start, _)| start + 1).filter(|_| blocks.len() == most);
        blocks
    }

    /// Wants a block to be read if this is not its seal, which was read before this time. Returns
    /// whether the block had code that is not there any more.
    pub(super) fn compare(&mut self, start: u64, seal: &BlockSeal, seen_ns: u64) -> bool {
        let Some(block) = self.known.get_mut(&start) else { return false };
        if !block.is_other(seal) {
            block.seen_ns = seen_ns;
            return false;
        }
        self.wanted.insert(start, block.end);
        block.blob.is_some()
    }
}
