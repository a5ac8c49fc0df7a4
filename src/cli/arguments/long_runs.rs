//! The arguments of `record` for long runs: how much to keep, and in how many files.

use std::str::FromStr;

use clap::Args;

use super::headings::LONG_RUNS;
use crate::cli::exit::{CommandFailure, ExitCode};
use crate::cli::number_values::number;
use crate::cli::size_values::{RingTime, RotateAt, SizeLimit};
use crate::record::{Files, Trigger};

/// Options of `record` that bound the size of its output.
#[derive(Debug, Args)]
#[command(next_help_heading = LONG_RUNS)]
pub struct LongRunArguments {
    /// End at this size of trace and index, such as 2G
    ///
    /// The files stay a little smaller, so that there is room for the end. The exit code is 0.
    /// Samples that do not fit any more count as lost to the size limit.
    #[arg(long, value_name = "SIZE")]
    pub max_size: Option<SizeLimit>,

    /// Start a new file at this size (100M) or age (10m)
    ///
    /// OUT.trace becomes OUT-0001.trace, OUT-0002.trace and so on. A %n in the name is the number
    /// instead. Each file is a closed trace with an index as soon as the next one starts. Calls
    /// that go on are unfinished in one file and start again in the next. The last file has the
    /// closing figures of the whole recording, under names that start with `recording.`.
    #[arg(long, value_name = "SIZE|TIME")]
    #[arg(aliases = ["switch-output", "chunksize", "chunktime", "loop"])]
    pub rotate: Option<RotateAt>,

    /// Keep only the last N files of --rotate
    #[arg(long, value_name = "N", value_parser = number::<u32>(1..=9999))]
    #[arg(alias = "switch-max-files", hide_short_help = true)]
    pub rotate_keep: Option<u32>,

    /// Keep only the last TIME, such as 5m
    ///
    /// TIME is from 1s to 24h. The ring is saved on request and at the end. SIGUSR2 to the
    /// recorder, or a --trigger, saves the ring to OUT-1.trace, OUT-2.trace and so on, or by %n and
    /// %t of the name. The recording goes on. Its end saves the rest to OUT.trace.
    ///
    /// The directory OUT.trace.ring has the ring in parts of an eighth of the time. A save has the
    /// time and up to an eighth more. The directory goes away at the end. If the recorder is
    /// killed, the parts stay, and each is a trace that can be printed.
    #[arg(long, value_name = "TIME")]
    pub ring: Option<RingTime>,

    /// When to save the ring: end, or trigger
    ///
    /// end: on request and at the end. trigger: only on request, by SIGUSR2 or a --trigger. The
    /// rest is then dropped at the end. The closing report says so, and the exit code is the same
    /// as with a save. A requested save that failed is tried again at the end.
    #[arg(long, value_name = "WHEN", hide_short_help = true)]
    pub ring_save: Option<RingSave>,

    /// Save the ring at cpu>80%, threads>500, or file:PATH; repeatable
    ///
    /// cpu is the share of one processor. file:PATH fires when the file appears or changes. Each of
    /// several processes is checked on its own. A trigger saves at most once in the time of --ring,
    /// because the next save would have the same samples.
    ///
    /// A file is seen within some ten milliseconds, by inotify on its directory. Where inotify does
    /// not help (changes by another machine on a network file system, the target of a symbolic
    /// link, no free inotify instance), it is seen within half a second. CPU time and threads are
    /// checked every half second.
    #[arg(long, value_name = "EVENT", hide_short_help = true)]
    pub trigger: Vec<Trigger>,
}

/// When a ring is saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RingSave {
    /// When it is requested, and at the end.
    End,
    /// Only when it is requested.
    Trigger,
}

impl FromStr for RingSave {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "end" => Ok(Self::End),
            "trigger" => Ok(Self::Trigger),
            _ => Err("expected end or trigger".to_owned()),
        }
    }
}

impl LongRunArguments {
    /// The files that these options ask for.
    pub(crate) fn files(&self, is_collected: bool) -> Result<Files, CommandFailure> {
        let usage =
            |text: &str| CommandFailure::new(ExitCode::Usage, anyhow::anyhow!(text.to_owned()));
        if let Some(text) = self.contradiction(is_collected) {
            return Err(usage(text));
        }
        let at_end = self.ring_save != Some(RingSave::Trigger);
        Ok(match (self.ring, self.max_size, self.rotate) {
            (Some(RingTime(time)), ..) => Files::Ring { time, at_end },
            (_, Some(SizeLimit(bytes)), _) => Files::Limited(bytes),
            (.., Some(RotateAt(turn))) => Files::Parts { turn, keep: self.rotate_keep },
            (None, None, None) => Files::One,
        })
    }

    /// Which options contradict each other, and what to give instead.
    fn contradiction(&self, is_collected: bool) -> Option<&'static str> {
        let [ring, limit, rotate] =
            [self.ring.is_some(), self.max_size.is_some(), self.rotate.is_some()];
        let keep = self.rotate_keep.is_some();
        let rules = [
            (
                is_collected && (ring || limit || rotate),
                "--collect keeps everything in memory until the end, so it cannot be used with \
                 --ring, --max-size or --rotate: leave out --collect",
            ),
            (
                ring && (rotate || keep),
                "--ring has parts of its own, so it cannot be used with --rotate: give --ring TIME \
                 alone, or --rotate SIZE --rotate-keep N to keep the last N files",
            ),
            (
                ring && limit,
                "--max-size ends the recording, --ring does not, so one cannot be used with the \
                 other: give --ring TIME alone, or --rotate SIZE --rotate-keep N to keep the last \
                 N files of that size",
            ),
            (
                limit && keep,
                "--max-size ends the recording, so it cannot be used with --rotate-keep: give \
                 --rotate SIZE --rotate-keep N to keep the last N files of that size",
            ),
            (
                limit && rotate,
                "--max-size ends the recording, --rotate goes on in the next file, so one cannot \
                 be used with the other: give --rotate SIZE --rotate-keep N to keep the last N \
                 files",
            ),
            (keep && !rotate, "--rotate-keep needs --rotate SIZE or --rotate TIME"),
            (
                !ring && !self.trigger.is_empty(),
                "--trigger saves what --ring keeps: add --ring 5m, or another time",
            ),
            (
                !ring && self.ring_save.is_some(),
                "--ring-save says when --ring is saved: add --ring 5m, or another time",
            ),
        ];
        rules.into_iter().find(|(is_so, _)| *is_so).map(|(_, text)| text)
    }
}
