//! Entry point for fuzzing the reader of Java machines: memory that holds anything.

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::OnceLock;
use std::time::Duration;

use traceprof_abi::context::RecordKind;

use super::compiled::DEPTH_MAX;
use super::exports::JavaExports;
use super::image::{self, JavaImage, TIDS};
use super::machine::{JavaMachine, JavaReader};
use super::{
    CodeChanges, CodeScan, JavaWaits, ScanBudget, ScanDepth, UnloadCount, carried_block,
    may_redefine,
};
use crate::runtime::fuzz_entry::{START, Wild};
use crate::runtime::{
    NamesThreads, TargetMemory, ThreadNameMemo, WantedNames, running_task, which_hold,
};

/// Number of readable bytes, and of those that one read may ask for: a map of the largest heap.
const LEN: u64 = 4 << 20;
const READ_MAX: usize = 64 << 20;
/// The versions of the machines.
pub(super) const VERSIONS: [u8; 5] = [8, 11, 17, 21, 25];
/// Maximum number of addresses of code, and of objects.
const ADDRESSES_MAX: usize = 8;
/// What one scan may do.
const BUDGET: ScanBudget =
    ScanBudget { blocks: 1 << 8, instructions: 1 << 12, time: Duration::MAX, ahead: Duration::MAX };

/// Memory that consists of the input, again and again, up to [`LEN`].
struct Bounded<'b>(Wild<'b>);

impl<'b> Bounded<'b> {
    fn of(bytes: &'b [u8]) -> Self {
        Self(Wild { bytes, reads: Cell::new(0) })
    }
}

impl TargetMemory for Bounded<'_> {
    fn read(&self, avma: u64, into: &mut [u8]) -> usize {
        assert!(into.len() <= READ_MAX, "a read of {} bytes", into.len());
        let rest = (START + LEN).checked_sub(avma).filter(|rest| *rest <= LEN);
        let Some(rest) = rest else { return 0 };
        let len = into.len().min(rest as usize);
        self.0.read(avma, &mut into[..len])
    }
}

/// Reads a machine from memory that holds the bytes: the machine that they describe, and one whose
/// description was intact.
pub fn java(bytes: &[u8]) {
    if let Some(exports) = JavaExports::of(bytes, "fuzzed") {
        locate(&exports, bytes);
    }
    locate(&image::exports(), bytes);
    if let Some(machine) = bytes.last().and_then(|byte| intact(usize::from(*byte))) {
        read(machine, bytes);
    }
}

fn locate(exports: &JavaExports, bytes: &[u8]) {
    if let Ok(Some(machine)) = exports.locate(START, &Bounded::of(bytes)) {
        read(&machine, bytes);
    }
}

/// Returns one of the machines that are made by hand.
fn intact(number: usize) -> Option<&'static JavaMachine> {
    static MACHINES: OnceLock<Vec<JavaMachine>> = OnceLock::new();
    let machine = |version| {
        let image = JavaImage::of(version, START);
        let memory = Bounded::of(&image.bytes);
        image::exports().locate(START, &memory).ok().flatten()
    };
    let machines = MACHINES.get_or_init(|| VERSIONS.into_iter().filter_map(machine).collect());
    machines.get(number % machines.len())
}

/// Reads all that there is to read.
fn read(machine: &JavaMachine, bytes: &[u8]) {
    let memory = Bounded::of(bytes);
    let reader = machine.now(&memory);
    for thread in reader.threads().unwrap_or_default() {
        let texts = [thread.name, thread.virtual_thread, thread.compiles];
        assert!(texts.into_iter().flatten().all(|text| is_printable(&text)));
        assert!(thread.activity.waits_on().is_none_or(|text| is_printable(&text)));
    }
    let tids = HashSet::from(TIDS.map(|tid| tid as u32));
    let wanted = WantedNames { tids: &tids, first: 7 };
    let names = machine.thread_names(&mut ThreadNameMemo::default(), &memory, wanted);
    assert!(names.iter().all(|(_, name)| is_printable(name)));
    JavaWaits::default().of(machine, &memory, TIDS[0] as u32);
    if let Some(count) = UnloadCount::of(machine, &memory) {
        count.read(&memory);
    }
    may_redefine(machine, &memory);
    let file = (&image::exports(), START);
    if let Some(block) = carried_block(machine, file, RecordKind::Glibc, &memory) {
        for pointer in [START, START + 64, u64::MAX - 7] {
            let task = running_task(&[block], pointer, &memory);
            assert!(task.is_none_or(|task| is_printable(&task.name)));
        }
    }
    scan(machine, &memory);
    code(machine, &reader);
    let (words, _) = bytes.as_chunks::<8>();
    let objects = words.iter().map(|word| u64::from_le_bytes(*word));
    let objects = objects.filter(|word| (START..START + LEN).contains(word)).take(ADDRESSES_MAX);
    for object in objects.chain([0, 1, u64::MAX - 7, u64::MAX]) {
        let Ok(found) = reader.interpreted(object) else { continue };
        assert!(is_printable(&found.method.full_name()));
        assert_eq!(which_hold(&[&found.witness], &memory), [true], "memory that does not change");
        for bci in [0, 1, 1 << 16, u32::MAX] {
            found.method.line_at(bci);
        }
    }
}

fn is_printable(text: &str) -> bool {
    !text.contains(char::is_control)
}

/// Names what is at some addresses of code.
fn code(machine: &JavaMachine, reader: &JavaReader<'_>) {
    reader.call_return();
    let starts = machine.code.iter().flat_map(|heap| heap.clone().step_by(512).take(ADDRESSES_MAX));
    for avma in starts.take(2 * ADDRESSES_MAX).chain([0, u64::MAX]) {
        let Some(blob) = reader.blob_at(avma) else { continue };
        assert!(is_printable(&blob.name) && blob.start <= blob.code.start, "{blob:?}");
        let Ok(code) = reader.compiled(&blob) else { continue };
        for avma in [avma, blob.code.start, blob.code.start + 8, blob.code.end, 0, u64::MAX] {
            code.is_call(avma);
            let positions = code.at(avma);
            assert!(positions.len() <= DEPTH_MAX, "{} positions", positions.len());
            for position in positions {
                position.line();
                let name = position.method.map(|method| method.full_name());
                assert!(name.is_none_or(|name| is_printable(&name)));
            }
        }
    }
}

/// Follows the code of the heaps.
fn scan(machine: &JavaMachine, memory: &Bounded<'_>) {
    let mut scan = CodeScan::default();
    for depth in [ScanDepth::Maps, ScanDepth::Seals, ScanDepth::Blocks] {
        let changes = scan.scan(machine, memory, depth, BUDGET);
        let CodeChanges { removed, added, spans, segments, .. } = changes;
        let all: u64 = spans.iter().map(|span| (span.high - span.low) >> span.shift).sum();
        assert!(segments as u64 <= 2 * all, "{segments} of {all} segments");
        assert!(removed.iter().all(|block| block.start < block.end));
        for code in added {
            let (start, end) = (code.start, code.start + u64::from(code.length));
            assert!(code.block.start <= start && end <= code.block.end, "{code:x?}");
            assert!(spans.iter().any(|span| (span.low..span.high).contains(&code.block.start)));
            assert!(code.rows.is_sorted_by(|(one, _), (next, _)| one < next), "{code:x?}");
        }
    }
}
