//! Applies the kernel's reports to the list of threads.

use crate::proc;
use crate::record::batch::mapped::Mapped;
use crate::record::source::task_record::{TaskChange, TaskEvent};
use crate::record::store::threads::UNKNOWN_NS;
use crate::record::store::threads::list::ThreadList;
use crate::record::store::threads::lives::Life;

impl ThreadList {
    /// Processes the reports since the last call.
    pub(super) fn listen(&mut self) {
        let mut reports = std::mem::take(&mut self.reports);
        self.watch.drain(&mut reports);
        for event in reports.drain(..) {
            self.report(event);
        }
        self.reports = reports;
    }

    pub(super) fn report(&mut self, event: TaskEvent) {
        let TaskEvent { time_ns, tid, change } = event;
        if self.executed_ns.is_some_and(|executed_ns| time_ns >= executed_ns) {
            // The report is about a thread of the next program.
            return;
        }
        match change {
            TaskChange::Mapped { range, is_anonymous } => {
                self.mapped.push(Mapped { time_ns, range, is_anonymous });
            }
            TaskChange::Executed(_) => self.executed_ns = Some(time_ns),
            TaskChange::Started { parent } => self.report_start(time_ns, tid, parent),
            TaskChange::Renamed(name) => {
                if let Some(number) = self.lives.living(tid) {
                    self.rename(number, name);
                }
            }
            TaskChange::Exited { cpu_ns } => match self.lives.latest(tid) {
                Some(number) if self.lives.living(tid).is_some() => {
                    self.end(number, time_ns, true, cpu_ns);
                }
                // A scan has missed the thread before, or its start is reported later.
                Some(number) if self.lives.get(number).is_some_and(|it| !it.is_end_exact) => {
                    self.end(number, time_ns, true, cpu_ns);
                }
                _ => {
                    self.early_exits.insert(tid, (time_ns, cpu_ns));
                }
            },
        }
    }

    fn report_start(&mut self, time_ns: u64, tid: i32, parent: i32) {
        let last = self.lives.living(tid);
        if let Some(number) = last
            && let Some(life) = self.lives.get_mut(number)
            && life.start_slack_ns > 0
            && life.start_slack_ns != UNKNOWN_NS
            && time_ns.saturating_sub(life.start_ns) < 2 * life.start_slack_ns
        {
            // A scan found the thread before its start was read from the ring.
            life.start_ns = time_ns;
            life.start_slack_ns = 0;
            life.is_start_reported = true;
            self.started.count += 1;
            return;
        }
        let inner = match self.same_namespace {
            true => tid as u32,
            false => proc::task_status(self.pid, tid).map_or(0, |status| status.inner_pid as u32),
        };
        let parent = self.lives.latest(parent).and_then(|number| self.lives.get_mut(number));
        let name = parent.map_or(String::new(), |parent| {
            parent.is_parent = true;
            parent.name.clone()
        });
        self.started.count += 1;
        let number = self.begin(Life {
            tid,
            inner,
            name,
            start_ns: time_ns,
            is_start_reported: true,
            ..Life::default()
        });
        match self.early_exits.remove(&tid) {
            Some((end_ns, cpu_ns)) if end_ns >= time_ns => {
                self.end(number, end_ns, true, cpu_ns);
            }
            _ => self.new.push(tid),
        }
    }
}
