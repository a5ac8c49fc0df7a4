//! How much of a recording is kept, and in how many files.

use std::str::FromStr;

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
    #[arg(long, value_name = "SIZE")]
    pub max_size: Option<SizeLimit>,

    /// Begin the next file when this one has this size (100M) or age (10m, 1h)
    ///
    /// OUT.trace becomes OUT-0001.trace, OUT-0002.trace and so on; a %n in the name is the number
    /// instead. Each is a trace of its own, closed and with its index, as soon as the next one is
    /// begun. Calls that go on are unfinished in one and begin anew in the next. The closing figures
    /// of the recording are in the last one, under names that begin with `recording.`.
    #[arg(long, value_name = "SIZE|TIME")]
    #[arg(aliases = ["switch-output", "chunksize", "chunktime", "loop"])]
    pub rotate: Option<RotateAt>,

    /// Keep only the last N files of --rotate
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=9999))]
    #[arg(alias = "switch-max-files")]
    pub rotate_keep: Option<u32>,

    /// Keep only the last TIME (1s to 24h), and save it when asked to and at the end (see --ring-save)
    ///
    /// It is kept in parts of an eighth of the time in the directory OUT.trace.ring, so what is saved is
    /// the time and up to an eighth more. SIGUSR2 to the recorder, or a --trigger, saves what there is to
    /// OUT-1.trace, OUT-2.trace and so on (or by the %n and the %t of the name), while the
    /// recording goes on; its end, whatever it is, saves the last to OUT.trace and removes the directory. If
    /// the recorder is killed, its parts are left, each a trace that can be printed.
    #[arg(long, value_name = "TIME")]
    pub ring: Option<RingTime>,

    /// When to save the ring: end (when asked to and at the end), or trigger (only when asked to)
    ///
    /// With trigger, what nobody asked for (with SIGUSR2 or by a --trigger) is dropped at the end, whatever
    /// ends the recording; the closing report says so, and the exit code is what it would be with a save.
    /// A save that was asked for and could not be made is made up for at the end.
    #[arg(long, value_name = "WHEN")]
    pub ring_save: Option<RingSave>,

    /// Save the ring when this begins: cpu>80% (of one processor), threads>500, or file:PATH appears
    ///
    /// Repeatable. A file counts also when it is changed. Of several processes each is looked at by
    /// itself. At most once in the time of --ring, of all processes, which has what the next one would have.
    /// A file is seen within some ten milliseconds, by inotify on its folder; where that tells nothing
    /// (what other machines do on a network file system, what a symbolic link leads to, a user who has
    /// no instance of inotify left) within half a second, which is also how often the state is
    /// looked at.
    #[arg(long, value_name = "EVENT")]
    pub trigger: Vec<Trigger>,
}

/// When a ring is saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RingSave {
    /// When it is asked for, and at the end.
    End,
    /// Only when it is asked for.
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

impl KeepingArguments {
    /// What it comes to, in a recording that is collected in memory or not.
    pub(crate) fn files(&self, is_collected: bool) -> Result<Files, Failure> {
        let usage = |text: &str| Failure::new(ExitCode::Usage, anyhow::anyhow!(text.to_owned()));
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

    /// What does not go together, with the nearest that does.
    fn contradiction(&self, is_collected: bool) -> Option<&'static str> {
        let [ring, limit, rotate] =
            [self.ring.is_some(), self.max_size.is_some(), self.rotate.is_some()];
        let keep = self.rotate_keep.is_some();
        let rules = [
            (
                is_collected && (ring || limit || rotate),
                "--collect keeps all in memory until the end, and --ring, --max-size and --rotate are \
                 about files that are written meanwhile: leave out --collect",
            ),
            (
                ring && (rotate || keep),
                "--ring has parts of its own, so it cannot be used with --rotate: give --ring TIME alone, or \
                 --rotate SIZE --rotate-keep N without it, which keep the last N files",
            ),
            (
                ring && limit,
                "--ring never ends the recording, --max-size does, so one cannot be used with the other: \
                 give --ring TIME alone, or --rotate SIZE --rotate-keep N, which keep the last N files of \
                 that size",
            ),
            (
                limit && keep,
                "--max-size ends the recording, so there are no files to keep: instead of both give \
                 --rotate SIZE --rotate-keep N, which keep N files of that size",
            ),
            (
                limit && rotate,
                "--max-size ends the recording, --rotate goes on in the next file, so one cannot be used \
                 with the other: give --rotate SIZE --rotate-keep N, which keep the last N files",
            ),
            (keep && !rotate, "--rotate-keep needs --rotate SIZE or --rotate TIME"),
            (
                !ring && !self.trigger.is_empty(),
                "--trigger saves what --ring keeps: add --ring 5m, or another time",
            ),
            (
                !ring && self.ring_save.is_some(),
                "--ring-save is about what --ring keeps: add --ring 5m, or another time",
            ),
        ];
        rules.into_iter().find(|(is_so, _)| *is_so).map(|(_, text)| text)
    }
}
