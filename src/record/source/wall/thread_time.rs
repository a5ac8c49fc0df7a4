//! The arithmetic of one thread's time: how long it ran, waited and slept, and where it slept.
//!
//! A check reads the scheduler's account of the thread: how long it ran and how long it waited for
//! a processor since its start. For the remaining time between two checks, the thread was off the
//! processor. Its location is known at the checks only. If two checks find different locations, the
//! thread moved at an unknown moment. Each location gets half of the time, since a check comes at a
//! random moment and is as often too early as too late. If the later location got all of it, every
//! location after another one would get half an interval too much.
//!
//! A thread that runs or waits for a processor at a check may have done so for a time that the
//! scheduler reports only later. Time that seems left for its sleep is therefore reported at the
//! next check.
//!
//! # Invariants
//! - Reported time adds up: all spans together are the time that passed, except for what
//!   [`ThreadTime::owed_ns`] carries to the next check.

use std::sync::Arc;

use crate::proc::Turns;
use crate::record::source::wall::sleep_location::{ThreadLocation, WaitingThread};
use crate::trace::RunState;

/// The interval between two checks of a sleeping thread is one part in this many of its sleep so
/// far.
///
/// A longer interval makes only the moment of a move less exact; an unchanged account still proves
/// that the thread did not move.
const CHECK_SHARE: u64 = 16;
/// The largest difference between an account and the clock.
///
/// Start times are exact to a tick of 10 ms, and running times to a tick of the scheduler.
const SLACK_NS: u64 = 30_000_000;
/// The shortest interval between reports of a continuing sleep, for readers of a growing trace.
const REPORT_MIN_NS: u64 = 850_000_000;
/// The interval between reports is one part in this many of the sleep so far.
const REPORT_SHARE: u64 = 4;
/// The longest interval between reports; if reports were more frequent, a thousand sleepers would
/// fill the file.
const REPORT_MAX_NS: u64 = 10_000_000_000;

/// A thread's time up to the last check.
#[derive(Debug)]
pub(super) struct ThreadTime {
    /// The time up to which all time is reported.
    since_ns: u64,
    turns: Turns,
    /// The location at which the thread slept at the last check.
    asleep: Option<Arc<ThreadLocation>>,
    /// What is read of a thread that waits for a processor at this check.
    waiting: WaitingThread,
    /// Time off the processor before the last check, which found the thread running; the location
    /// is set if known.
    pending: (Option<Arc<ThreadLocation>>, u64),
    /// Time reported as sleep that turned out to be something else.
    owed_ns: u64,
    /// The time of the last check that found the account changed.
    moved_ns: u64,
    /// The time since which the thread has slept, and the time of the last check that found it
    /// asleep.
    asleep_ns: (u64, u64),
    due_ns: u64,
}

/// A piece of a thread's time in one state.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct StateSpan {
    /// The run state.
    pub(super) state: RunState,
    /// The location, if known.
    pub(super) location: Option<Arc<ThreadLocation>>,
    /// Whether the location where the thread last ran is preferred, if known.
    pub(super) has_run: bool,
    /// What was read of a thread that was seen waiting for a processor.
    pub(super) waiting: WaitingThread,
    /// The length in nanoseconds.
    pub(super) ns: u64,
}

impl ThreadTime {
    /// Starts with the first check; earlier time does not count.
    pub(super) fn new(now_ns: u64, turns: Turns) -> Self {
        Self {
            since_ns: now_ns,
            turns,
            asleep: None,
            waiting: WaitingThread::default(),
            pending: (None, 0),
            owed_ns: 0,
            moved_ns: now_ns,
            asleep_ns: (now_ns, now_ns),
            due_ns: now_ns,
        }
    }

    /// Returns whether the next check is due.
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.due_ns
    }

    /// Returns whether an account can belong to this thread.
    ///
    /// Its times must not decrease, nor grow faster than the clock.
    pub(super) fn is_possible(&self, now_ns: u64, turns: Turns) -> bool {
        let run_ns = turns.run_ns.checked_sub(self.turns.run_ns);
        let wait_ns = turns.wait_ns.checked_sub(self.turns.wait_ns);
        let used_ns = run_ns.zip(wait_ns).map(|(run_ns, wait_ns)| run_ns.saturating_add(wait_ns));
        let most_ns = now_ns.saturating_sub(self.moved_ns) + SLACK_NS;
        used_ns.is_some_and(|used_ns| used_ns <= most_ns)
    }

    /// Returns whether a sleeping thread has not run since the last check.
    pub(super) fn is_unchanged(&self, turns: Turns) -> bool {
        turns == self.turns && self.asleep.is_some()
    }

    /// Returns whether the thread sleeps at a location whose stack may be read by another attempt.
    pub(super) fn lacks_stack(&self) -> bool {
        // No stop reaches a thread in uninterruptible sleep.
        let lacks = |at: &ThreadLocation| at.frames.is_empty() && at.state != RunState::Disk;
        self.asleep.as_deref().is_some_and(lacks)
    }

    /// Sets the location of this sleep, so that the time since the last span goes to it.
    pub(super) fn place(&mut self, location: Arc<ThreadLocation>) {
        self.asleep = Some(location);
    }

    /// Continues from this account, which belongs to another thread or to a time before the thread
    /// was watched.
    pub(super) fn restart_from(&mut self, now_ns: u64, turns: Turns, spans: &mut Vec<StateSpan>) {
        self.report(now_ns, spans);
        (self.turns, self.moved_ns, self.asleep) = (turns, now_ns, None);
    }

    /// Notes a check that found the account unchanged; the next check comes after at most
    /// `most_ns`.
    pub(super) fn unchanged(&mut self, now_ns: u64, most_ns: u64, spans: &mut Vec<StateSpan>) {
        self.asleep_ns.1 = now_ns;
        let slept_ns = now_ns.saturating_sub(self.asleep_ns.0);
        let unreported_ns = now_ns.saturating_sub(self.since_ns);
        if unreported_ns >= (slept_ns / REPORT_SHARE).clamp(REPORT_MIN_NS, REPORT_MAX_NS) {
            self.report(now_ns, spans);
        }
        self.due_ns = now_ns + (slept_ns / CHECK_SHARE).min(most_ns);
    }

    /// Sets what is read of a thread that waits for a processor, for the next call of
    /// [`Self::moved`].
    pub(super) fn set_waiting(&mut self, waiting: WaitingThread) {
        self.waiting = waiting;
    }

    /// Notes a check that found the account changed or new, with the thread at this location.
    ///
    /// The location is `None` if the thread runs or could not be located.
    pub(super) fn moved(
        &mut self,
        now_ns: u64,
        turns: Turns,
        location: Option<Arc<ThreadLocation>>,
        spans: &mut Vec<StateSpan>,
    ) {
        let wait_ns = turns.wait_ns.saturating_sub(self.turns.wait_ns);
        let off_ns = self.off_ns(now_ns, turns);
        let before = self.asleep.take();
        let has_run = before.is_none() || location.is_none();
        let run_ns = turns.run_ns.saturating_sub(self.turns.run_ns);
        push(spans, (RunState::Running, true), None, run_ns);
        let near = before.as_ref().or(location.as_ref()).or(self.pending.0.as_ref());
        let waiting = std::mem::take(&mut self.waiting);
        push(spans, (RunState::Runnable, has_run), near, wait_ns);
        let waited = spans.last_mut().filter(|it| wait_ns > 0 && it.state == RunState::Runnable);
        waited.into_iter().for_each(|span| span.waiting = waiting);
        let (pending, pending_ns) = std::mem::take(&mut self.pending);
        match (pending.as_ref().or(location.as_ref()), pending_ns) {
            (_, 0) => {}
            (Some(at), ns) => push(spans, (at.state, false), Some(at), ns),
            (None, ns) => self.pending.1 = ns,
        }
        match (&before, &location) {
            (Some(old), Some(new)) if old != new => {
                let certain_ns = off_ns.min(self.asleep_ns.1.saturating_sub(self.since_ns));
                let new_ns = (off_ns - certain_ns) / 2;
                push(spans, (old.state, false), Some(old), off_ns - new_ns);
                push(spans, (new.state, false), Some(new), new_ns);
            }
            (_, Some(at)) => push(spans, (at.state, false), Some(at), off_ns),
            (_, None) => self.pending = (before, self.pending.1 + off_ns),
        }
        if turns != self.turns {
            self.moved_ns = now_ns;
        }
        (self.since_ns, self.turns, self.asleep) = (now_ns, turns, location);
        (self.asleep_ns, self.due_ns) = ((now_ns, now_ns), now_ns);
    }

    /// Finishes a thread that exited at this time, with its complete CPU time if known.
    ///
    /// A thread runs when it exits, from an unknown moment on. If its CPU time is unknown, the time
    /// since the last check counts as running rather than as sleep.
    pub(super) fn ended(&mut self, end_ns: u64, cpu_ns: Option<u64>, spans: &mut Vec<StateSpan>) {
        let end_ns = end_ns.max(self.since_ns);
        let seen_ns = match self.asleep {
            Some(_) => self.asleep_ns.1.max(self.since_ns),
            None => self.since_ns,
        };
        let unseen_ns = end_ns.saturating_sub(seen_ns);
        let run_ns = cpu_ns.unwrap_or(self.turns.run_ns + unseen_ns).max(self.turns.run_ns);
        let turns = Turns { run_ns, count: self.turns.count + 1, ..self.turns };
        self.end(end_ns, Some(turns), spans);
    }

    /// Finishes the account of an exited thread, or at the end of the measurement.
    pub(super) fn end(&mut self, now_ns: u64, turns: Option<Turns>, spans: &mut Vec<StateSpan>) {
        match turns.filter(|turns| *turns != self.turns) {
            Some(turns) => self.moved(now_ns, turns, None, spans),
            None => self.report(now_ns, spans),
        }
        let (pending, ns) = std::mem::take(&mut self.pending);
        let state = pending.as_ref().map_or(RunState::Sleeping, |at| at.state);
        push(spans, (state, false), pending.as_ref(), ns);
    }

    /// Reports the time since the last span, during which the thread slept.
    fn report(&mut self, now_ns: u64, spans: &mut Vec<StateSpan>) {
        let off_ns = self.off_ns(now_ns, self.turns);
        match &self.asleep {
            Some(at) => push(spans, (at.state, false), Some(at), off_ns),
            None => self.pending.1 += off_ns,
        }
        self.since_ns = now_ns;
    }

    /// Returns the unreported time off the processor, minus the excess that was reported before.
    fn off_ns(&mut self, now_ns: u64, turns: Turns) -> u64 {
        let run_ns = turns.run_ns.saturating_sub(self.turns.run_ns);
        let wait_ns = turns.wait_ns.saturating_sub(self.turns.wait_ns);
        let used_ns = run_ns + wait_ns + self.owed_ns;
        let elapsed_ns = now_ns.saturating_sub(self.since_ns);
        let excess_ns = used_ns.saturating_sub(elapsed_ns);
        self.owed_ns = excess_ns.saturating_sub(self.pending.1);
        self.pending.1 = self.pending.1.saturating_sub(excess_ns);
        elapsed_ns.saturating_sub(used_ns)
    }
}

fn push(
    spans: &mut Vec<StateSpan>,
    (state, has_run): (RunState, bool),
    location: Option<&Arc<ThreadLocation>>,
    ns: u64,
) {
    if ns > 0 {
        let (location, waiting) = (location.cloned(), WaitingThread::default());
        spans.push(StateSpan { state, location, has_run, waiting, ns });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::record::batch::contexts::ThreadContext;

    const MS: u64 = 1_000_000;

    fn turns(run_ms: u64, wait_ms: u64, count: u64) -> Turns {
        Turns { run_ns: run_ms * MS, wait_ns: wait_ms * MS, count }
    }

    fn location(call: u32) -> Option<Arc<ThreadLocation>> {
        Some(Arc::new(ThreadLocation {
            syscall: Some(call),
            ..ThreadLocation::without_stack(
                RunState::Sleeping,
                (None, None),
                ThreadContext::default(),
            )
        }))
    }

    /// Returns the off-CPU spans: state, system call and milliseconds.
    fn off_cpu(spans: &[StateSpan]) -> Vec<(RunState, Option<u32>, u64)> {
        let call = |span: &StateSpan| span.location.as_ref().and_then(|location| location.syscall);
        let off = spans.iter().filter(|span| span.state != RunState::Running);
        off.map(|span| (span.state, call(span), span.ns / MS)).collect()
    }

    #[test]
    fn time_goes_to_the_location_of_the_sleeping_thread() {
        let (mut task, mut spans) = (ThreadTime::new(0, turns(0, 0, 1)), Vec::new());
        task.moved(0, turns(0, 0, 1), location(7), &mut spans);
        assert!(task.is_unchanged(turns(0, 0, 1)) && spans.is_empty());
        task.unchanged(400 * MS, 100 * MS, &mut spans);
        assert!(spans.is_empty() && !task.is_due(424 * MS) && task.is_due(425 * MS));
        task.unchanged(900 * MS, 100 * MS, &mut spans);
        assert_eq!(off_cpu(&spans), [(RunState::Sleeping, Some(7), 900)]);
        spans.clear();
        // The thread ran for 5 ms, waited for 3 ms, and sleeps at the same location again.
        task.moved(1000 * MS, turns(5, 3, 2), location(7), &mut spans);
        let (wait, sleep) = ((RunState::Runnable, Some(7), 3), (RunState::Sleeping, Some(7), 92));
        assert_eq!(off_cpu(&spans), [wait, sleep]);
    }

    #[test]
    fn two_locations_share_the_time_between_them() {
        let (mut task, mut spans) = (ThreadTime::new(0, turns(0, 0, 1)), Vec::new());
        task.moved(0, turns(0, 0, 1), location(7), &mut spans);
        task.moved(20 * MS, turns(4, 0, 2), location(8), &mut spans);
        let half = |call| (RunState::Sleeping, Some(call), 8);
        assert_eq!(off_cpu(&spans), [half(7), half(8)]);
        spans.clear();
        // Time up to the last unchanged check belongs to the old location alone.
        task.unchanged(100 * MS, 100 * MS, &mut spans);
        task.moved(120 * MS, turns(8, 0, 3), location(9), &mut spans);
        let sleep = |call, ms| (RunState::Sleeping, Some(call), ms);
        assert_eq!(off_cpu(&spans), [sleep(8, 88), sleep(9, 8)]);
    }

    #[test]
    fn a_thread_that_runs_at_a_check_slept_at_its_last_location() {
        let (mut task, mut spans) = (ThreadTime::new(0, turns(0, 0, 1)), Vec::new());
        task.moved(0, turns(0, 0, 1), location(7), &mut spans);
        task.moved(20 * MS, turns(5, 0, 2), None, &mut spans);
        assert_eq!(off_cpu(&spans), [], "the thread may have run for longer");
        spans.clear();
        // For 4 ms of the apparent sleep, the thread waited for a processor.
        task.moved(40 * MS, turns(15, 14, 4), None, &mut spans);
        let (wait, sleep) = ((RunState::Runnable, Some(7), 14), (RunState::Sleeping, Some(7), 11));
        assert_eq!(off_cpu(&spans), [wait, sleep]);
        assert!(spans.iter().any(|span| span.state == RunState::Runnable && span.has_run));
        spans.clear();
        // The thread sleeps between the checks, and only a later check finds it asleep.
        task.moved(60 * MS, turns(25, 14, 6), None, &mut spans);
        assert_eq!(off_cpu(&spans), []);
        task.moved(80 * MS, turns(35, 14, 8), location(8), &mut spans);
        let sleep = (RunState::Sleeping, Some(8), 10);
        assert_eq!(off_cpu(&spans), [sleep, sleep]);
    }

    #[test]
    fn a_location_that_was_read_late_gets_the_whole_sleep() {
        let (mut task, mut spans) = (ThreadTime::new(0, turns(0, 0, 1)), Vec::new());
        task.moved(0, turns(0, 0, 1), location(7), &mut spans);
        assert!(task.lacks_stack());
        task.unchanged(100 * MS, 100 * MS, &mut spans);
        task.place(location(8).expect("a location"));
        // The stop made the thread run.
        task.moved(110 * MS, turns(1, 1, 2), location(8), &mut spans);
        let (wait, sleep) = ((RunState::Runnable, Some(8), 1), (RunState::Sleeping, Some(8), 108));
        assert_eq!(off_cpu(&spans), [wait, sleep]);
        assert!(spans.iter().all(|span| !span.has_run || span.state == RunState::Running));
    }

    #[test]
    fn time_reported_in_excess_is_subtracted_later() {
        let (mut task, mut spans) = (ThreadTime::new(0, turns(0, 0, 1)), Vec::new());
        task.moved(0, turns(0, 0, 1), location(7), &mut spans);
        // The thread was woken at 800 ms and waits for a processor; the scheduler reports that
        // later.
        task.unchanged(1000 * MS, 100 * MS, &mut spans);
        assert_eq!(off_cpu(&spans), [(RunState::Sleeping, Some(7), 1000)]);
        spans.clear();
        task.moved(1100 * MS, turns(0, 300, 2), None, &mut spans);
        assert_eq!(off_cpu(&spans), [(RunState::Runnable, Some(7), 300)]);
        spans.clear();
        task.moved(1500 * MS, turns(0, 300, 3), location(7), &mut spans);
        assert_eq!(off_cpu(&spans), [(RunState::Sleeping, Some(7), 200)], "1500 ms in total");
    }

    #[test]
    fn a_thread_that_exited_ran_until_its_exit() {
        let ended = |cpu_ns| {
            let (mut task, mut spans) = (ThreadTime::new(0, turns(0, 0, 1)), Vec::new());
            task.moved(0, turns(0, 0, 1), location(7), &mut spans);
            task.unchanged(60 * MS, 100 * MS, &mut spans);
            task.ended(100 * MS, cpu_ns, &mut spans);
            let run = spans.iter().filter(|span| span.state == RunState::Running);
            (off_cpu(&spans), run.map(|span| span.ns / MS).sum::<u64>())
        };
        let sleep = |ms| vec![(RunState::Sleeping, Some(7), ms)];
        assert_eq!(ended(Some(15 * MS)), (sleep(85), 15));
        assert_eq!(ended(None), (sleep(60), 40), "unseen time is not sleep");
        // The only check of the thread found it running.
        let (mut task, mut spans) = (ThreadTime::new(0, Turns::default()), Vec::new());
        task.moved(10 * MS, turns(9, 0, 1), None, &mut spans);
        task.ended(21 * MS, Some(20 * MS), &mut spans);
        let sum =
            |state| spans.iter().filter(|it| it.state == state).map(|it| it.ns / MS).sum::<u64>();
        assert_eq!((sum(RunState::Running), sum(RunState::Sleeping)), (20, 1));
    }

    #[test]
    fn the_account_of_another_thread_is_refused() {
        let (mut task, mut spans) = (ThreadTime::new(0, turns(5, 5, 1)), Vec::new());
        assert!(task.is_possible(100 * MS, turns(60, 50, 9)));
        assert!(!task.is_possible(100 * MS, turns(4, 50, 9)), "less than before");
        assert!(!task.is_possible(100 * MS, turns(5000, 5, 9)), "more than the elapsed time");
        task.moved(100 * MS, turns(5, 5, 1), None, &mut spans);
        assert!(
            task.is_possible(200 * MS, turns(5, 200, 2)),
            "the wait began before the last check"
        );
        task.moved(200 * MS, turns(5, 200, 2), None, &mut spans);
        assert!(!task.is_possible(250 * MS, turns(5, 400, 3)));
        spans.clear();
        task.restart_from(250 * MS, turns(5, 400, 3), &mut spans);
        task.moved(300 * MS, turns(15, 410, 4), location(7), &mut spans);
        let sum = spans.iter().map(|span| span.ns / MS).sum::<u64>();
        assert_eq!(sum, 105, "with 5 ms from before");
    }

    #[test]
    fn all_spans_add_up_to_the_time_that_passed() {
        let (mut task, mut spans) = (ThreadTime::new(0, turns(0, 0, 0)), Vec::new());
        let (mut run, mut wait, mut state) = (0, 0, 12345u64);
        let mut random = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % most
        };
        for check in 1..=1000u64 {
            let moved = random(3);
            let part = 20 * MS / 2;
            if moved > 0 {
                (run, wait) = (run + random(part), wait + random(part));
            }
            let turns = Turns { run_ns: run, wait_ns: wait, count: run };
            if task.is_unchanged(turns) {
                task.unchanged(check * 20 * MS, 100 * MS, &mut spans);
            } else {
                let location = if random(3) == 0 { None } else { location(random(4) as u32) };
                task.moved(check * 20 * MS, turns, location, &mut spans);
            }
        }
        task.end(20_000 * MS, Some(Turns { run_ns: run, wait_ns: wait, count: run }), &mut spans);
        let sum: u64 = spans.iter().map(|span| span.ns).sum();
        assert_eq!(sum, 20_000 * MS + task.owed_ns);
        assert_eq!(task.owed_ns, 0);
    }
}
