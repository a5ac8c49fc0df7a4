//! Creates a corpus of stacks from a trace, for measurements with the stacks of real programs.
//!
//!     cargo run --release --example stack_corpus -- IN.trace OUT.stacks.zst [SKIP [SAMPLES]]
//!
//! Omits the first SKIP samples and keeps the next SAMPLES (by default all), in time order over all
//! threads. The corpus contains nothing that names the program. `examples/corpus/codec.rs` says
//! what is kept, and how. Prints a line about the corpus.
#![allow(clippy::print_stdout, reason = "its output is its purpose")]

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;

use traceprof::trace::{self, LoadedTrace, LocationId, Value};

mod corpus;

use corpus::{Corpus, Location, Method, Sample, Step, Thread};

fn main() -> ExitCode {
    match run() {
        Ok(line) => println!("{line}"),
        Err(error) => {
            eprintln!("stack_corpus: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn run() -> Result<String, String> {
    let words: Vec<_> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let (input, output, numbers) = match words.as_slice() {
        [input, output, numbers @ ..] if numbers.len() <= 2 => (input, output, numbers),
        _ => return Err("needs a trace, a file to write, and at most two numbers".into()),
    };
    let number = |index: usize, default: usize| match numbers.get(index) {
        Some(word) => word
            .to_string_lossy()
            .parse()
            .map_err(|_| format!("{} is not a number of samples", word.display())),
        None => Ok(default),
    };
    let trace = trace::load(input).map_err(|error| error.to_string())?;
    let corpus = cut(&trace, number(0, 0)?, number(1, usize::MAX)?);
    corpus.check().map_err(|error| format!("{}: {error}", input.display()))?;
    let write = |error| format!("{}: {error}", output.display());
    let bytes = corpus.to_file().map_err(write)?;
    std::fs::write(output, &bytes).map_err(write)?;
    Ok(format!("{} bytes: {}", bytes.len(), corpus.summary()))
}

/// Returns a corpus of `samples` samples from the `skip`th on.
fn cut(trace: &LoadedTrace, skip: usize, samples: usize) -> Corpus {
    let mut times_ns = Vec::new();
    for thread in &trace.threads {
        thread.for_each_sample(&mut |sample, _| times_ns.push(sample.time_ns));
    }
    times_ns.sort_unstable();
    let from_ns = times_ns.get(skip).copied().unwrap_or(u64::MAX);
    let to_ns = times_ns.get(skip.saturating_add(samples)).copied().unwrap_or(u64::MAX);
    let mut cutting = Cutting::new(trace);
    let mut threads = Vec::new();
    for thread in &trace.threads {
        let mut kept = Thread::default();
        let mut first_ns = None;
        thread.for_each_sample(&mut |sample, stack| {
            if !(from_ns..to_ns).contains(&sample.time_ns) {
                return;
            }
            let first_ns = *first_ns.get_or_insert(sample.time_ns);
            kept.begin_ns = first_ns - from_ns;
            kept.samples.push(Sample {
                time_ns: sample.time_ns - first_ns,
                path: cutting.path(stack),
                epoch: (sample.trace_id >> 32) as u32,
                slot: sample.trace_id as u32,
                weight: sample.weight,
                end_reason: sample.end_reason,
                flags: sample.flags,
            });
        });
        if !kept.samples.is_empty() {
            threads.push(kept);
        }
    }
    threads.sort_by_key(|thread| thread.begin_ns);
    let mut corpus = cutting.finish();
    corpus.threads = threads;
    if let Some(Value::Unsigned(period_ns)) = trace.metadata.get("period_ns") {
        corpus.period_ns = *period_ns;
    }
    corpus
}

/// The kept stacks, whose locations still have the trace's ids.
struct Cutting<'a> {
    trace: &'a LoadedTrace,
    paths: Vec<Step>,
    known: HashMap<Step, u32>,
    used: Vec<bool>,
}

impl<'a> Cutting<'a> {
    fn new(trace: &'a LoadedTrace) -> Self {
        let used = vec![false; trace.locations.len()];
        Self { trace, paths: Vec::new(), known: HashMap::new(), used }
    }

    fn path(&mut self, stack: &[LocationId]) -> Option<u32> {
        let mut parent = None;
        for location in stack {
            let step = Step { parent, location: location.0 };
            parent = Some(*self.known.entry(step).or_insert_with(|| {
                self.paths.push(step);
                self.paths.len() as u32 - 1
            }));
            self.used[location.0 as usize] = true;
        }
        parent
    }

    /// Numbers the used items in the trace's order.
    fn finish(mut self) -> Corpus {
        let locations = &self.trace.locations;
        for index in (0..locations.len()).rev() {
            // A parent has a smaller id, so one walk backwards finds them all.
            if self.used[index]
                && let Some(parent) = locations[index].inline_parent
            {
                self.used[parent.0 as usize] = true;
            }
        }
        let mut numbers = vec![None; locations.len()];
        let (mut methods, mut modules, mut files) =
            (HashMap::new(), HashMap::new(), HashMap::new());
        let mut corpus = Corpus::default();
        for (index, location) in locations.iter().enumerate().filter(|(at, _)| self.used[*at]) {
            let method = *methods.entry(location.method).or_insert_with(|| {
                let method = &self.trace.methods[location.method.0 as usize];
                let module = method.module.map(|module| number(&mut modules, module));
                corpus.methods.push(Method { module, start_svma: method.start_svma });
                corpus.methods.len() as u32 - 1
            });
            numbers[index] = Some(corpus.locations.len() as u32);
            corpus.locations.push(Location {
                method,
                svma: location.svma,
                file: location.file.as_deref().map(|file| number(&mut files, file)),
                line: location.line,
                inline_parent: location.inline_parent.and_then(|id| numbers[id.0 as usize]),
            });
        }
        corpus.modules = modules.len() as u32;
        for step in &mut self.paths {
            step.location = numbers[step.location as usize].unwrap_or_default();
        }
        corpus.paths = self.paths;
        corpus
    }
}

/// Returns the number of a key. A new key gets the next number.
fn number<K: std::hash::Hash + Eq>(numbers: &mut HashMap<K, u32>, key: K) -> u32 {
    let next = numbers.len() as u32;
    *numbers.entry(key).or_insert(next)
}
