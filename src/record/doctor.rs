//! What this host and a process allow, what stands in the way, and what a recording would be.
//!
//! All that a recording looks at before it changes anything is looked at here by the same code, and
//! told in the same words. What follows from it is not concluded a second time: the outcome is that
//! of the checks which a recording itself makes.

mod host;
mod modules;
mod target;

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;

use super::engine::{Choice, Concern, Gravity};
use super::options::{EngineChoice, Files, Measure, Options, Target};
use super::prospect::{self, Sampled};
use super::{NO_GUARDIAN, OutputPattern, RecordError, check_proc};
use crate::inject::Guardian;
use crate::trace::WriterOptions;

/// What must be known of `perf` before it is used on a program that matters.
pub const SIGTRAP_WINDOW: &str = "with --engine perf a program that resets the action of SIGTRAP \
    while perf events are open dies at the next sample: the kernel gives that signal no choice. \
    The recorder watches the action and closes the events when it changes, but what happens between \
    the reset and that look cannot be prevented, only watched; --engine timer is the absolute \
    guarantee, as its signal does nothing by default";

/// How something bears on a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It is as it should be.
    Fine,
    /// A recording works without it, but sees less or takes the other engine.
    Limit,
    /// A recording is refused for it.
    Obstacle,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What it is.
    pub subject: String,
    /// How it bears on a recording.
    pub state: State,
    /// What was seen, or why it stands in the way.
    pub seen: String,
    /// A command line that changes it.
    pub remedy: Option<String>,
}

impl Finding {
    fn fine(subject: &str, seen: impl Into<String>) -> Self {
        let (subject, seen) = (subject.to_owned(), seen.into());
        Self { subject, state: State::Fine, seen, remedy: None }
    }

    fn limit(subject: &str, seen: impl Into<String>, remedy: Option<String>) -> Self {
        Self { state: State::Limit, remedy, ..Self::fine(subject, seen) }
    }

    fn obstacle(subject: &str, seen: impl Into<String>, remedy: Option<String>) -> Self {
        Self { state: State::Obstacle, remedy, ..Self::fine(subject, seen) }
    }
}

/// The engine that would be taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Prospect {
    /// Its name in the trace and in the closing report.
    pub engine: String,
    /// Why it is this one.
    pub why: String,
    /// Time in the kernel would be seen.
    pub kernel_included: bool,
}

/// A process that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Examined {
    /// Its id.
    pub pid: i32,
    /// Its name; empty if there is no such process.
    pub name: String,
    /// What was found.
    pub findings: Vec<Finding>,
}

/// All that was found.
#[derive(Debug)]
pub struct Diagnosis {
    /// Of the host, and of the user who asks.
    pub host: Vec<Finding>,
    /// Of the process, if one was named.
    pub target: Option<Examined>,
    /// What a recording of it, or of an ordinary process of this user, would be.
    pub outcome: Result<Prospect, RecordError>,
}

/// Looks at the host, and at a process if one is named. Nothing is changed; threads with seccomp
/// filters may be stopped for a moment to read them. The caller has no other threads yet.
///
/// # Errors
/// What must be there to look at all.
pub fn diagnose(pid: Option<i32>) -> Result<Diagnosis, RecordError> {
    let guardian = Guardian::start().context(NO_GUARDIAN);
    let mut guardian = guardian.map_err(RecordError::Other)?;
    let target = pid.map(|pid| target::examine(pid, &mut guardian));
    let outcome = check_proc().and_then(|()| match pid {
        Some(pid) => of_process(pid, &mut guardian),
        None => of_host(),
    });
    Ok(Diagnosis { host: host::findings(), target, outcome })
}

fn of_process(pid: i32, guardian: &mut Guardian) -> Result<Prospect, RecordError> {
    let options = defaults(pid);
    let no_timers = prospect::check(pid, &options, guardian)?.no_timers;
    told(Sampled { pid, is_started: false, hold_fd: None, no_timers }, &options)
}

/// This process stands for any other of this user.
fn of_host() -> Result<Prospect, RecordError> {
    let pid = std::process::id() as i32;
    told(Sampled { pid, is_started: false, hold_fd: None, no_timers: None }, &defaults(pid))
}

fn told(sampled: Sampled, options: &Options) -> Result<Prospect, RecordError> {
    let before = prospect::before(sampled, options)?;
    let Choice { engine, why, .. } = before.choice;
    Ok(Prospect { engine: engine.name().to_owned(), why, kernel_included: before.setup.kernel })
}

/// What `record` does without further options.
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
        subprocesses: false,
        follow_exec: false,
        allow_seccomp: false,
        kernel: true,
        jvm_names: false,
        debuginfod: false,
        preserve: 0,
        verify_detach: false,
        stats: false,
    }
}

/// What speaks against `perf` never stands in the way of timers.
fn of_concern(concern: Concern) -> Finding {
    let Concern { subject, gravity, seen, why_not, remedy } = concern;
    let is_fine = why_not.is_none();
    let text = why_not.unwrap_or(seen);
    match is_fine {
        true => Finding::fine(subject, text),
        false => Finding::limit(subject, text, remedy.filter(|_| gravity != Gravity::Danger)),
    }
}
