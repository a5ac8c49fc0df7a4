//! Refuses options of `print` that contradict each other.

use crate::cli::arguments::{GroupKey, PrintArguments};
use crate::view::profile::flat_profile::RowType;

/// Refuses options that contradict each other.
///
/// # Errors
/// A sentence for the user that says what to do instead.
pub(super) fn check(arguments: &PrintArguments) -> Result<(), String> {
    let sets: [fn(&PrintArguments) -> Option<String>; 5] =
        [of_stacks, of_timeline, of_summary, of_top, of_trees];
    let wrong = sets.into_iter().find_map(|set| set(arguments));
    wrong.map_or(Ok(()), Err)
}

/// The message for the first of these options that is given.
fn first(given: &[(bool, &str, &str)], with: &str) -> Option<String> {
    let (_, option, instead) = given.iter().find(|(is_given, ..)| *is_given)?;
    Some(format!("{option} cannot be used with {with}: {instead}"))
}

/// Single stacks have nothing to add up, and an instant has no other samples.
fn of_stacks(arguments: &PrintArguments) -> Option<String> {
    let PrintArguments { at, trace_id, preserved, selection, .. } = arguments;
    let given =
        [(at.is_some(), "--at"), (!trace_id.is_empty(), "--trace-id"), (*preserved, "--preserved")];
    let mut given = given.into_iter().filter(|(is_given, _)| *is_given).map(|(_, name)| name);
    let with = given.next()?;
    let either = "leave out one of them";
    if let Some(other) = given.next() {
        return Some(format!("{other} cannot be used with {with}: {either}"));
    }
    let has_times =
        selection.from.is_some() || selection.to.is_some() || selection.time_range.is_some();
    let has_filter = !selection.state.is_empty()
        || !selection.syscall.is_empty()
        || selection.gil
        || !selection.span.is_empty()
        || !selection.root_span.is_empty()
        || !selection.tag.is_empty()
        || !selection.include.is_empty()
        || !selection.exclude.is_empty();
    let choose = "choose threads with --thread or --process";
    let is_instant = at.is_some();
    first(
        &[
            (arguments.tree, "--tree", either),
            (arguments.summary, "--summary", either),
            (arguments.top.is_some(), "--top", either),
            (arguments.timeline, "--timeline", either),
            (arguments.by.is_some(), "--by", either),
            (arguments.threads, "--threads", either),
            (arguments.aggregate, "--aggregate", either),
            (arguments.merge_processes, "--merge-processes", either),
            (arguments.inverted, "--inverted", either),
            (arguments.follow, "--follow", either),
            (arguments.idle, "--idle", "idle threads are shown anyway"),
            (arguments.min_percent.is_some(), "--min-percent", either),
            (arguments.depth.is_some(), "--depth", either),
            (is_instant && has_times, "a range of time", either),
            (is_instant && has_filter, "a filter of samples", choose),
        ],
        with,
    )
}

fn of_timeline(arguments: &PrintArguments) -> Option<String> {
    let is_given = |given: bool| given && arguments.timeline;
    let trees = "leave out --timeline";
    first(
        &[
            (is_given(arguments.summary), "--summary", trees),
            (is_given(arguments.tree), "--tree", trees),
            (
                is_given(arguments.threads),
                "--threads",
                "--timeline has each thread on its own anyway",
            ),
            (is_given(arguments.aggregate), "--aggregate", trees),
            (is_given(arguments.merge_processes), "--merge-processes", trees),
            (is_given(arguments.inverted), "--inverted", trees),
            (
                is_given(arguments.by.is_some()),
                "--by",
                "leave out --timeline, or choose samples with --span, --tag or --thread",
            ),
            (is_given(arguments.top.is_some()), "--top", trees),
            (
                is_given(arguments.idle),
                "--idle",
                "--timeline shows idle threads anyway; choose threads with --thread",
            ),
        ],
        "--timeline",
    )
}

fn of_summary(arguments: &PrintArguments) -> Option<String> {
    let is_given = |given: bool| given && arguments.summary;
    let either = "leave out one of them";
    first(
        &[
            (is_given(arguments.tree), "--tree", either),
            (is_given(arguments.verbose), "--verbose", either),
            (is_given(arguments.follow), "--follow", "leave out --summary to see what is added"),
            (is_given(arguments.top.is_some()), "--top", "--top has a summary anyway"),
            (is_given(arguments.threads), "--threads", either),
            (is_given(arguments.aggregate), "--aggregate", either),
            (is_given(arguments.merge_processes), "--merge-processes", either),
            (is_given(arguments.inverted), "--inverted", either),
            (is_given(arguments.by.is_some()), "--by", "use --by with --top, or leave it out"),
            (is_given(arguments.depth.is_some()), "--depth", either),
        ],
        "--summary",
    )
}

fn of_top(arguments: &PrintArguments) -> Option<String> {
    let is_given = |given: bool| given && arguments.top.is_some();
    first(
        &[
            (is_given(arguments.tree), "--tree", "leave out one of them"),
            (is_given(arguments.verbose), "--verbose", "use --by line"),
            (is_given(arguments.threads), "--threads", "use --by thread, or --thread NAME"),
            (is_given(arguments.aggregate), "--aggregate", "--top is for all threads anyway"),
            (is_given(arguments.inverted), "--inverted", "--top is sorted by self time anyway"),
            (is_given(arguments.depth.is_some()), "--depth", "leave out one of them"),
        ],
        "--top",
    )
}

fn of_trees(arguments: &PrintArguments) -> Option<String> {
    let PrintArguments { threads, aggregate, inverted, verbose, follow, json, timeline, .. } =
        *arguments;
    let by = arguments.by.as_ref();
    let (by_thread, by_process) = (by == Some(&GroupKey::Thread), by == Some(&GroupKey::Process));
    let groups = matches!(by, Some(GroupKey::Samples(_)));
    let steps =
        matches!(by, Some(GroupKey::Steps(RowType::Module | RowType::Line | RowType::Language)));
    let merges = arguments.merge_processes;
    let rules = [
        (
            merges && (threads || by_thread),
            "--merge-processes cannot be used with --threads or --by thread: either separates \
             threads",
        ),
        (
            json && follow && !timeline,
            "--json cannot be used with --follow: add --timeline, or use --json after the end of \
             the recording",
        ),
        (threads && aggregate, "--threads cannot be used with --aggregate: leave out one of them"),
        (
            threads && by_thread,
            "--threads cannot be used with --by thread: either separates threads",
        ),
        (
            threads && by_process,
            "--threads cannot be used with --by process: use --threads, or --process with \
             --threads",
        ),
        (
            threads && groups,
            "--threads cannot be used with --by span, root-span or tag:NAME, which make one tree \
             of all threads: choose threads with --thread",
        ),
        (
            inverted && by_thread,
            "--inverted cannot be used with --by thread: use --inverted --threads",
        ),
        (
            inverted && by_process,
            "--inverted cannot be used with --by process: choose one process with --process",
        ),
        (
            inverted && groups,
            "--inverted cannot be used with --by span, root-span or tag:NAME: choose one with \
             --span, --root-span or --tag",
        ),
        (
            verbose && steps,
            "--verbose cannot be used with --by module or line: leave out --verbose, or use it \
             alone",
        ),
    ];
    rules.into_iter().find(|(is_given, _)| *is_given).map(|(_, text)| text.to_owned())
}
