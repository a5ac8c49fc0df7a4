//! Tests of the inferred forest.

use super::*;

/// Writes the samples (time, end reason, stack) of one thread and prints its forest:
/// `method(first-last xsamples` per call, `.time` per sample, `~from-to` per gap, `!` for
/// unfinished.
fn forest(samples: &[(u64, u16, &[usize])], frame_bytes: usize) -> String {
    let options = WriterOptions { frame_bytes, ..WriterOptions::default() };
    let (mut writer, data, _) = memory_writer(options);
    writer.set_metadata("period_ns", Value::Unsigned(10)).unwrap();
    let ids = locations(&mut writer, 9);
    let id = writer.thread(&thread(1)).unwrap();
    for (time_ns, end_reason, stack) in samples {
        let stack: Vec<_> = stack.iter().map(|place| ids[*place]).collect();
        let sample = Sample { end_reason: *end_reason, ..sample(*time_ns) };
        writer.sample(id, &sample, &stack).unwrap();
    }
    writer.finish().unwrap();
    let trace = load_bytes(&data.bytes()).unwrap();
    let mut out = String::new();
    for root in trace.threads[0].roots() {
        print(&trace, root, &mut out);
    }
    out.trim_end().into()
}

pub(super) fn print(trace: &LoadedTrace, node: Node<'_>, out: &mut String) {
    match node {
        Node::Call(call) => {
            let method = trace.locations[call.location().0 as usize].method;
            let name = trace.methods[method.0 as usize].name.trim_start_matches("method");
            let (first, last, count) = (call.first_ns(), call.last_ns(), call.samples());
            let mark = match (call.unfinished(), call.end_lost()) {
                (true, _) => "!",
                (false, true) => "]",
                (false, false) => "",
            };
            let name = format!("{name}{}", if call.begin_lost() { "[" } else { "" });
            out.push_str(&format!("{name}({first}-{last} x{count}{mark} "));
            call.children().for_each(|child| print(trace, child, out));
            out.truncate(out.trim_end().len());
            out.push_str(") ");
        }
        Node::Sample(sample) => out.push_str(&format!(".{} ", sample.time_ns)),
        Node::Gap { from_ns, to_ns } => out.push_str(&format!("~{from_ns}-{to_ns} ")),
        Node::ThreadStart { time_ns } => out.push_str(&format!("<{time_ns} ")),
        Node::ThreadExit { time_ns } => out.push_str(&format!(">{time_ns} ")),
        Node::Lost { from_ns, to_ns, samples } => {
            out.push_str(&format!("?{from_ns}-{to_ns}:{samples:?} "));
        }
    }
}

/// Checks that the forest does not depend on whether every sample has a block and a frame of its
/// own.
fn check(samples: &[(u64, u16, &[usize])], expected: &str) {
    for frame_bytes in [1, 1 << 18] {
        assert_eq!(forest(samples, frame_bytes), expected, "frame_bytes {frame_bytes}");
    }
}

#[test]
fn calls_continue_while_call_sites_stay() {
    check(
        &[(10, 0, &[10, 20, 30]), (20, 0, &[10, 20, 31]), (30, 0, &[10, 21, 30]), (40, 0, &[10])],
        "1(10-40 x4! 2(10-30 x3 3(10-20 x2 .10 .20) 3(30-30 x1 .30)) .40)",
    );
}

#[test]
fn another_root_is_another_root() {
    check(&[(10, 0, &[10]), (20, 0, &[20])], "1(10-10 x1 .10) 2(20-20 x1! .20)");
}

#[test]
fn recursion_is_by_depth() {
    check(
        &[(10, 0, &[10, 10, 10]), (20, 0, &[10, 10]), (30, 0, &[10, 10, 10])],
        "1(10-30 x3! 1(10-30 x3! 1(10-10 x1 .10) .20 1(30-30 x1! .30)))",
    );
}

#[test]
fn a_gap_splits_and_is_visible() {
    check(
        &[(10, 0, &[10, 20]), (20, 0, &[10, 20]), (90, 0, &[10, 20])],
        "1(10-20 x2 2(10-20 x2 .10 .20)) ~20-90 1(90-90 x1! 2(90-90 x1! .90))",
    );
}

#[test]
fn a_truncated_stack_is_anchored_where_it_fits() {
    check(
        &[(10, 0, &[10, 20, 30]), (20, 1, &[20, 31]), (30, 0, &[10, 20, 30])],
        "1(10-30 x3! 2(10-30 x3! 3(10-30 x3! .10 .20 .30)))",
    );
}

#[test]
fn truncated_stacks_that_fit_nowhere_do_not_end_calls() {
    check(
        &[
            (10, 0, &[10, 20]),
            (20, 1, &[50, 60]),
            (30, 0, &[10, 20]),
            (40, 1, &[50, 61]),
            (50, 1, &[51, 61]),
            (60, 0, &[10, 20]),
        ],
        "1(10-60 x3! 2(10-60 x3! .10 .30 .60)) \
         [truncated](20-50 x3! 5(20-40 x2 6(20-40 x2 .20 .40)) 5(50-50 x1! 6(50-50 x1! .50)))",
    );
}

#[test]
fn a_dropped_stack_ends_no_call_and_proves_none() {
    check(
        &[(10, 0, &[10, 20]), (20, 0, &[]), (30, 0, &[10, 20])],
        "1(10-30 x2! 2(10-30 x2! .10 .30)) [truncated](20-20 x1! .20)",
    );
    // The dropped stack does not bridge the time between the others.
    check(
        &[(10, 0, &[10]), (30, 0, &[]), (50, 0, &[10])],
        "1(10-10 x1 .10) ~10-50 1(50-50 x1! .50) [truncated](30-30 x1 .30)",
    );
}

#[test]
fn waiting_explains_a_pause() {
    let (mut writer, data, _) = memory_writer(WriterOptions::default());
    writer.set_metadata("period_ns", Value::Unsigned(10)).unwrap();
    let ids = locations(&mut writer, 1);
    let id = writer.thread(&thread(1)).unwrap();
    for (time_ns, state) in [(10, 0), (20, 1), (500, 0), (510, 0)] {
        let sample = Sample { state, ..sample(time_ns) };
        writer.sample(id, &sample, &ids[..1]).unwrap();
    }
    writer.finish().unwrap();
    assert_eq!(load_bytes(&data.bytes()).unwrap().threads[0].roots().count(), 1);
}

#[test]
fn a_thread_that_begins_and_ends_says_so() {
    let (mut writer, data, _) = memory_writer(WriterOptions::default());
    let ids = locations(&mut writer, 2);
    let id = writer.thread(&thread(1)).unwrap();
    let first = Sample { flags: traceprof_abi::storage::log::flags::FIRST, ..sample(5) };
    writer.sample(id, &first, &ids[..2]).unwrap();
    writer.thread_exit(id, 9).unwrap();
    writer.finish().unwrap();
    let trace = load_bytes(&data.bytes()).unwrap();
    let roots: Vec<_> = trace.threads[0].roots().collect();
    let [Node::ThreadStart { time_ns: 5 }, Node::Call(call), Node::ThreadExit { time_ns: 9 }] =
        roots[..]
    else {
        panic!("{roots:?}")
    };
    assert!(!call.unfinished());
    assert_eq!(call.call_site(), None);
    let inner: Vec<_> = call.children().collect();
    let [Node::Call(inner)] = inner[..] else { panic!("{inner:?}") };
    assert_eq!(inner.call_site(), Some(ids[0]));
}

#[test]
fn an_inlined_call_outlives_a_move_of_its_address() {
    let (mut writer, data, _) = memory_writer(WriterOptions::default());
    let ids = locations(&mut writer, 3);
    let id = writer.thread(&thread(1)).unwrap();
    let mut stacks = Vec::new();
    for svma in [100, 104, 108] {
        // The call moves with its address; its call site's line stays until the last sample.
        let line = if svma == 108 { 8 } else { 7 };
        let outer = Location { line, ..Location::at(MethodId(1), svma) };
        let parent = writer.location(&outer).unwrap();
        let inlined = Location {
            method: MethodId(2),
            line: svma as u32,
            inline_parent: Some(parent),
            ..outer
        };
        stacks.push(vec![ids[0], parent, writer.location(&inlined).unwrap()]);
        writer.sample(id, &sample(svma), stacks.last().unwrap()).unwrap();
    }
    writer.finish().unwrap();
    let trace = load_bytes(&data.bytes()).unwrap();
    let read: Vec<_> = samples_of(&trace.threads[0]).into_iter().map(|(_, stack)| stack).collect();
    assert_eq!(read, stacks);
    let mut out = String::new();
    trace.threads[0].roots().for_each(|root| print(&trace, root, &mut out));
    let expected = "0(100-108 x3! 1(100-108 x3! 2(100-104 x2 .100 .104) 2(108-108 x1! .108))) ";
    assert_eq!(out, expected);
}
