//! Small traces that claim much memory.

use std::fs::{self, File};

use traceprof::trace::{
    Location, LocationId, Method, Sample, Thread, TraceWriter, WriterOptions, index_path,
};

use crate::common::{Trace, peak_of, traceprof};

/// The length of a long name.
const NAME_BYTES: usize = 500 << 10;
/// The memory above which a command must have given up, whatever else it holds.
const MOST_KIB: u64 = 400 << 10;

/// Names that fill much more memory than the file.
fn of_names(writer: &mut TraceWriter) {
    for number in 0..75 {
        writer.text(&format!("{number}{}", "x".repeat(NAME_BYTES))).unwrap();
    }
}

/// One name that many functions have.
fn of_functions(writer: &mut TraceWriter) {
    let name = "x".repeat(NAME_BYTES);
    for start_svma in 0..100 {
        writer
            .method(&Method { module: None, name: name.clone(), start_svma, ..Method::default() })
            .unwrap();
    }
}

/// Locations of one function with a long name.
fn of_locations(writer: &mut TraceWriter) {
    let method = Method { module: None, name: "x".repeat(NAME_BYTES), ..Method::default() };
    let method = writer.method(&method).unwrap();
    for svma in 0..100 {
        let location = Location::at(method, svma);
        writer.location(&location).unwrap();
    }
}

/// Deep stacks below roots of their own.
fn of_stacks(writer: &mut TraceWriter) {
    let locations: Vec<LocationId> = (0..1500)
        .map(|number| {
            let method = Method { start_svma: number, ..Method::named(&format!("f{number}")) };
            let method = writer.method(&method).unwrap();
            writer.location(&Location::at(method, number)).unwrap()
        })
        .collect();
    let thread = writer.thread(&Thread { pid: 1, tid: 1, ..Thread::default() }).unwrap();
    for number in 0..1500 {
        let mut stack = vec![locations[number]];
        stack.extend(locations.iter().cycle().take(3000));
        let sample = Sample { time_ns: number as u64 * 1_000_000, ..Sample::default() };
        writer.sample(thread, &sample, &stack).unwrap();
    }
}

/// Writes a trace, and checks that these commands refuse it for its memory, with the index or
/// without, and that others do not.
fn check(
    fill: impl FnOnce(&mut TraceWriter),
    with_index: bool,
    (refused, accepted): (&[&str], &[&str]),
) {
    let (trace, other) = (Trace::new(), Trace::new());
    let options = WriterOptions { force: true, ..WriterOptions::default() };
    let mut writer = TraceWriter::create(&trace.path(), options).unwrap();
    fill(&mut writer);
    writer.finish().unwrap();
    let bytes = fs::metadata(trace.path()).unwrap().len();
    assert!(bytes < 500 << 10, "{bytes} bytes");
    if !with_index {
        fs::remove_file(index_path(&trace.path())).unwrap();
    }
    for line in refused.iter().chain(accepted) {
        let words: Vec<&str> = line.split(' ').collect();
        let mut command = traceprof(&words);
        command.arg(trace.path());
        match words[0] {
            "diff" => drop(command.arg(trace.path())),
            "view" => drop(command.arg("--output").arg(other.path())),
            "recover" => drop(command.arg(other.path())),
            _ => {}
        }
        let log = trace.dir().join("errors");
        let (peak, status) = peak_of(command.stderr(File::create(&log).unwrap()));
        let error = fs::read_to_string(&log).unwrap();
        assert!(peak < MOST_KIB, "{line}: {peak} KiB, {error}");
        let expected = i32::from(refused.contains(line));
        assert_eq!(status.code(), Some(expected), "{line}: {error}");
        assert_eq!(error.contains(" MiB of memory, "), expected == 1, "{line}: {error}");
    }
}

#[test]
fn names_beyond_the_size_of_a_trace_are_refused() {
    check(of_names, false, (&["print", "recover --force"], &[]));
}

#[test]
fn one_name_of_many_functions_counts_for_each() {
    let refused = ["print", "export --format folded", "diff"];
    check(of_functions, true, (&refused, &["verify", "dump"]));
}

#[test]
fn one_name_of_many_locations_counts_for_each() {
    check(of_locations, true, (&["print --verbose", "view --force"], &["reindex"]));
}

#[test]
fn stacks_beyond_the_size_of_a_trace_are_refused() {
    check(of_stacks, false, (&["print --tree"], &[]));
}
