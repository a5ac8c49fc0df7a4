//! The command line: every subcommand and option, and nothing else.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand};

use super::examples::{EXAMPLES, with_examples};
use super::exit::ExitCode;
use super::values::{BlockSize, Compress, Durable, EngineName, Percent, Rate, RecordingTime};
use crate::view::export::Format;
use crate::view::{Moment, Selection};

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
    #[command(override_usage = "traceprof record [OPTIONS] --pid <PID>\n       \
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
    /// Remove what a recording left whose recorder and guardian were both killed
    ///
    /// It does nothing, and the next recording removes it too. The exit code is 0 if nothing is left,
    /// 1 if something had to stay, 3 if the process is being recorded.
    Detach(DetachArguments),
    /// Print a trace: a summary, then the call tree of each thread
    ///
    /// Threads and calls are listed heaviest first. Only forks are indented: a line below another one
    /// at the same column is called by it. `total` counts the sampling periods spent in a call and in
    /// all that it called, `self` those in the call alone; the percentages `total %` and `self %` are
    /// of the thread, `all %` is of the trace. What is left out is always summed up in a line of its
    /// own. `[truncated]` stands for the callers of a stack that could not be followed to its root.
    ///
    /// With --timeline the calls of each thread are listed in the order of their times instead. A
    /// call goes on as long as consecutive samples show it; `~` marks the time between the first and
    /// the last of them, one sampling period included. `... <N unloaded children>` stands for calls
    /// that are too light, too deep or outside of the times asked for, `... <N samples in self>` for
    /// samples taken in the call itself, `... <gap>` for a time of which nothing is known. A call
    /// that was not seen to end is `<unfinished>`.
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
    /// it; counts are sampling periods. A `;` in a name becomes `:`.
    Export(ExportArguments),
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

/// Arguments of `record`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("target").required(true).args(["pid", "command"]))]
pub struct RecordArguments {
    /// Process to record
    #[arg(short, long, value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: Option<i32>,

    /// How long to record: 5, 5s, 500ms, 5m, 1h (default: until Ctrl-C or the target's end)
    #[arg(short, long, value_name = "TIME")]
    pub duration: Option<RecordingTime>,

    /// Trace file to write; its index is written beside it, with .idx appended
    ///
    /// Default: traceprof-PID-N.trace or traceprof-COMMAND-N.trace in the current directory, N
    /// being the first number that is free.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Samples per second of CPU time of each thread: 1 to 50000, or max
    #[arg(short = 'F', long = "freq", value_name = "HZ", default_value = "199")]
    pub rate: Rate,

    /// What samples: auto, perf, or timer
    ///
    /// perf uses perf events, which signal each thread from its first instruction, exactly on time.
    /// Their signal is SIGTRAP: a program that resets its action while it is recorded ends at the
    /// next sample. The recorder watches for that and goes on with timers, but a reset that is
    /// followed by a sample within some milliseconds cannot be prevented. timer gives every thread a
    /// CPU timer with a signal that is ignored by default: a program may do with its signals
    /// whatever it likes. The kernel delivers at most one such signal a tick (100 to 1000 a second);
    /// a sample then stands for several periods, and a thread is armed some milliseconds after its
    /// start. A thread that can have no timer, because the limit of pending signals is used up, has
    /// perf events of its own, except in a program for which auto would not take perf. auto takes
    /// perf where it is permitted and safe; for a program that is started, one that handles SIGTRAP,
    /// or waits for it, or one with a known crash reporter, it takes timer. perf is refused for a
    /// program that waits for SIGTRAP. Samples of perf are weighted by each thread's own CPU clock
    /// where time in the kernel is sampled, too.
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub engine: EngineName,

    /// When the target executes another program, go on with that one
    ///
    /// Without this the recording ends there. Each program is attached to as soon as its exec is seen
    /// and over, some milliseconds to some tens of milliseconds after it; what it does before is not
    /// sampled, and the closing report says how much CPU time that was. The trace is one: it names
    /// the programs and when they were executed, and each has threads of its own in it. --duration
    /// counts over all of them. As a program that has just been started may yet reset SIGTRAP, auto
    /// takes the timer engine. One that cannot be attached to (another user's by its set-user-id bit,
    /// 32-bit) ends the recording, which is kept.
    #[arg(long)]
    pub follow_exec: bool,

    /// Replace an existing trace file
    #[arg(long)]
    pub force: bool,

    /// Print nothing but errors
    #[arg(short, long)]
    pub quiet: bool,

    /// Say what would be done, and do nothing
    ///
    /// Makes the checks of a recording and prints the steps that would follow: the engine and why it
    /// is this one, what would be mapped where, which thread would be stopped, which signals get a
    /// handler, which files are written. No program is started, no file written, nothing changed in
    /// the process; only to read seccomp filters its threads may be stopped for a moment. The exit
    /// code is the one with which the recording would be refused, or 0.
    #[arg(long)]
    pub dry_run: bool,

    /// Record a target whose seccomp filter is not known to permit what is done
    ///
    /// Some system calls are made in the target, and a filter may kill it for them. Root has the
    /// filters read and evaluated; who runs under as many filters in the same container has the
    /// calls tried out in a process of its own. Where neither can be, the target is refused without
    /// this option. A filter that is known to forbid one of the calls is refused in any case.
    #[arg(long)]
    pub allow_seccomp: bool,

    /// Compare the target before the attach and after the detach, and tell what differs
    ///
    /// Mappings, signal dispositions, masks and pending signals, threads, descriptors, POSIX timers.
    /// What can only be of the recording ends the command with code 11; the rest is what the
    /// program changed itself meanwhile, and is counted.
    #[arg(long)]
    pub verify_detach: bool,

    /// Leave out time spent in the kernel, also where it could be seen
    #[arg(long)]
    pub no_kernel: bool,

    /// Exit with code 5 if the quality of the recording is below this
    #[arg(long, value_name = "PERCENT")]
    pub fail_under: Option<Percent>,

    /// Keep all samples in memory and write them at the end, each thread's in one piece
    ///
    /// Memory grows with the number of samples, and all is lost if the recorder is killed; the
    /// closing report says how much it was. Without this, memory is bounded and others can read the
    /// trace while it is written.
    #[arg(long)]
    pub collect: bool,

    /// Leave out the storage's id of each sample's call trace
    #[arg(long)]
    pub no_trace_ids: bool,

    /// Also write each call trace as an object, to look up by its id
    #[arg(long)]
    pub call_traces: bool,

    /// Let the N heaviest call traces keep their ids, and write them as objects
    ///
    /// A stack has another id in each rotation of the storage. The heaviest ones, by the weight of
    /// their samples so far, keep the first id that they had while they were among the N; it is
    /// listed with the weight in the trace's metadata, as preserved_traces.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub preserve: Option<u16>,

    /// Print what the storage has counted after the closing report: puts, drops, collisions, waits
    #[arg(long, conflicts_with = "quiet")]
    pub stats: bool,

    /// How to compress the trace: none, fast, zstd, or zstd:LEVEL with a level from 1 to 22
    ///
    /// fast is zstd:1, zstd is zstd:3. Without compression the offsets in the index are those in
    /// the file.
    #[arg(long, value_name = "METHOD", default_value = "zstd")]
    pub compress: Compress,

    /// When to force the trace to the disk: none, interval (about every second), or frame (always)
    ///
    /// This is about a crash of the machine; of what has been written nothing is lost if only the
    /// recorder is killed.
    #[arg(long, value_name = "WHEN", default_value = "interval")]
    pub durability: Durable,

    /// Bytes of a block, which is what a reader decodes to look at one place: 1K to 1M
    #[arg(long, value_name = "BYTES", default_value = "64K")]
    pub block_size: BlockSize,

    /// Program to start and record, with its arguments
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
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

/// Arguments of `print`.
#[derive(Debug, Args)]
pub struct PrintArguments {
    /// Trace file to print
    pub file: PathBuf,

    /// Say for every call where it is: file and line, or module and offset
    ///
    /// With --timeline also every sample: when it was taken, its weight, and what else is known.
    #[arg(short, long)]
    pub verbose: bool,

    /// Print calls in the order of their times
    #[arg(long)]
    pub timeline: bool,

    /// Go on with what is added to the trace, until its recording ends
    #[arg(long, conflicts_with = "output")]
    pub follow: bool,

    /// What of the trace is looked at.
    #[command(flatten)]
    pub selection: SelectionArguments,

    /// Sum up calls and threads below this share; 0 shows everything
    ///
    /// Calls are measured against their thread, threads against what is printed of the trace.
    #[arg(long, value_name = "PERCENT", default_value = "0.5")]
    pub min_percent: Percent,

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

/// Arguments of `dump`.
#[derive(Debug, Args)]
pub struct DumpArguments {
    /// Trace file to list
    pub file: PathBuf,

    /// Write JSON Lines: one JSON object a line
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `export`.
#[derive(Debug, Args)]
pub struct ExportArguments {
    /// Trace file to convert
    pub file: PathBuf,

    /// Format to write: folded (default: by the extension of the output, .folded or .collapsed)
    #[arg(short, long)]
    pub format: Option<Format>,

    /// File to write; - or none is the standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Keep threads apart: the thread's name is the first frame
    #[arg(short, long)]
    pub threads: bool,

    /// What of the trace is looked at.
    #[command(flatten)]
    pub selection: SelectionArguments,

    /// Replace an existing file
    #[arg(long)]
    pub force: bool,
}

/// What of a trace is looked at.
#[derive(Debug, Args)]
pub struct SelectionArguments {
    /// Look at this thread only; repeatable, and `*` in a name stands for any text
    #[arg(long, value_name = "ID|NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub thread: Vec<String>,

    /// Look at samples from here on: 2.5s, 500ms, 1m since the begin, or 50%
    #[arg(long, value_name = "TIME")]
    pub from: Option<Moment>,

    /// Look at samples up to here: 2.5s, 500ms, 1m since the begin, or 50%
    #[arg(long, value_name = "TIME")]
    pub to: Option<Moment>,
}

impl From<SelectionArguments> for Selection {
    fn from(arguments: SelectionArguments) -> Self {
        let SelectionArguments { thread, from, to } = arguments;
        Self { threads: thread, from, to }
    }
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
            let long = format!("{examples}\n\n{}", exit_codes());
            command.after_help(examples).after_long_help(long)
        });
    }
    definition
}

fn exit_codes() -> String {
    let mut text = String::from("Exit codes:");
    for code in ExitCode::ALL {
        text.push_str(&format!("\n  {:2}  {}", code.number(), code.meaning()));
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
