//! Of the accounts, with clocks that are made up and with those of this process.

use std::hint::black_box;

use nix::sys::signal::{Signal, kill};

use super::*;

const MS: u64 = 1_000_000;

/// Of processes whose threads are known, with no clocks of their own.
fn book(numbers: &[Number]) -> Book {
    let mut book = Book::default();
    for number in numbers {
        book.accounts.insert(*number, Account { is_open: true, ..Account::default() });
    }
    book
}

fn charged(book: &Book) -> Vec<u64> {
    book.accounts.values().map(|it| it.charged_ns).collect()
}

fn hand_over(book: &Book, samples: &[(Number, u64)]) {
    for (number, count) in samples {
        book.accounts[number].handed.fetch_add(*count, Ordering::Relaxed);
    }
}

#[test]
fn parts_are_as_their_weights_and_nothing_is_left_over() {
    assert_eq!(parts(10, &[1, 1, 1]), [3, 3, 4]);
    assert_eq!(parts(10, &[0, 0, 0]), [3, 3, 4]);
    assert_eq!(parts(7, &[3, 0, 1]), [5, 0, 2]);
    assert_eq!(parts(u64::MAX, &[u64::MAX, u64::MAX]).iter().sum::<u64>(), u64::MAX);
    assert!(parts(10, &[]).is_empty());
}

#[test]
fn each_is_charged_its_own_thread_and_its_part_of_the_rest() {
    let mut book = book(&[1, 2, 3]);
    hand_over(&book, &[(1, 600), (2, 200)]);
    // Ten of the threads, eight of what they have in common.
    book.share_out(&[(1, 5 * MS), (2, 4 * MS), (3, MS)], 18 * MS);
    assert_eq!(charged(&book), [11 * MS, 6 * MS, MS]);
    // Nothing was handed over since: as before.
    book.halve();
    book.share_out(&[(1, 5 * MS), (2, 4 * MS), (3, 2 * MS)], 23 * MS);
    assert_eq!(charged(&book), [14 * MS, 7 * MS, 2 * MS]);
    assert_eq!(charged(&book).iter().sum::<u64>(), 23 * MS, "all that was used");
}

#[test]
fn what_was_handed_over_long_ago_counts_less_and_sharing_often_ages_nothing() {
    let mut book = book(&[1, 2]);
    hand_over(&book, &[(1, 100)]);
    for turn in 1..=8 {
        book.share_out(&[], turn * MS);
    }
    assert_eq!(charged(&book), [8 * MS, 0]);
    book.halve();
    hand_over(&book, &[(2, 50)]);
    book.share_out(&[], 10 * MS);
    assert_eq!(charged(&book), [9 * MS, MS]);
}

#[test]
fn who_comes_later_pays_for_nothing_that_was_before_and_who_has_gone_for_nothing_after() {
    let mut book = book(&[1]);
    book.share_out(&[(1, MS)], 3 * MS);
    book.accounts.insert(2, Account { is_open: false, ..Account::default() });
    // The thread of the second prepares: that is not the first one's either.
    book.share_out(&[(1, MS), (2, 6 * MS)], 9 * MS);
    assert_eq!(charged(&book), [3 * MS, 0]);
    book.accounts.get_mut(&2).unwrap().is_open = true;
    book.share_out(&[(1, MS), (2, 7 * MS)], 14 * MS);
    assert_eq!(charged(&book), [5 * MS, 3 * MS]);
    book.accounts.remove(&1);
    book.share_out(&[(2, 7 * MS)], 15 * MS);
    assert_eq!(charged(&book), [4 * MS]);
}

#[test]
fn what_is_used_while_nobody_is_sampled_is_nobodys() {
    let mut book = book(&[1]);
    book.accounts.get_mut(&1).unwrap().is_open = false;
    book.share_out(&[(1, 2 * MS)], 50 * MS);
    book.accounts.get_mut(&1).unwrap().is_open = true;
    book.share_out(&[(1, 3 * MS)], 53 * MS);
    assert_eq!(charged(&book), [3 * MS]);
}

#[test]
fn clocks_that_disagree_for_a_moment_charge_nothing_twice() {
    let mut book = book(&[1, 2]);
    book.share_out(&[(1, 4 * MS), (2, 4 * MS)], 7 * MS);
    assert_eq!(charged(&book), [4 * MS, 4 * MS]);
    book.share_out(&[(1, 4 * MS), (2, 4 * MS)], 10 * MS);
    assert_eq!(charged(&book), [5 * MS, 5 * MS]);
}

/// No process has such an id.
const NOBODY: i32 = 99_999_999;

fn burn(length: Duration) {
    let begin = clock_ns(ClockId::CLOCK_THREAD_CPUTIME_ID);
    while clock_ns(ClockId::CLOCK_THREAD_CPUTIME_ID) - begin < length.as_nanos() as u64 {
        black_box((0..1000).sum::<u64>());
    }
}

/// A process that computes when it is told to.
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

    /// Computes for at least so long, and stands still again.
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
        // Already gone is as good as killed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_a_guardian_uses_is_charged_once_and_nothing_of_before() {
    let guardian = Busy::start();
    guardian.compute(20 * MS);
    let ledger = Arc::new(Ledger::default());
    let mut charge = ledger.account(1, guardian.pid());
    charge.begin();
    let begin_ns = guardian.used_ns();
    // What other tests of this process use is common, and would be charged as well.
    charge.set_open(false);
    let before_ns = charge.ns(true);
    guardian.compute(20 * MS);
    assert_eq!(charge.ns(true) - before_ns, guardian.used_ns() - begin_ns);
}

#[test]
fn a_thread_is_charged_what_it_uses_but_for_what_it_leaves_out() {
    let ledger = Arc::new(Ledger::default());
    let one = |number: Number, length: Duration| {
        let ledger = Arc::clone(&ledger);
        move || {
            let _worker = ledger.enter(number);
            burn(Duration::from_millis(60));
            let mut charge = ledger.account(number, NOBODY);
            burn(Duration::from_millis(20));
            charge.begin();
            let before_ns = clock_ns(ClockId::CLOCK_THREAD_CPUTIME_ID);
            burn(length);
            charge.without(|| burn(Duration::from_millis(60)));
            let own_ns = clock_ns(ClockId::CLOCK_THREAD_CPUTIME_ID) - before_ns - 60 * MS;
            (own_ns, charge.ns(true))
        }
    };
    let begin_ns = clock_ns(ClockId::CLOCK_PROCESS_CPUTIME_ID);
    let threads = [(1, 20), (2, 40)]
        .map(|(number, ms)| std::thread::spawn(one(number, Duration::from_millis(ms))));
    let told = threads.map(|it| it.join().unwrap());
    let all_ns = clock_ns(ClockId::CLOCK_PROCESS_CPUTIME_ID) - begin_ns;
    for (own_ns, charged_ns) in told {
        // Other tests run in this process: their time is common.
        assert!(charged_ns + MS >= own_ns, "{told:?}");
    }
    let sum_ns = told[0].1 + told[1].1;
    assert!(sum_ns + (4 * 60 + 2 * 20) * MS <= all_ns + MS, "{told:?} of {all_ns}");
    assert!(ledger.lock().accounts.is_empty());
}
