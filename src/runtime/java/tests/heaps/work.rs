//! How much work a scan does, whatever the maps and the code are.

use super::*;

/// A budget without a limit of time, so that the work is the same on each computer.
const UNTIMED: ScanBudget =
    ScanBudget { blocks: 1 << 12, time: Duration::MAX, ahead: Duration::MAX, ..BUDGET };
/// A budget that leaves no time to read blocks: they are only compared with the map.
const MAPS_ONLY: ScanBudget = ScanBudget { time: Duration::ZERO, ..BUDGET };
/// Maximum number of blocks whose seals a scan compares, and of bytes that it reads of a block.
const SEALS_MAX: usize = 4096;
const PIECE_MAX: usize = 64 << 10;
/// Maximum number of reads of a block or a seal, and of a scan besides.
const READS_OF_BLOCK: usize = 4;
const READS_BESIDES: usize = 256;

/// Scans maps of so many segments. What a scan does depends on its budget and the maps alone.
fn assert_bounded(
    memory: &FakeMemory,
    scan: &mut CodeScan,
    (segments, budget): (usize, ScanBudget),
) -> CodeChanges {
    memory.reads.set(Reads::default());
    let changes = scan.scan(&memory.machine, memory, ScanDepth::Seals, budget);
    let Reads { count, bytes } = memory.reads.get();
    assert!(changes.blocks <= budget.blocks, "{} blocks", changes.blocks);
    assert!(changes.segments <= 2 * segments, "{} of {segments} segments", changes.segments);
    let places = changes.blocks + SEALS_MAX;
    assert!(count <= places * READS_OF_BLOCK + READS_BESIDES, "{count} reads");
    let pages = (READS_BESIDES + SEALS_MAX) * PAGE as usize;
    assert!(bytes <= segments + changes.blocks * PIECE_MAX + pages, "{bytes} bytes");
    changes
}

#[test]
fn maps_of_many_blocks_take_bounded_work() {
    // Java 8 has one heap.
    let has_many = |memory: &FakeMemory| memory.machine.layout.heaps.array.is_some();
    let Some(memory) = memories().into_iter().find(has_many) else { return };
    let zeros = vec![0; 4 << 20];
    memory.make_heaps(&[&zeros[..]; 16], 6);
    let mut scan = CodeScan::default();
    let all = (zeros.len() * 16, MAPS_ONLY);
    for _ in 0..9 {
        assert_bounded(&memory, &mut scan, all);
    }
    let changes = assert_bounded(&memory, &mut scan, all);
    assert_eq!((changes.spans.len(), changes.is_behind), (16, true));
    assert!(changes.left_out > 0, "more blocks than there is room for");
    // Without an end, and with other contents in each scan.
    let mut scan = CodeScan::default();
    for byte in [1, 0xff, 3, 0, 7] {
        memory.make_heaps(&[&vec![byte; 1 << 20][..]; 4], 6);
        assert_bounded(&memory, &mut scan, (4 << 20, UNTIMED));
    }
    // Larger heaps than any machine's.
    memory.make_heaps(&[&zeros[..]; 16], 7);
    assert!(memory.scan(&mut scan, ScanDepth::Maps).spans.is_empty());
}

#[test]
fn code_without_end_takes_bounded_work() {
    let Some(memory) = memories().pop() else { return };
    let segments = (4 << 20) >> SHIFT;
    let map = [vec![0], vec![1; segments as usize - 1]].concat();
    for (len, is_cut) in [(1 << 16, false), ((4 << 20) - 4096, true)] {
        memory.make_heaps(&[&map], SHIFT);
        // Each path changes the depth and goes on in two ways.
        let code: Vec<u8> = [0x50, 0x75, 0xfb, 0x75, 0x7f].into_iter().cycle().take(len).collect();
        memory.make_method((LOW, segments), len as u32, (&code, 4));
        let changes = assert_bounded(&memory, &mut CodeScan::default(), (map.len(), UNTIMED));
        eprintln!("{len} bytes: {} instructions", changes.instructions);
        assert!(changes.instructions <= len, "{} instructions", changes.instructions);
        assert_eq!(changes.added.is_empty(), is_cut);
    }
}

/// A part of a heap: a number of segments, and the number of the method in them, if there is one.
#[derive(Debug, Clone, Copy)]
struct Part {
    segments: u64,
    method: Option<u32>,
    is_free: bool,
}

/// A heap that a machine changes at random.
struct ChangingHeap {
    parts: Vec<Part>,
    state: u64,
    methods: u32,
}

/// Number of segments that have room for a method.
const METHOD_SEGMENTS: u64 = (CODE >> SHIFT) + 1;

impl ChangingHeap {
    const SEGMENTS: u64 = 600;

    fn number(&mut self, below: u64) -> u64 {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.state >> 33) % below
    }

    /// Returns parts of so many segments.
    fn parts_of(&mut self, segments: u64) -> Vec<Part> {
        let (mut parts, mut left) = (Vec::new(), segments);
        while left > 0 {
            let segments = (self.number(30) + 1).min(left);
            let is_free = self.number(3) == 0;
            let has_method = !is_free && segments >= METHOD_SEGMENTS;
            self.methods += u32::from(has_method);
            parts.push(Part { segments, method: has_method.then_some(self.methods), is_free });
            left -= segments;
        }
        parts
    }

    /// Joins some parts that lie one behind the other, and cuts them in other places.
    fn change(&mut self) {
        let first = self.number(self.parts.len() as u64) as usize;
        let count = (self.number(6) as usize + 1).min(self.parts.len() - first);
        let segments = self.parts[first..first + count].iter().map(|part| part.segments).sum();
        let parts = self.parts_of(segments);
        self.parts.splice(first..first + count, parts);
    }

    /// Writes the heap, and returns its methods by the starts of their code.
    fn write(&self, memory: &FakeMemory) -> BTreeMap<u64, u32> {
        let (mut map, mut methods) = (Vec::new(), BTreeMap::new());
        for part in &self.parts {
            let block = LOW + ((map.len() as u64) << SHIFT);
            map.extend((0..part.segments).map(|at| if part.is_free { 0xff } else { at as u8 }));
            memory.set(block, memory.machine.layout.heaps.is_used, 0);
            if let Some(number) = part.method {
                memory.make_method((block, part.segments), number, (FOUR, 4));
                methods.insert(block + CODE, number);
            }
        }
        memory.make_heaps(&[&map], SHIFT);
        methods
    }
}

#[test]
fn all_blocks_are_known_whatever_was_there_before() {
    for memory in memories() {
        let mut heap = ChangingHeap { parts: Vec::new(), state: 7, methods: 0 };
        heap.parts = heap.parts_of(ChangingHeap::SEGMENTS);
        let (mut scan, mut known) = (CodeScan::default(), BTreeMap::new());
        for round in 0..80 {
            for _ in 0..heap.number(4) {
                heap.change();
            }
            let methods = heap.write(&memory);
            memory.note_change(round + 1);
            // Some scans end early, and the next change comes before they have gone on.
            let scans = if heap.number(3) == 0 { 1000 } else { heap.number(3) };
            for _ in 0..scans {
                let budget = ScanBudget { blocks: heap.number(8) as usize + 1, ..UNTIMED };
                let changes = scan.scan(&memory.machine, &memory, ScanDepth::Seals, budget);
                let work = changes.segments as u64;
                assert!(work <= 2 * ChangingHeap::SEGMENTS, "round {round}: {work} segments");
                for block in &changes.removed {
                    known.retain(|start, _| !block.contains(start));
                }
                let added = changes.added.iter().map(|code| (code.start, code.identity.value));
                known.extend(added);
                if !changes.has_news {
                    assert_eq!(known, methods, "round {round}");
                    break;
                }
            }
        }
    }
}

#[test]
fn blocks_of_a_heap_that_is_gone_are_forgotten() {
    let has_many = |memory: &FakeMemory| memory.machine.layout.heaps.array.is_some();
    let Some(memory) = memories().into_iter().find(has_many) else { return };
    let block: Vec<u8> = (0..32).collect();
    memory.make_heaps(&[&block, &block], SHIFT);
    let second = LOW + (32 << SHIFT);
    memory.make_method((LOW, 32), 7, (FOUR, 4));
    memory.make_method((second, 32), 8, (FOUR, 4));
    let mut scan = CodeScan::default();
    assert_eq!(memory.settle(&mut scan).len(), 2);
    memory.make_heaps(&[&block], SHIFT);
    let changes = memory.scan(&mut scan, ScanDepth::Maps);
    assert_eq!(segments(&changes.removed), [(32, 64)]);
    assert_eq!(changes.spans.len(), 1);
}

#[test]
fn heaps_that_overlap_are_no_machines() {
    let has_many = |memory: &FakeMemory| memory.machine.layout.heaps.array.is_some();
    let Some(memory) = memories().into_iter().find(has_many) else { return };
    let block: Vec<u8> = (0..32).collect();
    memory.make_heaps(&[&block, &block], SHIFT);
    let mut scan = CodeScan::default();
    assert_eq!(memory.scan(&mut scan, ScanDepth::Maps).spans.len(), 2);
    let (second, layout) = (HEAPS + PAGE, memory.machine.layout.heaps);
    memory.set(second, layout.low, LOW + (31 << SHIFT));
    assert!(memory.scan(&mut scan, ScanDepth::Maps).spans.is_empty());
}
