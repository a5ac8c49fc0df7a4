//! Tests of sample numbers: a call has the samples with its numbers, in complete and in damaged
//! traces.

use std::collections::BTreeSet;

use super::lazy::written;
use super::*;

/// Returns the numbers of a thread's samples by stream.
fn numbers_of(trace: &LazyTrace, thread: ThreadId) -> BTreeSet<(bool, u64)> {
    let mut numbers = BTreeSet::new();
    trace
        .for_each_sample_of(thread, 0..=u64::MAX, &mut |side, number, _| {
            assert!(numbers.insert((side, number)), "{number} twice");
        })
        .unwrap();
    numbers
}

/// Checks all calls of a thread. Returns their number.
fn check_calls(trace: &LazyTrace, thread: ThreadId) -> usize {
    let numbers = numbers_of(trace, thread);
    let mut root = trace.roots(thread).unwrap();
    trace.load_all(&mut root).unwrap();
    assert_eq!((root.sample_numbers(), numbers.len() as u64), (None, root.samples()));
    let mut calls = 0;
    let mut rest: Vec<LazyCall> = vec![root];
    while let Some(mut call) = rest.pop() {
        trace.load_all(&mut call).unwrap();
        if let Some(own) = call.sample_numbers() {
            let side = call.is_side();
            let samples = numbers.range((side, own.start)..(side, own.end)).count();
            assert_eq!(samples as u64, call.samples(), "{own:?}");
            calls += 1;
        }
        for child in 0..call.child_count().unwrap() {
            if let Some(LazyNode::Call(call)) = call.take(child) {
                rest.push(*call);
            }
        }
    }
    calls
}

#[test]
fn a_call_has_the_samples_with_its_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let options = WriterOptions { block_bytes: 90, frame_bytes: 260, ..Default::default() };
    let path = written(dir.path(), options, 400);
    let whole = std::fs::read(&path).unwrap();
    let trace = LazyTrace::open(&path).unwrap();
    let calls: usize = trace.threads().iter().map(|it| check_calls(&trace, it.id)).sum();
    assert!(calls > 300, "{calls}");
    assert!(trace.threads().iter().any(|it| numbers_of(&trace, it.id).contains(&(true, 0))));
    assert!(trace.for_each_sample_of(ThreadId(9), 0..=9, &mut |_, _, _| ()).is_err());
    for (start, length) in (60..whole.len()).step_by(797).flat_map(|at| [(at, 1), (at, 1500)]) {
        let mut damaged = whole.clone();
        let end = damaged.len().min(start + length);
        damaged[start..end].iter_mut().for_each(|byte| *byte ^= 0x55);
        std::fs::write(&path, damaged).unwrap();
        let trace = LazyTrace::open(&path).unwrap();
        // A matching index is used until the damage is found.
        trace.for_each_sample(&Window::default(), &mut |_, _, _| {}).unwrap();
        let calls = trace.threads().iter().map(|it| check_calls(&trace, it.id));
        assert!(calls.sum::<usize>() > 0, "{start}");
    }
}

#[test]
fn samples_of_a_thread_are_those_between_the_times() {
    let dir = tempfile::tempdir().unwrap();
    let options = WriterOptions { block_bytes: 150, frame_bytes: 400, ..Default::default() };
    let trace = LazyTrace::open(&written(dir.path(), options, 900)).unwrap();
    for summary in trace.threads() {
        for times in [0..=u64::MAX, 1010..=1010, 5000..=9000, 9001..=9001] {
            let window = Window {
                threads: Some([summary.id].into()),
                from_ns: *times.start(),
                to_ns: *times.end(),
            };
            let (mut expected, mut found) = (Vec::new(), Vec::new());
            trace
                .for_each_sample(&window, &mut |_, sample, _| expected.push(sample.time_ns))
                .unwrap();
            trace
                .for_each_sample_of(summary.id, times, &mut |_, _, sample| {
                    found.push(sample.time_ns);
                })
                .unwrap();
            found.sort();
            assert_eq!(found, expected);
        }
    }
}
