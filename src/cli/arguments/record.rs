//! The arguments of `record`.

use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};

use super::headings::{ADVANCED, HOW, SEVERAL, WHERE};
use super::{AliasArguments, LongRunArguments, RefusedArguments, TargetArguments};
use crate::cli::number_values::number;
use crate::cli::option_values::{
    Compress, Durable, EngineName, ExitOf, LeastQuality, ModeName, OverheadLimit, Rate,
    RecordingTime, WallInterval, YesOrNo,
};
use crate::record::OutputPattern;
use crate::view::export::Format;

/// Arguments of `record`.
#[derive(Debug, Args)]
pub struct RecordArguments {
    /// What to record.
    #[command(flatten)]
    pub target: TargetArguments,

    /// How long to record, such as 30s or 1h30m
    ///
    /// A number without a unit is seconds. Without this option the recording runs until Ctrl-C,
    /// SIGTERM, or the exit of the target.
    #[arg(short, long, value_name = "TIME", short_aliases = ['l', 'x'])]
    #[arg(aliases = ["time-limit", "exposure"], help_heading = HOW)]
    pub duration: Option<RecordingTime>,

    /// Samples per second of CPU time [default: 199]
    ///
    /// The rate of each thread, from 1 to 50000, or max. In mode wall, the default is one sample in
    /// each --wall-interval of CPU time.
    #[arg(short = 'F', long = "freq", value_name = "HZ", short_alias = 'r')]
    #[arg(aliases = ["rate", "frequency"], help_heading = HOW)]
    pub rate: Option<Rate>,

    /// Measure cpu, wall or cpu,wall
    ///
    /// cpu: where threads use CPU time. wall: where they spend all their time. Where a thread does
    /// not run, the trace has its state (runnable, sleeping, disk, stopped), the system call, and
    /// the object that the call waits for. cpu,wall: both in one trace, each at its own rate.
    ///
    /// Threads that do not run are watched from outside, without signals. A thread that sleeps on
    /// in one place is left alone. The stack of a thread that now sleeps elsewhere is mostly read
    /// without a stop. A stop takes some tens of microseconds, and the system call continues. The
    /// time limit of epoll_wait, sigtimedwait, semop or a socket's receive may start again, once.
    #[arg(short, long, value_name = "MODE", default_value = "cpu", help_heading = HOW)]
    pub mode: ModeName,

    /// How often threads are checked in mode wall: 1ms to 10s
    #[arg(long, value_name = "TIME", default_value = "20ms", help_heading = HOW)]
    #[arg(hide_short_help = true)]
    pub wall_interval: WallInterval,

    /// What takes the samples: auto, signal, perf, or timer
    ///
    /// signal: each thread has a perf event whose signal is ignored by default, so the program may
    /// do anything with its signals. A new thread is sampled without a signal at first, from its
    /// first instruction on. An expiry costs twice as much as one of perf.
    ///
    /// perf: perf events signal each thread from its first instruction, exactly on time. The signal
    /// is SIGTRAP. A program that resets its action during the recording dies at the next sample.
    /// The recorder watches for a reset and then continues with timers. It cannot help if a sample
    /// follows the reset within some milliseconds. perf is refused for a program that waits for
    /// SIGTRAP. perf and signal weigh samples by each thread's CPU clock if they also sample kernel
    /// time.
    ///
    /// timer: each thread gets a CPU timer. Its signal is ignored by default, so the program may do
    /// anything with its signals. The kernel delivers at most one such signal a tick (100 to 1000 a
    /// second), and a sample then stands for several periods. A new thread gets its timer some
    /// milliseconds after its start. If the limit of pending signals leaves a thread without a
    /// timer, it gets perf events, except in a program for which auto would not use perf.
    ///
    /// auto: signal up to 500 Hz. Above that perf, but signal for a program that it starts, and for
    /// one that handles SIGTRAP, waits for it, or has a known crash reporter. signal needs the
    /// permission to sample the kernel and a free signal. timer where perf events are refused or
    /// unsafe, and for interpreters whose functions only a handler sees.
    #[arg(long, value_name = "NAME", default_value = "auto", help_heading = HOW)]
    #[arg(hide_short_help = true)]
    pub engine: EngineName,

    /// Leave out time spent in the kernel (not with --engine timer)
    ///
    /// Timers count all CPU time of a thread and cannot separate the kernel's part. With timers,
    /// also where auto chooses them, this option changes nothing, and a note says so.
    #[arg(long, aliases = ["all-user", "exclude-kernel"], help_heading = HOW)]
    #[arg(hide_short_help = true)]
    pub no_kernel: bool,

    /// Whether samples in the kernel show its own functions, where permitted: yes or no
    ///
    /// yes: the frames of the kernel are above the function that made the system call. With
    /// wall-clock time they also show where threads sleep. This needs CAP_PERFMON, or
    /// kernel.perf_event_paranoid of at most 1, and for sleeping threads CAP_SYS_ADMIN. The names
    /// come from /proc/kallsyms, which kernel.kptr_restrict may hide; time in the kernel then has
    /// one frame. Timers see no functions of the kernel: their signals arrive when the thread
    /// leaves it. The closing report says what would show them.
    #[arg(long, value_name = "YES-OR-NO", default_value = "yes", help_heading = HOW)]
    #[arg(hide_short_help = true)]
    pub kernel_stacks: YesOrNo,

    /// Limit the cost of profiling to this share of CPU time, such as 1%
    ///
    /// Lowers the sampling rate as far as necessary; --freq is the highest rate. The cost is the
    /// CPU time of the handlers and their signals in the target, and that of the recorder while it
    /// samples. With several processes, each is charged its own part and, by its samples, a part of
    /// the rest. A sample stands for more periods at a lower rate, so weights still add up to the
    /// CPU time. At least one sample a second remains. The cost is checked every second. Costs that
    /// do not depend on the rate cannot be lowered. The closing report shows the cost, and the
    /// trace has every change of the rate (rate_changes).
    #[arg(long, value_name = "PERCENT", help_heading = HOW, hide_short_help = true)]
    pub max_overhead: Option<OverheadLimit>,

    /// Trace file to write
    ///
    /// In the name, %p is the process id, %t the time in UTC as 20261122T231336Z, %h the host name,
    /// %n the first free number from 1, and %% a percent sign. The index has the same name with
    /// .idx appended. Default: traceprof-PID-%n.trace or traceprof-COMMAND-%n.trace in the current
    /// directory.
    #[arg(short, long, value_name = "FILE", value_parser = pattern(), help_heading = WHERE)]
    pub output: Option<OutputPattern>,

    /// Replace an existing trace file
    #[arg(long, help_heading = WHERE)]
    pub force: bool,

    /// Print nothing but errors
    #[arg(short, long, help_heading = WHERE)]
    pub quiet: bool,

    /// At the end, make the page of the trace and open it in a browser
    ///
    /// As `traceprof view --open` does. If no browser can be opened, the page is written anyway.
    #[arg(long, conflicts_with = "json", help_heading = WHERE)]
    pub view: bool,

    /// Print all figures in the closing report
    ///
    /// Without this option the report has one line each for what was recorded, how much of the CPU
    /// time the samples stand for, what the recording cost, and what is wrong. The metadata of the
    /// trace has all figures in any case.
    #[arg(long, conflicts_with = "quiet", help_heading = WHERE, hide_short_help = true)]
    pub stats: bool,

    /// Print the result as one JSON object
    ///
    /// The object is the last line of the standard output: output of a started program comes before
    /// it. Its keys are exit_code, meaning (of the code) and reason (null, or why the code is not
    /// 0). If there is a recording, it also has:
    ///
    /// pid; ended (null, or why it ended without a request); output and index (null for a ring that
    /// was not saved); data_bytes, index_bytes, samples_in_file, collected_bytes; quality_percent
    /// and named_percent (by language; see --fail-under); command_status (null, or code and signal
    /// of the started program); left_in_target; and figures. figures has all numbers of the closing
    /// report and the closing metadata, by the names and in the units of traceprof-data(5).
    ///
    /// Names and meanings are stable. Later versions may add keys.
    #[arg(long, conflicts_with = "dry_run", help_heading = WHERE)]
    pub json: bool,

    /// How to compress the trace: none, fast, zstd, or zstd:LEVEL
    ///
    /// Levels are 1 to 22. fast is zstd:1, and zstd is zstd:3. Without compression, offsets in the
    /// index are offsets in the file.
    #[arg(long, value_name = "METHOD", default_value = "zstd", help_heading = WHERE)]
    #[arg(hide_short_help = true)]
    pub compress: Compress,

    /// When to force the trace to disk: none, interval, or frame
    ///
    /// interval is about every second, frame is every write. This matters if the machine crashes. A
    /// recorder that is killed loses nothing that it has written.
    #[arg(long, value_name = "WHEN", default_value = "interval", help_heading = WHERE)]
    #[arg(hide_short_help = true)]
    pub durability: Durable,

    /// Record the descendants as well, also new ones
    ///
    /// Of a program that the recorder starts, descendants are recorded without this option, until
    /// the program exits. With it, the recording goes on until the last of them has exited.
    ///
    /// The kernel samples each descendant from the start of its first program on. The recorder
    /// attaches to those that live longer than 300 ms; only then has the trace their functions in
    /// language runtimes, their contexts, and the times in which they wait. A child that executes
    /// no program is sampled from the attach on, some ten milliseconds after its start. Programs
    /// that a process executes later are recorded too, as with --follow-exec.
    #[arg(short, long, short_alias = 'C', aliases = ["children", "with-subprocesses"])]
    #[arg(help_heading = SEVERAL)]
    pub subprocesses: bool,

    /// Record the started program alone, without its descendants
    ///
    /// By default the descendants of a program that the recorder starts are recorded until the
    /// program exits.
    #[arg(long, alias = "no-inherit", conflicts_with = "subprocesses", help_heading = SEVERAL)]
    #[arg(hide_short_help = true)]
    pub no_children: bool,

    /// Go on when the target executes another program
    ///
    /// Without this option the recording ends there, unless descendants are recorded. The recorder
    /// attaches to the new program some milliseconds to some tens of milliseconds after its exec.
    /// The time before is not sampled, and the closing report shows how much CPU time it was. There
    /// is one trace. It names the programs and when they were executed, and each has its own
    /// threads. --duration counts over all of them. auto uses the timer engine, because a program
    /// that has just started may still reset SIGTRAP. A program that cannot be attached to
    /// (set-user-id of another user, 32-bit) ends the recording, which is kept.
    #[arg(long, help_heading = SEVERAL)]
    pub follow_exec: bool,

    /// How much to keep, and in how many files.
    #[command(flatten)]
    pub long_runs: LongRunArguments,

    /// Print the steps of the recording, and do nothing
    ///
    /// Makes all checks of a recording and prints its steps: the engine and the reason for it,
    /// mappings, the thread to stop, signals that get a handler, and the names of the files. It
    /// starts no program, writes no file, and changes nothing in the process. Threads may be
    /// stopped for a moment to read seccomp filters. The exit code is 0, or the code with which the
    /// recording would be refused.
    #[arg(long, help_heading = ADVANCED)]
    pub dry_run: bool,

    /// Whose exit code to exit with: command or recording
    ///
    /// command: the code of the started program, or 128 and the number of the signal that killed
    /// it. If the recording failed, its code has precedence. A recording without samples, or of a
    /// program that crashed, has not failed. recording: always the code of the recording. Both exit
    /// with 127 or 126 if the command does not exist or does not start, as shells do.
    #[arg(long, value_name = "WHOSE", default_value = "command", help_heading = ADVANCED)]
    #[arg(hide_short_help = true)]
    pub exit_code: ExitOf,

    /// Exit with code 5 if the quality of the recording is below this
    ///
    /// PERCENT is the least share of samples whose stack reaches the root. python=PERCENT is the
    /// least share of samples with a named Python function, of those with Python functions, and
    /// java=PERCENT that of Java methods, and so on for javascript, php, ruby, perl and lua;
    /// without any of these, the quality is too low. The option may be repeated.
    #[arg(long, value_name = "[LANGUAGE=]PERCENT", help_heading = ADVANCED, hide_short_help = true)]
    pub fail_under: Vec<LeastQuality>,

    /// Ask the servers in DEBUGINFOD_URLS for missing debug information
    ///
    /// debuginfod-find asks them and caches their files. Names come later, by a minute at most for
    /// each file. A server that does not answer for ten seconds is not asked again.
    #[arg(long, help_heading = ADVANCED, hide_short_help = true)]
    pub debuginfod: bool,

    /// Record although a seccomp filter may forbid the system calls
    ///
    /// The agent makes system calls in the target, and a filter may kill it for them. For root, the
    /// recorder reads and evaluates the filters. A user with as many filters in the same container
    /// has the calls tried in a process of its own. Where neither works, the target is refused
    /// without this option. A filter that is known to forbid a call is always refused.
    #[arg(long, help_heading = ADVANCED, hide_short_help = true)]
    pub allow_seccomp: bool,

    /// Compare the target before and after, and report differences
    ///
    /// Compares mappings, signal dispositions, masks and pending signals, threads, descriptors and
    /// POSIX timers. The exit code is 11 if a difference can only come from the recording. Other
    /// differences come from the program and are counted.
    #[arg(long, help_heading = ADVANCED, hide_short_help = true)]
    pub verify_detach: bool,

    /// Write READY=1 to this open descriptor when sampling has started
    ///
    /// The recorder writes one line and closes the descriptor. If the recording ends before, it
    /// closes the descriptor without writing.
    #[arg(long, value_name = "N", value_parser = number::<i32>(1..=i32::MAX as u64))]
    #[arg(help_heading = ADVANCED, hide_short_help = true)]
    pub ready_fd: Option<i32>,

    /// Keep the recorder's process id in this file while it records
    ///
    /// An existing file is replaced if it is empty or names a process that no longer exists. The
    /// recorder locks the file, so a second recorder is refused with code 6. A symbolic link is
    /// refused. At the end the recorder removes the file, unless it was replaced by another one.
    #[arg(long, value_name = "FILE", help_heading = ADVANCED, hide_short_help = true)]
    pub pidfile: Option<PathBuf>,

    /// Keep all samples in memory until the end
    ///
    /// The file then has the samples of each thread in one piece. Memory grows with the number of
    /// samples, and everything is lost if the recorder is killed. The closing report shows how much
    /// memory it was. Without this option memory is bounded, and others can read the trace while it
    /// is written.
    #[arg(long, help_heading = ADVANCED, hide_short_help = true)]
    pub collect: bool,

    /// Keep the ids of the N heaviest call traces, and write them as objects
    ///
    /// A call trace gets another id in each rotation of the storage. The heaviest, by the weight of
    /// their samples so far, keep the id that they had when they joined the first N. The metadata
    /// lists ids and weights as preserved_traces.
    #[arg(long, value_name = "N", value_parser = number::<u16>(1..=1000))]
    #[arg(help_heading = ADVANCED, hide_short_help = true)]
    pub preserve: Option<u16>,

    /// Words of other profilers.
    #[command(flatten)]
    pub aliases: AliasArguments,

    /// Options of other profilers that are refused.
    #[command(flatten)]
    pub refused: RefusedArguments,
}

fn pattern() -> impl TypedValueParser<Value = OutputPattern> {
    OsStringValueParser::new().try_map(|text| {
        check_kind(Path::new(&text))?;
        OutputPattern::parse(&text)
    })
}

/// Refuses what other profilers write, and what a trace cannot be: it has two files.
fn check_kind(path: &Path) -> Result<(), String> {
    if path == Path::new("-") {
        return Err(
            "a trace is two files, so it cannot go to the standard output: record to a file, then \
                    traceprof export FILE --format folded --output -"
                .to_owned(),
        );
    }
    let Some(format) = Format::of_path(path) else { return Ok(()) };
    let name = path.display();
    Err(format!(
        "record writes a trace, which is no {}: give --output NAME.trace, then traceprof export \
         NAME.trace --output {name}",
        format.name()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_left_out_by_the_words_of_others_too() {
        for word in ["--no-kernel", "--all-user", "--exclude-kernel"] {
            let words = ["traceprof", "record", word, "-p", "1"];
            let matches = crate::cli::arguments::definition().try_get_matches_from(words).unwrap();
            let (_, record) = matches.subcommand().unwrap();
            assert!(record.get_flag("no_kernel"), "{word}");
        }
    }

    #[test]
    fn names_of_other_formats_are_refused_with_how_to_get_them() {
        for name in ["-", "profile.svg", "a/b.json", "x.pb.gz", "x.speedscope.json", "x.folded"] {
            let text = check_kind(Path::new(name)).unwrap_err();
            assert!(text.contains("traceprof export"), "{text}");
        }
        for name in ["x.trace", "x", "x.data", "svg", "a.svg/x", "--", "-.trace"] {
            assert_eq!(check_kind(Path::new(name)), Ok(()), "{name}");
        }
    }
}
