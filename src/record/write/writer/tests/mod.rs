//! Tests of what is written, what waits for names, and what memory is reused.

use std::ops::Deref;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};

use traceprof_abi::storage::log::Sample as Logged;

mod ring;
mod runtimes;

use super::*;
use crate::record::batch::threads::{ThreadChange, ThreadLife};
use crate::record::batch::traces::TraceEntry;
use crate::record::contract::clock::wait_until;
use crate::record::name::jit::JitNames;
use crate::record::name::symbolizers::{SymbolQuery, Symbolizers};
use crate::record::target::modules::{AddressMap, LoadedModule};
use crate::symbol::{ElfFile, Resolved, ResolvedFunction};
use crate::trace::{self, TraceSeries, TraceWriter, WriterOptions};

fn seen(slot: u32, tid: i32) -> ThreadChange {
    let name = "worker".to_string();
    let life = ThreadLife { tid, inner: (1, tid as u32), name, start_ns: 1 };
    ThreadChange::Seen { key: (slot, 0), life }
}

fn sample(slot: u32, time: u64) -> Logged {
    Logged { slot, time, weight: 1, ..Logged::default() }
}

/// The writer thread, and the connection of its only process.
struct TestWriter {
    writer: Writer,
    writing: WriterThread,
}

impl Deref for TestWriter {
    type Target = Writer;

    fn deref(&self) -> &Writer {
        &self.writer
    }
}

impl TestWriter {
    fn start(path: &Path) -> Self {
        Self::with_room(backlog::ROOM, path, 1, |answers| answers.names(1))
    }

    fn with_room(
        room: usize,
        path: &Path,
        pid: i32,
        names: impl FnOnce(AnswerSender) -> io::Result<FrameNames>,
    ) -> Self {
        let writer = TraceWriter::create(path, WriterOptions::default()).unwrap();
        Self::over(room, TraceSeries::of_one(writer), pid, names)
    }

    fn over(
        room: usize,
        writer: TraceSeries,
        pid: i32,
        names: impl FnOnce(AnswerSender) -> io::Result<FrameNames>,
    ) -> Self {
        let writing = WriterThread::with_room(room, writer).unwrap();
        Self { writer: writing.join(0, pid, names).unwrap(), writing }
    }

    fn finish(self) -> Finished {
        drop(self.writer);
        self.writing.finish()
    }
}

/// Writes the batches. Returns the totals, and the times of each thread's samples in the trace.
fn written(batches: Vec<Batch>) -> (WrittenTotals, Vec<Vec<u64>>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let writer = TestWriter::start(&path);
    batches.into_iter().for_each(|batch| writer.send(Arc::new(batch)));
    let finished = writer.finish();
    let totals = finished.totals();
    let closed = finished.close(Metadata::new(), &[]);
    assert!(closed.error.is_none() && closed.written.samples == totals.samples);
    let times = |thread: &trace::ThreadTrace| {
        let mut times = Vec::new();
        thread.for_each_sample(&mut |sample, _| times.push(sample.time_ns));
        times
    };
    (totals, trace::load(&path).unwrap().threads.iter().map(times).collect())
}

#[test]
fn the_totals_of_processes_are_added_up() {
    let mut one = WrittenTotals {
        samples: 1,
        weight: 2,
        reasons: [3; EndReason::ALL.len()],
        wall: (4, 5),
        threads: 6,
        unattributed: 7,
        unnamed: 8,
        left_out: 9,
        managed: ManagedCount::default(),
    };
    one.add(&one.clone());
    let both = WrittenTotals {
        samples: 2,
        weight: 4,
        reasons: [6; EndReason::ALL.len()],
        wall: (8, 10),
        threads: 12,
        unattributed: 14,
        unnamed: 16,
        left_out: 18,
        managed: ManagedCount::default(),
    };
    assert_eq!(one, both);
}

#[test]
fn a_thread_id_that_is_reused_is_another_thread() {
    let (totals, threads) = written(vec![
        Batch {
            threads: vec![seen(1, 7)],
            samples: vec![sample(1, 5), sample(1, 6)],
            ..Batch::default()
        },
        Batch {
            threads: vec![seen(2, 7)],
            samples: vec![sample(1, 7), sample(2, 8)],
            ..Batch::default()
        },
    ]);
    assert_eq!(threads, [vec![5, 6, 7], vec![8]]);
    assert_eq!((totals.samples, totals.threads), (4, 2));
}

#[test]
fn a_thread_ends_after_its_samples_and_unknown_ones_are_counted() {
    let gone = |slot| ThreadChange::Exited { key: (slot, 0), time_ns: 9 };
    let (totals, threads) = written(vec![
        Batch {
            threads: vec![gone(1), seen(1, 7), seen(3, 8), seen(4, 9)],
            samples: vec![sample(1, 5), sample(4, 5), sample(99, 5)],
            ..Batch::default()
        },
        Batch { samples: vec![sample(1, 7)], ..Batch::default() },
    ]);
    assert_eq!(threads, [vec![5], vec![], vec![5]]);
    assert_eq!((totals.samples, totals.threads, totals.unattributed), (2, 2, 2));
}

/// Returns a batch with a sample of each trace, given as id, frame, and whether it is preserved.
fn batch(traces: &[(u64, u64, bool)], time: u64) -> Batch {
    let mut batch = Batch::default();
    for (number, (id, frame, preserved)) in traces.iter().enumerate() {
        let entry = TraceEntry::new(*id, 0, 1);
        let entry = if *preserved { entry.as_preserved() } else { entry };
        batch.traces.push(entry, [*frame].into_iter());
        batch.samples.push(Logged { trace_id: *id, ..sample(1, time + number as u64) });
    }
    batch.threads.push(seen(1, 7));
    batch.sort();
    batch
}

#[test]
fn a_written_batch_is_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let writer = TestWriter::start(&path);
    writer.send(Arc::new(batch(&[(9, 1, false)], 1)));
    let blank = writer.blanks.recv().unwrap();
    assert!(blank.samples.is_empty() && blank.threads.is_empty() && !blank.has_new_data());
    assert!(blank.samples.capacity() > 0, "its memory is there still");
    writer.finish();
}

/// The work of the writer thread for one process, without the thread.
struct Bench {
    work: Work,
    messages: Receiver<Message>,
}

impl Bench {
    fn new(path: &Path) -> Self {
        let writer =
            TraceSeries::of_one(TraceWriter::create(path, WriterOptions::default()).unwrap());
        let (queue, messages) = sync_channel(1);
        let names = AnswerSender { number: 0, queue, pool: Arc::default() }.names(1).unwrap();
        let mut work = Work::new(writer, backlog::ROOM);
        let process = WriterProcess::new(1, names, sync_channel(1).0);
        work.take(Message::Join(0, Box::new(process))).unwrap();
        Self { work, messages }
    }

    fn process(&self) -> &WriterProcess {
        &self.work.processes[&0]
    }

    /// Writes a batch, after all names have arrived.
    fn write(&mut self, batch: Batch) {
        let mut message = Message::Batch(0, Arc::new(batch));
        loop {
            self.work.take(message).unwrap();
            self.work.write_all().unwrap();
            if !self.work.has_backlog() {
                break;
            }
            message = self.messages.recv().unwrap();
        }
    }
}

#[test]
fn a_preserved_trace_is_resolved_as_it_was_when_it_was_new() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let mut work = Bench::new(&path);
    work.write(batch(&[(5, 0x10, false), (6, 0x20, false)], 1));
    let stack = work.process().stacks[&5].locations.clone();
    assert!(stack.len() == 1 && stack != work.process().stacks[&6].locations);
    // A second resolution would give another stack, because the frames differ here.
    work.write(batch(&[(5, 0x20, true)], 10));
    assert_eq!((&work.process().stacks[&5].locations, work.process().stacks.len()), (&stack, 1));
}

#[test]
fn the_heaviest_traces_are_kept_when_their_program_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let mut work = Bench::new(&path);
    let ids = |work: &Bench| {
        let mut ids: Vec<u64> = work.process().kept.keys().copied().collect();
        ids.sort_unstable();
        ids
    };
    let last = Batch {
        keep: Some(vec![5, 6, 99]),
        ..batch(&[(5, 0x10, false), (6, 0x20, false), (7, 0x30, false)], 1)
    };
    work.write(last);
    assert_eq!(ids(&work), [5, 6], "what is not there cannot be kept");
    let stack = work.process().kept[&6].locations.clone();
    // Another program, with other addresses.
    let next = Batch { keep: Some(vec![15, 6]), ..batch(&[(15, 0x20, false)], 10) };
    work.write(next);
    assert_eq!((ids(&work), &work.process().kept[&6].locations), (vec![6, 15], &stack));
    assert!(!work.process().stacks.contains_key(&6));
}

#[test]
fn what_is_noted_is_in_the_trace() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let writer = TestWriter::start(&path);
    writer.note("executed.1".to_owned(), Value::Unsigned(7));
    assert!(writer.finish().close(Metadata::new(), &[]).error.is_none());
    assert_eq!(trace::load(&path).unwrap().metadata["executed.1"], Value::Unsigned(7));
}

#[test]
fn several_threads_process_one_collection_while_it_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let writer = TestWriter::start(&path);
    let traces: Vec<_> = (0..5000u64).map(|id| (id + 2, id * 64, false)).collect();
    let shared = Arc::new(batch(&traces, 1));
    let sum = |batch: &Batch| {
        let traces = &batch.traces;
        let of = |it: &Logged| traces.frames_of(traces.get(it.trace_id).unwrap())[0] ^ it.time;
        batch.samples.iter().map(of).fold(0u64, |sum, word| sum.rotate_left(5) ^ word)
    };
    let expected = sum(&batch(&traces, 1));
    writer.send(Arc::clone(&shared));
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| sum(&shared))).collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), expected);
        }
    });
    let finished = writer.finish();
    assert_eq!(finished.totals().samples, 5000);
    assert_eq!(sum(&shared), expected, "others have it: it is not emptied");
}

/// Returns such a batch, for a thread that is known already.
fn next_batch(traces: &[(u64, u64, bool)], time: u64) -> Arc<Batch> {
    let mut batch = batch(traces, time);
    batch.threads.clear();
    Arc::new(batch)
}

/// Starts a writer thread whose symbolizer blocks until the sender is dropped.
fn with_blocked_names(path: &Path, room: usize) -> (TestWriter, Sender<()>) {
    let writer = TraceWriter::create(path, WriterOptions::default()).unwrap();
    over_blocked_names(TraceSeries::of_one(writer), room)
}

fn over_blocked_names(writer: TraceSeries, room: usize) -> (TestWriter, Sender<()>) {
    let (go, gate) = channel::<()>();
    let resolve = move |wanted: &mut SymbolQuery| {
        // Fails once the sender is dropped.
        let _ = gate.recv();
        let named = |svma: &u64| Resolved {
            function: Some(ResolvedFunction { name: format!("f{svma:x}"), start_svma: *svma }),
            ..Resolved::default()
        };
        wanted.resolved = wanted.svmas.iter().map(named).collect();
    };
    let names = |answers: AnswerSender| {
        let symbolizers = Symbolizers::with_resolver(resolve, move |answer| answers.send(answer));
        Ok(FrameNames::of(symbolizers, JitNames::start(1)?))
    };
    (TestWriter::over(room, writer, 1, names), go)
}

/// Returns a batch with a thread, and with a module that covers all addresses.
fn first_batch() -> Arc<Batch> {
    let elf = std::fs::File::open("/proc/self/exe").unwrap().into();
    let elf = ElfFile::new(elf, "/lib/lib.so".to_string(), Vec::new());
    let addresses = AddressMap::of_one(LoadedModule::for_test(0, "/lib/lib.so", elf), 1 << 40);
    let addresses = Some(Arc::new(addresses));
    Arc::new(Batch { threads: vec![seen(1, 7)], addresses, ..Batch::default() })
}

fn is_taken(writer: &Writer) -> bool {
    writer.shared.queued.load(Ordering::Acquire) == 0
}

/// Returns the time and the innermost function of each sample of the only thread, in time order.
fn names(path: &Path) -> Vec<(u64, String)> {
    let trace = trace::load(path).unwrap();
    let mut names = Vec::new();
    trace.threads[0].for_each_sample(&mut |sample, stack| {
        let location = &trace.locations[stack.last().unwrap().0 as usize];
        let method = &trace.methods[location.method.0 as usize];
        names.push((sample.time_ns, method.name.clone()));
    });
    names
}

#[test]
fn a_symbolizer_that_blocks_stops_nothing_and_costs_no_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let (writer, go) = with_blocked_names(&path, backlog::ROOM);
    let count = 20 * QUEUE as u64;
    writer.send(first_batch());
    for number in 0..count {
        // A new address each time, and a trace from an earlier batch.
        let (new, old) = (number + 2, number.saturating_sub(1) + 2);
        let traces = [(new, 0x1000 + new * 16, false), (old, 0x1000 + old * 16, true)];
        let traces = if number == 0 { &traces[..1] } else { &traces };
        writer.send(next_batch(traces, number * 10));
    }
    wait_until("the queue stays full", || is_taken(&writer) && !writer.is_busy());
    assert!(!writer.is_idle(), "written without names");
    drop(go);
    wait_until("not written when names are there", || writer.is_idle());
    let finished = writer.finish();
    assert_eq!((finished.totals().samples, finished.totals().unnamed), (2 * count - 1, 0));
    assert!(finished.close(Metadata::new(), &[]).error.is_none());
    let names = names(&path);
    assert_eq!(names.len() as u64, 2 * count - 1);
    for (time_ns, name) in names {
        let id = (time_ns / 10).saturating_sub(time_ns % 10) + 2;
        assert_eq!(name, format!("f{:x}", 0x1000 + id * 16), "at {time_ns}");
    }
}

#[test]
fn what_finds_no_room_is_written_without_names_and_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let one = |id: u64, time: u64| next_batch(&[(id, 0x1000 + id % 100 * 16, false)], time);
    let mut first = one(2, 0);
    Arc::make_mut(&mut first).condense();
    let (writer, go) = with_blocked_names(&path, 20 * first.bytes());
    writer.send(first_batch());
    for number in 0..50 {
        writer.send(one(number + 2, number));
    }
    wait_until("the queue stays full", || is_taken(&writer));
    assert!(!writer.is_idle(), "nothing waits any more");
    drop(go);
    wait_until("not written when names are there", || writer.is_idle());
    // At the address of the first batch, which has a name by now.
    writer.send(one(102, 50));
    let finished = writer.finish();
    let unnamed = finished.totals().unnamed as usize;
    assert!((25..=35).contains(&unnamed), "{unnamed}");
    assert!(finished.close(Metadata::new(), &[]).error.is_none());
    let names = names(&path);
    assert_eq!(names.len(), 51);
    for (number, (time_ns, name)) in names.iter().enumerate() {
        assert_eq!(*time_ns, number as u64);
        let id = if number == 50 { 2 } else { number + 2 };
        let known = format!("f{:x}", 0x1000 + id * 16);
        let unknown = format!("[lib.so+{:#x}]", 0x1000 + id * 16);
        let expected = if number < unnamed { &unknown } else { &known };
        assert_eq!(name, expected, "{number}");
    }
}

#[test]
fn dropping_the_writer_ends_the_thread() {
    let folder = tempfile::tempdir().unwrap();
    let (writer, _go) = with_blocked_names(&folder.path().join("trace"), backlog::ROOM);
    let shared = Arc::downgrade(&writer.shared);
    writer.send(Arc::default());
    drop(writer);
    wait_until("the thread goes on", || shared.strong_count() == 0);
}

#[test]
fn a_process_whose_names_are_waited_for_holds_up_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let (slow, go) = with_blocked_names(&path, backlog::ROOM);
    let quick = slow.writing.join(1, 2, |answers| answers.names(2)).unwrap();
    slow.send(first_batch());
    slow.send(next_batch(&[(2, 0x1000, false)], 1));
    wait_until("it is not taken", || is_taken(&slow));
    let sent = Arc::new(batch(&[(3, 0x1000, false)], 2));
    let seen = Arc::downgrade(&sent);
    quick.send(sent);
    // The batch is written, and its memory is returned or freed.
    let is_written = || quick.blanks.try_recv().is_ok() || seen.strong_count() == 0;
    wait_until("it waits for another process", is_written);
    assert!(!slow.is_idle());
    drop((go, quick));
    let finished = slow.finish();
    let of = |number| finished.totals_of(number).unwrap().samples;
    assert_eq!((of(0), of(1), finished.totals().samples), (1, 1, 2));
    assert!(finished.close(Metadata::new(), &[]).error.is_none());
    let trace = trace::load(&path).unwrap();
    let pids: Vec<u32> = trace.threads.iter().map(|it| it.thread().pid).collect();
    assert_eq!(pids, [1, 2], "threads with the same key are two");
}

#[test]
fn totals_that_are_wanted_in_a_sum_only_are_kept_by_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let (slow, go) = with_blocked_names(&folder.path().join("trace"), backlog::ROOM);
    let join = |number: u32| slow.writing.join(number, 2, |answers| answers.names(2)).unwrap();
    for number in 1..4 {
        let process = join(number);
        process.send(Arc::new(batch(&[(3, 0x1000, false)], 2)));
        // Process 1 is summed before it leaves, process 2 after that, and process 3 never.
        let tally = process.tally();
        (number == 1).then(|| tally.sum_up());
        drop(process);
        (number == 2).then(|| tally.sum_up());
    }
    drop(go);
    let finished = slow.finish();
    let known: Vec<bool> = (1..4).map(|it| finished.totals_of(it).is_some()).collect();
    assert_eq!(known, [false, false, true]);
    assert_eq!((finished.totals().samples, finished.totals.len()), (3, 2));
}
