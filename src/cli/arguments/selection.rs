//! The arguments that select samples, for every command that shows them.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use super::headings::SELECTION;
use crate::view::{
    CallNumber, FunctionPattern, Mode, RootId, Selection, SpanId, StateName, TagValue, TimePoint,
    TimeRange,
};

/// Which samples of a trace a view uses.
#[derive(Debug, Default, Args)]
pub struct SelectionArguments {
    /// Only this thread; repeatable, `*` matches any text
    #[arg(long, value_name = "ID|NAME", value_parser = NonEmptyStringValueParser::new())]
    #[arg(help_heading = SELECTION)]
    pub thread: Vec<String>,

    /// Only the threads of this process; repeatable, `*` matches any text
    #[arg(long, value_name = "PID|NAME", value_parser = NonEmptyStringValueParser::new())]
    #[arg(help_heading = SELECTION, hide_short_help = true)]
    pub process: Vec<String>,

    /// From this time on: 2.5s, -30s, 50%, 14:03
    ///
    /// A negative time counts from the end.
    ///
    /// Units are us, ms, s, m and h. Times count from the start of the recording. Times of day and
    /// dates (2026-11-21T14:03:05) are UTC.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, help_heading = SELECTION)]
    pub from: Option<TimePoint>,

    /// Up to this time: as --from, or +10s after it
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, help_heading = SELECTION)]
    pub to: Option<TimePoint>,

    /// --from and --to in one: 5s-10s, 14:03..14:05 or 1s+9s
    #[arg(long, value_name = "RANGE", allow_hyphen_values = true)]
    #[arg(conflicts_with_all = ["from", "to"], help_heading = SELECTION, hide_short_help = true)]
    pub time_range: Option<TimeRange>,

    /// CPU time (cpu) or all time (wall)
    ///
    /// Default: all that was recorded. CPU time is in sampling periods, all time is in seconds. The
    /// two are never mixed.
    #[arg(long, value_name = "MODE", help_heading = SELECTION)]
    pub mode: Option<Mode>,

    /// Only these states: running, runnable, sleeping, disk, stopped
    ///
    /// States are those of wall-clock time.
    #[arg(long, value_name = "STATE,...", value_delimiter = ',', help_heading = SELECTION)]
    #[arg(hide_short_help = true)]
    pub state: Vec<StateName>,

    /// Only these system calls, by name or number
    ///
    /// System calls are known for wall-clock time.
    #[arg(long, value_name = "CALL,...", value_delimiter = ',', help_heading = SELECTION)]
    #[arg(hide_short_help = true)]
    pub syscall: Vec<CallNumber>,

    /// Only samples of threads that held the GIL (Python)
    ///
    /// A thread that waits for the GIL does not hold it, and neither does one that released it, as
    /// many functions in C do before they wait or compute for long.
    #[arg(long, help_heading = SELECTION, hide_short_help = true)]
    pub gil: bool,

    /// Only this span; repeatable
    ///
    /// An id as it is printed, in hexadecimal, or dec:NUMBER.
    #[arg(long, value_name = "ID", help_heading = SELECTION, hide_short_help = true)]
    pub span: Vec<SpanId>,

    /// Only below this root span (OpenTelemetry: trace id); repeatable
    #[arg(long, value_name = "ID", help_heading = SELECTION, hide_short_help = true)]
    pub root_span: Vec<RootId>,

    /// Only samples with this tag; repeatable
    ///
    /// Of several values of one name any matches. Of several names all must match.
    #[arg(long, value_name = "NAME=VALUE", help_heading = SELECTION, hide_short_help = true)]
    pub tag: Vec<TagValue>,

    /// Only stacks with this function
    ///
    /// A regular expression for names of functions; repeatable.
    #[arg(short = 'I', long, value_name = "REGEX", visible_alias = "focus")]
    #[arg(help_heading = SELECTION)]
    pub include: Vec<FunctionPattern>,

    /// No stacks with this function
    ///
    /// A regular expression for names of functions; repeatable.
    #[arg(short = 'X', long, value_name = "REGEX", visible_alias = "ignore")]
    #[arg(help_heading = SELECTION)]
    pub exclude: Vec<FunctionPattern>,

    /// Show the native frames of interpreters, too
    ///
    /// By default the functions of a language's runtime that only carry the functions of that
    /// language are left out, as if they were not in the stacks: of a Python program, those of
    /// the interpreter. A stack of nothing else keeps its innermost function.
    #[arg(long, help_heading = SELECTION, hide_short_help = true)]
    pub native_frames: bool,

    /// Show original files, lines and names of JavaScript
    ///
    /// For functions of a file that was compiled or bundled, such as one from TypeScript, and
    /// names its source map in its last comment. The files are read now, where they were when they
    /// were recorded. What has no mapping is shown as it was recorded. So are the names of
    /// constructors, and of quoted and computed methods, in a minified class: maps do not tell
    /// them.
    #[arg(long, help_heading = SELECTION, hide_short_help = true)]
    pub source_maps: bool,
}

impl From<SelectionArguments> for Selection {
    fn from(arguments: SelectionArguments) -> Self {
        let SelectionArguments { thread, process, time_range, mode, state, syscall, .. } =
            arguments;
        let range = time_range.map(|TimeRange(from, to)| (Some(from), Some(to)));
        let (from, to) = range.unwrap_or((arguments.from, arguments.to));
        let SelectionArguments { span: spans, root_span: roots, tag: tags, .. } = arguments;
        let SelectionArguments { include, exclude, gil: holders, .. } = arguments;
        let SelectionArguments { native_frames, source_maps, .. } = arguments;
        let states = state.into_iter().map(|StateName(state)| state).collect();
        let calls = syscall.into_iter().map(|CallNumber(number)| number).collect();
        let (threads, processes) = (thread, process);
        let all = Self { threads, processes, from, to, mode, states, calls, ..Self::default() };
        let narrowed = Self { spans, roots, tags, include, exclude, holders, ..all };
        Self { native_frames, source_maps, ..narrowed }
    }
}
