//! Measures the cost of reading parts of a large trace: the first root, a level of many children,
//! the stack at one time, and a new index.
//!
//!   trace_read FILE

#![allow(clippy::print_stdout, reason = "the measurements are what it prints")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use traceprof::trace::{self, LazyNode, LazyTrace, TraceError};

/// Number of children in the measured level.
const CHILDREN: u32 = 1000;
/// Maximum number of threads to search for one with that many roots.
const MOST_THREADS: usize = 40;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path: PathBuf = std::env::args_os().nth(1).ok_or("name a trace")?.into();
    first_root(&path)?;
    level(&path)?;
    let trace = LazyTrace::open(&path)?;
    stack_at(&trace)?;
    println!("resident_kib {}", resident_kib()?);
    rebuild(&path)?;
    Ok(())
}

/// Opens the trace and loads the first root of its first thread, like a command that has just
/// started. Prints the best of five runs, since the first may wait for the disk.
fn first_root(path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let begin = Instant::now();
        let trace = LazyTrace::open(path)?;
        let mut thread = trace.roots(trace.threads()[0].id)?;
        trace.load_range(&mut thread, 0..1)?;
        let Some(LazyNode::Call(root)) = thread.child(0) else { return Err("no root".into()) };
        let location = trace.location(root.location().ok_or("no location")?)?;
        let method = trace.method(location.method)?;
        best = best.min(begin.elapsed());
        if method.name.is_empty() {
            return Err("no name".into());
        }
    }
    println!("first_root_us {}", best.as_micros());
    println!("first_root_resident_kib {}", resident_kib()?);
    Ok(())
}

/// Loads 1,000 children of a thread of which nothing is loaded or decoded. Prints the best of all
/// threads that have as many.
fn level(path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let threads = LazyTrace::open(path)?.threads().len().min(MOST_THREADS);
    let mut best: Option<(u128, u64)> = None;
    for number in 0..threads {
        let trace = LazyTrace::open(path)?;
        let mut thread = trace.roots(trace.threads()[number].id)?;
        let begin = Instant::now();
        trace.load_range(&mut thread, 0..CHILDREN)?;
        let us = begin.elapsed().as_micros();
        let samples = |node: &LazyNode| match node {
            LazyNode::Call(call) => call.samples(),
            _ => 0,
        };
        let held = thread.loaded().map(|(_, node)| samples(node)).sum();
        if thread.loaded().count() == CHILDREN as usize && best.is_none_or(|(least, _)| us < least)
        {
            best = Some((us, held));
        }
    }
    match best {
        Some((us, samples)) => println!("level_us {us} children {CHILDREN} samples {samples}"),
        None => println!("level_us - no thread has {CHILDREN} roots"),
    }
    Ok(())
}

fn stack_at(trace: &LazyTrace) -> Result<(), TraceError> {
    const TIMES: u64 = 200;
    let begin = Instant::now();
    let mut frames = 0;
    for turn in 0..TIMES {
        let thread = &trace.threads()[turn as usize % trace.threads().len()];
        let (first, last) = (thread.first_ns.unwrap_or(0), thread.last_ns.unwrap_or(0));
        let time_ns = first + (last - first) / TIMES * (turn * 7 % TIMES);
        frames += trace.stack_at(thread.id, time_ns)?.map_or(0, |(_, stack)| stack.len());
    }
    println!("stack_at_us {} frames {frames}", begin.elapsed().as_micros() / u128::from(TIMES));
    Ok(())
}

/// Opens a link to the data file without an index beside it. Prints the best of three runs.
fn rebuild(path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let link = folder.path().join("trace");
    std::os::unix::fs::symlink(std::fs::canonicalize(path)?, &link)?;
    let (mut spent, mut notices) = (Duration::MAX, 0);
    for _ in 0..3 {
        let begin = Instant::now();
        let trace = LazyTrace::open(&link)?;
        spent = spent.min(begin.elapsed());
        notices = trace.notices().len();
    }
    let decoded = trace::verify(path)?.decoded;
    println!(
        "rebuild_ms {} decoded_mb_per_s {:.0} notices {notices}",
        spent.as_millis(),
        decoded as f64 / 1e6 / spent.as_secs_f64(),
    );
    Ok(())
}

fn resident_kib() -> Result<u64, Box<dyn std::error::Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).ok_or("no VmHWM")?;
    Ok(line.split_whitespace().nth(1).ok_or("no number")?.parse()?)
}
