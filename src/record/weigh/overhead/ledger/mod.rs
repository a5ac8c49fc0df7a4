//! Charges the recorder's own CPU time to the target processes, each nanosecond to one process.
//!
//! Each process has one thread of the recorder and one guardian, and is charged the CPU time of
//! both. All other CPU time is common: the threads that write, symbolize and search for children,
//! and the small helper threads. The ledger divides it in proportion to the samples that the
//! processes have handed over recently, or in equal parts if there are none.
//!
//! # Invariants
//! - All charges together never exceed the CPU time that the recorder has used while any process
//!   was sampled.
//! - The CPU time of a process's thread before its sampling begins, and after it ends, is charged
//!   to no process.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::time::ClockId;
use nix::unistd::{Pid, gettid};

use crate::record::batch::process::ProcessNumber;
use crate::record::contract::clock::{clock_ns, thread_clock};

/// The interval between two divisions of the common time, unless a caller needs an exact number.
/// Each division reads the clocks of all threads.
const SHARE_INTERVAL: Duration = Duration::from_millis(50);

/// The accounts of all processes of a recording.
#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<LedgerState>);

/// The account of a process, open while it is sampled.
#[derive(Debug)]
pub(crate) struct Charge {
    ledger: Arc<Ledger>,
    number: ProcessNumber,
    guardian: Option<ClockId>,
    guardian_start_ns: u64,
    /// The charge when the account was opened, for an earlier program, in nanoseconds.
    start_ns: u64,
}

/// Marks the calling thread as the thread of a process, until this is dropped.
pub(crate) struct Worker<'a> {
    ledger: &'a Ledger,
    number: ProcessNumber,
}

impl Ledger {
    /// Charges the calling thread to this process from now on.
    pub(crate) fn enter(&self, number: ProcessNumber) -> Worker<'_> {
        self.lock().enter(number);
        Worker { ledger: self, number }
    }

    /// Returns the counter of samples that a process has handed over, for the caller to increment.
    pub(crate) fn handed_over(&self, number: ProcessNumber) -> Arc<AtomicU64> {
        Arc::clone(&self.lock().accounts.entry(number).or_default().handed_over)
    }

    /// Makes the account of a process, whose thread is the calling thread. Nothing is charged yet.
    pub(crate) fn account(self: &Arc<Self>, number: ProcessNumber, guardian: i32) -> Charge {
        self.lock().enter(number);
        let guardian = nix::time::clock_getcpuclockid(Pid::from_raw(guardian)).ok();
        Charge { ledger: Arc::clone(self), number, guardian, guardian_start_ns: 0, start_ns: 0 }
    }

    fn lock(&self) -> MutexGuard<'_, LedgerState> {
        // The state consists of numbers, each of which is valid at any time.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        let mut state = self.ledger.lock();
        state.share();
        state.accounts.remove(&self.number);
    }
}

impl Charge {
    /// Starts to charge.
    pub(super) fn begin(&mut self) {
        self.set_open(true);
        self.guardian_start_ns = self.guardian.map_or(0, clock_ns);
        let state = self.ledger.lock();
        self.start_ns = state.accounts.get(&self.number).map_or(0, |it| it.charged_ns);
    }

    /// Returns what the process has been charged since the account was opened, in nanoseconds.
    ///
    /// The number is up to date if it must be exact, and else a moment old.
    pub(super) fn charged_ns(&self, is_exact: bool) -> u64 {
        let mut state = self.ledger.lock();
        if is_exact || state.shared_at.is_none_or(|at| at.elapsed() >= SHARE_INTERVAL) {
            state.share();
        }
        let charged_ns = state.accounts.get(&self.number).map_or(0, |it| it.charged_ns);
        let guardian_ns = self.guardian.map_or(0, clock_ns);
        charged_ns.saturating_sub(self.start_ns)
            + guardian_ns.saturating_sub(self.guardian_start_ns)
    }

    /// Does some work in the process's thread without a charge.
    pub(super) fn uncharged<T>(&self, work: impl FnOnce() -> T) -> T {
        self.set_open(false);
        let done = work();
        self.set_open(true);
        done
    }

    fn set_open(&self, is_open: bool) {
        let mut state = self.ledger.lock();
        state.share();
        if let Some(account) = state.accounts.get_mut(&self.number) {
            account.is_open = is_open;
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.set_open(false);
    }
}

/// The account of one process.
#[derive(Debug, Default)]
struct Account {
    /// The CPU clock of its thread.
    clock: Option<ClockId>,
    /// The reading of that clock at the last division, in nanoseconds.
    thread_ns: u64,
    is_open: bool,
    charged_ns: u64,
    /// The number of samples that the process has handed over.
    handed_over: Arc<AtomicU64>,
    /// That number at the last division.
    shared_samples: u64,
    /// The number of recent samples: the new ones, and half of the earlier number.
    recent: u64,
}

/// All accounts.
#[derive(Debug, Default)]
struct LedgerState {
    accounts: BTreeMap<ProcessNumber, Account>,
    /// The CPU time of the processes' threads, present and former, while they belonged to one.
    threads_ns: u64,
    /// The common CPU time up to the last division, whether it was charged or not.
    common_ns: u64,
    shared_at: Option<Instant>,
    /// When the numbers of recent samples were last halved. That is not done at each division,
    /// since every child that comes and goes causes several.
    halved_at: Option<Instant>,
}

impl LedgerState {
    fn enter(&mut self, number: ProcessNumber) {
        let account = self.accounts.entry(number).or_default();
        if account.clock.is_none() {
            let clock = thread_clock(gettid().as_raw());
            (account.clock, account.thread_ns) = (Some(clock), clock_ns(clock));
        }
    }

    /// Charges the CPU time since the last division.
    fn share(&mut self) {
        let clocks =
            self.accounts.iter().map(|(number, it)| (*number, it.clock.map_or(0, clock_ns)));
        let threads: Vec<(ProcessNumber, u64)> = clocks.collect();
        let now = Instant::now();
        if self.halved_at.is_none_or(|at| now.saturating_duration_since(at) >= SHARE_INTERVAL) {
            self.halve();
            self.halved_at = Some(now);
        }
        // Read last, so that it includes what the threads' clocks have shown.
        self.share_out(&threads, clock_ns(ClockId::CLOCK_PROCESS_CPUTIME_ID));
        self.shared_at = Some(now);
    }

    /// Halves the numbers of recent samples, so that earlier samples count for less.
    fn halve(&mut self) {
        self.accounts.values_mut().for_each(|it| it.recent /= 2);
    }

    /// Charges by the readings of the threads' clocks and of the recorder's process clock.
    fn share_out(&mut self, threads: &[(ProcessNumber, u64)], recorder_ns: u64) {
        for (number, now_ns) in threads {
            let Some(account) = self.accounts.get_mut(number) else { continue };
            let used_ns = now_ns.saturating_sub(account.thread_ns);
            account.thread_ns += used_ns;
            self.threads_ns += used_ns;
            account.charged_ns += if account.is_open { used_ns } else { 0 };
        }
        let common_ns = recorder_ns.saturating_sub(self.threads_ns);
        let new_ns = common_ns.saturating_sub(self.common_ns);
        self.common_ns += new_ns;
        let mut open: Vec<&mut Account> =
            self.accounts.values_mut().filter(|it| it.is_open).collect();
        for account in &mut open {
            // Relaxed: a count. Samples that are handed over later belong to the next division.
            let handed_over = account.handed_over.load(Ordering::Relaxed);
            account.recent += handed_over.saturating_sub(account.shared_samples);
            account.shared_samples = handed_over;
        }
        let weights: Vec<u64> = open.iter().map(|it| it.recent).collect();
        for (account, part_ns) in open.iter_mut().zip(parts(new_ns, &weights)) {
            account.charged_ns += part_ns;
        }
    }
}

/// Divides a number in proportion to weights, or in equal parts if all weights are zero.
///
/// The sum of the parts is the number.
fn parts(whole: u64, weights: &[u64]) -> Vec<u64> {
    let is_weightless = weights.iter().all(|weight| *weight == 0);
    // Weights are capped, which makes no visible difference, so that all products fit.
    let capped = |weight: u64| u128::from(weight.min(u64::from(u32::MAX)));
    let weight = |weight: &u64| if is_weightless { 1 } else { capped(*weight) };
    let all: u128 = weights.iter().map(weight).sum();
    let mut up_to = 0;
    let mut given = 0;
    let part = |it: &u64| {
        up_to += weight(it);
        // The cast is lossless: the quotient is not larger than `whole`.
        let until = (u128::from(whole) * up_to / all.max(1)) as u64;
        let part = until - given;
        given = until;
        part
    };
    weights.iter().map(part).collect()
}

#[cfg(test)]
mod tests;
