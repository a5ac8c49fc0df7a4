//! How much of a recording is kept, and in how many files.

use clap::Args;

use crate::cli::exit::{ExitCode, Failure};
use crate::cli::sizes::{RingTime, RotateAt, SizeLimit};
use crate::record::{Files, Trigger};

/// Options of `record` about the size of its output.
#[derive(Debug, Args)]
pub struct KeepingArguments {
    /// End the recording when the trace and its index have this size together: 500M, 2G
    ///
    /// They are a little smaller then: there is room for the end. That is an end like any other, with
    /// exit code 0. Samples that come when nothing fits any more are counted as lost by the size limit.
    #[arg(long, value_name = "SIZE", conflicts_with = "collect")]
    pub max_size: Option<SizeLimit>,

    /// Begin the next file when this one has this size (100M) or age (10m, 1h)
    ///
    /// OUT.trace becomes OUT-0001.trace, OUT-0002.trace and so on; a %n in the name is the number
    /// instead. Each is a trace of its own, closed and with its index, as soon as the next one is
    /// begun. Calls that go on are unfinished in one and begin anew in the next. The closing figures
    /// of the recording are in the last one, under names that begin with `recording.`.
    #[arg(long, value_name = "SIZE|TIME", conflicts_with_all = ["collect", "max_size"])]
    #[arg(aliases = ["switch-output", "chunksize", "chunktime", "loop"])]
    pub rotate: Option<RotateAt>,

    /// Keep only the last N files of --rotate
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=9999))]
    #[arg(alias = "switch-max-files")]
    pub rotate_keep: Option<u32>,

    /// Keep only the last TIME (1s to 24h), and save it when asked to and at the end
    ///
    /// It is kept in parts of an eighth of the time in the directory OUT.trace.ring, so what is saved is
    /// the time and up to an eighth more. SIGUSR2 to the recorder, or a --trigger, saves what there is to
    /// OUT-1.trace, OUT-2.trace and so on (or by the %n and the %t of the name), while the
    /// recording goes on; its end, whatever it is, saves the last to OUT.trace and removes the directory. If
    /// the recorder is killed, its parts are left, each a trace that can be printed.
    #[arg(long, value_name = "TIME")]
    #[arg(conflicts_with_all = ["collect", "max_size", "rotate", "call_traces", "preserve"])]
    pub ring: Option<RingTime>,

    /// Save the ring when this begins: cpu>80% (of one processor), threads>500, or file:PATH appears
    ///
    /// Repeatable. A file counts also when it is changed. Of several processes each is looked at by
    /// itself. At most once in the time of --ring, of all processes, which has what the next one would have.
    #[arg(long, value_name = "EVENT", requires = "ring")]
    pub trigger: Vec<Trigger>,
}

impl KeepingArguments {
    /// What it comes to.
    pub(crate) fn files(&self) -> Result<Files, Failure> {
        let usage = |text: &str| Failure::new(ExitCode::Usage, anyhow::anyhow!(text.to_owned()));
        if let (Some(RingTime(time)), None) = (self.ring, self.rotate_keep) {
            return Ok(Files::Ring(time));
        }
        match (self.max_size, self.rotate, self.rotate_keep) {
            (Some(SizeLimit(bytes)), None, None) => Ok(Files::Limited(bytes)),
            (None, Some(RotateAt(turn)), keep) => Ok(Files::Parts { turn, keep }),
            (None, None, None) => Ok(Files::One),
            (Some(_), _, Some(_)) => Err(usage(
                "--max-size ends the recording, so there are no files to keep: instead of both give \
                 --rotate SIZE --rotate-keep N, which keep N files of that size",
            )),
            _ => Err(usage("--rotate-keep needs --rotate SIZE or --rotate TIME")),
        }
    }
}
