//! Checks whether a process can be attached to before it is touched, and if not, why.
//!
//! There is one list of checks. An attach reports the first that fails; `doctor` shows all of them.
//!
//! # Invariants
//! - Nothing is changed, and no thread stopped: everything is read from `/proc`.
//!
//! # Does not
//! - read seccomp filters, as threads are stopped for that (`Guardian::check_seccomp`).

use std::fs::File;
use std::io;

use serde::{Deserialize, Serialize};
use traceprof_abi::layout;

use super::arch;
use super::error::InjectError;
use super::refusal::Refusal;
use super::target::claim::Claim;
use super::target::tracer::{already_traced, is_guardian, titled};
use super::yama::yama_refusal;
use crate::proc::{self, Namespace, Status};

const CAP_SYS_PTRACE: u32 = 19;
const STRICT: u32 = 1;

/// The facts about a process that decide whether it can be attached to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessFacts {
    /// The pid as the recorder sees it.
    pub pid: i32,
    /// The start time of the process: `start_time` of the attach plan.
    pub start_time: u64,
    /// The process's ids, masks and states.
    pub status: Status,
    /// Whether job control has stopped the process. The attach leaves it stopped.
    pub stopped: bool,
}

/// The outcome of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckResult {
    /// The checked condition.
    pub subject: &'static str,
    /// The observation, or the reason why it prevents an attach.
    pub outcome: Result<String, Refusal>,
}

/// A condition of an attach: its name, and the function that checks it.
type Check = (&'static str, fn(&ProcessFacts) -> Result<String, Refusal>);

/// All checks. An attach reports the first one that fails.
const CHECKS: [Check; 9] = [
    ("shadow stack", check_shadow_stack),
    ("program", check_code),
    ("tracer", check_tracer),
    ("permission to trace", check_permission),
    ("seccomp mode", check_seccomp),
    ("ipc namespace", check_ipc),
    ("freezer", check_freezer),
    ("room", check_room),
    ("other recorder", check_claim),
];

/// Checks a process. Returns a refusal if there is a reason not to attach to it.
pub fn preflight(pid: i32) -> Result<ProcessFacts, Refusal> {
    let facts = read_facts(pid)?;
    for checked in examine(&facts) {
        checked.outcome?;
    }
    Ok(facts)
}

/// Runs the checks one after the other.
pub fn examine(facts: &ProcessFacts) -> impl Iterator<Item = CheckResult> {
    CHECKS.iter().map(|(subject, check)| CheckResult { subject, outcome: check(facts) })
}

/// Checks a process whose threads are to be stopped and copied, and nothing else. Neither seccomp
/// filters nor namespaces matter, because the process makes no system call for that.
pub fn preflight_to_capture(pid: i32) -> Result<ProcessFacts, Refusal> {
    let facts = read_facts(pid)?;
    for check in [check_code, check_tracer, check_permission] {
        check(&facts)?;
    }
    Ok(facts)
}

/// Reads the facts that the other checks need. Returns a refusal if the process cannot be traced.
pub fn read_facts(pid: i32) -> Result<ProcessFacts, Refusal> {
    if pid <= 0 {
        return Err(Refusal::NoSuchProcess { pid });
    }
    let status = proc::status(pid).map_err(|error| unreadable(pid, &error))?;
    if status.tgid != pid {
        return Err(Refusal::NotAProcess { tid: pid, pid: status.tgid });
    }
    if status.tgid == std::process::id() as i32 {
        return Err(Refusal::Own);
    }
    let start_time = proc::start_time(pid).map_err(|error| unreadable(pid, &error))?;
    let dead = proc::has_ended(status.state);
    // A leader that exited before its threads is a zombie, too.
    if dead && status.threads <= 1 {
        return Err(Refusal::Exited { pid });
    }
    // Older kernels do not report kernel threads as such; all kernel threads are children of pid 2.
    let is_kernels = !status.has_memory && (pid == 2 || status.parent == 2);
    if status.kernel_thread || is_kernels {
        return Err(Refusal::KernelThread { pid });
    }
    if !status.has_memory && !dead {
        // The process was killed, and is still exiting.
        return Err(Refusal::Exited { pid });
    }
    Ok(ProcessFacts { pid, start_time, stopped: status.state == 'T', status })
}

fn check_shadow_stack(facts: &ProcessFacts) -> Result<String, Refusal> {
    if facts.status.shadow_stack { Err(Refusal::ShadowStack) } else { Ok("none".to_owned()) }
}

fn check_code(facts: &ProcessFacts) -> Result<String, Refusal> {
    match proc::elf_kind(facts.pid) {
        Ok(kind) if kind.is_64 && kind.machine == arch::MACHINE => {
            Ok("64-bit, for this machine".to_owned())
        }
        Ok(kind) => {
            let bits = if kind.is_64 { 64 } else { 32 };
            Err(Refusal::ForeignExecutable {
                kind: format!("{bits}-bit (ELF machine {})", kind.machine),
            })
        }
        // If the executable is not readable, the permission check reports the reason. A leader that
        // has exited has no executable; its threads are checked when they stop.
        Err(error) => Ok(format!("not readable ({error})")),
    }
}

/// A guardian traces for moments only. The claim shows whether its recording continues.
fn check_tracer(facts: &ProcessFacts) -> Result<String, Refusal> {
    match facts.status.tracer {
        0 => Ok("none".to_owned()),
        tracer if is_guardian(tracer) => {
            Ok(format!("a guardian (pid {tracer}), which detaches soon"))
        }
        _ => Err(already_traced(&facts.status)),
    }
}

/// Opening `mem` makes the kernel run the same check as PTRACE_SEIZE, without touching the process.
fn check_permission(facts: &ProcessFacts) -> Result<String, Refusal> {
    let ProcessFacts { pid, status, .. } = facts;
    let error = match File::open(format!("/proc/{pid}/mem")) {
        Ok(_) => return Ok("granted".to_owned()),
        Err(error) => error,
    };
    if error.kind() != io::ErrorKind::PermissionDenied {
        return Err(unreadable(*pid, &error));
    }
    let Ok(own) = proc::status(std::process::id() as i32) else { return Err(Refusal::Protected) };
    let capable = own.cap_effective >> CAP_SYS_PTRACE & 1 == 1;
    let same_user = [status.uid, status.euid, status.suid] == [own.uid; 3]
        && [status.gid, status.egid, status.sgid] == [own.gid; 3];
    Err(match yama_refusal() {
        Some(off @ Refusal::Yama { scope: 3.. }) => off,
        _ if !capable && status.uid != own.uid => {
            Refusal::OtherUser { target: titled(status), uid: status.uid }
        }
        Some(refusal) if same_user => refusal,
        _ if capable => Refusal::ProtectedFromRoot { pid: *pid },
        _ => Refusal::Protected,
    })
}

/// Each thread has its own seccomp mode, and the thread to stop is not chosen yet.
fn check_seccomp(facts: &ProcessFacts) -> Result<String, Refusal> {
    let mut modes = Vec::new();
    for tid in proc::tasks(facts.pid).map_err(|error| unreadable(facts.pid, &error))? {
        match proc::task_status(facts.pid, tid) {
            Ok(status) => modes.extend(Some(status.seccomp).filter(|&mode| mode != 0)),
            Err(error) if proc::is_gone(&error) => {}
            // A mode that is not seen could be the one in which our calls kill the target.
            Err(error) => return Err(unreadable(facts.pid, &error)),
        }
    }
    if modes.contains(&STRICT) || facts.status.seccomp == STRICT {
        return Err(Refusal::SeccompStrict);
    }
    Ok(match modes.len() {
        0 => "no filter".to_owned(),
        1 => "1 thread with a filter".to_owned(),
        threads => format!("{threads} threads with filters"),
    })
}

fn check_ipc(facts: &ProcessFacts) -> Result<String, Refusal> {
    match proc::same_namespace(facts.pid, Namespace::Ipc) {
        Ok(true) => Ok("the same".to_owned()),
        Ok(false) => Err(Refusal::OtherIpcNamespace),
        Err(error) => Err(unreadable(facts.pid, &error)),
    }
}

fn check_freezer(facts: &ProcessFacts) -> Result<String, Refusal> {
    refuse_frozen(facts.pid).map(|()| "not frozen".to_owned())
}

/// Returns a refusal if the process is frozen. One of its threads that is made to run something
/// would not stop again before the thaw.
pub(super) fn refuse_frozen(pid: i32) -> Result<(), Refusal> {
    let freezer = proc::freezer(pid);
    freezer.map_or(Ok(()), |it| Err(Refusal::Frozen { thaw: it.thaw_command() }))
}

/// Checks for room for three more mappings and their address space.
fn check_room(facts: &ProcessFacts) -> Result<String, Refusal> {
    const SEGMENTS: usize = 3;
    const SEGMENTS_LEN: u64 = layout::CODE_LEN + layout::TABLES_LEN + layout::DATA_LEN;
    // Another check refuses a process that is not readable.
    let limits = proc::limits(facts.pid).unwrap_or_default();
    if let Some(limit) = limits.address_space
        && facts.status.size_kib * 1024 + SEGMENTS_LEN > limit
    {
        return Err(Refusal::NoAddressSpace { limit, needed: SEGMENTS_LEN });
    }
    let Ok(mappings) = proc::mappings(facts.pid) else { return Ok("not readable".to_owned()) };
    let used = mappings.iter().filter(|mapping| mapping.path != "[vsyscall]").count();
    let limit = proc::sysctl("vm.max_map_count").and_then(|limit| usize::try_from(limit).ok());
    // The kernel permits one mapping more than the limit.
    if limit.is_some_and(|limit| used + SEGMENTS > limit + 1) {
        return Err(Refusal::TooManyMappings { used });
    }
    let limit = limit.map_or_else(String::new, |limit| format!(" of {limit}"));
    Ok(format!("{used}{limit} mappings"))
}

/// Takes the claim that the attach will take, and releases it again.
fn check_claim(facts: &ProcessFacts) -> Result<String, Refusal> {
    match Claim::on(facts.pid, facts.start_time) {
        Ok(_) => Ok("none".to_owned()),
        Err(InjectError::Refused(refusal)) => Err(refusal),
        Err(InjectError::Gone) => Err(Refusal::NoSuchProcess { pid: facts.pid }),
        Err(error) => Err(Refusal::Unreadable { reason: error.to_string() }),
    }
}

fn unreadable(pid: i32, error: &io::Error) -> Refusal {
    match proc::is_gone(error) {
        true => Refusal::NoSuchProcess { pid },
        false => Refusal::Unreadable { reason: format!("{error}; {}", proc::advice(error)) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_say_what_the_process_is() {
        assert_eq!(preflight(i32::MAX), Err(Refusal::NoSuchProcess { pid: i32::MAX }));
        assert_eq!(preflight(0), Err(Refusal::NoSuchProcess { pid: 0 }));
        assert_eq!(preflight(std::process::id() as i32), Err(Refusal::Own));
        // In a pid namespace pid 2 may be an ordinary process, or none.
        if proc::status(2).is_ok_and(|status| status.kernel_thread) {
            assert_eq!(preflight(2), Err(Refusal::KernelThread { pid: 2 }));
        }
        if !nix::unistd::geteuid().is_root() {
            let status = proc::status(1).unwrap();
            let (target, uid) = (format!("process 1 ({})", status.name), status.uid);
            assert_eq!(preflight(1), Err(Refusal::OtherUser { target, uid }));
        }
    }
}
