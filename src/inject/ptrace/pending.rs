//! A pending signal as the kernel describes it to a tracer.

use traceprof_abi::layout::SIG_DATA_MARK;
use traceprof_abi::signal::{SI_QUEUE, SI_TIMER, TRAP_PERF};

/// Bytes of a `siginfo_t`.
pub(super) const SIGINFO_LEN: usize = 128;

/// A pending signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::inject) struct PendingSignal {
    /// The signal's number.
    pub(in crate::inject) number: i32,
    code: i32,
    overruns: u32,
    mark: u16,
}

impl PendingSignal {
    pub(super) fn read(record: &[u32; SIGINFO_LEN / 4]) -> PendingSignal {
        // The `sig_data` of a perf event, or the value of a timer or of a queued signal, is at byte
        // 24; the mark is its uppermost quarter. The overruns of a timer are at byte 20.
        PendingSignal {
            number: record[0] as i32,
            code: record[2] as i32,
            overruns: record[5],
            mark: (record[7] >> 16) as u16,
        }
    }

    /// Returns the signal's bit in a set; bit 0 is signal 1.
    pub(in crate::inject) fn bit(self) -> u64 {
        1u64.checked_shl((self.number as u32).wrapping_sub(1)).unwrap_or(0)
    }

    /// Whether the signal belongs to a recording: one of its perf events or timers raised it, or
    /// the recorder sent it.
    pub(in crate::inject) fn is_sampling(self) -> bool {
        [TRAP_PERF, SI_TIMER, SI_QUEUE].contains(&self.code) && self.mark == SIG_DATA_MARK
    }

    /// Returns the number of further timer expiries that are folded into this signal.
    pub(in crate::inject) fn overruns(self) -> u32 {
        if self.code == SI_TIMER { (self.overruns as i32).max(0) as u32 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampling_signals_are_recognised_and_only_those_of_timers_have_overruns() {
        let mut record = [0; SIGINFO_LEN / 4];
        (record[0], record[5], record[7]) =
            (libc::SIGTRAP as u32, 7, u32::from(SIG_DATA_MARK) << 16);
        let check = |code: i32, mark: u32, expected| {
            let mut record = record;
            (record[2], record[7]) = (code as u32, mark);
            let read = PendingSignal::read(&record);
            assert_eq!((read.is_sampling(), read.overruns()), expected, "{code}");
        };
        check(SI_TIMER, record[7], (true, 7));
        check(TRAP_PERF, record[7], (true, 0));
        check(SI_QUEUE, record[7], (true, 0));
        check(SI_QUEUE, 0, (false, 0));
        check(0, record[7], (false, 0));
    }

    #[test]
    fn codes_are_those_of_the_c_library() {
        assert_eq!((SI_TIMER, SI_QUEUE), (libc::SI_TIMER, libc::SI_QUEUE));
    }
}
