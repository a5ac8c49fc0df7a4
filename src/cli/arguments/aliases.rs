//! Words of other profilers for options of `record`.

use clap::Args;

use crate::cli::option_values::{EventName, ModeName, SampleInterval, WallInterval};

/// Hidden options of `record`, which a section of its long help lists.
#[derive(Debug, Args)]
pub struct AliasArguments {
    /// As --mode, by the name of an event
    #[arg(short = 'e', long, value_name = "EVENT", hide = true, conflicts_with = "mode")]
    pub event: Option<EventName>,

    /// Mode wall, or with -e cpu both, at this interval
    #[arg(long, value_name = "TIME", hide = true, num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "20ms", conflicts_with_all = ["mode", "wall_interval"])]
    pub wall: Option<WallInterval>,

    /// As --freq, by the time between two samples
    #[arg(short = 'i', long, value_name = "TIME", hide = true, conflicts_with = "rate")]
    pub interval: Option<SampleInterval>,

    /// As --mode wall
    #[arg(long, hide = true, conflicts_with_all = ["mode", "event", "wall"])]
    pub idle: bool,
}

/// The section of the long help.
pub(super) const ALIASES: &str = "\
Words of other profilers:
  -r, --rate, --frequency     --freq
  -i, --interval TIME         --freq, the nearest rate
  -l, --time-limit, -x, --exposure  --duration
  -e, --event EVENT           --mode; cpu-clock, task-clock, cycles, itimer and ctimer are cpu
  --wall[=TIME]               --mode wall --wall-interval TIME; with -e cpu, --mode cpu,wall
  --idle                      --mode wall
  --all-user                  --no-kernel
  --pids                      --pid
  -p PID -- sleep 10          --pid PID --duration 10
  --switch-output, --chunksize, --chunktime, --loop  --rotate
  --switch-max-files          --rotate-keep";

impl AliasArguments {
    /// The mode and the interval of wall-clock time that these options ask for.
    pub(crate) fn mode(&self) -> Option<(ModeName, Option<WallInterval>)> {
        let wall = ModeName { cpu: false, wall: true };
        match (self.event, self.wall) {
            (Some(EventName(mode)), None) => Some((mode, None)),
            (Some(EventName(mode)), Some(interval)) => {
                Some((ModeName { wall: true, ..mode }, Some(interval)))
            }
            (None, Some(interval)) => Some((wall, Some(interval))),
            (None, None) => self.idle.then_some((wall, None)),
        }
    }
}
