//! Makes a long trace from a short corpus.
//!
//! A [`ReplayThread`] is a thread of the long trace. It replays the samples of all threads of its
//! corpus, one thread after the other, again and again. The replay threads of a corpus start at
//! equally distant times and keep their distance. A sample comes again only after as many others as
//! the corpus has, which is more than fit into one frame of a trace, so compression cannot profit
//! from the repetition. Intervals and stacks are the recorded ones, and times increase. Call traces
//! are numbered as in the recorder's storage: from 0 on, in the order in which they first occur in
//! an epoch, which is a batch. As in the recording, a sample may have a trace of an earlier epoch.

use std::collections::HashMap;

use traceprof::trace::{
    self, LocationId, MappedModule, Method, Module, ModuleId, Thread, ThreadId, TraceError,
    TraceWriter,
};

use super::{Corpus, Sample};

/// Time between two batches of the recorder, in nanoseconds.
pub(crate) const BATCH_NS: u64 = 100_000_000;
const BEGIN_NS: u64 = 10_000_000_000_000;
const MAPPED_BYTES: u64 = 1 << 28;

/// A corpus whose symbols have been written.
pub(crate) struct Source<'a> {
    corpus: &'a Corpus,
    /// All samples in the order of the replay, with their intervals.
    steps: Vec<(Sample, u64)>,
    /// The range of each path's locations in `frames`.
    stacks: Vec<(usize, usize)>,
    frames: Vec<LocationId>,
}

impl<'a> Source<'a> {
    /// Writes modules, methods and locations of `corpus`. `seed` makes the names differ from those
    /// of other corpora.
    pub(crate) fn write(
        corpus: &'a Corpus,
        seed: u64,
        writer: &mut TraceWriter,
    ) -> Result<Self, TraceError> {
        let locations = write_symbols(corpus, seed, writer)?;
        let (mut stacks, mut frames) = (Vec::new(), Vec::new());
        for path in 0..corpus.paths.len() as u32 {
            let stack = corpus.stack(Some(path));
            stacks.push((frames.len(), frames.len() + stack.len()));
            frames.extend(stack.iter().map(|location| locations[*location as usize]));
        }
        let mut steps = Vec::new();
        for thread in &corpus.threads {
            let mut before_ns = None;
            for sample in &thread.samples {
                let interval_ns = before_ns.map_or(corpus.period_ns, |ns| sample.time_ns - ns);
                before_ns = Some(sample.time_ns);
                steps.push((*sample, interval_ns));
            }
        }
        Ok(Self { corpus, steps, stacks, frames })
    }

    /// Creates as many replay threads of process `pid` as keep `busy` CPUs busy. For threads that
    /// wait for each other, like Python's, that is several for each CPU.
    pub(crate) fn replay_threads(
        &'a self,
        busy: f64,
        pid: u32,
        writer: &mut TraceWriter,
    ) -> Result<Vec<ReplayThread<'a>>, TraceError> {
        let total_ns: u64 = self.steps.iter().map(|(_, interval_ns)| interval_ns).sum();
        let busy_ns = self.corpus.period_ns * self.steps.len() as u64;
        let count = (busy * total_ns as f64 / busy_ns.max(1) as f64).round().max(1.0) as usize;
        let replay_thread = |number: usize| {
            let (tid, name) = (pid + number as u32, format!("worker-{number}"));
            let thread = writer.thread(&Thread {
                pid,
                tid,
                name,
                first_seen_ns: BEGIN_NS,
                ..Thread::default()
            })?;
            let (at, past_ns) = self.at_time(total_ns / count as u64 * number as u64);
            // The timers of threads do not expire at the same moment.
            let phase_ns = self.corpus.period_ns * number as u64 / count as u64;
            let time_ns = BEGIN_NS + phase_ns - past_ns;
            Ok(ReplayThread { source: self, thread, at, time_ns, newest_epoch: None })
        };
        (0..count).map(replay_thread).collect()
    }

    /// Returns the first sample after a time since the start, and how much of its interval has
    /// passed at that time.
    fn at_time(&self, time_ns: u64) -> (usize, u64) {
        let mut past_ns = time_ns;
        for (at, (_, interval_ns)) in self.steps.iter().enumerate() {
            if past_ns < *interval_ns {
                return (at, past_ns);
            }
            past_ns -= interval_ns;
        }
        (0, 0)
    }

    fn stack(&self, path: Option<u32>) -> &[LocationId] {
        let (from, to) = path.map_or((0, 0), |path| self.stacks[path as usize]);
        &self.frames[from..to]
    }
}

/// A replayed sample for the writer.
pub(crate) struct ReplayedSample<'a> {
    pub(crate) thread: ThreadId,
    pub(crate) sample: trace::Sample,
    pub(crate) stack: &'a [LocationId],
}

/// Numbers call traces within their epochs.
#[derive(Default)]
pub(crate) struct Numbers {
    /// For each epoch: the numbers by stack, which its address identifies, and end reason.
    epochs: HashMap<u64, HashMap<(*const LocationId, u16), u64>>,
}

impl Numbers {
    /// Completes the trace ids of a batch's samples, of all threads.
    pub(crate) fn number(&mut self, batch: u64, samples: &mut [ReplayedSample<'_>]) {
        // Recordings have no samples with older epochs.
        self.epochs.retain(|epoch, _| epoch + 64 > batch);
        let mut order: Vec<&mut ReplayedSample<'_>> = samples.iter_mut().collect();
        order.sort_by_key(|taken| taken.sample.time_ns);
        for ReplayedSample { sample, stack, .. } in order {
            let numbers = self.epochs.entry(sample.trace_id >> 32).or_default();
            let next = numbers.len() as u64;
            sample.trace_id |= *numbers.entry((stack.as_ptr(), sample.end_reason)).or_insert(next);
        }
    }
}

/// A thread of the long trace.
pub(crate) struct ReplayThread<'a> {
    source: &'a Source<'a>,
    thread: ThreadId,
    at: usize,
    time_ns: u64,
    newest_epoch: Option<u32>,
}

impl<'a> ReplayThread<'a> {
    /// Returns the next sample, if it was taken before the end of the batch.
    pub(crate) fn next(&mut self, batch: u64) -> Option<ReplayedSample<'a>> {
        let (sample, interval_ns) = self.source.steps.get(self.at)?;
        let time_ns = self.time_ns + interval_ns;
        if time_ns >= BEGIN_NS + (batch + 1) * BATCH_NS {
            return None;
        }
        // Epochs jump where the replay goes to the next thread.
        let newest = self.newest_epoch.filter(|newest| newest.abs_diff(sample.epoch) <= 64);
        let newest = newest.unwrap_or(sample.epoch).max(sample.epoch);
        self.newest_epoch = Some(newest);
        let age = u64::from(newest - sample.epoch).min(batch);
        self.time_ns = time_ns;
        self.at = (self.at + 1) % self.source.steps.len();
        let source = self.source;
        let stack = source.stack(sample.path);
        let sample = trace::Sample {
            time_ns,
            trace_id: (batch + 1 - age) << 32,
            weight: sample.weight,
            end_reason: sample.end_reason,
            flags: sample.flags,
            ..trace::Sample::default()
        };
        Some(ReplayedSample { thread: self.thread, sample, stack })
    }
}

fn write_symbols(
    corpus: &Corpus,
    seed: u64,
    writer: &mut TraceWriter,
) -> Result<Vec<LocationId>, TraceError> {
    let mut modules: Vec<ModuleId> = Vec::new();
    for number in 0..corpus.modules {
        let mix = mix(seed << 32 | u64::from(number));
        let path = format!(
            "/usr/lib/x86_64-linux-gnu/lib{}-{seed}.so.{number}",
            WORDS[mix as usize % WORDS.len()]
        );
        let build_id = [mix, mix.rotate_left(23), mix >> 9].map(u64::to_be_bytes).concat();
        modules.push(writer.module(&Module { path, build_id: build_id[..20].to_vec() })?);
        writer.mapped_module(&MappedModule {
            pid: 1,
            start: 0x7f00_0000_0000 + MAPPED_BYTES * u64::from(number),
            end: 0x7f00_0000_0000 + MAPPED_BYTES * (u64::from(number) + 1),
            file_offset: 0,
            module: modules[number as usize],
            first_seen_ns: BEGIN_NS,
        })?;
    }
    let mut methods = Vec::new();
    for (number, method) in corpus.methods.iter().enumerate() {
        methods.push(writer.method(&Method {
            module: method.module.map(|module| modules[module as usize]),
            name: name(seed << 32 | number as u64),
            start_svma: method.start_svma,
            ..Method::default()
        })?);
    }
    let mut locations: Vec<LocationId> = Vec::new();
    for location in &corpus.locations {
        let file = location.file.map(|file| {
            let mix = mix(u64::from(file) << 8);
            let word = |shift: u32| WORDS[(mix >> shift) as usize % WORDS.len()];
            format!("/usr/src/{}/{}_{}_{file}.c", word(0), word(8), word(16))
        });
        locations.push(writer.location(&trace::Location {
            file,
            line: location.line,
            inline_parent: location.inline_parent.map(|parent| locations[parent as usize]),
            ..trace::Location::at(methods[location.method as usize], location.svma)
        })?);
    }
    Ok(locations)
}

const WORDS: [&str; 64] = [
    "access", "alloc", "append", "array", "base", "begin", "block", "bucket", "buffer", "build",
    "cache", "check", "child", "clear", "code", "compute", "copy", "count", "create", "cursor",
    "decl", "decode", "dense", "emit", "entry", "eval", "expand", "field", "find", "flow", "fold",
    "frame", "graph", "hash", "index", "init", "insn", "iter", "lookup", "loop", "make", "merge",
    "node", "operand", "parse", "pass", "push", "range", "read", "reg", "scan", "size", "sort",
    "stack", "table", "tree", "type", "update", "value", "vector", "visit", "walk", "word",
    "write",
];

/// Returns a name of 20 to 60 characters like those of C++, different for each number.
fn name(number: u64) -> String {
    let mix = mix(number);
    let word = |place: u32| WORDS[(mix >> (6 * place)) as usize % WORDS.len()];
    let digits = number as u32;
    let mut name = format!("{}_{}::{}_{}_{digits:x}", word(0), word(1), word(2), word(3));
    match mix >> 60 {
        0..5 => name.push_str("()"),
        5..9 => name.push_str(&format!("({}_t*, unsigned int)", word(4))),
        9..13 => name.push_str(&format!("({} const&, bool)", word(5))),
        _ => name.push_str(&format!("(std::vector<{}_{}*>&)", word(4), word(5))),
    }
    name
}

/// SplitMix64's last step: it maps each input to a different output and uses all bits.
fn mix(number: u64) -> u64 {
    let z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::path::Path;

    use traceprof::trace::WriterOptions;

    use super::*;

    fn check(name: &str) {
        let file = format!("tests/corpus/{name}.stacks.zst");
        let corpus = Corpus::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let options = WriterOptions::default();
        let mut writer = TraceWriter::create(&dir.path().join("out.trace"), options).unwrap();
        let source = Source::write(&corpus, 1, &mut writer).unwrap();
        let mut replay_threads = source.replay_threads(8.0, 1, &mut writer).unwrap();
        let mut total = 0;
        for second in 0..30 {
            let mut taken = HashSet::new();
            for batch in second * 10..(second + 1) * 10 {
                for replay_thread in &mut replay_threads {
                    let (mut at, mut last_ns) = (replay_thread.at, replay_thread.time_ns);
                    while let Some(next) = replay_thread.next(batch) {
                        assert!(taken.insert(at), "{name}: a sample twice in second {second}");
                        assert!(next.sample.time_ns >= last_ns, "{name}: time went back");
                        (at, last_ns) = (replay_thread.at, next.sample.time_ns);
                    }
                }
            }
            total += taken.len();
        }
        // Eight threads with a sample in each millisecond.
        assert!((200_000..280_000).contains(&total), "{name}: {total} samples");
        assert!(total > 2 * source.steps.len(), "{name}: no sample was repeated");
    }

    #[test]
    fn no_sample_comes_twice_between_two_flushes() {
        ["cc1", "rustc", "python", "redis"].iter().for_each(|name| check(name));
    }

    #[test]
    fn names_are_as_long_as_real_ones_and_all_different() {
        let names: HashSet<String> = (0..5_000).map(name).collect();
        assert_eq!(names.len(), 5_000);
        assert!(names.iter().all(|name| (15..=70).contains(&name.len())));
    }
}
