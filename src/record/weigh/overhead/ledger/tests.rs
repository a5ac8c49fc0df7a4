//! The accounts, with invented clocks and with those of this process.

use std::hint::black_box;

use nix::sys::signal::{Signal, kill};

use super::*;

const MS: u64 = 1_000_000;

/// Makes open accounts of these processes, without clocks.
fn state(numbers: &[ProcessNumber]) -> LedgerState {
    let mut state = LedgerState::default();
    for number in numbers {
        state.accounts.insert(*number, Account { is_open: true, ..Account::default() });
    }
    state
}

fn charged(state: &LedgerState) -> Vec<u64> {
    state.accounts.values().map(|it| it.charged_ns).collect()
}

fn hand_over(state: &LedgerState, samples: &[(ProcessNumber, u64)]) {
    for (number, count) in samples {
        state.accounts[number].handed_over.fetch_add(*count, Ordering::Relaxed);
    }
}

#[test]
fn parts_are_in_proportion_to_their_weights_and_add_up() {
    assert_eq!(parts(10, &[1, 1, 1]), [3, 3, 4]);
    assert_eq!(parts(10, &[0, 0, 0]), [3, 3, 4]);
    assert_eq!(parts(7, &[3, 0, 1]), [5, 0, 2]);
    assert_eq!(parts(u64::MAX, &[u64::MAX, u64::MAX]).iter().sum::<u64>(), u64::MAX);
    assert!(parts(10, &[]).is_empty());
}

#[test]
fn each_process_is_charged_its_own_thread_and_its_part_of_the_common_time() {
    let mut state = state(&[1, 2, 3]);
    hand_over(&state, &[(1, 600), (2, 200)]);
    // Ten are the threads' own, and eight are common.
    state.share_out(&[(1, 5 * MS), (2, 4 * MS), (3, MS)], 18 * MS);
    assert_eq!(charged(&state), [11 * MS, 6 * MS, MS]);
    // Nothing was handed over since: the proportions stay.
    state.halve();
    state.share_out(&[(1, 5 * MS), (2, 4 * MS), (3, 2 * MS)], 23 * MS);
    assert_eq!(charged(&state), [14 * MS, 7 * MS, 2 * MS]);
    assert_eq!(charged(&state).iter().sum::<u64>(), 23 * MS, "all that was used");
}

#[test]
fn old_samples_count_for_less_and_frequent_divisions_age_nothing() {
    let mut state = state(&[1, 2]);
    hand_over(&state, &[(1, 100)]);
    for turn in 1..=8 {
        state.share_out(&[], turn * MS);
    }
    assert_eq!(charged(&state), [8 * MS, 0]);
    state.halve();
    hand_over(&state, &[(2, 50)]);
    state.share_out(&[], 10 * MS);
    assert_eq!(charged(&state), [9 * MS, MS]);
}

#[test]
fn a_process_pays_only_for_the_time_of_its_sampling() {
    let mut state = state(&[1]);
    state.share_out(&[(1, MS)], 3 * MS);
    state.accounts.insert(2, Account { is_open: false, ..Account::default() });
    // The thread of the second process prepares. The first process does not pay for that either.
    state.share_out(&[(1, MS), (2, 6 * MS)], 9 * MS);
    assert_eq!(charged(&state), [3 * MS, 0]);
    state.accounts.get_mut(&2).unwrap().is_open = true;
    state.share_out(&[(1, MS), (2, 7 * MS)], 14 * MS);
    assert_eq!(charged(&state), [5 * MS, 3 * MS]);
    state.accounts.remove(&1);
    state.share_out(&[(2, 7 * MS)], 15 * MS);
    assert_eq!(charged(&state), [4 * MS]);
}

#[test]
fn time_while_no_process_is_sampled_is_charged_to_none() {
    let mut state = state(&[1]);
    state.accounts.get_mut(&1).unwrap().is_open = false;
    state.share_out(&[(1, 2 * MS)], 50 * MS);
    state.accounts.get_mut(&1).unwrap().is_open = true;
    state.share_out(&[(1, 3 * MS)], 53 * MS);
    assert_eq!(charged(&state), [3 * MS]);
}

#[test]
fn clocks_that_disagree_for_a_moment_charge_nothing_twice() {
    let mut state = state(&[1, 2]);
    state.share_out(&[(1, 4 * MS), (2, 4 * MS)], 7 * MS);
    assert_eq!(charged(&state), [4 * MS, 4 * MS]);
    state.share_out(&[(1, 4 * MS), (2, 4 * MS)], 10 * MS);
    assert_eq!(charged(&state), [5 * MS, 5 * MS]);
}

/// An id that no process has.
const NOBODY: i32 = 99_999_999;

fn burn(length: Duration) {
    let begin = clock_ns(ClockId::CLOCK_THREAD_CPUTIME_ID);
    while clock_ns(ClockId::CLOCK_THREAD_CPUTIME_ID) - begin < length.as_nanos() as u64 {
        black_box((0..1000).sum::<u64>());
    }
}

/// A process that computes on request.
struct Busy(std::process::Child);

impl Busy {
    fn start() -> Self {
        let mut shell = std::process::Command::new("sh");
        let busy = Self(shell.args(["-c", "kill -STOP $$; while :; do :; done"]).spawn().unwrap());
        busy.wait_for("it to stop", || busy.is_stopped());
        busy
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    fn used_ns(&self) -> u64 {
        clock_ns(nix::time::clock_getcpuclockid(Pid::from_raw(self.pid())).unwrap())
    }

    fn is_stopped(&self) -> bool {
        crate::proc::task_stat(self.pid(), self.pid()).is_ok_and(|stat| stat.state == 'T')
    }

    fn wait_for(&self, what: &str, is_there: impl Fn() -> bool) {
        let begin = Instant::now();
        while !is_there() {
            assert!(begin.elapsed() < Duration::from_secs(60), "waited for {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Computes for at least this much CPU time, and stops again.
    fn compute(&self, ns: u64) {
        let until_ns = self.used_ns() + ns;
        kill(Pid::from_raw(self.pid()), Signal::SIGCONT).unwrap();
        self.wait_for("its CPU time", || self.used_ns() >= until_ns);
        kill(Pid::from_raw(self.pid()), Signal::SIGSTOP).unwrap();
        self.wait_for("it to stop", || self.is_stopped());
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        // The child may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_guardian_is_charged_once_and_not_for_the_time_before() {
    let guardian = Busy::start();
    guardian.compute(20 * MS);
    let ledger = Arc::new(Ledger::default());
    let mut charge = ledger.account(1, guardian.pid());
    charge.begin();
    let begin_ns = guardian.used_ns();
    // The CPU time of other tests in this process is common, and would be charged as well.
    charge.set_open(false);
    let before_ns = charge.charged_ns(true);
    guardian.compute(20 * MS);
    assert_eq!(charge.charged_ns(true) - before_ns, guardian.used_ns() - begin_ns);
}

#[test]
fn a_thread_is_charged_for_all_but_its_uncharged_work() {
    let ledger = Arc::new(Ledger::default());
    let one = |number: ProcessNumber, length: Duration| {
        let ledger = Arc::clone(&ledger);
        move || {
            let _worker = ledger.enter(number);
            burn(Duration::from_millis(60));
            let mut charge = ledger.account(number, NOBODY);
            burn(Duration::from_millis(20));
            charge.begin();
            let before_ns = clock_ns(ClockId::CLOCK_THREAD_CPUTIME_ID);
            burn(length);
            charge.uncharged(|| burn(Duration::from_millis(60)));
            let own_ns = clock_ns(ClockId::CLOCK_THREAD_CPUTIME_ID) - before_ns - 60 * MS;
            (own_ns, charge.charged_ns(true))
        }
    };
    let begin_ns = clock_ns(ClockId::CLOCK_PROCESS_CPUTIME_ID);
    let threads = [(1, 20), (2, 40)]
        .map(|(number, ms)| std::thread::spawn(one(number, Duration::from_millis(ms))));
    let charges = threads.map(|it| it.join().unwrap());
    let all_ns = clock_ns(ClockId::CLOCK_PROCESS_CPUTIME_ID) - begin_ns;
    for (own_ns, charged_ns) in charges {
        // Other tests run in this process: their time is common.
        assert!(charged_ns + MS >= own_ns, "{charges:?}");
    }
    let sum_ns = charges[0].1 + charges[1].1;
    assert!(sum_ns + (4 * 60 + 2 * 20) * MS <= all_ns + MS, "{charges:?} of {all_ns}");
    assert!(ledger.lock().accounts.is_empty());
}
