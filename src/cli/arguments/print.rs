//! The arguments of `print`.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

use super::SelectionArguments;
use crate::cli::terminal::Color;
use crate::cli::values::Percent;
use crate::view::By;
use crate::view::functions::RowOf;

/// What trees and tables are made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Key {
    /// Steps of the stacks.
    Steps(RowOf),
    /// Threads.
    Thread,
    /// Processes.
    Process,
    /// What the application says it works on.
    Samples(By),
}

impl FromStr for Key {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "function" => Ok(Self::Steps(RowOf::Function)),
            "module" => Ok(Self::Steps(RowOf::Module)),
            "line" => Ok(Self::Steps(RowOf::Line)),
            "thread" => Ok(Self::Thread),
            "process" => Ok(Self::Process),
            _ => text.parse().map(Self::Samples).map_err(|_| {
                "expected function, module, line, thread, process, span, root-span or tag:NAME"
                    .to_owned()
            }),
        }
    }
}

/// Arguments of `print`.
#[derive(Debug, Args)]
pub struct PrintArguments {
    /// Trace file to print
    pub file: PathBuf,

    /// Say for every call where it is: file and line, or module and offset
    ///
    /// With --timeline also every sample: when it was taken, its weight, and what else is known.
    /// Without, also what the samples of each call worked on (span and tags), and of wall clock time how
    /// long each thread was in which state.
    #[arg(short, long)]
    pub verbose: bool,

    /// Print the summary alone, which is one screen: what was recorded, when the target was busy, the
    /// functions that used most
    #[arg(long)]
    pub summary: bool,

    /// Print calls in the order of their times
    ///
    /// Below a summary without functions, each thread has its calls as a tree, with its samples (with
    /// --verbose) and gaps in between. A call that reaches beyond --from or --to has the samples between
    /// them, as what is left out has. For the summary all that is looked at is read once before the first
    /// line. Memory does not grow with the trace, but for some 24 bytes for each sample of one thread where
    /// there is wall clock time, the rate of samples changed, or --from, --to, --follow, --span, --root-span,
    /// --tag, --state or --syscall is given.
    #[arg(long)]
    pub timeline: bool,

    /// Give each thread a tree of its own
    ///
    /// Without, threads of one process have one together if their names differ by trailing digits only:
    /// worker-1 and worker-2 are the pool worker-*. The main thread is in no pool.
    #[arg(short, long, alias = "per-thread")]
    pub threads: bool,

    /// One tree for all threads
    #[arg(long, alias = "merge-threads")]
    pub aggregate: bool,

    /// Callees first: the functions that samples were taken in, below each those that called it
    ///
    /// One tree for all threads, unless --threads is given. Where a function was called by nothing in
    /// some of its stacks, `[thread]` stands for its caller.
    #[arg(long, aliases = ["invert", "reverse"])]
    pub inverted: bool,

    /// What trees are made of: function, module, line, thread, process, span, root-span or tag:NAME
    ///
    /// A function, a module or a line is what a step of a tree is; consecutive calls within a module are
    /// one. By thread, process, span (or its root, or the value of a tag) there is one tree for all threads, whose
    /// first level they are, heaviest first; `(none)` stands for samples without. The ten heaviest are
    /// always shown.
    #[arg(long, value_name = "KEY")]
    pub by: Option<Key>,

    /// Print a table of the N heaviest functions instead of trees, or of what --by says
    ///
    /// A recursive function counts once per stack in its total. The last line sums up all that has no row of
    /// its own. Of spans or the values of a tag the N heaviest, or 10,000 if that is more, are told apart.
    #[arg(long, value_name = "N")]
    pub top: Option<NonZeroUsize>,

    /// Show idle threads too, which are summed up at the end otherwise
    ///
    /// Of wall clock time: a thread is idle that ran for less than 1 % of its time, slept for the rest
    /// of it in one place, and does not wait for a lock. If all threads of a process are idle, all of
    /// them are shown.
    #[arg(long)]
    pub idle: bool,

    /// Go on with what is added to the trace, until its recording ends
    #[arg(long, conflicts_with = "output")]
    pub follow: bool,

    /// Write JSON instead of text: one object of recording, quality, strip, functions, trees or top; with
    /// --timeline one object a line
    ///
    /// `recording` has what the recorder said: the `processes` that were recorded together (`pid`, `name`,
    /// `cpu_time_ns`), the programs that were `executed` meanwhile (`pid` where several processes were
    /// recorded, `name`, `time_ns`, and `not_sampled`, why not, or null) and the `rate_changes` for --max-overhead (`time_ns`, and the `divisor` of `freq_hz` from
    /// then on); these times count from its begin. `all` is what is looked at; every weight has `weight` (of `weight_unit`), `seconds`, `percent` (of
    /// all) and `samples`. `processes` has what each process has of it. `quality` says how stacks ended, what was lost and how long the target stood
    /// still. `strip` has the weights of equal parts of the time. `functions` and `top` have `rows` and
    /// `others`; each tree has its `threads` and a flat list of `calls`, where `caller` is the index of the
    /// caller, or null. What is left out is a call of the kind `others`.
    ///
    /// With --timeline the first line is an object of the `kind` `recording`, with all of this but functions
    /// and trees. Then each thread has one of the kind `thread` (`name`, `samples`, `weight`), which its
    /// others follow in the order of their times (but for calls of `[truncated]`, which hold the samples
    /// whose stack does not reach the root and come at the end of the thread), all with the number of the
    /// `thread`, its `pid` and `tid`, and the `depth`: a `call` is a caller of those below it that are
    /// deeper. A `call` has `name`, `module`, `file`, `line`, `svma`, `inlined`, `from_ns` and `to_ns` (its
    /// first and its last sample, whatever --from and --to are), `samples`, their `weight` (in the
    /// `weight_unit` of the first line), `wall_us` (the same, of wall clock time) and whether it is
    /// `continued` (it began before --from, or was told of before), `unfinished` or its begin or end are
    /// lost. `gap` and `lost` have `from_ns` and `to_ns`; `state`, `thread_start` and `thread_exit` have
    /// `time_ns`. `self` counts samples of the caller itself, of which each is an object of the kind `sample`
    /// with --verbose; `others` counts calls that are left out (their `number`, `samples`, `weight`,
    /// `wall_us`, and `percent` of the thread). What `self` and `others` weigh below a call adds up to its
    /// weight, and so do threads to `all`. With --follow, the first line is of what there was at that moment,
    /// and each time that more is written an object of the kind `window` (`from_ns`, `to_ns`) comes before
    /// it. Times count from the begin of the recording.
    #[arg(long)]
    pub json: bool,

    /// Colours: auto, always or never
    ///
    /// auto means on a terminal, unless NO_COLOR is set or TERM is dumb. On a terminal there are bars too,
    /// and long names are cut to its width (or to COLUMNS, if that is set); what is piped is never cut.
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub color: Color,

    /// What of the trace is looked at.
    #[command(flatten)]
    pub selection: SelectionArguments,

    /// Sum up calls and threads below this share; 0 shows everything
    ///
    /// Calls are measured against their tree, trees against what is printed of the trace; without it the share
    /// is 0.5. If it is given, rows of the table of --top whose self time is below it, and functions of the
    /// summary below it, are left out too, and their number is told.
    #[arg(long, value_name = "PERCENT")]
    pub min_percent: Option<Percent>,

    /// Sum up calls deeper than this
    #[arg(long, value_name = "LEVELS")]
    pub depth: Option<usize>,

    /// File to write instead of the standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Replace an existing file
    #[arg(long)]
    pub force: bool,
}
