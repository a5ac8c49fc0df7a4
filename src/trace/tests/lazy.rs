//! Tests of the lazy reader: it agrees with the eager reader, and leaves data unread.

use std::collections::BTreeMap;

use super::*;
use crate::test_turn::{seed, turn};

/// Writes a trace with deep and long calls, two threads, truncated stacks and pauses to files.
pub(super) fn written(dir: &Path, options: WriterOptions, rounds: usize) -> PathBuf {
    let path = dir.join("a.trace");
    let options = WriterOptions { force: true, salt: Some(5), ..options };
    let mut writer = TraceWriter::create(&path, options).unwrap();
    writer.set_metadata("period_ns", Value::Unsigned(10)).unwrap();
    let ids = locations(&mut writer, 9);
    let threads = [1, 2].map(|tid| writer.thread(&thread(tid)).unwrap());
    let texts = ["pipe", "/var/x"].map(|text| writer.text(text).unwrap());
    for round in 0..rounds {
        let depth = 1 + round / 7 % 6;
        let stack: Vec<_> = (0..depth).map(|depth| ids[depth * 10 + round / 50 % 3]).collect();
        let pause = if round % 400 == 399 { 500 } else { 0 };
        let time_ns = 1000 + round as u64 * 10 + round as u64 / 400 * 500 + pause;
        let truncated = Sample {
            end_reason: u16::from(round % 29 == 0),
            waits_on: (round % 5 == 0).then_some(texts[round / 100 % 2]),
            ..sample(time_ns)
        };
        writer.sample(threads[round % 3 % 2], &truncated, &stack).unwrap();
        if round % 1000 == 999 {
            writer.flush().unwrap();
        }
    }
    writer.thread_exit(threads[1], 1 << 40).unwrap();
    writer.finish().unwrap();
    path
}

fn lazy_outline(trace: &LazyTrace) -> String {
    let Objects { modules, methods, locations } = trace.load_objects().unwrap();
    let (metadata, mapped) = (trace.metadata(), trace.mapped().unwrap());
    let mut out = format!("{metadata:?} {modules:?} {methods:?} {locations:?} {mapped:?}\n");
    let mut texts = BTreeMap::new();
    trace
        .for_each_sample(&Window::default(), &mut |_, sample, _| {
            texts.extend(sample.waits_on.map(|id| (id, trace.text(id).unwrap())));
        })
        .unwrap();
    out += &format!("{texts:?}\n");
    for summary in trace.threads() {
        let mut samples = Vec::new();
        let window = Window { threads: Some([summary.id].into()), ..Window::default() };
        trace
            .for_each_sample(&window, &mut |_, sample, stack| {
                samples.push((sample.clone(), stack.to_vec()));
            })
            .unwrap();
        assert_eq!(summary.samples, samples.len() as u64);
        assert_eq!(summary.first_ns, samples.first().map(|(sample, _)| sample.time_ns));
        assert_eq!(summary.last_ns, samples.last().map(|(sample, _)| sample.time_ns));
        check_as_written(trace, &window, &samples);
        out += &format!("{:?} {:?}\n{samples:?}\n", summary.id, summary.thread);
    }
    out
}

/// Checks that file order has the same samples as thread order.
fn check_as_written(trace: &LazyTrace, window: &Window, samples: &[(Sample, Vec<LocationId>)]) {
    let mut found = Vec::new();
    trace
        .for_each_sample_as_written(window, &mut |_, sample, stack| {
            found.push(format!("{:020} {sample:?} {stack:?}", sample.time_ns));
        })
        .unwrap();
    let in_order = samples.iter();
    let mut expected: Vec<_> = in_order
        .map(|(sample, stack)| format!("{:020} {sample:?} {stack:?}", sample.time_ns))
        .collect();
    found.sort();
    expected.sort();
    assert!(found == expected);
}

/// The way in which a test loads children.
#[derive(Debug, Clone, Copy)]
enum Loading {
    All,
    OneByOne,
    Ranges,
    Deep,
    Small,
}

fn lazy_tree(trace: &LazyTrace, call: &mut LazyCall, loading: Loading, out: &mut String) {
    match loading {
        Loading::All => trace.load_all(call).unwrap(),
        Loading::OneByOne => {
            // Backwards, so that no earlier read helps.
            let count = trace.count_children(call).unwrap();
            (0..count).rev().for_each(|child| trace.load_child(call, child).unwrap());
        }
        Loading::Ranges => {
            let count = trace.count_children(call).unwrap();
            for start in (0..count).step_by(3) {
                trace.load_range(call, start..start + 3).unwrap();
            }
        }
        Loading::Small if call.is_loaded() => {}
        Loading::Small => trace.load_small(call, 0..u32::MAX, 50).unwrap(),
        Loading::Deep => {}
    }
    assert!(call.is_loaded(), "{loading:?}");
    for number in 0..call.child_count().unwrap() {
        match call.child_mut(number).unwrap() {
            LazyNode::Call(call) => {
                let (place, site) = (call.location().unwrap(), call.call_site());
                let times = (call.first_ns(), call.last_ns());
                let (samples, unfinished) = (call.samples(), call.unfinished());
                *out += &format!("{place:?}<{site:?} {times:?} {samples} {unfinished}(");
                lazy_tree(trace, call, loading, out);
                *out += ")\n";
            }
            LazyNode::Sample(sample) => *out += &format!("Sample({sample:?}) "),
            node => *out += &format!("{node:?} "),
        }
    }
}

fn lazy_trees(trace: &LazyTrace, loading: Loading) -> String {
    let mut out = String::new();
    for summary in trace.threads() {
        let mut call = trace.roots(summary.id).unwrap();
        if matches!(loading, Loading::Deep) {
            trace.load_deep(&mut call).unwrap();
        }
        lazy_tree(trace, &mut call, loading, &mut out);
        call.forget_all();
        assert!(call.child(0).is_none());
    }
    out
}

fn eager_trees(trace: &LoadedTrace) -> String {
    let mut out = String::new();
    trace.threads.iter().flat_map(ThreadTrace::roots).for_each(|it| outline_node(it, &mut out));
    out
}

#[test]
fn lazily_read_it_is_the_same_trace() {
    let dir = tempfile::tempdir().unwrap();
    let all = [Loading::All, Loading::OneByOne, Loading::Ranges, Loading::Deep, Loading::Small];
    for (compress, mode, block_bytes) in [
        (Compression::Zstd(1), WriteMode::Streaming, 200),
        (Compression::None, WriteMode::Streaming, 90),
        (Compression::Zstd(1), WriteMode::Collect, 100),
        (Compression::Zstd(1), WriteMode::Streaming, 1 << 16),
        (Compression::Zstd(1), WriteMode::Streaming, 1),
    ] {
        let options =
            WriterOptions { compress, mode, block_bytes, frame_bytes: 700, ..Default::default() };
        let options =
            WriterOptions { frame_bytes: options.frame_bytes.max(block_bytes), ..options };
        let path = written(dir.path(), options, 900);
        let eager = load(&path).unwrap();
        let expected = eager_trees(&eager);
        for with_index in [true, false] {
            if !with_index {
                std::fs::remove_file(dir.path().join("a.trace.idx")).unwrap();
            }
            let lazy = LazyTrace::open(&path).unwrap();
            assert!(lazy.closed());
            assert_eq!(lazy.notices().len(), usize::from(!with_index), "{:?}", lazy.notices());
            let outline = outline(&eager);
            for line in lazy_outline(&lazy).lines() {
                assert!(outline.contains(line), "{line}");
            }
            for loading in all {
                let case = format!("{loading:?} {compress:?} {mode:?} {block_bytes} {with_index}");
                assert!(lazy_trees(&lazy, loading) == expected, "{case}");
            }
        }
    }
}

#[test]
fn the_stack_at_a_time_is_that_of_the_last_sample() {
    let dir = tempfile::tempdir().unwrap();
    let options = WriterOptions { block_bytes: 150, frame_bytes: 400, ..Default::default() };
    let path = written(dir.path(), options, 1500);
    let (eager, lazy) = (load(&path).unwrap(), LazyTrace::open(&path).unwrap());
    for thread in &eager.threads {
        let samples = samples_of(thread);
        assert_eq!(lazy.stack_at(thread.id(), 999).unwrap(), None);
        for time_ns in (1000..20_000).step_by(7).chain([u64::MAX]) {
            let expected = samples.iter().rfind(|(sample, _)| sample.time_ns <= time_ns);
            assert_eq!(lazy.stack_at(thread.id(), time_ns).unwrap().as_ref(), expected);
        }
        for (from_ns, to_ns) in [(0, 0), (1010, 1010), (5000, 9000), (5003, 5003), (9000, u64::MAX)]
        {
            let window = Window { threads: Some([thread.id()].into()), from_ns, to_ns };
            let mut found = Vec::new();
            lazy.for_each_sample(&window, &mut |_, sample, stack| {
                found.push((sample.clone(), stack.to_vec()));
            })
            .unwrap();
            let within = |(sample, _): &&(Sample, _)| (from_ns..=to_ns).contains(&sample.time_ns);
            let expected: Vec<_> = samples.iter().filter(within).cloned().collect();
            assert_eq!(found, expected);
            check_as_written(&lazy, &window, &expected);
        }
    }
    assert!(lazy.stack_at(ThreadId(9), 0).is_err() && lazy.roots(ThreadId(9)).is_err());
}

#[test]
fn a_trace_that_is_still_written_is_read_up_to_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.trace");
    let options = WriterOptions { block_bytes: 50, frame_bytes: 200, ..Default::default() };
    let mut writer = TraceWriter::create(&path, options).unwrap();
    let mut lazy = LazyTrace::open(&path).unwrap();
    assert!(!lazy.closed() && lazy.threads().is_empty() && !lazy.refresh().unwrap());
    let ids = locations(&mut writer, 9);
    let id = writer.thread(&thread(1)).unwrap();
    for round in 0..30usize {
        for time_ns in 0..40 {
            let stack: Vec<_> = (0..time_ns % 5).map(|depth| ids[depth * 10]).collect();
            writer.sample(id, &sample((round * 100 + time_ns) as u64), &stack).unwrap();
        }
        writer.flush().unwrap();
        // Every other time with an incomplete frame.
        if round % 2 == 1 {
            let eager = load(&path).unwrap();
            assert!(lazy.refresh().unwrap() && !lazy.refresh().unwrap());
            assert!(!lazy.closed());
            assert_eq!(lazy_trees(&lazy, Loading::All), eager_trees(&eager));
            let reopened = LazyTrace::open(&path).unwrap();
            assert_eq!(lazy_outline(&reopened), lazy_outline(&lazy));
            assert!(reopened.notices()[0].contains("not finished"), "{:?}", reopened.notices());
        }
    }
    writer.finish().unwrap();
    assert!(lazy.refresh().unwrap() && lazy.closed() && !lazy.refresh().unwrap());
    assert_eq!(lazy_trees(&lazy, Loading::Deep), eager_trees(&load(&path).unwrap()));
    assert_eq!(lazy.notices(), Vec::<String>::new());
}

/// A thread with a lower id is written again after one with a higher id.
#[test]
fn objects_that_are_written_again_while_a_trace_grows_are_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.trace");
    let mut writer = TraceWriter::create(&path, WriterOptions::default()).unwrap();
    let [one, two] = [1, 2].map(|tid| writer.thread(&thread(tid)).unwrap());
    writer.sample(one, &sample(1), &[]).unwrap();
    writer.flush().unwrap();
    let mut lazy = LazyTrace::open(&path).unwrap();
    writer.rename_thread(one, "another").unwrap();
    writer.sample(two, &sample(2), &[]).unwrap();
    writer.flush().unwrap();
    // Makes the only reader of this trace.
    std::fs::remove_file(&path).unwrap();
    assert!(lazy.refresh().unwrap());
    assert_eq!(lazy.threads()[0].thread.name, "another");
    assert!(!lazy.notices().iter().any(|it| it.contains("does not match")), "{:?}", lazy.notices());
}

/// Opens the trace with this index; the result must match the data.
fn check_with_index(path: &Path, index: &[u8], expected: &(String, String), case: &str) {
    let mut name = path.as_os_str().to_owned();
    name.push(".idx");
    std::fs::write(&name, index).unwrap();
    let lazy = LazyTrace::open(path).unwrap_or_else(|error| panic!("{case}: {error}"));
    assert!(lazy_outline(&lazy) == expected.0, "{case}: {:?}", lazy.notices());
    assert!(lazy_trees(&lazy, Loading::All) == expected.1, "{case}: {:?}", lazy.notices());
}

#[test]
fn a_wrong_index_never_changes_what_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let options = WriterOptions { block_bytes: 80, frame_bytes: 300, ..Default::default() };
    let path = written(dir.path(), options, 250);
    let index_path = dir.path().join("a.trace.idx");
    let sorted = std::fs::read(&index_path).unwrap();
    std::fs::remove_file(&index_path).unwrap();
    let lazy = LazyTrace::open(&path).unwrap();
    let expected = (lazy_outline(&lazy), lazy_trees(&lazy, Loading::All));
    assert_eq!(expected.1, eager_trees(&load(&path).unwrap()));
    check_with_index(&path, &sorted, &expected, "as it was");
    for len in (0..sorted.len()).step_by(61) {
        check_with_index(&path, &sorted[..len], &expected, &format!("cut at {len}"));
    }
    let cells: Vec<usize> = index::forge::cells(&sorted).collect();
    let mut random = seed() as u64;
    let mut next = |limit: usize| {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (random >> 33) as usize % limit
    };
    for turn in turn(0..300, 4) {
        let mut forged = sorted.clone();
        // All bytes except the end of the file, which the seal covers.
        let (one, other) = (cells[next(cells.len() - 2)], cells[next(cells.len() - 2)]);
        let field = next(4);
        let case = match next(3) {
            0 => {
                let value = [0, 1, u64::MAX, 1 << 20, 300][next(5)];
                index::forge::set(&mut forged, one, field, value);
                format!("{turn}: field {field} of {one} is {value}")
            }
            1 if one != other => {
                let (from, to) = (one.min(other), one.max(other));
                let (head, tail) = forged.split_at_mut(to);
                head[from..from + index::CELL_BYTES]
                    .swap_with_slice(&mut tail[..index::CELL_BYTES]);
                format!("{turn}: {from} and {to} exchanged")
            }
            _ => {
                forged.copy_within(one..one + index::CELL_BYTES, other);
                format!("{turn}: {other} as {one}")
            }
        };
        index::forge::reseal(&mut forged);
        check_with_index(&path, &forged, &expected, &case);
    }
}

#[test]
fn both_readers_lose_the_same_data() {
    let dir = tempfile::tempdir().unwrap();
    let options = WriterOptions { block_bytes: 90, frame_bytes: 260, ..Default::default() };
    let path = written(dir.path(), options, 400);
    let whole = std::fs::read(&path).unwrap();
    let mut lossy = 0;
    for (start, length) in (60..whole.len()).step_by(397).flat_map(|at| [(at, 1), (at, 1500)]) {
        let mut damaged = whole.clone();
        let end = damaged.len().min(start + length);
        damaged[start..end].iter_mut().for_each(|byte| *byte ^= 0x55);
        std::fs::write(&path, damaged).unwrap();
        let (eager, lazy) = (load(&path).unwrap(), LazyTrace::open(&path).unwrap());
        let case = format!("{length} bytes from {start}");
        // A matching index is used until the damage is found.
        lazy.for_each_sample(&Window::default(), &mut |_, _, _| {}).unwrap();
        for loading in [Loading::All, Loading::Deep, Loading::Ranges] {
            assert!(lazy_trees(&lazy, loading) == eager_trees(&eager), "{case}, {loading:?}");
        }
        // Names are read last: a loss of unread names goes unnoticed.
        lazy.load_objects().unwrap();
        assert_eq!(lazy.losses(), eager.losses, "{case}");
        lossy += usize::from(!eager.losses.is_empty());
    }
    assert!(lossy > 30, "{lossy}");
}

/// Tests a call whose header is the last object of a block and whose footer is the first object of
/// a later one.
#[test]
fn a_call_whose_header_and_footer_are_at_the_ends_of_blocks_is_complete() {
    let (mut writer, data, _) = memory_writer(WriterOptions::default());
    let ids = locations(&mut writer, 2);
    let id = writer.thread(&thread(1)).unwrap();
    writer.finish().unwrap();
    drop((ids, id));
    let mut stream = stream::Stream::new(0);
    let sites =
        [infer::Site { method: MethodId(0), inlined: false, carries: false, file: 0, line: 0 }; 20];
    let mut blocks = Vec::new();
    stream.begin(0);
    stream.open_call(LocationId(0));
    blocks.extend(stream.end_block());
    stream.begin(0);
    let stack = [LocationId(0), LocationId(10)];
    let placed = stream::PlacedStack { stack: &stack, outer: 0, proven: true };
    stream.move_to(placed, &sites);
    stream.sample(&sample(5), 0, None);
    blocks.extend(stream.end_block());
    stream.begin(0);
    stream.close(0, false);
    blocks.extend(stream.end_block());
    let kind = |at: usize, last: bool| {
        let content = &blocks[at].content;
        // A call with a small id has two bytes, as has a footer.
        content[if last { content.len() - 2 } else { 0 }]
    };
    assert_eq!((kind(0, true), kind(2, false)), (Kind::Call as u8, Kind::Footer as u8));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.trace");
    std::fs::write(&path, with_blocks(&data.bytes(), blocks)).unwrap();
    let (eager, lazy) = (load(&path).unwrap(), LazyTrace::open(&path).unwrap());
    let tree = eager_trees(&eager);
    assert!(tree.starts_with("LocationId(0)<None (5, 5) 1 false(LocationId(10)"), "{tree}");
    for loading in [Loading::All, Loading::OneByOne, Loading::Deep, Loading::Small] {
        assert_eq!(lazy_trees(&lazy, loading), tree);
    }
}

/// Creates a plain data file with the objects of `data` and these blocks of its first thread.
fn with_blocks(data: &[u8], blocks: Vec<stream::Block>) -> Vec<u8> {
    let (file, index) = (Memory::new(usize::MAX), Memory::new(usize::MAX));
    let target = |memory: &Memory| TraceFile::new(Box::new(memory.clone()), PathBuf::from("x"));
    let options = WriterOptions { compress: Compression::None, ..WriterOptions::default() };
    let identity = output::Identity { salt: 1, uuid: 2 };
    let mut output =
        output::Output::new(target(&file), target(&index), identity, &options).unwrap();
    let mut frames = frames::Frames::new(data, Path::new("data")).unwrap();
    let first = frames.next_frame().unwrap().unwrap();
    let mut cursor = bytes::Cursor::new(&first.payload);
    let mut neutral = intern::NeutralBlock::default();
    while !cursor.is_at_end() {
        if let object::Record::Neutral(object) = object::Record::decode(&mut cursor).unwrap() {
            neutral.push(&object);
        }
    }
    output.write_frame(neutral).unwrap();
    for block in blocks {
        output.add(block);
        output.write_frame(Default::default()).unwrap();
    }
    output.finish().unwrap();
    file.bytes()
}

/// Returns the nodes of a call that overlap a window: selected from all nodes, or from a call
/// limited before loading.
fn within(trace: &LazyTrace, call: &mut LazyCall, window: &Window, narrowed: bool) -> String {
    if narrowed {
        call.narrow(window);
        assert_eq!((call.child_count(), call.is_loaded()), (None, false));
        let count = trace.count_children(call).unwrap();
        for start in (0..count).step_by(2) {
            trace.load_small(call, start..start + 2, 20).unwrap();
        }
        assert!(call.is_loaded());
    } else {
        trace.load_all(call).unwrap();
    }
    let mut out = String::new();
    for number in 0..call.child_count().unwrap() {
        let times = call.child(number).unwrap().times();
        if times.1 < window.from_ns || times.0 > window.to_ns {
            assert!(!narrowed, "{times:?} {window:?}");
            continue;
        }
        match call.child_mut(number).unwrap() {
            LazyNode::Call(call) => {
                let (place, samples) = (call.location().unwrap(), call.samples());
                out += &format!("{place:?}{times:?}x{samples}(");
                out += &within(trace, call, window, narrowed);
                out += ")\n";
            }
            node => out += &format!("{node:?}"),
        }
    }
    out
}

#[test]
fn a_narrowed_call_has_the_children_in_the_window() {
    let dir = tempfile::tempdir().unwrap();
    for block_bytes in [60, 300] {
        let options = WriterOptions { block_bytes, frame_bytes: 900, ..Default::default() };
        let path = written(dir.path(), options, 800);
        let lazy = LazyTrace::open(&path).unwrap();
        for (from_ns, to_ns) in
            [(0, u64::MAX), (0, 999), (1010, 1010), (2995, 4013), (4500, 5600), (9000, u64::MAX)]
        {
            let window = Window { threads: None, from_ns, to_ns };
            for summary in lazy.threads() {
                let of = |narrowed| {
                    let mut root = lazy.roots(summary.id).unwrap();
                    within(&lazy, &mut root, &window, narrowed)
                };
                assert_eq!(of(true), of(false), "{block_bytes} {from_ns} {to_ns}");
            }
        }
        assert_eq!(lazy.notices(), Vec::<String>::new());
    }
}

#[test]
fn several_traces_are_open_at_once_and_forget_and_load_again() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let paths = [0, 1].map(|n| written(dirs[n].path(), WriterOptions::default(), 3000 + n * 900));
    let alone = paths.each_ref().map(|path| lazy_outline(&LazyTrace::open(path).unwrap()));
    assert_ne!(alone[0], alone[1]);
    let traces = paths.each_ref().map(|path| LazyTrace::open(path).unwrap());
    let mut threads = traces.each_ref().map(|trace| trace.roots(trace.threads()[0].id).unwrap());
    let shown = |call: &LazyCall| call.loaded().map(|it| format!("{it:?}")).collect::<Vec<_>>();
    for n in [0, 1] {
        traces[n].load_all(&mut threads[n]).unwrap();
    }
    let whole = threads.each_ref().map(shown);
    for n in [1, 0, 1] {
        assert!(whole[n].len() > 4, "{}", whole[n].len());
        threads[n].forget(1..3);
        assert_eq!(shown(&threads[n]), [&whole[n][..1], &whole[n][3..]].concat());
        assert!(!threads[n].is_loaded() && threads[n].child(1).is_none());
        traces[n].load_range(&mut threads[n], 0..3).unwrap();
        assert_eq!(shown(&threads[n]), whole[n]);
        assert_eq!(lazy_outline(&traces[n]), alone[n]);
    }
}
