//! The arguments of `print`.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

use super::SelectionArguments;
use super::headings::{SHOWN, WHERE};
use crate::cli::color::Color;
use crate::cli::number_values::{count, count_of_some};
use crate::cli::option_values::Percent;
use crate::view::profile::flat_profile::RowType;
use crate::view::{GroupBy, TimePoint};

/// What trees and tables are made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupKey {
    /// Steps of the stacks.
    Steps(RowType),
    /// Threads.
    Thread,
    /// Processes.
    Process,
    /// What the application says it works on.
    Samples(GroupBy),
}

impl FromStr for GroupKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "function" => Ok(Self::Steps(RowType::Function)),
            "module" => Ok(Self::Steps(RowType::Module)),
            "line" => Ok(Self::Steps(RowType::Line)),
            "language" => Ok(Self::Steps(RowType::Language)),
            "thread" => Ok(Self::Thread),
            "process" => Ok(Self::Process),
            _ => text.parse().map(Self::Samples).map_err(|_| {
                "expected function, module, line, language, thread, process, span, root-span, \
                 task or tag:NAME"
                    .to_owned()
            }),
        }
    }
}

/// The id of a call trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallTraceNumber(pub u64);

impl FromStr for CallTraceNumber {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let id = match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => text.parse(),
        };
        id.map(Self).map_err(|_| "expected an id such as 0x300000002".to_owned())
    }
}

/// Arguments of `print`.
#[derive(Debug, Args)]
pub struct PrintArguments {
    /// Trace file
    pub file: PathBuf,

    /// Print the call trees, too
    ///
    /// By default one screen is printed: what was recorded, the heaviest chain of calls, the
    /// functions that used most, and the shares of threads or processes. The trees also follow if
    /// an option asks for them: --thread, --process, --by, --threads, --aggregate,
    /// --merge-processes, --inverted, --verbose, --idle, --min-percent, --depth, --follow or
    /// --json.
    #[arg(long, alias = "trees", help_heading = SHOWN)]
    pub tree: bool,

    /// Print one screen, whatever other options are given
    #[arg(long, hide = true, help_heading = SHOWN)]
    pub summary: bool,

    /// Print a table of the N heaviest functions
    ///
    /// The table replaces the trees. With --by, the rows are what it names. `total` counts a
    /// recursive function once per stack. The last line sums up everything without a row. For spans
    /// and values of a tag, at least the 10,000 heaviest are counted separately.
    #[arg(long, value_name = "N", value_parser = count_of_some, help_heading = SHOWN)]
    pub top: Option<NonZeroUsize>,

    /// Print callees first, and their callers below them
    ///
    /// One tree for all threads, unless --threads is given. `[thread]` stands for the caller of a
    /// function that nothing called in some of its stacks.
    #[arg(long, aliases = ["invert", "reverse"], help_heading = SHOWN)]
    pub inverted: bool,

    /// Print the calls of each thread in time order
    ///
    /// The summary then has no functions. Each thread has its calls as a tree, with its gaps, and
    /// with --verbose its samples. A call that reaches beyond --from or --to has the samples
    /// between them.
    ///
    /// Everything is read once for the summary, before the first line. Memory does not grow with
    /// the trace, except by some 24 bytes for each sample of one thread in these cases: wall-clock
    /// time, a changed sampling rate, --from, --to, --follow, --span, --root-span, --tag, --state
    /// and --syscall.
    #[arg(long, help_heading = SHOWN)]
    pub timeline: bool,

    /// Print the stack of each thread at this time
    ///
    /// Times are as those of --from. Of wall-clock time, it is what the thread did then; of CPU
    /// time, the last sample before, with its age. Threads that run come first, and the innermost
    /// function of each. --thread and --process choose threads.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, help_heading = SHOWN)]
    pub at: Option<TimePoint>,

    /// Print the call trace with this id; repeatable
    ///
    /// Shows its stack, its samples and their threads. --timeline --verbose shows the ids of
    /// samples, such as 0x300000002, and `dump` those of call traces.
    #[arg(long, value_name = "ID", help_heading = SHOWN, hide_short_help = true)]
    pub trace_id: Vec<CallTraceNumber>,

    /// Print the call traces that record --preserve kept
    ///
    /// The heaviest first, with their stacks and weights.
    #[arg(long, help_heading = SHOWN, hide_short_help = true)]
    pub preserved: bool,

    /// Group by function, module, line, thread, ...
    ///
    /// One of function, module, line, language, thread, process, span, root-span, task and
    /// tag:NAME. task is the asyncio task of Python 3.14, the tag asyncio.task, or the virtual
    /// thread of Java, the tag java.virtual_thread.
    ///
    /// function, module, line and language are the steps of a tree; consecutive calls within a
    /// module or a language are one step. thread, process, span, root-span, task and tag:NAME make
    /// one tree for all threads, with these as its first level, heaviest first. `(none)` stands for
    /// samples without one. The ten heaviest are always printed.
    #[arg(long, value_name = "KEY", help_heading = SHOWN)]
    pub by: Option<GroupKey>,

    /// Print one tree for each thread
    ///
    /// By default threads of one process share a tree if their names differ only in trailing
    /// digits: worker-1 and worker-2 are the pool worker-*. The main thread is in no pool.
    #[arg(short, long, alias = "per-thread", help_heading = SHOWN)]
    pub threads: bool,

    /// Print one tree for all threads
    #[arg(long, alias = "merge-threads", help_heading = SHOWN)]
    pub aggregate: bool,

    /// Print one tree for all processes of a program
    ///
    /// Ten servers of one name share a tree, and so do sixty compilers of a build. Their main
    /// threads share one, and each pool of other threads. With --by process, the programs are the
    /// first level.
    #[arg(long, help_heading = SHOWN)]
    pub merge_processes: bool,

    /// Add file and line to every call
    ///
    /// Calls without a line get module and offset. Also adds the span and tags of each call's
    /// samples, and for wall-clock time how long each thread was in which state. With --timeline it
    /// adds every sample, with its time and weight.
    #[arg(short, long, help_heading = SHOWN)]
    pub verbose: bool,

    /// Show idle threads, too (wall-clock time)
    ///
    /// By default they are summed up at the end. An idle thread ran for less than 1 % of its
    /// time, slept for the rest in one place, and does not wait for a lock. If all threads are
    /// idle, all of them are shown.
    #[arg(long, help_heading = SHOWN, hide_short_help = true)]
    pub idle: bool,

    /// Sum up what is below this share [default: 0.5]
    ///
    /// 0 shows everything.
    ///
    /// The share of a call is that of its tree, the share of a tree is that of everything printed.
    /// If the option is given, it also removes rows of --top by their self time, and functions of
    /// the summary. Their number is printed.
    #[arg(long, value_name = "PERCENT", help_heading = SHOWN)]
    pub min_percent: Option<Percent>,

    /// Sum up calls deeper than this
    #[arg(long, value_name = "LEVELS", value_parser = count, help_heading = SHOWN)]
    pub depth: Option<usize>,

    /// Follow the trace until its recording ends
    #[arg(long, conflicts_with = "output", help_heading = SHOWN)]
    pub follow: bool,

    /// Which samples.
    #[command(flatten)]
    pub selection: SelectionArguments,

    /// File to write instead of the standard output
    #[arg(short, long, value_name = "FILE", help_heading = WHERE)]
    pub output: Option<PathBuf>,

    /// Replace an existing file
    #[arg(long, help_heading = WHERE)]
    pub force: bool,

    /// Write JSON instead of text
    ///
    /// One object with recording, quality, strip, and functions, trees or top.
    ///
    /// `recording` has what the recorder wrote. `processes` are those recorded together (`pid`,
    /// `name`, `cpu_time_ns`). `executed` are the programs executed meanwhile (`pid` with several
    /// processes, `name`, `time_ns`, and `not_sampled`: the reason, or null). `rate_changes` are
    /// the changes for --max-overhead (`time_ns`, and the `divisor` of `freq_hz` from then on).
    /// These times count from its start.
    ///
    /// `all` is the selection. Every weight has `weight` (in `weight_unit`), `seconds`, `percent`
    /// (of all) and `samples`. `processes` has the share of each process. `quality` has how stacks
    /// ended, what was lost, how long the target stood still and, for each language of managed
    /// code, in how many of its samples the innermost function has a name (`named`). `strip` has
    /// the weights of equal parts of the time. `languages` has the share of the innermost functions
    /// in each language, if there is code in more than native code, and `interpreters_left_out` is
    /// false with --native-frames. `functions` and `top` have `rows` and `others`. Each tree has
    /// its `threads` and a flat list of `calls`, where `caller` is the index of the caller, or
    /// null. A call of the kind `others` sums up what is left out.
    ///
    /// With --timeline, each line is one object. The first has the `kind` `recording`, with all of
    /// this but functions and trees. Each thread starts with an object of the kind `thread`
    /// (`name`, `samples`, `weight`). Its other objects follow in time order, except for calls of
    /// `[truncated]`, which come last. They hold the samples whose stack does not reach the root.
    /// All have the number of the `thread`, its `pid` and `tid`, and the `depth`. A `call` is the
    /// caller of the deeper objects below it.
    ///
    /// A `call` has `name`, `module`, `file`, `line`, `svma`, `inlined`, `from_ns` and `to_ns` (its
    /// first and last sample, whatever --from and --to are), `samples`, `weight` (in the
    /// `weight_unit` of the first line) and `wall_us` (wall-clock time). `continued` means that it
    /// started before --from, or was printed before. `unfinished` means that it had not ended.
    /// `begin_lost` and `end_lost` say that its start or end is lost. `gap` and `lost` have
    /// `from_ns` and `to_ns`. `thread_start` and `thread_exit` have `time_ns`. `self`
    /// counts samples of the caller itself; with --verbose each is an object of the kind `sample`.
    /// `others` counts calls that are left out (`number`, `samples`, `weight`, `wall_us`, and
    /// `percent` of the thread). The weights of `self` and `others` below a call add up to its
    /// weight, and the threads add up to `all`.
    ///
    /// With --at, the object has the time `at_ns` and `threads`, each with `pid`, `tid`, `name`,
    /// `state`, `syscall`, `waits_on`, and its `stack`, innermost function first. `time_ns` is that
    /// of its sample, and with `from_ns` the time that the sample stands for. `end` is root, or why
    /// the rest of the stack is unknown. With --trace-id and --preserved the object has
    /// `call_traces`.
    ///
    /// With --follow, the first line describes the trace at that moment. An object of the kind
    /// `window` (`from_ns`, `to_ns`) precedes each later addition. Times count from the start of
    /// the recording.
    #[arg(long, help_heading = WHERE)]
    pub json: bool,

    /// When to use colours: auto, always or never
    ///
    /// auto means on a terminal, unless NO_COLOR is set or TERM is dumb. A terminal also gets bars,
    /// and long names are cut to its width, or to COLUMNS if that is set. Piped output is never
    /// cut.
    #[arg(long, value_name = "WHEN", default_value = "auto", help_heading = WHERE)]
    #[arg(hide_short_help = true)]
    pub color: Color,
}
