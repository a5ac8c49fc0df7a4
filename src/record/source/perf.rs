//! The `perf` engine: task-clock events that the recorder opens on the target's threads.
//!
//! At each expiry the kernel signals exactly the thread that ran.
//!
//! # Safety
//! One system call that the libc crate does not wrap, and `ioctl`s on its descriptors.
//!
//! # Invariants
//! - New threads inherit events, new processes do not, and an exec removes them.
//! - No event outlives the recorder: the descriptors are its own and close-on-exec.
//! - A separate thread closes events, and the recorder waits for it only for a limited time:
//!   kernels 6.11 to 6.14 may hang there.
//!
//! # Does not
//! - use event limits or refresh: kernels 6.16 and 6.17 hang.
//! - change the period of an inherited family: that would change one event of many.
#![allow(unsafe_code, reason = "perf_event_open has no safe wrapper")]

use crate::record::contract::error::{RecordError, target_error};
use crate::record::contract::sampling::Setup;
use anyhow::anyhow;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::mpsc;
use std::time::Duration;

use traceprof_abi::event::EventWord;
use traceprof_abi::layout::SIG_DATA_MARK;
use traceprof_abi::unwind::Registers;

use crate::proc::{self, DescriptorUse, descriptor_limit};

/// `struct perf_event_attr` up to `sig_data` (version 7).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct EventAttributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    /// Wake-ups, breakpoints and branch samples, which a software clock does not use.
    unused: [u64; 4],
    user_registers: u64,
    user_stack: u32,
    clock: i32,
    /// Interrupted registers and auxiliary areas.
    unused_too: [u64; 3],
    sig_data: u64,
}
const ATTRIBUTES_LEN: u32 = 128;
const _: () = assert!(size_of::<EventAttributes>() == ATTRIBUTES_LEN as usize);

const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_COUNT_SW_TASK_CLOCK: u64 = 1;
const PERF_COUNT_SW_DUMMY: u64 = 9;
const PERF_FLAG_FD_CLOEXEC: u64 = 8;
const DISABLED: u64 = 1 << 0;
const INHERIT: u64 = 1 << 1;
const EXCLUDE_USER: u64 = 1 << 4;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HV: u64 = 1 << 6;
const EXCLUDE_CALLCHAIN_USER: u64 = 1 << 22;
const MMAP: u64 = 1 << 8;
const COMM: u64 = 1 << 9;
const ENABLE_ON_EXEC: u64 = 1 << 12;
const TASK: u64 = 1 << 13;
const SAMPLE_ID_ALL: u64 = 1 << 18;
const MMAP2: u64 = 1 << 23;
const COMM_EXEC: u64 = 1 << 24;
const USE_CLOCK: u64 = 1 << 25;
const INHERIT_THREAD: u64 = 1 << 35;
const REMOVE_ON_EXEC: u64 = 1 << 36;
const SIGTRAP: u64 = 1 << 37;
const IOC_ENABLE: u64 = 0x2400;
const IOC_DISABLE: u64 = 0x2401;
const IOC_SET_OUTPUT: u64 = 0x2405;
const IOC_PERIOD: u64 = 0x4008_2404;
/// `PERF_SAMPLE_TID | TIME | ID | CPU | REGS_USER | STACK_USER`.
const KERNEL_SAMPLE_TYPE: u64 = 1 << 1 | 1 << 2 | 1 << 6 | 1 << 7 | 1 << 12 | 1 << 13;
/// `PERF_SAMPLE_CALLCHAIN`.
const CALLCHAIN: u64 = 1 << 5;
/// The requested user registers, in the kernel's order: ax bx cx dx si di bp sp ip, r8 to r15.
const USER_REGISTERS_MASK: u64 = 0xff_01ff;
/// The number of user registers in a record.
pub(crate) const USER_REGISTERS: usize = USER_REGISTERS_MASK.count_ones() as usize;
/// The timeout for closing events.
const CLOSING_MAX: Duration = Duration::from_secs(2);
/// The maximum number of passes over the thread list; each pass at least halves the number of
/// missed threads.
const PASSES_MAX: usize = 64;

/// A set of events with one period, opened together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct EventFamily {
    /// The family's number.
    pub(crate) number: u32,
    /// The base-2 logarithm of the number of periods between two expiries.
    pub(crate) shift: u32,
}

impl EventFamily {
    /// Returns the word of the event with this index.
    pub(crate) fn event(self, index: u32) -> EventWord {
        EventWord::new(index, self.shift, self.number)
    }
}

/// Checks whether the events of a recording can be opened on this thread.
pub(crate) fn probe(tid: i32, setup: Setup) -> io::Result<()> {
    open(Scope::Family, tid, setup, EventWord(0)).map(drop)
}

/// Calls `cover` for every thread of the process, in passes until no thread is new.
///
/// Every later thread then descends from a covered one. `cover` returns false for a thread that has
/// exited.
pub(crate) fn each_thread(
    pid: i32,
    mut cover: impl FnMut(i32) -> io::Result<bool>,
) -> io::Result<()> {
    let mut covered = BTreeSet::new();
    for _ in 0..PASSES_MAX {
        let mut is_new = false;
        for tid in proc::tasks(pid)? {
            is_new |= covered.insert(tid) && cover(tid)?;
        }
        if !is_new {
            break;
        }
    }
    Ok(())
}

/// Stops events and closes them.
///
/// Returns false if closing does not return in time; the events are stopped even then.
pub(crate) fn close_all(events: Vec<OwnedFd>) -> bool {
    if events.is_empty() {
        return true;
    }
    events.iter().for_each(disable);
    bounded(CLOSING_MAX, move || drop(events))
}

/// Runs `work` on a thread of its own, and waits for at most `patience` until it is done.
fn bounded(patience: Duration, work: impl FnOnce() + Send + 'static) -> bool {
    let (done_sender, done) = mpsc::channel();
    let work = move || {
        work();
        // After a timeout the receiver no longer exists.
        let _ = done_sender.send(());
    };
    match std::thread::Builder::new().spawn(work) {
        Ok(_) => done.recv_timeout(patience).is_ok(),
        // A failed spawn drops the closure, and the events with it.
        Err(_) => true,
    }
}

/// Starts an event, including inherited ones.
pub(crate) fn enable(event: &OwnedFd) {
    control(event, IOC_ENABLE, 0);
}

/// Stops an event, including inherited ones.
pub(crate) fn disable(event: &OwnedFd) {
    control(event, IOC_DISABLE, 0);
}

/// Makes an event write into the buffer of another one on the same core.
pub(crate) fn share_output(event: &OwnedFd, owner: &OwnedFd) -> io::Result<()> {
    match control(event, IOC_SET_OUTPUT, owner.as_raw_fd()) {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn control(event: &OwnedFd, request: u64, argument: i32) -> i32 {
    // For a thread that has exited, an error is harmless.
    // SAFETY: these requests take an integer argument.
    unsafe { libc::ioctl(event.as_raw_fd(), request, argument) }
}

/// The threads that an event samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// A thread, and the threads that it starts.
    Family,
    /// One thread alone.
    Alone,
    /// The processes that a thread's process starts, and their descendants: each from the first
    /// program on that it, or an ancestor after the thread's process, executes. Also records what
    /// their threads do.
    Descendants,
}

impl Scope {
    fn flags(self) -> u64 {
        match self {
            Self::Family => COMMON,
            Self::Alone => ALONE,
            Self::Descendants => DESCENDANTS,
        }
    }
}

/// Opens a signalling event, which excludes kernel mode.
///
/// The kernel would deliver the signal of an expiry in kernel mode after the system call. After
/// `execve` that is in another program, which the signal would kill.
pub(crate) fn open(scope: Scope, tid: i32, setup: Setup, event: EventWord) -> io::Result<OwnedFd> {
    let mark = u64::from(SIG_DATA_MARK) << 48 | u64::from(setup.cookie) << 32;
    let attributes = EventAttributes {
        sample_period: setup.period_ns.saturating_mul(u64::from(event.weight())),
        flags: scope.flags() | EXCLUDE_KERNEL | SIGTRAP,
        sig_data: mark | u64::from(event.0),
        ..TASK_CLOCK
    };
    let any_cpu = -1;
    perf_event_open(&attributes, tid, any_cpu)
}

/// Opens an event of one thread alone, which counts user mode and notifies the owner of its
/// descriptor: see [`crate::record::source::signal_events`].
pub(crate) fn open_notifying(tid: i32, period_ns: u64) -> io::Result<OwnedFd> {
    let attributes =
        EventAttributes { sample_period: period_ns, flags: ALONE | EXCLUDE_KERNEL, ..TASK_CLOCK };
    let any_cpu = -1;
    perf_event_open(&attributes, tid, any_cpu)
}

/// Changes the period of an event that no thread has inherited.
pub(crate) fn set_period(event: &OwnedFd, period_ns: u64) -> io::Result<()> {
    // SAFETY: the request reads the 64-bit word at the address.
    match unsafe { libc::ioctl(event.as_raw_fd(), IOC_PERIOD, &raw const period_ns) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reads the count of an event, and of all events that were inherited from it: for a task clock,
/// the CPU time in nanoseconds while it was enabled.
pub(crate) fn read_count(event: &OwnedFd) -> io::Result<u64> {
    let mut count = [0; 8];
    match nix::unistd::read(event, &mut count)? {
        8 => Ok(u64::from_ne_bytes(count)),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// The modes of a thread that an event samples without a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Modes {
    /// Kernel mode; a signalling event samples user mode.
    Kernel,
    /// User mode.
    User,
    /// Both modes.
    All,
}

impl Modes {
    fn excluded(self) -> u64 {
        match self {
            Self::Kernel => EXCLUDE_USER,
            Self::User => EXCLUDE_KERNEL,
            Self::All => 0,
        }
    }
}

/// What the samples of an event without a signal contain besides the user registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SampleContent {
    /// The number of bytes of the thread's stack.
    pub(crate) user_stack: u32,
    /// Whether they have the kernel's own call chain.
    pub(crate) has_chain: bool,
}

/// Opens an event that samples without a signal on one core.
///
/// Its records go into a buffer that the caller maps.
pub(crate) fn open_kernel(
    (scope, modes): (Scope, Modes),
    (tid, cpu): (i32, i32),
    period_ns: u64,
    SampleContent { user_stack, has_chain }: SampleContent,
) -> io::Result<OwnedFd> {
    // The kernel follows user stacks by frame pointers only.
    let (chain, no_user) = if has_chain { (CALLCHAIN, EXCLUDE_CALLCHAIN_USER) } else { (0, 0) };
    let attributes = EventAttributes {
        sample_period: period_ns,
        sample_type: KERNEL_SAMPLE_TYPE | chain,
        flags: scope.flags() | modes.excluded() | USE_CLOCK | no_user,
        user_registers: USER_REGISTERS_MASK,
        user_stack,
        clock: libc::CLOCK_MONOTONIC,
        ..TASK_CLOCK
    };
    perf_event_open(&attributes, tid, cpu)
}

/// The kind of side-band records that an event writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TaskRecords {
    /// Starts, ends and names of threads.
    Lives,
    /// Code that threads map.
    Code,
}

/// Opens an event that takes no samples but records what threads do on one core.
///
/// It covers `tid` and the threads that it starts, or without a `tid` the whole machine. Its
/// records go into a buffer that the caller maps, and each ends with its time. It is enabled at
/// once.
pub(crate) fn open_task(records: TaskRecords, tid: Option<i32>, cpu: i32) -> io::Result<OwnedFd> {
    const SAMPLE_TIME: u64 = 1 << 2;
    let records = match records {
        TaskRecords::Lives => COMM | TASK,
        TaskRecords::Code => MMAP,
    };
    let family = if tid.is_some() { INHERIT | INHERIT_THREAD | REMOVE_ON_EXEC } else { 0 };
    let attributes = EventAttributes {
        config: PERF_COUNT_SW_DUMMY,
        sample_type: SAMPLE_TIME,
        flags: family | records | EXCLUDE_KERNEL | EXCLUDE_HV | SAMPLE_ID_ALL | USE_CLOCK,
        clock: libc::CLOCK_MONOTONIC,
        ..TASK_CLOCK
    };
    perf_event_open(&attributes, tid.unwrap_or(-1), cpu)
}

/// Opens an event that takes no samples, is never enabled and is not inherited.
///
/// With it, a thread's set of events differs from the sets of the threads that it starts. The
/// kernel therefore does not swap their events on a context switch.
pub(crate) fn open_anchor(tid: i32) -> io::Result<OwnedFd> {
    let attributes = EventAttributes {
        config: PERF_COUNT_SW_DUMMY,
        flags: DISABLED | EXCLUDE_KERNEL | EXCLUDE_HV | REMOVE_ON_EXEC,
        ..TASK_CLOCK
    };
    let any_cpu = -1;
    perf_event_open(&attributes, tid, any_cpu)
}

/// Flags of an event that starts disabled, is inherited by threads, and ends at exec.
const COMMON: u64 = ALONE | INHERIT | INHERIT_THREAD;
/// Flags of an event that starts disabled, is inherited by processes, and is enabled in a process
/// that executes a program: inherited events are copies, so the others stay disabled.
const DESCENDANTS: u64 = DISABLED
    | EXCLUDE_HV
    | INHERIT
    | ENABLE_ON_EXEC
    | MMAP
    | MMAP2
    | COMM
    | COMM_EXEC
    | TASK
    | SAMPLE_ID_ALL;
/// The same flags for one thread alone.
const ALONE: u64 = DISABLED | EXCLUDE_HV | REMOVE_ON_EXEC;
const TASK_CLOCK: EventAttributes = EventAttributes {
    kind: PERF_TYPE_SOFTWARE,
    size: ATTRIBUTES_LEN,
    config: PERF_COUNT_SW_TASK_CLOCK,
    sample_period: 0,
    sample_type: 0,
    read_format: 0,
    flags: 0,
    unused: [0; 4],
    user_registers: 0,
    user_stack: 0,
    clock: 0,
    unused_too: [0; 3],
    sig_data: 0,
};

/// Puts the user registers of a record into DWARF's order.
pub(crate) fn registers(words: [u64; USER_REGISTERS]) -> Registers {
    let [ax, bx, cx, dx, si, di, bp, sp, ip, r8, r9, r10, r11, r12, r13, r14, r15] = words;
    Registers {
        pc: ip,
        sp,
        fp: bp,
        gpr: [ax, dx, cx, bx, si, di, bp, sp, r8, r9, r10, r11, r12, r13, r14, r15],
    }
}

fn perf_event_open(attributes: &EventAttributes, tid: i32, cpu: i32) -> io::Result<OwnedFd> {
    let no_group = -1;
    // SAFETY: the call reads `size` bytes of the attributes.
    let descriptor = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const *attributes,
            tid,
            cpu,
            no_group,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just returned it to us alone.
    let event = unsafe { OwnedFd::from_raw_fd(descriptor as i32) };
    // Whatever the event is for, a recording can do without it.
    DescriptorUse::Events.admit(event)
}

/// Whether `perf_event_open` fails with this errno because the kernel does not know the event.
///
/// E2BIG: the kernel's structure of attributes ends before `sig_data`, which is part of it since
/// Linux 5.13. EINVAL: it does not know a flag of the same version.
pub(crate) fn is_unknown(errno: i32) -> bool {
    matches!(errno, libc::E2BIG | libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS)
}

/// Converts an error of `perf_event_open` on a process, with advice.
pub(crate) fn event_error(pid: i32, error: io::Error) -> RecordError {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => RecordError::NotPermitted(anyhow!(
            "the kernel refuses perf events on process {pid} ({error}): lower \
             /proc/sys/kernel/perf_event_paranoid to 2 or less, run with CAP_PERFMON, or use \
             --engine timer"
        )),
        Some(libc::EMFILE) => RecordError::Other(anyhow!(
            "too few descriptors for one event per thread (the limit is {}): raise the hard limit \
             (`ulimit -Hn`), or use --engine timer",
            descriptor_limit()
        )),
        number if number.is_some_and(is_unknown) => RecordError::Other(anyhow!(
            "this kernel has no events that signal threads ({error}): use Linux 6.1 or later, or \
             --engine timer"
        )),
        _ => target_error(pid, error),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn the_wait_for_hanging_work_times_out() {
        let start = Instant::now();
        let (release, released) = mpsc::channel::<()>();
        let is_done = bounded(Duration::from_millis(20), move || {
            let _ = released.recv();
        });
        assert!(!is_done && start.elapsed() >= Duration::from_millis(20));
        drop(release);
        assert!(bounded(Duration::from_secs(60), || {}));
    }
}
