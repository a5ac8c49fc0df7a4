//! Tests with records as the kernel writes them, and the batches that their samples go to.

use traceprof_abi::layout;

use super::*;
use crate::record::batch::traces::TraceEntry;
use crate::record::target::shm::{Use, own_segment};
use crate::unwind::TableWriter;
use traceprof_abi::unwind::{EndReason, Memory, Registers};

/// Makes events without a kernel, whose samples have the weight of two and a half periods.
pub(crate) fn without_kernel() -> KernelEvents {
    let tables = own_segment(Use::Tables, layout::TABLES_LEN);
    TableWriter::new(tables.words()).publish(&[], &[]).unwrap();
    let kernel = (2_500, KernelFrames::Unwanted);
    let mut kernel = KernelEvents::new(kernel, Modes::Kernel, tables.as_tables());
    kernel.rings.push(RingBuffer::in_memory(1 << 20));
    kernel
}

/// Feeds a sample of this thread at this address, as the kernel writes it.
pub(crate) fn feed_sample(kernel: &mut KernelEvents, tid: u32, time_ns: u64, pc: u64) {
    const ABI_64: u64 = 2;
    const STACK: u64 = 16;
    // Every register has this value, so the program counter has it too.
    let registers = [pc; perf::USER_REGISTERS];
    let body = [u64::from(tid) << 32, time_ns, 77, 0, ABI_64].into_iter().chain(registers);
    let words: Vec<u64> = body.chain([STACK, 0, 0, STACK]).collect();
    let size = (words.len() as u64 + 1) * 8;
    let header = u64::from(PERF_RECORD_SAMPLE) | size << 48;
    let words = [header].into_iter().chain(words);
    kernel.rings[0].feed(words.flat_map(u64::to_ne_bytes));
}

fn taken(kernel: &mut KernelEvents, until_ns: u64, instance: u32) -> Batch {
    let mut batch = Batch::default();
    kernel.drain();
    kernel.take(until_ns, &mut batch, || Some(instance), |tid, _, _| (tid, 5));
    batch.sort();
    batch
}

#[test]
fn samples_after_the_rotation_come_with_the_next_batch() {
    let mut kernel = without_kernel();
    for (tid, time_ns, pc) in [(1, 10, 0xa), (2, 20, 0xb), (1, 30, 0xa), (1, 40, 0xc)] {
        feed_sample(&mut kernel, tid, time_ns, pc);
    }
    let first = taken(&mut kernel, 20, 3);
    let rows = |batch: &Batch| {
        let sample = |it: &Sample| {
            let trace = batch.traces.get(it.trace_id).unwrap();
            (it.slot, it.generation, it.time, it.weight, batch.traces.frames_of(trace)[0])
        };
        batch.samples.iter().map(sample).collect::<Vec<_>>()
    };
    // The frame words carry the mark of an interrupted instruction, so they differ from `pc`.
    let frames: Vec<u64> = rows(&first).iter().map(|it| it.4).collect();
    let (a, b) = (frames[0], frames[1]);
    assert_eq!(rows(&first), [(1, 5, 10, 2, a), (2, 5, 20, 3, b)]);
    assert_eq!(first.traces.entries().len(), 2);
    let second = taken(&mut kernel, 100, 4);
    let c = rows(&second)[1].4;
    assert_eq!(rows(&second), [(1, 5, 30, 2, a), (1, 5, 40, 3, c)]);
    assert!(a != b && b != c && a != c);
    let ids =
        |batch: &Batch| batch.traces.entries().iter().map(|it| it.id >> 32).collect::<Vec<_>>();
    assert_eq!((ids(&first), ids(&second)), (vec![3, 3], vec![4, 4]));
    let no_instance = || -> Option<u32> { panic!("there is no trace to name") };
    kernel.take(200, &mut Batch::default(), no_instance, |tid, _, _| (tid, 5));
}

/// Makes a sample of this process, with a copied stack at 0x2000.
fn interrupted(stack: &[u8]) -> InterruptedThread<'_> {
    let registers = Registers { sp: 0x2000, ..Registers::default() };
    let pid = std::process::id() as i32;
    let chain = Default::default();
    InterruptedThread { pid, tid: 1, time_ns: 1, event: 1, cpu: 0, chain, registers, stack }
}

/// Unwinding through code without unwind information checks the calls before return addresses.
#[test]
fn code_is_read_from_the_process() {
    let tables = own_segment(Use::Tables, layout::TABLES_LEN);
    TableWriter::new(tables.words()).publish(&[], &[]).unwrap();
    let tables = tables.as_tables();
    let snapshot = tables.snapshot().unwrap();
    let interrupted = interrupted(&[1; 16]);
    let mut memory = CopiedStack::new(&snapshot, &interrupted);
    let code = [0x1234_5678_9abc_def0_u64, 7];
    assert_eq!(memory.load_code(code.as_ptr().addr() as u64), Some(code[0]));
    assert_eq!(memory.load_code(0x2000), None, "an address of the copied stack is no code");
}

#[test]
fn the_copy_is_blamed_only_if_a_word_above_it_is_missing() {
    let tables = own_segment(Use::Tables, layout::TABLES_LEN);
    TableWriter::new(tables.words()).publish(&[], &[(0x1000, 0x9000)]).unwrap();
    let tables = tables.as_tables();
    let snapshot = tables.snapshot().unwrap();
    let interrupted = interrupted(&[1; 16]);
    let mut memory = CopiedStack::new(&snapshot, &interrupted);
    assert_eq!(memory.bounds(), (0x2000, 0x9000), "the stack continues above the copy");
    let mut end_after = |avma, end| {
        memory.load(avma);
        memory.end(end)
    };
    assert_eq!(end_after(0x2008, EndReason::Gap), EndReason::Gap);
    for end in [EndReason::Gap, EndReason::Unreadable, EndReason::Range] {
        assert_eq!(end_after(0x2010, end), EndReason::Copied);
    }
    for end in [EndReason::Root, EndReason::NoModule, EndReason::BadRule, EndReason::Depth] {
        assert_eq!(end_after(0x2010, end), end);
    }
    assert_eq!(end_after(0x1ff8, EndReason::Unreadable), EndReason::Unreadable, "below it");
    assert_eq!(end_after(0x2000, EndReason::Gap), EndReason::Gap, "the last word was copied");
}

/// The kernel copies a handler's stack; the code that the handler interrupted may run on a stack
/// below.
#[test]
fn the_copy_is_blamed_if_the_stack_continues_elsewhere() {
    let tables = own_segment(Use::Tables, layout::TABLES_LEN);
    TableWriter::new(tables.words()).publish(&[], &[(0x1000, 0x9000)]).unwrap();
    let tables = tables.as_tables();
    let snapshot = tables.snapshot().unwrap();
    let interrupted = interrupted(&[1; 16]);
    for (sp, expected) in [(0x1800, EndReason::Copied), (0x800, EndReason::Range)] {
        let mut memory = CopiedStack::new(&snapshot, &interrupted);
        assert!(!memory.rebound(sp), "{sp:#x}");
        assert_eq!(memory.end(EndReason::Range), expected, "{sp:#x}");
    }
    assert!(CopiedStack::new(&snapshot, &interrupted).rebound(0x2008));
}

/// The signalling family counts the time of a delivery.
#[test]
fn samples_during_the_delivery_of_a_signal_are_left_out() {
    const START: u64 = 1_000_000;
    // The frame words of samples at these addresses.
    let mut kernel = without_kernel();
    for (tid, pc) in [(1, 0xa), (2, 0xb)] {
        feed_sample(&mut kernel, tid, START, pc);
    }
    let fed = taken(&mut kernel, START, 3);
    let leaf =
        |sample: &Sample| fed.traces.frames_of(fed.traces.get(sample.trace_id).unwrap()).to_vec();
    let frames: Vec<_> = fed.samples.iter().map(leaf).collect();
    let mut count = |tid: u32, pc: u64, before_ns: u64| {
        let mut batch = Batch::default();
        for (number, (thread, frames)) in [(2, &frames[1]), (1, &frames[0])].into_iter().enumerate()
        {
            let trace_id = 9 << 32 | number as u64;
            let entry = TraceEntry::new(trace_id, 0, 1);
            batch.traces.push(entry, frames.iter().copied());
            let time = START + u64::from(thread);
            let sample =
                Sample { slot: thread, generation: 5, time, trace_id, ..Sample::default() };
            batch.samples.push(sample);
        }
        feed_sample(&mut kernel, tid, START - before_ns, pc);
        kernel.drain();
        kernel.take(START, &mut batch, || Some(4), |tid, _, _| (tid, 5));
        batch.samples.len() - 2
    };
    assert_eq!((count(1, 0xa, 0), count(1, 0xa, 20_000), count(2, 0xb, 9_000)), (0, 0, 0));
    assert_eq!(count(1, 0xa, 40_000), 1, "long before");
    assert_eq!(count(1, 0xb, 20_000), 1, "another instruction");
    assert_eq!(count(3, 0xa, 20_000), 1, "another thread");
    assert_eq!(count(2, 0xa, 20_000), 1, "the instruction of another thread");
}

#[test]
fn samples_wait_until_there_is_an_id() {
    let mut kernel = without_kernel();
    feed_sample(&mut kernel, 1, 10, 0xa);
    kernel.drain();
    let mut batch = Batch::default();
    kernel.take(20, &mut batch, || None, |tid, _, _| (tid, 5));
    assert!(batch.samples.is_empty());
    assert_eq!(taken(&mut kernel, 20, 3).samples.len(), 1);
}

#[test]
fn lists_of_cores_are_read() {
    assert_eq!(cores::parse_cpus("0"), Some(vec![0]));
    assert_eq!(cores::parse_cpus("0-2,5"), Some(vec![0, 1, 2, 5]));
    for wrong in ["", "a", "3-1", "0-99999999", "-1"] {
        assert_eq!(cores::parse_cpus(wrong), None, "{wrong}");
    }
}

#[test]
fn samples_have_more_weight_above_the_highest_rate() {
    assert_eq!(share(1_000_000_000 / 199), 2_382);
    assert_eq!(share(1_000_000), 2_382);
    assert_eq!(share(100_000), 5_382);
}

#[test]
fn a_truncated_record_is_refused() {
    const FIRST: usize = 5;
    let words = FIRST + perf::USER_REGISTERS + 1 + 2 + 1;
    let mut body: Vec<u8> = vec![0; words * 8];
    let mut set = |index: usize, value: u64| {
        body[index * 8..index * 8 + 8].copy_from_slice(&value.to_ne_bytes());
    };
    set(0, 7 << 32);
    set(1, 99);
    set(FIRST - 1, 2);
    set(FIRST + perf::USER_REGISTERS, 16);
    set(FIRST + perf::USER_REGISTERS + 3, 16);
    let whole = InterruptedThread::parse(&body, false).unwrap();
    assert_eq!((whole.tid, whole.time_ns, whole.stack.len()), (7, 99, 16));
    for len in 0..body.len() - 24 {
        assert!(InterruptedThread::parse(&body[..len], false).is_none(), "{len}");
    }
}
