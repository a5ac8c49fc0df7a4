//! Tests of damage inside a file: the rest is read, losses are reported, nothing is invented.

use std::collections::BTreeSet;

use super::crash::{all, small_trace};
use super::scan::scan_bytes;
use super::*;
use crate::test_turn::{is_long, turn};
use crate::trace::index::tables::FrameRow;
use crate::trace::scanned::Scan;

/// Checks the invariants of a damaged file. `whole` is the original trace.
fn check(damaged: &[u8], whole: &LoadedTrace, what: &str) -> Option<Scan> {
    let scan = scan_bytes(damaged, false);
    let trace = match load_bytes(damaged) {
        Ok(trace) => trace,
        Err(error) => {
            let refused = matches!(
                error,
                TraceError::NotATrace { .. }
                    | TraceError::NewerVersion { .. }
                    | TraceError::Corrupt { .. }
            );
            assert!(refused && scan.is_err(), "{what}: {error}");
            return None;
        }
    };
    let scan = scan.unwrap_or_else(|error| panic!("{what}: {error}"));
    let mut missing = false;
    for (thread, expected) in trace.threads.iter().zip(all(whole)) {
        let mut rest = expected.iter();
        for (sample, stack) in samples_of(thread) {
            let found = rest.any(|(old, of_old)| {
                *old == sample
                    && of_old.len() == stack.len()
                    && stack
                        .iter()
                        .zip(of_old)
                        .all(|(new, old)| same_place(&trace, whole, *new, *old))
            });
            assert!(found, "{what}: invented {sample:?} {stack:?}");
        }
        let lost = thread.sample_count() != expected.len();
        missing |= lost;
        check_lost_nodes(thread, &trace, what);
    }
    for (id, text) in &trace.texts {
        assert!(text == LOST || whole.texts.get(id) == Some(text), "{what}: invented {text}");
    }
    let loaded: u64 = trace.threads.iter().map(|thread| thread.sample_count() as u64).sum();
    let original: u64 = whole.threads.iter().map(|thread| thread.sample_count() as u64).sum();
    missing |= loaded != original;
    let said = !trace.losses.is_empty() || !trace.closed;
    assert!(!missing || said && !trace.notices.is_empty(), "{what}: samples are lost in silence");
    // Exact numbers are right, and with the end of the file all numbers are exact.
    let exact: u64 = trace.losses.iter().filter_map(|loss| loss.samples).sum();
    assert!(loaded + exact <= original, "{what}: more lost than there were");
    let all_known = trace.losses.iter().all(|loss| loss.samples.is_some());
    if trace.closed && all_known {
        assert_eq!(loaded + exact, original, "{what}");
    }
    assert_eq!((scan.samples, scan.closed), (loaded, trace.closed), "{what}");
    assert_eq!(scan.losses, trace.losses, "{what}");
    assert_eq!(scan.notices, trace.notices, "{what}");
    assert_eq!(scan.threads as usize, trace.threads.len(), "{what}");
    Some(scan)
}

/// Returns whether a location is unchanged or lost.
fn same_place(trace: &LoadedTrace, whole: &LoadedTrace, new: LocationId, old: LocationId) -> bool {
    let method = |trace: &LoadedTrace, id: LocationId| {
        let location = trace.locations[id.0 as usize].clone();
        (trace.methods[location.method.0 as usize].name.clone(), location)
    };
    let ((name, location), (old_name, old_location)) = (method(trace, new), method(whole, old));
    new == old && (name == LOST || name == old_name && location.svma == old_location.svma)
}

/// Checks that the nodes of a thread match its losses.
fn check_lost_nodes(thread: &ThreadTrace, trace: &LoadedTrace, what: &str) {
    let mut nodes = BTreeSet::new();
    let mut rest: Vec<_> = thread.roots().collect();
    while let Some(node) = rest.pop() {
        match node {
            Node::Lost { from_ns, to_ns, samples } => {
                nodes.insert((from_ns, to_ns, samples));
            }
            Node::Call(call) => {
                let samples = call.children().map(|child| match child {
                    Node::Call(call) => call.samples(),
                    Node::Sample(_) => 1,
                    _ => 0,
                });
                assert_eq!(samples.sum::<u64>(), call.samples(), "{what}");
                rest.extend(call.children());
            }
            _ => {}
        }
    }
    let of_thread = trace.losses.iter().filter(|loss| loss.thread == Some(thread.id()));
    let expected: BTreeSet<_> =
        of_thread.map(|loss| (loss.from_ns, loss.to_ns, loss.samples)).collect();
    assert_eq!(nodes, expected, "{what}");
}

/// Returns traces of two threads with few objects and a frame per few samples.
fn tiny_traces() -> impl Iterator<Item = (Vec<u8>, LoadedTrace)> {
    [Compression::None, Compression::Zstd(3)].into_iter().map(|compress| {
        let (mut writer, data, _) = memory_writer(WriterOptions { compress, ..Default::default() });
        let ids = locations(&mut writer, 1);
        let threads = [1, 2].map(|tid| writer.thread(&thread(tid)).unwrap());
        let pipe = writer.text("pipe").unwrap();
        for round in 0..9 {
            let stack: Vec<_> = (0..round % 4).map(|depth| ids[depth + round / 4]).collect();
            let end_reason = u16::from(round == 5);
            let waits_on = (round % 4 < 2).then_some(pipe);
            let sample = Sample { end_reason, waits_on, ..sample(round as u64) };
            writer.sample(threads[round % 2], &sample, &stack).unwrap();
            if round % 3 == 2 {
                writer.flush().unwrap();
            }
        }
        writer.finish().unwrap();
        let whole = load_bytes(&data.bytes()).unwrap();
        (data.bytes(), whole)
    })
}

/// Returns traces of two threads with several frames, plain and compressed.
fn traces() -> impl Iterator<Item = (Vec<u8>, LoadedTrace, Vec<usize>)> {
    [Compression::None, Compression::Zstd(3)].into_iter().map(|compress| {
        let (data, _, ends) = small_trace(compress);
        let whole = load_bytes(&data).unwrap();
        (data, whole, ends.iter().map(|(end, _)| *end).collect())
    })
}

#[test]
fn every_flipped_bit_is_found_and_invents_nothing() {
    let tiny: Vec<_> = tiny_traces().collect();
    assert!(tiny.iter().all(|(data, _)| data.len() <= 8192));
    let larger = is_long().then(traces).into_iter().flatten();
    for (data, whole) in tiny.into_iter().chain(larger.map(|(data, whole, _)| (data, whole))) {
        let mut damaged = data.clone();
        for bit in turn(0..data.len() * 8, 5) {
            damaged[bit / 8] ^= 1 << (bit % 8);
            let scan = check(&damaged, &whole, &format!("bit {bit}"));
            if bit / 8 >= HEADER_BYTES {
                let scan = scan.unwrap();
                let said = !scan.bad.is_empty() || !scan.closed;
                assert!(said, "bit {bit} is not noticed");
            }
            damaged[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

#[test]
fn zeros_and_garbage_anywhere_lose_only_the_frames_they_overlap() {
    for (data, whole, _) in traces() {
        let frames = scan_bytes(&data, false).unwrap().tables.frames;
        for (length, step) in [(1, 61), (100, 97), (512, 128), (3000, 400)] {
            for start in (HEADER_BYTES..data.len()).step_by(step) {
                for fill in [0, 0xff, 0xd7, 0x5a] {
                    let mut damaged = data.clone();
                    let end = data.len().min(start + length);
                    damaged[start..end].fill(fill);
                    let scan = check(&damaged, &whole, &format!("{start} to {end} is {fill:#x}"));
                    if damaged[start] == data[start] || damaged[end - 1] == data[end - 1] {
                        continue;
                    }
                    let overlaps =
                        |frame: &&FrameRow| frame.offset < end as u64 && (start as u64) < frame.end;
                    let whole_frames: Vec<_> =
                        frames.iter().filter(|frame| !overlaps(frame)).collect();
                    let found: Vec<_> = scan.as_ref().unwrap().tables.frames.iter().collect();
                    assert_eq!(found, whole_frames, "{start} to {end}");
                }
            }
        }
    }
}

#[test]
fn sectors_that_are_missing_or_exchanged_invent_nothing() {
    const SECTOR: usize = 512;
    for (data, whole, _) in traces() {
        let sectors: Vec<_> = data.chunks(SECTOR).collect();
        for place in 0..sectors.len() {
            let mut dropped = sectors.clone();
            dropped.remove(place);
            check(&dropped.concat(), &whole, &format!("without sector {place}"));
            for other in 0..place {
                let mut exchanged = sectors.clone();
                exchanged.swap(place, other);
                check(&exchanged.concat(), &whole, &format!("{place} and {other} exchanged"));
            }
            let doubled = [&sectors[..place], &sectors[place / 2..]].concat().concat();
            check(&doubled, &whole, &format!("doubled from sector {place}"));
        }
    }
}

#[test]
fn a_frame_in_the_middle_is_lost_alone() {
    for (data, whole, ends) in traces() {
        let frames = ends.len();
        for lost in 0..frames {
            let begin = if lost == 0 { HEADER_BYTES } else { ends[lost - 1] };
            let mut damaged = data.clone();
            damaged[begin + 50] ^= 1;
            check(&damaged, &whole, &format!("without frame {lost}"));
            let trace = load_bytes(&damaged).unwrap();
            assert!(trace.closed && trace.notices[0].contains("damaged"), "{:?}", trace.notices);
            // Four rounds of six samples each.
            let counts = super::crash::counts(&trace);
            assert_eq!(counts, [6 * (frames - 1); 2]);
            let exact: u64 = trace.losses.iter().filter_map(|loss| loss.samples).sum();
            assert_eq!(exact, 12, "{:?}", trace.losses);
        }
    }
}

/// Returns the forest of one thread, with the second of three frames lost.
fn broken_forest(before: &[usize], within: &[usize], after: &[usize]) -> String {
    let (mut writer, data, _) = memory_writer(WriterOptions::default());
    let ids = locations(&mut writer, 9);
    let id = writer.thread(&thread(1)).unwrap();
    let mut ends = Vec::new();
    for (time_ns, stack) in [(10, before), (20, within), (30, after)] {
        let stack: Vec<_> = stack.iter().map(|place| ids[*place]).collect();
        writer.sample(id, &sample(time_ns), &stack).unwrap();
        writer.flush().unwrap();
        ends.push(data.bytes().len());
    }
    writer.finish().unwrap();
    let mut bytes = data.bytes();
    bytes[ends[0]..ends[1]].fill(0);
    let trace = load_bytes(&bytes).unwrap();
    let mut out = String::new();
    trace.threads[0].roots().for_each(|root| super::tree::print(&trace, root, &mut out));
    out.trim_end().into()
}

#[test]
fn calls_continue_over_a_loss_only_where_a_checkpoint_says_so() {
    for (before, within, after, expected) in [
        // The same calls throughout.
        (
            &[10, 20][..],
            &[10, 20][..],
            &[10, 20][..],
            "1(10-30 x2! 2(10-30 x2! .10 ?10-30:Some(1) .30))",
        ),
        // One call ended in the lost frame; one moved.
        (&[10, 20], &[11], &[11], "1(10-30 x2! 2(10-10 x1] .10) ?10-30:Some(1) .30)"),
        // The same method again is another call: its checkpoint has another start.
        (
            &[10, 20],
            &[10],
            &[10, 20],
            "1(10-30 x2! 2(10-10 x1] .10) ?10-30:Some(1) 2(30-30 x1! .30))",
        ),
        // Two calls started in the lost frame, and one of them ended with the next sample.
        (
            &[10],
            &[10, 20, 30],
            &[10, 20],
            "1(10-30 x2! .10 ?10-30:Some(1) 2[(30-30 x1! 3[(20-20 x0) .30))",
        ),
        // No call continues.
        (&[10], &[20], &[20], "1(10-10 x1] .10) ?10-30:Some(1) 2[(30-30 x1! .30)"),
    ] {
        assert_eq!(
            broken_forest(before, within, after),
            expected,
            "{before:?} {within:?} {after:?}"
        );
    }
}

#[test]
fn the_end_of_the_file_states_the_loss_of_streams_that_do_not_continue() {
    for threads in [1, 2] {
        let (mut writer, data, _) = memory_writer(WriterOptions::default());
        let ids = locations(&mut writer, 2);
        let known: Vec<_> = (0..threads).map(|tid| writer.thread(&thread(tid)).unwrap()).collect();
        let mut ends = Vec::new();
        for time_ns in [10, 20] {
            for id in &known {
                writer.sample(*id, &sample(time_ns), &ids[..2]).unwrap();
                if time_ns == 20 {
                    writer.thread_exit(*id, 25).unwrap();
                }
            }
            writer.flush().unwrap();
            ends.push(data.bytes().len());
        }
        writer.finish().unwrap();
        let whole = load_bytes(&data.bytes()).unwrap();
        let mut bytes = data.bytes();
        bytes[ends[0]..ends[1]].fill(0);
        check(&bytes, &whole, "without the ends");
        let trace = load_bytes(&bytes).unwrap();
        let samples = (threads == 1).then_some(1);
        let expected = known.iter().map(|id| Loss {
            thread: Some(*id),
            from_ns: 10,
            to_ns: u64::MAX,
            samples,
        });
        assert_eq!(trace.losses, expected.collect::<Vec<_>>());
        let Some(Node::Call(root)) = trace.threads[0].roots().next() else { panic!("no root") };
        assert!(root.end_lost() && !root.unfinished() && !root.begin_lost());
        // Without the end of the file, the number is unknown.
        let trace = load_bytes(&bytes[..bytes.len() - 1]).unwrap();
        assert!(trace.losses.is_empty() && !trace.closed, "what ends the file is a tail");
    }
}

#[test]
fn ids_are_skipped_only_where_a_loss_explains_it() {
    for (data, whole, ends) in traces() {
        let mut damaged = data.clone();
        damaged[HEADER_BYTES + 9] ^= 1;
        let trace = load_bytes(&damaged).unwrap();
        // All objects were in the first frame; later frames refer to objects that are named as
        // lost.
        assert!(trace.locations.len() <= whole.locations.len());
        assert!(trace.methods.iter().all(|method| method.name == LOST));
        assert!(trace.losses.iter().any(|loss| loss.thread.is_none()));
        // A file without a loss of objects has no such explanation.
        let frame = |from: usize, to: usize| data[from..to].to_vec();
        let cut = [frame(0, HEADER_BYTES), frame(ends[0], ends[1])].concat();
        assert!(load_bytes(&cut).unwrap().threads.is_empty());
    }
}

/// Creates a file of headers that each claim many bytes: each is valid except for its body.
fn claims(bytes: usize) -> Vec<u8> {
    let mut file = file_header(DATA_MAGIC).to_vec();
    let (data, _, _) = small_trace(Compression::None);
    let mut frames = frames::Frames::new(&data[..], Path::new("data")).unwrap();
    let template = frames.next_frame().unwrap().unwrap().header;
    while file.len() < bytes {
        let section = frame::StoredSection { stored: 8 << 20, bytes: 8 << 20, crc: 0 };
        let sections = [frame::StoredSection::default(), frame::StoredSection::default(), section];
        let offset = file.len() as u64;
        let header = frame::FrameHeader { offset, sections, sequence: 1, previous: 16, ..template };
        file.extend_from_slice(&header.encode());
    }
    file
}

#[test]
fn headers_that_claim_much_cost_no_more_than_their_bytes() {
    // Each byte is checked a few times. If each header checked its 16 MiB, that would cost a
    // thousand times a second or more.
    let time = |bytes: &[u8]| {
        let begin = std::time::Instant::now();
        let scan = scan_bytes(bytes, false).unwrap();
        assert!(!scan.closed && scan.samples == 0);
        begin.elapsed()
    };
    let spent = time(&claims(16 << 20));
    assert!(spent < std::time::Duration::from_secs(20), "{spent:?}");
    // Magic and salt alone, as dense as possible.
    let mut magics = file_header(DATA_MAGIC).to_vec();
    let magic = FRAME_MAGIC.to_be_bytes();
    magics.extend_from_slice(&magic.repeat(1 << 17));
    let spent = time(&magics);
    assert!(spent < std::time::Duration::from_secs(20), "{spent:?}");
}

#[test]
fn a_trace_that_takes_too_much_memory_is_refused() {
    let (data, _, _) = small_trace(Compression::Zstd(3));
    let load = |memory_bytes| {
        super::load_within(&data[..], Path::new("data"), LoadLimits { memory_bytes })
    };
    assert!(load(1 << 20).is_ok());
    for memory_bytes in [0, 100, 1000, 10_000] {
        let error = load(memory_bytes).unwrap_err();
        assert!(matches!(error, TraceError::LimitExceeded { .. }), "{error}");
        assert!(error.to_string().contains("print"), "{error}");
    }
}

/// Returns a small trace whose last frame has another sequence number and another offset of the
/// previous frame, and the original headers of its last two frames.
fn with_other_last_frame(
    change: impl FnOnce(&mut frame::FrameHeader, &frame::FrameHeader),
) -> (Vec<u8>, [frame::FrameHeader; 2]) {
    let (data, _, _) = small_trace(Compression::Zstd(3));
    let mut frames = frames::Frames::new(&data[..], Path::new("data")).unwrap();
    let mut headers = Vec::new();
    while let Some(frame) = frames.next_frame().unwrap() {
        headers.push(frame.header);
    }
    let [.., before, last] = headers[..] else { panic!("too few frames") };
    let mut header = last;
    change(&mut header, &before);
    let head = header.encode();
    let body = last.offset as usize + head.len()..data.len() - frame::TRAILER_BYTES;
    let trailer = frame::trailer(&header, &head);
    let forged = [&data[..last.offset as usize], &head, &data[body], &trailer].concat();
    (forged, [before, last])
}

/// Sequence numbers show a loss even between adjacent frames: here, a frame is said to have been
/// between the last two.
#[test]
fn frames_that_are_missing_without_a_gap_are_noticed() {
    let (forged, [_, last]) = with_other_last_frame(|header, before| {
        header.sequence += 1;
        header.previous = before.offset + 1;
    });
    let scan = scan_bytes(&forged, false).unwrap();
    let [bad] = scan.bad[..] else { panic!("{:?}", scan.bad) };
    assert_eq!((bad.offset, bad.bytes, bad.what), (last.offset, 0, "frames are missing"));
    assert_eq!((scan.lost_frames, scan.closed), (1, true));
    assert_eq!(load_bytes(&forged).unwrap().notices.len(), 1);
}

#[test]
fn a_frame_that_does_not_follow_the_previous_one_is_not_used() {
    type Change = fn(&mut frame::FrameHeader, &frame::FrameHeader);
    let changes: [(&str, Change); 5] = [
        ("the same number", |header, before| header.sequence = before.sequence),
        ("a smaller number", |header, _| header.sequence = 0),
        ("another frame before it", |header, before| header.previous = before.offset + 1),
        ("itself before it", |header, _| header.previous = header.offset),
        ("a number too large", |header, _| header.sequence += 1),
    ];
    for (what, change) in changes {
        let (forged, [_, last]) = with_other_last_frame(change);
        let scan = scan_bytes(&forged, false).unwrap();
        assert_eq!((scan.closed, scan.checked), (false, last.offset), "{what}");
        assert!(!load_bytes(&forged).unwrap().closed, "{what}");
    }
}
