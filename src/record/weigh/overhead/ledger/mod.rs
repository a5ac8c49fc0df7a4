//! Who the recorder's own CPU time is charged to: each nanosecond of it to one process.
//!
//! A process has a thread of the recorder and a guardian, and what these use is charged to it. All
//! the rest is common: what writes, symbolizes and looks for children, and the threads that do a
//! little beside the one of a process. It is shared out in proportion of the samples that the
//! processes have handed over lately, or in equal parts if there were none.
//!
//! # Invariants
//! - What all are charged together is never more than the recorder has used while any was sampled.
//! - What a process's thread does before its sampling begins, and after its end, is charged to
//!   nobody.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::time::ClockId;
use nix::unistd::{Pid, gettid};

use crate::record::batch::process::Number;
use crate::record::contract::clock::{clock_ns, thread_clock};

/// Between two sharings, unless somebody has to know exactly: each reads the clocks of all threads.
const SHARING: Duration = Duration::from_millis(50);

/// The accounts of all processes of a recording.
#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<Book>);

/// The account of a process, open while it is sampled.
#[derive(Debug)]
pub(crate) struct Charge {
    ledger: Arc<Ledger>,
    number: Number,
    guardian: Option<ClockId>,
    guardian_start_ns: u64,
    /// What was charged when it began, for a program before.
    start_ns: u64,
}

/// The calling thread is a process's, and is known until this is dropped.
pub(crate) struct Worker<'a> {
    ledger: &'a Ledger,
    number: Number,
}

impl Ledger {
    /// The calling thread works for this process from now on.
    pub(crate) fn enter(&self, number: Number) -> Worker<'_> {
        self.lock().enter(number);
        Worker { ledger: self, number }
    }

    /// Counts the samples of a process that are handed over.
    pub(crate) fn handed(&self, number: Number) -> Arc<AtomicU64> {
        Arc::clone(&self.lock().accounts.entry(number).or_default().handed)
    }

    /// Makes the account of a process, which is that of the calling thread. Nothing is charged yet.
    pub(crate) fn account(self: &Arc<Self>, number: Number, guardian: i32) -> Charge {
        self.lock().enter(number);
        let guardian = nix::time::clock_getcpuclockid(Pid::from_raw(guardian)).ok();
        Charge { ledger: Arc::clone(self), number, guardian, guardian_start_ns: 0, start_ns: 0 }
    }

    fn lock(&self) -> MutexGuard<'_, Book> {
        // Numbers, each of which is right by itself.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        let mut book = self.ledger.lock();
        book.share();
        book.accounts.remove(&self.number);
    }
}

impl Charge {
    /// From now on what is used is charged.
    pub(super) fn begin(&mut self) {
        self.set_open(true);
        self.guardian_start_ns = self.guardian.map_or(0, clock_ns);
        let book = self.ledger.lock();
        self.start_ns = book.accounts.get(&self.number).map_or(0, |it| it.charged_ns);
    }

    /// What the process has been charged since this began, in nanoseconds: a moment ago, or up to
    /// now if it has to be exact.
    pub(super) fn ns(&self, is_exact: bool) -> u64 {
        let mut book = self.ledger.lock();
        if is_exact || book.shared_at.is_none_or(|at| at.elapsed() >= SHARING) {
            book.share();
        }
        let charged_ns = book.accounts.get(&self.number).map_or(0, |it| it.charged_ns);
        let guardian_ns = self.guardian.map_or(0, clock_ns);
        charged_ns.saturating_sub(self.start_ns)
            + guardian_ns.saturating_sub(self.guardian_start_ns)
    }

    /// Does something in the process's thread that is not charged.
    pub(super) fn without<T>(&self, work: impl FnOnce() -> T) -> T {
        self.set_open(false);
        let done = work();
        self.set_open(true);
        done
    }

    fn set_open(&self, is_open: bool) {
        let mut book = self.ledger.lock();
        book.share();
        if let Some(account) = book.accounts.get_mut(&self.number) {
            account.is_open = is_open;
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.set_open(false);
    }
}

/// One process.
#[derive(Debug, Default)]
struct Account {
    /// Of its thread.
    clock: Option<ClockId>,
    /// What that showed at the last sharing.
    thread_ns: u64,
    is_open: bool,
    charged_ns: u64,
    /// Samples that were handed over, and how many there were at the last sharing.
    handed: Arc<AtomicU64>,
    known: u64,
    /// Those of late: half of what was before, and what came since.
    lately: u64,
}

/// All of them.
#[derive(Debug, Default)]
struct Book {
    accounts: BTreeMap<Number, Account>,
    /// CPU time of the threads that are or were known, while they were.
    threads_ns: u64,
    /// What is not theirs, as far as it was shared out or was nobody's.
    common_ns: u64,
    shared_at: Option<Instant>,
    /// When what is called late was halved: not at each sharing, of which a child that comes and
    /// goes makes some.
    halved_at: Option<Instant>,
}

impl Book {
    fn enter(&mut self, number: Number) {
        let account = self.accounts.entry(number).or_default();
        if account.clock.is_none() {
            let clock = thread_clock(gettid().as_raw());
            (account.clock, account.thread_ns) = (Some(clock), clock_ns(clock));
        }
    }

    /// Charges what was used since the last sharing.
    fn share(&mut self) {
        let clocks =
            self.accounts.iter().map(|(number, it)| (*number, it.clock.map_or(0, clock_ns)));
        let threads: Vec<(Number, u64)> = clocks.collect();
        let now = Instant::now();
        if self.halved_at.is_none_or(|at| now.saturating_duration_since(at) >= SHARING) {
            self.halve();
            self.halved_at = Some(now);
        }
        // Last: what the threads have used is in it.
        self.share_out(&threads, clock_ns(ClockId::CLOCK_PROCESS_CPUTIME_ID));
        self.shared_at = Some(now);
    }

    /// What was handed over before counts for less.
    fn halve(&mut self) {
        self.accounts.values_mut().for_each(|it| it.lately /= 2);
    }

    /// Charges by what the clocks of threads show, and that of the whole recorder.
    fn share_out(&mut self, threads: &[(Number, u64)], recorder_ns: u64) {
        for (number, now_ns) in threads {
            let Some(account) = self.accounts.get_mut(number) else { continue };
            let used_ns = now_ns.saturating_sub(account.thread_ns);
            account.thread_ns += used_ns;
            self.threads_ns += used_ns;
            account.charged_ns += if account.is_open { used_ns } else { 0 };
        }
        let common_ns = recorder_ns.saturating_sub(self.threads_ns);
        let rest_ns = common_ns.saturating_sub(self.common_ns);
        self.common_ns += rest_ns;
        let mut open: Vec<&mut Account> =
            self.accounts.values_mut().filter(|it| it.is_open).collect();
        for account in &mut open {
            // Relaxed: a count. What is handed over later belongs to the next sharing.
            let handed = account.handed.load(Ordering::Relaxed);
            account.lately += handed.saturating_sub(account.known);
            account.known = handed;
        }
        let weights: Vec<u64> = open.iter().map(|it| it.lately).collect();
        for (account, part_ns) in open.iter_mut().zip(parts(rest_ns, &weights)) {
            account.charged_ns += part_ns;
        }
    }
}

/// A whole in parts that are as their weights, or equal ones of no weight at all; their sum is the
/// whole.
fn parts(whole: u64, weights: &[u64]) -> Vec<u64> {
    let is_weightless = weights.iter().all(|weight| *weight == 0);
    // Of more than that nobody can tell the difference, and all products fit.
    let known = |weight: u64| u128::from(weight.min(u64::from(u32::MAX)));
    let weight = |weight: &u64| if is_weightless { 1 } else { known(*weight) };
    let all: u128 = weights.iter().map(weight).sum();
    let mut up_to = 0;
    let mut given = 0;
    let part = |it: &u64| {
        up_to += weight(it);
        // Not larger than the whole.
        let until = (u128::from(whole) * up_to / all.max(1)) as u64;
        let part = until - given;
        given = until;
        part
    };
    weights.iter().map(part).collect()
}

#[cfg(test)]
mod tests;
