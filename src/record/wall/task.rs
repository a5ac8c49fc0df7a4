//! Where the time of one thread goes that it does not run: the arithmetic.
//!
//! A look at a thread gives the scheduler's account of it: how long it ran and how long it waited for a
//! processor, since it was started. What is left of the time between two looks it was off the processor.
//! Where, is known at the looks only. Between two different places it went from one to the other at some
//! moment that nobody saw: each is given half, since a look comes at a random moment and is as often too
//! early as too late. All of it to the one that was seen would give every place that is entered from
//! another one half an interval too much.
//!
//! A thread that runs at a look, or waits for a processor, may have done so for some time of which the
//! scheduler tells only later: what seems to be left for its sleep before is told of at the next look.
//!
//! # Invariants
//! - What is told of adds up: all spans are the time that went by, but for what is [`Task::owed_ns`] to
//!   the next look.

use std::sync::Arc;

use super::super::contexts::ThreadContext;
use super::sleeper::Place;
use crate::proc::Turns;
use crate::trace::RunState;

/// Between two looks at a thread that sleeps, a sixteenth of the time that it has slept. That it did not
/// move is as true then; when it moved is known less exactly.
const PATIENCE: u64 = 16;
/// By how much an account and the clock may differ: starts are known to a tick of 10 ms, and what runs to one of
/// the scheduler's.
const SLACK_NS: u64 = 30_000_000;
/// What a thread sleeps at is told of as often as this, though nothing changes: the trace is read while it
/// grows;
const TELL_NS: u64 = 850_000_000;
/// later after a quarter of the time that it has slept,
const TELL_SHARE: u64 = 4;
/// and this at most. A thousand sleepers would fill the file with what nobody asks.
const TELL_MAX_NS: u64 = 10_000_000_000;

/// A thread as it was at the last look.
#[derive(Debug)]
pub(super) struct Task {
    /// All time before is told of.
    since_ns: u64,
    turns: Turns,
    /// Where it slept at the last look.
    asleep: Option<Arc<Place>>,
    /// What it works on, if it was seen to wait for a processor at this look.
    waiting: ThreadContext,
    /// Off the processor before the last look, at which it ran; where, if that was seen.
    pending: (Option<Arc<Place>>, u64),
    /// Told of as asleep, and found out to be something else afterwards.
    owed_ns: u64,
    /// When its account was last seen to change.
    moved_ns: u64,
    /// It has slept since then, and was last seen to at this time.
    still_ns: (u64, u64),
    due_ns: u64,
}

/// Time of a thread in one state.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Span {
    /// What it did.
    pub(super) state: RunState,
    /// Where, if that is known.
    pub(super) place: Option<Arc<Place>>,
    /// Rather where it ran, if that is known.
    pub(super) has_run: bool,
    /// What it worked on while it waited for a processor, if it was seen to wait.
    pub(super) context: ThreadContext,
    /// How long.
    pub(super) ns: u64,
}

impl Task {
    /// A thread that is looked at for the first time, all of whose time before is somebody else's.
    pub(super) fn new(now_ns: u64, turns: Turns) -> Self {
        Self {
            since_ns: now_ns,
            turns,
            asleep: None,
            waiting: ThreadContext::default(),
            pending: (None, 0),
            owed_ns: 0,
            moved_ns: now_ns,
            still_ns: (now_ns, now_ns),
            due_ns: now_ns,
        }
    }

    /// It should be looked at.
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.due_ns
    }

    /// Whether this can be its account: no less than before, and no more than the time that went by.
    pub(super) fn is_possible(&self, now_ns: u64, turns: Turns) -> bool {
        let run_ns = turns.run_ns.checked_sub(self.turns.run_ns);
        let wait_ns = turns.wait_ns.checked_sub(self.turns.wait_ns);
        let used_ns = run_ns.zip(wait_ns).map(|(run_ns, wait_ns)| run_ns.saturating_add(wait_ns));
        let most_ns = now_ns.saturating_sub(self.moved_ns) + SLACK_NS;
        used_ns.is_some_and(|used_ns| used_ns <= most_ns)
    }

    /// The scheduler's account is what it was at the last look, and the thread slept then: it still does.
    pub(super) fn is_still(&self, turns: Turns) -> bool {
        turns == self.turns && self.asleep.is_some()
    }

    /// This is another thread's account, or one of a time before it was watched: what follows counts from it.
    pub(super) fn take_for_another(&mut self, now_ns: u64, turns: Turns, spans: &mut Vec<Span>) {
        self.tell(now_ns, spans);
        (self.turns, self.moved_ns, self.asleep) = (turns, now_ns, None);
    }

    /// It has not moved. The next look is so much later at most.
    pub(super) fn stay(&mut self, now_ns: u64, most_ns: u64, spans: &mut Vec<Span>) {
        self.still_ns.1 = now_ns;
        let slept_ns = now_ns.saturating_sub(self.still_ns.0);
        let untold_ns = now_ns.saturating_sub(self.since_ns);
        if untold_ns >= (slept_ns / TELL_SHARE).clamp(TELL_NS, TELL_MAX_NS) {
            self.tell(now_ns, spans);
        }
        self.due_ns = now_ns + (slept_ns / PATIENCE).min(most_ns);
    }

    /// It waits for a processor, and works on this meanwhile: for the call of [`Self::go_on`] that follows.
    pub(super) fn waits(&mut self, context: ThreadContext) {
        self.waiting = context;
    }

    /// It has moved, or was not seen before, and is at this place now; `None` if it runs, or where it is
    /// could not be found out.
    pub(super) fn go_on(
        &mut self,
        now_ns: u64,
        turns: Turns,
        place: Option<Arc<Place>>,
        spans: &mut Vec<Span>,
    ) {
        let wait_ns = turns.wait_ns.saturating_sub(self.turns.wait_ns);
        let off_ns = self.off_ns(now_ns, turns);
        let before = self.asleep.take();
        let has_run = before.is_none() || place.is_none();
        let run_ns = turns.run_ns.saturating_sub(self.turns.run_ns);
        push(spans, (RunState::Running, true), None, run_ns);
        let near = before.as_ref().or(place.as_ref()).or(self.pending.0.as_ref());
        let context = std::mem::take(&mut self.waiting);
        push(spans, (RunState::Runnable, has_run), near, wait_ns);
        let waited = spans.last_mut().filter(|it| wait_ns > 0 && it.state == RunState::Runnable);
        waited.into_iter().for_each(|span| span.context = context);
        let (pending, pending_ns) = std::mem::take(&mut self.pending);
        match (pending.as_ref().or(place.as_ref()), pending_ns) {
            (_, 0) => {}
            (Some(at), ns) => push(spans, (at.state, false), Some(at), ns),
            (None, ns) => self.pending.1 = ns,
        }
        match (&before, &place) {
            (Some(old), Some(new)) if old != new => {
                let certain_ns = off_ns.min(self.still_ns.1.saturating_sub(self.since_ns));
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
        (self.since_ns, self.turns, self.asleep) = (now_ns, turns, place);
        (self.still_ns, self.due_ns) = ((now_ns, now_ns), now_ns);
    }

    /// The thread ended then, after so much CPU time if that is known. To end it ran, from some moment on that
    /// nobody saw; of one whose time is not known, what was not seen is told as that rather than as sleep.
    pub(super) fn gone(&mut self, end_ns: u64, cpu_ns: Option<u64>, spans: &mut Vec<Span>) {
        let end_ns = end_ns.max(self.since_ns);
        let seen_ns = match self.asleep {
            Some(_) => self.still_ns.1.max(self.since_ns),
            None => self.since_ns,
        };
        let unseen_ns = end_ns.saturating_sub(seen_ns);
        let run_ns = cpu_ns.unwrap_or(self.turns.run_ns + unseen_ns).max(self.turns.run_ns);
        let turns = Turns { run_ns, count: self.turns.count + 1, ..self.turns };
        self.end(end_ns, Some(turns), spans);
    }

    /// The thread is gone, or the recording ends.
    pub(super) fn end(&mut self, now_ns: u64, turns: Option<Turns>, spans: &mut Vec<Span>) {
        match turns.filter(|turns| *turns != self.turns) {
            Some(turns) => self.go_on(now_ns, turns, None, spans),
            None => self.tell(now_ns, spans),
        }
        let (pending, ns) = std::mem::take(&mut self.pending);
        let state = pending.as_ref().map_or(RunState::Sleeping, |at| at.state);
        push(spans, (state, false), pending.as_ref(), ns);
    }

    /// Tells of the time since the last span, all of which it slept.
    fn tell(&mut self, now_ns: u64, spans: &mut Vec<Span>) {
        let off_ns = self.off_ns(now_ns, self.turns);
        match &self.asleep {
            Some(at) => push(spans, (at.state, false), Some(at), off_ns),
            None => self.pending.1 += off_ns,
        }
        self.since_ns = now_ns;
    }

    /// Time off the processor that is not told of; what seemed to be some before, and was not, is taken
    /// off.
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
    spans: &mut Vec<Span>,
    (state, has_run): (RunState, bool),
    place: Option<&Arc<Place>>,
    ns: u64,
) {
    if ns > 0 {
        let (place, context) = (place.cloned(), ThreadContext::default());
        spans.push(Span { state, place, has_run, context, ns });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn turns(run_ms: u64, wait_ms: u64, count: u64) -> Turns {
        Turns { run_ns: run_ms * MS, wait_ns: wait_ms * MS, count }
    }

    fn place(call: u32) -> Option<Arc<Place>> {
        Some(Arc::new(Place {
            syscall: Some(call),
            ..Place::without_stack(RunState::Sleeping, (None, None), ThreadContext::default())
        }))
    }

    /// Calls and milliseconds.
    fn told(spans: &[Span]) -> Vec<(RunState, Option<u32>, u64)> {
        let call = |span: &Span| span.place.as_ref().and_then(|place| place.syscall);
        let off = spans.iter().filter(|span| span.state != RunState::Running);
        off.map(|span| (span.state, call(span), span.ns / MS)).collect()
    }

    #[test]
    fn time_goes_to_the_place_that_a_thread_sleeps_at() {
        let (mut task, mut spans) = (Task::new(0, turns(0, 0, 1)), Vec::new());
        task.go_on(0, turns(0, 0, 1), place(7), &mut spans);
        assert!(task.is_still(turns(0, 0, 1)) && spans.is_empty());
        task.stay(400 * MS, 100 * MS, &mut spans);
        assert!(spans.is_empty() && !task.is_due(424 * MS) && task.is_due(425 * MS));
        task.stay(900 * MS, 100 * MS, &mut spans);
        assert_eq!(told(&spans), [(RunState::Sleeping, Some(7), 900)]);
        spans.clear();
        // It ran for 5 ms and waited for 3, and sleeps at the same place again.
        task.go_on(1000 * MS, turns(5, 3, 2), place(7), &mut spans);
        let (wait, sleep) = ((RunState::Runnable, Some(7), 3), (RunState::Sleeping, Some(7), 92));
        assert_eq!(told(&spans), [wait, sleep]);
    }

    #[test]
    fn between_two_places_each_has_half() {
        let (mut task, mut spans) = (Task::new(0, turns(0, 0, 1)), Vec::new());
        task.go_on(0, turns(0, 0, 1), place(7), &mut spans);
        task.go_on(20 * MS, turns(4, 0, 2), place(8), &mut spans);
        let half = |call| (RunState::Sleeping, Some(call), 8);
        assert_eq!(told(&spans), [half(7), half(8)]);
        spans.clear();
        // But it was where it was for as long as it was seen to stay.
        task.stay(100 * MS, 100 * MS, &mut spans);
        task.go_on(120 * MS, turns(8, 0, 3), place(9), &mut spans);
        let sleep = |call, ms| (RunState::Sleeping, Some(call), ms);
        assert_eq!(told(&spans), [sleep(8, 88), sleep(9, 8)]);
    }

    #[test]
    fn a_thread_that_runs_at_a_look_slept_where_it_was_seen_before() {
        let (mut task, mut spans) = (Task::new(0, turns(0, 0, 1)), Vec::new());
        task.go_on(0, turns(0, 0, 1), place(7), &mut spans);
        task.go_on(20 * MS, turns(5, 0, 2), None, &mut spans);
        assert_eq!(told(&spans), [], "it may have run for longer");
        spans.clear();
        // Of what it seemed to sleep it had waited 4 ms for a processor.
        task.go_on(40 * MS, turns(15, 14, 4), None, &mut spans);
        let (wait, sleep) = ((RunState::Runnable, Some(7), 14), (RunState::Sleeping, Some(7), 11));
        assert_eq!(told(&spans), [wait, sleep]);
        assert!(spans.iter().any(|span| span.state == RunState::Runnable && span.has_run));
        spans.clear();
        // It sleeps unseen, and is seen asleep only then.
        task.go_on(60 * MS, turns(25, 14, 6), None, &mut spans);
        assert_eq!(told(&spans), []);
        task.go_on(80 * MS, turns(35, 14, 8), place(8), &mut spans);
        let sleep = (RunState::Sleeping, Some(8), 10);
        assert_eq!(told(&spans), [sleep, sleep]);
    }

    #[test]
    fn what_was_told_of_in_excess_is_taken_off() {
        let (mut task, mut spans) = (Task::new(0, turns(0, 0, 1)), Vec::new());
        task.go_on(0, turns(0, 0, 1), place(7), &mut spans);
        // It was woken at 800 ms and waits for a processor, which nothing tells of.
        task.stay(1000 * MS, 100 * MS, &mut spans);
        assert_eq!(told(&spans), [(RunState::Sleeping, Some(7), 1000)]);
        spans.clear();
        task.go_on(1100 * MS, turns(0, 300, 2), None, &mut spans);
        assert_eq!(told(&spans), [(RunState::Runnable, Some(7), 300)]);
        spans.clear();
        task.go_on(1500 * MS, turns(0, 300, 3), place(7), &mut spans);
        assert_eq!(told(&spans), [(RunState::Sleeping, Some(7), 200)], "1500 ms in all");
    }

    #[test]
    fn a_thread_that_ended_ran_at_last() {
        let ended = |cpu_ns| {
            let (mut task, mut spans) = (Task::new(0, turns(0, 0, 1)), Vec::new());
            task.go_on(0, turns(0, 0, 1), place(7), &mut spans);
            task.stay(60 * MS, 100 * MS, &mut spans);
            task.gone(100 * MS, cpu_ns, &mut spans);
            let run = spans.iter().filter(|span| span.state == RunState::Running);
            (told(&spans), run.map(|span| span.ns / MS).sum::<u64>())
        };
        let sleep = |ms| vec![(RunState::Sleeping, Some(7), ms)];
        assert_eq!(ended(Some(15 * MS)), (sleep(85), 15));
        assert_eq!(ended(None), (sleep(60), 40), "what nobody saw is no sleep");
        // It was seen to run at its only look.
        let (mut task, mut spans) = (Task::new(0, Turns::default()), Vec::new());
        task.go_on(10 * MS, turns(9, 0, 1), None, &mut spans);
        task.gone(21 * MS, Some(20 * MS), &mut spans);
        let sum =
            |state| spans.iter().filter(|it| it.state == state).map(|it| it.ns / MS).sum::<u64>();
        assert_eq!((sum(RunState::Running), sum(RunState::Sleeping)), (20, 1));
    }

    #[test]
    fn the_account_of_another_thread_is_refused() {
        let (mut task, mut spans) = (Task::new(0, turns(5, 5, 1)), Vec::new());
        assert!(task.is_possible(100 * MS, turns(60, 50, 9)));
        assert!(!task.is_possible(100 * MS, turns(4, 50, 9)), "less than before");
        assert!(!task.is_possible(100 * MS, turns(5000, 5, 9)), "more than went by");
        task.go_on(100 * MS, turns(5, 5, 1), None, &mut spans);
        assert!(
            task.is_possible(200 * MS, turns(5, 200, 2)),
            "it waits since before the last look"
        );
        task.go_on(200 * MS, turns(5, 200, 2), None, &mut spans);
        assert!(!task.is_possible(250 * MS, turns(5, 400, 3)));
        spans.clear();
        task.take_for_another(250 * MS, turns(5, 400, 3), &mut spans);
        task.go_on(300 * MS, turns(15, 410, 4), place(7), &mut spans);
        assert_eq!(spans.iter().map(|span| span.ns / MS).sum::<u64>(), 105, "with 5 ms of before");
    }

    #[test]
    fn all_spans_are_the_time_that_went_by() {
        let (mut task, mut spans) = (Task::new(0, turns(0, 0, 0)), Vec::new());
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
            if task.is_still(turns) {
                task.stay(look * 20 * MS, 100 * MS, &mut spans);
            } else {
                let place = if random(3) == 0 { None } else { place(random(4) as u32) };
                task.go_on(look * 20 * MS, turns, place, &mut spans);
            }
        }
        task.end(20_000 * MS, Some(Turns { run_ns: run, wait_ns: wait, count: run }), &mut spans);
        let sum: u64 = spans.iter().map(|span| span.ns).sum();
        assert_eq!(sum, 20_000 * MS + task.owed_ns);
        assert_eq!(task.owed_ns, 0);
    }
}
