//! The arithmetic of one thread's time: how much it ran, waited and slept, and where it slept.
//!
//! A check reads the scheduler's account of the thread: how long it ran and how long it waited for
//! a processor since its start. The rest of the time between two checks it was off the processor.
//! Its location is known at the checks only. If two checks find different locations, the thread
//! moved at an unknown moment. Each location gets half the time, since a check comes at a
//! random moment and is as often too early as too late. All of it for the later location would give
//! every location that follows another one half an interval too much.
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
use crate::record::batch::contexts::ThreadContext;
use crate::record::source::wall::sleep_location::ThreadLocation;
use crate::trace::RunState;

/// Two checks of a sleeping thread are one part in this many of its sleep apart.
///
/// That the thread did not move stays certain; when it moved is known less exactly.
const CHECK_SHARE: u64 = 16;
/// The largest difference between an account and the clock.
///
/// Start times are known to a tick of 10 ms, and running time to a tick of the scheduler.
const SLACK_NS: u64 = 30_000_000;
/// The shortest interval of reports on a sleep that goes on, for those who read a trace as it
/// grows.
const REPORT_MIN_NS: u64 = 850_000_000;
/// The interval of reports is one part in this many of the sleep so far.
const REPORT_SHARE: u64 = 4;
/// The longest interval of reports; without reports this rare, a thousand sleepers would fill the
/// file.
const REPORT_MAX_NS: u64 = 10_000_000_000;

/// A thread's time up to the last check.
#[derive(Debug)]
pub(super) struct ThreadTime {
    /// All time before this is reported.
    since_ns: u64,
    turns: Turns,
    /// Where it slept at the last check.
    asleep: Option<Arc<ThreadLocation>>,
    /// The context of a thread that waits for a processor at this check.
    waiting: ThreadContext,
    /// Time off the processor before the last check, which found it running, and the location if
    /// known.
    pending: (Option<Arc<ThreadLocation>>, u64),
    /// Time reported as sleep that turned out to be something else.
    owed_ns: u64,
    /// The last check that found its account changed.
    moved_ns: u64,
    /// The time since which it has slept, and the last check that found it asleep.
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
    /// Whether the location where it last ran is preferred, if known.
    pub(super) has_run: bool,
    /// The context of a thread that was seen waiting for a processor.
    pub(super) context: ThreadContext,
    /// The length in nanoseconds.
    pub(super) ns: u64,
}

impl ThreadTime {
    /// Starts with the first check; all time before belongs to others.
    pub(super) fn new(now_ns: u64, turns: Turns) -> Self {
        Self {
            since_ns: now_ns,
            turns,
            asleep: None,
            waiting: ThreadContext::default(),
            pending: (None, 0),
            owed_ns: 0,
            moved_ns: now_ns,
            asleep_ns: (now_ns, now_ns),
            due_ns: now_ns,
        }
    }

    /// Checks whether the next check is due.
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.due_ns
    }

    /// Checks whether an account can be this thread's: not less than before, nor more than time
    /// allows.
    pub(super) fn is_possible(&self, now_ns: u64, turns: Turns) -> bool {
        let run_ns = turns.run_ns.checked_sub(self.turns.run_ns);
        let wait_ns = turns.wait_ns.checked_sub(self.turns.wait_ns);
        let used_ns = run_ns.zip(wait_ns).map(|(run_ns, wait_ns)| run_ns.saturating_add(wait_ns));
        let most_ns = now_ns.saturating_sub(self.moved_ns) + SLACK_NS;
        used_ns.is_some_and(|used_ns| used_ns <= most_ns)
    }

    /// Checks whether a sleeping thread has not run since the last check.
    pub(super) fn is_unchanged(&self, turns: Turns) -> bool {
        turns == self.turns && self.asleep.is_some()
    }

    /// Counts from this account on, which is another thread's or of a time before it was watched.
    pub(super) fn restart_from(&mut self, now_ns: u64, turns: Turns, spans: &mut Vec<StateSpan>) {
        self.report(now_ns, spans);
        (self.turns, self.moved_ns, self.asleep) = (turns, now_ns, None);
    }

    /// Notes a check that found it unchanged; the next one comes after `most_ns` at the latest.
    pub(super) fn unchanged(&mut self, now_ns: u64, most_ns: u64, spans: &mut Vec<StateSpan>) {
        self.asleep_ns.1 = now_ns;
        let slept_ns = now_ns.saturating_sub(self.asleep_ns.0);
        let unreported_ns = now_ns.saturating_sub(self.since_ns);
        if unreported_ns >= (slept_ns / REPORT_SHARE).clamp(REPORT_MIN_NS, REPORT_MAX_NS) {
            self.report(now_ns, spans);
        }
        self.due_ns = now_ns + (slept_ns / CHECK_SHARE).min(most_ns);
    }

    /// Sets the context of a thread that waits for a processor, for the following call of
    /// [`Self::moved`].
    pub(super) fn set_waiting_context(&mut self, context: ThreadContext) {
        self.waiting = context;
    }

    /// Notes a check that found it changed or new, at this location.
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
        let context = std::mem::take(&mut self.waiting);
        push(spans, (RunState::Runnable, has_run), near, wait_ns);
        let waited = spans.last_mut().filter(|it| wait_ns > 0 && it.state == RunState::Runnable);
        waited.into_iter().for_each(|span| span.context = context);
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

    /// Finishes a thread that ended at this time, after this much CPU time if known.
    ///
    /// A thread runs to end, from an unknown moment on. If its CPU time is unknown, the unseen
    /// time counts as running rather than as sleep.
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

    /// Finishes a thread that is gone, or the whole measurement.
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

    /// Returns unreported time off the processor, less what was reported in excess before.
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
        let (location, context) = (location.cloned(), ThreadContext::default());
        spans.push(StateSpan { state, location, has_run, context, ns });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// Calls and milliseconds.
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
        // It ran for 5 ms and waited for 3, and sleeps at the same place again.
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
        // But it was where it was for as long as it was seen to stay.
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
        assert_eq!(off_cpu(&spans), [], "it may have run for longer");
        spans.clear();
        // Of what it seemed to sleep it had waited 4 ms for a processor.
        task.moved(40 * MS, turns(15, 14, 4), None, &mut spans);
        let (wait, sleep) = ((RunState::Runnable, Some(7), 14), (RunState::Sleeping, Some(7), 11));
        assert_eq!(off_cpu(&spans), [wait, sleep]);
        assert!(spans.iter().any(|span| span.state == RunState::Runnable && span.has_run));
        spans.clear();
        // It sleeps unseen, and is seen asleep only then.
        task.moved(60 * MS, turns(25, 14, 6), None, &mut spans);
        assert_eq!(off_cpu(&spans), []);
        task.moved(80 * MS, turns(35, 14, 8), location(8), &mut spans);
        let sleep = (RunState::Sleeping, Some(8), 10);
        assert_eq!(off_cpu(&spans), [sleep, sleep]);
    }

    #[test]
    fn time_reported_in_excess_is_taken_off_later() {
        let (mut task, mut spans) = (ThreadTime::new(0, turns(0, 0, 1)), Vec::new());
        task.moved(0, turns(0, 0, 1), location(7), &mut spans);
        // It was woken at 800 ms and waits for a processor, which nothing reports.
        task.unchanged(1000 * MS, 100 * MS, &mut spans);
        assert_eq!(off_cpu(&spans), [(RunState::Sleeping, Some(7), 1000)]);
        spans.clear();
        task.moved(1100 * MS, turns(0, 300, 2), None, &mut spans);
        assert_eq!(off_cpu(&spans), [(RunState::Runnable, Some(7), 300)]);
        spans.clear();
        task.moved(1500 * MS, turns(0, 300, 3), location(7), &mut spans);
        assert_eq!(off_cpu(&spans), [(RunState::Sleeping, Some(7), 200)], "1500 ms in all");
    }

    #[test]
    fn a_thread_that_ended_ran_until_its_end() {
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
        // It was seen to run at its only look.
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
        assert!(!task.is_possible(100 * MS, turns(5000, 5, 9)), "more than went by");
        task.moved(100 * MS, turns(5, 5, 1), None, &mut spans);
        assert!(
            task.is_possible(200 * MS, turns(5, 200, 2)),
            "it has waited since before the last check"
        );
        task.moved(200 * MS, turns(5, 200, 2), None, &mut spans);
        assert!(!task.is_possible(250 * MS, turns(5, 400, 3)));
        spans.clear();
        task.restart_from(250 * MS, turns(5, 400, 3), &mut spans);
        task.moved(300 * MS, turns(15, 410, 4), location(7), &mut spans);
        assert_eq!(spans.iter().map(|span| span.ns / MS).sum::<u64>(), 105, "with 5 ms of before");
    }

    #[test]
    fn all_spans_add_up_to_the_time_that_passed() {
        let (mut task, mut spans) = (ThreadTime::new(0, turns(0, 0, 0)), Vec::new());
        let (mut run, mut wait, mut state) = (0, 0, 12345u64);
        let mut random = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % most
        };
        for look in 1..=1000u64 {
            let moved = random(3);
            let part = 20 * MS / 2;
            if moved > 0 {
                (run, wait) = (run + random(part), wait + random(part));
            }
            let turns = Turns { run_ns: run, wait_ns: wait, count: run };
            if task.is_unchanged(turns) {
                task.unchanged(look * 20 * MS, 100 * MS, &mut spans);
            } else {
                let location = if random(3) == 0 { None } else { location(random(4) as u32) };
                task.moved(look * 20 * MS, turns, location, &mut spans);
            }
        }
        task.end(20_000 * MS, Some(Turns { run_ns: run, wait_ns: wait, count: run }), &mut spans);
        let sum: u64 = spans.iter().map(|span| span.ns).sum();
        assert_eq!(sum, 20_000 * MS + task.owed_ns);
        assert_eq!(task.owed_ns, 0);
    }
}
