//! What is written, what is open until then, and who may look at it meanwhile.

use super::*;
use crate::record::collections::TraceEntry;
use crate::trace::{self, WriterOptions};

fn seen(slot: u32, tid: i32) -> ThreadNews {
    let name = "worker".to_string();
    let life = ThreadLife { tid, inner: (1, tid as u32), name, start_ns: 1 };
    ThreadNews::Seen { key: (slot, 0), life }
}

fn sample(slot: u32, time: u64) -> Logged {
    Logged { slot, time, weight: 1, ..Logged::default() }
}

/// Writes the batches; the totals, and the times of each thread's samples as they are read.
fn written(batches: Vec<Batch>) -> (Totals, Vec<Vec<u64>>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let writer = TraceWriter::create(&path, WriterOptions::default()).unwrap();
    let scribe = Scribe::start(writer, 1, Names::start().unwrap()).unwrap();
    batches.into_iter().for_each(|batch| scribe.send(Arc::new(batch)));
    let finished = scribe.finish();
    let totals = finished.totals().clone();
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
    let gone = |slot| ThreadNews::Gone { key: (slot, 0), time_ns: 9 };
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

/// A batch with a sample of each of these traces: ids, frames, new or preserved.
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
fn a_batch_is_open_until_it_is_written_and_then_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let writer = TraceWriter::create(&path, WriterOptions::default()).unwrap();
    let scribe = Scribe::start(writer, 1, Names::start().unwrap()).unwrap();
    let mut checker = scribe.open_samples();
    let marked = |checker: &mut OpenSamples, collected: &Batch| {
        let mut live = PreserveSet::with_room(100);
        checker.mark(collected, &mut live);
        (1..50u64).filter(|id| live.contains(*id)).collect::<Vec<_>>()
    };
    assert_eq!(marked(&mut checker, &batch(&[(5, 1, false), (6, 2, true)], 1)), [5, 6]);
    let held = Arc::new(batch(&[(7, 1, false)], 1));
    scribe.shared.open().push_back(Arc::clone(&held));
    assert_eq!(marked(&mut checker, &batch(&[(8, 1, false)], 1)), [7, 8]);
    scribe.shared.open().clear();
    drop(held);
    scribe.send(Arc::new(batch(&[(9, 1, false)], 1)));
    let blank = scribe.blanks.recv().unwrap();
    assert!(blank.samples.is_empty() && blank.threads.is_empty() && !blank.has_news());
    assert!(blank.samples.capacity() > 0, "its memory is there still");
    assert!(marked(&mut checker, &Batch::default()).is_empty());
    scribe.finish();
}

#[test]
fn a_preserved_trace_is_resolved_as_it_was_when_it_was_new() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let writer = TraceWriter::create(&path, WriterOptions::default()).unwrap();
    let mut work = Work::new(writer, 1, Names::start().unwrap());
    work.write(&batch(&[(5, 0x10, false), (6, 0x20, false)], 1)).unwrap();
    let stack = work.stacks[&5].locations.clone();
    assert!(stack.len() == 1 && stack != work.stacks[&6].locations);
    // Were it resolved again it would have another stack, since its frames are others here.
    work.write(&batch(&[(5, 0x20, true)], 10)).unwrap();
    assert_eq!((&work.stacks[&5].locations, work.stacks.len()), (&stack, 1));
}

#[test]
fn the_heaviest_traces_are_kept_when_their_program_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let writer = TraceWriter::create(&path, WriterOptions::default()).unwrap();
    let mut work = Work::new(writer, 1, Names::start().unwrap());
    let ids = |work: &Work| {
        let mut ids: Vec<u64> = work.kept.keys().copied().collect();
        ids.sort_unstable();
        ids
    };
    let last = Batch {
        keep: Some(vec![5, 6, 99]),
        ..batch(&[(5, 0x10, false), (6, 0x20, false), (7, 0x30, false)], 1)
    };
    work.write(&last).unwrap();
    assert_eq!(ids(&work), [5, 6], "what is not there cannot be kept");
    let stack = work.kept[&6].locations.clone();
    // Another program, whose addresses are others.
    let next = Batch { keep: Some(vec![15, 6]), ..batch(&[(15, 0x20, false)], 10) };
    work.write(&next).unwrap();
    assert_eq!((ids(&work), &work.kept[&6].locations), (vec![6, 15], &stack));
    assert!(!work.stacks.contains_key(&6));
}

#[test]
fn what_is_noted_is_in_the_trace() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let writer = TraceWriter::create(&path, WriterOptions::default()).unwrap();
    let scribe = Scribe::start(writer, 1, Names::start().unwrap()).unwrap();
    scribe.note("executed.1".to_owned(), Value::Unsigned(7));
    assert!(scribe.finish().close(Metadata::new(), &[]).error.is_none());
    assert_eq!(trace::load(&path).unwrap().metadata["executed.1"], Value::Unsigned(7));
}

#[test]
fn several_threads_process_one_collection_while_it_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let writer = TraceWriter::create(&path, WriterOptions::default()).unwrap();
    let scribe = Scribe::start(writer, 1, Names::start().unwrap()).unwrap();
    let traces: Vec<_> = (0..5000u64).map(|id| (id + 2, id * 64, false)).collect();
    let shared = Arc::new(batch(&traces, 1));
    let sum = |batch: &Batch| {
        let traces = &batch.traces;
        let of = |it: &Logged| traces.frames_of(traces.get(it.trace_id).unwrap())[0] ^ it.time;
        batch.samples.iter().map(of).fold(0u64, |sum, word| sum.rotate_left(5) ^ word)
    };
    let expected = sum(&batch(&traces, 1));
    scribe.send(Arc::clone(&shared));
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| sum(&shared))).collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), expected);
        }
    });
    let finished = scribe.finish();
    assert_eq!(finished.totals().samples, 5000);
    assert_eq!(sum(&shared), expected, "others have it: it is not emptied");
}
