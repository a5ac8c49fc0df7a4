//! What a user should know beyond the options: what is not promised, and what was never tried.

/// A paragraph of a manual page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limit {
    /// The subcommands whose pages have it.
    pub(super) actions: &'static [&'static str],
    /// What it is about.
    pub(super) subject: &'static str,
    /// What is to be known.
    pub(super) text: &'static str,
}

const STOPS: &[&str] = &["record", "stacks", "detach"];
const ATTACHES: &[&str] = &["record", "detach", "doctor"];

/// What can go wrong although all is as it should be.
pub(super) const LIMITS: [Limit; 4] = [
    Limit {
        actions: STOPS,
        subject: "a tracer that is killed at the wrong moment",
        text: "The kernel has epoll_wait, and the few calls like it, return EINTR to a thread that is \
               woken for a tracer; traceprof has such a thread issue its call again before it runs. A \
               SIGKILL to the process that traces (traceprof stacks, or the guardian of a recording) \
               between the request and that repair leaves the EINTR to the program. Measured were 50 \
               microseconds for one thread and 900 for the hundred of a detach; a thread that waits for \
               a processor adds that time. Nothing else can be done about it: only a stop shows that \
               a thread is outside of the agent, and only a tracer can change what the stop ends. A \
               sleep with a time limit that the kernel had restarted before is ended in the same way if \
               its thread is led just then.",
    },
    Limit {
        actions: &["record", "detach"],
        subject: "threads whose stack may not be written",
        text: "Where nothing may be written below a thread's stack pointer (Go, fibers), and in programs \
               without any C library, one system call of some microseconds has nothing behind it: a \
               SIGKILL to the guardian in just these microseconds hurts the program.",
    },
    Limit {
        actions: &["record"],
        subject: "signals of the application",
        text: "A program that resets SIGTRAP while it is recorded with --engine perf is watched for that, \
               not kept from it: a hit that comes between the reset and the next look ends it. The timer \
               engine is safe for it.",
    },
    Limit {
        actions: &["print"],
        subject: "memory",
        text: "Trees, tables and the summary need memory for the distinct stacks, whatever the number of \
               samples: 300 to 500 bytes for each call of a thread that has other callers than the \
               others, with --json too. --inverted without --depth needs the same again for the callers \
               of each function in which samples were taken, with --min-percent 0 for all of them: at \
               most one for each step of each distinct stack. --timeline needs memory for the depth of \
               the stacks only, and where there is wall clock time, the rate changed or samples are \
               chosen by what or when they are (--span, --tag, --state, --from, --to, --follow) 24 bytes \
               for each sample of one thread.",
    },
];

/// What the machines that this program is tested on cannot show.
pub(super) const UNTRIED: [Limit; 6] = [
    Limit {
        actions: &["record", "stacks", "detach", "doctor"],
        subject: "kernel.yama.ptrace_scope",
        text: "Its levels are read, and told of; no kernel with Yama was at hand.",
    },
    Limit {
        actions: &["record", "stacks", "detach", "doctor"],
        subject: "SELinux and AppArmor, enforcing",
        text: "A policy may deny the tracing, or the mapping of executable shared memory. Either is \
               reported as the kernel's error.",
    },
    Limit {
        actions: ATTACHES,
        subject: "shadow stacks",
        text: "A thread that has one is refused, by what the kernel says of it; no processor with them \
               was at hand.",
    },
    Limit {
        actions: ATTACHES,
        subject: "AMX",
        text: "The tiles of a thread that uses them are part of the state that is put back; no processor \
               with them was at hand.",
    },
    Limit {
        actions: &["record", "stacks", "detach", "doctor"],
        subject: "kernels but 6.18",
        text: "What older ones lack is looked for and done without; none of them was run.",
    },
    Limit {
        actions: &["record", "stacks", "detach"],
        subject: "32-bit hardware and compatibility mode",
        text: "A 32-bit program is refused, which is tested; a 64-bit one that changes to 32-bit code for \
               a moment (Wine) is stopped elsewhere or again, which is not.",
    },
];
