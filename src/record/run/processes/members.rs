//! The processes of a recording: their ids and names, their progress, and their outcomes.
//!
//! # Invariants
//! - No event is passed on until the recorder knows of each initial process whether it can be
//!   recorded. Processes that cannot be recorded get a notice if another one can. If none can, the
//!   recording fails.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::proc;
use crate::record::batch::process::ProcessNumber;
use crate::record::contract::error::RecordError;
use crate::record::contract::event::{Event, Progress};
use crate::record::run::ended_process::{EndedProcess, Refused, titled};
use crate::record::run::ended_processes::EndedProcesses;

/// Interval between two reports of the progress.
const TICK: Duration = Duration::from_millis(200);
/// The number of processes whose start of sampling is reported: a build has thousands.
const ANNOUNCED_MAX: u32 = 20;
/// The number of refused processes that are kept by name.
const REFUSED_MAX: usize = 1000;
/// The number of processes that are reported as attached late.
const LATE_MAX: usize = 10;

/// A process of the recording.
#[derive(Debug, Clone, Default)]
struct Member {
    pid: i32,
    name: String,
    /// Whether it belongs to the recording from the start.
    is_initial: bool,
    /// Whether it is sampled, or will never be.
    is_settled: bool,
    progress: Option<Progress>,
}

impl Member {
    fn title(&self) -> String {
        titled(&self.name, self.pid)
    }
}

/// All processes of the recording.
#[derive(Default)]
pub(super) struct Members {
    members: BTreeMap<ProcessNumber, Member>,
    /// Whether the initial processes have been added.
    has_all_initial: bool,
    /// Events that wait until all initial processes are settled.
    pending_events: Vec<Event>,
    announced: u32,
    tick: Option<Instant>,
    /// The numbers of stored and of lost samples of processes that have ended.
    samples: (u64, u64),
    /// The processes that were recorded and have ended.
    pub(super) ended_processes: EndedProcesses,
    /// The processes that could not be recorded.
    pub(super) refused: Vec<Refused>,
    /// The number of further processes that exited too soon, or that exceed the list.
    pub(super) missed: u64,
    /// Lines about processes that were attached late, with the reason.
    late: Vec<String>,
    /// The number of processes that were attached late and exceed the list.
    late_unlisted: u64,
}

impl Members {
    /// Adds a process, and returns whether it belongs to the recording from the start.
    pub(super) fn add(&mut self, number: ProcessNumber, pid: Option<i32>) -> bool {
        let pid = pid.unwrap_or(0);
        let is_initial = !self.has_all_initial;
        let member = Member { pid, name: name_of(pid), is_initial, ..Member::default() };
        self.members.insert(number, member);
        is_initial
    }

    /// Notes that the initial processes have been added.
    pub(super) fn initial_are_added(&mut self) {
        self.has_all_initial = true;
    }

    /// Returns the id of a process that is recorded or about to be.
    pub(super) fn pid(&self, number: ProcessNumber) -> Option<i32> {
        self.members.get(&number).map(|member| member.pid).filter(|pid| *pid != 0)
    }

    /// Returns the number of processes that are recorded or about to be.
    pub(super) fn running(&self) -> usize {
        self.members.len()
    }

    /// Sets the id of a process that has been opened.
    pub(super) fn opened(&mut self, number: ProcessNumber, pid: i32) {
        if let Some(member) = self.members.get_mut(&number) {
            (member.pid, member.name) = (pid, name_of(pid));
        }
    }

    /// Adds an event of a process.
    pub(super) fn event(&mut self, number: ProcessNumber, event: Event) {
        let Some(member) = self.members.get_mut(&number) else { return };
        if let Event::Attached { executed, .. } = &event {
            member.is_settled = true;
            if executed.is_some() {
                member.name = name_of(member.pid);
            }
            self.announced += 1;
            if self.announced > ANNOUNCED_MAX {
                return;
            }
        }
        let (process, is_later) = (member.title(), !member.is_initial);
        self.pending_events.push(Event::Of { process, is_later, event: Box::new(event) });
    }

    /// Stops waiting for a process, for this reason.
    pub(super) fn late(&mut self, number: ProcessNumber, text: String) {
        if let Some(member) = self.members.get_mut(&number) {
            member.is_settled = true;
        }
        self.event(number, Event::Notice(text));
    }

    /// Notes that the recorder attaches to a process this long after it was found.
    pub(super) fn attached_late(&mut self, number: ProcessNumber, after: Duration) {
        let Some(member) = self.members.get_mut(&number) else { return };
        member.name = name_of(member.pid);
        if self.late.len() >= LATE_MAX {
            self.late_unlisted += 1;
            return;
        }
        let text = format!(
            "{}: recorded from {:.1} s after it was found, when it no longer shared its parent's \
             memory",
            member.title(),
            after.as_secs_f64()
        );
        self.late.push(text);
    }

    /// Returns the lines about processes that were attached late.
    pub(super) fn late_lines(&mut self) -> Vec<String> {
        let more = self.late_unlisted;
        let more = (more > 0).then(|| format!("{more} more processes were attached late"));
        std::mem::take(&mut self.late).into_iter().chain(more).collect()
    }

    /// Sets the progress of a process.
    pub(super) fn tick(&mut self, number: ProcessNumber, progress: Progress) {
        if let Some(member) = self.members.get_mut(&number) {
            member.progress = Some(progress);
        }
    }

    /// Adds the outcome of a process. `preserve` is the number of heaviest call traces to keep.
    /// Returns the id of a child that exited before the attach.
    pub(super) fn over(
        &mut self,
        number: ProcessNumber,
        outcome: Result<EndedProcess, RecordError>,
        preserve: usize,
    ) -> Option<i32> {
        let member = self.members.remove(&number)?;
        match outcome {
            Ok(ended) => {
                if let Some(progress) = member.progress {
                    self.samples.0 += progress.samples;
                    self.samples.1 += progress.lost;
                }
                self.ended_processes.add(ended, preserve);
            }
            // It exited too soon, like most children of a shell.
            Err(RecordError::TargetGone(_)) if !member.is_initial => return Some(member.pid),
            Err(error) => self.put(member, error),
        }
        None
    }

    /// Adds a process that the recorder does not open at all.
    pub(super) fn refuse(&mut self, pid: i32, error: RecordError) {
        self.put(Member { pid, name: name_of(pid), ..Member::default() }, error);
    }

    fn put(&mut self, member: Member, error: RecordError) {
        if self.refused.len() >= REFUSED_MAX {
            self.missed += 1;
            return;
        }
        let refused = Refused { pid: member.pid, name: member.name, error };
        if member.is_initial {
            let text =
                format!("process {} is not recorded: {}", refused.title(), refused.error.text());
            self.pending_events.push(Event::Notice(text));
        }
        self.refused.push(refused);
    }

    /// Takes the events that may be passed on now.
    pub(super) fn take_events(&mut self) -> Vec<Event> {
        let is_open = self.members.values().any(|it| it.is_initial && !it.is_settled);
        let is_any =
            !self.ended_processes.is_empty() || self.members.values().any(|it| it.is_settled);
        if is_open || !is_any { Vec::new() } else { std::mem::take(&mut self.pending_events) }
    }

    /// Returns the progress of all processes, at most once in [`TICK`].
    pub(super) fn progress(&mut self, duration: Option<Duration>) -> Option<Progress> {
        let now = Instant::now();
        if self.tick.is_some_and(|last| now < last + TICK) {
            return None;
        }
        self.tick = Some(now);
        let each = self.members.values().filter_map(|member| member.progress);
        let (samples, lost) = self.samples;
        let none =
            Progress { elapsed: Duration::ZERO, duration, samples, lost, threads: 0, bytes: 0 };
        let sum = each.fold(none, |sum, it| Progress {
            elapsed: sum.elapsed.max(it.elapsed),
            samples: sum.samples + it.samples,
            lost: sum.lost + it.lost,
            threads: sum.threads + it.threads,
            bytes: sum.bytes.max(it.bytes),
            ..sum
        });
        (sum.elapsed > Duration::ZERO).then_some(sum)
    }
}

/// Returns the name of a process; a process that has exited has none.
fn name_of(pid: i32) -> String {
    proc::status(pid).map(|status| status.name).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_that_are_attached_late_are_listed_or_counted() {
        let mut members = Members::default();
        for number in 0..LATE_MAX as ProcessNumber + 3 {
            members.add(number, None);
            members.attached_late(number, Duration::from_secs(4));
        }
        let lines = members.late_lines();
        assert_eq!(lines.len(), LATE_MAX + 1);
        assert!(lines[0].contains("4.0 s after it was found"), "{lines:?}");
        assert_eq!(lines[LATE_MAX], "3 more processes were attached late");
        members = Members::default();
        assert_eq!(members.late_lines(), Vec::<String>::new());
    }
}
