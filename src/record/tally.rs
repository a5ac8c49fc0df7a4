//! What the storage, its threads and their timers have counted: lines for `--stats`, numbers for the
//! metadata.

use traceprof_abi::layout::{ControlBlock, Counter, THREAD_SLOTS};
use traceprof_abi::sync::{AtomicU32, AtomicU64, Ordering};

use super::account::{Reckoning, count, percent};

/// Counters that the metadata has under these names.
const NAMES: [(Counter, &str); 24] = [
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
];

/// Numbers for the metadata, by name.
pub(super) fn numbers(reckoning: &Reckoning<'_>) -> Vec<(&'static str, u64)> {
    let (control, storage) = (reckoning.control, &reckoning.storage);
    let threads = &reckoning.threads;
    let mut numbers: Vec<_> =
        NAMES.iter().map(|(counter, name)| (*name, count(control, *counter))).collect();
    numbers.extend([
        ("dropped_traces", dropped(control)),
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
        ("thread_slots_used", small(&control.slots_next)),
        ("thread_slots_ready", small(&control.slots_limit)),
        ("thread_slots_held_max", threads.slots_held_max as u64),
        ("thread_ids_reused", threads.ids_reused),
        ("thread_reports_lost", threads.reports_lost),
        ("thread_samples_ambiguous", threads.ambiguous),
        ("prime_acks", large(&control.prime_acks)),
        ("prime_latency_ns", large(&control.prime_latency_sum_ns)),
        ("prime_latency_ns_max", small(&control.prime_latency_max_ns)),
    ]);
    numbers
}

/// Traces that found no room: their samples are kept without a stack.
pub(super) fn dropped(control: &ControlBlock) -> u64 {
    // The counters lie where the target may write anything.
    count(control, Counter::DroppedArena).saturating_add(count(control, Counter::DroppedProbes))
}

/// The lines of `--stats`.
pub(super) fn lines(reckoning: &Reckoning<'_>) -> Vec<(String, String)> {
    let control = reckoning.control;
    let of = |counter| count(control, counter);
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
    lines.extend(storage(reckoning));
    lines.extend(threads(reckoning));
    lines.push(("priming", priming(control)));
    lines.push(("timers", timers(reckoning)));
    let others = [
        (Counter::DuplicateEvent, "of a second event"),
        (Counter::Foreign, "not ours"),
        (Counter::Nameless, "of unknown origin, kept from ending the program"),
        (Counter::Stale, "of an earlier recording"),
        (Counter::Late, "late"),
        (Counter::Nested, "inside our handler"),
        (Counter::Off, "while sampling was off"),
    ];
    let others = others.map(|(counter, what)| format!("{} {what}", of(counter)));
    lines.push(("signals", others.join(", ")));
    lines.into_iter().map(|(label, value)| (label.to_string(), value)).collect()
}

fn threads(reckoning: &Reckoning<'_>) -> [(&'static str, String); 2] {
    let (control, it) = (reckoning.control, &reckoning.threads);
    let (ready, leaked) = (small(&control.slots_limit), count(control, Counter::SlotLeaked));
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
    let it = &reckoning.storage;
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
        count(reckoning.control, Counter::ReleaseFailed),
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

fn priming(control: &ControlBlock) -> String {
    let acks = large(&control.prime_acks);
    let sum = large(&control.prime_latency_sum_ns);
    format!(
        "{} threads by signal, {} without a slot, {acks} acknowledged, {} on average, {} at most",
        count(control, Counter::Primed),
        count(control, Counter::PrimeFailed),
        time(sum.checked_div(acks).unwrap_or(0)),
        time(small(&control.prime_latency_max_ns)),
    )
}

fn timers(reckoning: &Reckoning<'_>) -> String {
    let of = |counter| count(reckoning.control, counter);
    format!(
        "{} armed, {} failed, {} expired with their lease; {} hits, {} overruns; {} threads \
         sampled by perf events, as they could have no timer",
        of(Counter::Armed),
        of(Counter::TimerFailed),
        of(Counter::LeaseEnded),
        of(Counter::TimerHits),
        of(Counter::TimerOverruns),
        reckoning.relieved.threads,
    )
}

fn time(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        _ => format!("{:.1} ms", ns as f64 / 1e6),
    }
}

fn small(word: &AtomicU32) -> u64 {
    // Relaxed: a count.
    u64::from(word.load(Ordering::Relaxed))
}

fn large(word: &AtomicU64) -> u64 {
    // Relaxed: a count.
    word.load(Ordering::Relaxed)
}
