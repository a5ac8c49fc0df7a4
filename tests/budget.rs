//! The memory that a trace writer uses, measured in a process of its own.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use traceprof::trace::{
    self, Location, LocationId, Method, Sample, Thread, ThreadTrace, TraceWriter, WriterOptions,
};

use crate::common::scratch_dir;

/// Environment variable that is set in the process that runs [`a_writer_of_many_threads`].
const WRITER: &str = "TRACEPROF_TEST_BUDGET";
const THREADS: u64 = 10_000;
/// Number of frames of a stack.
const DEPTH: u64 = 30;
/// Number of samples of a thread, plus one. They fill its buffer a few times.
const ROUNDS: u64 = 14;
const BUFFER_BYTES: u64 = 4 << 20;

/// Returns a value of `/proc/self/status` in bytes.
fn status(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Not a test by itself: the child process of [`ten_thousand_threads_fit_the_stated_budget`].
#[test]
fn a_writer_of_many_threads() {
    let Some(path) = std::env::var_os(WRITER) else { return };
    let options = WriterOptions { buffer_bytes: BUFFER_BYTES as usize, ..Default::default() };
    let mut writer = TraceWriter::create(Path::new(&path), options).unwrap();
    let method = |n: u64| Method { start_svma: n * 100, ..Method::named(&format!("m{n}")) };
    let mut places = Vec::new();
    for n in 0..100 {
        let method = writer.method(&method(n)).unwrap();
        let place = Location::at(method, n * 100);
        places.push(writer.location(&place).unwrap());
    }
    let stack = |n: u64| -> Vec<LocationId> {
        (0..DEPTH).map(|depth| places[((n + depth * 7) % 100) as usize]).collect()
    };
    let thread = |tid| Thread { pid: 1, tid, ..Thread::default() };
    let before = status("VmRSS:");
    let threads: Vec<_> = (0..THREADS as u32).map(|t| writer.thread(&thread(t)).unwrap()).collect();
    let mut waiting_most = 0;
    let mut round = |writer: &mut TraceWriter, n: u64| {
        for id in &threads {
            let sample = Sample { time_ns: n * 1_000_000, ..Sample::default() };
            // Most of the stack changes with each sample, which is more than in real programs.
            writer.sample(*id, &sample, &stack(n)).unwrap();
            waiting_most = waiting_most.max(writer.waiting() as u64);
        }
    };
    round(&mut writer, 1);
    writer.flush().unwrap();
    let idle = status("VmRSS:") - before;
    for n in 2..ROUNDS {
        round(&mut writer, n);
    }
    let most = status("VmHWM:") - before;
    writer.finish().unwrap();
    let line = format!("\nmeasured {} {most} {waiting_most}\n", idle / THREADS);
    std::io::stdout().write_all(line.as_bytes()).unwrap();
}

#[test]
fn ten_thousand_threads_fit_the_stated_budget() {
    let dir = scratch_dir();
    let path = dir.path().join("many.trace");
    let output = Command::new(std::env::current_exe().expect("this test"))
        .args(["budget::a_writer_of_many_threads", "--exact", "--nocapture"])
        .env(WRITER, &path)
        .output()
        .expect("this test once more");
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find_map(|line| line.strip_prefix("measured ")).expect(&text);
    let numbers: Vec<u64> = line.split(' ').map(|n| n.parse().expect(line)).collect();
    let (idle, most, waiting) = (numbers[0], numbers[1], numbers[2]);
    let _ = writeln!(
        std::io::stderr(),
        "measured: {idle} bytes an idle thread at depth {DEPTH}, at most {most} bytes in all",
    );
    assert!(waiting <= BUFFER_BYTES + 4096, "{waiting} bytes waited");
    assert!(waiting > BUFFER_BYTES / 2, "the buffer was never full: {waiting}");
    assert!(idle <= 4096, "{idle} bytes a thread");
    // The budget that `WriterOptions` states, plus the tables and the compression of this test.
    let budget = 3 * BUFFER_BYTES + THREADS * 4096 + (4 << 20);
    assert!(most <= budget, "{most} bytes, stated are {budget}");
    let trace = trace::load(&path).expect("a trace");
    assert!(trace.closed);
    assert!(
        trace.threads.iter().map(ThreadTrace::sample_count).all(|count| count as u64 == ROUNDS - 1)
    );
}
