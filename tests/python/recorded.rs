//! The Python frames of a trace.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use traceprof::trace::{self, FrameKind, LoadedTrace, Location};

use super::functions::FunctionShares;
use crate::common::Folded;

/// A Python frame: function, file, line.
pub(super) type Frame = (String, String, u64);

/// Returns the stacks of a trace with their Python frames only.
pub(super) fn python_stacks(path: &Path) -> Folded {
    let mut text = String::new();
    for_each_stack(path, &mut |_, weight, frames| {
        let names: Vec<&str> = frames.iter().rev().map(|(name, ..)| name.as_str()).collect();
        text += &format!("{} {weight}\n", names.join(";"));
    });
    Folded::parse(&text)
}

/// Returns the Python frames of each sample of each thread, innermost first.
pub(super) fn samples_by_thread(path: &Path) -> BTreeMap<i32, Vec<Vec<Frame>>> {
    let mut found = BTreeMap::<i32, Vec<Vec<Frame>>>::new();
    for_each_stack(path, &mut |tid, _, frames| found.entry(tid).or_default().push(frames));
    found
}

/// Calls `visit` with the thread id, the weight and the Python frames of each sample, innermost
/// first.
fn for_each_stack(path: &Path, visit: &mut dyn FnMut(i32, u32, Vec<Frame>)) {
    let trace = trace::load(path).expect("a trace");
    for thread in &trace.threads {
        let tid = thread.thread().tid as i32;
        thread.for_each_sample(&mut |sample, stack| {
            // A thread that waits for a processor before its first sample has a state and no stack.
            if stack.len() < 2 {
                return;
            }
            let locations = stack.iter().rev().map(|id| &trace.locations[id.0 as usize]);
            let python = locations.filter(|location| location.kind == FrameKind::Python);
            let frames = python.map(|it| {
                let name = trace.methods[it.method.0 as usize].name.clone();
                (name, it.file.clone().unwrap_or_default(), u64::from(it.line))
            });
            visit(tid, sample.weight, frames.collect());
        });
    }
}

/// Returns the shares of the Python functions in the samples of these times, in CLOCK_MONOTONIC.
pub(super) fn shares_within(path: &Path, times: &[Range<Duration>]) -> FunctionShares {
    let trace = trace::load(path).expect("a trace");
    let mut shares = FunctionShares::new();
    for thread in &trace.threads {
        let tid = thread.thread().tid as i32;
        thread.for_each_sample(&mut |sample, stack| {
            let time = Duration::from_nanos(sample.time_ns);
            if times.iter().any(|range| range.contains(&time)) {
                let locations = stack.iter().map(|id| &trace.locations[id.0 as usize]);
                let python = locations.filter(|it| it.kind == FrameKind::Python);
                let functions: Vec<String> = python.map(|it| function(&trace, it)).collect();
                shares.add(Some(tid), &functions, u64::from(sample.weight), 1);
            }
        });
    }
    shares
}

/// Returns a function as `name (file:line)`, with the line at which it begins.
fn function(trace: &LoadedTrace, location: &Location) -> String {
    let method = &trace.methods[location.method.0 as usize];
    format!("{} ({}:{})", method.name, location.file.as_deref().unwrap_or("?"), method.line)
}
