//! Hits of ours that a thread does not get: it is held in a call that their handler would end.
//!
//! They are counted for the whole process, as threads are let go in many places, also by being dropped.
//! Whoever has stopped threads of a target that has an agent of its own adds them to what the agent has
//! counted; a look at the target of another recording tells of them.

use traceprof_abi::layout::{AgentState, Counter};
use traceprof_abi::sync::Ordering;

use super::super::segment::Attached;
use super::Stopped;

/// Relaxed everywhere: counts, which order nothing; threads that trace are joined before they are read.
static HITS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
/// Periods that they stood for besides one each.
static OVERRUNS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

impl Stopped {
    /// The signal that it has stopped to take is a hit of ours; the caller lets it go on without.
    pub(super) fn forgoes_hit(&self) -> bool {
        let Some(hit) = self.tracee.taken().ok().filter(|taken| taken.is_hit()) else {
            return false;
        };
        HITS.fetch_add(1, Ordering::Relaxed);
        OVERRUNS.fetch_add(u64::from(hit.overruns()), Ordering::Relaxed);
        true
    }
}

/// Adds what was withheld since the last time to the agent's counts. Of hits that come when the agent is
/// told to do nothing it would not have made samples.
pub(in super::super) fn count_withheld(data: &Attached) {
    let (hits, overruns) = take_withheld();
    let control = data.control();
    // Relaxed: this process has changed it itself, if anybody has.
    match control.state.load(Ordering::Relaxed) == AgentState::Stopped as u32 {
        true => control.count_by(Counter::Off, hits),
        false => {
            control.count_by(Counter::Withheld, hits);
            control.count_by(Counter::LostOverruns, overruns);
        }
    }
}

/// Hits, and the periods that they stood for besides one each, since the last time.
pub(in super::super) fn take_withheld() -> (u64, u64) {
    (HITS.swap(0, Ordering::Relaxed), OVERRUNS.swap(0, Ordering::Relaxed))
}
