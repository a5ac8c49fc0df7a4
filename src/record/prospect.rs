//! What a recording of a process will be, found out before anything is changed in it.

use std::io;

use anyhow::anyhow;
use traceprof_abi::layout::{PRIMING, SAMPLING, SIGNALS};

use super::attach::{self, Before};
use super::clock::{Clock, monotonic_now_ns};
use super::engine::{self, Choice, Engine, Facts};
use super::perf::Setup;
use super::report::{inject_error, refusal_error};
use super::{Options, RecordError, kernel, target_error};
use crate::inject::{self, Guardian, Judgement, Permits};

/// A process that is going to be sampled.
#[derive(Debug, Clone)]
pub(super) struct Sampled {
    /// Its id.
    pub(super) pid: i32,
    /// It is started for the recording.
    pub(super) is_started: bool,
    /// The descriptor that it is parked on.
    pub(super) hold_fd: Option<i32>,
    /// Why it can have no timers, if so.
    pub(super) no_timers: Option<String>,
}

/// Whether a running process may be attached to, and what its seccomp filters permit.
pub(super) fn check(
    pid: i32,
    options: &Options,
    guardian: &mut Guardian,
) -> Result<Judgement, RecordError> {
    let facts = inject::preflight(pid).map_err(refusal_error)?;
    let permits = Permits { seccomp_filter: options.allow_seccomp };
    guardian.judge(&facts, permits).map_err(inject_error)
}

/// How it will be sampled: asked of the kernel before the target is touched.
pub(super) fn before(sampled: Sampled, options: &Options) -> Result<Before, RecordError> {
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
    Ok(Before {
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
            signals[SAMPLING] = attach::SIGTRAP;
            if wanted.is_open_elsewhere() && sampled.no_timers.is_none() {
                // A thread that blocks SIGTRAP alone gets a timer.
                signals[PRIMING] = wanted.choose().unwrap_or(0);
            }
        }
        Engine::Timer => signals[PRIMING] = timer_signal()?,
    }
    Ok(signals)
}

pub(super) fn event_error(pid: i32, error: io::Error) -> RecordError {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => RecordError::NotPermitted(anyhow!(
            "the kernel refuses perf events on process {pid} ({error}): lower \
             /proc/sys/kernel/perf_event_paranoid to 2 or less, run with CAP_PERFMON, or use \
             --engine timer"
        )),
        Some(libc::EMFILE) => RecordError::Other(anyhow!(
            "too few descriptors for one event a thread: raise the limit with `ulimit -n`, or use \
             --engine timer"
        )),
        Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS) => RecordError::Other(anyhow!(
            "this kernel has no events that signal threads ({error}): Linux 6.1 or later is needed, \
             or --engine timer"
        )),
        _ => target_error(pid, error),
    }
}
