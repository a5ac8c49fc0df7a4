//! Looks at a process before it is touched: whether it can be attached to, and if not, why.

use std::fs::File;
use std::io;

use super::arch;
use super::error::Refusal;
use super::guardian::GUARDIAN;
use crate::proc::{self, Status};

const CAP_SYS_PTRACE: u32 = 19;
const STRICT: u32 = 1;

/// What the preflight saw of a process that can be attached to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Its pid as the recorder sees it.
    pub pid: i32,
    /// When it started: `start_time` of the attach plan.
    pub start_time: u64,
    /// Its ids, masks and states.
    pub status: Status,
    /// It is stopped by job control, and will be when the attach is done.
    pub stopped: bool,
}

/// What the user permits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Permits {
    /// Attach although a seccomp filter might kill the target for our system calls.
    pub seccomp_filter: bool,
}

/// Looks at a process with nothing permitted specially. Reads `/proc` only.
pub fn preflight(pid: i32) -> Result<Facts, Refusal> {
    preflight_with(pid, Permits::default())
}

/// As [`preflight`], with what the user permits.
pub fn preflight_with(pid: i32, permits: Permits) -> Result<Facts, Refusal> {
    let facts = look(pid)?;
    check_code(pid, &facts.status)?;
    check_tracer(&facts.status)?;
    check_permission(pid, &facts.status)?;
    let seccomp = strictest_seccomp(pid, &facts.status);
    if seccomp == STRICT {
        return Err(Refusal::SeccompStrict);
    }
    if seccomp > STRICT && !permits.seccomp_filter {
        return Err(Refusal::SeccompFilter);
    }
    if !proc::same_ipc_namespace(pid).map_err(|error| unreadable(pid, &error))? {
        return Err(Refusal::OtherIpcNamespace);
    }
    if proc::frozen(pid) {
        return Err(Refusal::Frozen);
    }
    Ok(facts)
}

/// Looks at a process of which threads are to be stopped and looked at, and nothing else is done to:
/// no call is made in it, so neither its seccomp filters nor its namespaces matter.
pub fn preflight_to_look(pid: i32) -> Result<Facts, Refusal> {
    let facts = look(pid)?;
    check_kind(pid)?;
    check_tracer(&facts.status)?;
    check_permission(pid, &facts.status)?;
    Ok(facts)
}

fn look(pid: i32) -> Result<Facts, Refusal> {
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
    // A leader that left its threads behind is a zombie too.
    if dead && status.threads <= 1 {
        return Err(Refusal::Exited { pid });
    }
    if status.kernel_thread || (!status.has_memory && !dead) {
        return Err(Refusal::KernelThread { pid });
    }
    Ok(Facts { pid, start_time, stopped: status.state == 'T', status })
}

fn check_code(pid: i32, status: &Status) -> Result<(), Refusal> {
    if status.shadow_stack {
        return Err(Refusal::ShadowStack);
    }
    check_kind(pid)
}

fn check_kind(pid: i32) -> Result<(), Refusal> {
    match proc::elf_kind(pid) {
        Ok(kind) if kind.is_64 && kind.machine == arch::MACHINE => Ok(()),
        Ok(kind) => {
            let bits = if kind.is_64 { 64 } else { 32 };
            Err(Refusal::ForeignExecutable {
                kind: format!("{bits}-bit (ELF machine {})", kind.machine),
            })
        }
        // Not permitted to look: the permission check says why. Of a leader that ended there is
        // nothing to look at; its threads are checked when they stop.
        Err(_) => Ok(()),
    }
}

/// A guardian traces for moments only; whether its recording goes on, the claim tells.
fn check_tracer(status: &Status) -> Result<(), Refusal> {
    match status.tracer {
        0 => Ok(()),
        tracer if is_guardian(tracer) => Ok(()),
        tracer => Err(already_traced(tracer)),
    }
}

/// A tracer that lets go again after a moment.
pub(super) fn is_guardian(tracer: i32) -> bool {
    proc::status(tracer).is_ok_and(|status| status.name == GUARDIAN)
}

/// Names the tracer.
pub(super) fn already_traced(tracer: i32) -> Refusal {
    let name = proc::status(tracer).map_or_else(|_| "another program".to_owned(), |s| s.name);
    Refusal::AlreadyTraced { tracer, name }
}

/// Opening `mem` asks the kernel the same question as PTRACE_SEIZE will, without touching anybody.
fn check_permission(pid: i32, status: &Status) -> Result<(), Refusal> {
    let error = match File::open(format!("/proc/{pid}/mem")) {
        Ok(_) => return Ok(()),
        Err(error) => error,
    };
    if error.kind() != io::ErrorKind::PermissionDenied {
        return Err(unreadable(pid, &error));
    }
    let Ok(own) = proc::status(std::process::id() as i32) else { return Err(Refusal::Protected) };
    let capable = own.cap_effective >> CAP_SYS_PTRACE & 1 == 1;
    let same_user = [status.uid, status.euid, status.suid] == [own.uid; 3]
        && [status.gid, status.egid, status.sgid] == [own.gid; 3];
    Err(match yama_scope() {
        scope @ 3 => Refusal::Yama { scope },
        _ if !capable && status.uid != own.uid => Refusal::OtherUser { uid: status.uid },
        scope @ 1..=2 if !capable && same_user => Refusal::Yama { scope },
        _ => Refusal::Protected,
    })
}

fn yama_scope() -> u32 {
    std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

/// Filters are per thread, and the thread to be stopped is not chosen yet.
fn strictest_seccomp(pid: i32, status: &Status) -> u32 {
    let tids = proc::tasks(pid).unwrap_or_default();
    let modes = tids.into_iter().filter_map(|tid| proc::task_status(pid, tid).ok());
    let mut strictest = status.seccomp;
    for mode in modes.map(|status| status.seccomp).filter(|&mode| mode != 0) {
        strictest = if mode == STRICT || strictest == STRICT { STRICT } else { mode };
    }
    strictest
}

fn unreadable(pid: i32, error: &io::Error) -> Refusal {
    match error.kind() {
        io::ErrorKind::NotFound => Refusal::NoSuchProcess { pid },
        _ => Refusal::Unreadable { reason: error.to_string() },
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
        // Where pid 2 is not the kernel's there is nothing to see (a pid namespace).
        if proc::status(2).is_ok_and(|status| status.kernel_thread) {
            assert_eq!(preflight(2), Err(Refusal::KernelThread { pid: 2 }));
        }
        if !nix::unistd::geteuid().is_root() {
            let uid = proc::status(1).unwrap().uid;
            assert_eq!(preflight(1), Err(Refusal::OtherUser { uid }));
        }
    }
}
