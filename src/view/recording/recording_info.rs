//! The facts of a trace about its recording, without the samples.

use traceprof_abi::storage::log::flags::WALL;

use crate::trace::{self, BadRange, LazyTrace, Loss, Metadata, TagKey, ThreadId, Value};
use crate::view::text::escape::escaped;

/// A recording: the recorder's metadata, and how complete the file is.
#[derive(Debug, Clone, Default)]
pub struct RecordingInfo {
    /// The metadata of the recorder.
    pub metadata: Metadata,
    /// Whether the recorder finished and closed the file.
    pub closed: bool,
    /// Whether the recorder is still writing.
    pub running: bool,
    /// The unreadable parts of the file.
    pub bad: Vec<BadRange>,
    /// What is lost with them.
    pub losses: Vec<Loss>,
    /// The union of the flags of all samples, for a damaged trace.
    pub flags_left: u32,
    /// The times of the first and the last of all samples.
    pub span_ns: Option<(u64, u64)>,
    /// The selection as text, or `None` if everything is shown.
    pub window: Option<String>,
    /// Whether the native frames of interpreters are left out of stacks.
    pub leaves_frames_out: bool,
}

/// One of several processes that were recorded together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedProcess<'a> {
    /// The process id.
    pub pid: u64,
    /// The start in clock ticks since boot. It is unique together with the id.
    pub started: Option<u64>,
    /// The name: its title, or that of its program.
    pub name: &'a str,
    /// The name of its program.
    pub program: &'a str,
    /// The words of its command line, as far as the recorder kept them.
    pub command_line: Vec<&'a str>,
    /// CPU time in nanoseconds that the process used while it was recorded, or `None` until its
    /// recording ends.
    pub cpu_time_ns: Option<u64>,
}

/// A program that a process executed while it was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExecutedProgram<'a> {
    /// The name of the program.
    pub name: &'a str,
    /// When the recorder noticed it, in CLOCK_MONOTONIC nanoseconds.
    pub time_ns: u64,
    /// The reason why the program was not sampled, if it was not.
    pub not_sampled: Option<&'a str>,
    /// The process, if several were recorded together.
    pub pid: Option<u64>,
}

impl<'a> ExecutedProgram<'a> {
    /// Parses the recorder's list about an executed program.
    fn of(value: &'a Value, pid: Option<u64>) -> Option<Self> {
        let Value::List(fields) = value else { return None };
        let [Value::Text(name), Value::Unsigned(time_ns), rest @ ..] = &fields[..] else {
            return None;
        };
        let not_sampled = match rest {
            [Value::Unsigned(_), ..] => None,
            [Value::Text(why), ..] => Some(why.as_str()),
            _ => Some("too short"),
        };
        Some(Self { name, time_ns: *time_ns, not_sampled, pid })
    }
}

/// Parses the numbers of a key such as `process.3.executed.1`: 3, if there is a process, and 1.
fn execution_number(key: &str) -> Option<(Option<u64>, u64)> {
    let Some(of_process) = key.strip_prefix("process.") else {
        return Some((None, key.strip_prefix("executed.")?.parse().ok()?));
    };
    let (process, number) = of_process.split_once(".executed.")?;
    Some((Some(process.parse().ok()?), number.parse().ok()?))
}

impl<'a> RecordedProcess<'a> {
    /// Reads a process from its list in the metadata.
    ///
    /// The list contains id, start, name, words of the command line, and the start of sampling.
    /// After the exit of the process it also contains the end of sampling, its cause, samples, CPU
    /// time, the CPU time of signals, and the recorder's time that was charged to the process.
    fn of(value: &'a Value) -> Option<Self> {
        let Value::List(fields) = value else { return None };
        let [Value::Unsigned(pid), started, Value::Text(program), rest @ ..] = &fields[..] else {
            return None;
        };
        let started = match started {
            Value::Unsigned(ticks) => Some(*ticks),
            _ => None,
        };
        let command_line = rest.first().map(words).unwrap_or_default();
        let cpu_time_ns = match fields.get(8) {
            Some(Value::Unsigned(ns)) => Some(*ns),
            _ => None,
        };
        let title = trace::process_title(&command_line);
        // Perl and setproctitle of Python give the title to the kernel, too, as far as it fits.
        let program = match title.filter(|title| title.starts_with(program.as_str())) {
            Some(_) => program.split([':', ' ']).next().unwrap_or(program),
            None => program,
        };
        let name = title.unwrap_or(program);
        Some(Self { pid: *pid, started, name, program, command_line, cpu_time_ns })
    }
}

/// Returns the texts of a list.
pub(in crate::view) fn words(value: &Value) -> Vec<&str> {
    let Value::List(words) = value else { return Vec::new() };
    let texts = words.iter().filter_map(|word| match word {
        Value::Text(word) => Some(word.as_str()),
        _ => None,
    });
    texts.collect()
}

impl RecordingInfo {
    /// Returns the recording of a trace, with nothing selected.
    pub fn of(trace: &LazyTrace) -> Self {
        let first = trace.threads().iter().filter_map(|thread| thread.first_ns).min();
        let last = trace.threads().iter().filter_map(|thread| thread.last_ns).max();
        Self {
            metadata: trace.metadata().clone(),
            closed: trace.closed(),
            running: !trace.closed() && matches!(trace::is_being_written(trace.path()), Ok(true)),
            bad: trace.bad(),
            losses: trace.losses(),
            flags_left: trace.flags_left(),
            span_ns: first.zip(last),
            window: None,
            leaves_frames_out: trace.leaves_frames_out(),
        }
    }

    /// Returns the same recording, with the selection as text.
    pub fn showing(self, window: Option<String>) -> Self {
        Self { window, ..self }
    }

    /// Returns the ids of a thread's process and of the thread inside the target's pid namespace.
    pub fn inner_ids(&self, thread: ThreadId) -> Option<(u64, u64)> {
        match self.metadata.get(&format!("inner_ids.{}", thread.0))? {
            Value::List(ids) => match ids[..] {
                [Value::Unsigned(pid), Value::Unsigned(tid)] => Some((pid, tid)),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns the processes of a recording of several, in the order of their numbers.
    pub fn processes(&self) -> Vec<RecordedProcess<'_>> {
        let listed = self.metadata.iter().filter_map(|(key, value)| {
            let number: u64 = key.strip_prefix("process.")?.parse().ok()?;
            Some((number, RecordedProcess::of(value)?))
        });
        let mut listed: Vec<_> = listed.collect();
        listed.sort_by_key(|(number, _)| *number);
        listed.into_iter().map(|(_, process)| process).collect()
    }

    /// Returns the tags of samples, by index.
    pub fn tags(&self) -> Vec<TagKey> {
        TagKey::of(&self.metadata)
    }

    /// Returns the programs that the target executed during the recording, by time. Programs of one
    /// process keep their order.
    pub fn executed(&self) -> Vec<ExecutedProgram<'_>> {
        let listed = self.metadata.iter().filter_map(|(key, value)| {
            let (process, number) = execution_number(key)?;
            let of = process.and_then(|it| self.metadata.get(&format!("process.{it}")));
            let pid = of.and_then(RecordedProcess::of).map(|process| process.pid);
            Some((number, ExecutedProgram::of(value, pid)?))
        });
        let mut listed: Vec<_> = listed.collect();
        listed.sort_by_key(|(number, it)| (it.time_ns, *number));
        listed.into_iter().map(|(_, program)| program).collect()
    }

    /// Returns a number of the metadata.
    pub fn number(&self, key: &str) -> Option<u64> {
        match self.metadata.get(key)? {
            Value::Unsigned(number) => Some(*number),
            _ => None,
        }
    }

    /// Returns a text of the metadata.
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.metadata.get(key)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the recorded program as one word, escaped for display, if the trace names it.
    pub(in crate::view) fn program(&self) -> Option<String> {
        let Some(Value::List(words)) = self.metadata.get("command_line") else { return None };
        let Some(Value::Text(path)) = words.first() else { return None };
        Some(escaped(path.rsplit('/').next().unwrap_or(path)).into_owned())
    }

    /// Returns the length of a sampling period, if the trace has it.
    pub fn period_ns(&self) -> Option<f64> {
        let from_rate = |hz: u64| (hz > 0).then(|| 1e9 / hz as f64);
        match self.number("period_ns") {
            Some(period) if period > 0 => Some(period as f64),
            _ => self.number("freq_hz").and_then(from_rate),
        }
    }

    /// Returns whether the recording includes wall clock time. If that is lost, the samples say it:
    /// otherwise a view would leave out those that are not of CPU time.
    pub fn has_wall(&self) -> bool {
        match self.text("mode") {
            Some(mode) => mode.split(',').any(|part| part == "wall"),
            None => self.flags_left & WALL != 0,
        }
    }

    /// Returns the start of the recording: from the recorder, or from the first sample.
    pub fn begin_ns(&self) -> Option<u64> {
        self.number("start_monotonic_ns").or(self.span_ns.map(|span| span.0))
    }

    /// Returns the end of the recording: from the recorder, or from the last sample.
    pub fn end_ns(&self) -> Option<u64> {
        self.number("end_monotonic_ns").or(self.span_ns.map(|span| span.1))
    }
}
