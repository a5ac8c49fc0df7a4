//! What prevents a recording of one process, and what it would see.

use crate::inject::{self, CheckResult, Guardian, InjectError, Permits, Refusal, SeccompReport};
use crate::inspect::doctor::{Examined, Finding, modules, of_concern};
use crate::proc::{self, Namespace, Status};
use crate::record::contract::sampling::Setup;
use crate::record::source::engine::EngineFacts;
use crate::record::target::signals;

/// A period like those of a recording.
const PERIOD_NS: u64 = 5_000_000;

/// Examines a process.
pub(super) fn examine(pid: i32, guardian: &mut Guardian) -> Examined {
    let facts = match inject::read_facts(pid) {
        Ok(facts) => facts,
        Err(refusal) => {
            let findings = vec![refused("process", &refusal, pid)];
            return Examined { pid, name: String::new(), findings };
        }
    };
    let mut findings = vec![process(pid, &facts.status)];
    findings.extend(inject::examine(&facts).map(|checked| of_check(checked, pid)));
    findings.push(filters(&facts, guardian));
    findings.extend([namespaces(pid), dumpable(pid, &facts.status)]);
    findings.extend(sampling(pid, &facts.status));
    if let Ok(mappings) = proc::mappings(pid) {
        findings.extend(modules::findings(pid, &mappings));
    }
    Examined { pid, name: facts.status.name, findings }
}

fn refused(subject: &str, refusal: &Refusal, pid: i32) -> Finding {
    Finding::obstacle(subject, refusal.to_string(), refusal.remedy(pid))
}

fn of_check(checked: CheckResult, pid: i32) -> Finding {
    match checked.outcome {
        Ok(seen) => Finding::fine(checked.subject, seen),
        Err(refusal) => refused(checked.subject, &refusal, pid),
    }
}

fn filters(facts: &inject::ProcessFacts, guardian: &mut Guardian) -> Finding {
    let subject = "seccomp filters";
    match guardian.check_seccomp(facts, Permits::default()) {
        Ok(SeccompReport { seen, no_timers: None }) => Finding::fine(subject, seen),
        Ok(SeccompReport { no_timers: Some(why), .. }) => Finding::limit(subject, why, None),
        Err(InjectError::Refused(refusal)) => refused(subject, &refusal, facts.pid),
        Err(error) => Finding::obstacle(subject, error.to_string(), None),
    }
}

fn process(pid: i32, status: &Status) -> Finding {
    let program = proc::executable(pid).map(|path| format!(", {}", path.display()));
    let seen = format!(
        "uid {}, threads: {}, state {}{}",
        status.uid,
        status.threads,
        status.state,
        program.unwrap_or_default()
    );
    match status.state {
        'T' => Finding::limit(
            "process",
            format!("{seen}: stopped by job control; it is sampled once it continues"),
            Some(format!("kill -CONT {pid}")),
        ),
        _ => Finding::fine("process", seen),
    }
}

/// Compares all namespaces except that of shared memory, which the attach checks.
fn namespaces(pid: i32) -> Finding {
    let mut others = Vec::new();
    for kind in Namespace::ALL.into_iter().filter(|kind| *kind != Namespace::Ipc) {
        match proc::same_namespace(pid, kind) {
            Ok(true) => {}
            Ok(false) => others.push(kind.name()),
            Err(error) => {
                return Finding::limit("namespaces", format!("cannot be seen ({error})"), None);
            }
        }
    }
    match others.is_empty() {
        true => Finding::fine("namespaces", "pid, mnt, user, net: the same"),
        // Files are reached through its root, and ids are translated.
        false => Finding::fine("namespaces", format!("different: {}", others.join(", "))),
    }
}

fn dumpable(pid: i32, status: &Status) -> Finding {
    match proc::is_dumpable(pid, status) {
        Some(true) => Finding::fine("dumpable", "yes"),
        Some(false) => Finding::fine("dumpable", "no: only CAP_SYS_PTRACE may attach"),
        None => Finding::fine("dumpable", "a process of root, for which it does not matter"),
    }
}

/// Examines what decides about the engine, and about the threads that it reaches.
fn sampling(pid: i32, status: &Status) -> Vec<Finding> {
    let setup = Setup { period_ns: PERIOD_NS, kernel: true, ..Setup::default() };
    let gone = |error: std::io::Error| vec![Finding::limit("sampling", error.to_string(), None)];
    let facts = match EngineFacts::gather(pid, false, setup) {
        Ok(facts) => facts,
        Err(error) => return gone(error),
    };
    let concerns = facts.concerns().into_iter();
    // The kernel is the host's, and a running process has no start to ask about.
    let concerns = concerns.filter(|concern| !matches!(concern.subject, "kernel" | "start"));
    let mut findings: Vec<Finding> = concerns.map(of_concern).collect();
    let used = &facts.signals;
    findings.extend([masks(used), timer_signal(used), pending(pid, status), locked(pid, status)]);
    findings
}

fn masks(used: &signals::SignalUse) -> Finding {
    let subject = "signal masks";
    match used.signal_blocked() {
        (0, 0) => Finding::fine(subject, "no thread blocks the sampling signal"),
        (0, some) => Finding::limit(
            subject,
            format!("{some} threads block SIGTRAP and are sampled with another signal"),
            None,
        ),
        (all, some) => Finding::limit(
            subject,
            format!(
                "{all} threads block all signals, and only --engine signal samples them; {some} \
                 more block SIGTRAP"
            ),
            None,
        ),
    }
}

fn timer_signal(used: &signals::SignalUse) -> Finding {
    let subject = "signal of timers";
    match used.choose() {
        Some(signal) => Finding::fine(subject, proc::signal_name(signal)),
        None => Finding::limit(subject, "none: some thread blocks or waits for each signal", None),
    }
}

fn pending(pid: i32, status: &Status) -> Finding {
    let (used, limit) = status.queued;
    let threads = u64::from(status.threads);
    let seen = format!("{used} of {limit} pending signals are in use");
    if used + threads <= limit {
        return Finding::fine("pending signals", seen);
    }
    let seen = format!("{seen}: timers need one for each of {threads} threads");
    let remedy = format!("prlimit --pid {pid} --sigpending={}", 2 * (limit + threads));
    Finding::limit("pending signals", seen, Some(remedy))
}

/// Warns about locked memory, which would lock the segments too; the kernel does not report
/// mlockall.
fn locked(pid: i32, status: &Status) -> Finding {
    let limit = proc::limits(pid).unwrap_or_default().locked_memory;
    let locked = status.locked_kib;
    match limit {
        Some(limit) if locked > 0 => Finding::limit(
            "locked memory",
            format!(
                "{locked} KiB of {}: if the process locks its future memory (mlockall), the attach \
                 may exceed the limit",
                limit >> 10
            ),
            Some(format!("prlimit --pid {pid} --memlock=unlimited")),
        ),
        _ => Finding::fine("locked memory", format!("{locked} KiB")),
    }
}
