//! Measures the cost of a trace of real stacks: bytes of data, index and symbols, and CPU time of
//! the writer.
//!
//!     cargo run --release --example trace_size -- [OPTIONS] [CORPUS[+CORPUS...]...]
//!
//! | option | |
//! |---|---|
//! | `--samples N` | number of samples of each trace, 1,000,000 by default |
//! | `--threads N` | number of threads that are busy at a time, 8 by default |
//! | `--flush-every MS` | interval in the trace's time; 1000 as in the recorder, 0 for never |
//! | `--compress LEVEL` | level of zstd, or `none` |
//! | `--output FILE` | keep the trace with ids of the only corpus, or sum of corpora |
//!
//! The numbers are valid only if no frame of the trace contains a sample twice. So busy threads
//! times seconds between two flushes must be less than the CPU time that the corpus covers, 11 s or
//! more. Without flushes, the blocks of threads that wait a lot get old, and the results are too
//! good.
//!
//! A corpus is a name in tests/corpus. A sum of corpora is one trace with threads of each, and the
//! same number of samples. Each trace is written with call-trace ids and without. Only calls of the
//! writer are timed, by the CPU clocks: `ns` is the calling thread, `all ns` the complete process.
//! `samples/s` is computed from `all ns`.
#![allow(clippy::print_stdout, reason = "its output is its purpose")]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nix::time::{ClockId, clock_gettime};
use traceprof::trace::{Compression, TraceWriter, Value, WriterOptions};

mod corpus;

use corpus::Corpus;
use corpus::replay::{BATCH_NS, Numbers, ReplayThread, ReplayedSample, Source};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const DEFAULT: [&str; 5] = ["cc1", "rustc", "python", "cc1+rustc+python", "redis"];

struct Options {
    samples: u64,
    threads: usize,
    flush_every_ns: u64,
    compress: Compression,
    output: Option<PathBuf>,
    sums: Vec<String>,
}

fn main() -> ExitCode {
    if let Err(error) = options().and_then(|options| run(&options)) {
        eprintln!("trace_size: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn options() -> Outcome<Options> {
    let mut options = Options {
        samples: 1_000_000,
        threads: 8,
        flush_every_ns: 1_000_000_000,
        compress: WriterOptions::default().compress,
        output: None,
        sums: Vec::new(),
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        match word.as_str() {
            "--samples" => options.samples = value()?.parse()?,
            "--threads" => options.threads = value()?.parse::<usize>()?.max(1),
            "--flush-every" => {
                options.flush_every_ns = value()?.parse::<u64>()?.saturating_mul(1_000_000)
            }
            "--output" => options.output = Some(value()?.into()),
            "--compress" => {
                options.compress = match value()?.as_str() {
                    "none" => Compression::None,
                    level => Compression::Zstd(level.parse()?),
                }
            }
            option if option.starts_with('-') => {
                return Err(format!("unknown option {option}").into());
            }
            sum => options.sums.push(sum.to_owned()),
        }
    }
    if options.sums.is_empty() {
        options.sums = DEFAULT.map(str::to_owned).to_vec();
    }
    if options.output.is_some() && options.sums.len() != 1 {
        return Err("--output needs one corpus, or a sum of corpora".into());
    }
    Ok(options)
}

fn run(options: &Options) -> Outcome<()> {
    println!(
        "| {:<18} | {:>3} | {:>9} | {:>5} | {:>7} | {:>7} | {:>7} | {:>9} | {:>6} | {:>6} \
         | {:>9} |",
        "corpus",
        "ids",
        "samples",
        "depth",
        "data B",
        "index B",
        "sum B",
        "symbols B",
        "ns",
        "all ns",
        "samples/s"
    );
    println!("| --- |{}", " ---: |".repeat(10));
    let dir = tempfile::tempdir()?;
    for sum in &options.sums {
        let mut corpora = Vec::new();
        for name in sum.split('+') {
            let file = format!("tests/corpus/{name}.stacks.zst");
            corpora.push(Corpus::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(file))?);
        }
        for trace_ids in [true, false] {
            let path = match &options.output {
                Some(_) if !trace_ids => continue,
                Some(output) => output.clone(),
                None => dir.path().join("out.trace"),
            };
            let size = measure(options, &corpora, trace_ids, &path)?;
            print_row(sum, trace_ids, &size);
        }
    }
    Ok(())
}

fn print_row(sum: &str, trace_ids: bool, size: &Size) {
    let each = |value: u64| value as f64 / size.samples.max(1) as f64;
    println!(
        "| {sum:<18} | {:>3} | {:>9} | {:>5.1} | {:>7.2} | {:>7.3} | {:>7.2} | {:>9} | {:>6.0} \
         | {:>6.0} | {:>9.0} |",
        if trace_ids { "yes" } else { "no" },
        size.samples,
        each(size.frames),
        each(size.data_bytes),
        each(size.index_bytes),
        each(size.data_bytes + size.index_bytes),
        size.symbol_bytes,
        each(size.thread_ns),
        each(size.process_ns),
        1e9 / each(size.process_ns),
    );
}

/// The size of a trace, and the CPU time to write it.
#[derive(Default)]
struct Size {
    samples: u64,
    frames: u64,
    data_bytes: u64,
    index_bytes: u64,
    /// Bytes of modules, methods, locations and threads, in both files.
    symbol_bytes: u64,
    thread_ns: u64,
    process_ns: u64,
}

fn measure(options: &Options, corpora: &[Corpus], trace_ids: bool, path: &Path) -> Outcome<Size> {
    let writer_options = || WriterOptions {
        force: true,
        compress: options.compress,
        trace_ids,
        ..WriterOptions::default()
    };
    // The size of the same trace without samples.
    let mut writer = TraceWriter::create(path, writer_options())?;
    let sources = write_symbols(corpora, &mut writer)?;
    replay_threads(options, &sources, &mut writer)?;
    writer.flush()?;
    let symbols = writer.finish()?;
    let mut writer = TraceWriter::create(path, writer_options())?;
    let sources = write_symbols(corpora, &mut writer)?;
    let mut groups = replay_threads(options, &sources, &mut writer)?;
    writer.flush()?;
    let mut size = Size::default();
    replay(options, &mut groups, &mut writer, &mut size)?;
    let before = CpuTime::now()?;
    let written = writer.finish()?;
    size.add_time(&before)?;
    size.symbol_bytes = symbols.data_bytes + symbols.index_bytes;
    size.data_bytes = written.data_bytes - symbols.data_bytes;
    size.index_bytes = written.index_bytes - symbols.index_bytes;
    Ok(size)
}

fn write_symbols<'a>(corpora: &'a [Corpus], writer: &mut TraceWriter) -> Outcome<Vec<Source<'a>>> {
    let period_ns = corpora.first().map_or(0, |corpus| corpus.period_ns);
    writer.set_metadata("period_ns", Value::Unsigned(period_ns))?;
    let mut sources = Vec::new();
    for (number, corpus) in corpora.iter().enumerate() {
        sources.push(Source::write(corpus, number as u64 + 1, writer)?);
    }
    Ok(sources)
}

fn replay_threads<'a>(
    options: &Options,
    sources: &'a [Source<'a>],
    writer: &mut TraceWriter,
) -> Outcome<Vec<Vec<ReplayThread<'a>>>> {
    let mut groups = Vec::new();
    for (number, source) in sources.iter().enumerate() {
        let busy = options.threads as f64 / sources.len() as f64;
        groups.push(source.replay_threads(busy, (number as u32 + 1) * 100_000, writer)?);
    }
    Ok(groups)
}

/// Writes batch after batch, in the recorder's order: by thread, then time.
fn replay(
    options: &Options,
    groups: &mut [Vec<ReplayThread<'_>>],
    writer: &mut TraceWriter,
    size: &mut Size,
) -> Outcome<()> {
    let share = options.samples.div_ceil(groups.len() as u64);
    let mut left = vec![share; groups.len()];
    let mut batch = 0;
    let mut numbers = Numbers::default();
    while left.iter().any(|left| *left > 0) {
        let mut samples = Vec::new();
        for (replay_threads, left) in groups.iter_mut().zip(&mut left) {
            for replay_thread in replay_threads {
                let taken = std::iter::from_fn(|| replay_thread.next(batch)).take(*left as usize);
                let before = samples.len();
                samples.extend(taken);
                *left -= (samples.len() - before) as u64;
            }
        }
        numbers.number(batch, &mut samples);
        batch += 1;
        let is_flushed =
            options.flush_every_ns > 0 && (batch * BATCH_NS).is_multiple_of(options.flush_every_ns);
        let before = CpuTime::now()?;
        for ReplayedSample { thread, sample, stack } in &samples {
            writer.sample(*thread, sample, stack)?;
        }
        if is_flushed {
            writer.flush()?;
        }
        size.add_time(&before)?;
        size.samples += samples.len() as u64;
        size.frames += samples.iter().map(|taken| taken.stack.len() as u64).sum::<u64>();
    }
    Ok(())
}

impl Size {
    fn add_time(&mut self, before: &CpuTime) -> nix::Result<()> {
        let now = CpuTime::now()?;
        self.thread_ns += now.thread_ns - before.thread_ns;
        self.process_ns += now.process_ns - before.process_ns;
        Ok(())
    }
}

/// The CPU clocks.
struct CpuTime {
    thread_ns: u64,
    process_ns: u64,
}

impl CpuTime {
    fn now() -> nix::Result<Self> {
        let read = |clock| {
            let time = clock_gettime(clock)?;
            Ok(time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
        };
        let thread_ns = read(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
        Ok(Self { thread_ns, process_ns: read(ClockId::CLOCK_PROCESS_CPUTIME_ID)? })
    }
}
