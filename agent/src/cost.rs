//! The run time of the handler. One in a few runs is timed, with the samples' clock.
//!
//! The count of all samples selects the run. Runs that are not timed cost only a check of a word
//! that the handler writes anyway. The time of an interrupted run includes that of others. So a
//! run that takes longer than a limit counts as one that takes as long as the limit.

use traceprof_abi::layout::{ControlBlock, Counter};
use traceprof_abi::sync::Ordering;

use crate::clock;

/// One in this many runs is timed.
const TIMED_EVERY: u64 = 16;

/// The start time of a timed run, or `None` if the run is not timed.
#[derive(Debug, Clone, Copy)]
pub struct Begin(Option<u64>);

/// Starts the timing of a handler's run, if the run is selected.
pub fn begin(control: &ControlBlock) -> Begin {
    // Relaxed: a count; it does not matter which of the runs is timed.
    let stored = control.counters[Counter::Samples as usize].load(Ordering::Relaxed);
    Begin(stored.is_multiple_of(TIMED_EVERY).then(|| clock::now(control)))
}

/// Ends the timing, and adds the run's time to the sum.
pub fn end(control: &ControlBlock, begin: Begin) {
    let Begin(Some(begin)) = begin else { return };
    let took = clock::now(control).saturating_sub(begin);
    // Relaxed: written before the handler was installed.
    let most = control.timed_max.load(Ordering::Relaxed);
    if took > most {
        control.count(Counter::TimedAtLimit);
    }
    // Relaxed, both: measurements, which the recorder may read late.
    control.timed_sum.fetch_add(took.min(most), Ordering::Relaxed);
    control.timed.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::tests::segment;

    #[test]
    fn one_run_in_sixteen_is_timed_and_none_counts_as_longer_than_the_limit() {
        let data = segment();
        let control = data.control();
        control.timed_max.store(u64::MAX, Ordering::Relaxed);
        for _ in 0..64 {
            let begin = begin(control);
            control.count(Counter::Samples);
            end(control, begin);
        }
        assert_eq!(control.timed.load(Ordering::Relaxed), 4);
        let sum_ns = control.timed_sum.load(Ordering::Relaxed);
        assert!((1..4_000_000_000).contains(&sum_ns), "{sum_ns}");
        assert_eq!(control.counters[Counter::TimedAtLimit as usize].load(Ordering::Relaxed), 0);
        control.timed_max.store(7, Ordering::Relaxed);
        let begin = begin(control);
        std::thread::sleep(std::time::Duration::from_millis(1));
        end(control, begin);
        assert_eq!(control.timed.load(Ordering::Relaxed), 5);
        assert_eq!(control.timed_sum.load(Ordering::Relaxed), sum_ns + 7);
        assert_eq!(control.counters[Counter::TimedAtLimit as usize].load(Ordering::Relaxed), 1);
    }
}
