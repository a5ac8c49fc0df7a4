//! What the storage, its threads and their timers have counted: lines for `--stats`, numbers for the
//! metadata.

use traceprof_abi::layout::{Counter, THREAD_SLOTS};

use super::account::{Reckoning, percent};
use super::counts::Counts;

/// Counters that the metadata has under these names.
const NAMES: [(Counter, &str); 31] = [
    (Counter::Samples, "samples_stored"),
    (Counter::Puts, "puts"),
    (Counter::Hits, "put_hits"),
    (Counter::DroppedArena, "dropped.arena full"),
    (Counter::DroppedProbes, "dropped.no table slot"),
    (Counter::HazardCollision, "hazard_collisions"),
    (Counter::TableCollision, "table_collisions"),
    (Counter::DuplicateEvent, "duplicate_events"),
    (Counter::Foreign, "foreign_signals"),
    (Counter::Nameless, "nameless_signals"),
    (Counter::Stale, "stale_signals"),
    (Counter::Late, "late_signals"),
    (Counter::Nested, "nested_signals"),
    (Counter::ProbeFailed, "probes_failed"),
    (Counter::SlotLeaked, "thread_slots_leaked"),
    (Counter::Primed, "threads_primed"),
    (Counter::Armed, "timers_armed"),
    (Counter::TimerFailed, "timers_failed"),
    (Counter::TimerHits, "timer_hits"),
    (Counter::TimerOverruns, "timer_overruns"),
    (Counter::LeaseEnded, "timers_expired"),
    (Counter::Off, "signals_while_off"),
    (Counter::PrimeFailed, "primings_failed"),
    (Counter::ReleaseFailed, "hazard_releases_failed"),
    (Counter::SliceLost, "stack_slices_lost"),
    (Counter::StepsTaken, "steps_taken_over"),
    (Counter::PreviousOther, "previous_stacks_other"),
    (Counter::PreviousUnknown, "previous_stacks_unknown"),
    (Counter::PreviousChanged, "previous_stacks_changed"),
    (Counter::PreviousMoved, "previous_stacks_moved"),
    (Counter::PreviousShallow, "previous_stacks_shallow"),
];

/// Numbers for the metadata, by name.
pub(super) fn numbers(reckoning: &Reckoning<'_>) -> Vec<(&'static str, u64)> {
    let (counts, storage) = (&reckoning.stint.counts, &reckoning.stint.storage);
    let threads = &reckoning.stint.threads;
    let mut numbers: Vec<_> =
        NAMES.iter().map(|(counter, name)| (*name, counts.of(*counter))).collect();
    numbers.extend([
        ("dropped_traces", counts.dropped()),
        ("rotations", storage.rotations),
        ("rotation_ns", storage.rotation_ns.0),
        ("rotation_ns_max", storage.rotation_ns.1),
        ("rotations_blocked", storage.blocked),
        ("hazard_waits", storage.hazard_waits),
        ("hazard_wait_ns", storage.hazard_wait_ns),
        ("hazards_reclaimed", storage.reclaimed),
        ("quarantined_tables", storage.quarantines),
        ("released_tables", storage.released),
        ("preserved", storage.preserved.0),
        ("preserved_max", storage.preserved.1),
        ("preserve_spilled", storage.preserve_spilled),
        ("preserve_full", storage.preserve_full),
        ("preserve_damaged", storage.preserve_damaged),
        ("samples_without_stack", storage.orphans),
        ("thread_slots_used", counts.slots.0),
        ("thread_slots_ready", counts.slots.1),
        ("thread_slots_held_max", threads.slots_held_max as u64),
        ("thread_ids_reused", threads.ids_reused),
        ("thread_reports_lost", threads.reports_lost),
        ("mapping_reports_lost", threads.mappings_lost),
        ("thread_samples_ambiguous", threads.ambiguous),
        ("prime_acks", counts.prime_acks),
        ("prime_latency_ns", counts.prime_latency_ns.0),
        ("prime_latency_ns_max", counts.prime_latency_ns.1),
    ]);
    numbers
}

/// The lines of `--stats`.
pub(super) fn lines(reckoning: &Reckoning<'_>) -> Vec<(String, String)> {
    let of = |counter| reckoning.stint.counts.of(counter);
    let puts = of(Counter::Puts);
    let (reused, fresh) = (of(Counter::Hits), puts.saturating_sub(of(Counter::Hits)));
    let hit_share = percent(reused, puts);
    let (no_room, no_slot) = (of(Counter::DroppedArena), of(Counter::DroppedProbes));
    let (hazard, table) = (of(Counter::HazardCollision), of(Counter::TableCollision));
    let mut lines = vec![
        ("puts", format!("{puts}, {reused} of a known trace ({hit_share}), {fresh} of a new one")),
        ("dropped", format!("{no_room} arena full, {no_slot} no table slot")),
        ("collisions", format!("{hazard} of hazard slots, {table} of table slots")),
    ];
    lines.push(("stacks", stacks(&reckoning.stint.counts)));
    lines.extend(storage(reckoning));
    lines.extend(threads(reckoning));
    lines.push(("priming", priming(&reckoning.stint.counts)));
    lines.push(("timers", timers(reckoning)));
    let others = [
        (Counter::DuplicateEvent, "of a second event"),
        (Counter::Foreign, "not ours"),
        (Counter::Nameless, "of unknown origin, kept from ending the program"),
        (Counter::Stale, "of an earlier recording"),
        (Counter::Late, "late"),
        (Counter::Nested, "inside our handler"),
        (Counter::Off, "while sampling was off"),
        (Counter::Withheld, "withheld from calls"),
    ];
    let others = others.map(|(counter, what)| format!("{} {what}", of(counter)));
    lines.push(("signals", others.join(", ")));
    lines.into_iter().map(|(label, value)| (label.to_string(), value)).collect()
}

/// What was taken over from the threads' previous samples, and of how many samples nothing or less.
fn stacks(counts: &Counts) -> String {
    let of = |counter| counts.of(counter);
    format!(
        "{} steps as in the sample before; {} samples without one, {} after a shallow one, {} on \
         another stack, {} with another one, {} where a word had changed",
        of(Counter::StepsTaken),
        of(Counter::PreviousUnknown),
        of(Counter::PreviousShallow),
        of(Counter::PreviousMoved),
        of(Counter::PreviousOther),
        of(Counter::PreviousChanged),
    )
}

fn threads(reckoning: &Reckoning<'_>) -> [(&'static str, String); 2] {
    let (counts, it) = (&reckoning.stint.counts, &reckoning.stint.threads);
    let (ready, leaked) = (counts.slots.1, counts.of(Counter::SlotLeaked));
    let slots = format!(
        "{} held, {} at most at a time, {ready} ready, {THREAD_SLOTS} possible, {leaked} out of use",
        it.slots_held, it.slots_held_max,
    );
    let threads = format!(
        "{} sampled of {} seen, {} ids reused, {} samples of one of two, {} reports lost",
        reckoning.totals.threads, it.seen, it.ids_reused, it.ambiguous, it.reports_lost,
    );
    [("thread slots", slots), ("threads", threads)]
}

fn storage(reckoning: &Reckoning<'_>) -> Vec<(&'static str, String)> {
    let it = &reckoning.stint.storage;
    let rotations = it.rotations + it.blocked;
    let mean = |sum: u64, count: u64| time(sum.checked_div(count).unwrap_or(0));
    let rotation = format!(
        "{}, {} each on average, {} at most",
        it.rotations,
        mean(it.rotation_ns.0, rotations),
        time(it.rotation_ns.1),
    );
    let waits = format!(
        "{} waits of {} on average, {} hazards of dead threads, {} lost to their owners",
        it.hazard_waits,
        mean(it.hazard_wait_ns, it.hazard_waits),
        it.reclaimed,
        reckoning.stint.counts.of(Counter::ReleaseFailed),
    );
    let tables = format!(
        "{} quarantined, {} released, {} rotations blocked",
        it.quarantines, it.released, it.blocked,
    );
    let preserved = format!(
        "{} traces a rotation on average, {} at most; {} not in STANDBY, {} without room, \
         {} damaged",
        it.preserved.0.checked_div(it.rotations).unwrap_or(0),
        it.preserved.1,
        it.preserve_spilled,
        it.preserve_full,
        it.preserve_damaged,
    );
    vec![("rotations", rotation), ("hazards", waits), ("tables", tables), ("preserved", preserved)]
}

fn priming(counts: &Counts) -> String {
    let acks = counts.prime_acks;
    let (sum, longest) = counts.prime_latency_ns;
    format!(
        "{} threads by signal, {} without a slot, {acks} acknowledged, {} on average, {} at most",
        counts.of(Counter::Primed),
        counts.of(Counter::PrimeFailed),
        time(sum.checked_div(acks).unwrap_or(0)),
        time(longest),
    )
}

fn timers(reckoning: &Reckoning<'_>) -> String {
    let of = |counter| reckoning.stint.counts.of(counter);
    format!(
        "{} armed, {} failed, {} expired with their lease; {} hits, {} overruns; {} threads \
         sampled by perf events, as they could have no timer",
        of(Counter::Armed),
        of(Counter::TimerFailed),
        of(Counter::LeaseEnded),
        of(Counter::TimerHits),
        of(Counter::TimerOverruns),
        reckoning.stint.relieved.threads,
    )
}

fn time(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        _ => format!("{:.1} ms", ns as f64 / 1e6),
    }
}
