//! The command line: every subcommand and option, and nothing else.

mod aliases;
mod diff;
mod export;
mod foreign;
mod keeping;
mod print;
mod program;
mod record;
mod refused;
mod selection;
mod target;
mod top;
mod view;

use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand};

use super::examples::{EXAMPLES, with_examples};
use super::exit::ExitCode;

pub use aliases::AliasArguments;
pub use diff::{BaseArguments, DiffArguments};
pub use export::ExportArguments;
pub use keeping::{KeepingArguments, RingSave};
pub use print::{Key, PrintArguments};
pub(super) use program::program_place;
pub use record::RecordArguments;
pub(super) use refused::Refusal;
pub use refused::RefusedArguments;
pub use selection::SelectionArguments;
pub use target::TargetArguments;
pub use top::TopArguments;
pub use view::ViewArguments;

/// Attach sampling profiler for Linux
///
/// Samples the call stacks of a running program, or of one that it starts, and writes them to a
/// trace file. The program needs no preparation and is not restarted; after the recording nothing
/// is left behind in it.
#[derive(Debug, Parser)]
#[command(name = "traceprof", version, max_term_width = 100)]
#[command(arg_required_else_help = true)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub action: Action,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// Record a running process, or a program that is started for it
    ///
    /// Records until the duration is over, the target ends, or Ctrl-C or SIGTERM is received; whatever
    /// ends it, the samples taken so far are kept. A started program is sampled from its first
    /// instruction and is waited for; how it ended is part of the closing report.
    #[command(override_usage = "traceprof record [OPTIONS] --pid <PID>...\n       \
        traceprof record [OPTIONS] --name <REGEX>\n       \
        traceprof record [OPTIONS] -- <COMMAND> [ARGUMENT]...")]
    Record(RecordArguments),
    /// Say what this host and a process allow, and what a recording would be
    ///
    /// Looks at all that a recording depends on: the user and its capabilities, the settings of the
    /// kernel, whether perf events are really given, seccomp filters, namespaces, limits, signals,
    /// and what is known of the process's modules. `ok` is as it should be; `!` limits what is seen,
    /// or decides about the engine; `NO` stands in the way. A line that starts with `$` is a command
    /// that changes it. Nothing is changed in the process. The exit code is 0 if a recording
    /// would work, and otherwise the one that `record` would end with.
    Doctor(DoctorArguments),
    /// Print the stacks of all threads of a process, as they are now
    ///
    /// For each thread its name, its state, the system call that it sleeps in, and its functions, the
    /// innermost first. Each thread is stopped for as long as it takes to copy its registers and its
    /// stack, mostly some tens of microseconds, and goes on as if nothing had happened; no agent is
    /// put into the process. This works on processes that hang or are stopped, and while they are
    /// recorded. A thread that waits in the kernel where no stop reaches it is shown without its
    /// functions.
    ///
    /// A stack that is longer than its copy (256 KiB) is read to its end while the thread runs again;
    /// `[read later]` marks the functions that may be of a later time.
    Stacks(StacksArguments),
    /// Show where a process spends its time, in a table that is made anew every second
    ///
    /// Attaches as `record` does, and shows the heaviest functions, threads, modules or lines of the last
    /// interval and since the start. `self` is time in a function alone, `total` that in it and in all
    /// that it called; both are shares of all samples of their time. On a terminal keys change what is
    /// shown: f, t, m, l what has a row, s and c what it is sorted by, p stops the table, ? explains
    /// all of them, q or Ctrl-C ends. In a pipe, or with --iterations, tables are plain text, one after
    /// the other, with an empty line between two; it ends with the process, at SIGINT or SIGTERM. Ctrl-Z
    /// takes everything out of the process until fg, unless the trace is kept.
    ///
    /// The samples are in a trace in TMPDIR (or /tmp) that has no name from the first table on, so
    /// that nothing is left whatever happens; who kills this with SIGKILL before that has to remove the
    /// directory traceprof-top-*. Memory is that of the names. The exit code is 0 if the table was shown,
    /// also when the process ended meanwhile.
    #[command(override_usage = "traceprof top [OPTIONS] <--pid <PID>|PID>")]
    Top(TopArguments),
    /// Remove what a recording left whose recorder and guardian were both killed
    ///
    /// It does nothing, and the next recording removes it too. The exit code is 0 if nothing is left,
    /// 1 if something had to stay, 3 if the process is being recorded.
    Detach(DetachArguments),
    /// Print a trace: one screen of summary, then call trees
    ///
    /// The summary says what was recorded, how busy the target was over time, which functions used most
    /// (by total without those that only lead to another one), and how good the recording is.
    ///
    /// Threads of a process whose names are the same but for their digits have one tree, as worker-*; the
    /// main thread has its own, and with --threads each. Trees and calls are listed heaviest first. Only
    /// forks are indented: a line below another one at the same column is called by it. `total` counts the
    /// sampling periods spent in a call and in all that it called, `self` those in the call alone; the
    /// percentages `total %` and `self %` are of the tree, `all %` is of the trace. What is left out is
    /// always summed up in a line of its own. `[truncated]` stands for the callers of a stack that could
    /// not be followed to its root.
    ///
    /// Of a trace with wall clock time all columns are of time, whether threads ran or not. Where a
    /// thread did not run, the innermost line says what it did instead: `[sleeping in epoll_wait on
    /// eventpoll]`, `[disk in pread64 on FILE]`, `[runnable]` (it waited for a processor) or
    /// `[stopped]`. Threads that only wait for work are summed up at the end.
    ///
    /// Applications may tell which span they work on, and name tags of it. With --by the first level of
    /// the tree is the span, its root or a tag, of all threads together; --span, --root-span and --tag
    /// look at some of them only. Ids are those that are printed: 16 hexadecimal digits, or 32 if they
    /// have more than 64 bits, as the trace ids of OpenTelemetry, which are the root spans of its spans
    /// (one whose upper half is 0 has 16); dec:NUMBER is a decimal one.
    ///
    /// With --timeline the calls of each thread are listed in the order of their times instead. A call
    /// goes on as long as consecutive samples show it; `~` marks the time between the first and the
    /// last of them, one sampling period included; of wall clock time it is what its samples stand for.
    /// `... <N unloaded children>` stands for calls that are too light, too deep or outside of the
    /// times asked for, `... <N samples in self>` for samples taken in the call itself, `... <gap>` for
    /// a time of which nothing is known. A call that was not seen to end is `<unfinished>`.
    ///
    /// With --follow, what is added to the trace is printed until the recording ends: the samples
    /// of each new window of time on their own; a note counts those that were written too late for
    /// it. The exit code is then 0 if the recording ended well, and 8 if its recorder is gone
    /// without closing the trace.
    Print(PrintArguments),
    /// List everything a trace holds, one object a line
    ///
    /// First every object of the data file in its order, then every cell of the index file. These are
    /// the raw records of the file format; for a readable profile use `traceprof print`.
    Dump(DumpArguments),
    /// Convert a trace for another tool
    ///
    /// The format `folded` has a line `root;caller;leaf COUNT` per stack, as flame graph tools read
    /// it; counts are sampling periods, or of wall clock time microseconds. A `;` in a name becomes
    /// `:`. Where a thread did not run, the leaf says what it did: `[sleeping in epoll_wait on
    /// eventpoll]`.
    ///
    /// The format `flamegraph` is a picture of the same stacks, which a browser searches and zooms.
    /// Frames below a ten-thousandth of all are not drawn. Wall clock time is coloured by state.
    ///
    /// The format `pprof` is what `go tool pprof` reads: samples and nanoseconds, functions with files,
    /// lines and what is inlined, and labels: thread, tid, pid, span_id, root_span_id (or trace_id, of more
    /// than 64 bits) and the tags by their names (tag.NAME for those that are called so), for its -tagfocus, -tagroot and -tagleaf.
    ///
    /// The format `firefox` is for profiler.firefox.com, which reads the file without sending it
    /// anywhere: every sample with its time, its weight and the CPU time that it stands for, and spans
    /// with their roots and tags as markers, each from the first to the last of consecutive samples.
    ///
    /// The format `speedscope` is for speedscope.app: the stacks of each thread in their order, with file
    /// and line. The format `perf-script` is text as `perf script` writes it, a block for each sample,
    /// whose period is its weight: sampling periods, or of wall clock time microseconds.
    ///
    /// The format `otlp` is a message for collectors of OpenTelemetry, which take it at
    /// /v1development/profiles: a profile of time and one of samples for each process, with thread.name,
    /// thread.id and tags as attributes and links to spans. It is that of OTLP 1.10, which is alpha: another
    /// version of the protocol may not read it.
    ///
    /// The format `html` is the page that `traceprof view` writes.
    Export(ExportArguments),
    /// Write a page for a browser: flame graph, time line, functions, spans
    ///
    /// One HTML file with all samples in it, by default beside the trace, under its name with .html. It needs
    /// no network and no server, and its policy forbids it to load or send anything: it can be
    /// attached to a ticket and opened from there. What it shows is part of its address behind the #,
    /// so that a link leads back to it.
    ///
    /// Drag over the time line to choose a window, click on threads, spans or functions; the flame
    /// graph shows what is chosen at once. / searches with a regular expression, and the share that
    /// matches is told; Esc goes back; the arrows move from frame to frame. CPU time and all time have
    /// a switch if both were recorded.
    ///
    /// Of more than a million samples, those of one thread, one stack and one context are merged that are
    /// near in time; the page says how near. Where too few have one stack, more stay, which is told. Weights
    /// always add up to those of the trace.
    View(ViewArguments),
    /// Say what changed between two traces, or two parts of one
    ///
    /// Functions are matched by name and by the file name of their module, so the traces may be of two
    /// builds. `total` is the share of all samples in a function and in all that it called, `self` that in
    /// the function alone; changes are in percentage points, with half of their 95 % interval. Only what is
    /// more than noise has a line, the largest change first; a `~` marks the one of the two that is noise,
    /// and all that is noise in both is summed up in one line. Shares hide that everything became slower:
    /// the head tells how much time was used in a second of each recording.
    ///
    /// How sure a share is, is taken from how it differs between 20 blocks of each recording's time, as
    /// samples that are near in time are alike; of the changes that are told, 5 % are expected to be
    /// chance. What differs from one run to the next but never within one looks like a change: record
    /// long enough, and under the same load.
    ///
    /// The options that choose what is looked at apply to both sides. Those that begin with --base- are
    /// for the first side only, instead of the ones without; with them one trace is enough.
    ///
    /// The format `folded` has a line `root;caller;leaf BEFORE AFTER` per stack, as tools for differential
    /// flame graphs read it; `json` has all functions of at least 10 samples with their intervals, noise
    /// included. `flamegraph` is a picture of what is now for a browser: red has more of all time in
    /// itself than before, blue less; what is no more than noise has no colour.
    Diff(DiffArguments),
    /// Say of each module of a trace where its names came from, and how to get more
    ///
    /// A block for each, those with most samples first: its path and build id, the share of the
    /// samples that are in its own functions, the source of its names, and what to do where names or
    /// lines are missing.
    Info(InfoArguments),
    /// Check every byte of a trace and of its index
    ///
    /// Says how much of the file is sound, where it is not, and what that costs: for each thread the
    /// samples that are lost, as far as their number is known, and between which times. Threads are
    /// numbered as by `print --timeline`, times are since the begin of the recording. The exit code
    /// is the verdict: 0 for a clean trace, 8 for one that is sound but was not closed, 9 for one
    /// with losses, 10 for a file that cannot be read as a trace.
    Verify(VerifyArguments),
    /// Save what can be read of a damaged or unfinished trace
    ///
    /// Writes a new, closed trace with all samples that can be read; the damaged one is not changed.
    /// Where samples are lost the new one has a gap. The exit code is 0 if nothing was lost and 9 if
    /// something was; the new trace is written in both cases.
    Recover(RecoverArguments),
    /// Write the index of a trace anew
    ///
    /// The index only makes reading faster. Without one, or with one that does not fit, a trace is
    /// read all the same, after its index was made in memory.
    Reindex(ReindexArguments),
    /// Print the completion script for a shell
    ///
    /// The script goes where the shell looks for it; bash, for example, reads
    /// ~/.local/share/bash-completion/completions/traceprof.
    Completions(CompletionsArguments),
    /// Write the manual pages to a directory
    #[command(hide = true)]
    Man(ManArguments),
}

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArguments {
    /// Process to look at; without it any process of this user is meant
    #[arg(short, long, value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: Option<i32>,

    /// Write one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `stacks`.
#[derive(Debug, Args)]
pub struct StacksArguments {
    /// Process to look at
    #[arg(short, long, value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: i32,

    /// Say where each function is (address, offset, file and line), and how long each thread was stopped
    #[arg(short, long, conflicts_with = "json")]
    pub verbose: bool,

    /// Write one JSON object
    #[arg(long)]
    pub json: bool,

    /// Add the kernel's functions of threads that sleep in it; only root may see them
    #[arg(long)]
    pub kernel: bool,
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
    /// Trace file to look at
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

    /// Trace file to write; its index is written beside it, with .idx appended
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

    /// List every call, not only those that are longer than a block
    #[arg(long)]
    pub full: bool,
}

/// Arguments of `detach`.
#[derive(Debug, Args)]
pub struct DetachArguments {
    /// Process to put back as it was
    #[arg(short, long, value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: i32,
}

/// Arguments of `completions`.
#[derive(Debug, Args)]
pub struct CompletionsArguments {
    /// Shell to complete for
    pub shell: clap_complete::Shell,
}

/// Arguments of `man`.
#[derive(Debug, Args)]
pub struct ManArguments {
    /// Directory to write to
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
            let examples = with_examples(&[action]);
            let words = if action == "record" { aliases::ALIASES } else { "" };
            let between = if words.is_empty() { "" } else { "\n\n" };
            let long = format!("{examples}\n\n{words}{between}{}", exit_codes());
            command.after_help(examples).after_long_help(long)
        });
    }
    definition
}

fn exit_codes() -> String {
    let mut text = String::from("Exit codes:");
    for code in ExitCode::ALL {
        text.push_str(&format!("\n  {:3}  {}", code.number(), code.meaning()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_holds_together() {
        definition().debug_assert();
    }
}
