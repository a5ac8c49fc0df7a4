//! Every system call that is made in a target: by threads that are stepped, by the agent, and by
//! the kernel when a stopped thread continues.
//!
//! The agent's calls come from the list that the agent takes its numbers from. The calls of a
//! program that is held at its start are not among them: it has the recorder's own filters.

use traceprof_abi::calls::{AGENT, Made, nr};

use crate::inject::plan::Access;

/// All required calls; a call with several forms appears once for each.
pub(super) fn all() -> Vec<Made> {
    let number = |number: i64| number as u64;
    let attach = |access: Access| {
        Made::new("shmat", number(libc::SYS_shmat), &[None, None, Some(access.flags())])
    };
    let others = [
        Made::new("shmdt", number(libc::SYS_shmdt), &[None]),
        // The kernel's restart of a sleep with a time limit after a stop.
        Made::new("restart_syscall", number(libc::SYS_restart_syscall), &[]),
    ];
    // The restore uses the agent's own calls for actions and timers.
    Access::ALL.into_iter().map(attach).chain(others).chain(AGENT.iter().copied()).collect()
}

/// Whether only timers need this call.
pub(super) fn is_for_timers(call: &Made) -> bool {
    [nr::TIMER_CREATE, nr::TIMER_SETTIME].contains(&call.number)
}
