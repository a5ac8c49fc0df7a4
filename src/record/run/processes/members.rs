//! The processes of a recording: who they are, how far they are, and what became of them.
//!
//! # Invariants
//! - Nothing is said of the first processes until it is known of each whether it can be recorded:
//!   of those that cannot there is a notice if any other can, and an error if none can.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::proc;
use crate::record::batch::process::Number;
use crate::record::contract::error::RecordError;
use crate::record::contract::event::{Event, Progress};
use crate::record::run::ended::{Ended, Refused};
use crate::record::run::ended_processes::EndedProcesses;

/// Between two reports of the progress.
const TICK: Duration = Duration::from_millis(200);
/// Processes that are told of when their sampling begins; of a build there are thousands.
const TOLD_MAX: u32 = 20;
/// Those that could not be recorded and are kept by name.
const REFUSED_MAX: usize = 1000;
/// Those that were begun with late and are told of.
const LATE_MAX: usize = 10;

/// One of them.
#[derive(Debug, Clone, Default)]
struct Member {
    pid: i32,
    name: String,
    /// It was there from the begin.
    is_first: bool,
    /// It is sampled, or will never be.
    is_settled: bool,
    progress: Option<Progress>,
}

impl Member {
    fn title(&self) -> String {
        format!("{} ({})", self.pid, self.name)
    }
}

/// All of them.
#[derive(Default)]
pub(super) struct Members {
    members: BTreeMap<Number, Member>,
    last: Number,
    /// From now on they are new ones.
    are_all_there: bool,
    /// What is to be said as soon as it may be.
    held: Vec<Event>,
    told: u32,
    tick: Option<Instant>,
    /// Samples of those that are over and not listed any more: stored, lost.
    samples: (u64, u64),
    /// Those that were recorded,
    pub(super) ended_processes: EndedProcesses,
    /// those that could not be,
    pub(super) refused: Vec<Refused>,
    /// and how many more there were of which nothing is known.
    pub(super) missed: u64,
    /// Those that were begun with late, and why.
    late: Vec<String>,
    /// The others of those.
    late_more: u64,
}

impl Members {
    /// A process with which is begun.
    pub(super) fn add(&mut self, pid: Option<i32>) -> Number {
        self.last += 1;
        let pid = pid.unwrap_or(0);
        let is_first = !self.are_all_there;
        let member = Member { pid, name: name_of(pid), is_first, ..Member::default() };
        self.members.insert(self.last, member);
        self.last
    }

    /// The first ones have been added.
    pub(super) fn all_are_there(&mut self) {
        self.are_all_there = true;
    }

    /// How many are recorded, or about to be.
    pub(super) fn running(&self) -> usize {
        self.members.len()
    }

    /// It is known who it is.
    pub(super) fn opened(&mut self, number: Number, pid: i32) {
        if let Some(member) = self.members.get_mut(&number) {
            (member.pid, member.name) = (pid, name_of(pid));
        }
    }

    /// It has something to say.
    pub(super) fn event(&mut self, number: Number, event: Event) {
        let Some(member) = self.members.get_mut(&number) else { return };
        if let Event::Attached { executed, .. } = &event {
            member.is_settled = true;
            if executed.is_some() {
                member.name = name_of(member.pid);
            }
            self.told += 1;
            if self.told > TOLD_MAX {
                return;
            }
        }
        let (process, event) = (member.title(), Box::new(event));
        self.held.push(Event::Of { process, event });
    }

    /// It is not waited for any more, for this reason.
    pub(super) fn late(&mut self, number: Number, text: String) {
        if let Some(member) = self.members.get_mut(&number) {
            member.is_settled = true;
        }
        self.event(number, Event::Notice(text));
    }

    /// It is begun with after all, so long after it was found.
    pub(super) fn taken_up(&mut self, number: Number, after: Duration) {
        let Some(member) = self.members.get_mut(&number) else { return };
        member.name = name_of(member.pid);
        if self.late.len() >= LATE_MAX {
            self.late_more += 1;
            return;
        }
        let text = format!(
            "{}: recorded from {:.1} s after it was found, when it had left the memory of the \
             process \
             that started it",
            member.title(),
            after.as_secs_f64()
        );
        self.late.push(text);
    }

    /// What is told of those that were begun with late.
    pub(super) fn late_lines(&mut self) -> Vec<String> {
        let more = self.late_more;
        let more = (more > 0).then(|| format!("{more} more processes were begun with as late"));
        std::mem::take(&mut self.late).into_iter().chain(more).collect()
    }

    /// How far it is.
    pub(super) fn tick(&mut self, number: Number, progress: Progress) {
        if let Some(member) = self.members.get_mut(&number) {
            member.progress = Some(progress);
        }
    }

    /// It is over. `preserve` call traces of all are the heaviest.
    pub(super) fn over(
        &mut self,
        number: Number,
        outcome: Result<Ended, RecordError>,
        preserve: usize,
    ) {
        let Some(member) = self.members.remove(&number) else { return };
        match outcome {
            Ok(ended) => {
                if let Some(progress) = member.progress {
                    self.samples.0 += progress.samples;
                    self.samples.1 += progress.lost;
                }
                self.ended_processes.add(ended, preserve);
            }
            // It was too short: of a shell's children most are.
            Err(RecordError::TargetGone(_)) if !member.is_first => self.missed += 1,
            Err(error) => self.put(member, error),
        }
    }

    /// One that is not even begun with.
    pub(super) fn refuse(&mut self, pid: i32, error: RecordError) {
        self.put(Member { pid, name: name_of(pid), ..Member::default() }, error);
    }

    fn put(&mut self, member: Member, error: RecordError) {
        if self.refused.len() >= REFUSED_MAX {
            self.missed += 1;
            return;
        }
        let refused = Refused { pid: member.pid, name: member.name, error };
        if member.is_first {
            let text =
                format!("process {} is not recorded: {}", refused.title(), refused.error.text());
            self.held.push(Event::Notice(text));
        }
        self.refused.push(refused);
    }

    /// What is to be said now.
    pub(super) fn tell(&mut self) -> Vec<Event> {
        let is_open = self.members.values().any(|it| it.is_first && !it.is_settled);
        let is_any =
            !self.ended_processes.is_empty() || self.members.values().any(|it| it.is_settled);
        if is_open || !is_any { Vec::new() } else { std::mem::take(&mut self.held) }
    }

    /// The progress of all, now and then.
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

/// What a process is called; of one that is gone nobody knows.
fn name_of(pid: i32) -> String {
    proc::status(pid).map_or_else(|_| "gone".to_owned(), |status| status.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_were_begun_with_late_are_told_of_or_counted() {
        let mut members = Members::default();
        for _ in 0..LATE_MAX + 3 {
            let number = members.add(None);
            members.taken_up(number, Duration::from_secs(4));
        }
        let lines = members.late_lines();
        assert_eq!(lines.len(), LATE_MAX + 1);
        assert!(lines[0].contains("4.0 s after it was found"), "{lines:?}");
        assert_eq!(lines[LATE_MAX], "3 more processes were begun with as late");
        members = Members::default();
        assert_eq!(members.late_lines(), Vec::<String>::new());
    }
}
