//! The arguments of `record`.

use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};

use super::{AliasArguments, KeepingArguments, RefusedArguments};

use super::TargetArguments;
use crate::cli::values::{
    BlockSize, Compress, Durable, EngineName, Mode, Overhead, Percent, Rate, RecordingTime,
    SampleInterval, WallInterval,
};
use crate::record::OutputPattern;
use crate::view::export::Format;

/// Arguments of `record`.
#[derive(Debug, Args)]
pub struct RecordArguments {
    /// What is recorded
    #[command(flatten)]
    pub target: TargetArguments,

    /// How long to record: 5, 5s, 500ms, 5m, 1h30m (default: until Ctrl-C or the target's end)
    #[arg(short, long, value_name = "TIME", short_aliases = ['l', 'x'], aliases = ["time-limit", "exposure"])]
    pub duration: Option<RecordingTime>,

    /// Trace file to write; its index is written beside it, with .idx appended
    ///
    /// In the name %p is the process id, %t the time in UTC as 20261122T231336Z, %h the name of the
    /// host, %n the first number from 1 on that is free, and %% a percent sign. An existing file is
    /// never replaced without --force. Default: traceprof-PID-%n.trace or traceprof-COMMAND-%n.trace in
    /// the current directory.
    #[arg(short, long, value_name = "FILE", value_parser = pattern())]
    pub output: Option<OutputPattern>,

    /// How much of it is kept.
    #[command(flatten)]
    pub keeping: KeepingArguments,

    /// Samples per second of CPU time of each thread: 1 to 50000, or max (default: 199)
    ///
    /// In mode wall the default is one sample in each --wall-interval of CPU time.
    #[arg(short = 'F', long = "freq", value_name = "HZ", short_alias = 'r', aliases = ["rate", "frequency"])]
    pub rate: Option<Rate>,

    /// Time between samples instead of a rate: 20us to 1s, as in 10ms
    ///
    /// It is the rate that is nearest: 3ms are 333 samples per second.
    #[arg(short = 'i', long, value_name = "TIME", conflicts_with = "rate")]
    pub interval: Option<SampleInterval>,

    /// Lower the rate so that profiling costs no more than this share of the target's CPU time: 1%
    ///
    /// Counted are the handlers and the delivery of their signals in the target, and the CPU time of
    /// the recorder while it samples, of which each of several processes is charged what its own part
    /// uses and, by its samples, a part of the rest; --freq is what is had at most. A hit stands for as many periods
    /// as the rate is lowered by, at least one a second, so the weights still add up to the CPU time.
    /// The costs are looked at every second; what the recorder does at any rate is not helped by a
    /// lower one. The closing report says what it came to, and the trace has each change of the rate
    /// (rate_changes).
    #[arg(long, value_name = "PERCENT")]
    pub max_overhead: Option<Overhead>,

    /// What is measured: cpu, wall, or cpu,wall
    ///
    /// cpu is where threads use CPU time. wall is where they spend all their time: what they do while
    /// they run, and where and for what they wait while they do not, with the state (runnable,
    /// sleeping, disk, stopped), the system call, and what that waits on. cpu,wall is both in one
    /// trace, each at its own rate. Threads that do not run are watched from outside: none is
    /// signalled, a thread that goes on sleeping where it slept is left alone, and the stack of
    /// one that has gone to sleep elsewhere is mostly read without a stop. Where it takes one, it is
    /// some tens of microseconds, and the system call goes on; a time limit of epoll_wait,
    /// sigtimedwait, semop or a socket's receive may begin anew then, once.
    #[arg(short, long, value_name = "MODE", default_value = "cpu")]
    pub mode: Mode,

    /// How often threads are looked at in mode wall: 1ms to 10s
    #[arg(long, value_name = "TIME", default_value = "20ms")]
    pub wall_interval: WallInterval,

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

    /// Write what the recording came to as one JSON object to the standard output
    ///
    /// It has exit_code, meaning (of the code) and reason (null, or why the code is not 0); if there is
    /// a recording, pid, ended (null, or why, if nobody asked for it), output and index (both null of a
    /// ring that nobody asked to be saved), data_bytes, index_bytes, samples_in_file, collected_bytes,
    /// quality_percent (what --fail-under looks at), command_status (null, or code and signal of the
    /// program that was started), left_in_target, and figures: all numbers of the closing report and of --stats, under the names and in the units that
    /// traceprof-data(5) describes as closing metadata. Names and meanings stay; later versions may
    /// add some. It is one line, the last one: what a started program prints comes before it.
    #[arg(long, conflicts_with = "dry_run")]
    pub json: bool,

    /// Write the line READY=1 to this open descriptor, and close it, when sampling is on
    ///
    /// If the recording ends before that it is closed without a word.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..))]
    pub ready_fd: Option<i32>,

    /// Keep the recorder's process id in this file while it records
    ///
    /// One that is there is replaced if it is empty, or names a process that is gone. It is locked
    /// meanwhile, so that of two recorders one is refused (with code 6); a symbolic link is refused, too,
    /// and what somebody else has put there by the end stays.
    #[arg(long, value_name = "FILE")]
    pub pidfile: Option<PathBuf>,

    /// Say what would be done, and do nothing
    ///
    /// Makes the checks of a recording and prints the steps that would follow: the engine and why it
    /// is this one, what would be mapped where, which thread would be stopped, which signals get a
    /// handler, which files are written under which names. No program is started, no file written,
    /// nothing changed in the process; only to read seccomp filters its threads may be stopped for a
    /// moment. The exit code is the one with which the recording would be refused, or 0.
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

    /// Leave out time spent in the kernel, also where it could be seen (not with --engine timer)
    ///
    /// Timers count all of a thread's CPU time, and cannot tell the kernel's part: where they sample, by
    /// --engine timer or because auto takes them, this changes nothing, and a notice says so.
    #[arg(long, aliases = ["all-user", "exclude-kernel"])]
    pub no_kernel: bool,

    /// Ask the servers of DEBUGINFOD_URLS for debug information that is not installed
    ///
    /// debuginfod-find does it, and keeps what it gets in its cache. Names come late then, for each
    /// file by a minute at most. Servers that say nothing for ten seconds are not asked again.
    #[arg(long)]
    pub debuginfod: bool,

    /// Ask a Java virtual machine (JDK 17 or later) for the names of its compiled methods
    ///
    /// It is asked through its own attach protocol, about every second: that takes a SIGQUIT, which
    /// it handles, and leaves a socket in its /tmp until it ends. Whole stacks need a machine that
    /// was started with -XX:+PreserveFramePointer. The files that it takes, perf-N.map and .attach_pidN
    /// in its /tmp, are removed again, but not by a recorder that is killed by SIGKILL.
    #[arg(long)]
    pub jvm_names: bool,

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

    /// Words of other profilers.
    #[command(flatten)]
    pub aliases: AliasArguments,

    /// Those that have no meaning here.
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
