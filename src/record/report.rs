//! What a recording tells while it runs and when it is over.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::anyhow;

use super::ended::{Ended, Over};
use super::engine::Choice;
use super::perf::Setup;
use super::scribe::Closed;
use super::spawn::Started;
use super::tally;
use super::{Files, Options, clock};
use crate::inject::{InjectError, Refusal};
use crate::trace::{Metadata, Saved, Value, WriteMode, Written};

/// Watches a recording while it runs.
pub trait Observer {
    /// Something happened once.
    fn event(&mut self, event: Event);
    /// The state some time later; called several times a second.
    fn tick(&mut self, progress: &Progress);
    /// Whether the recording is to end now; asked after each [`Self::tick`].
    fn wants_end(&mut self) -> bool {
        false
    }
}

/// Something that happens once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Sampling is on.
    Attached {
        /// Name of the sampling engine.
        engine: String,
        /// Why it is this one.
        why: String,
        /// Threads that are sampled.
        threads: usize,
        /// How long each stop of a thread took, in nanoseconds.
        stops_ns: Vec<u64>,
        /// Pid of the program that was started.
        command_pid: Option<i32>,
        /// The program, if the target executed it during the recording.
        executed: Option<String>,
    },
    /// Something the user should know.
    Notice(String),
    /// Sampling ends, the target is cleaned up.
    Detaching,
    /// Something happened to one of several processes.
    Of {
        /// Its id and its name.
        process: String,
        /// What.
        event: Box<Event>,
    },
}

/// How far a recording is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Time since the attach.
    pub elapsed: Duration,
    /// How long it was asked to last.
    pub duration: Option<Duration>,
    /// Samples stored.
    pub samples: u64,
    /// Samples lost, for whatever reason.
    pub lost: u64,
    /// Threads that are sampled now.
    pub threads: usize,
    /// Bytes written, data and index.
    pub bytes: u64,
}

/// What a recording came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// Label and value of each line of the trailer, ready to print.
    pub text: Vec<(String, String)>,
    /// The same of what the storage has counted, if that was asked for.
    pub stats: Vec<(String, String)>,
    /// Samples stored.
    pub samples: u64,
    /// Samples whose stack reaches the thread's root.
    pub rooted: u64,
    /// How the started program ended, if it did.
    pub command_status: Option<ExitStatus>,
    /// The data file; `None` of a ring that nobody asked to be saved.
    pub output: Option<PathBuf>,
    /// Its bytes, those of its index, and what else is known of them.
    pub written: Written,
    /// The data files that are kept of a recording in parts, and how many there were.
    pub parts: (Vec<PathBuf>, u32),
    /// What was saved of a ring.
    pub saves: Vec<Saved>,
    /// All figures of the recording under the names that the trace has them by.
    pub figures: Metadata,
    /// Why it ended, if nobody asked for that.
    pub ended: Option<String>,
    /// Why not all of it could be written, what is kept, and what to do.
    pub cut_short: Option<String>,
    /// The target.
    pub pid: i32,
    /// What was found in it after the detach, if it was looked for, or is known to be there.
    pub left: Vec<String>,
    /// What is known of the reason why there is no sample, if there is none.
    pub nothing: Option<String>,
    /// The figure that `--fail-under` looks at: samples that reached a root, in percent.
    pub quality_percent: f64,
}

/// Why there is no recording.
#[derive(Debug)]
pub enum RecordError {
    /// The target may not be traced by this user.
    NotPermitted(anyhow::Error),
    /// The target ended before there was any data.
    TargetGone(anyhow::Error),
    /// The files could not be written.
    Output(anyhow::Error),
    /// What was asked for makes no sense.
    Usage(String),
    /// Anything else.
    Other(anyhow::Error),
}

impl RecordError {
    /// The target executed another program while it was being attached to.
    pub(super) fn is_executed(&self) -> bool {
        let Self::TargetGone(error) = self else { return false };
        matches!(error.downcast_ref(), Some(InjectError::Executed))
    }

    /// The same kind of error, that says something else.
    pub(super) fn saying(self, text: String) -> Self {
        match self {
            Self::NotPermitted(_) => Self::NotPermitted(anyhow!(text)),
            Self::TargetGone(_) => Self::TargetGone(anyhow!(text)),
            Self::Output(_) => Self::Output(anyhow!(text)),
            Self::Other(_) => Self::Other(anyhow!(text)),
            Self::Usage(_) => Self::Usage(text),
        }
    }

    /// What it says, with its causes.
    pub(super) fn text(&self) -> String {
        match self {
            Self::NotPermitted(error)
            | Self::TargetGone(error)
            | Self::Output(error)
            | Self::Other(error) => format!("{error:#}"),
            Self::Usage(text) => text.clone(),
        }
    }
}

/// The error of an injection, by the exit code that fits.
pub(super) fn inject_error(error: InjectError) -> RecordError {
    match error {
        InjectError::Refused(refusal) => refusal_error(refusal),
        InjectError::NotPermitted => RecordError::NotPermitted(error.into()),
        error if error.is_gone() => RecordError::TargetGone(error.into()),
        error => RecordError::Other(error.into()),
    }
}

/// The error of a refused attach, by the exit code that fits.
pub(super) fn refusal_error(refusal: Refusal) -> RecordError {
    match refusal {
        Refusal::NoSuchProcess { .. } | Refusal::Exited { .. } => {
            RecordError::TargetGone(refusal.into())
        }
        Refusal::NotAProcess { .. }
        | Refusal::Own
        | Refusal::NoAddressSpace { .. }
        | Refusal::TooManyMappings { .. }
        | Refusal::Unreadable { .. } => RecordError::Other(refusal.into()),
        _ => RecordError::NotPermitted(refusal.into()),
    }
}

/// What the trace says of a recording before its first sample.
pub(super) fn opening(
    options: &Options,
    pid: i32,
    command_line: &[std::ffi::OsString],
    setup: Setup,
    choice: &Choice,
) -> Metadata {
    let number = Value::Unsigned;
    let text = |text: String| Value::Text(text);
    let realtime = clock::clock_ns(nix::time::ClockId::CLOCK_REALTIME);
    let host = nix::sys::utsname::uname().ok();
    let part = |value: Option<&std::ffi::OsStr>| {
        text(value.map(|value| value.to_string_lossy().into_owned()).unwrap_or_default())
    };
    let arguments = command_line.iter().map(|word| text(word.to_string_lossy().into_owned()));
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let interval = options.measure.wall_interval();
    let interval = interval.map(|it| ("wall_interval_ns", number(it.as_nanos() as u64)));
    [
        ("traceprof_version", text(env!("CARGO_PKG_VERSION").to_string())),
        ("engine", text(choice.engine.name().to_string())),
        ("engine_why", text(choice.why.clone())),
        ("period_ns", number(setup.period_ns)),
        ("freq_hz", number(u64::from(options.freq_hz))),
        ("mode", text(options.measure.name().to_string())),
        ("kernel_included", number(u64::from(setup.kernel))),
        ("pid", number(pid as u64)),
        ("command_line", Value::List(arguments.collect())),
        ("host", part(host.as_ref().map(|host| host.nodename()))),
        ("kernel", part(host.as_ref().map(|host| host.release()))),
        ("cpus", number(cpus as u64)),
        ("start_realtime_ns", number(realtime)),
        ("start_monotonic_ns", number(clock::monotonic_now_ns())),
    ]
    .into_iter()
    .chain(interval)
    .map(|(key, value)| (key.to_string(), value))
    .collect()
}

/// Closes the trace, waits for a started program, and sums up.
pub(super) fn conclude(over: Over, options: &Options) -> Result<Summary, RecordError> {
    let reckoning = over.reckoning();
    let mut text = reckoning.lines();
    let mut metadata = reckoning.metadata();
    metadata.insert("end_monotonic_ns".to_string(), Value::Unsigned(clock::monotonic_now_ns()));
    let wall = reckoning.totals.wall;
    let samples = reckoning.totals.samples + wall.0;
    let rooted = reckoning.rooted() + wall.1;
    let quality_percent = rooted as f64 * 100.0 / samples.max(1) as f64;
    let nothing = (samples == 0).then(|| reckoning.nothing());
    let stats = if options.stats { tally::lines(&reckoning) } else { Vec::new() };
    let reason = over.reason();
    text.extend(over.ended.iter().filter(|_| !over.is_several).flat_map(why));
    let aftermaths = over.aftermaths.iter().flatten().filter(|_| !over.is_several);
    text.extend(aftermaths.map(|it| ("verified".to_string(), it.text().to_string())));
    if over.is_several {
        // Each is told of with its process.
        text.retain(|(label, _)| label != "executed");
    }
    text.extend(over.process_lines());
    metadata.extend(over.process_metadata());
    let (pid, left) = over.left();
    if options.verify_detach {
        metadata.insert("left_in_target".to_string(), Value::Unsigned(left.len() as u64));
    }
    // With `--call-traces` they are there already.
    let heaviest = if options.writer.call_traces { &[][..] } else { &over.stint.heaviest };
    let mut finished = over.finished;
    if matches!(options.files, Files::Ring { at_end: false, .. }) && !over.is_save_owed {
        finished.drop_rest();
    }
    let closed = finished.close(metadata.clone(), heaviest);
    let Closed { written, parts, saves, is_dropped, error } = closed;
    let mut command = over.ended.into_iter().find_map(|it| it.opened.command);
    let command_status = command.as_mut().map(Started::wait).transpose();
    let command_status = command_status
        .map_err(|error| RecordError::Other(anyhow!("waiting for the program: {error}")))?;
    let last = saves.last().map(|saved| &saved.path).or(parts.0.last());
    let output = last.or((!is_dropped).then_some(&options.output)).cloned();
    if let Some(output) = &output {
        text.extend(files(&written, (options, output), &parts));
    }
    text.extend(saves.iter().map(saved));
    text.extend(rest_of_ring(options, (is_dropped, saves.is_empty()), error.is_some()));
    let cut_short = error.map(|error| error.to_string());
    if cut_short.is_some() {
        let kept = format!("{} of {samples} samples", written.samples);
        text.push(("cut short".to_string(), format!("{kept} are in the trace")));
    }
    Ok(Summary {
        text,
        stats,
        samples,
        rooted,
        command_status,
        output,
        written,
        parts,
        saves,
        figures: metadata,
        ended: reason,
        cut_short,
        pid,
        left,
        nothing,
        quality_percent,
    })
}

/// What became of the ring's parts at the end, where they were not saved.
fn rest_of_ring(
    options: &Options,
    (is_dropped, none_saved): (bool, bool),
    has_failed: bool,
) -> Option<(String, String)> {
    let text = if is_dropped {
        let why =
            if none_saved { "nothing asked for a save" } else { "no more saves were asked for" };
        format!("dropped at the end: {why} (--ring-save trigger)")
    } else if matches!(options.files, Files::Ring { .. }) && has_failed {
        format!("its parts are left in {}", options.ring_directory().display())
    } else {
        return None;
    };
    Some(("ring".to_string(), text))
}

/// What was saved of a ring.
fn saved(saved: &Saved) -> (String, String) {
    let path = saved.path.display();
    let text = match &saved.outcome {
        Ok(Written { samples, data_bytes, .. }) => {
            format!("{path}: {samples} samples, {data_bytes} bytes")
        }
        Err(error) => format!("failed: {error}"),
    };
    ("saved".to_string(), text)
}

/// What the files are like.
fn files(
    written: &Written,
    (options, output): (&Options, &Path),
    (kept, begun): &(Vec<PathBuf>, u32),
) -> Vec<(String, String)> {
    let Written { data_bytes: data, index_bytes: index, samples, collected_bytes, .. } = *written;
    let per_sample = match samples {
        0 => String::new(),
        _ => format!(" ({:.1} a sample)", (data + index) as f64 / samples as f64),
    };
    let path = output.display();
    let name = |path: &PathBuf| path.display().to_string();
    let of_parts = match (kept.first().map(name), kept.last().map(name)) {
        (Some(first), Some(last)) => {
            let count = kept.len();
            let one = if count == 1 { last } else { format!("{first} to {last}") };
            Some(format!("{begun} written, {count} kept: {one}"))
        }
        _ => None,
    };
    let of_parts = of_parts.map(|text| ("parts".to_string(), text));
    let collected = (options.writer.mode == WriteMode::Collect)
        .then(|| format!("{collected_bytes} bytes held the samples until the end"));
    let files = match of_parts {
        Some(_) => format!("{data} bytes, indexes: {index} bytes{per_sample}"),
        None => format!("{path}: {data} bytes, {path}.idx: {index} bytes{per_sample}"),
    };
    let collected = collected.map(|text| ("memory".to_string(), text));
    let unsorted = written.unsorted.as_ref().map(|why| ("index".to_string(), why.to_string()));
    let written = [("written".to_string(), files)];
    collected.into_iter().chain(written).chain(of_parts).chain(unsorted).collect()
}

/// Why the recording of a process ended, where the user did not ask for it, and what stays behind.
fn why(ended: &Ended) -> Vec<(String, String)> {
    let reason = ended.reason().map(|reason| ("ended".to_string(), reason));
    let residue =
        ended.stint.detached.residue.iter().map(|text| ("left behind".to_string(), text.clone()));
    reason.into_iter().chain(residue).collect()
}
