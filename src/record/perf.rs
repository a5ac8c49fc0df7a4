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
//!
//! # Does not
//! - use event limits or refresh (kernels 6.16 and 6.17 hang), or change a period of an inherited
//!   family (it would change one event of many).
#![allow(unsafe_code, reason = "perf_event_open has no safe wrapper")]

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use traceprof_abi::layout::{EVENTS_MAX, SIG_DATA_MARK};

use crate::proc;

/// `struct perf_event_attr` up to `sig_data` (version 7 of it).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    /// Fields that a software clock has no use for.
    unused: [u64; 9],
    sig_data: u64,
}
const ATTRIBUTES_LEN: u32 = 128;
const _: () = assert!(size_of::<Attributes>() == ATTRIBUTES_LEN as usize);

const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_COUNT_SW_TASK_CLOCK: u64 = 1;
const PERF_FLAG_FD_CLOEXEC: u64 = 8;
const DISABLED: u64 = 1 << 0;
const INHERIT: u64 = 1 << 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HV: u64 = 1 << 6;
const INHERIT_THREAD: u64 = 1 << 35;
const REMOVE_ON_EXEC: u64 = 1 << 36;
const SIGTRAP: u64 = 1 << 37;
const IOC_ENABLE: u64 = 0x2400;
const IOC_DISABLE: u64 = 0x2401;
/// Passes over the threads until none is new; each pass halves what is missed, whatever the rate.
const PASSES_MAX: usize = 64;

/// How the events of a recording are set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Setup {
    /// Nanoseconds of CPU time between two samples of a thread.
    pub(super) period_ns: u64,
    /// Time inside the kernel is sampled too.
    pub(super) kernel: bool,
    /// The session's cookie.
    pub(super) cookie: u16,
}

/// The events of one recording, by index.
#[derive(Debug)]
pub(super) struct Events {
    setup: Setup,
    open: BTreeMap<u32, (i32, OwnedFd)>,
    next: u32,
}

/// The best setup that is permitted on this thread: with the kernel's time if `kernel` asks for it
/// and it may be had.
pub(super) fn probe(tid: i32, mut setup: Setup) -> io::Result<Setup> {
    match open(tid, setup, 0) {
        Err(error) if setup.kernel && is_denied(&error) => {
            setup.kernel = false;
            open(tid, setup, 0).map(|_| setup)
        }
        other => other.map(|_| setup),
    }
}

fn is_denied(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM))
}

impl Events {
    /// Opens a disabled event on every thread of the process, over and over until no thread is
    /// new: every later thread descends from one that is covered.
    pub(super) fn open(pid: i32, setup: Setup) -> io::Result<Self> {
        raise_descriptor_limit();
        let mut events = Self { setup, open: BTreeMap::new(), next: 0 };
        let mut covered = std::collections::BTreeSet::new();
        for _ in 0..PASSES_MAX {
            let mut is_new = false;
            for tid in proc::tasks(pid)? {
                is_new |= covered.insert(tid) && events.add(tid)?;
            }
            if !is_new {
                return Ok(events);
            }
        }
        Ok(events)
    }

    /// Opens an event on a thread; false if the thread is gone.
    fn add(&mut self, tid: i32) -> io::Result<bool> {
        if self.next as usize >= EVENTS_MAX {
            return Err(io::Error::other("more threads than events can be told apart"));
        }
        match open(tid, self.setup, self.next) {
            Ok(descriptor) => {
                self.open.insert(self.next, (tid, descriptor));
                self.next += 1;
                Ok(true)
            }
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The threads that have an event of their own, with the event's index.
    pub(super) fn threads(&self) -> impl Iterator<Item = (i32, u32)> {
        self.open.iter().map(|(index, (tid, _))| (*tid, *index))
    }

    /// Number of open events.
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Starts all events, and those inherited from them meanwhile.
    pub(super) fn enable(&self) {
        self.control(IOC_ENABLE);
    }

    /// Stops all events, inherited ones included.
    pub(super) fn disable(&self) {
        self.control(IOC_DISABLE);
    }

    fn control(&self, request: u64) {
        for (_, descriptor) in self.open.values() {
            // A thread that is gone has nothing to switch.
            // SAFETY: the request takes an integer argument.
            unsafe { libc::ioctl(descriptor.as_raw_fd(), request, 0) };
        }
    }

    /// Closes one event and all that were inherited from it; false if it is not open.
    pub(super) fn close(&mut self, index: u32) -> bool {
        self.open.remove(&index).is_some()
    }
}

fn open(tid: i32, setup: Setup, index: u32) -> io::Result<OwnedFd> {
    let mut flags = DISABLED | INHERIT | EXCLUDE_HV | INHERIT_THREAD | REMOVE_ON_EXEC | SIGTRAP;
    if !setup.kernel {
        flags |= EXCLUDE_KERNEL;
    }
    let mark = u64::from(SIG_DATA_MARK) << 48 | u64::from(setup.cookie) << 32;
    let attributes = Attributes {
        kind: PERF_TYPE_SOFTWARE,
        size: ATTRIBUTES_LEN,
        config: PERF_COUNT_SW_TASK_CLOCK,
        sample_period: setup.period_ns,
        flags,
        sig_data: mark | u64::from(index),
        ..Attributes::default()
    };
    let (any_cpu, no_group): (i32, i32) = (-1, -1);
    // SAFETY: the call reads `size` bytes of the attributes.
    let descriptor = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            tid,
            any_cpu,
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

/// One descriptor for each thread there is at attach may be more than a shell allows.
fn raise_descriptor_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // What remains too low shows as EMFILE with its own message.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
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
