//! The plan of a recording, made before anything is changed in a process.
//!
//! `doctor` judges it, `--dry-run` prints it, and `record` carries it out: nothing that it holds is
//! decided anew.

use std::time::Duration;

use anyhow::anyhow;
use traceprof_abi::layout::{PRIMING, SAMPLING, SIGNALS};

use crate::inject::{self, Guardian, Permits, SeccompReport};
use crate::record::contract::clock::{Clock, monotonic_now_ns};
use crate::record::contract::error::{RecordError, inject_error, refusal_error, target_error};
use crate::record::contract::options::Options;
use crate::record::contract::sampling::{Choice, Engine, KernelFrames, Setup};
use crate::record::source::engine::{self, EngineFacts};
use crate::record::source::kernel;
use crate::record::source::perf::event_error;
use crate::record::target::attach_inputs::AttachInputs;
use crate::record::target::signals::SIGTRAP;
use crate::symbol::DEBUGINFOD_SERVERS;

const NO_KERNEL: &str =
    "--no-kernel has no effect with timers, which count all of a thread's CPU time";
const NO_SERVERS: &str = "--debuginfod has no effect: DEBUGINFOD_URLS names no servers";

/// A process that may be attached to.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    /// The process id.
    pub(crate) pid: i32,
    /// Whether it has just started, and may still change its signal dispositions.
    pub(crate) is_started: bool,
    /// The descriptor that it is parked on.
    pub(crate) hold_fd: Option<i32>,
    /// What its seccomp filters permit.
    pub(crate) seccomp: SeccompReport,
}

/// What will be done with one process.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// How it is attached to: the engine and why, the signals, the rate.
    pub(crate) attach: AttachInputs,
    /// What its seccomp filters permit, in words.
    pub(crate) seccomp: String,
    /// The largest cost, in percent of its CPU time.
    pub(crate) max_overhead_percent: Option<f64>,
    /// The interval between two scans of threads that do not run, if requested.
    pub(crate) wall_interval: Option<Duration>,
    /// The time after which the recording ends, unless something ends it before.
    pub(crate) duration: Option<Duration>,
    /// The number of the heaviest call traces that keep their ids.
    pub(crate) preserve: usize,
    /// Whether debug files are fetched from servers.
    pub(crate) fetches_debug_files: bool,
    /// Options that have no effect here, in words.
    pub(crate) notices: Vec<&'static str>,
}

impl Candidate {
    /// Checks whether a running process may be attached to.
    ///
    /// Threads with seccomp filters may be stopped for a moment to read these.
    pub(crate) fn running(
        pid: i32,
        options: &Options,
        guardian: &mut Guardian,
    ) -> Result<Self, RecordError> {
        let facts = inject::preflight(pid).map_err(refusal_error)?;
        let permits = Permits { seccomp_filter: options.allow_seccomp };
        let seccomp = guardian.check_seccomp(&facts, permits).map_err(inject_error)?;
        Ok(Self { pid, is_started: false, hold_fd: None, seccomp })
    }

    /// Returns a program that is started for the recording.
    pub(crate) fn started(pid: i32, hold_fd: Option<i32>) -> Self {
        Self { pid, is_started: true, hold_fd, seccomp: SeccompReport::of_none() }
    }
}

impl Plan {
    /// Makes the plan for a process, from what the kernel reports about it.
    pub(crate) fn new(candidate: &Candidate, options: &Options) -> Result<Self, RecordError> {
        let attach = attach_inputs(candidate, options)?;
        let mut notices = Vec::new();
        if options.debuginfod
            && std::env::var_os(DEBUGINFOD_SERVERS).is_none_or(|servers| servers.is_empty())
        {
            notices.push(NO_SERVERS);
        }
        if !options.kernel && attach.choice.engine == Engine::Timer {
            notices.push(NO_KERNEL);
        }
        Ok(Self {
            attach,
            seccomp: candidate.seccomp.seen.clone(),
            max_overhead_percent: options.max_overhead_percent,
            wall_interval: options.measure.wall_interval(),
            duration: options.duration,
            preserve: options.preserve,
            fetches_debug_files: options.debuginfod,
            notices,
        })
    }
}

/// Chooses the engine and the signals; asks the kernel before the target is touched.
fn attach_inputs(sampled: &Candidate, options: &Options) -> Result<AttachInputs, RecordError> {
    let mut setup = Setup {
        period_ns: options.period_ns(),
        kernel: options.kernel,
        frames: KernelFrames::Unwanted,
        // An arbitrary number that an earlier session is unlikely to have used.
        cookie: (monotonic_now_ns() >> 10) as u16,
    };
    let gone = |error| target_error(sampled.pid, error);
    let facts = EngineFacts::gather(sampled.pid, sampled.is_started, setup).map_err(gone)?;
    let choice = engine::choose(options.engine, &facts);
    let choice = choice.map_err(|error| event_error(sampled.pid, error))?;
    let waiter = facts.trap_waiter();
    if let (Engine::Perf, Some(why_not)) = (choice.engine, &waiter) {
        return Err(RecordError::Other(anyhow!(
            "perf events would disturb process {}: {why_not} as the program's own; record it with \
             --engine timer",
            sampled.pid
        )));
    }
    if let (Engine::Signal, Some(why_not)) = (choice.engine, facts.why_no_signal()) {
        return Err(RecordError::NotPermitted(anyhow!(
            "process {} cannot be sampled with --engine signal: {why_not}; use another engine",
            sampled.pid
        )));
    }
    if let (Engine::Timer, Some(why_not)) = (choice.engine, &sampled.seccomp.no_timers) {
        return Err(RecordError::NotPermitted(anyhow!(
            "timers are the engine ({}), but {why_not}{}",
            choice.why,
            other_engine(&waiter, "; the other one is --engine perf")
        )));
    }
    let shown = if setup.kernel { kernel::shown(sampled.pid, setup) } else { setup.frames };
    if options.kernel_stacks {
        setup.frames = shown;
    }
    match choice.engine {
        Engine::Perf | Engine::Signal if shown == KernelFrames::NotSampled => {
            setup.leave_out_kernel();
        }
        Engine::Perf | Engine::Signal => {}
        Engine::Timer => setup.use_timers(),
    }
    Ok(AttachInputs {
        signals: signals_of(sampled, &choice, &facts)?,
        choice,
        waiting: facts.signals.waiting,
        pid: sampled.pid,
        hold_fd: sampled.hold_fd,
        setup,
        clock_mode: Clock::best_mode(),
        freq_hz: options.freq_hz,
    })
}

/// Returns the advice to use perf events instead of timers, or why they cannot be used.
fn other_engine(trap_waiter: &Option<String>, advice: &str) -> String {
    match trap_waiter {
        None => advice.to_owned(),
        Some(why_not) => format!("; perf events would disturb it: {why_not}"),
    }
}

/// Returns the agent's signals, of perf events and of timers; 0 for one that is not needed.
fn signals_of(
    sampled: &Candidate,
    choice: &Choice,
    facts: &EngineFacts,
) -> Result<[i32; SIGNALS], RecordError> {
    let (pid, wanted) = (sampled.pid, &facts.signals);
    let timer_signal = || {
        wanted.choose().ok_or_else(|| {
            RecordError::Other(anyhow!(
                "every signal that timers could use is blocked or waited for by some thread of \
                 process {pid}{}",
                other_engine(&facts.trap_waiter(), ": record it with --engine perf")
            ))
        })
    };
    let mut signals = [0; SIGNALS];
    match choice.engine {
        Engine::Perf => {
            signals[SAMPLING] = SIGTRAP;
            if wanted.blocks_only_trap() && sampled.seccomp.no_timers.is_none() {
                // A thread that blocks SIGTRAP alone gets a timer.
                signals[PRIMING] = wanted.choose().unwrap_or(0);
            }
        }
        // It was checked that one is free.
        Engine::Signal => signals[PRIMING] = wanted.choose_harmless().unwrap_or(0),
        Engine::Timer => signals[PRIMING] = timer_signal()?,
    }
    Ok(signals)
}
