//! Scans of the heaps of code: what a machine has generated since the last one, with its unwind
//! rules.
//!
//! # Invariants
//! - Code is followed again until two scans have found the same bytes: the machine may have been
//!   writing it.
//! - What one machine can make a scan do is bounded by the size of its heaps.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

use traceprof_abi::unwind::Rule;
use traceprof_abi::unwind::code_heap::{HeapSpan, InterpreterLayout};
use traceprof_abi::unwind::rule::{fp_op, op};

use super::blob::{BlobKind, CodeBlob};
use super::code_layout::offset_in;
use super::follow::{Deoptimized, Followed, GeneratedCode, GeneratedKind, follow};
use super::heaps::{CodeHeap, code_heaps};
use super::machine::JavaMachine;
use super::pages::TargetPages;
use super::segment_map::SegmentMap;
use super::thaw::add_thaw_rules;
use crate::runtime::memory::TargetMemory;

/// Longest code of a blob in bytes.
const CODE_MAX: u64 = 4 << 20;
/// Number of scans with the same bytes after which code is taken to be complete.
const SAME_SCANS: u8 = 2;
/// `mov rsp, [r15 + offset]`: how the functions begin to which thawed frames return. The offset is
/// where a thread has the frame that entered its virtual thread.
const BARRIER: [u8; 3] = [0x49, 0x8b, 0xa7];
/// `mov [r15 + offset], rsp`: how that frame is made.
const ENTER: [u8; 3] = [0x49, 0x89, 0xa7];
/// Maximum number of different offsets in [`ENTER`].
const ENTERED_MAX: usize = 64;
/// Length of either instruction: an offset of four bytes follows.
const MOVE_LEN: usize = 7;

/// Code with its unwind rules. Addresses are AVMAs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScannedCode {
    /// The block of a heap that has the code.
    pub block: Range<u64>,
    /// The first instruction.
    pub start: u64,
    /// Length in bytes.
    pub length: u32,
    /// Rules and the offsets from which on they apply.
    pub rows: Vec<(u32, Rule)>,
}

/// What changed since the last scan.
#[derive(Debug, Default)]
pub struct CodeChanges {
    /// Blocks that are not there any more, or have no code.
    pub removed: Vec<Range<u64>>,
    /// New code.
    pub added: Vec<ScannedCode>,
    /// Whether anything is new, or was not settled yet.
    pub has_news: bool,
    /// Number of followed instructions, and of those without a rule.
    pub instructions: usize,
    /// Number of these without a rule.
    pub unknown: usize,
    /// Number of pieces of code that took too much work.
    pub cut: usize,
}

/// How much a scan reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanDepth {
    /// The maps of segments: new blocks are found, and blocks that were freed.
    Maps,
    /// Also the description of each block: other code in a block of the same size is found.
    Blocks,
}

/// The code of a machine that was scanned.
#[derive(Debug, Default)]
pub struct CodeScan {
    /// The blocks by their starts.
    known: BTreeMap<u64, KnownBlock>,
    /// The maps of the last scan.
    maps: Vec<SegmentMap>,
    /// Native methods that store the stack pointer in the thread, by the offset there. One of them
    /// enters virtual threads.
    entered: BTreeMap<[u8; 4], EnteredThread>,
}

/// A native method that may enter virtual threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct EnteredThread {
    /// An address in its body.
    pc: u64,
    /// The size of its frame.
    words: i16,
}

impl EnteredThread {
    fn of(blob: &CodeBlob) -> Option<Self> {
        // Frames are found by the byte before the address to which they return.
        let pc = blob.frame_complete?.checked_add(1)?;
        Some(Self { pc, words: i16::try_from(blob.frame_words).ok()? })
    }
}

/// Returns the places of these instructions in code, and their offsets.
fn moves(bytes: &[u8], opcode: [u8; 3]) -> impl Iterator<Item = (usize, [u8; 4])> {
    bytes.windows(MOVE_LEN).enumerate().filter_map(move |(at, bytes)| {
        let (begin, offset) = bytes.split_first_chunk::<3>()?;
        Some((at, *offset.first_chunk()?)).filter(|_| *begin == opcode)
    })
}

impl KnownBlock {
    /// Whether thawed frames of virtual threads return to functions of this blob.
    fn has_barriers(&self) -> bool {
        self.blob.as_ref().is_some_and(has_barriers)
    }
}

fn has_barriers(blob: &CodeBlob) -> bool {
    blob.kind == BlobKind::Stub && blob.name.contains("ontinuation")
}

#[derive(Debug)]
struct KnownBlock {
    end: u64,
    blob: Option<CodeBlob>,
    hash: u64,
    same: u8,
}

impl JavaMachine {
    /// Returns the addresses of the heaps of code, in the order of [`Self::code`].
    pub fn heap_spans(&self, memory: &dyn TargetMemory) -> Vec<HeapSpan> {
        let heaps = code_heaps(&self.layout.heaps, &TargetPages::of(memory)).unwrap_or_default();
        let span = |heap: &CodeHeap| HeapSpan {
            low: heap.reserved.start,
            high: heap.reserved.end,
            shift: heap.shift,
        };
        heaps.iter().map(span).collect()
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
    ) -> CodeChanges {
        let pages = TargetPages::of(memory);
        let mut changes = CodeChanges::default();
        let layout = &machine.layout.heaps;
        let Some(heaps) = code_heaps(layout, &pages) else { return changes };
        let maps = heaps.iter().map(|heap| SegmentMap::read(heap, &pages));
        // A process that ends has no maps any more. What was known stays.
        let Some(maps) = maps.collect::<Option<Vec<_>>>() else { return changes };
        let mut wanted = self.update(&maps, &mut changes);
        self.maps = maps;
        let is_open = |known: &KnownBlock| known.blob.is_some() && known.same < SAME_SCANS;
        // A machine may use a free block again without a change of the map.
        let is_wanted = |known: &KnownBlock| match depth {
            ScanDepth::Maps => is_open(known) || known.blob.is_none(),
            ScanDepth::Blocks => true,
        };
        changes.has_news = !wanted.is_empty() || self.known.values().any(is_open);
        let known = self.known.iter().filter(|(_, known)| is_wanted(known));
        wanted.extend(known.map(|(start, known)| (*start, known.end)));
        let entered = self.entered.len();
        for (start, end) in wanted {
            let block = start..end;
            let known = self.known.get(&start);
            let is_settled = known.is_some_and(|it| it.same >= SAME_SCANS || it.blob.is_none());
            let blob = heap_contents(&heaps, &block, machine, &pages);
            let is_same = known.is_some_and(|it| it.blob == blob);
            if is_settled && is_same {
                continue;
            }
            self.follow((machine, &pages), block, blob, &mut changes);
        }
        if self.entered.len() != entered {
            // The functions to which thawed frames return are followed again.
            let stubs = self.known.iter().filter(|(_, known)| known.has_barriers());
            let stubs: Vec<_> = stubs.map(|(at, it)| (*at..it.end, it.blob.clone())).collect();
            for (block, blob) in stubs {
                self.follow((machine, &pages), block, blob, &mut changes);
            }
        }
        changes.has_news |= !changes.removed.is_empty() || !changes.added.is_empty();
        changes
    }

    /// Forgets blocks that are not in the maps any more, and returns new ones.
    fn update(&mut self, maps: &[SegmentMap], changes: &mut CodeChanges) -> BTreeMap<u64, u64> {
        let mut new = BTreeMap::new();
        for (number, map) in maps.iter().enumerate() {
            let span = match self.maps.get(number) {
                Some(before) => map.changed_since(before),
                None => Some(map.span()),
            };
            let Some(span) = span else { continue };
            let found: BTreeMap<u64, u64> = map.blocks(&span).into_iter().collect();
            let known: Vec<(u64, u64)> =
                self.known.range(span).map(|(start, known)| (*start, known.end)).collect();
            for (start, end) in known {
                if found.get(&start) != Some(&end) {
                    self.known.remove(&start);
                    changes.removed.push(start..end);
                }
            }
            new.extend(found.into_iter().filter(|(start, _)| !self.known.contains_key(start)));
        }
        new
    }

    /// Follows the code of a block, unless it is what was followed before.
    fn follow(
        &mut self,
        (machine, pages): (&JavaMachine, &TargetPages<'_>),
        block: Range<u64>,
        blob: Option<CodeBlob>,
        changes: &mut CodeChanges,
    ) {
        let bytes = blob.as_ref().and_then(|blob| code_of(blob, pages));
        if let (Some(blob), Some(bytes)) = (&blob, &bytes) {
            self.find_entered(blob, bytes);
        }
        let entered = blob.as_ref().filter(|blob| has_barriers(blob)).map(|_| &self.entered);
        let mut hasher = DefaultHasher::new();
        (&bytes, entered).hash(&mut hasher);
        let hash = hasher.finish();
        if let Some(known) = self.known.get_mut(&block.start)
            && known.hash == hash
            && known.blob == blob
        {
            known.same = known.same.saturating_add(1);
            return;
        }
        let known = KnownBlock { end: block.end, blob: blob.clone(), hash, same: 0 };
        let is_replaced = self.known.insert(block.start, known).is_some();
        let (Some(blob), Some(bytes)) = (blob, bytes) else {
            changes.removed.extend(is_replaced.then_some(block));
            return;
        };
        let code = BlobCode { machine, pages, blob: &blob, bytes: &bytes };
        let followed = code.follow(&self.entered);
        changes.instructions += followed.instructions;
        changes.unknown += followed.unknown;
        changes.cut += usize::from(followed.is_cut);
        let (start, length) = (blob.code.start, bytes.len() as u32);
        changes.added.push(ScannedCode { block, start, length, rows: followed.rows });
    }
}

impl CodeScan {
    /// Keeps a native method that may be the one that enters virtual threads. There are two offsets
    /// at most: the other one is that of the last frame of Java.
    fn find_entered(&mut self, blob: &CodeBlob, bytes: &[u8]) {
        if blob.kind != BlobKind::NativeWrapper {
            return;
        }
        for (_, offset) in moves(bytes, ENTER) {
            if let Some(entered) = EnteredThread::of(blob)
                && self.entered.len() < ENTERED_MAX
            {
                self.entered.entry(offset).or_insert(entered);
            }
        }
    }
}

/// Returns the blob in a block, if the block is used and has a possible one.
fn heap_contents(
    heaps: &[CodeHeap],
    block: &Range<u64>,
    machine: &JavaMachine,
    pages: &TargetPages<'_>,
) -> Option<CodeBlob> {
    let layout = &machine.layout;
    let heap = heaps.iter().find(|heap| heap.reserved.contains(&block.start))?;
    let contents = heap.block_at(block.start, &layout.heaps, pages)?;
    CodeBlob::read(layout, &contents, pages)
}

fn code_of(blob: &CodeBlob, pages: &TargetPages<'_>) -> Option<Vec<u8>> {
    let len = blob.code.end.checked_sub(blob.code.start).filter(|len| *len <= CODE_MAX)?;
    pages.bytes(blob.code.start, len as usize)
}

/// The code of a blob that is to be followed.
struct BlobCode<'a> {
    machine: &'a JavaMachine,
    pages: &'a TargetPages<'a>,
    blob: &'a CodeBlob,
    bytes: &'a [u8],
}

impl BlobCode<'_> {
    fn follow(&self, entered: &BTreeMap<[u8; 4], EnteredThread>) -> Followed {
        match self.blob.kind {
            BlobKind::Interpreter => self.interpreter(),
            BlobKind::Compiled | BlobKind::NativeWrapper => self.method(),
            _ => {
                let kind = kind_of(self.blob);
                let entries = match kind {
                    GeneratedKind::Stubs => {
                        self.machine.entries.stub_entries(&self.blob.code, self.pages)
                    }
                    _ => Vec::new(),
                };
                let mut followed = follow(&GeneratedCode { entries: &entries, ..self.plain(kind) });
                if has_barriers(self.blob) {
                    self.add_barriers(&mut followed, entered);
                }
                followed
            }
        }
    }

    fn plain(&self, kind: GeneratedKind) -> GeneratedCode<'_> {
        GeneratedCode {
            kind,
            start: self.blob.code.start,
            bytes: self.bytes,
            frame_words: self.blob.frame_words,
            frame_complete: None,
            entries: &[],
            deoptimized: Deoptimized::default(),
        }
    }

    fn method(&self) -> Followed {
        let (blob, layout) = (self.blob, &self.machine.entries);
        let entries = layout.method_entries(blob.start, &blob.code, self.pages);
        let handlers = blob.compiled.iter().flat_map(|it| it.deopt_handlers).flatten();
        let handlers: Vec<u32> = handlers.filter_map(|it| offset_in(&blob.code, it)).collect();
        let original = layout.original_pc.count(self.pages, blob.start);
        let words = original.and_then(|bytes| i16::try_from(bytes / 8).ok());
        let has_frame = blob.frame_words > 0;
        let complete = blob.frame_complete.filter(|_| has_frame);
        follow(&GeneratedCode {
            frame_complete: complete.and_then(|it| offset_in(&blob.code, it)),
            entries: &entries,
            deoptimized: Deoptimized {
                handlers: &handlers,
                original_words: words.unwrap_or_default(),
            },
            ..self.plain(GeneratedKind::Method)
        })
    }

    fn interpreter(&self) -> Followed {
        let mut all = Followed { rows: vec![(0, Rule::BAD)], ..Followed::default() };
        let mut end = 0;
        for part in self.machine.entries.interpreter_parts(self.pages) {
            let code = &self.blob.code;
            let (Some(first), Some(last)) =
                (offset_in(code, part.code.start), offset_in(code, part.code.end - 1))
            else {
                continue;
            };
            let Some(bytes) = self.bytes.get(first as usize..=last as usize) else { continue };
            if first < end {
                continue;
            }
            let kind = match part.is_entry {
                true => GeneratedKind::InterpreterEntry,
                false => GeneratedKind::Interpreter,
            };
            let followed = follow(&GeneratedCode {
                start: part.code.start,
                bytes,
                frame_words: 0,
                ..self.plain(kind)
            });
            all.instructions += followed.instructions;
            all.unknown += followed.unknown;
            all.is_cut |= followed.is_cut;
            all.rows.retain(|(offset, _)| *offset < first);
            // Frames are found by the byte before the address to which they return. That may be
            // the first one of a part.
            let lead = followed.rows.first().filter(|_| first > end && !part.is_entry);
            all.rows.extend(lead.map(|(_, rule)| (first - 1, *rule)));
            all.rows.extend(followed.rows.iter().map(|(offset, rule)| (offset + first, *rule)));
            end = last + 1;
            all.rows.push((end, Rule::BAD));
        }
        all
    }

    /// Adds the rules of the functions to which thawed frames of virtual threads return.
    fn add_barriers(&self, followed: &mut Followed, entered: &BTreeMap<[u8; 4], EnteredThread>) {
        for (at, offset) in moves(self.bytes, BARRIER) {
            let barrier = self.blob.code.start + at as u64;
            let Some(EnteredThread { pc, words }) = entered.get(&offset) else { continue };
            let distance = i32::try_from(pc.wrapping_sub(barrier) as i64);
            if let (Ok(distance), Some(before)) = (distance, (at as u32).checked_sub(1)) {
                let rule = Rule { fp_op: fp_op::AT_FP, ..Rule::plain(op::RETURN_BARRIER) };
                // Frames are found by the byte before the address to which they return.
                followed.insert_byte(before, Rule { fp_off: *words, cfa_off: distance, ..rule });
            }
        }
        let offsets = moves(self.bytes, BARRIER).map(|(_, offset)| offset);
        if let Some(EnteredThread { pc, words }) = offsets.filter_map(|it| entered.get(&it)).next()
        {
            let entered = pc.wrapping_sub(self.blob.code.start) as i64;
            add_thaw_rules(followed, self.bytes, entered, *words);
        }
    }
}

/// Returns the kind of a blob that is neither the interpreter nor a method.
fn kind_of(blob: &CodeBlob) -> GeneratedKind {
    // Names before 25 and since: `ExceptionBlob`, `C2 Runtime exception_blob`.
    let name = blob.name.to_ascii_lowercase().replace(['_', ' '], "");
    match blob.kind {
        BlobKind::Adapter => GeneratedKind::Adapter,
        BlobKind::TableStub => GeneratedKind::VirtualCall,
        _ if name.starts_with("stubroutines") => GeneratedKind::Stubs,
        _ if name.starts_with("methodhandlesadapters") => GeneratedKind::MethodHandles,
        // Called by the interpreter for the arguments of native methods. They have no frame.
        _ if name.contains("signaturehandlers") => GeneratedKind::VirtualCall,
        // Jumps to methods with what they check first, until 22.
        _ if name.contains("inlinecachebuffer") => GeneratedKind::VirtualCall,
        _ if name.contains("exceptionblob") => GeneratedKind::Exception,
        _ if name.contains("deoptimizationblob") || name.contains("uncommontrapblob") => {
            GeneratedKind::Deoptimization
        }
        _ if name.contains("forwardexception") => GeneratedKind::FramedStub,
        _ => GeneratedKind::RuntimeStub,
    }
}
