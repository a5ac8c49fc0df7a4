//! The processes whose recording has ended. The first ones and those with the most CPU time are
//! kept one by one, all others as a sum.
//!
//! # Invariants
//! - Memory does not grow with the number of processes, except for threads that blocked the signal.
//! - The totals do not depend on how many processes are in the sum.
//! - The sum has only processes that exited, with nothing left to do or to report for them.

use crate::record::run::ended_process::{EndedProcess, is_listed};
use crate::record::run::executions::Executions;
use crate::record::session::SessionEnd;
use crate::record::session::program_run::ProgramRun;
use crate::record::store::liveness::heaviest;

/// The number of processes that are kept for their CPU time, besides the first ones.
const HEAVIEST: usize = 100;

/// The processes of a recording that have ended.
#[derive(Default)]
pub(crate) struct EndedProcesses {
    /// Processes that are kept one by one, in the order in which they ended.
    pub(crate) ended: Vec<EndedProcess>,
    /// The sum of all others.
    pub(crate) rest: Option<Box<SummedProcesses>>,
}

/// The sum of the processes that are not kept one by one.
pub(crate) struct SummedProcesses {
    /// The number of these processes.
    pub(crate) count: u64,
    /// The totals of their sampling.
    pub(crate) program_run: ProgramRun,
    /// The programs that they executed.
    pub(crate) executions: Executions,
}

impl EndedProcesses {
    /// Returns the list with a single process.
    pub(crate) fn of_one(ended: EndedProcess) -> Self {
        Self { ended: vec![ended], rest: None }
    }

    /// Whether no process has ended.
    pub(crate) fn is_empty(&self) -> bool {
        self.ended.is_empty() && self.rest.is_none()
    }

    /// Returns the number of processes, including those in the sum.
    pub(crate) fn count(&self) -> u64 {
        self.ended.len() as u64 + self.rest.as_ref().map_or(0, |rest| rest.count)
    }

    /// Adds a process that ended. `preserve` is the number of heaviest call traces to keep.
    pub(crate) fn add(&mut self, mut ended: EndedProcess, preserve: usize) {
        if let Some(index) = self.ended.iter().position(|it| it.is_before(&ended)) {
            ended.add_before(&self.ended.remove(index));
        }
        // The reader of the kernel's samples may be the later one.
        if let Some(after) = self.ended.iter_mut().find(|it| ended.is_before(it)) {
            after.add_before(&ended);
            return;
        }
        self.ended.push(ended);
        let light = self.ended.iter().enumerate().filter(|(_, it)| may_be_summed(it));
        let light: Vec<(u64, usize)> =
            light.map(|(index, it)| (it.program_run.cpu.used_ns(), index)).collect();
        if light.len() <= HEAVIEST {
            return;
        }
        let Some((_, index)) = light.into_iter().min() else { return };
        let ended = self.ended.remove(index);
        ended.tally.sum_up();
        self.sum(&ended, preserve);
    }

    fn sum(&mut self, ended: &EndedProcess, preserve: usize) {
        let mut program_run = ended.program_run.clone();
        program_run.count_stops();
        match &mut self.rest {
            Some(rest) => {
                rest.count += 1;
                rest.program_run.join(&program_run);
                rest.executions.join(&ended.executions);
                let traces = std::mem::take(&mut rest.program_run.heaviest);
                rest.program_run.heaviest = heaviest(&[], traces, preserve);
            }
            none => {
                let executions = ended.executions.clone();
                *none = Some(Box::new(SummedProcesses { count: 1, program_run, executions }));
            }
        }
    }
}

fn may_be_summed(ended: &EndedProcess) -> bool {
    !is_listed(ended.number)
        && ended.end == SessionEnd::Exited
        && ended.opened.command.is_none()
        && ended.program_run.detached.residue.is_none()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::record::session::program_run::tests::made_up;
    use crate::record::source::totals::SourceTotals;
    use crate::record::weigh::cpu_clock::CpuClock;

    const MS: u64 = 1_000_000;
    /// The number of processes that are listed because they were first.
    const FIRST: u64 = 1000;

    fn ended(number: u32, used_ns: u64) -> EndedProcess {
        let program_run = ProgramRun {
            cpu: CpuClock::made_up(0, used_ns),
            source: SourceTotals { primed: used_ns / MS, ..SourceTotals::default() },
            attach_stops_ns: vec![u64::from(number), 7],
            ..made_up()
        };
        EndedProcess::made_up(number, SessionEnd::Exited, program_run)
    }

    /// Returns a CPU time for a process number, in no particular order.
    fn used_ns(number: u32) -> u64 {
        (1 + u64::from(number) * 7919 % 997) * MS
    }

    #[test]
    fn of_thousands_of_processes_the_sums_are_right_and_few_are_kept() {
        let mut ended_processes = EndedProcesses::default();
        let numbers = 1..=3000;
        numbers.clone().for_each(|number| ended_processes.add(ended(number, used_ns(number)), 0));
        assert_eq!(
            (ended_processes.count(), ended_processes.ended.len()),
            (3000, FIRST as usize + HEAVIEST)
        );
        let rest = ended_processes.rest.as_ref().unwrap();
        assert!(rest.program_run.attach_stops_ns.is_empty());
        let mut sum = rest.program_run.clone();
        ended_processes.ended.iter().for_each(|it| sum.join(&it.program_run));
        let all_ns: u64 = numbers.clone().map(used_ns).sum();
        assert_eq!(sum.cpu.used_ns(), all_ns);
        assert_eq!(sum.source.primed, all_ns / MS);
        assert_eq!(sum.store.threads.seen, 5 * 3000);
        let (later, longest) = sum.later_stops_ns;
        assert_eq!((sum.attach_stops_ns.len() as u64 + later, longest), (6000, longest));
        // No later process that is kept is lighter than one that is not.
        let kept: BTreeMap<u32, u64> = ended_processes
            .ended
            .iter()
            .map(|it| (it.number, it.program_run.cpu.used_ns()))
            .collect();
        assert!((1..=FIRST as u32).all(|number| kept.contains_key(&number)));
        let lightest = kept.iter().filter(|it| *it.0 > FIRST as u32).map(|it| *it.1).min();
        let mut later: Vec<u64> = (FIRST as u32 + 1..=3000).map(used_ns).collect();
        later.sort_unstable();
        assert_eq!(lightest, Some(later[later.len() - HEAVIEST]));
    }

    #[test]
    fn what_was_sampled_before_the_attach_is_added() {
        let mut ended_processes = EndedProcesses::default();
        let of_pid = |number, end, ms: u64| {
            let mut ended = ended(number, ms * MS);
            (ended.end, ended.opened.pid) = (end, 77);
            ended
        };
        ended_processes.add(ended(1, 9 * MS), 0);
        ended_processes.add(of_pid(2, SessionEnd::Attached, 3), 0);
        ended_processes.add(of_pid(3, SessionEnd::Exited, 4), 0);
        // Another process with the same id has exited by itself.
        ended_processes.add(of_pid(4, SessionEnd::Exited, 5), 0);
        let of = |it: &EndedProcess| (it.number, it.before, it.program_run.cpu.used_ns() / MS);
        let found: Vec<_> = ended_processes.ended.iter().map(of).collect();
        assert_eq!(found, [(1, None, 9), (3, Some(2), 7), (4, None, 5)]);
    }

    #[test]
    fn who_did_not_just_exit_is_kept_by_itself() {
        let mut ended_processes = EndedProcesses::default();
        for number in 2000..2400 {
            let mut ended = ended(number, MS);
            ended.end = SessionEnd::SignalTaken;
            ended_processes.add(ended, 0);
        }
        assert!(ended_processes.rest.is_none() && ended_processes.ended.len() == 400);
    }
}
