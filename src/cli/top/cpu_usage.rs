//! How much CPU time the targets and this process use between two readings.

use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

use crate::proc;

/// A reading of all CPU clocks.
#[derive(Debug)]
pub(super) struct CpuUsage {
    at: Instant,
    /// By process; `None` for one that is gone.
    targets: Vec<Option<Duration>>,
    own: Option<Duration>,
}

impl CpuUsage {
    /// Reads the clocks.
    pub(super) fn new(pids: &[i32]) -> Self {
        let targets = pids.iter().map(|pid| target_time(*pid)).collect();
        Self { at: Instant::now(), targets, own: own_time() }
    }

    /// The use of the targets and of this process since an earlier reading, in percent of one
    /// processor. `None` if all targets are gone.
    pub(super) fn percents_since(&self, before: &Self) -> (Option<f64>, Option<f64>) {
        let seconds = self.at.duration_since(before.at).as_secs_f64().max(1e-3);
        let percent = |now: Option<Duration>, before: Option<Duration>| {
            let used = now?.saturating_sub(before?);
            Some(used.as_secs_f64() * 100.0 / seconds)
        };
        let targets = self.targets.iter().zip(&before.targets);
        let targets: Vec<f64> =
            targets.filter_map(|(now, before)| percent(*now, *before)).collect();
        let all = (!targets.is_empty()).then(|| targets.iter().sum());
        (all, percent(self.own, before.own))
    }
}

fn target_time(pid: i32) -> Option<Duration> {
    let (user_ns, system_ns) = proc::mode_times_ns(pid).ok()?;
    Some(Duration::from_nanos(user_ns.saturating_add(system_ns)))
}

fn own_time() -> Option<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).ok()?;
    let time = |time: TimeVal| {
        let seconds = Duration::from_secs(u64::try_from(time.tv_sec()).unwrap_or(0));
        seconds + Duration::from_micros(u64::try_from(time.tv_usec()).unwrap_or(0))
    };
    Some(time(usage.user_time()) + time(usage.system_time()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_process_is_seen_to_be_and_one_that_is_gone_is_not() {
        let pid = std::process::id() as i32;
        // The second id is that of no process.
        let usage = CpuUsage::new(&[pid, i32::MAX]);
        let started = own_time().unwrap();
        let mut sum = 0u64;
        while own_time().unwrap() < started + Duration::from_millis(50) {
            sum = std::hint::black_box(sum + 1);
        }
        let (target, own) = CpuUsage::new(&[pid, i32::MAX]).percents_since(&usage);
        assert!(target.unwrap() > 0.0 && own.unwrap() > 0.0, "{target:?} {own:?}");
        let gone = CpuUsage::new(&[i32::MAX]);
        assert_eq!(CpuUsage::new(&[i32::MAX]).percents_since(&gone).0, None);
    }
}
