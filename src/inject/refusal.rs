//! Reasons why a process cannot be attached to, and commands that help.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The reason why a process cannot be attached to, found without changing it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// No process has this id.
    NoSuchProcess {
        /// The id.
        pid: i32,
    },
    /// The process has exited and was not reaped yet.
    Exited {
        /// The id.
        pid: i32,
    },
    /// The id belongs to a thread, not to a process.
    NotAProcess {
        /// The id.
        tid: i32,
        /// The process that the thread belongs to.
        pid: i32,
    },
    /// The process is a kernel thread, which has no user code.
    KernelThread {
        /// The id.
        pid: i32,
    },
    /// The process is the recorder itself.
    Own,
    /// The process has another machine type or word size than the recorder.
    ForeignExecutable {
        /// The kind of the executable.
        kind: String,
    },
    /// The process is in strict seccomp mode: any system call for traceprof would kill it.
    SeccompStrict,
    /// The process has a seccomp filter, which may kill the process for a system call of the agent.
    SeccompUnknown {
        /// The reason why the filter's answers are unknown.
        why: String,
        /// Whether root could read the filter.
        needs_root: bool,
    },
    /// The process has a seccomp filter that forbids a required system call.
    SeccompForbids {
        /// The first forbidden call.
        call: String,
        /// The filter's answer.
        answer: String,
        /// A thread with the filter, if one is known.
        tid: Option<i32>,
    },
    /// The process is in another IPC namespace, where the segments cannot be attached.
    OtherIpcNamespace,
    /// The process has a shadow stack, with which chains of signal frames cannot run.
    ShadowStack,
    /// Another tracer traces the process.
    AlreadyTraced {
        /// The process, with its pid and name.
        target: String,
        /// The pid of the tracer.
        tracer: i32,
        /// The tracer's name.
        name: String,
    },
    /// Another recorder has its agent in the process.
    AlreadyRecorded {
        /// The pid of the recorder, if it is visible.
        recorder: Option<i32>,
    },
    /// A guardian is still restoring the process after its recorder exited.
    BeingRestored {
        /// The pid of the guardian.
        guardian: i32,
    },
    /// Another program holds the lock that admits one recorder at a time.
    Locked {
        /// The program's pid and name, if they are known.
        holder: Option<(i32, String)>,
    },
    /// The control group is frozen, so the process cannot be stopped.
    Frozen {
        /// The command that thaws it, if the group's name can be written in one.
        thaw: Option<String>,
    },
    /// The limit of address space leaves no room for the segments.
    NoAddressSpace {
        /// The limit in bytes.
        limit: u64,
        /// The size of the segments in bytes.
        needed: u64,
    },
    /// The process has as many mappings as the kernel permits.
    TooManyMappings {
        /// The number of mappings.
        used: usize,
    },
    /// The Yama security module forbids the attach.
    Yama {
        /// The value of `kernel.yama.ptrace_scope`.
        scope: u32,
    },
    /// The process belongs to another user.
    OtherUser {
        /// The process, with its pid and name.
        target: String,
        /// The real user id of the process.
        uid: u32,
    },
    /// The process belongs to the user but is protected: it is set-uid, not dumpable or more
    /// capable, or a security module protects it.
    Protected,
    /// A security module, or a user namespace, protects the process even from root.
    ProtectedFromRoot {
        /// The id.
        pid: i32,
    },
    /// `/proc` could not be read.
    Unreadable {
        /// The failure.
        reason: String,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchProcess { pid } => {
                write!(f, "no process has pid {pid}; find the pid with `pgrep -a NAME`")
            }
            Self::Exited { pid } => {
                write!(f, "process {pid} has exited; find the running one with `pgrep -a NAME`")
            }
            Self::NotAProcess { tid, pid } => {
                write!(f, "{tid} is a thread of process {pid}; give the process: --pid {pid}")
            }
            Self::KernelThread { pid } => {
                write!(
                    f,
                    "{pid} is a kernel thread, which runs no user code: `cat /proc/{pid}/stack` \
                     shows its stack, `perf top -p {pid}` its time"
                )
            }
            Self::Own => write!(f, "traceprof cannot attach to itself; give another pid"),
            Self::ForeignExecutable { kind } => {
                write!(f, "the target runs a {kind} executable; only 64-bit x86-64 is supported")
            }
            Self::Unreadable { reason } => write!(f, "cannot read the target's /proc: {reason}"),
            other => other.write_obstacle(f),
        }
    }
}

impl std::error::Error for Refusal {}

impl Refusal {
    /// Returns a command that removes the obstacle to recording `pid`, if there is one. Otherwise
    /// the message says all.
    pub fn remedy(&self, pid: i32) -> Option<String> {
        Some(match self {
            Self::NotAProcess { pid, .. } => format!("traceprof record --pid {pid}"),
            Self::SeccompUnknown { needs_root: true, .. } => {
                format!("sudo traceprof record --pid {pid}")
            }
            Self::SeccompUnknown { needs_root: false, .. } => {
                format!("traceprof record --allow-seccomp --pid {pid}")
            }
            Self::OtherIpcNamespace => {
                format!("nsenter --ipc --target {pid} traceprof record --pid {pid}")
            }
            Self::ShadowStack => "export GLIBC_TUNABLES=glibc.cpu.x86_shstk=off".to_owned(),
            Self::AlreadyTraced { tracer, .. } => format!("kill {tracer}"),
            Self::Locked { holder: Some((holder, _)) } => format!("kill {holder}"),
            Self::Locked { holder: None } => format!("fuser /proc/{pid}/maps"),
            Self::AlreadyRecorded { recorder: Some(recorder) } => format!("kill -INT {recorder}"),
            Self::Frozen { thaw } => thaw.clone()?,
            Self::NoAddressSpace { .. } => format!("prlimit --pid {pid} --as=unlimited"),
            Self::TooManyMappings { used } => {
                format!("sysctl vm.max_map_count={}", used.saturating_mul(2))
            }
            Self::Yama { scope: 1 | 2 } => "sysctl kernel.yama.ptrace_scope=0".to_owned(),
            Self::OtherUser { .. } | Self::Protected => {
                format!("sudo traceprof record --pid {pid}")
            }
            _ => return None,
        })
    }

    /// Writes what prevents an attach to an ordinary process.
    fn write_obstacle(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherIpcNamespace => write!(
                f,
                "the target is in another IPC namespace; run traceprof inside its container, or \
                 enter the namespace: nsenter --ipc --target PID traceprof ..."
            ),
            Self::ShadowStack => write!(
                f,
                "the target runs on shadow stacks, which are not supported; start it with \
                 GLIBC_TUNABLES=glibc.cpu.x86_shstk=off"
            ),
            Self::AlreadyTraced { target, tracer, name } => write!(
                f,
                "{target} is already traced by {name} (pid {tracer}); end that program first"
            ),
            Self::AlreadyRecorded { recorder } => {
                let who = recorder.map_or_else(String::new, |pid| format!(" (pid {pid})"));
                write!(
                    f,
                    "another traceprof{who} already records the target; end that recording first"
                )
            }
            Self::BeingRestored { guardian } => write!(
                f,
                "process {guardian} is still removing the agent of an earlier recording, because \
                 the target gets no CPU time; try again when the target runs"
            ),
            Self::Locked { holder: Some((pid, name)) } => write!(
                f,
                "{name} (pid {pid}) holds a lock on the target's /proc/PID/maps, with which \
                 traceprof admits one recorder at a time; end that program first"
            ),
            Self::Locked { holder: None } => write!(
                f,
                "another program holds a lock on the target's /proc/PID/maps, with which traceprof \
                 admits one recorder at a time; `fuser /proc/PID/maps` shows the program: end it \
                 first"
            ),
            Self::Frozen { .. } => {
                write!(f, "the target's control group is frozen; thaw it first")
            }
            Self::NoAddressSpace { limit, needed } => write!(
                f,
                "the target's address space is limited to {} MiB (ulimit -v), which leaves no room \
                 for the {} MiB of the agent; raise the limit",
                limit >> 20,
                needed >> 20
            ),
            Self::TooManyMappings { used } => write!(
                f,
                "the target has {used} mappings, and vm.max_map_count does not permit three more; \
                 raise vm.max_map_count"
            ),
            other => other.write_prohibition(f),
        }
    }

    /// Writes who or what forbids the attach.
    fn write_prohibition(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SeccompStrict => {
                write!(
                    f,
                    "the target is in strict seccomp mode, so an attach would kill it; use \
                     `traceprof stacks`, which makes no system calls in the target"
                )
            }
            Self::SeccompUnknown { why, .. } => write!(
                f,
                "the target has a seccomp filter that may kill it for a system call of the agent: \
                 {why}; give --allow-seccomp if the filter is known to permit shmat, rt_sigaction \
                 and timer_create (container defaults do)"
            ),
            Self::SeccompForbids { call, answer, tid } => {
                let whose = tid.map_or_else(String::new, |tid| format!(" of thread {tid}"));
                write!(
                    f,
                    "the seccomp filter{whose} does not permit {call}, which traceprof needs in \
                     the target: {answer}; the target cannot be recorded under this filter"
                )
            }
            Self::Yama { scope: 3.. } => write!(
                f,
                "the Yama security module forbids it: kernel.yama.ptrace_scope is 3, so attaching \
                 is off until the next boot"
            ),
            Self::Yama { scope: 2 } => write!(
                f,
                "the Yama security module forbids it: kernel.yama.ptrace_scope is 2, so only root \
                 (CAP_SYS_PTRACE) may attach, to programs that traceprof starts as well; run as \
                 root, or set it to 0: sysctl kernel.yama.ptrace_scope=0"
            ),
            Self::Yama { scope } => write!(
                f,
                "the Yama security module forbids it: kernel.yama.ptrace_scope is {scope}; run as \
                 root, start the program with `traceprof record -- COMMAND`, or set it to 0: \
                 sysctl kernel.yama.ptrace_scope=0"
            ),
            Self::OtherUser { target, uid } => write!(
                f,
                "{target} belongs to uid {uid}; run as that user, or as root (CAP_SYS_PTRACE)"
            ),
            Self::Protected => write!(
                f,
                "the target is protected from tracing (set-uid, not dumpable, or by a security \
                 module); run as root (CAP_SYS_PTRACE)"
            ),
            Self::ProtectedFromRoot { pid } => write!(
                f,
                "not even root may trace process {pid} here, because of a security module or a \
                 user namespace: `traceprof doctor --pid {pid}` says more"
            ),
            // `write_obstacle` and `fmt` write the other reasons.
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yama_is_named_with_advice_that_its_level_permits() {
        let text = |scope| Refusal::Yama { scope }.to_string();
        assert!((1..=3).all(|scope| text(scope).contains("Yama")));
        assert!(text(1).contains("record -- COMMAND") && text(1).contains("ptrace_scope=0"));
        assert!(!text(2).contains("COMMAND") && text(2).contains("ptrace_scope=0"));
        assert!(!text(3).contains("COMMAND") && !text(3).contains("ptrace_scope=0"));
    }

    #[test]
    fn obstacles_that_a_command_removes_have_a_remedy() {
        let check = |refusal: Refusal, expected: Option<&str>| {
            assert_eq!(refusal.remedy(7).as_deref(), expected, "{refusal}");
        };
        check(Refusal::Yama { scope: 1 }, Some("sysctl kernel.yama.ptrace_scope=0"));
        check(Refusal::Yama { scope: 3 }, None);
        check(Refusal::NotAProcess { tid: 9, pid: 8 }, Some("traceprof record --pid 8"));
        let target = "process 7 (x)".to_owned();
        check(Refusal::OtherUser { target, uid: 1 }, Some("sudo traceprof record --pid 7"));
        check(Refusal::AlreadyRecorded { recorder: None }, None);
        check(Refusal::Locked { holder: Some((9, "flock".to_owned())) }, Some("kill 9"));
        check(Refusal::Locked { holder: None }, Some("fuser /proc/7/maps"));
        check(Refusal::KernelThread { pid: 7 }, None);
    }
}
