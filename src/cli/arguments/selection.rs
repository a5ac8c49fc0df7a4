//! Arguments of every command that looks at samples.

use clap::Args;

use crate::view::{
    CallNumber, FunctionPattern, Mode, Moment, RootId, Selection, SpanId, StateName, TagValue,
    TimeRange,
};

/// What of a trace is looked at.
#[derive(Debug, Args)]
pub struct SelectionArguments {
    /// Look at this thread only; repeatable, and `*` in a name stands for any text
    #[arg(long, value_name = "ID|NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub thread: Vec<String>,

    /// Look at the threads of this process only, where several were recorded; repeatable, `*` as above
    #[arg(long, value_name = "PID|NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub process: Vec<String>,

    /// Look at samples from here on: 2.5s since the begin, -30s before the end, 50%, 14:03
    ///
    /// Units are us, ms, s, m and h. Times of day and dates (2026-11-21T14:03:05) are of UTC.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub from: Option<Moment>,

    /// Look at samples up to here: as --from, or +10s after it
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub to: Option<Moment>,

    /// The same as --from and --to: 5s-10s, 14:03..14:05 or 1s+9s
    #[arg(long, value_name = "RANGE", allow_hyphen_values = true, conflicts_with_all = ["from", "to"])]
    pub time_range: Option<TimeRange>,

    /// Measure CPU time (cpu) or all time (wall); by default all that was recorded
    ///
    /// CPU time is in sampling periods, all time in seconds. The two are never mixed.
    #[arg(long, value_name = "MODE")]
    pub mode: Option<Mode>,

    /// Look at wall clock time in these states only: running, runnable, sleeping, disk, stopped
    #[arg(long, value_name = "STATE,...", value_delimiter = ',')]
    pub state: Vec<StateName>,

    /// Look at wall clock time in these system calls only, by name or number
    #[arg(long, value_name = "CALL,...", value_delimiter = ',')]
    pub syscall: Vec<CallNumber>,

    /// Look at samples in this span only: its id as it is printed, in hexadecimal, or dec:NUMBER;
    /// repeatable
    #[arg(long, value_name = "ID")]
    pub span: Vec<SpanId>,

    /// Look at samples below this root span only, with OpenTelemetry the trace id; repeatable
    #[arg(long, value_name = "ID")]
    pub root_span: Vec<RootId>,

    /// Look at samples with this value of a tag only; repeatable: any of one name, all of several
    #[arg(long, value_name = "NAME=VALUE")]
    pub tag: Vec<TagValue>,

    /// Look at stacks only that have a function whose name matches a regular expression; repeatable
    #[arg(short = 'I', long, value_name = "REGEX", visible_alias = "focus")]
    pub include: Vec<FunctionPattern>,

    /// Leave out stacks that have a function whose name matches a regular expression; repeatable
    #[arg(short = 'X', long, value_name = "REGEX", visible_alias = "ignore")]
    pub exclude: Vec<FunctionPattern>,
}

impl From<SelectionArguments> for Selection {
    fn from(arguments: SelectionArguments) -> Self {
        let SelectionArguments { thread, process, time_range, mode, state, syscall, .. } =
            arguments;
        let range = time_range.map(|TimeRange(from, to)| (Some(from), Some(to)));
        let (from, to) = range.unwrap_or((arguments.from, arguments.to));
        let SelectionArguments { span: spans, root_span: roots, tag: tags, .. } = arguments;
        let SelectionArguments { include, exclude, .. } = arguments;
        let states = state.into_iter().map(|StateName(state)| state).collect();
        let calls = syscall.into_iter().map(|CallNumber(number)| number).collect();
        let (threads, processes) = (thread, process);
        let all = Self { threads, processes, from, to, mode, states, calls, ..Self::default() };
        Self { spans, roots, tags, include, exclude, ..all }
    }
}
