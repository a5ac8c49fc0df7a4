//! Measures a save of a ring: the time, and the memory that it takes next to the target.
//!
//!     cargo run --release --example ring_save -- [OPTIONS]
//!
//! | option | |
//! |---|---|
//! | `--hours N` | time span of the ring, 24 by default |
//! | `--freq HZ` | samples per second and thread, 199 by default |
//! | `--threads N` | number of threads that are busy at a time, 8 by default |
//! | `--parts N` | number of parts, 8 as in the recorder |
//! | `--corpus NAME` | real stacks, a name in tests/corpus; `cc1` by default |
//!
//! The parts are written first. Then the peak of this process's memory is set back, so that what is
//! measured is the save alone.
#![allow(clippy::print_stdout, reason = "its output is its purpose")]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use nix::time::{ClockId, clock_gettime};
use traceprof::trace::{self, TraceWriter, Value, WriterOptions};

mod corpus;

use corpus::Corpus;
use corpus::replay::{BATCH_NS, Numbers, Source};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// The interval at which the recorder flushes, in nanoseconds.
const FLUSH_NS: u64 = 850_000_000;

struct Options {
    hours: f64,
    freq_hz: f64,
    threads: f64,
    parts: u32,
    corpus: String,
}

fn main() -> ExitCode {
    if let Err(error) = options().and_then(|options| run(&options)) {
        eprintln!("ring_save: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn options() -> Outcome<Options> {
    let mut options =
        Options { hours: 24.0, freq_hz: 199.0, threads: 8.0, parts: 8, corpus: "cc1".to_owned() };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().ok_or(format!("{word} needs a value"))?;
        match word.as_str() {
            "--hours" => options.hours = value.parse()?,
            "--freq" => options.freq_hz = value.parse()?,
            "--threads" => options.threads = value.parse()?,
            "--parts" => options.parts = value.parse::<u32>()?.max(1),
            "--corpus" => options.corpus = value,
            option => return Err(format!("unknown option {option}").into()),
        }
    }
    Ok(options)
}

fn run(options: &Options) -> Outcome<()> {
    let file = format!("tests/corpus/{}.stacks.zst", options.corpus);
    let corpus = Corpus::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(file))?;
    let dir = tempfile::tempdir()?;
    let (mut parts, mut samples, mut bytes) = (Vec::new(), 0, 0);
    for number in 0..options.parts {
        let path = dir.path().join(format!("{number:06}.trace"));
        let written = write_part(options, &corpus, number, &path)?;
        samples += written.samples;
        bytes += written.data_bytes + written.index_bytes;
        parts.push(path);
    }
    save(&parts, dir.path(), (samples, bytes))
}

/// Writes a part with its share of the time.
fn write_part(
    options: &Options,
    corpus: &Corpus,
    number: u32,
    path: &Path,
) -> Outcome<trace::Written> {
    let part_ns = (options.hours * 3.6e12 / f64::from(options.parts)) as u64;
    // The corpus was recorded at another rate.
    let stretch = 1e9 / options.freq_hz / corpus.period_ns as f64;
    let mut writer = TraceWriter::create(path, WriterOptions::default())?;
    writer.set_metadata("period_ns", Value::Unsigned((1e9 / options.freq_hz) as u64))?;
    let source = Source::write(corpus, 1, &mut writer)?;
    let mut threads = source.replay_threads(options.threads, 1000, &mut writer)?;
    let (mut numbers, mut flushed_ns, mut begin_ns) = (Numbers::default(), 0, None);
    for batch in 0.. {
        let now_ns = (batch as f64 * BATCH_NS as f64 * stretch) as u64;
        if now_ns >= part_ns {
            break;
        }
        let mut taken = Vec::new();
        for thread in &mut threads {
            taken.extend(std::iter::from_fn(|| thread.next(batch)));
        }
        numbers.number(batch, &mut taken);
        for mut it in taken {
            let begin_ns = *begin_ns.get_or_insert(it.sample.time_ns);
            let since_ns = it.sample.time_ns.saturating_sub(begin_ns) as f64 * stretch;
            it.sample.time_ns = begin_ns + u64::from(number) * part_ns + since_ns as u64;
            writer.sample(it.thread, &it.sample, it.stack)?;
        }
        if now_ns >= flushed_ns + FLUSH_NS {
            writer.flush()?;
            flushed_ns = now_ns;
        }
    }
    Ok(writer.finish()?)
}

fn save(parts: &[PathBuf], dir: &Path, (samples, bytes): (u64, u64)) -> Outcome<()> {
    // Sets the peak to what is held now.
    std::fs::write("/proc/self/clear_refs", "5")?;
    let (before, begin, begin_cpu) = (status_kib("VmRSS:")?, Instant::now(), cpu_s()?);
    let saved = trace::join(parts, &dir.join("saved.trace"), WriterOptions::default())?;
    let peak = status_kib("VmHWM:")?;
    if saved.samples != samples {
        return Err(format!("{} of {samples} samples are saved", saved.samples).into());
    }
    let of_parts = bytes >> 20;
    let of_save = (saved.data_bytes + saved.index_bytes) >> 20;
    let (mib, all_mib) = (peak.saturating_sub(before) >> 10, peak >> 10);
    println!(
        "| samples | parts, MiB | saved, MiB | s | CPU s | memory of the save, MiB | of all |"
    );
    println!("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    println!(
        "| {samples} | {of_parts} | {of_save} | {:.0} | {:.0} | {mib} | {all_mib} |",
        begin.elapsed().as_secs_f64(),
        cpu_s()? - begin_cpu,
    );
    Ok(())
}

/// Returns the CPU time of this process in seconds.
fn cpu_s() -> Outcome<f64> {
    let time = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?;
    Ok(time.tv_sec() as f64 + time.tv_nsec() as f64 / 1e9)
}

/// Returns a value of `/proc/self/status`.
fn status_kib(key: &str) -> Outcome<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(key)).ok_or("no such line")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
