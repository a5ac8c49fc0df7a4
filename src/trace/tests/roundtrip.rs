//! Tests that the written data is read back, whatever the stacks.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// An event of a thread.
#[derive(Debug, Clone)]
pub(super) enum Step {
    /// A sample with this stack, or with the last one changed from some depth on.
    Sample {
        thread: usize,
        keep: usize,
        rest: Vec<usize>,
        sample: Sample,
    },
    /// A time without samples.
    Pause {
        length_ns: u64,
    },
    Exit {
        thread: usize,
    },
    Flush,
}

const THREADS: usize = 4;
const METHODS: u32 = 4;
/// What samples wait on; the last is also a name.
const TEXTS: [&str; 3] = ["pipe", "socket tcp 127.0.0.1:6379", "method1"];

fn any_sample() -> impl Strategy<Value = Sample> {
    let reason = prop_oneof![4 => Just(0u16), 2 => 1u16..7];
    let rare32 = || prop_oneof![4 => Just(0u32), 1 => any::<u32>()];
    let rare64 = || prop_oneof![4 => Just(0u64), 1 => any::<u64>()];
    let tags = prop_oneof![4 => Just([0; 10]), 1 => prop::array::uniform10(rare32())];
    let syscall = prop::option::of(any::<u32>());
    let waits_on = prop::option::of((0..TEXTS.len() as u32).prop_map(TextId));
    let time = prop_oneof![8 => 900u64..1100, 1 => 0u64..100_000];
    let numbers = (time, 0u64..5, 0u64..9, prop_oneof![4 => Just(1u32), 1 => any::<u32>()], reason);
    let state = prop_oneof![3 => Just(0u8), 1 => any::<u8>()];
    (numbers, rare32(), state, (syscall, waits_on), rare64(), tags).prop_map(
        |(numbers, flags, state, (syscall, waits_on), span, tags)| {
            let (time_ns, epoch, slot, weight, end_reason) = numbers;
            let trace_id = epoch << 32 | slot;
            let (root_span, root_high) = (span / 2, span >> 40);
            Sample {
                time_ns,
                trace_id,
                weight,
                end_reason,
                flags,
                state,
                syscall,
                waits_on,
                span,
                root_span,
                root_high,
                tags,
            }
        },
    )
}

pub(super) fn any_step() -> impl Strategy<Value = Step> {
    let places = prop::collection::vec(0..METHODS as usize * 10, 0..6);
    prop_oneof![
        20 => (0..THREADS, 0usize..8, places, any_sample())
            .prop_map(|(thread, keep, rest, sample)| Step::Sample { thread, keep, rest, sample }),
        1 => (0u64..9000).prop_map(|length_ns| Step::Pause { length_ns }),
        1 => (0..THREADS).prop_map(|thread| Step::Exit { thread }),
        1 => Just(Step::Flush),
    ]
}

pub(super) type Expected = Vec<Vec<(Sample, Vec<LocationId>)>>;

/// Writes the steps. Returns the expected result of reading.
pub(super) fn write(writer: &mut TraceWriter, steps: &[Step]) -> Expected {
    let ids = locations(writer, METHODS);
    let threads: Vec<_> =
        (0..THREADS as u32).map(|tid| writer.thread(&thread(tid)).unwrap()).collect();
    let texts = TEXTS.map(|text| writer.text(text).unwrap());
    let mut expected: Expected = vec![Vec::new(); THREADS];
    let mut stacks = vec![Vec::new(); THREADS];
    let mut now = 1u64 << 40;
    let mut ended = [false; THREADS];
    for step in steps {
        match step {
            Step::Sample { thread, .. } | Step::Exit { thread } if ended[*thread] => {
                let refused = writer.thread_exit(threads[*thread], now);
                assert!(matches!(refused, Err(TraceError::UnknownId { kind: "thread", .. })));
            }
            Step::Sample { thread, keep, rest, sample } => {
                now += sample.time_ns;
                let waits_on = sample.waits_on.map(|place| texts[place.0 as usize]);
                let sample = Sample { time_ns: now, waits_on, ..sample.clone() };
                let stack: &mut Vec<LocationId> = &mut stacks[*thread];
                stack.truncate(*keep);
                stack.extend(rest.iter().map(|place| ids[*place]));
                // The outer frames that are cut off are unknown, so the stack may start anywhere.
                let known = &stack[if sample.end_reason == 0 { 0 } else { stack.len() / 3 }..];
                writer.sample(threads[*thread], &sample, known).unwrap();
                expected[*thread].push((sample, known.to_vec()));
            }
            Step::Pause { length_ns } => now += length_ns,
            Step::Exit { thread } => {
                ended[*thread] = true;
                writer.thread_exit(threads[*thread], now).unwrap();
            }
            Step::Flush => writer.flush().unwrap(),
        }
    }
    expected
}

fn options(frame_bytes: usize, compress: Compression) -> WriterOptions {
    WriterOptions { frame_bytes, compress, buffer_bytes: 3000, ..WriterOptions::default() }
}

/// Checks that the counts of the forest match the samples, and that times nest.
fn check_forest(thread: &ThreadTrace, methods: &[Location]) {
    let mut leaves = 0;
    let mut rest: Vec<_> = thread.roots().map(|root| (root, (0, u64::MAX))).collect();
    while let Some((node, (first_ns, last_ns))) = rest.pop() {
        match node {
            Node::Call(call) => {
                assert!(call.first_ns() >= first_ns && call.last_ns() <= last_ns);
                let below: u64 = call
                    .children()
                    .map(|child| match child {
                        Node::Call(call) => call.samples(),
                        Node::Sample(_) => 1,
                        _ => 0,
                    })
                    .sum();
                assert_eq!(call.samples(), below);
                assert!(below > 0);
                let _ = &methods[call.location().0 as usize];
                let range = (call.first_ns(), call.last_ns());
                rest.extend(call.children().map(|child| (child, range)));
            }
            Node::Sample(sample) => {
                assert!((first_ns..=last_ns).contains(&sample.time_ns));
                leaves += 1;
            }
            Node::Gap { .. }
            | Node::ThreadStart { .. }
            | Node::ThreadExit { .. }
            | Node::Lost { .. } => {}
        }
    }
    assert_eq!(leaves, thread.sample_count());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn stack_after_each_sample_is_the_samples_stack(
        steps in prop::collection::vec(any_step(), 0..120),
        frame_bytes in prop_oneof![Just(1usize), 20usize..400, Just(256 << 10)],
        period_ns in prop_oneof![Just(0u64), Just(1000)],
        plain in any::<bool>(),
    ) {
        let compress = if plain { Compression::None } else { Compression::Zstd(1) };
        let write_as = |mode| {
            let options = WriterOptions { mode, ..options(frame_bytes, compress) };
            let (mut writer, data, index) = memory_writer(options);
            writer.set_metadata("period_ns", Value::Unsigned(period_ns)).unwrap();
            let expected = write(&mut writer, &steps);
            let written = writer.finish().unwrap();
            assert_eq!(written.data_bytes, data.bytes().len() as u64);
            assert_eq!(written.index_bytes, index.bytes().len() as u64);
            (expected, data.bytes(), index.bytes())
        };
        let (expected, data, index) = write_as(WriteMode::Streaming);
        let trace = load_bytes(&data).unwrap();
        prop_assert!(trace.closed);
        prop_assert_eq!(&trace.notices, &Vec::<String>::new());
        for (thread, expected) in trace.threads.iter().zip(&expected) {
            prop_assert_eq!(&samples_of(thread), expected);
            check_forest(thread, &trace.locations);
        }
        let (_, data_again, index_again) = write_as(WriteMode::Streaming);
        prop_assert!(data == data_again && index == index_again, "equal input, other bytes");
        let (_, collected, _) = write_as(WriteMode::Collect);
        let collected = load_bytes(&collected).unwrap();
        prop_assert_eq!(outline(&collected), outline(&trace));
    }
}

#[test]
fn every_object_survives() {
    let (mut writer, data, _) = memory_writer(WriterOptions::default());
    let long = "x".repeat(70_000) + "\0\u{1f600}";
    let list = Value::List(vec![Value::Unsigned(7), Value::Text(long.clone())]);
    writer.set_metadata("engine", Value::Text("perf".into())).unwrap();
    writer.set_metadata("engine", list.clone()).unwrap();
    let module = Module { path: "a\x1b[31m\0é\u{1f600}".into(), build_id: vec![0xff; 20] };
    let module_id = writer.module(&module).unwrap();
    assert_eq!(writer.module(&module).unwrap(), module_id);
    let method = Method {
        module: Some(module_id),
        name: long.clone(),
        start_svma: u64::MAX,
        ..Method::default()
    };
    let method_id = writer.method(&method).unwrap();
    let outer = Location::at(method_id, 5);
    let outer_id = writer.location(&outer).unwrap();
    let inlined =
        Location { file: Some(long), line: 9, inline_parent: Some(outer_id), ..outer.clone() };
    assert_eq!(writer.location(&inlined).unwrap(), LocationId(1));
    assert_eq!(writer.location(&outer).unwrap(), outer_id);
    let mapped = MappedModule {
        pid: 3,
        start: 1 << 47,
        end: u64::MAX,
        file_offset: 4096,
        module: module_id,
        first_seen_ns: 11,
    };
    writer.mapped_module(&mapped).unwrap();
    let first = writer.thread(&thread(9)).unwrap();
    let second = writer.thread(&thread(9)).unwrap();
    assert_ne!(first, second);
    writer.set_runtime_name(second, "other").unwrap();
    writer.rename_thread(second, "renamed").unwrap();
    writer.set_runtime_name(second, "größe").unwrap();
    let trace_of = |trace_id, stack: &[LocationId], end_reason| CallTrace {
        trace_id,
        stack: stack.to_vec(),
        end_reason,
    };
    let call_traces = [
        trace_of(1 << 32 | 7, &[outer_id, LocationId(1)], 0),
        trace_of(1 << 32 | 8, &[outer_id, LocationId(1), outer_id], 3),
        trace_of(2 << 32 | 7, &[], 2),
    ];
    call_traces.iter().for_each(|it| writer.call_trace(it).unwrap());
    writer.call_trace(&call_traces[2]).unwrap();
    writer.thread_exit(first, 99).unwrap();
    writer.finish().unwrap();
    let mut trace = load_bytes(&data.bytes()).unwrap();
    assert!(
        matches!(trace.metadata.remove("trace_uuid"), Some(Value::Text(uuid)) if uuid.len() == 32)
    );
    assert_eq!(trace.metadata, [("engine".to_string(), list)].into());
    for call_trace in call_traces {
        assert_eq!(trace.call_traces.get(call_trace.trace_id), Some(call_trace));
    }
    assert_eq!((trace.call_traces.len(), trace.call_traces.get(9)), (3, None));
    assert_eq!(trace.modules, [module]);
    assert_eq!(trace.methods, [method]);
    assert_eq!(trace.locations, [outer, inlined]);
    assert_eq!(trace.mapped, [mapped]);
    assert_eq!(trace.threads[0].thread(), &Thread { ended_ns: Some(99), ..thread(9) });
    let (name, runtime_name) = ("renamed".into(), Some("größe".into()));
    assert_eq!(trace.threads[1].thread(), &Thread { name, runtime_name, ..thread(9) });
    assert_eq!(trace.threads[1].id(), second);
}

#[test]
fn a_name_too_long_for_the_format_is_cut_and_stays_distinct() {
    let (mut writer, data, _) = memory_writer(WriterOptions::default());
    let name = |last: char| "é".repeat(400_000) + &last.to_string();
    for last in ['a', 'b', 'a'] {
        let method = Method { module: None, name: name(last), ..Method::default() };
        writer.method(&method).unwrap();
    }
    writer.finish().unwrap();
    let trace = load_bytes(&data.bytes()).unwrap();
    assert_eq!(trace.methods.len(), 2);
    assert!(
        trace
            .methods
            .iter()
            .all(|method| method.name.starts_with("éé") && method.name.len() < 1 << 20)
    );
    assert_ne!(trace.methods[0].name, trace.methods[1].name);
}

#[test]
fn what_the_format_cannot_hold_is_refused() {
    let (mut writer, _, _) = memory_writer(WriterOptions::default());
    let ids = locations(&mut writer, 1);
    let id = writer.thread(&thread(1)).unwrap();
    let deep = vec![ids[0]; MAX_DEPTH];
    assert!(matches!(writer.sample(id, &sample(1), &deep), Err(TraceError::LimitExceeded { .. })));
    writer.sample(id, &sample(1), &deep[1..]).unwrap();
    let strangers = [
        writer.sample(id, &sample(1), &[LocationId(10)]),
        writer.sample(ThreadId(1), &sample(1), &[]),
        writer.sample(id, &Sample { waits_on: Some(TextId(13)), ..sample(1) }, &[]),
        writer.thread_exit(ThreadId(1), 1),
        writer.rename_thread(ThreadId(1), ""),
        writer.method(&Method { module: Some(ModuleId(1)), ..Method::default() }).map(drop),
    ];
    for refused in strangers {
        let error = refused.unwrap_err();
        assert!(matches!(error, TraceError::UnknownId { .. }), "{error}");
        assert!(!error.is_output_error());
    }
}

#[test]
fn the_deepest_truncated_stacks_survive() {
    let (mut writer, data, _) = memory_writer(WriterOptions::default());
    let ids = locations(&mut writer, 2);
    let id = writer.thread(&thread(1)).unwrap();
    let cut = |time_ns| Sample { end_reason: 5, ..sample(time_ns) };
    let deep = vec![ids[0]; MAX_DEPTH - 1];
    let mut other = deep.clone();
    other[1..].fill(ids[10]);
    let expected =
        [(sample(1), deep.clone()), (cut(2), deep.clone()), (cut(3), other), (cut(4), deep)];
    for (sample, stack) in &expected {
        writer.sample(id, sample, stack).unwrap();
    }
    writer.finish().unwrap();
    assert_eq!(samples_of(&load_bytes(&data.bytes()).unwrap().threads[0]), expected);
}

#[test]
fn decreasing_times_are_raised() {
    let (mut writer, data, _) = memory_writer(WriterOptions::default());
    let ids = locations(&mut writer, 1);
    let id = writer.thread(&thread(1)).unwrap();
    for time_ns in [10, 20, 15, 30] {
        writer.sample(id, &sample(time_ns), &ids[..1]).unwrap();
    }
    writer.finish().unwrap();
    let times: Vec<_> = samples_of(&load_bytes(&data.bytes()).unwrap().threads[0])
        .iter()
        .map(|(sample, _)| sample.time_ns)
        .collect();
    assert_eq!(times, [10, 20, 20, 30]);
}

#[test]
fn without_trace_ids_they_are_zero() {
    for (trace_ids, expected) in [(true, 5 << 32 | 7), (false, 0)] {
        let (mut writer, data, _) =
            memory_writer(WriterOptions { trace_ids, ..WriterOptions::default() });
        let id = writer.thread(&thread(1)).unwrap();
        let with_id = Sample { trace_id: 5 << 32 | 7, ..sample(1) };
        writer.sample(id, &with_id, &[]).unwrap();
        writer.finish().unwrap();
        let trace = load_bytes(&data.bytes()).unwrap();
        assert_eq!(samples_of(&trace.threads[0])[0].0.trace_id, expected);
    }
}

/// Ids from a storage take no bytes beyond the first epoch and the first presence word of a block:
/// each is the next new id or that of its stack.
#[test]
fn trace_ids_that_are_as_expected_take_no_bytes() {
    let [with, without] = [true, false].map(|trace_ids| {
        let compress = Compression::None;
        let options = WriterOptions { trace_ids, compress, ..WriterOptions::default() };
        let (mut writer, data, _) = memory_writer(options);
        let ids = locations(&mut writer, 9);
        let id = writer.thread(&thread(1)).unwrap();
        for n in 0..300u64 {
            // Ninety stacks, each repeated often.
            let stack = n * 7 % 90;
            let slot = if n < 90 { n } else { (0..90).find(|m| m * 7 % 90 == stack).unwrap() };
            let sample = Sample { trace_id: 2 << 32 | slot, ..sample(n) };
            writer.sample(id, &sample, &[ids[stack as usize]]).unwrap();
        }
        writer.finish().unwrap();
        data.bytes().len()
    });
    assert!(with - without < 10, "{with} {without}");
}

#[test]
fn ten_thousand_threads_stay_within_the_budget() {
    let buffer_bytes = 64 << 10;
    let (mut writer, data, _) =
        memory_writer(WriterOptions { buffer_bytes, ..WriterOptions::default() });
    let ids = locations(&mut writer, 3);
    let threads: Vec<_> = (0..10_000).map(|tid| writer.thread(&thread(tid)).unwrap()).collect();
    for round in 1..4 {
        for (place, id) in threads.iter().enumerate() {
            let stack = [ids[place % 30], ids[round]];
            writer.sample(*id, &sample(round as u64 * 1000), &stack).unwrap();
            assert!(writer.waiting() < buffer_bytes);
        }
    }
    writer.finish().unwrap();
    let trace = load_bytes(&data.bytes()).unwrap();
    assert!(trace.threads.iter().all(|thread| thread.sample_count() == 3));
    let names: HashMap<_, _> =
        trace.threads.iter().map(|thread| (&thread.thread().name, thread.id())).collect();
    assert_eq!(names.len(), 10_000);
}
