//! The counters of the storage, its threads and their timers, for the metadata; and what samples
//! show.

use traceprof_abi::layout::Counter;

use crate::record::session::program_run::ProgramRun;

/// Counters and their names in the metadata.
const NAMES: [(Counter, &str); 32] = [
    (Counter::Samples, "samples_stored"),
    (Counter::Puts, "puts"),
    (Counter::PutHits, "put_hits"),
    (Counter::DroppedArena, "dropped.arena full"),
    (Counter::DroppedProbes, "dropped.no table slot"),
    (Counter::HazardCollision, "hazard_collisions"),
    (Counter::TableCollision, "table_collisions"),
    (Counter::DuplicateEvent, "duplicate_events"),
    (Counter::Foreign, "foreign_signals"),
    (Counter::SignalInfoLost, "nameless_signals"),
    (Counter::Stale, "stale_signals"),
    (Counter::Late, "late_signals"),
    (Counter::Nested, "nested_signals"),
    (Counter::Withheld, "signals_withheld"),
    (Counter::ProbeFailed, "probes_failed"),
    (Counter::SlotLeaked, "thread_slots_leaked"),
    (Counter::Primed, "threads_primed"),
    (Counter::Armed, "timers_armed"),
    (Counter::TimerFailed, "timers_failed"),
    (Counter::TimerExpiries, "timer_hits"),
    (Counter::TimerOverruns, "timer_overruns"),
    (Counter::LeaseEnded, "timers_expired"),
    (Counter::Off, "signals_while_off"),
    (Counter::PrimeFailed, "primings_failed"),
    (Counter::ReleaseFailed, "hazard_releases_failed"),
    (Counter::SliceLost, "stack_slices_lost"),
    (Counter::RuntimeIdle, "samples_without_managed_frames"),
    (Counter::RuntimeForeignThread, "managed_frames.thread_unknown"),
    (Counter::RuntimeUnreadable, "managed_frames.unreadable"),
    (Counter::RuntimeDepth, "managed_frames.too_deep"),
    (Counter::RuntimeForeignObject, "managed_frames.foreign_object"),
    (Counter::TaskNameless, "tasks_without_name"),
];

/// Returns the numbers for the metadata, by name.
pub(crate) fn numbers(program_run: &ProgramRun) -> Vec<(&'static str, u64)> {
    let (counts, storage) = (&program_run.counts, &program_run.store.storage);
    let threads = &program_run.store.threads;
    let mut numbers: Vec<_> =
        NAMES.iter().map(|(counter, name)| (*name, counts.of(*counter))).collect();
    numbers.extend([
        ("kernel_stacks", u64::from(program_run.setup.frames.are_shown())),
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
    numbers.extend(threads.started.numbers());
    numbers
}
