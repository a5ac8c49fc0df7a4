//! What it costs to look into a large trace: the first root, a level of many children, a stack at a
//! time, and to make the index anew.
//!
//!   trace_read FILE

#![allow(clippy::print_stdout, reason = "the measurements are what it prints")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use traceprof::trace::{LazyCall, LazyNode, LazyTrace, TraceError};

/// How many children the level should have that is measured.
const CHILDREN: u32 = 1000;
/// How many calls are looked at for one that has as many.
const LOOKED_AT: usize = 100;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path: PathBuf = std::env::args_os().nth(1).ok_or("name a trace")?.into();
    first_root(&path)?;
    let trace = LazyTrace::open(&path)?;
    level(&trace)?;
    stack_at(&trace)?;
    println!("resident_kib {}", resident_kib()?);
    rebuild(&path)?;
    Ok(())
}

/// Opens the trace and loads the first root of its first thread, as a command that has just started
/// does; the best of five, since the first may wait for the disk.
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

/// Loads one level of a call with many children, of which nothing was loaded before.
fn level(trace: &LazyTrace) -> Result<(), Box<dyn std::error::Error>> {
    let mut best: Option<(u128, u32, u64)> = None;
    let mut looked_at = 0;
    let mut rest = Vec::new();
    for thread in trace.threads().iter().take(8) {
        let mut roots = trace.roots(thread.id)?;
        trace.load_range(&mut roots, 0..200)?;
        rest.extend(calls(&mut roots));
    }
    {
        // The largest first.
        while let Some(place) = (0..rest.len()).max_by_key(|place| rest[*place].samples())
            && looked_at < LOOKED_AT
        {
            let mut call = rest.swap_remove(place);
            looked_at += 1;
            let begin = Instant::now();
            trace.load_range(&mut call, 0..CHILDREN)?;
            let spent = begin.elapsed().as_micros();
            let count = call.loaded().count() as u32;
            if count == CHILDREN && best.is_none_or(|(least, ..)| spent < least) {
                best = Some((spent, count, call.samples()));
            }
            if looked_at < 40 {
                println!(
                    "{} samples {:?} children, {} loaded, {} us",
                    call.samples(),
                    call.child_count(),
                    count,
                    spent
                );
            }
            rest.extend(calls(&mut call));
        }
    }
    match best {
        Some((us, count, samples)) => println!("level_us {us} children {count} samples {samples}"),
        None => println!("level_us - no call of {looked_at} has {CHILDREN} children"),
    }
    Ok(())
}

/// Takes the calls among the children out.
fn calls(call: &mut LazyCall) -> Vec<LazyCall> {
    let numbers: Vec<u32> = call.loaded().map(|(number, _)| number).collect();
    let taken = numbers.into_iter().filter_map(|number| match call.take(number) {
        Some(LazyNode::Call(call)) => Some(*call),
        _ => None,
    });
    taken.collect()
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

/// Opens a link to the data file that has no index beside it.
fn rebuild(path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let link = folder.path().join("trace");
    std::os::unix::fs::symlink(std::fs::canonicalize(path)?, &link)?;
    let begin = Instant::now();
    let trace = LazyTrace::open(&link)?;
    let spent = begin.elapsed();
    let bytes = std::fs::metadata(path)?.len();
    println!(
        "rebuild_s {:.2} stored_mb_per_s {:.0} notices {}",
        spent.as_secs_f64(),
        bytes as f64 / 1e6 / spent.as_secs_f64(),
        trace.notices().len()
    );
    Ok(())
}

fn resident_kib() -> Result<u64, Box<dyn std::error::Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).ok_or("no VmHWM")?;
    Ok(line.split_whitespace().nth(1).ok_or("no number")?.parse()?)
}
