//! Checks what this host and a process permit, and predicts the outcome of a recording.
//!
//! The checks are those that a recording makes before it changes anything, with the same messages.
//! The outcome comes from these checks alone.

mod host;
mod kernel_calls;
mod languages;
mod modules;
mod target;

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::inject::Guardian;
use crate::record::contract::error::{RecordError, guardian_error};
use crate::record::contract::options::{Children, EngineChoice, Files, Measure, Options, Target};
use crate::record::contract::pattern::OutputPattern;
use crate::record::contract::sampling::Choice;
use crate::record::run::plan::{Candidate, Plan};
use crate::record::source::engine::{Concern, Gravity};
use crate::record::target::namespace::check_proc;
use crate::trace::WriterOptions;

/// The risk that a user must know before using `perf` on a program that matters.
pub const SIGTRAP_WINDOW: &str = "with --engine perf a program that resets the action of SIGTRAP \
    while perf events are open dies at the next sample: the kernel gives that signal no choice. \
    The recorder watches the action and closes the events when it changes, but cannot prevent a \
    sample between the reset and that check; --engine signal and --engine timer are always safe, \
    because their signal does nothing by default";

/// The effect of a finding on a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Nothing stands in the way.
    Fine,
    /// A recording works, but sees less or takes the other engine.
    Limit,
    /// A recording is refused.
    Obstacle,
}

/// One thing that was checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The subject.
    pub subject: String,
    /// The effect on a recording.
    pub state: Severity,
    /// What was found, or why it prevents a recording.
    pub seen: String,
    /// A command line that changes it.
    pub remedy: Option<String>,
}

impl Finding {
    fn fine(subject: &str, seen: impl Into<String>) -> Self {
        let (subject, seen) = (subject.to_owned(), seen.into());
        Self { subject, state: Severity::Fine, seen, remedy: None }
    }

    fn limit(subject: &str, seen: impl Into<String>, remedy: Option<String>) -> Self {
        Self { state: Severity::Limit, remedy, ..Self::fine(subject, seen) }
    }

    fn obstacle(subject: &str, seen: impl Into<String>, remedy: Option<String>) -> Self {
        Self { state: Severity::Obstacle, remedy, ..Self::fine(subject, seen) }
    }
}

/// The engine that a recording would use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Prospect {
    /// The engine's name in the trace and in the closing report.
    pub engine: String,
    /// The reason for this engine.
    pub why: String,
    /// Whether time in the kernel would be sampled.
    pub kernel_included: bool,
}

/// A process that was examined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Examined {
    /// The process id.
    pub pid: i32,
    /// The name; empty if there is no such process.
    pub name: String,
    /// The findings.
    pub findings: Vec<Finding>,
}

/// The result of an examination.
#[derive(Debug)]
pub struct Diagnosis {
    /// Findings about the host and the user.
    pub host: Vec<Finding>,
    /// Findings about the process, if one was given.
    pub target: Option<Examined>,
    /// The prospect of recording the process, or an ordinary process of this user.
    pub outcome: Result<Prospect, RecordError>,
}

/// Examines the host, and a process if one is given.
///
/// Nothing is changed, but threads with seccomp filters may be stopped for a moment to read them.
/// The caller has no other threads yet.
pub fn diagnose(pid: Option<i32>) -> Diagnosis {
    let mut guardian = match Guardian::start() {
        Ok(guardian) => guardian,
        Err(error) => {
            let outcome = Err(guardian_error(error));
            return Diagnosis { host: host::findings(), target: None, outcome };
        }
    };
    let target = pid.map(|pid| target::examine(pid, &mut guardian));
    let outcome = check_proc().and_then(|()| match pid {
        Some(pid) => of_process(pid, &mut guardian),
        None => of_host(),
    });
    Diagnosis { host: host::findings(), target, outcome }
}

fn of_process(pid: i32, guardian: &mut Guardian) -> Result<Prospect, RecordError> {
    let options = defaults(pid);
    prospect(&Candidate::running(pid, &options, guardian)?, &options)
}

/// Predicts a recording of another process of this user. This process stands in for it.
fn of_host() -> Result<Prospect, RecordError> {
    let pid = std::process::id() as i32;
    let candidate = Candidate { is_started: false, ..Candidate::started(pid, None) };
    prospect(&candidate, &defaults(pid))
}

fn prospect(candidate: &Candidate, options: &Options) -> Result<Prospect, RecordError> {
    let attach = Plan::new(candidate, options)?.attach;
    let Choice { engine, why, .. } = attach.choice;
    Ok(Prospect { engine: engine.name().to_owned(), why, kernel_included: attach.setup.kernel })
}

/// Returns the options of `record` without further arguments.
fn defaults(pid: i32) -> Options {
    const FREQ_HZ: u32 = 199;
    Options {
        target: Target::Pid(pid),
        output: PathBuf::new(),
        pattern: OutputPattern::literal(Path::new("")),
        files: Files::One,
        triggers: Vec::new(),
        writer: WriterOptions::default(),
        duration: None,
        freq_hz: FREQ_HZ,
        max_overhead_percent: None,
        measure: Measure::Cpu,
        engine: EngineChoice::Auto,
        children: Children::None,
        follow_exec: false,
        allow_seccomp: false,
        kernel: true,
        kernel_stacks: true,
        debuginfod: false,
        preserve: 0,
        verify_detach: false,
    }
}

/// Converts a concern about `perf`, which never prevents a recording with timers.
fn of_concern(concern: Concern) -> Finding {
    let Concern { subject, gravity, seen, why_not, remedy } = concern;
    let is_fine = why_not.is_none();
    let text = why_not.unwrap_or(seen);
    match is_fine {
        true => Finding::fine(subject, text),
        false => Finding::limit(subject, text, remedy.filter(|_| gravity < Gravity::Danger)),
    }
}
