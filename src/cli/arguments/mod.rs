//! The command line: every subcommand and option, and nothing else.

mod aliases;
mod command_position;
mod diff;
mod export;
mod headings;
mod long_runs;
mod print;
mod processes;
mod record;
mod refused;
mod refused_table;
mod selection;
mod stacks;
mod target;
mod top;
mod view;

use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand};

use super::examples::{EXAMPLES, first_examples, with_examples};
use super::exit::{ExitCode, OF_PROGRAM};
use super::number_values::process_id;

pub use aliases::AliasArguments;
pub(super) use command_position::command_position;
pub use diff::{BaseArguments, DiffArguments};
pub use export::ExportArguments;
pub use long_runs::{LongRunArguments, RingSave};
pub use print::{CallTraceNumber, GroupKey, PrintArguments};
pub use processes::ProcessArguments;
pub use record::RecordArguments;
pub(super) use refused::OptionRefusal;
pub use refused::RefusedArguments;
pub use selection::SelectionArguments;
pub use stacks::StacksArguments;
pub use target::TargetArguments;
pub use top::TopArguments;
pub use view::ViewArguments;

/// The version, and the commit of a release that was built in its repository.
const LONG_VERSION: &str = env!("TRACEPROF_LONG_VERSION");

/// Attach sampling profiler for Linux
///
/// Samples the call stacks of a running program, or of a program that it starts, and writes them to
/// a trace file. The program needs no preparation and no restart. Nothing stays in it after the
/// recording.
#[derive(Debug, Parser)]
#[command(name = "traceprof", version, long_version = LONG_VERSION, max_term_width = 100)]
#[command(arg_required_else_help = true)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub action: Action,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// Record a running process, or start a program and record it
    ///
    /// The recording ends after --duration, when the target exits, or at Ctrl-C or SIGTERM. The
    /// samples taken so far are kept in every case.
    ///
    /// A program that is started is sampled from its first instruction, with its descendants, until
    /// it exits. The exit code is that of the program, unless the recording failed; see
    /// --exit-code. If the recording ends first, the command reports, then waits for the program.
    ///
    /// Several processes go into one trace with one clock. Each has its own guardian. The recording
    /// goes on when one of them exits. The closing report names processes that could not be
    /// recorded. The recording fails if none can be recorded.
    #[command(override_usage = "traceprof record [OPTIONS] --pid <PID>...\n       \
        traceprof record [OPTIONS] --name <REGEX>\n       \
        traceprof record [OPTIONS] -- <COMMAND> [ARGUMENT]...")]
    Record(RecordArguments),
    /// Check whether this host and a process allow a recording
    ///
    /// Checks the user and its capabilities, kernel settings, perf events, seccomp filters,
    /// namespaces, limits, signals, and the modules of the process. `ok` is as it should be. `!`
    /// limits what a recording can see, or decides which engine it uses. `NO` prevents a recording.
    /// A line that starts with `$` is a command that changes this. The process is not changed. The
    /// exit code is 0 if a recording would work. Otherwise it is the code that `record` would
    /// return.
    Doctor(DoctorArguments),
    /// Print the stacks of all threads of a process, as they are now
    ///
    /// Several processes are printed one after the other. One that cannot be read gets a note.
    ///
    /// Each thread is listed with its name, its state, the system call that it sleeps in, and its
    /// functions, innermost first. A thread stops while its registers and stack are copied, mostly
    /// for some tens of microseconds. No agent is put into the process. This works on processes
    /// that hang, are stopped, or are being recorded. A thread that waits in the kernel where no
    /// stop reaches it is listed without functions.
    ///
    /// A stack longer than its copy (256 KiB) is read to its end while the thread runs again.
    /// `[read later]` marks functions that may come from that later read.
    #[command(override_usage = "traceprof stacks [OPTIONS] <PID>...\n       \
        traceprof stacks [OPTIONS] --name <REGEX>")]
    Stacks(StacksArguments),
    /// Show where a process spends its time, refreshed every second
    ///
    /// Shows the heaviest functions, threads, modules or lines of the last interval and since the
    /// start, and with several processes how they share the time. `self` is the time in a function
    /// alone. `total` includes everything that it called. Both are shares of all samples of their
    /// time.
    ///
    /// On a terminal, keys change the table: f, t, m, l and P choose the rows, s and c the sort
    /// order, / filters, S saves the last minute as a trace, p pauses, ? explains all keys, q or
    /// Ctrl-C quits. Ctrl-Z takes the agent out of the process
    /// until fg, unless --output keeps the trace. In a pipe, or with --iterations, tables are plain
    /// text, separated by empty lines. They end when the process exits, or at SIGINT or SIGTERM.
    ///
    /// Samples go to a temporary trace in TMPDIR (or /tmp). The trace has no name after the first
    /// table, so nothing remains even after a SIGKILL. A SIGKILL before that leaves a directory
    /// traceprof-top-*. The exit code is 0 if the table was shown, even if the process exited.
    #[command(override_usage = "traceprof top [OPTIONS] <PID>...\n       \
        traceprof top [OPTIONS] --name <REGEX>")]
    Top(TopArguments),
    /// Remove the agent that a killed recording left in a process
    ///
    /// An agent stays only if both the recorder and its guardian were killed. It does nothing, and
    /// the next recording of the process removes it too. The exit code is 0 if nothing is left, 1
    /// if something could not be removed, 3 if the process is being recorded.
    Detach(DetachArguments),
    /// Print a trace: one screen, or call trees
    ///
    /// Without options it prints one screen of at most 40 lines: what was recorded, how busy the
    /// target was over time, how good the recording is, the hot path, the functions that used most,
    /// and the threads or processes with their shares. The hot path is the heaviest chain of calls.
    /// Calls of nearly the same weight share a line of it, `a > b > c` or `a > (5 calls) > c`. Of
    /// wall-clock time it is the path of what ran or waited for a processor. Processes of one name
    /// share a line, `cc1 x60`.
    ///
    /// --tree adds the call trees, and so do all options that only trees have, such as --thread.
    /// Threads whose names differ only in digits share one tree, such as worker-*. The main thread
    /// has its own tree, and --threads gives one to each. Trees and calls are sorted by weight.
    /// Only branches are indented: a line at the same column as the line above is called by it.
    /// `total` counts the sampling periods in a call and everything that it called, `self` those in
    /// the call alone. `total %` and `self %` are shares of the tree, `all %` is the share of the
    /// trace. A line sums up everything that is left out. `[truncated]` stands for the callers of a
    /// stack that could not be unwound to its root.
    ///
    /// In a trace with wall-clock time, all columns are time. Where a thread did not run, the
    /// innermost line says what it did: `[sleeping in epoll_wait on eventpoll]`, `[disk in pread64
    /// on FILE]`, `[runnable]` (it waited for a processor) or `[stopped]`. Threads that only wait
    /// for work are summed up at the end.
    ///
    /// Applications may report the span that they work on, and tags of it. With --by, the first
    /// level of the tree is the span, its root or a tag, over all threads. --span, --root-span and
    /// --tag select samples. An id has 16 hexadecimal digits, or 32 if it has more than 64 bits.
    /// OpenTelemetry's trace ids are the root spans. dec:NUMBER is a decimal id.
    ///
    /// --timeline lists the calls of each thread in time order. A call lasts as long as consecutive
    /// samples show it. `~` marks the time from the first to the last of them, plus one sampling
    /// period; for wall-clock time it is the time that its samples stand for. The time after `at`
    /// is its start, if its caller started earlier. `... <N calls left out>` stands for calls that
    /// are too light, too deep, or outside the selected time; if all fits on one screen, none is
    /// left out. `... <N samples in self>` counts samples taken in the call itself. `... <gap>` is
    /// a time without information. `<unfinished>` marks a call whose end was not seen.
    ///
    /// --follow prints what is added to the trace until the recording ends. The samples of each new
    /// window of time are printed on their own, and a note counts those that came too late for
    /// theirs. The exit code is 0 if the recording ended well, and 8 if the recorder exited
    /// without closing the trace.
    Print(PrintArguments),
    /// List every object of a trace, one a line
    ///
    /// Lists the objects of the data file in file order, then the cells of the index file. These
    /// are raw records of the file format. Use `traceprof print` for a readable profile.
    Dump(DumpArguments),
    /// Convert a trace for another tool
    ///
    /// folded: one line `root;caller;leaf COUNT` per stack, for flame graph tools. Counts are
    /// sampling periods, or microseconds for wall-clock time. A `;` in a name becomes `:`. Where a
    /// thread did not run, the leaf says what it did: `[sleeping in epoll_wait on eventpoll]`.
    ///
    /// flamegraph: an SVG of the same stacks, with search and zoom. It leaves out frames below a
    /// ten-thousandth of the whole. Wall-clock time is coloured by thread state.
    ///
    /// pprof: for `go tool pprof`. It has samples and nanoseconds, functions with files, lines and
    /// inlined calls. Labels are thread, tid, pid, span_id, root_span_id (or trace_id, beyond 64
    /// bits) and the tags by their names. A tag that has one of these names becomes tag.NAME.
    ///
    /// firefox: for profiler.firefox.com, which does not upload the file. It has every sample with
    /// time, weight and CPU time. Spans, with roots and tags, are markers from the first to the
    /// last of consecutive samples.
    ///
    /// speedscope: for speedscope.app. It has the stacks of each thread in time order, with file
    /// and line.
    ///
    /// perf-script: the text that `perf script` writes, one block per sample. The period is the
    /// sample's weight: sampling periods, or microseconds for wall-clock time.
    ///
    /// otlp: a message for OpenTelemetry collectors, for the endpoint /v1development/profiles. Each
    /// process has one profile of time and one of samples. thread.name, thread.id and tags are
    /// attributes, and spans are links. This is OTLP 1.10, which is alpha: other versions of the
    /// protocol may not read it.
    ///
    /// html: the page that `traceprof view` writes.
    Export(ExportArguments),
    /// Write a page for a browser: flame graph, functions, source, assembly, time line, spans
    ///
    /// Writes one HTML file with all samples in it. The page needs no network and no server, and
    /// its policy forbids it to load or send anything. Attach it to a ticket and open it from
    /// there. Its address, after the #, holds what it shows, so a link leads back to the same view.
    ///
    /// Drag over the time line to choose a window. Click on threads, spans or functions to choose
    /// them. / searches with a regular expression and shows the share that matches. Esc goes back,
    /// and the arrow keys move between frames. A switch selects CPU time or all time if the trace
    /// has both.
    ///
    /// Beyond a million samples, the page merges samples of one thread, stack and context that are
    /// near in time, and says how near. It keeps more than a million if too few share a stack, and
    /// says so. Weights always add up to those of the trace.
    View(ViewArguments),
    /// Show what changed between two traces, or two parts of one
    ///
    /// Functions are matched by name and by the file name of their module, so two builds can be
    /// compared. `total` is the share of all samples in a function and everything that it called.
    /// `self` is the share in the function alone. Changes are in percentage points, with half of
    /// their 95 % interval. Only changes beyond noise have a line, largest first. `~` marks the
    /// column that is noise. One line sums up the functions without a change. Shares do not show
    /// that everything became slower: the head shows how much time was used per second of each
    /// recording.
    ///
    /// The interval of a share comes from its spread over 20 blocks of each recording's time. 5 %
    /// of the listed changes are expected to be chance. A difference between two runs that does not
    /// vary within one looks like a change: record long enough, and under the same load.
    ///
    /// Options that select samples apply to both sides. Those that start with --base- replace them
    /// for the first side. With a --base- option one trace is enough.
    ///
    /// The format `folded` has one line `root;caller;leaf BEFORE AFTER` per stack, for differential
    /// flame graphs. `json` has all functions with at least 10 samples, with their intervals, noise
    /// included. `flamegraph` is an SVG of the second side: red frames have a larger share of self
    /// time than before, blue ones a smaller share, noise has no colour.
    Diff(DiffArguments),
    /// Show where the names of each module came from, and how to get more
    ///
    /// Each module has a block, heaviest first: its path and build id, the share of samples in its
    /// own functions, the source of its names, and what to do where names or lines are missing.
    Info(InfoArguments),
    /// Check every byte of a trace and of its index
    ///
    /// Shows how much of the file is sound, where it is damaged, and what that costs: the number of
    /// lost samples of each thread, if it is known, and their time. Threads have the numbers of
    /// `print --timeline`, and times count from the start of the recording. The exit code is the
    /// verdict: 0 for a clean trace, 8 for a sound trace that was not closed, 9 for a trace with
    /// losses, 10 for a file that cannot be read as a trace.
    Verify(VerifyArguments),
    /// Save the readable part of a damaged or unfinished trace
    ///
    /// Writes a new, closed trace with all readable samples, and leaves the damaged one as it is.
    /// The new trace has a gap where samples are lost. The exit code is 0 if nothing was lost and 9
    /// if samples were lost. The new trace is written in both cases.
    Recover(RecoverArguments),
    /// Rebuild the index of a trace
    ///
    /// The index only makes reading faster. A trace without an index, or with one that does not
    /// match, can still be read: the reader then builds an index in memory.
    Reindex(ReindexArguments),
    /// Print the completion script for a shell
    ///
    /// Save the script where the shell looks for it. For bash that is
    /// ~/.local/share/bash-completion/completions/traceprof.
    Completions(CompletionsArguments),
    /// Write the manual pages to a directory
    #[command(hide = true)]
    Man(ManArguments),
}

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArguments {
    /// Process to check (default: any process of this user)
    #[arg(short, long, value_parser = process_id)]
    pub pid: Option<i32>,

    /// Write one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `dump`.
#[derive(Debug, Args)]
pub struct DumpArguments {
    /// Trace file to list
    pub file: PathBuf,

    /// Write JSON Lines: one JSON object a line
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `info`.
#[derive(Debug, Args)]
pub struct InfoArguments {
    /// Trace file
    pub file: PathBuf,
}

/// Arguments of `verify`.
#[derive(Debug, Args)]
pub struct VerifyArguments {
    /// Trace file to check
    pub file: PathBuf,

    /// Write one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `recover`.
#[derive(Debug, Args)]
pub struct RecoverArguments {
    /// Trace file to read
    pub input: PathBuf,

    /// Trace file to write; its index is OUTPUT.idx
    pub output: PathBuf,

    /// Replace an existing trace file
    #[arg(long)]
    pub force: bool,
}

/// Arguments of `reindex`.
#[derive(Debug, Args)]
pub struct ReindexArguments {
    /// Trace file to index; its index is FILE.idx
    pub file: PathBuf,

    /// Index every call, not only those that are longer than a block
    #[arg(long)]
    pub full: bool,
}

/// Arguments of `detach`.
#[derive(Debug, Args)]
pub struct DetachArguments {
    /// Process to clean up
    #[arg(short, long, value_parser = process_id)]
    pub pid: i32,
}

/// Arguments of `completions`.
#[derive(Debug, Args)]
pub struct CompletionsArguments {
    /// Shell
    pub shell: clap_complete::Shell,
}

/// Arguments of `man`.
#[derive(Debug, Args)]
pub struct ManArguments {
    /// Directory
    pub directory: PathBuf,
}

/// The whole definition, with examples and exit codes in the help.
pub fn definition() -> clap::Command {
    let mut definition = Arguments::command()
        .after_help(with_examples(&["record", "print"]))
        .after_long_help(format!("{}\n\n{}", with_examples(&["record", "print"]), exit_codes()));
    let mut actions: Vec<&str> = EXAMPLES.iter().map(|example| example.action).collect();
    actions.dedup();
    for action in actions {
        definition = definition.mut_subcommand(action, |command| {
            let words = if action == "record" { aliases::ALIASES } else { "" };
            let between = if words.is_empty() { "" } else { "\n\n" };
            let examples = with_examples(&[action]);
            let long = format!("{examples}\n\n{words}{between}{}", exit_codes());
            with_help_in_last_group(command)
                .after_help(first_examples(action))
                .after_long_help(long)
        });
    }
    definition
}

/// Puts --help into the last group of options: a group of its own would come first.
fn with_help_in_last_group(command: clap::Command) -> clap::Command {
    let used = command.get_arguments().filter_map(|argument| argument.get_help_heading()).last();
    let Some(last) = headings::ALL.into_iter().find(|heading| Some(*heading) == used) else {
        return command;
    };
    let help = clap::Arg::new("help").short('h').long("help").action(clap::ArgAction::Help);
    let help = help.help("Print help; --help prints more than -h").help_heading(last);
    command.disable_help_flag(true).arg(help)
}

fn exit_codes() -> String {
    let mut text = String::from("Exit codes:");
    for code in ExitCode::ALL {
        text.push_str(&format!("\n  {:3}  {}", code.number(), code.meaning()));
    }
    format!("{text}\n{OF_PROGRAM}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_holds_together() {
        definition().debug_assert();
    }
}
