//! Every system call that is made in a target: by threads that are led through it, by the agent, by
//! the kernel when a stopped thread goes on.
//!
//! Those of the agent are named where it takes their numbers from. The calls for a program that is
//! held at its start are not among them: it has the recorder's own filters.

use traceprof_abi::calls::{AGENT, Made, nr};

use super::plan::Access;

/// All of them. A call with several forms is named once for each.
pub(super) fn made() -> Vec<Made> {
    let number = |number: i64| number as u64;
    let attach = |access: Access| {
        Made::new("shmat", number(libc::SYS_shmat), &[None, None, Some(access.flags())])
    };
    let led = [
        Made::new("shmdt", number(libc::SYS_shmdt), &[None]),
        // What the kernel makes of a sleep with a time limit that a stop interrupted.
        Made::new("restart_syscall", number(libc::SYS_restart_syscall), &[]),
    ];
    // The actions and timers that the cure takes back are taken with the agent's own calls.
    Access::ALL.into_iter().map(attach).chain(led).chain(AGENT.iter().copied()).collect()
}

/// A call without which there are no timers, and everything else works.
pub(super) fn is_of_timers(call: &Made) -> bool {
    [nr::TIMER_CREATE, nr::TIMER_SETTIME].contains(&call.number)
}
