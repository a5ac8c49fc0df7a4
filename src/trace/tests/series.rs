//! Tests of parts against one file of the same recording.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::trace::{
    self, CallTrace, LazyTrace, Location, LocationId, MappedModule, Metadata, Method, Module,
    RingPlan, RotateAfter, SYMBOLS, Sample, SeriesPlan, TagKey, TagKind, Thread, ThreadId,
    TraceSeries, TraceWriter, Value, Window, WriterOptions,
};

const THREADS: u32 = 3;
const SAMPLES: u64 = 6000;

fn plan(dir: &Path, rotate_after: RotateAfter, keep: Option<u32>) -> SeriesPlan {
    let dir = dir.to_owned();
    let name = Box::new(move |number| dir.join(format!("part-{number:04}.trace")));
    SeriesPlan { name, rotate_after, keep, ring: None }
}

fn options() -> WriterOptions {
    WriterOptions { block_bytes: 1 << 10, frame_bytes: 4 << 10, ..WriterOptions::default() }
}

/// Returns a stack of a function with another one inlined into it, and a call of a third.
fn stack(series: &mut TraceSeries, number: u64) -> Vec<LocationId> {
    let module = Module { path: format!("/lib/{}.so", number % 2), build_id: vec![1, 2] };
    let module = series.module(&module).unwrap();
    series
        .set_metadata(&format!("{SYMBOLS}{}", module.0), Value::Text(module.0.to_string()))
        .unwrap();
    let mut parent = None;
    let mut stack = Vec::new();
    for name in ["outer", "inlined", "inner"] {
        let name = format!("{name}-{}", number % 7);
        let method =
            Method { module: Some(module), name, start_svma: number % 7, ..Method::default() };
        let method = series.method(&method).unwrap();
        let file = Some(format!("{}.c", number % 3));
        let inline_parent = parent.take();
        let place = Location { file, line: 3, inline_parent, ..Location::at(method, number % 7) };
        stack.push(series.location(&place).unwrap());
        parent = stack.last().copied().filter(|_| stack.len() == 1);
    }
    stack
}

fn write(series: &mut TraceSeries) {
    for key in ["start_monotonic_ns", "start_realtime_ns"] {
        series.set_metadata(key, Value::Unsigned(1000)).unwrap();
    }
    let (key, tags) = TagKey::metadata(&[
        TagKey { name: "number".to_owned(), kind: TagKind::Number },
        TagKey { name: "route".to_owned(), kind: TagKind::Text },
    ]);
    series.set_metadata(key, tags).unwrap();
    let thread = |number: u32| Thread {
        pid: 7,
        tid: number,
        name: format!("t{number}"),
        ..Thread::default()
    };
    let threads: Vec<ThreadId> =
        (0..THREADS).map(|number| series.thread(&thread(number)).unwrap()).collect();
    series
        .set_metadata("inner_ids.2", Value::List(vec![Value::Unsigned(1), Value::Unsigned(2)]))
        .unwrap();
    for number in 0..SAMPLES {
        let stack = stack(series, number / 5);
        let route = series.text(&format!("/route/{}", number % 11)).unwrap();
        let place = series.text(&format!("pipe {}", number % 4)).unwrap();
        if number == 100 {
            let module =
                series.module(&Module { path: "/late.so".into(), build_id: vec![] }).unwrap();
            let mapped =
                MappedModule { pid: 7, start: 1, end: 2, file_offset: 0, module, first_seen_ns: 3 };
            series.mapped_module(&mapped).unwrap();
        }
        let sample = Sample {
            time_ns: 2000 + number * 10,
            trace_id: 2 + number,
            weight: 1 + (number % 3) as u32,
            syscall: Some(7),
            waits_on: Some(place),
            tags: [5, route.0 + 1, 0, 0, 0, 0, 0, 0, 0, 0],
            ..Sample::default()
        };
        let thread = threads[(number % u64::from(THREADS)) as usize];
        series.sample(thread, &sample, &stack).unwrap();
        if number == SAMPLES / 2 {
            series.rename_thread(threads[1], "renamed").unwrap();
        }
        if number % 100 == 99 {
            series.flush().unwrap();
        }
    }
    let heaviest = stack(series, 3);
    let trace = CallTrace { trace_id: 5, stack: heaviest, end_reason: 0 };
    series.call_trace(&trace).unwrap();
    series.thread_exit(threads[0], 1 << 40).unwrap();
}

/// Describes all samples in words, by thread and time.
fn described_samples(path: &Path) -> BTreeMap<(u32, u64), String> {
    let trace = LazyTrace::open(path).unwrap();
    assert!(trace.closed() && trace.notices().is_empty(), "{path:?}: {:?}", trace.notices());
    let verified = trace::verify(path);
    assert!(verified.is_ok(), "{path:?}");
    let mut described = BTreeMap::new();
    let mut samples = Vec::new();
    trace
        .for_each_sample(&Window::default(), &mut |thread, sample, stack| {
            samples.push((thread, sample.clone(), stack.to_vec()));
        })
        .unwrap();
    for (thread, sample, stack) in samples {
        let mut text = String::new();
        for id in stack {
            let place = trace.location(id).unwrap();
            let method = trace.method(place.method).unwrap();
            let module = trace.module(method.module.unwrap()).unwrap();
            let symbols = &trace.metadata()[&format!("{SYMBOLS}{}", method.module.unwrap().0)];
            assert!(matches!(symbols, Value::Text(_)));
            let inlined = place.inline_parent.is_some();
            text += &format!("{module:?} {} {:?} {inlined};", method.name, place.file);
        }
        let waits = trace.text(sample.waits_on.unwrap()).unwrap();
        let route = trace.tag_text(trace::TextId(sample.tags[1] - 1)).unwrap();
        let thread = &trace.threads()[thread.0 as usize].thread;
        let Sample { time_ns, trace_id, weight, .. } = sample;
        text += &format!("{waits} {route} {} {trace_id} {weight} {}", sample.tags[0], thread.tid);
        assert!(described.insert((thread.tid, time_ns), text).is_none());
    }
    described
}

/// Describes the call traces that are objects in words, by id.
fn call_traces(path: &Path) -> BTreeMap<u64, (Vec<String>, u16)> {
    let trace = trace::load(path).unwrap();
    let name = |place: &LocationId| {
        let method = trace.locations[place.0 as usize].method;
        trace.methods[method.0 as usize].name.clone()
    };
    let described =
        |it: CallTrace| (it.trace_id, (it.stack.iter().map(name).collect(), it.end_reason));
    trace.call_traces.iter().map(described).collect()
}

fn parts_of(dir: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(dir).unwrap().map(|it| it.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|it| it == "trace"));
    paths.sort();
    paths
}

#[test]
fn parts_hold_together_what_one_file_has() {
    let dir = tempfile::tempdir().unwrap();
    let one = dir.path().join("one.trace");
    let mut series = TraceSeries::of_one(TraceWriter::create(&one, options()).unwrap());
    write(&mut series);
    series.set_closing([("cpu_time_ns".to_owned(), Value::Unsigned(1))].into()).unwrap();
    let whole = series.finish().unwrap();
    let expected = described_samples(&one);
    assert_eq!(expected.len() as u64, SAMPLES);
    std::fs::remove_file(&one).unwrap();

    let mut series =
        TraceSeries::create(plan(dir.path(), RotateAfter::Bytes(20_000), None), options()).unwrap();
    write(&mut series);
    series.set_closing([("cpu_time_ns".to_owned(), Value::Unsigned(1))].into()).unwrap();
    let (kept, begun) = series.parts();
    let written = series.finish().unwrap();
    let paths = parts_of(dir.path());
    assert!(paths.len() >= 3, "{paths:?}");
    assert_eq!((kept, begun as usize), (paths.clone(), paths.len()));
    assert_eq!(written.samples, whole.samples);
    let bytes: u64 = paths.iter().map(|path| path.metadata().unwrap().len()).sum();
    assert_eq!(written.data_bytes, bytes);
    let mut all = BTreeMap::new();
    for (place, path) in paths.iter().enumerate() {
        for (key, text) in described_samples(path) {
            assert!(all.insert(key, text).is_none(), "a sample is in two parts");
        }
        check_part(path, place as u64 + 1, paths.len() as u64);
    }
    assert!(all == expected, "the parts say something else");
}

fn check_part(path: &Path, number: u64, count: u64) {
    let trace = trace::load(path).unwrap();
    let metadata: &Metadata = &trace.metadata;
    assert_eq!(metadata["part"], Value::Unsigned(number));
    let Value::Unsigned(begin) = metadata["start_monotonic_ns"] else { panic!() };
    assert_eq!(begin == 1000, number == 1);
    assert_eq!(metadata.contains_key("recording_start_monotonic_ns"), number > 1);
    assert_eq!(metadata.contains_key("end_monotonic_ns"), number < count);
    assert_eq!(metadata.contains_key("recording.cpu_time_ns"), number == count);
    assert!(!metadata.contains_key("cpu_time_ns"));
    let times = |thread: &trace::ThreadTrace| {
        let mut times = Vec::new();
        thread.for_each_sample(&mut |sample, _| times.push(sample.time_ns));
        times
    };
    assert!(trace.threads.iter().flat_map(times).all(|time_ns| time_ns >= begin));
    let inner = trace.threads.iter().find(|thread| thread.thread.tid == 2).unwrap();
    assert!(metadata.contains_key(&format!("inner_ids.{}", inner.id.0)));
    let late = trace.modules.iter().any(|module| module.path == "/late.so");
    assert!(late || number == 1, "what is mapped is in every later part");
    if number == count {
        assert!(trace.threads.iter().any(|thread| thread.thread.name == "renamed"));
        assert!(trace.threads.iter().any(|thread| thread.thread.ended_ns == Some(1 << 40)));
        assert_eq!(trace.call_traces.get(5).unwrap().stack.len(), 3);
    }
}

/// Returns the calls and gaps in forest order.
fn shape(path: &Path) -> Vec<(u32, Vec<String>)> {
    let trace = trace::load(path).unwrap();
    let mut shapes = Vec::new();
    for thread in &trace.threads {
        let mut calls = Vec::new();
        let mut open: Vec<trace::Node<'_>> = thread.roots().collect();
        while let Some(node) = open.pop() {
            if let trace::Node::Call(call) = node {
                let name = &trace.methods
                    [trace.locations[call.location().0 as usize].method.0 as usize]
                    .name;
                calls.push(format!("{name} {} {}", call.samples(), call.unfinished()));
                open.extend(call.children());
            }
        }
        shapes.push((thread.thread.tid, calls));
    }
    shapes
}

#[test]
fn joined_parts_are_what_one_file_is_calls_included() {
    let dir = tempfile::tempdir().unwrap();
    let one = dir.path().join("whole.trace");
    let mut series = TraceSeries::of_one(TraceWriter::create(&one, options()).unwrap());
    write(&mut series);
    series.finish().unwrap();
    let mut series =
        TraceSeries::create(plan(dir.path(), RotateAfter::Bytes(20_000), None), options()).unwrap();
    write(&mut series);
    let (parts, _) = series.parts();
    series.finish().unwrap();
    assert!(parts.len() >= 3);
    let joined = dir.path().join("joined.trace");
    let written = trace::join(&parts, &joined, options()).unwrap();
    assert_eq!(written.samples, SAMPLES);
    assert!(described_samples(&joined) == described_samples(&one));
    assert_eq!(shape(&joined), shape(&one));
    assert!(call_traces(&joined) == call_traces(&one) && !call_traces(&one).is_empty());
    let metadata = trace::load(&joined).unwrap().metadata;
    assert_eq!(metadata["start_monotonic_ns"], Value::Unsigned(1000));
    assert!(!metadata.contains_key("part"));
    let error = trace::join(&parts, &joined, options()).unwrap_err();
    assert!(error.is_output_error(), "{error}");
}

#[test]
fn a_ring_is_saved_during_the_recording_and_at_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().join("x.ring");
    std::fs::create_dir(&directory).unwrap();
    let (first, last) = (dir.path().join("first.trace"), dir.path().join("last.trace"));
    let (save, end) = (first.clone(), last.clone());
    let ring = RingPlan {
        time: Duration::MAX,
        directory: directory.clone(),
        save: Arc::new(move || save.clone()),
        last: Box::new(move || end.clone()),
    };
    let plan =
        SeriesPlan { ring: Some(ring), ..plan(&directory, RotateAfter::Bytes(20_000), Some(2)) };
    let mut series = TraceSeries::create(plan, options()).unwrap();
    let saves = series.saves();
    series.save().unwrap();
    let early = saves.all();
    assert_eq!(early[0].outcome, Err("no samples are written yet".to_owned()));
    write(&mut series);
    series.save().unwrap();
    let thread = series.thread(&Thread { tid: 77, ..Thread::default() }).unwrap();
    series.sample(thread, &Sample { time_ns: 1 << 40, ..Sample::default() }, &[]).unwrap();
    let written = series.finish().unwrap();
    let saved = &saves.all()[1..];
    assert_eq!(saved.iter().map(|saved| &saved.path).collect::<Vec<_>>(), [&first, &last]);
    let samples = |path: &Path| -> usize {
        trace::load(path).unwrap().threads.iter().map(trace::ThreadTrace::sample_count).sum()
    };
    let (before, after) = (samples(&first), samples(&last));
    assert!(before > 0 && (before as u64) < SAMPLES, "{before} of a ring");
    assert_eq!(saved[0].outcome.as_ref().unwrap().samples, before as u64);
    assert_eq!((written.samples, written.samples > 1), (after as u64, true));
    assert!(!directory.exists(), "the parts are left");
    let threads = trace::load(&last).unwrap().threads;
    assert!(threads.iter().any(|thread| thread.thread.tid == 77));
}

/// The number of parts that the saves create does not matter.
#[test]
fn saves_in_quick_succession_have_the_complete_time_span_of_a_ring() {
    const SAVES: usize = 10;
    const TIME: Duration = Duration::from_micros(500);
    let dir = tempfile::tempdir().unwrap();
    let saved = dir.path().join("saved");
    std::fs::create_dir(&saved).unwrap();
    let ring = RingPlan {
        time: TIME,
        directory: dir.path().to_owned(),
        save: Arc::new(move || {
            let count = std::fs::read_dir(&saved).map_or(0, Iterator::count);
            saved.join(format!("{count:04}.trace"))
        }),
        last: Box::new(|| PathBuf::from("/nowhere/last.trace")),
    };
    let plan =
        SeriesPlan { ring: Some(ring), ..plan(dir.path(), RotateAfter::Bytes(1 << 30), Some(500)) };
    let mut series = TraceSeries::create(plan, options()).unwrap();
    let thread = series.thread(&Thread::default()).unwrap();
    let mut times = 1000..;
    let mut sample = |series: &mut TraceSeries, count: usize| {
        for time_us in times.by_ref().take(count) {
            let sample = Sample { time_ns: time_us * 1000, ..Sample::default() };
            series.sample(thread, &sample, &[]).unwrap();
        }
    };
    let saves = series.saves();
    for number in 1..=2 * SAVES {
        // Half of the saves end the parts that would exist without saves.
        sample(&mut series, if number <= SAVES { 100 } else { 3 });
        series.save().unwrap();
        // Parts that are being read are not removed, so each save waits for the previous one.
        let begin = Instant::now();
        while saves.all().len() < number && begin.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let samples = saves.all().into_iter().skip(SAVES).map(|it| it.outcome.unwrap().samples);
    let samples: Vec<u64> = samples.collect();
    let least = TIME.as_micros() as u64;
    assert_eq!(samples.len(), SAVES);
    assert!(samples.iter().all(|it| (least..least * 2).contains(it)), "{samples:?}");
}

#[test]
fn the_rest_of_a_ring_can_be_dropped_unless_a_save_has_failed() {
    for fails in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join("x.ring");
        std::fs::create_dir(&directory).unwrap();
        let [saved, last] = ["saved.trace", "last.trace"].map(|name| dir.path().join(name));
        if fails {
            std::fs::write(&saved, "precious").unwrap();
        }
        let (save, end) = (saved.clone(), last.clone());
        let ring = RingPlan {
            time: Duration::MAX,
            directory: directory.clone(),
            save: Arc::new(move || save.clone()),
            last: Box::new(move || end.clone()),
        };
        let plan =
            SeriesPlan { ring: Some(ring), ..plan(&directory, RotateAfter::Bytes(20_000), None) };
        let mut series = TraceSeries::create(plan, options()).unwrap();
        let saves = series.saves();
        write(&mut series);
        series.save().unwrap();
        series.drop_rest();
        let written = series.finish().unwrap();
        assert_eq!((saves.is_dropped(), last.exists()), (!fails, fails));
        assert_eq!(written.samples, SAMPLES, "of what was saved last, and that is all of it");
        assert!(!directory.exists(), "the parts are left");
    }
}

#[test]
fn closing_figures_are_those_of_the_trace_if_the_ring_has_all_of_it() {
    for (keep, key) in [(None, "cpu_time_ns"), (Some(2), "recording.cpu_time_ns")] {
        let dir = tempfile::tempdir().unwrap();
        let last = dir.path().join("last.trace");
        let end = last.clone();
        let ring = RingPlan {
            time: Duration::MAX,
            directory: dir.path().to_owned(),
            save: Arc::new(PathBuf::new),
            last: Box::new(move || end.clone()),
        };
        let plan =
            SeriesPlan { ring: Some(ring), ..plan(dir.path(), RotateAfter::Bytes(20_000), keep) };
        let mut series = TraceSeries::create(plan, options()).unwrap();
        write(&mut series);
        series.set_closing([("cpu_time_ns".to_owned(), Value::Unsigned(1))].into()).unwrap();
        series.finish().unwrap();
        let metadata = trace::load(&last).unwrap().metadata;
        assert_eq!(metadata[key], Value::Unsigned(1));
        let keys = metadata.keys().filter(|key| key.ends_with("cpu_time_ns"));
        assert_eq!(keys.count(), 1);
    }
}

#[test]
fn only_the_last_parts_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let plan = plan(dir.path(), RotateAfter::Bytes(20_000), Some(2));
    let mut series = TraceSeries::create(plan, options()).unwrap();
    write(&mut series);
    let (kept, begun) = series.parts();
    let written = series.finish().unwrap();
    assert!(begun > 3);
    assert_eq!((parts_of(dir.path()), kept.len()), (kept, 2));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 4, "an index is left");
    assert_eq!(written.samples, SAMPLES, "what was removed was written all the same");
}

#[test]
fn an_age_is_enough_for_a_part_that_has_samples() {
    let dir = tempfile::tempdir().unwrap();
    let plan = plan(dir.path(), RotateAfter::Age(Duration::ZERO), None);
    let mut series = TraceSeries::create(plan, options()).unwrap();
    series.flush().unwrap();
    assert_eq!(series.parts().1, 1, "an empty part is no part");
    let thread = series.thread(&Thread::default()).unwrap();
    series.sample(thread, &Sample::default(), &[]).unwrap();
    assert_eq!(series.parts().1, 2);
    series.finish().unwrap();
}

#[test]
fn a_failure_to_create_a_part_leaves_the_previous_part_complete() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("part-0002.trace"), "precious").unwrap();
    let plan = plan(dir.path(), RotateAfter::Age(Duration::ZERO), None);
    let mut series = TraceSeries::create(plan, options()).unwrap();
    let thread = series.thread(&Thread::default()).unwrap();
    let error = series.sample(thread, &Sample::default(), &[]).unwrap_err();
    assert!(error.is_output_error(), "{error}");
    series.finish().unwrap();
    assert_eq!(trace::load(&dir.path().join("part-0001.trace")).unwrap().threads.len(), 1);
    assert_eq!(std::fs::read(dir.path().join("part-0002.trace")).unwrap(), b"precious");
}

#[test]
fn a_limit_is_kept_whatever_comes() {
    for compress in [trace::Compression::None, trace::Compression::Zstd(3)] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.trace");
        let options = WriterOptions { compress, ..WriterOptions::default() };
        let mut series = TraceSeries::of_one(TraceWriter::create(&path, options).unwrap());
        series.limit(1 << 20);
        let thread = series.thread(&Thread::default()).unwrap();
        let mut taken = 0;
        let mut was_full = false;
        for number in 0..400_000u64 {
            let time_ns = number * 1_000 + number.wrapping_mul(0x9e37_79b9) % 1000;
            if !series.has_room().unwrap() {
                assert!(series.is_full());
                break;
            }
            was_full |= series.is_full();
            let stack = stack(&mut series, number.wrapping_mul(0x9e37_79b9) >> 7);
            let sample =
                Sample { time_ns, trace_id: time_ns, span: number << 20, ..Sample::default() };
            series.sample(thread, &sample, &stack).unwrap();
            taken += 1;
        }
        assert!(was_full, "it was not said before it was too late");
        let written = series.finish().unwrap();
        let bytes = written.data_bytes + written.index_bytes;
        assert!((700_000..=1 << 20).contains(&bytes), "{compress:?}: {bytes} bytes");
        assert_eq!(written.samples, taken);
    }
}
