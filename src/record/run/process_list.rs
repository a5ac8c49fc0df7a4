//! The list of processes in the trace and in the closing report, for recordings of several.
//!
//! # Invariants
//! - All processes are counted. The trace lists a bounded number: the first ones, and the heaviest
//!   of the others.

use crate::proc;
use crate::record::contract::number_format::{percent, seconds};
use crate::record::run::ended_process::{EndedProcess, LISTED, titled};
use crate::record::run::ended_recording::EndedRecording;
use crate::record::session::SessionEnd;
use crate::trace::{Metadata, Value};

/// The number of processes that the closing report names.
const NAMED: usize = 10;
/// The largest number of characters of a command line in the trace.
const COMMAND_MAX: usize = 4000;

/// Returns the entry of a running process in the trace: process id, start time in ticks, name,
/// command line, and the start of its recording.
pub(crate) fn begun(pid: i32, start_time: u64, words: &[std::ffi::OsString], now_ns: u64) -> Value {
    let mut room = COMMAND_MAX;
    let mut texts = Vec::new();
    for word in words {
        let text: String = word.to_string_lossy().chars().take(room).collect();
        room -= text.chars().count();
        texts.push(Value::Text(text));
        if room == 0 {
            break;
        }
    }
    let name = proc::status(pid).map(|status| status.name).unwrap_or_default();
    Value::List(vec![
        Value::Unsigned(pid as u64),
        Value::Unsigned(start_time),
        Value::Text(name),
        Value::List(texts),
        Value::Unsigned(now_ns),
    ])
}

impl EndedProcess {
    /// Describes how its recording ended, in a word or with a reason.
    fn how(&self) -> String {
        match self.end {
            SessionEnd::Asked | SessionEnd::AskedBetween | SessionEnd::Output => {
                "detached".to_owned()
            }
            SessionEnd::Attached => "attached to after that".to_owned(),
            SessionEnd::Exited => self.death().unwrap_or_else(|| "exited".to_owned()),
            SessionEnd::Executed
            | SessionEnd::Full
            | SessionEnd::OutOfIds
            | SessionEnd::SignalTaken => self.reason().unwrap_or_else(|| "detached".to_owned()),
        }
    }

    /// Returns the name and the process id.
    pub(crate) fn title(&self) -> String {
        titled(&self.opened.name, self.opened.pid)
    }

    /// Returns the time for which it was recorded.
    fn elapsed_ns(&self) -> u64 {
        let (began_ns, ended_ns) = self.program_run.times_ns;
        ended_ns.saturating_sub(began_ns)
    }
}

impl EndedRecording {
    fn samples_of(&self, ended: &EndedProcess) -> u64 {
        let numbers = ended.before.into_iter().chain([ended.number]);
        let totals = numbers.filter_map(|number| self.finished.totals_of(number));
        totals.map(|totals| totals.samples + totals.wall.0).sum()
    }

    /// Returns the metadata of each process.
    pub(crate) fn process_metadata(&self) -> Metadata {
        let mut metadata = Metadata::new();
        if !self.lists_processes {
            return metadata;
        }
        // All tags: the process that reported tags last may not know the newest ones.
        metadata.extend(self.tags.clone());
        let mut set = |key: &str, number: usize| {
            metadata.insert(key.to_owned(), Value::Unsigned(number as u64));
        };
        set("processes", self.count as usize);
        set("processes_summed", self.count as usize - self.ended.len());
        set("processes_refused", self.refused.len());
        set("processes_missed", self.missed as usize);
        for ended in &self.ended {
            let opened = &ended.opened;
            let (began_ns, ended_ns) = ended.program_run.times_ns;
            let begun = begun(opened.pid, opened.start_time, &opened.command_line, began_ns);
            let Value::List(mut entry) = begun else { continue };
            entry[2] = Value::Text(opened.name.clone());
            entry.extend([
                Value::Unsigned(ended_ns),
                Value::Text(ended.how()),
                Value::Unsigned(self.samples_of(ended)),
                Value::Unsigned(ended.program_run.cpu.used_ns()),
                Value::Unsigned(ended.program_run.overhead.signals_ns()),
                Value::Unsigned(ended.program_run.overhead.cost.recorder_ns),
            ]);
            metadata.insert(format!("process.{}", ended.number), Value::List(entry));
        }
        for (number, refused) in self.refused.iter().take(LISTED).enumerate() {
            let texts = [refused.name.clone(), refused.error.text()].map(Value::Text);
            let entry = [Value::Unsigned(refused.pid as u64)].into_iter().chain(texts).collect();
            metadata.insert(format!("process_refused.{}", number + 1), Value::List(entry));
        }
        metadata
    }

    /// Returns the lines of the closing report: the processes with the most CPU time, those that
    /// could not be recorded, and those in which the detach left something.
    pub(crate) fn process_lines(&self) -> Vec<(String, String)> {
        if !self.is_several() {
            return Vec::new();
        }
        let all_ns: u64 = self.program_run.cpu.used_ns();
        let (began_ns, ended_ns) = self.program_run.times_ns;
        let elapsed_ns = ended_ns.saturating_sub(began_ns);
        let mut order: Vec<&EndedProcess> = self.ended.iter().collect();
        order.sort_by_key(|it| std::cmp::Reverse(it.program_run.cpu.used_ns()));
        let one = |it: &&EndedProcess| {
            let used_ns = it.program_run.cpu.used_ns();
            let samples = self.samples_of(it);
            let (time, share) = (seconds(used_ns), percent(used_ns, all_ns));
            // Its share is of the time in which all were recorded.
            let own_ns = it.elapsed_ns();
            let within = match own_ns < elapsed_ns / 10 * 9 {
                true => format!(" within {}", seconds(own_ns)),
                false => String::new(),
            };
            let cost =
                it.program_run.overhead.short().map_or(String::new(), |cost| format!(", {cost}"));
            let (title, how) = (it.title(), it.how());
            let text = format!("{title}: {time} ({share}){within}, {samples} samples{cost}, {how}");
            ("process".to_owned(), text)
        };
        let mut lines: Vec<_> = order.iter().take(NAMED).map(one).collect();
        let mut more = |label: &str, count: usize, what: &str| {
            if count > 0 {
                lines.push((label.to_owned(), format!("{count} {what}")));
            }
        };
        more("process", self.ended.len().saturating_sub(NAMED), "more, in the trace");
        let summed = self.count as usize - self.ended.len();
        more("process", summed, "more with less CPU time, only in the totals");
        more("missed", self.missed as usize, "processes exited before they could be recorded");
        lines.extend(self.late.iter().map(|text| ("late".to_owned(), text.clone())));
        let refused = self.refused.iter().take(NAMED);
        let not = "not recorded";
        lines.extend(refused.map(|it| (not.into(), it.line())));
        if self.refused.len() > NAMED {
            lines.push((not.to_owned(), format!("{} more", self.refused.len() - NAMED)));
        }
        for (ended, found) in self.ended.iter().zip(&self.residues) {
            if let Some(residue) = &ended.program_run.detached.residue {
                lines.push(("left behind".to_owned(), format!("{}: {residue}", ended.title())));
            }
            if let Some(found) = found {
                let text = format!("{}: {}", ended.title(), found.text());
                lines.push(("verified".to_owned(), text));
            }
        }
        lines
    }
}
