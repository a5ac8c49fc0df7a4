//! The `signal` engine: a perf event for each thread, whose expiry sends a signal that is ignored
//! by default.
//!
//! The kernel notifies the owner of an event's descriptor, as it does for a socket (`F_SETSIG` in
//! fcntl(2)). The owner is the thread that the event counts. So the program may do anything with
//! its signals and loses samples only. (Measured: no EINTR in 879 sleeps at 5 kHz. An expiry costs
//! 32 us instead of the 15 us with SIGTRAP, in a virtual machine.)
//!
//! A thread cannot inherit such an event: its expiries would notify the parent. Until a new thread
//! has its own event, the events that sample without a signal
//! ([`KernelEvents`](super::kernel::KernelEvents)) sample its user mode, too.
//!
//! # Invariants
//! - An event counts user mode only: an expiry in the kernel would interrupt a system call.
//! - A thread's slot holds the word of its event before the event is enabled.
//!
//! # Safety
//! Three operations on descriptors that nix does not wrap.
#![allow(unsafe_code, reason = "fcntl with F_SETSIG and F_SETOWN_EX")]

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use traceprof_abi::event::EventWord;
use traceprof_abi::segment::DataSegment;
use traceprof_abi::sync::Ordering;

use crate::proc::{self, Status};
use crate::record::contract::clock::monotonic_now_ns;
use crate::record::contract::sampling::Setup;
use crate::record::source::perf::{self, EventFamily};
use crate::record::source::program::TargetThreads;
use crate::record::source::signal_blocked::blocks;
use crate::record::target::signals::{LeftOutThread, is_listed};

/// The event of one thread.
struct OwnEvent {
    tid: i32,
    descriptor: OwnedFd,
    /// When it was enabled, in CLOCK_MONOTONIC nanoseconds.
    since_ns: Option<u64>,
}

/// The events of one recording, by the threads' lives.
pub(crate) struct SignalEvents {
    pid: i32,
    data: DataSegment,
    setup: Setup,
    signal: i32,
    family: EventFamily,
    events: HashMap<u32, OwnEvent>,
    /// The lives that were there at the last [`Self::cover`], and whether some of them were new.
    seen: HashSet<u32>,
    has_young: bool,
    /// The version of the set of threads then.
    version: (usize, usize),
    /// Threads that get no event: they wait for its signal, or their stack has no room for it.
    left_out: Vec<LeftOutThread>,
    /// Lives that get no event, or cannot have one.
    excluded: HashSet<u32>,
    /// Lives that block the signal, with their thread ids.
    blocked: HashMap<u32, i32>,
    /// The reason why the first thread without an event could not have one, and whether the user
    /// knows it.
    refused: Option<String>,
    is_refusal_told: bool,
}

impl SignalEvents {
    /// Starts without events. The agent handles `signal`.
    pub(crate) fn start(
        (pid, data): (i32, DataSegment),
        (setup, family): (Setup, EventFamily),
        signal: i32,
        left_out: Vec<LeftOutThread>,
    ) -> Self {
        Self {
            pid,
            data,
            setup,
            signal,
            family,
            events: HashMap::new(),
            seen: HashSet::new(),
            has_young: false,
            version: (0, 0),
            left_out,
            excluded: HashSet::new(),
            blocked: HashMap::new(),
            refused: None,
            is_refusal_told: false,
        }
    }

    /// Opens a disabled event for each of these threads. A parked program blocks all signals until
    /// it runs.
    pub(crate) fn open_all(&mut self, threads: &impl TargetThreads, is_parked: bool) {
        let lives: Vec<(u32, i32)> = threads.lives().map(|it| (it.life, it.tid)).collect();
        for (life, tid) in lives {
            self.seen.insert(life);
            if is_parked || self.is_signal_wanted(life, tid) {
                self.add(life, tid);
            }
        }
    }

    /// Closes the events of threads that have exited, and opens events for threads that were there
    /// at the last call already. Most threads that are younger will not live much longer.
    ///
    /// Returns whether something has changed.
    pub(crate) fn cover(&mut self, threads: &impl TargetThreads) -> bool {
        let before = std::mem::replace(&mut self.version, threads.version());
        if before == self.version && !self.has_young {
            return false;
        }
        let alive: HashMap<u32, i32> = threads.lives().map(|it| (it.life, it.tid)).collect();
        self.events.retain(|life, _| alive.contains_key(life));
        self.excluded.retain(|life| alive.contains_key(life));
        self.blocked.retain(|life, _| alive.contains_key(life));
        let inner: HashMap<i32, u32> = threads.alive().collect();
        let before = std::mem::replace(&mut self.seen, alive.keys().copied().collect());
        self.has_young = self.seen.iter().any(|life| !before.contains(life));
        for (life, tid) in alive {
            let is_due = before.contains(&life) && !self.events.contains_key(&life);
            let Some(inner) = inner.get(&tid).filter(|_| is_due) else { continue };
            // An event that was opened in another program would only send it a signal that is
            // ignored, but it would have no samples.
            if self.is_signal_wanted(life, tid) && self.add(life, tid) && !threads.is_program_gone()
            {
                self.note(*inner);
                self.enable_one(life);
            }
        }
        true
    }

    /// Returns whether a thread may get the signal, and does not block it now.
    fn is_signal_wanted(&mut self, life: u32, tid: i32) -> bool {
        if self.excluded.contains(&life) || self.blocked.contains_key(&life) {
            return false;
        }
        if is_listed(&self.left_out, self.pid, tid) {
            self.excluded.insert(life);
            return false;
        }
        let is_blocked = blocks(self.pid, tid, self.signal).is_some();
        if is_blocked {
            self.blocked.insert(life, tid);
        }
        !is_blocked
    }

    fn add(&mut self, life: u32, tid: i32) -> bool {
        match open(tid, self.period_ns(), self.signal) {
            Ok(descriptor) => {
                self.events.insert(life, OwnEvent { tid, descriptor, since_ns: None });
                true
            }
            // The thread has exited.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => false,
            Err(error) => {
                self.excluded.insert(life);
                self.refused.get_or_insert_with(|| error.to_string());
                false
            }
        }
    }

    fn period_ns(&self) -> u64 {
        self.setup.period_ns.saturating_mul(u64::from(self.word().weight()))
    }

    /// Returns the word of all events.
    fn word(&self) -> EventWord {
        EventWord::new(0, self.family.shift, self.family.number)
    }

    /// Notes the event in the thread's slot.
    fn note(&self, inner: u32) {
        let threads = self.data.threads();
        let slot = threads.claim(inner).index().and_then(|index| threads.slots.get(index));
        if let Some(slot) = slot {
            // Relaxed: a handler that reads it late gives one sample another weight.
            slot.event.store(self.word().0.wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// Returns the threads that have an event, each with its event's word.
    pub(crate) fn threads(&self) -> impl Iterator<Item = (i32, EventWord)> {
        self.events.values().map(|event| (event.tid, self.word()))
    }

    /// Returns the number of events.
    pub(crate) fn len(&self) -> usize {
        self.events.len()
    }

    /// Returns the threads that signals sample, and since when, in CLOCK_MONOTONIC nanoseconds.
    pub(crate) fn sampled(&self) -> HashMap<u32, u64> {
        let since = |event: &OwnEvent| Some((event.tid as u32, event.since_ns?));
        self.events.values().filter_map(since).collect()
    }

    /// Returns the CPU time of the threads that have an event, in nanoseconds.
    pub(crate) fn cpu_ns(&self) -> u64 {
        let of = |event: &OwnEvent| proc::task_cpu_or_ticks_ns(self.pid, event.tid).unwrap_or(0);
        self.events.values().map(of).sum()
    }

    /// Starts all events.
    pub(crate) fn enable(&mut self) {
        let lives: Vec<u32> = self.events.keys().copied().collect();
        lives.into_iter().for_each(|life| self.enable_one(life));
    }

    fn enable_one(&mut self, life: u32) {
        if let Some(event) = self.events.get_mut(&life) {
            perf::enable(&event.descriptor);
            event.since_ns.get_or_insert_with(monotonic_now_ns);
        }
    }

    /// Stops all events.
    pub(crate) fn disable(&self) {
        self.events.values().for_each(|event| perf::disable(&event.descriptor));
    }

    /// Closes the events of threads that block the signal, so that events without a signal sample
    /// them. Threads that do so no longer get an event at the next [`Self::cover`].
    pub(crate) fn follow_blocked(&mut self, is_blocked: impl Fn(i32) -> bool) {
        let blocked = self.events.iter().filter(|(_, event)| is_blocked(event.tid));
        let blocked: Vec<(u32, i32)> = blocked.map(|(life, event)| (*life, event.tid)).collect();
        for (life, tid) in blocked {
            self.events.remove(&life);
            self.blocked.insert(life, tid);
        }
        let (before, pid, signal) = (self.blocked.len(), self.pid, self.signal);
        self.blocked.retain(|_, tid| blocks(pid, *tid, signal).is_some());
        self.has_young |= self.blocked.len() < before;
    }

    /// Returns why a thread has no event, once, if the kernel refused one.
    pub(crate) fn take_refused(&mut self) -> Option<String> {
        self.refused.take().filter(|_| !std::mem::replace(&mut self.is_refusal_told, true))
    }

    /// Makes all events send another signal, which the agent handles.
    pub(crate) fn set_signal(&mut self, signal: i32) -> io::Result<()> {
        self.signal = signal;
        self.events.values().try_for_each(|event| set_signal(&event.descriptor, signal))
    }

    /// Changes the rate of all events.
    pub(crate) fn set_rate(
        &mut self,
        family: EventFamily,
        threads: &impl TargetThreads,
    ) -> io::Result<()> {
        self.family = family;
        let period_ns = self.period_ns();
        let inner: HashMap<i32, u32> = threads.alive().collect();
        for event in self.events.values() {
            if let Some(inner) = inner.get(&event.tid) {
                self.note(*inner);
            }
            perf::set_period(&event.descriptor, period_ns)?;
        }
        Ok(())
    }
}

/// Whether the kernel sends the signal of an event of this process to a process with this status.
///
/// It drops the signal without an error if not: see `sigio_perm` in the kernel's fs/fcntl.c.
pub(crate) fn may_notify(status: &Status) -> bool {
    let (uid, euid) = (nix::unistd::getuid().as_raw(), nix::unistd::geteuid().as_raw());
    let is_of = |user: u32| user == status.uid || user == status.suid;
    euid == 0 && proc::is_initial_user_namespace() || is_of(uid) || is_of(euid)
}

/// Opens a disabled event that counts the user mode of a thread, and sends it this signal once in
/// each period, in nanoseconds.
pub(crate) fn open(tid: i32, period_ns: u64, signal: i32) -> io::Result<OwnedFd> {
    let event = perf::open_notifying(tid, period_ns)?;
    notify(&event, tid, signal)?;
    Ok(event)
}

/// Makes an event send this signal to the thread that it counts.
fn notify(event: &OwnedFd, tid: i32, signal: i32) -> io::Result<()> {
    /// `struct f_owner_ex`.
    #[repr(C)]
    struct DescriptorOwner {
        kind: i32,
        id: i32,
    }
    const F_SETOWN_EX: i32 = 15;
    const F_OWNER_TID: i32 = 0;
    set_signal(event, signal)?;
    let owner = DescriptorOwner { kind: F_OWNER_TID, id: tid };
    // SAFETY: the operation reads the structure.
    done(unsafe { libc::fcntl(event.as_raw_fd(), F_SETOWN_EX, &raw const owner) })?;
    // SAFETY: the operation takes an integer.
    done(unsafe { libc::fcntl(event.as_raw_fd(), libc::F_SETFL, libc::O_ASYNC) })
}

fn set_signal(event: &OwnedFd, signal: i32) -> io::Result<()> {
    const F_SETSIG: i32 = 10;
    // SAFETY: the operation takes an integer.
    done(unsafe { libc::fcntl(event.as_raw_fd(), F_SETSIG, signal) })
}

fn done(result: i32) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
