//! What the host permits this user, whichever process is recorded.

use crate::inject;
use crate::inspect::doctor::{Finding, check_proc, kernel_calls, of_concern};
use crate::proc::{self, KernelVersion, Status};
use crate::record::contract::sampling::Setup;
use crate::record::source::engine::{EngineFacts, Gravity};
use crate::record::source::kernel;
use crate::record::target::shm;

/// Capabilities that make a difference: number, name and purpose.
const CAPABILITIES: [(u32, &str, &str); 6] = [
    (19, "CAP_SYS_PTRACE", "attach to processes of others"),
    (38, "CAP_PERFMON", "perf events whatever perf_event_paranoid says"),
    (21, "CAP_SYS_ADMIN", "read seccomp filters; perf events on old kernels"),
    (12, "CAP_NET_ADMIN", "the CPU time of each thread that ends"),
    (23, "CAP_SYS_NICE", "shorter stops on a busy machine"),
    (40, "CAP_CHECKPOINT_RESTORE", "files that the target deleted or replaced"),
];
/// A period like those of a recording.
const PERIOD_NS: u64 = 5_000_000;
/// The size of a signal frame for which ordinary thread stacks always have room.
const FRAME_LEN_USUAL: u64 = 4096;

/// Returns everything that is known without a target.
pub(super) fn findings() -> Vec<Finding> {
    let own = std::process::id() as i32;
    let status = proc::status(own).unwrap_or_default();
    let mut findings = vec![user(&status), capabilities(&status), proc_folder(), yama(&status)];
    let setup = Setup { period_ns: PERIOD_NS, kernel: true, ..Setup::default() };
    match EngineFacts::gather(own, false, setup) {
        Ok(facts) => {
            let general = facts.concerns().into_iter();
            let general = general.filter(|concern| concern.gravity < Gravity::Danger);
            findings.extend(general.map(of_concern));
        }
        Err(error) => findings.push(Finding::limit("perf events", error.to_string(), None)),
    }
    findings.extend([
        kernel_calls::finding(),
        paranoia(&status),
        kernel_time(own, setup),
        kernel_functions(own, setup),
        filters(&status),
        user_namespace(),
        shared_memory(),
        processor(),
    ]);
    findings
}

fn user(status: &Status) -> Finding {
    let Status { uid, euid, .. } = status;
    let seen = if uid == euid { format!("uid {uid}") } else { format!("uid {uid}, euid {euid}") };
    Finding::fine("user", seen)
}

fn has(status: &Status, capability: u32) -> bool {
    status.cap_effective >> capability & 1 == 1
}

fn capabilities(status: &Status) -> Finding {
    let last = proc::sysctl("kernel.cap_last_cap").unwrap_or(i64::MAX);
    let known = CAPABILITIES.iter().filter(|(number, ..)| i64::from(*number) <= last);
    let (held, missing): (Vec<_>, Vec<_>) = known.partition(|(number, ..)| has(status, *number));
    let names = held.iter().map(|(_, name, _)| *name).collect::<Vec<_>>().join(", ");
    let absent = missing.iter().map(|(_, name, what)| format!("{name} ({what})"));
    let absent = absent.collect::<Vec<_>>().join(", ");
    match (held.is_empty(), missing.is_empty()) {
        (_, true) => Finding::fine("capabilities", names),
        (true, _) => Finding::fine("capabilities", format!("none; for more: {absent}")),
        (false, _) => Finding::fine("capabilities", format!("{names}; for more: {absent}")),
    }
}

fn proc_folder() -> Finding {
    match check_proc() {
        Ok(()) => Finding::fine("/proc", "of this pid namespace"),
        Err(error) => {
            let remedy = "unshare --mount-proc traceprof doctor".to_owned();
            Finding::obstacle("/proc", error.text(), Some(remedy))
        }
    }
}

fn yama(status: &Status) -> Finding {
    const CAP_SYS_PTRACE: u32 = 19;
    let Some(scope) = proc::sysctl("kernel.yama.ptrace_scope") else {
        return Finding::fine("yama", "not part of this kernel");
    };
    let seen = match scope {
        0 => "0: attach to all of your own processes",
        1 => "1: attach only to your own children, without CAP_SYS_PTRACE",
        2 => "2: attach with CAP_SYS_PTRACE only, to own children as well",
        _ => "3: no attach until the next boot",
    };
    let seen = format!("kernel.yama.ptrace_scope is {seen}");
    let refusal = inject::Refusal::Yama { scope: inject::yama_scope() };
    match scope {
        0 => Finding::fine("yama", seen),
        1 | 2 if has(status, CAP_SYS_PTRACE) => Finding::fine("yama", seen),
        1 | 2 => Finding::limit("yama", seen, refusal.remedy(0)),
        _ => Finding::obstacle("yama", seen, None),
    }
}

fn paranoia(status: &Status) -> Finding {
    const CAP_SYS_ADMIN: u32 = 21;
    const CAP_PERFMON: u32 = 38;
    let subject = "perf_event_paranoid";
    let Some(level) = proc::sysctl("kernel.perf_event_paranoid") else {
        return Finding::limit(subject, "this kernel has no perf events", None);
    };
    // Kernels before 5.8 know only the older capability.
    let privilege = [(CAP_PERFMON, "CAP_PERFMON"), (CAP_SYS_ADMIN, "CAP_SYS_ADMIN")];
    let held = privilege.into_iter().find(|(capability, _)| has(status, *capability));
    let remedy = |level: i32| Some(format!("sysctl kernel.perf_event_paranoid={level}"));
    if let Some((_, name)) = held {
        return Finding::fine(subject, format!("{level}, and {name} passes it"));
    }
    match level {
        ..=1 => Finding::fine(subject, format!("{level}: perf events, time in the kernel too")),
        2 => Finding::fine(subject, "2: perf events, but not of time in the kernel"),
        _ => Finding::limit(subject, format!("{level}: no perf events for this user"), remedy(2)),
    }
}

fn kernel_time(own: i32, setup: Setup) -> Finding {
    /// The first version with events that end at an exec.
    const EVENTS_SINCE: KernelVersion = (5, 13);
    if kernel::is_permitted(own, setup) {
        return Finding::fine("time in the kernel", "perf_event_open samples it");
    }
    let seen = "perf events cannot sample it; with timers it counts at the system call";
    let is_old = proc::kernel_version().is_some_and(|version| version < EVENTS_SINCE);
    let remedy = (!is_old).then(|| "sysctl kernel.perf_event_paranoid=1".to_owned());
    Finding::limit("time in the kernel", seen, remedy)
}

/// Whether samples show the kernel's own functions, and where threads sleep in it.
fn kernel_functions(own: i32, setup: Setup) -> Finding {
    let subject = "kernel functions";
    let frames = kernel::shown(own, setup);
    let asleep = match proc::kernel_stack(own, own) {
        Ok(_) => "also of threads that sleep",
        Err(_) => "not of threads that sleep: /proc/PID/stack is for root",
    };
    match kernel::Obstacle::to(frames) {
        None => Finding::fine(subject, format!("samples in the kernel show them, {asleep}")),
        Some(kernel::Obstacle { why, sysctl, .. }) => {
            Finding::limit(subject, why, sysctl.map(|setting| format!("sysctl {setting}")))
        }
    }
}

fn filters(status: &Status) -> Finding {
    let count = status.seccomp_filters.map_or_else(String::new, |count| format!(" ({count})"));
    match status.seccomp {
        0 => Finding::fine("own seccomp", "no filter"),
        _ => Finding::limit(
            "own seccomp",
            format!(
                "this process runs under filters{count}: it cannot read the filters of targets, \
                 only try them out"
            ),
            None,
        ),
    }
}

fn user_namespace() -> Finding {
    if proc::is_initial_user_namespace() {
        return Finding::fine("user namespace", "the initial one");
    }
    let seen = "not the initial one: capabilities count only inside it; perf events and seccomp \
                filters need capabilities of the initial one";
    Finding::limit("user namespace", seen, None)
}

fn shared_memory() -> Finding {
    let subject = "shared memory";
    match shm::try_executable() {
        Ok(()) => Finding::fine(subject, "a System V segment can be attached for execution"),
        Err(error) => Finding::limit(
            subject,
            format!(
                "this process cannot attach a System V segment for execution ({error}); a target \
                 under the same restrictions cannot either: check seccomp filters \
                 (MemoryDenyWriteExecute), SELinux and kernel.shmmni"
            ),
            None,
        ),
    }
}

fn processor() -> Finding {
    let subject = "processor";
    if !proc::has_processor_flag("xsave") {
        return Finding::obstacle(subject, "no XSAVE: an attach needs its signal frames", None);
    }
    let stacks = match proc::has_processor_flag("user_shstk") {
        true => "shadow stacks for programs that request them",
        false => "no shadow stacks",
    };
    let Some(len) = proc::signal_frame_len() else {
        return Finding::fine(subject, format!("signal frames of unknown size, {stacks}"));
    };
    let seen = format!("signal frames of {len} bytes, {stacks}");
    match len <= FRAME_LEN_USUAL {
        true => Finding::fine(subject, seen),
        false => Finding::limit(
            subject,
            format!("{seen}: small stacks (fibers) may have no room for a frame"),
            None,
        ),
    }
}
