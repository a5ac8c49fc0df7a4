//! What a recording of a process will be, found out before anything is changed in it.

use crate::record::source::perf::event_error;
use crate::record::target::signals::SIGTRAP;

use anyhow::anyhow;
use traceprof_abi::layout::{PRIMING, SAMPLING, SIGNALS};

use crate::inject::{self, Guardian, Permits, SeccompReport};
use crate::record::contract::clock::{Clock, monotonic_now_ns};
use crate::record::contract::error::{RecordError, inject_error, refusal_error, target_error};
use crate::record::contract::options::Options;
use crate::record::contract::sampling::{Choice, Engine, Setup};
use crate::record::source::engine::{self, Facts};
use crate::record::source::kernel;
use crate::record::target::attach::AttachInputs;

/// A process that is going to be sampled.
#[derive(Debug, Clone)]
pub(crate) struct Sampled {
    /// Its id.
    pub(crate) pid: i32,
    /// It is started for the recording.
    pub(crate) is_started: bool,
    /// The descriptor that it is parked on.
    pub(crate) hold_fd: Option<i32>,
    /// Why it can have no timers, if so.
    pub(crate) no_timers: Option<String>,
}

/// Whether a running process may be attached to, and what its seccomp filters permit.
pub(crate) fn check(
    pid: i32,
    options: &Options,
    guardian: &mut Guardian,
) -> Result<SeccompReport, RecordError> {
    let facts = inject::preflight(pid).map_err(refusal_error)?;
    let permits = Permits { seccomp_filter: options.allow_seccomp };
    guardian.check_seccomp(&facts, permits).map_err(inject_error)
}

/// How it will be sampled: asked of the kernel before the target is touched.
pub(crate) fn before(sampled: Sampled, options: &Options) -> Result<AttachInputs, RecordError> {
    let mut setup = Setup {
        period_ns: 1_000_000_000 / u64::from(options.freq_hz.max(1)),
        kernel: options.kernel,
        // Any number that the session before is unlikely to have had.
        cookie: (monotonic_now_ns() >> 10) as u16,
    };
    let gone = |error| target_error(sampled.pid, error);
    let facts = Facts::gather(sampled.pid, sampled.is_started, setup).map_err(gone)?;
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
    if let (Engine::Timer, Some(why_not)) = (choice.engine, &sampled.no_timers) {
        return Err(RecordError::NotPermitted(anyhow!(
            "timers are the engine ({}), but {why_not}{}",
            choice.why,
            other_engine(&waiter, "; the other one is --engine perf")
        )));
    }
    setup.kernel = match choice.engine {
        Engine::Perf => setup.kernel && kernel::is_permitted(sampled.pid, setup),
        // A thread's CPU timer makes no difference.
        Engine::Timer => true,
    };
    Ok(AttachInputs {
        signals: signals_of(&sampled, &choice, &facts)?,
        choice,
        waiting: facts.signals.waiting,
        pid: sampled.pid,
        hold_fd: sampled.hold_fd,
        setup,
        clock_mode: Clock::best_mode(),
        freq_hz: options.freq_hz,
    })
}

/// What to do instead of using timers, unless that is no way out: then why.
fn other_engine(trap_waiter: &Option<String>, advice: &str) -> String {
    match trap_waiter {
        None => advice.to_owned(),
        Some(why_not) => format!("; perf events would disturb it: {why_not}"),
    }
}

/// The agent's signals: that of perf events, and that of timers, 0 for one that is not needed.
fn signals_of(
    sampled: &Sampled,
    choice: &Choice,
    facts: &Facts,
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
            if wanted.blocks_only_trap() && sampled.no_timers.is_none() {
                // A thread that blocks SIGTRAP alone gets a timer.
                signals[PRIMING] = wanted.choose().unwrap_or(0);
            }
        }
        Engine::Timer => signals[PRIMING] = timer_signal()?,
    }
    Ok(signals)
}
