//! Known limits and untested environments, for the manual pages.

/// A paragraph of a manual page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KnownLimit {
    /// The subcommands whose pages have it.
    pub(super) actions: &'static [&'static str],
    /// Its subject.
    pub(super) subject: &'static str,
    /// Its text.
    pub(super) text: &'static str,
}

const STOPS: &[&str] = &["record", "stacks", "detach"];
const ATTACHES: &[&str] = &["record", "detach", "doctor"];
const TRACES: &[&str] = &["record", "stacks", "detach", "doctor"];

/// What can go wrong on a machine that supports everything.
pub(super) const LIMITS: [KnownLimit; 4] = [
    KnownLimit {
        actions: STOPS,
        subject: "a tracer that is killed at the wrong moment",
        text: "The kernel lets epoll_wait, and the few calls like it, return EINTR to a thread \
               that wakes for a tracer. traceprof makes such a thread issue its call again before \
               it runs on. A SIGKILL to the tracing process (traceprof stacks, or the guardian of \
               a recording) between the stop and that repair leaves the EINTR to the program. The \
               window was measured as 50 microseconds for one thread and 900 for a detach from a \
               hundred threads. The time that a thread waits for a processor comes on top. This \
               cannot be avoided: only a stop shows that a thread is outside of the agent, and \
               only a tracer can change how the stop ends. A sleep with a time limit that the \
               kernel had restarted before ends in the same way.",
    },
    KnownLimit {
        actions: &["record", "detach"],
        subject: "threads whose stack may not be written",
        text: "In Go, in fibers, and in programs without a C library, nothing may be written below \
               a thread's stack pointer. One system call of some microseconds then has no \
               protection: a SIGKILL to the guardian in these microseconds harms the program.",
    },
    KnownLimit {
        actions: &["record"],
        subject: "signals of the application",
        text: "With --engine perf, the recorder watches for a program that resets SIGTRAP, but \
               cannot prevent it. A sample between the reset and the next check kills the program. \
               The other engines are safe for such programs.",
    },
    KnownLimit {
        actions: &["print"],
        subject: "memory",
        text: "Trees, tables and the summary, also with --json, need memory for the distinct \
               stacks, whatever the number of samples: 300 to 500 bytes for each call of a thread \
               with distinct callers. --inverted without --depth needs as much again for the \
               callers of each function with samples, and for those of every function with \
               --min-percent 0. --timeline needs memory for the depth of the stacks. It also needs \
               24 bytes for each sample of one thread if the trace has wall-clock time or a \
               changed rate, or with --span, --tag, --state, --from, --to or --follow.",
    },
];

/// Environments in which this program was not tested.
pub(super) const UNTRIED: [KnownLimit; 6] = [
    KnownLimit {
        actions: TRACES,
        subject: "kernel.yama.ptrace_scope",
        text: "traceprof reads and reports its levels. It was not tested on a kernel with Yama.",
    },
    KnownLimit {
        actions: TRACES,
        subject: "SELinux and AppArmor, enforcing",
        text: "A policy may deny tracing, or the mapping of executable shared memory. traceprof \
               reports either as the kernel's error.",
    },
    KnownLimit {
        actions: ATTACHES,
        subject: "shadow stacks",
        text: "traceprof refuses a thread that has one, as the kernel reports it. It was not \
               tested on a processor with shadow stacks.",
    },
    KnownLimit {
        actions: ATTACHES,
        subject: "AMX",
        text: "The tiles of a thread that uses them are part of the state that is restored. It was \
               not tested on a processor with AMX.",
    },
    KnownLimit {
        actions: TRACES,
        subject: "kernels but 6.18",
        text: "traceprof checks what an older kernel lacks and works without it. It was not tested \
               on one.",
    },
    KnownLimit {
        actions: STOPS,
        subject: "32-bit hardware and compatibility mode",
        text: "traceprof refuses a 32-bit program, which is tested. A 64-bit program that switches \
               to 32-bit code for a moment (Wine) is stopped elsewhere or again, which is not \
               tested.",
    },
];
