//! Processes and threads as `/proc` shows them: the only user of the procfs crate.
//!
//! The crate opens the process's directory once, so that all reads of one call concern one process,
//! and parses `stat` and `syscall`. This module parses `maps` and `status` from bytes: paths and
//! thread names need not be UTF-8, and a profiler must not fail on such a name.
//!
//! # Invariants
//! - A process or thread that has exited is an ordinary result: [`io::ErrorKind::NotFound`].
//!
//! # Does not
//! - stop, signal or change anything.

mod activity;
mod auxiliary;
mod awaited_signals;
mod child_lifetime;
mod clocks;
mod descriptor_budget;
mod descriptor_names;
mod descriptors;
mod executable;
mod exit_signal;
mod file_lock;
mod freezer;
mod kcmp;
mod kernel;
mod kernel_symbols;
mod limits;
mod machine;
mod map_file;
mod mapping;
mod memory_identity;
mod namespace;
mod own_memory;
mod pidfd;
mod process_memory;
mod read_error;
mod root;
mod root_walk;
mod schedule;
mod signal_name;
mod sockets;
mod status_file;
mod syscall_names;
mod task_directory;
mod thread_pointer;
mod timers;
mod times;
mod unserved_threads;

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use procfs::process::{Process, Stat};
use procfs::{FromRead, ProcError};
use serde::{Deserialize, Serialize};

pub use activity::{
    TaskActivity, descriptor, kernel_stack, may_wait_on_address, task_activity, wait_channel,
    waited_address,
};
pub use auxiliary::{may_read_thread_pointer, random_bytes, signal_frame_len};
pub use awaited_signals::{awaited_in_call, signalfd_masks};
pub use child_lifetime::kill_with_starter;
pub use clocks::{monotonic_ns, thread_time};
pub use descriptor_budget::{
    DESCRIPTORS_MIN, DescriptorUse, descriptor_limit, raise_descriptor_limit, with_original_limit,
};
pub use descriptor_names::{DescriptorNames, waited_descriptor};
pub use descriptors::descriptors;
pub use executable::{ElfKind, command_line, elf_kind, executable};
pub use exit_signal::exit_signal;
pub use file_lock::FileLock;
pub use freezer::{Freezer, freezer};
pub use kcmp::shares_memory;
pub use kernel::{KernelVersion, NewerCall, POPULATE_WRITE, close_range, kernel_version};
pub use kernel_symbols::{KernelModules, KernelNames, KernelSymbols, kernel_names};
pub use limits::{ResourceLimits, is_dumpable, limits};
pub use machine::{has_processor_flag, memory_len, sysctl};
pub use map_file::map_file;
pub use mapping::{Mapping, mappings};
pub use memory_identity::Memory;
pub use namespace::{Namespace, is_initial_user_namespace, is_of_own_namespace, same_namespace};
pub use own_memory::anonymous_bytes;
pub use pidfd::{continue_stopped, open_pidfd, send_signal, wait_readable};
pub use process_memory::ProcessMemory;
pub use read_error::{advice, is_gone, is_shortage, shortage_advice};
pub use root::{Root, descriptor_path, open_regular};
pub use schedule::{TaskClock, Turns};
pub use signal_name::signal_name;
pub use status_file::StatusFile;
pub use syscall_names::{call_name, call_names};
pub use task_directory::{TaskFolder, start_ns, tick_ns};
pub use thread_pointer::thread_pointer;
pub use timers::{PosixTimer, posix_timers};
pub use times::{mode_times_ns, system_time_ns, task_cpu_or_ticks_ns};
pub use unserved_threads::UnservedThreads;

/// The contents of `/proc/PID/status` or `/proc/PID/task/TID/status`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The name (comm), with bytes that are not UTF-8 replaced.
    pub name: String,
    /// The state letter: `R`, `S`, `D`, `T` (stopped), `t` (traced), `Z`, `X`, `I`.
    pub state: char,
    /// The thread group id: the pid of the process.
    pub tgid: i32,
    /// The pid of the parent.
    pub parent: i32,
    /// The pid of the tracer, 0 if there is none.
    pub tracer: i32,
    /// The real user id.
    pub uid: u32,
    /// The effective user id.
    pub euid: u32,
    /// The saved user id.
    pub suid: u32,
    /// The real group id.
    pub gid: u32,
    /// The effective group id.
    pub egid: u32,
    /// The saved group id.
    pub sgid: u32,
    /// The thread's id in its innermost pid namespace.
    pub inner_pid: i32,
    /// The process's id in its innermost pid namespace.
    pub inner_tgid: i32,
    /// The number of threads.
    pub threads: u32,
    /// Whether the process has user memory: it is neither a kernel thread nor a zombie.
    pub has_memory: bool,
    /// Whether the process is a kernel thread.
    pub kernel_thread: bool,
    /// How often the thread has gone to sleep.
    pub voluntary_switches: u64,
    /// The seccomp mode: 0 none, 1 strict, 2 filter.
    pub seccomp: u32,
    /// The number of seccomp filters, where the kernel shows it.
    pub seccomp_filters: Option<u32>,
    /// Whether the thread runs on a shadow stack.
    pub shadow_stack: bool,
    /// The signals pending for the thread; bit 0 is signal 1, as in the next four fields.
    pub pending: u64,
    /// The signals pending for the process.
    pub shared_pending: u64,
    /// The signals that the thread blocks.
    pub blocked: u64,
    /// The signals that the process ignores.
    pub ignored: u64,
    /// The signals that the process has handlers for.
    pub caught: u64,
    /// The effective capabilities.
    pub cap_effective: u64,
    /// The permitted capabilities.
    pub cap_permitted: u64,
    /// The capabilities that an exec may give.
    pub cap_bounding: u64,
    /// Whether an exec gives no privileges.
    pub no_new_privileges: bool,
    /// The number of queued signals of the process's user, and its limit.
    pub queued: (u64, u64),
    /// The locked memory in KiB.
    pub locked_kib: u64,
    /// The size of the address space in KiB.
    pub size_kib: u64,
}

impl Status {
    /// Whether the thread blocks a signal, which is from 1 to 64.
    pub fn blocks(&self, signal: i32) -> bool {
        holds(self.blocked, signal)
    }

    /// Whether the process has a handler for a signal, which is from 1 to 64.
    pub fn catches(&self, signal: i32) -> bool {
        holds(self.caught, signal)
    }

    /// Returns the signals that the process never sees: it ignores them, or has no handler and they
    /// are ignored by default. Bit 0 is signal 1.
    pub fn unseen(&self) -> u64 {
        const BY_DEFAULT: [i32; 4] = [libc::SIGCHLD, libc::SIGCONT, libc::SIGURG, libc::SIGWINCH];
        let by_default = BY_DEFAULT.iter().fold(0, |set, signal| set | 1u64 << (signal - 1));
        self.ignored | (by_default & !self.caught)
    }
}

fn holds(set: u64, signal: i32) -> bool {
    set >> (signal - 1) & 1 == 1
}

/// Whether a thread with this state letter has exited.
pub fn has_ended(state: char) -> bool {
    matches!(state, 'Z' | 'X')
}

/// A thread's name, state and times, from `/proc/PID/task/TID/stat`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskStat {
    /// The name (comm), with bytes that are not UTF-8 replaced.
    pub name: String,
    /// The state letter as in [`Status::state`].
    pub state: char,
    /// The start time in clock ticks since boot. With the id it identifies a thread for good.
    pub start_time: u64,
    /// The user and system time in clock ticks.
    pub cpu_ticks: u64,
}

/// Returns the thread ids of a process, ascending. The list is complete, or this is an error.
pub fn tasks(pid: i32) -> io::Result<Vec<i32>> {
    // Reads only the names: the crate would open each thread's directory, which costs ten times the
    // list itself, and this runs while the target is stopped.
    let mut tids: Vec<i32> = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/task")).map_err(gone)? {
        let name = entry.map_err(gone)?.file_name();
        tids.extend(name.to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    if tids.is_empty() {
        return Err(io::ErrorKind::NotFound.into());
    }
    tids.sort_unstable();
    Ok(tids)
}

/// Returns the children that a thread has created, including zombies.
pub fn children(pid: i32, tid: i32) -> io::Result<Vec<i32>> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/children"))?;
    Ok(list.split_whitespace().filter_map(|child| child.parse().ok()).collect())
}

/// Opens the ELF file of a mapping: through `map_files` where permitted, otherwise through the
/// target's root with device and inode compared. Refuses a file that has replaced the mapped one
/// since.
pub fn open_mapping(pid: i32, mapping: &Mapping) -> io::Result<OwnedFd> {
    if mapping.inode == 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a mapping of a file"));
    }
    let direct = format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end);
    if let Ok(file) = open_regular(Path::new(&direct))
        && mapping.is_of(&file)
    {
        return Ok(file.into());
    }
    let mut path = PathBuf::from(format!("/proc/{pid}/root")).into_os_string();
    path.push(&mapping.path);
    mapped_file(open_regular(Path::new(&path))?, mapping)
}

/// Opens the ELF file of a mapping of a process that may have exited, through the root directory
/// that it had. Refuses another file, as [`open_mapping`] does.
pub fn open_mapping_under(root: &Root, mapping: &Mapping) -> io::Result<OwnedFd> {
    mapped_file(root.open_regular(Path::new(&mapping.path))?, mapping)
}

fn mapped_file(file: File, mapping: &Mapping) -> io::Result<OwnedFd> {
    if !mapping.has_inode_of(&file) {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("{} was replaced since it was mapped", mapping.path.display()),
        ));
    }
    Ok(file.into())
}

/// Reads the target's memory completely, or returns an error.
pub fn read_memory(pid: i32, start: u64, len: usize) -> io::Result<Vec<u8>> {
    let memory = open(pid)?.mem().map_err(to_io)?;
    let mut bytes = vec![0; len];
    memory.read_exact_at(&mut bytes, start)?;
    Ok(bytes)
}

/// Returns all visible processes, ascending.
pub fn processes() -> io::Result<Vec<i32>> {
    let mut pids: Vec<i32> = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        pids.extend(entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    pids.sort_unstable();
    Ok(pids)
}

/// Returns the pid of a process's parent.
pub fn parent(pid: i32) -> io::Result<i32> {
    let stat = read_file(format!("/proc/{pid}/stat"))?;
    Ok(Stat::from_read(&stat[..]).map_err(to_io)?.ppid)
}

/// Returns the status of a process (of its leader).
pub fn status(pid: i32) -> io::Result<Status> {
    parse_status(&read_file(format!("/proc/{pid}/status"))?)
}

/// Returns the status of a thread.
pub fn task_status(pid: i32, tid: i32) -> io::Result<Status> {
    parse_status(&read_file(format!("/proc/{pid}/task/{tid}/status"))?)
}

/// Returns the start time of a process in clock ticks since boot. With the pid it identifies a
/// process for good.
pub fn start_time(pid: i32) -> io::Result<u64> {
    Ok(open(pid)?.stat().map_err(to_io)?.starttime)
}

/// Whether the thread itself has children, rather than another thread of its process. `false` if
/// the kernel does not show children.
pub fn has_children(pid: i32, tid: i32) -> bool {
    let children = read_file(format!("/proc/{pid}/task/{tid}/children"));
    children.is_ok_and(|list| !list.is_empty())
}

/// Returns the name, state and times of a thread.
pub fn task_stat(pid: i32, tid: i32) -> io::Result<TaskStat> {
    // Does not use the crate's thread, which opens two directories first: this runs for thousands
    // of threads.
    let bytes = read_file(format!("/proc/{pid}/task/{tid}/stat"))?;
    let stat = Stat::from_read(&bytes[..]).map_err(to_io)?;
    Ok(TaskStat {
        name: stat.comm,
        state: stat.state,
        start_time: stat.starttime,
        cpu_ticks: stat.utime + stat.stime,
    })
}

/// Whether the thread runs or waits for a processor.
pub fn is_runnable(tid: i32) -> bool {
    task_stat(tid, tid).is_ok_and(|stat| stat.state == 'R')
}

/// Returns the ticks of user and system time that a process has used.
fn process_ticks(pid: i32) -> io::Result<(u64, u64)> {
    let stat = open(pid)?.stat().map_err(to_io)?;
    Ok((stat.utime, stat.stime))
}

fn open(pid: i32) -> io::Result<Process> {
    Process::new(pid).map_err(to_io)
}

fn read_file(path: String) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(16 * 1024);
    File::open(path).map_err(gone)?.read_to_end(&mut bytes).map_err(gone)?;
    Ok(bytes)
}

/// Converts the error of a read: ESRCH means that the process exited after its file was opened.
fn gone(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ESRCH) => io::ErrorKind::NotFound.into(),
        _ => error,
    }
}

fn to_io(error: ProcError) -> io::Error {
    match error {
        ProcError::PermissionDenied(_) => io::ErrorKind::PermissionDenied.into(),
        ProcError::NotFound(_) => io::ErrorKind::NotFound.into(),
        ProcError::Io(error, _) => gone(error),
        other => io::Error::new(io::ErrorKind::InvalidData, other.to_string()),
    }
}

fn malformed(what: &str, line: &[u8]) -> io::Error {
    let line = String::from_utf8_lossy(line);
    io::Error::new(io::ErrorKind::InvalidData, format!("{what}: cannot read line: {line}"))
}

fn parse_status(bytes: &[u8]) -> io::Result<Status> {
    let mut status = Status::default();
    for line in bytes.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else { continue };
        let value = line[colon + 1..].trim_ascii();
        // Faster than the conversion of what is no text.
        let text = std::str::from_utf8(value).map(Cow::Borrowed);
        let value = text.unwrap_or_else(|_| String::from_utf8_lossy(value));
        set_field(&mut status, &line[..colon], &value).ok_or_else(|| malformed("status", line))?;
    }
    if status.tgid == 0 {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(status)
}

fn set_field(status: &mut Status, name: &[u8], value: &str) -> Option<()> {
    let hex = || u64::from_str_radix(value, 16).ok();
    let mut words = value.split_ascii_whitespace();
    match name {
        b"Name" => status.name = value.to_owned(),
        b"State" => status.state = value.chars().next()?,
        b"Tgid" => status.tgid = value.parse().ok()?,
        b"Pid" => status.inner_pid = value.parse().ok()?,
        b"NSpid" => status.inner_pid = words.next_back()?.parse().ok()?,
        b"NStgid" => status.inner_tgid = words.next_back()?.parse().ok()?,
        b"PPid" => status.parent = value.parse().ok()?,
        b"TracerPid" => status.tracer = value.parse().ok()?,
        b"Uid" => {
            status.uid = words.next()?.parse().ok()?;
            status.euid = words.next()?.parse().ok()?;
            status.suid = words.next()?.parse().ok()?;
        }
        b"Gid" => {
            status.gid = words.next()?.parse().ok()?;
            status.egid = words.next()?.parse().ok()?;
            status.sgid = words.next()?.parse().ok()?;
        }
        b"VmSize" => {
            status.has_memory = true;
            status.size_kib = words.next()?.parse().ok()?;
        }
        b"VmLck" => status.locked_kib = words.next()?.parse().ok()?,
        b"SigQ" => {
            let (used, limit) = value.split_once('/')?;
            status.queued = (used.parse().ok()?, limit.parse().ok()?);
        }
        b"voluntary_ctxt_switches" => status.voluntary_switches = value.parse().ok()?,
        b"Kthread" => status.kernel_thread = value == "1",
        b"Threads" => status.threads = value.parse().ok()?,
        b"Seccomp" => status.seccomp = value.parse().ok()?,
        b"Seccomp_filters" => status.seccomp_filters = Some(value.parse().ok()?),
        b"SigPnd" => status.pending = hex()?,
        b"ShdPnd" => status.shared_pending = hex()?,
        b"SigBlk" => status.blocked = hex()?,
        b"SigIgn" => status.ignored = hex()?,
        b"SigCgt" => status.caught = hex()?,
        b"CapEff" => status.cap_effective = hex()?,
        b"CapPrm" => status.cap_permitted = hex()?,
        b"CapBnd" => status.cap_bounding = hex()?,
        b"NoNewPrivs" => status.no_new_privileges = value == "1",
        b"x86_Thread_features" => status.shadow_stack = words.any(|word| word == "shstk"),
        _ => {}
    }
    Some(())
}

#[cfg(test)]
mod tests;
