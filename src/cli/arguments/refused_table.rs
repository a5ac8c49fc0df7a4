//! Options of other profilers that `record` refuses, and what to use instead.

/// Whether an option of another profiler takes the next word as its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    /// It does not.
    Nothing,
    /// It does, unless the next word is an option.
    Word,
    /// The long name does, the letter does not.
    WordOfName,
}

impl Takes {
    /// Whether the option takes this word.
    pub(super) fn is_its(self, word: &str) -> bool {
        self != Self::Nothing && !word.starts_with('-')
    }
}

/// An option that is refused.
#[derive(Debug)]
pub(super) struct RefusedOption {
    /// Its letter.
    pub(super) short: Option<char>,
    /// Its name.
    pub(super) long: &'static str,
    /// Its other names.
    pub(super) also: &'static [&'static str],
    /// Whether it takes the next word.
    pub(super) takes: Takes,
    /// What to do instead.
    pub(super) advice: &'static str,
    /// The command line does what is meant without the option.
    pub(super) is_idle: bool,
}

const fn idle(short: Option<char>, long: &'static str, advice: &'static str) -> RefusedOption {
    RefusedOption { short, long, also: &[], takes: Takes::Nothing, advice, is_idle: true }
}

const fn other(short: Option<char>, long: &'static str, advice: &'static str) -> RefusedOption {
    RefusedOption { is_idle: false, ..idle(short, long, advice) }
}

impl RefusedOption {
    const fn also(self, also: &'static [&'static str]) -> Self {
        Self { also, ..self }
    }

    const fn takes(self, takes: Takes) -> Self {
        Self { takes, ..self }
    }
}

const STACKS: &str =
    "call stacks are always recorded, with the unwind data of each module: leave it out";
const DEPTH: &str = "stacks are recorded to their roots: leave it out, and limit the depth of the \
                     view: traceprof print --depth N FILE";
const FORMAT: &str = "record writes a trace, which --output names; for another format convert it: \
                      traceprof export FILE --format flamegraph (or pprof, firefox, speedscope, \
                      folded)";
const THREADS: &str = "all threads are recorded, each on its own; choose in the view: \
                       traceprof print --thread NAME FILE";
const KIND: &str = "only time is measured; for waits on locks give --mode wall";
const CHOICE: &str = "all stacks are recorded; choose in the view: traceprof print --thread NAME \
                      --from 5s --to 10s FILE";
const BRANCHES: &str = "branches are not recorded, stacks always are: leave it out";
const SHOWN: &str = "nothing is opened or served: leave it out; traceprof view FILE writes a page";
const LATER: &str = "the view chooses how functions are named: leave it out; traceprof print \
                     --verbose FILE has files and lines";
const RING: &str =
    "to keep the last minutes only give --ring 5m; SIGUSR2 to the recorder saves them";

/// All refused options.
pub(super) const REFUSED: &[RefusedOption] = &[
    idle(Some('g'), "call-graph", STACKS).takes(Takes::WordOfName),
    idle(None, "cstack", STACKS).takes(Takes::Word),
    idle(Some('n'), "native", STACKS),
    idle(Some('j'), "max-depth", DEPTH).takes(Takes::Word).also(&[
        "jstackdepth",
        "max-stack",
        "branch-filter",
    ]),
    other(
        Some('a'),
        "all-cpus",
        "the system is not recorded as a whole, only named processes: give --pid PID",
    )
    .also(&["all"]),
    other(None, "cpu", "processes are recorded on all processors: give --pid PID or --name REGEX"),
    other(Some('c'), "count", "the period is a time: give a rate, --freq 999"),
    other(Some('t'), "tid", THREADS),
    other(None, "per-thread", THREADS),
    other(None, "threads", THREADS),
    other(None, "main-thread-only", THREADS),
    other(Some('f'), "format", FORMAT),
    other(None, "file", FORMAT),
    idle(None, "nonblocking", "no thread is stopped to be sampled while it runs: leave it out"),
    other(
        None,
        "gil",
        "all samples are recorded, and each says whether its thread held the GIL; choose in the \
         view: traceprof print --gil FILE",
    ),
    idle(None, "on-cpu", "mode cpu is the default: leave it out"),
    other(None, "off-cpu", "give --mode cpu,wall, which has both, or --mode wall"),
    other(
        None,
        "all-kernel",
        "kernel time is attributed to its callers, never alone: give --pid PID; to leave out \
         kernel time, give --no-kernel",
    ),
    idle(None, "locals", "values of variables are never read: leave it out"),
    idle(None, "full-filenames", LATER).also(&["nolineno", "function"]),
    other(Some('u'), "uid", "name the processes of a user: give --pid \"$(pgrep -d, -u USER)\""),
    other(
        Some('G'),
        "cgroup",
        "name the processes of a control group: give --pid \"$(paste -sd, \
         /sys/fs/cgroup/NAME/cgroup.procs)\"",
    ),
    other(Some('D'), "delay", "start later: sleep 5 && traceprof record --pid PID"),
    other(
        None,
        "inherit",
        "new threads are always recorded; for child processes give --subprocesses",
    ),
    idle(None, "mmap-pages", "the recorder chooses the size of its buffers: leave it out")
        .takes(Takes::Word),
    other(Some('S'), "snapshot", RING).also(&["overwrite", "tail-synthesize"]),
    other(
        None,
        "control",
        "a signal ends a recording, and --ready-fd reports its start: give --pidfile FILE, and \
         later kill -INT \"$(cat FILE)\"",
    ),
    other(None, "timestamp-filename", "the name may hold the time: give --output x-%t.trace"),
    idle(Some('b'), "branch-any", BRANCHES),
    idle(Some('v'), "verbose", "the closing report is complete: leave it out"),
    idle(None, "save-only", SHOWN).also(&["no-open"]),
    idle(None, "presymbolicate", "names are always part of the trace: leave it out")
        .also(&["unstable-presymbolicate"]),
    other(None, "alloc", KIND).also(&["lock", "live", "nativemem", "nativelock"]),
    other(Some('I'), "include", CHOICE),
    other(Some('X'), "exclude", CHOICE).also(&["filter"]),
    other(None, "timeout", "give --duration 30s"),
];
