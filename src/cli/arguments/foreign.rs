//! Options of other profilers that have no meaning here, and what is to be done instead.

/// What the next word is to an option elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    /// None of its business.
    Nothing,
    /// Its value, unless it is an option itself.
    Word,
    /// The same of its name; the letter has none.
    WordOfName,
}

impl Takes {
    /// Whether it is this one's.
    pub(super) fn is_its(self, word: &str) -> bool {
        self != Self::Nothing && !word.starts_with('-')
    }
}

/// An option that is refused.
#[derive(Debug)]
pub(super) struct Refused {
    /// Its letter.
    pub(super) short: Option<char>,
    /// Its name,
    pub(super) long: &'static str,
    /// and what else it is called.
    pub(super) also: &'static [&'static str],
    pub(super) takes: Takes,
    /// What to do instead.
    pub(super) advice: &'static str,
    /// Nothing is to be done: without it the rest does what is meant.
    pub(super) is_idle: bool,
}

const fn idle(short: Option<char>, long: &'static str, advice: &'static str) -> Refused {
    Refused { short, long, also: &[], takes: Takes::Nothing, advice, is_idle: true }
}

const fn other(short: Option<char>, long: &'static str, advice: &'static str) -> Refused {
    Refused { is_idle: false, ..idle(short, long, advice) }
}

impl Refused {
    const fn also(self, also: &'static [&'static str]) -> Self {
        Self { also, ..self }
    }

    const fn takes(self, takes: Takes) -> Self {
        Self { takes, ..self }
    }
}

const STACKS: &str =
    "call stacks are always recorded, and unwound by what each module has: leave it out";
const DEPTH: &str = "stacks are recorded to their roots: leave it out, and fold what is deep when you \
                     look: traceprof print --depth N FILE";
const FORMAT: &str = "record writes a trace, which --output names; for another format convert it: \
                      traceprof export FILE --format flamegraph (or pprof, firefox, speedscope, folded)";
const THREADS: &str = "all threads are recorded, each on its own; choose when you look: \
                       traceprof print --thread NAME FILE";
const KIND: &str = "only time is measured; for locks that are waited for give --mode wall";
const CHOICE: &str = "all stacks are recorded; choose when you look: traceprof print --thread NAME \
                      --from 5s --to 10s FILE";
const BRANCHES: &str = "branches are not recorded, stacks are always: leave it out";
const SHOWN: &str = "nothing is opened or served: leave it out; traceprof view FILE writes a page";
const LATER: &str = "how functions are named is chosen when you look: leave it out; traceprof print \
                     --verbose FILE has files and lines";
const RING: &str =
    "to keep the last minutes only give --ring 5m; SIGUSR2 to the recorder saves them";

/// All of them.
pub(super) const REFUSED: &[Refused] = &[
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
        "the whole system is not recorded, only processes that are named: give --pid PID",
    )
    .also(&["all"]),
    other(
        None,
        "cpu",
        "processes are recorded on whichever processor they run: give --pid PID or --name REGEX",
    ),
    other(Some('c'), "count", "the period is a time: give --interval 1ms, or a rate, --freq 999"),
    other(Some('t'), "tid", THREADS),
    other(None, "per-thread", THREADS),
    other(None, "threads", THREADS),
    other(None, "main-thread-only", THREADS),
    other(Some('f'), "format", FORMAT),
    other(None, "file", FORMAT),
    idle(None, "nonblocking", "no thread is stopped to be sampled while it runs: leave it out"),
    idle(
        None,
        "gil",
        "the lock of an interpreter is not looked at; in mode cpu, which is the default, threads that \
         wait for it have no samples: leave it out",
    ),
    idle(None, "on-cpu", "mode cpu is the default: leave it out"),
    other(None, "off-cpu", "give --mode cpu,wall, which has both, or --mode wall"),
    other(
        None,
        "all-kernel",
        "the kernel is seen below what called it, never alone: give --pid PID; without time in the \
         kernel, --no-kernel",
    ),
    idle(None, "locals", "values of variables are never read: leave it out"),
    idle(None, "full-filenames", LATER).also(&["nolineno", "function"]),
    other(
        Some('u'),
        "uid",
        "give the processes of a user by their ids: traceprof record --pid \"$(pgrep -d, -u USER)\"",
    ),
    other(
        Some('G'),
        "cgroup",
        "give the processes of a control group by their ids: traceprof record --pid \"$(paste -sd, \
         /sys/fs/cgroup/NAME/cgroup.procs)\"",
    ),
    other(Some('D'), "delay", "begin later: sleep 5 && traceprof record --pid PID"),
    idle(
        None,
        "no-inherit",
        "new threads are always recorded, and children only with --subprocesses: leave it out",
    ),
    other(None, "inherit", "new threads are always recorded; for children give --subprocesses"),
    idle(None, "mmap-pages", "the recorder finds the size of its buffers itself: leave it out")
        .takes(Takes::Word),
    other(Some('S'), "snapshot", RING).also(&["overwrite", "tail-synthesize"]),
    other(
        None,
        "control",
        "a signal ends a recording, and its begin is told to --ready-fd: give --pidfile FILE, and later \
         kill -INT \"$(cat FILE)\"",
    ),
    other(None, "timestamp-filename", "give the name a place for the time: --output x-%t.trace"),
    idle(Some('b'), "branch-any", BRANCHES),
    idle(
        Some('v'),
        "verbose",
        "the closing report says all there is, --stats a little more: leave it out",
    ),
    idle(None, "save-only", SHOWN).also(&["no-open"]),
    idle(None, "presymbolicate", "names are always part of the trace: leave it out")
        .also(&["unstable-presymbolicate"]),
    other(None, "alloc", KIND).also(&["lock", "live", "nativemem", "nativelock"]),
    other(Some('I'), "include", CHOICE),
    other(Some('X'), "exclude", CHOICE).also(&["filter"]),
    other(None, "timeout", "give --duration 30s"),
];
