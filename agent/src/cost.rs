//! What the handler itself takes: one in a few hits is timed, with the clock that samples have.
//!
//! Which one the count of all samples decides, so the others cost a look at a word that the handler
//! writes anyway. A handler that was interrupted counts for nothing: the time that its thread did
//! not have is not its own.

use traceprof_abi::layout::{ControlBlock, Counter};
use traceprof_abi::sync::Ordering;

use crate::clock;

/// One in so many hits is timed.
const TIMED_EVERY: u64 = 16;

/// When a handler began that is to be timed.
#[derive(Debug, Clone, Copy)]
pub struct Begin(Option<u64>);

/// A handler begins.
pub fn begin(control: &ControlBlock) -> Begin {
    // Relaxed: a count; which of the hits is timed does not matter.
    let stored = control.counters[Counter::Samples as usize].load(Ordering::Relaxed);
    Begin(stored.is_multiple_of(TIMED_EVERY).then(|| clock::now(control)))
}

/// It ends.
pub fn end(control: &ControlBlock, begin: Begin) {
    let Begin(Some(begin)) = begin else { return };
    let took = clock::now(control).saturating_sub(begin);
    // Relaxed: written before the handler was installed.
    if took > control.timed_max.load(Ordering::Relaxed) {
        return control.count(Counter::Untimed);
    }
    // Relaxed, both: measurements, which the recorder reads at its leisure.
    control.timed_sum.fetch_add(took, Ordering::Relaxed);
    control.timed.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::tests::segment;

    #[test]
    fn one_in_sixteen_is_timed_and_what_was_interrupted_is_not() {
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
        control.timed_max.store(0, Ordering::Relaxed);
        let begin = begin(control);
        std::thread::sleep(std::time::Duration::from_millis(1));
        end(control, begin);
        assert_eq!(control.timed.load(Ordering::Relaxed), 4);
        assert_eq!(control.timed_sum.load(Ordering::Relaxed), sum_ns);
        assert_eq!(control.counters[Counter::Untimed as usize].load(Ordering::Relaxed), 1);
    }
}
