//! The system calls that an injection needs in a target: those of stepped threads, of the agent,
//! and of the kernel when a stopped thread continues.
//!
//! The agent's calls come from the list that the agent takes its numbers from. The calls of a
//! program that is held at its start are not included: that program has the recorder's own filters.

use traceprof_abi::calls::{AGENT, SyscallPattern, nr};

use crate::inject::plan::Access;

/// Returns all required calls. A call with several forms appears once for each form.
pub(super) fn all() -> Vec<SyscallPattern> {
    let number = |number: i64| number as u64;
    let attach = |access: Access| {
        SyscallPattern::new("shmat", number(libc::SYS_shmat), &[None, None, Some(access.flags())])
    };
    let others = [
        SyscallPattern::new("shmdt", number(libc::SYS_shmdt), &[None]),
        // The kernel restarts a sleep with a timeout after a stop.
        SyscallPattern::new("restart_syscall", number(libc::SYS_restart_syscall), &[]),
    ];
    // The restore uses the agent's own calls for actions and timers.
    Access::ALL.into_iter().map(attach).chain(others).chain(AGENT.iter().copied()).collect()
}

/// Whether only timers need this call.
pub(super) fn is_for_timers(call: &SyscallPattern) -> bool {
    [nr::TIMER_CREATE, nr::TIMER_SETTIME].contains(&call.number)
}
