//! What the running kernel lacks, and what a recording does without it.

use crate::inspect::doctor::Finding;
use crate::proc::{self, KernelVersion, NewerCall};

const SUBJECT: &str = "kernel calls";
/// The first version that tells a tracer where a thread registered its restartable sequences.
const RSEQ_SINCE: KernelVersion = (5, 13);
/// The first version that handles expired timers on the way back to the program.
const TIMERS_SINCE: KernelVersion = (5, 9);

/// Examines the calls that traceprof uses and that are not in every kernel.
pub(super) fn finding() -> Finding {
    let missing = NewerCall::ALL.into_iter().filter(|call| !call.is_permitted());
    of(proc::kernel_version(), &missing.collect::<Vec<_>>())
}

fn of(version: Option<KernelVersion>, missing: &[NewerCall]) -> Finding {
    let is_before = |since| version.is_some_and(|version| version < since);
    let name =
        |what: &str, (major, minor): KernelVersion| format!("{what} (Linux {major}.{minor})");
    if missing.contains(&NewerCall::PidfdOpen) {
        let call = name(NewerCall::PidfdOpen.name(), NewerCall::PidfdOpen.since());
        let seen = format!("without {call} nothing can be recorded");
        return Finding::obstacle(SUBJECT, seen, None);
    }
    let mut without: Vec<_> = missing.iter().map(|call| name(call.name(), call.since())).collect();
    if is_before(RSEQ_SINCE) {
        without.push(name("PTRACE_GET_RSEQ_CONFIGURATION", RSEQ_SINCE));
    }
    if is_before(TIMERS_SINCE) {
        let timers = name("expiries on the way back to the program", TIMERS_SINCE);
        let seen = format!("without {timers} the timer engine may end calls with EINTR");
        return Finding::limit(SUBJECT, seen, None);
    }
    match without.is_empty() {
        true => Finding::fine(SUBJECT, "all that traceprof uses"),
        false => {
            let seen = format!("replaced by others: {}", without.join(", "));
            Finding::fine(SUBJECT, seen)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::doctor::Severity;

    /// Each row of the manual's table is a call, its version, and what happens without it.
    #[test]
    fn the_manual_lists_every_call_with_its_version() {
        let page = include_str!("../../../man/traceprof-permissions.7");
        let calls = NewerCall::ALL.map(|call| (call.name(), call.since()));
        for (name, (major, minor)) in
            calls.into_iter().chain([("PTRACE_GET_RSEQ_CONFIGURATION", RSEQ_SINCE)])
        {
            let row = format!("{name}\\fR\nT}}\t{major}.{minor}\tT{{");
            assert!(page.contains(&row), "{row}");
        }
    }

    #[test]
    fn each_missing_call_is_named_with_its_version() {
        let check = |version, missing: &[NewerCall], state, part: &str| {
            let Finding { state: its, seen, .. } = of(Some(version), missing);
            assert!(its == state && seen.contains(part), "{seen}");
        };
        check((6, 18), &[], Severity::Fine, "all that");
        let populate = [NewerCall::PopulateWrite];
        check((5, 13), &populate, Severity::Fine, "MADV_POPULATE_WRITE (Linux 5.14)");
        check((5, 10), &populate, Severity::Fine, "PTRACE_GET_RSEQ_CONFIGURATION (Linux 5.13)");
        let older = [NewerCall::CloseRange, NewerCall::PopulateWrite];
        check((5, 4), &older, Severity::Limit, "EINTR");
        check((4, 18), &NewerCall::ALL, Severity::Obstacle, "pidfd_open (Linux 5.3)");
        assert_eq!(of(None, &[]).state, Severity::Fine);
    }
}
