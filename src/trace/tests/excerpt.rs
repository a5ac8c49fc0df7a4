//! Parts of a trace's time that become traces of their own.

use super::*;
use crate::trace::{LazyTrace, excerpt};

/// Ten samples of each of two threads, one of which ends after the fifth; with tags and texts.
fn whole(path: &Path) -> TraceWriter {
    let mut writer = TraceWriter::create(path, WriterOptions::default()).unwrap();
    writer.set_metadata("start_monotonic_ns", Value::Unsigned(1000)).unwrap();
    writer.set_metadata("start_realtime_ns", Value::Unsigned(50_000)).unwrap();
    let keys = [TagKey { name: "route".to_owned(), kind: TagKind::Text }];
    let (name, value) = TagKey::metadata(&keys);
    writer.set_metadata(name, value).unwrap();
    let thread = |tid| Thread { pid: 1, tid, name: format!("t{tid}"), ..Thread::default() };
    let long = writer.thread(&thread(1)).unwrap();
    let short = writer.thread(&thread(2)).unwrap();
    for number in 0..10u64 {
        let method = Method { start_svma: number + 1, ..Method::named(&format!("f{number}")) };
        let method = writer.method(&method).unwrap();
        let location = writer.location(&Location::at(method, number + 1)).unwrap();
        let route = writer.text(&format!("/{number}")).unwrap();
        let mut tags = [0; 10];
        tags[0] = route.0 + 1;
        let sample = Sample { time_ns: 1000 + number * 100, tags, ..Sample::default() };
        writer.sample(long, &sample, &[location]).unwrap();
        if number < 5 {
            writer.sample(short, &sample, &[location]).unwrap();
        }
        if number == 5 {
            writer.thread_exit(short, 1500).unwrap();
        }
    }
    writer
}

/// The names of functions and the routes of all samples, with their times.
fn samples(trace: &LazyTrace) -> Vec<(u64, String, String)> {
    let mut found = Vec::new();
    let all = Window { threads: None, from_ns: 0, to_ns: u64::MAX };
    trace
        .for_each_sample(&all, &mut |_, sample, stack| {
            let method = trace.location(stack[0]).unwrap().method;
            let route = trace.tag_text(TextId(sample.tags[0] - 1)).unwrap().to_string();
            found.push((sample.time_ns, trace.method(method).unwrap().name, route));
        })
        .unwrap();
    found
}

#[test]
fn an_excerpt_of_a_trace_that_is_still_written_is_a_trace_of_that_time() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("a.trace"), dir.path().join("b.trace"));
    let mut writer = whole(&input);
    writer.flush().unwrap();
    let trace = LazyTrace::open(&input).unwrap();
    excerpt(&trace, 1650..=1800, &output, WriterOptions::default()).unwrap();
    let made = LazyTrace::open(&output).unwrap();
    assert!(made.closed() && !trace.closed());
    let expected = [7, 8].map(|n: u64| (1000 + n * 100, format!("f{n}"), format!("/{n}")));
    assert_eq!(samples(&made), expected);
    let names: Vec<&str> = made.threads().iter().map(|it| it.thread.name.as_str()).collect();
    assert_eq!(names, ["t1"], "the other one had ended");
    assert_eq!(made.metadata()["start_monotonic_ns"], Value::Unsigned(1650));
    assert_eq!(made.metadata()["start_realtime_ns"], Value::Unsigned(50_650));
    // Everything, also of the thread that ended.
    let output = dir.path().join("c.trace");
    excerpt(&trace, 0..=u64::MAX, &output, WriterOptions::default()).unwrap();
    let made = LazyTrace::open(&output).unwrap();
    assert_eq!(samples(&made), samples(&trace));
    assert_eq!(made.metadata()["start_monotonic_ns"], Value::Unsigned(1000));
    assert_eq!(made.threads()[1].thread.ended_ns, Some(1500));
    // An existing file is no place for it.
    assert!(excerpt(&trace, 0..=1, &output, WriterOptions::default()).is_err());
}
