//! The `perf` engine: task-clock events that the recorder opens on the target's threads and whose
//! hits the kernel turns into a signal to exactly the thread that ran.
//!
//! # Safety
//! One system call that the libc crate has no wrapper for, and `ioctl`s on its descriptors.
//!
//! # Invariants
//! - Events are inherited by new threads (not by new processes) and removed at exec.
//! - Each opened event has its own `sig_data`; a thread with two of them counts one.
//! - No event outlives the recorder: the descriptors are its own and close-on-exec.
//! - Events are closed by a thread of their own, which is not waited for without end: kernels 6.11
//!   to 6.14 may hang in it.
//!
//! # Does not
//! - use event limits or refresh (kernels 6.16 and 6.17 hang), or change a period of an inherited
//!   family (it would change one event of many).
#![allow(unsafe_code, reason = "perf_event_open has no safe wrapper")]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::mpsc;
use std::time::Duration;

use traceprof_abi::event::EventWord;
use traceprof_abi::layout::{EVENTS_MAX, SIG_DATA_MARK};
use traceprof_abi::unwind::Registers;

use crate::proc;

/// `struct perf_event_attr` up to `sig_data` (version 7 of it).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    /// Wake-ups, breakpoints, branch samples: nothing of a software clock's.
    unused: [u64; 4],
    user_registers: u64,
    user_stack: u32,
    clock: i32,
    /// Interrupted registers, auxiliary areas.
    unused_too: [u64; 3],
    sig_data: u64,
}
const ATTRIBUTES_LEN: u32 = 128;
const _: () = assert!(size_of::<Attributes>() == ATTRIBUTES_LEN as usize);

const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_COUNT_SW_TASK_CLOCK: u64 = 1;
const PERF_COUNT_SW_DUMMY: u64 = 9;
const PERF_FLAG_FD_CLOEXEC: u64 = 8;
const DISABLED: u64 = 1 << 0;
const INHERIT: u64 = 1 << 1;
const EXCLUDE_USER: u64 = 1 << 4;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HV: u64 = 1 << 6;
const MMAP: u64 = 1 << 8;
const COMM: u64 = 1 << 9;
const TASK: u64 = 1 << 13;
const SAMPLE_ID_ALL: u64 = 1 << 18;
const USE_CLOCK: u64 = 1 << 25;
const INHERIT_THREAD: u64 = 1 << 35;
const REMOVE_ON_EXEC: u64 = 1 << 36;
const SIGTRAP: u64 = 1 << 37;
const IOC_ENABLE: u64 = 0x2400;
const IOC_DISABLE: u64 = 0x2401;
const IOC_SET_OUTPUT: u64 = 0x2405;
/// `PERF_SAMPLE_TID | TIME | ID | CPU | REGS_USER | STACK_USER`.
const KERNEL_SAMPLE_TYPE: u64 = 1 << 1 | 1 << 2 | 1 << 6 | 1 << 7 | 1 << 12 | 1 << 13;
/// The user registers that are asked for, in the kernel's order: ax bx cx dx si di bp sp ip,
/// r8 to r15.
const USER_REGISTERS_MASK: u64 = 0xff_01ff;
/// Their number.
pub(super) const USER_REGISTERS: usize = USER_REGISTERS_MASK.count_ones() as usize;
/// How long the closing of events is waited for.
const CLOSING_MAX: Duration = Duration::from_secs(2);
/// Passes over the threads until none is new; each pass halves what is missed, whatever the rate.
const PASSES_MAX: usize = 64;

/// How the events of a recording are set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Setup {
    /// Nanoseconds of CPU time between two samples of a thread.
    pub(super) period_ns: u64,
    /// Time inside the kernel is sampled too (`kernel::KernelEvents`).
    pub(super) kernel: bool,
    /// The session's cookie.
    pub(super) cookie: u16,
}

/// A family of events, all with one period.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Family {
    /// Its number.
    pub(super) number: u32,
    /// Its hits stand for 2 to the power of this many periods.
    pub(super) shift: u32,
}

impl Family {
    fn event(self, index: u32) -> EventWord {
        EventWord::new(index, self.shift, self.number)
    }
}

/// The events of one family, by index.
#[derive(Debug)]
pub(super) struct Events {
    setup: Setup,
    family: Family,
    open: BTreeMap<u32, (i32, OwnedFd)>,
    next: u32,
}

/// Whether the events of a recording may be opened on this thread.
pub(super) fn probe(tid: i32, setup: Setup) -> io::Result<()> {
    open(Scope::Family, tid, setup, EventWord(0)).map(drop)
}

/// Calls `cover` for every thread of the process, over and over until no thread is new: every
/// later thread descends from one that is covered. `cover` answers false for a thread that is gone.
pub(super) fn each_thread(
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

impl Events {
    /// Opens a disabled event on every thread of the process.
    pub(super) fn open(pid: i32, setup: Setup, family: Family) -> io::Result<Self> {
        descriptor_limit();
        let mut events = Self { setup, family, open: BTreeMap::new(), next: 0 };
        each_thread(pid, |tid| events.add(tid))?;
        Ok(events)
    }

    /// Opens an event on a thread; false if the thread is gone.
    fn add(&mut self, tid: i32) -> io::Result<bool> {
        if self.next as usize >= EVENTS_MAX {
            return Err(io::Error::other("more threads than events can be told apart"));
        }
        match open(Scope::Family, tid, self.setup, self.family.event(self.next)) {
            Ok(descriptor) => {
                self.open.insert(self.next, (tid, descriptor));
                self.next += 1;
                Ok(true)
            }
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The threads that have an event of their own, with the event.
    pub(super) fn threads(&self) -> impl Iterator<Item = (i32, EventWord)> {
        self.open.iter().map(|(index, (tid, _))| (*tid, self.family.event(*index)))
    }

    /// Number of open events.
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Starts all events, and those inherited from them meanwhile.
    pub(super) fn enable(&self) {
        self.open.values().for_each(|(_, event)| enable(event));
    }

    /// Stops all events, inherited ones included.
    pub(super) fn disable(&self) {
        self.open.values().for_each(|(_, event)| disable(event));
    }

    /// Closes one event and all that were inherited from it; false if it is not open.
    pub(super) fn close(&mut self, index: u32) -> bool {
        let event = self.open.remove(&index);
        let is_open = event.is_some();
        close_all(event.map(|(_, descriptor)| descriptor).into_iter().collect());
        is_open
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let events = std::mem::take(&mut self.open);
        close_all(events.into_values().map(|(_, descriptor)| descriptor).collect());
    }
}

/// Stops events and closes them; false if the kernel does not come back from it in time. They are
/// stopped all the same.
pub(super) fn close_all(events: Vec<OwnedFd>) -> bool {
    if events.is_empty() {
        return true;
    }
    events.iter().for_each(disable);
    bounded(CLOSING_MAX, move || drop(events))
}

/// Runs something on a thread of its own and waits for its end, but no longer than this.
fn bounded(patience: Duration, work: impl FnOnce() + Send + 'static) -> bool {
    let (tell, told) = mpsc::channel();
    let work = move || {
        work();
        // Nobody listens any more if it took too long.
        let _ = tell.send(());
    };
    match std::thread::Builder::new().spawn(work) {
        Ok(_) => told.recv_timeout(patience).is_ok(),
        // What it would have dropped was dropped with it.
        Err(_) => true,
    }
}

/// Starts an event, and those inherited from it.
pub(super) fn enable(event: &OwnedFd) {
    control(event, IOC_ENABLE, 0);
}

/// Stops an event, and those inherited from it.
pub(super) fn disable(event: &OwnedFd) {
    control(event, IOC_DISABLE, 0);
}

/// Has an event write into the buffer of another one on the same core.
pub(super) fn share_output(event: &OwnedFd, owner: &OwnedFd) -> io::Result<()> {
    match control(event, IOC_SET_OUTPUT, owner.as_raw_fd()) {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn control(event: &OwnedFd, request: u64, argument: i32) -> i32 {
    // A thread that is gone has nothing to switch.
    // SAFETY: these requests take an integer argument.
    unsafe { libc::ioctl(event.as_raw_fd(), request, argument) }
}

/// Whose hits an event takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// Those of a thread, and of the threads that it starts.
    Family,
    /// Those of one thread alone.
    Alone,
}

impl Scope {
    fn flags(self) -> u64 {
        match self {
            Self::Family => COMMON,
            Self::Alone => ALONE,
        }
    }
}

/// A signalling event. Kernel mode is left out: a hit there would be delivered after the system
/// call, and after `execve` that is in another program, which it would kill.
pub(super) fn open(scope: Scope, tid: i32, setup: Setup, event: EventWord) -> io::Result<OwnedFd> {
    let mark = u64::from(SIG_DATA_MARK) << 48 | u64::from(setup.cookie) << 32;
    let attributes = Attributes {
        sample_period: setup.period_ns.saturating_mul(u64::from(event.weight())),
        flags: scope.flags() | EXCLUDE_KERNEL | SIGTRAP,
        sig_data: mark | u64::from(event.0),
        ..TASK_CLOCK
    };
    let any_cpu = -1;
    perf_event_open(&attributes, tid, any_cpu)
}

/// An event that takes hits in kernel mode on one core, with the user registers and `user_stack`
/// bytes of the thread's stack, into a buffer that is to be mapped.
pub(super) fn open_kernel(
    scope: Scope,
    (tid, cpu): (i32, i32),
    period_ns: u64,
    user_stack: u32,
) -> io::Result<OwnedFd> {
    let attributes = Attributes {
        sample_period: period_ns,
        sample_type: KERNEL_SAMPLE_TYPE,
        flags: scope.flags() | EXCLUDE_USER | USE_CLOCK,
        user_registers: USER_REGISTERS_MASK,
        user_stack,
        clock: libc::CLOCK_MONOTONIC,
        ..TASK_CLOCK
    };
    perf_event_open(&attributes, tid, cpu)
}

/// What is told of threads besides their samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    /// Their starts, ends and names.
    Lives,
    /// The code that they map.
    Code,
}

/// An event that counts nothing and tells what threads do on one core, into a buffer that is to be
/// mapped: those of `tid` and the threads it starts, or all on the machine without a `tid`. Each record
/// ends with its time. It is on at once.
pub(super) fn open_task(told: Told, tid: Option<i32>, cpu: i32) -> io::Result<OwnedFd> {
    const SAMPLE_TIME: u64 = 1 << 2;
    let told = match told {
        Told::Lives => COMM | TASK,
        Told::Code => MMAP,
    };
    let family = if tid.is_some() { INHERIT | INHERIT_THREAD | REMOVE_ON_EXEC } else { 0 };
    let attributes = Attributes {
        config: PERF_COUNT_SW_DUMMY,
        sample_type: SAMPLE_TIME,
        flags: family | told | EXCLUDE_KERNEL | EXCLUDE_HV | SAMPLE_ID_ALL | USE_CLOCK,
        clock: libc::CLOCK_MONOTONIC,
        ..TASK_CLOCK
    };
    perf_event_open(&attributes, tid.unwrap_or(-1), cpu)
}

/// An event that counts nothing, is never on and is not inherited: with it a thread's events are no
/// longer those of the threads that it starts, and the kernel does not exchange them with theirs.
pub(super) fn open_anchor(tid: i32) -> io::Result<OwnedFd> {
    let attributes = Attributes {
        config: PERF_COUNT_SW_DUMMY,
        flags: DISABLED | EXCLUDE_KERNEL | EXCLUDE_HV | REMOVE_ON_EXEC,
        ..TASK_CLOCK
    };
    let any_cpu = -1;
    perf_event_open(&attributes, tid, any_cpu)
}

/// Disabled, inherited by threads, gone at exec.
const COMMON: u64 = ALONE | INHERIT | INHERIT_THREAD;
/// The same for a thread without those that it starts.
const ALONE: u64 = DISABLED | EXCLUDE_HV | REMOVE_ON_EXEC;
const TASK_CLOCK: Attributes = Attributes {
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

/// The user registers of a record in DWARF's order.
pub(super) fn registers(words: [u64; USER_REGISTERS]) -> Registers {
    let [ax, bx, cx, dx, si, di, bp, sp, ip, r8, r9, r10, r11, r12, r13, r14, r15] = words;
    Registers {
        pc: ip,
        sp,
        fp: bp,
        gpr: [ax, dx, cx, bx, si, di, bp, sp, r8, r9, r10, r11, r12, r13, r14, r15],
    }
}

fn perf_event_open(attributes: &Attributes, tid: i32, cpu: i32) -> io::Result<OwnedFd> {
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
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as i32) })
}

/// How many descriptors there may be: as many as the kernel allows, since one for each thread there
/// is at attach may be more than a shell allows.
pub(super) fn descriptor_limit() -> u64 {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return u64::MAX };
    match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => hard,
        Err(_) => soft,
    }
}

/// A descriptor that is readable when the process is gone.
pub(super) fn pidfd(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just returned it to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as i32) })
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn what_hangs_is_not_waited_for() {
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
