//! The real agent in a victim, with a minimal recorder.
//!
//! # Safety
//! The segments have the layout's lengths, and are accessed only through its types.
#![allow(unsafe_code, reason = "shared memory and queued signals in tests")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use traceprof_abi::layout::{self, Counter, MAGIC, Operation, PRIMING, prime_value};
use traceprof_abi::segment::DataSegment;
use traceprof_abi::sync::Ordering;
use traceprof_abi::thread::ThreadSlot;

use super::stand_in::{OwnedSegment, start_guardian};
use crate::inject::{Access, AttachPlan, Guardian, SharedSegment, find_gap, image};
use crate::proc;

const COOKIE: u32 = 0x1234;
pub(super) const PERIOD_NS: u64 = 1_000_000;
/// A signal that kills a process without a handler for it.
pub(super) const SIGNAL: i32 = 50;

/// The three segments with the agent, and the plan for one target.
pub(super) struct Agent {
    pub(super) plan: AttachPlan,
    _code: OwnedSegment,
    _tables: OwnedSegment,
    data: OwnedSegment,
}

impl Agent {
    pub(super) fn new(pid: i32) -> Agent {
        let status = proc::status(pid).unwrap();
        let owner = (status.euid, status.egid);
        let lengths = [layout::CODE_LEN, layout::TABLES_LEN, layout::DATA_LEN];
        let [code, tables, data] = lengths.map(|len| OwnedSegment::create(len, owner));
        let base = find_gap(&proc::mappings(pid).unwrap(), layout::SPAN).unwrap();
        let len = layout::CODE_LEN as usize;
        // SAFETY: the segment is that long, and nothing else has it attached yet.
        let room = unsafe { std::slice::from_raw_parts_mut(code.base, len) };
        let entries = image::lay_out(room, base).unwrap();
        let segment = |own: &OwnedSegment, distance: u64, len: u64, access: Access| SharedSegment {
            shm_id: own.id,
            avma: base + distance,
            len,
            access,
        };
        let plan = AttachPlan {
            pid,
            start_time: proc::start_time(pid).unwrap(),
            code: segment(&code, 0, lengths[0], Access::ReadExecute),
            tables: segment(&tables, layout::TABLES_DISTANCE, lengths[1], Access::Read),
            data: segment(&data, layout::DATA_DISTANCE, lengths[2], Access::ReadWrite),
            entry_avma: entries.entry,
            restorer_avma: entries.restorer,
            signals: [0; layout::SIGNALS],
            hold_fd: None,
        };
        let agent = Agent { plan, _code: code, _tables: tables, data };
        let control = agent.data().control();
        for (word, value) in [
            (&control.version, traceprof_abi::ABI_VERSION),
            (&control.cookie, COOKIE),
            (&control.pid, status.inner_tgid as u32),
            (&control.slots_limit, 4096),
            (&control.engine, layout::EngineMode::Timer as u32),
        ] {
            word.store(value, Ordering::Relaxed);
        }
        control.period_ns.store(PERIOD_NS, Ordering::Relaxed);
        control.magic.store(MAGIC, Ordering::Relaxed);
        agent.lease(Duration::from_secs(60));
        agent
    }

    pub(super) fn data(&self) -> DataSegment {
        // SAFETY: attached page aligned, with the layout's length, while `self` lives.
        unsafe { DataSegment::new(self.data.base) }
    }

    /// Renews the lease of a live recorder.
    pub(super) fn lease(&self, for_: Duration) {
        let until = monotonic_ns() + for_.as_nanos() as u64;
        self.data().control().lease_until_ns.store(until, Ordering::Relaxed);
    }

    /// Attaches without any signal, then sets one and installs its handler in the running agent.
    pub(super) fn attach(&self, signal: i32) -> Guardian {
        self.attach_with(start_guardian(), signal)
    }

    /// Does the same as [`Self::attach`], with a guardian that was started before.
    pub(super) fn attach_with(&self, mut guardian: Guardian, signal: i32) -> Guardian {
        guardian.attach(&self.plan).unwrap();
        let control = self.data().control();
        control.signals[PRIMING].signal.store(signal as u32, Ordering::Relaxed);
        guardian.run_entry(Operation::Install).unwrap();
        assert_eq!(control.signals[PRIMING].installed.load(Ordering::Relaxed), 1);
        control.state.store(layout::AgentState::Sampling as u32, Ordering::Release);
        guardian
    }

    /// Gives every thread a slot, and requests its timer.
    pub(super) fn want_timers(&self) -> BTreeMap<i32, usize> {
        let threads = self.data().threads();
        let slot = |tid: i32| {
            let index = threads.find(tid as u32).or_else(|| threads.claim(tid as u32).index());
            (tid, index.unwrap())
        };
        let slots: BTreeMap<_, _> =
            proc::tasks(self.plan.pid).unwrap().into_iter().map(slot).collect();
        slots.values().for_each(|&index| self.data().want_timer(index));
        slots
    }

    pub(super) fn slot(&self, index: usize) -> &ThreadSlot {
        &self.data().threads().slots[index]
    }

    pub(super) fn count(&self, counter: Counter) -> u64 {
        self.data().control().counters[counter as usize].load(Ordering::Relaxed)
    }

    /// Returns the number of expiries that the timers have reported.
    pub(super) fn periods(&self) -> u64 {
        self.count(Counter::TimerExpiries) + self.count(Counter::TimerOverruns)
    }

    /// Sends the priming signal to a thread.
    pub(super) fn prime(&self, tid: i32, signal: i32) {
        // si_signo, si_errno, si_code, and the value at byte 24.
        let mut words = [0u32; 32];
        words[2] = -1i32 as u32;
        let value = prime_value(COOKIE, monotonic_ns());
        (words[6], words[7]) = (value as u32, (value >> 32) as u32);
        // SAFETY: reads the 128 bytes.
        let sent = unsafe {
            libc::syscall(libc::SYS_rt_tgsigqueueinfo, self.plan.pid, tid, signal, words.as_ptr())
        };
        assert_eq!(sent, 0, "{}", std::io::Error::last_os_error());
    }
}

pub(super) fn monotonic_ns() -> u64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap();
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
}

/// Returns the ids of a process's timers, from the kernel's list.
pub(super) fn timers(pid: i32) -> Vec<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/timers")).unwrap_or_default();
    text.lines().filter(|line| line.starts_with("ID:")).map(String::from).collect()
}

/// Sends any signal; nix has no names for the real-time ones.
pub(super) fn send(pid: i32, signal: i32) {
    // SAFETY: takes numbers.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

/// Leaves a process no room for a queued signal, and so for no timer.
pub(super) fn forbid_pending_signals(pid: i32) {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: reads the limit.
    let set = unsafe { libc::prlimit(pid, libc::RLIMIT_SIGPENDING, &none, std::ptr::null_mut()) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// Returns the CPU time that a process has used, in nanoseconds.
pub(super) fn cpu_ns(pid: i32) -> u64 {
    let mut clock = 0;
    // SAFETY: writes the clock's id.
    assert_eq!(unsafe { libc::clock_getcpuclockid(pid, &mut clock) }, 0);
    let time = nix::time::clock_gettime(nix::time::ClockId::from_raw(clock)).unwrap();
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
}

/// Waits until the condition holds.
pub(super) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < deadline, "timed out waiting for: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
