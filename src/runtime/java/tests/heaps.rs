//! Scans of heaps that a test has made, in the layout of a real machine.

mod arrivals;
mod work;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::time::Duration;

use super::machines::{JavaProgram, machines};
use crate::proc::monotonic_ns;
use crate::runtime::TargetMemory;
use crate::runtime::java::layout::Place;
use crate::runtime::java::tables::Field;
use crate::runtime::java::{CodeChanges, CodeScan, JavaMachine, ScanBudget, ScanDepth};

const PAGE: u64 = 4096;
const NAMES: u64 = 0x1_0000;
const ARRAY: u64 = 0x2_0000;
/// Where heaps are described, 4096 bytes each.
const HEAPS: u64 = 0x10_0000;
const MAPS: u64 = 0x10_0000_0000;
const LOW: u64 = 0x20_0000_0000;
const SHIFT: u32 = 7;
/// Offset of the code in a block.
const CODE: u64 = 1024;

/// Code with a frame of four words, and with one of six.
const FOUR: &[u8] = &[0x55, 0x48, 0x83, 0xec, 0x10, 0x90, 0x48, 0x83, 0xc4, 0x10, 0x5d, 0xc3];
const SIX: &[u8] = &[0x55, 0x48, 0x83, 0xec, 0x20, 0x90, 0x48, 0x83, 0xc4, 0x20, 0x5d, 0xc3];
/// Offset of the first instruction of a complete frame.
const COMPLETE: u64 = 5;

const BUDGET: ScanBudget = ScanBudget {
    blocks: 1 << 15,
    instructions: 1 << 19,
    time: Duration::from_millis(20),
    ahead: Duration::from_millis(20),
};

/// Memory that a test has made.
struct FakeMemory {
    machine: JavaMachine,
    pages: RefCell<HashMap<u64, Vec<u8>>>,
    /// Memory that has the same bytes in each page, and its own number at this offset.
    repeated: Option<(Range<u64>, Vec<u8>, usize)>,
    /// What was read of it.
    reads: Cell<Reads>,
}

/// How often memory was read, and how many bytes of it.
#[derive(Debug, Clone, Copy, Default)]
struct Reads {
    count: usize,
    bytes: usize,
}

impl TargetMemory for FakeMemory {
    fn read(&self, avma: u64, into: &mut [u8]) -> usize {
        let Reads { count, bytes } = self.reads.get();
        self.reads.set(Reads { count: count + 1, bytes: bytes + into.len() });
        let (pages, mut done) = (self.pages.borrow(), 0);
        while done < into.len() {
            let at = avma + done as u64;
            let mut own;
            let page = match (pages.get(&(at / PAGE)), &self.repeated) {
                (Some(page), _) => page,
                (None, Some((span, page, number))) if span.contains(&at) => {
                    own = page.clone();
                    own[*number..number + 4].copy_from_slice(&(at as u32 / 4096).to_le_bytes());
                    &own
                }
                _ => break,
            };
            let rest = &page[(at % PAGE) as usize..];
            let len = rest.len().min(into.len() - done);
            into[done..done + len].copy_from_slice(&rest[..len]);
            done += len;
        }
        done
    }
}

impl FakeMemory {
    fn of(machine: JavaMachine) -> Self {
        let (pages, reads) = (RefCell::default(), Cell::default());
        let memory = Self { machine, pages, repeated: None, reads };
        memory.put(NAMES, b"nmethod\0");
        memory.put(NAMES + 64, b"a stub\0");
        memory
    }

    fn put(&self, avma: u64, bytes: &[u8]) {
        let mut pages = self.pages.borrow_mut();
        for (at, byte) in (avma..).zip(bytes) {
            let page = pages.entry(at / PAGE).or_insert_with(|| vec![0; PAGE as usize]);
            page[(at % PAGE) as usize] = *byte;
        }
    }

    fn set(&self, start: u64, field: Field, value: u64) {
        let len = (field.end() - field.at) as usize;
        self.put(start + field.at, &value.to_le_bytes()[..len]);
    }

    fn set_place(&self, start: u64, place: Place, avma: u64) {
        match place {
            Place::Pointer(field) => self.set(start, field, avma),
            Place::Offset(field) => self.set(start, field, avma - start),
        }
    }

    /// Makes heaps of these maps: one behind the other, each with room for its map.
    fn make_heaps(&self, maps: &[&[u8]], shift: u32) {
        let layout = self.machine.layout.heaps;
        let at = |number: usize| HEAPS + number as u64 * PAGE;
        match layout.array {
            Some((len, elements)) => {
                self.put(layout.heaps, &ARRAY.to_le_bytes());
                self.set(ARRAY, len, maps.len() as u64);
                self.set(ARRAY, elements, ARRAY + 512);
                for number in 0..maps.len() {
                    self.put(ARRAY + 512 + number as u64 * 8, &at(number).to_le_bytes());
                }
            }
            None => self.put(layout.heaps, &at(0).to_le_bytes()),
        }
        let mut low = LOW;
        for (number, map) in maps.iter().enumerate() {
            let (heap, high) = (at(number), low + ((map.len() as u64) << shift));
            let place = MAPS + (low - LOW);
            self.set(heap, layout.low, low);
            self.set(heap, layout.high, high);
            self.set(heap, layout.reserved_end, high);
            self.set(heap, layout.segment_shift, u64::from(shift));
            self.set(heap, layout.segment_map, place);
            let mut pages = self.pages.borrow_mut();
            for (page, bytes) in map.chunks(PAGE as usize).enumerate() {
                let mut bytes = bytes.to_vec();
                bytes.resize(PAGE as usize, 0);
                pages.insert(place / PAGE + page as u64, bytes);
            }
            low = high;
        }
        self.count_blocks();
    }

    /// Changes what a machine keeps of a heap whose blocks change.
    fn count_blocks(&self) {
        let at = HEAPS + self.machine.layout.heaps.heap_len.unwrap() as u64 - 24;
        let page = self.pages.borrow().get(&(at / PAGE)).cloned().unwrap_or_default();
        let count = page.get((at % PAGE) as usize).copied().unwrap_or_default();
        self.put(at, &[count.wrapping_add(1)]);
    }

    /// Makes a method of a number in the block of so many segments.
    fn make_method(
        &self,
        (block, segments): (u64, u64),
        number: u32,
        (code, frame_words): (&[u8], u64),
    ) {
        let layout = self.machine.layout;
        self.set(block, layout.heaps.block_len, segments);
        self.set(block, layout.heaps.is_used, 1);
        let blob = block + layout.heaps.header_len;
        let start = block + CODE;
        self.set(blob, layout.blob.name, NAMES);
        let len = (segments << SHIFT) - layout.heaps.header_len;
        self.set(blob, layout.blob.len, len);
        self.set_place(blob, layout.blob.code_start, start);
        self.set_place(blob, layout.blob.code_end, start + code.len() as u64);
        self.set(blob, layout.blob.frame_size, frame_words);
        self.set(blob, layout.blob.frame_complete, COMPLETE);
        self.set(blob, layout.compiled.method, 0x4000_0000);
        self.set(blob, layout.compiled.compile_id, u64::from(number));
        self.put(start, code);
    }

    /// Frees or uses a block. The machine notes that in the description of the heap.
    fn use_block(&self, block: u64, is_used: bool, number: u64) {
        self.set(block, self.machine.layout.heaps.is_used, u64::from(is_used));
        self.note_change(number);
    }

    /// Changes what tells that a block was allocated or freed.
    fn note_change(&self, number: u64) {
        let len = self.machine.layout.heaps.heap_len.unwrap() as u64;
        self.put(HEAPS + len - 8, &number.to_le_bytes());
    }

    fn scan(&self, scan: &mut CodeScan, depth: ScanDepth) -> CodeChanges {
        scan.scan(&self.machine, self, depth, BUDGET)
    }

    /// Scans until nothing is new, and returns all code by its start.
    fn settle(&self, scan: &mut CodeScan) -> BTreeMap<u64, u32> {
        let mut found = BTreeMap::new();
        for _ in 0..1000 {
            let changes = self.scan(scan, ScanDepth::Maps);
            for code in &changes.added {
                let before = found.insert(code.start, code.identity.value);
                assert_eq!(before, None, "followed twice without a change");
            }
            if !changes.has_news {
                return found;
            }
        }
        panic!("it never settles");
    }
}

/// Returns the layouts of the first and the last known version.
fn memories() -> Vec<FakeMemory> {
    let mut all = machines();
    let first = (all.len() > 1).then(|| all.remove(0));
    let both = first.into_iter().chain(all.pop());
    both.map(|(_, launcher)| {
        let program = JavaProgram::start(&launcher, &[], 0);
        FakeMemory::of(program.machine().0)
    })
    .collect()
}

/// The map of a heap with a free part between two blocks of sixteen segments.
fn two_blocks() -> Vec<u8> {
    let block: Vec<u8> = (0..16).collect();
    [&block[..], &[0xff; 8], &block].concat()
}

fn segments(blocks: &[Range<u64>]) -> Vec<(u64, u64)> {
    let segment = |avma: u64| (avma - LOW) >> SHIFT;
    blocks.iter().map(|block| (segment(block.start), segment(block.end))).collect()
}

const SECOND: u64 = LOW + (24 << SHIFT);

#[test]
fn other_code_in_a_block_of_the_same_size_is_found() {
    for memory in memories() {
        memory.make_heaps(&[&two_blocks()], SHIFT);
        memory.make_method((LOW, 16), 7, (FOUR, 4));
        memory.make_method((SECOND, 16), 8, (SIX, 6));
        let mut scan = CodeScan::default();
        let found = memory.settle(&mut scan);
        assert_eq!(found, [(LOW + CODE, 7), (SECOND + CODE, 8)].into());
        memory.scan(&mut scan, ScanDepth::Seals);
        // Other code of the same size. The maps and the description of the heap are as before.
        memory.make_method((LOW, 16), 9, (SIX, 6));
        let changes = memory.scan(&mut scan, ScanDepth::Maps);
        assert!(changes.added.is_empty() && !changes.has_moved, "no map tells");
        let changes = memory.scan(&mut scan, ScanDepth::Seals);
        let [code] = &changes.added[..] else { panic!("{changes:?}") };
        assert_eq!((code.start, code.identity.value), (LOW + CODE, 9));
        let offset = memory.machine.layout.compiled.compile_id.at;
        assert_eq!(code.identity.at, LOW + memory.machine.layout.heaps.header_len + offset);
        let [.., before, _] = &code.rows[..] else { panic!("{code:?}") };
        assert!(code.rows.iter().any(|(_, rule)| rule.cfa_off == 48), "{before:?}");
        assert!(memory.settle(&mut scan).is_empty());
        // The description says that something has changed.
        memory.note_change(1);
        assert!(memory.scan(&mut scan, ScanDepth::Maps).has_moved);
        memory.scan(&mut scan, ScanDepth::Seals);
        assert!(!memory.scan(&mut scan, ScanDepth::Maps).has_moved);
    }
}

/// What a sample has is followed at once, and the rest in the time that is left.
#[test]
fn new_code_is_noted_at_once_and_followed_where_that_is_demanded() {
    for memory in memories() {
        memory.make_heaps(&[&two_blocks()], SHIFT);
        memory.make_method((LOW, 16), 7, (FOUR, 4));
        memory.make_method((SECOND, 16), 8, (SIX, 6));
        let mut scan = CodeScan::default();
        let budget = ScanBudget { ahead: Duration::ZERO, ..BUDGET };
        let scan_now = |scan: &mut CodeScan| {
            let changes = scan.scan(&memory.machine, &memory, ScanDepth::Maps, budget);
            assert!(changes.has_news);
            changes.added.iter().map(|code| code.identity.value).collect::<Vec<_>>()
        };
        assert!(scan_now(&mut scan).is_empty());
        let now = monotonic_ns();
        assert!([LOW, SECOND].iter().all(|block| scan.was_there(block + CODE, now, false)));
        scan.demand([SECOND + CODE + 1, LOW - 1, SECOND + (16 << SHIFT), u64::MAX]);
        assert_eq!(scan_now(&mut scan), [8]);
        assert!(scan_now(&mut scan).is_empty());
        assert_eq!(memory.settle(&mut scan), [(LOW + CODE, 7)].into());
    }
}

#[test]
fn code_in_which_the_machine_sets_targets_is_followed_once() {
    // Two calls with a class each, whose targets the machine sets when they first run.
    let class = [0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8, 0xe8, 1, 2, 3, 4];
    let code = [&FOUR[..6], &class, &class, &FOUR[6..]].concat();
    for memory in memories() {
        memory.make_heaps(&[&two_blocks()], SHIFT);
        memory.make_method((LOW, 16), 7, (&code, 4));
        let mut scan = CodeScan::default();
        let first = memory.scan(&mut scan, ScanDepth::Maps);
        let added = |changes: &CodeChanges| {
            changes.added.iter().filter(|code| code.start == LOW + CODE).count()
        };
        assert_eq!(added(&first), 1);
        let mut changed = code.clone();
        changed[21] = 0x50;
        memory.put(LOW + CODE, &changed);
        assert_eq!(added(&memory.scan(&mut scan, ScanDepth::Maps)), 1, "another instruction");
        changed[8..16].fill(0x90);
        changed[17..21].fill(0xe8);
        memory.put(LOW + CODE, &changed);
        assert_eq!(added(&memory.scan(&mut scan, ScanDepth::Maps)), 0, "the rules are the same");
    }
}

#[test]
fn blocks_that_were_free_are_found_when_they_are_used() {
    for memory in memories() {
        memory.make_heaps(&[&two_blocks()], SHIFT);
        memory.make_method((LOW, 16), 7, (FOUR, 4));
        memory.make_method((SECOND, 16), 8, (SIX, 6));
        let mut scan = CodeScan::default();
        memory.settle(&mut scan);
        memory.use_block(LOW, false, 1);
        let changes = memory.scan(&mut scan, ScanDepth::Seals);
        assert_eq!(segments(&changes.removed), [(0, 16)]);
        assert!(memory.settle(&mut scan).is_empty());
        memory.make_method((LOW, 16), 10, (SIX, 6));
        memory.note_change(2);
        let changes = memory.scan(&mut scan, ScanDepth::Maps);
        let added: Vec<_> = changes.added.iter().map(|code| code.identity.value).collect();
        assert_eq!(added, [10], "at once, without a reading of all seals");
    }
}

#[test]
fn maps_are_read_if_the_heap_is_described_otherwise_or_a_stack_asks() {
    for memory in memories() {
        let block: Vec<u8> = (0..16).collect();
        memory.make_heaps(&[&[&block[..], &[0xff; 24]].concat()], SHIFT);
        let description = memory.pages.borrow()[&(HEAPS / PAGE)].clone();
        memory.make_method((LOW, 16), 7, (FOUR, 4));
        let mut scan = CodeScan::default();
        memory.settle(&mut scan);
        memory.make_heaps(&[&two_blocks()], SHIFT);
        memory.make_method((SECOND, 16), 8, (SIX, 6));
        memory.put(HEAPS, &description);
        let found = |changes: CodeChanges| changes.added.iter().any(|it| it.identity.value == 8);
        assert!(!found(memory.scan(&mut scan, ScanDepth::Maps)), "as described before");
        scan.demand([SECOND + CODE]);
        assert!(found(memory.scan(&mut scan, ScanDepth::Maps)));
    }
}

#[test]
fn blocks_that_are_cut_or_joined_are_found() {
    for memory in memories() {
        let block: Vec<u8> = (0..16).collect();
        memory.make_heaps(&[&[&block[..], &block].concat()], SHIFT);
        memory.make_method((LOW, 16), 1, (FOUR, 4));
        memory.make_method((LOW + (16 << SHIFT), 16), 2, (FOUR, 4));
        let mut scan = CodeScan::default();
        assert_eq!(memory.settle(&mut scan).len(), 2);
        let long: Vec<u8> = (0..32).collect();
        memory.make_heaps(&[&long], SHIFT);
        memory.make_method((LOW, 32), 3, (SIX, 6));
        let changes = memory.scan(&mut scan, ScanDepth::Maps);
        assert_eq!(changes.removed.len(), 2, "{changes:?}");
        assert_eq!(changes.added.len(), 1);
        memory.settle(&mut scan);
        memory.make_heaps(&[&[&block[..], &block].concat()], SHIFT);
        memory.make_method((LOW, 16), 4, (FOUR, 4));
        let changes = memory.scan(&mut scan, ScanDepth::Maps);
        assert_eq!(segments(&changes.removed), [(0, 32)]);
        let added: Vec<_> = changes.added.iter().map(|code| code.identity.value).collect();
        assert_eq!(added, [4, 2]);
    }
}

#[test]
fn code_outside_of_its_block_is_not_followed() {
    for memory in memories() {
        // The block says that it is longer than the map does.
        let map: Vec<u8> = (0..4).chain(0..28).collect();
        memory.make_heaps(&[&map], SHIFT);
        memory.make_method((LOW, 32), 7, (FOUR, 4));
        assert!(memory.settle(&mut CodeScan::default()).is_empty());
    }
}

/// Number of methods: more memory than one operation may read page by page.
const MANY: u64 = 17_000;

#[test]
fn all_code_of_a_large_heap_is_found_in_several_scans() {
    // The places of the code are offsets here.
    let has_offsets =
        |memory: &FakeMemory| matches!(memory.machine.layout.blob.code_start, Place::Offset(_));
    let Some(mut memory) = memories().into_iter().find(has_offsets) else { return };
    memory.make_method((LOW, 32), 0, (FOUR, 4));
    let page = memory.pages.borrow_mut().remove(&(LOW / PAGE)).unwrap();
    let layout = memory.machine.layout;
    let number = layout.heaps.header_len + layout.compiled.compile_id.at;
    memory.repeated = Some((LOW..LOW + MANY * PAGE, page, number as usize));
    let block: Vec<u8> = (0..32).collect();
    memory.make_heaps(&[&block.repeat(MANY as usize)], SHIFT);
    let (mut scan, mut scans) = (CodeScan::default(), 0);
    let mut found = BTreeMap::new();
    loop {
        let changes = memory.scan(&mut scan, ScanDepth::Maps);
        scans += 1;
        assert!(changes.removed.is_empty());
        found.extend(changes.added.iter().map(|code| (code.start, code.identity.value)));
        if !changes.is_behind {
            break;
        }
    }
    assert_eq!((found.len() as u64, scans > 2), (MANY, true), "{scans} scans");
    assert!(found.iter().all(|(start, number)| *start as u32 / 4096 == *number));
}
