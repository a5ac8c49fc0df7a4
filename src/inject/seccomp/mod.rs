//! The check whether the seccomp filters of a process permit the system calls that an injection
//! needs.
//!
//! A recorder that may read the filters reads them from every thread and evaluates them. A recorder
//! that may not, but runs under as many filters in the same container, tries the calls out. Filters
//! that are installed later are unknown.
//!
//! # Invariants
//! - A thread is stopped once to read its filters, as for an attach, and runs nothing for that.

mod answer;
mod filter;
mod required_calls;
mod trial;

use serde::{Deserialize, Serialize};
use traceprof_abi::calls::SyscallPattern;

use self::answer::FilterAnswer;
use self::filter::{Question, answers};
use super::error::InjectError;
use super::preflight::ProcessFacts;
use super::ptrace::FilterInstruction;
use super::ptrace::tracing_thread::on_tracing_thread;
use super::refusal::Refusal;
use super::stop::{self, NotStopped};
use super::target::identity;
use super::worker::{QUEUED_MAX, STOP_MAX};
use crate::proc::{self, Namespace};

const FILTER: u32 = 2;
const CAP_SYS_ADMIN: u32 = 21;

/// Permissions that the user grants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Permits {
    /// Whether to attach although a seccomp filter might kill the target for a system call of the
    /// agent.
    pub seccomp_filter: bool,
}

/// The result of the check of all filters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeccompReport {
    /// How the result is known.
    pub seen: String,
    /// The reason why timers are impossible, if they are.
    pub no_timers: Option<String>,
}

impl SeccompReport {
    /// Returns the report on a process without any filter.
    pub fn of_none() -> Self {
        Self { seen: "no filter".to_owned(), no_timers: None }
    }
}

/// The effect of all filters of a thread on a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// The effect is the same for all unknown values of the call.
    Sure(FilterAnswer),
    /// The effect differs for some unknown values.
    Depends,
}

/// The filters of a thread.
type Filters = Vec<Vec<FilterInstruction>>;

/// Whether any thread of a process has filters.
pub(super) fn is_filtered(pid: i32) -> Result<bool, InjectError> {
    Ok(!filtered(pid)?.is_empty())
}

/// Returns the threads with filters, with the number of filters where the kernel shows it.
fn filtered(pid: i32) -> Result<Vec<(i32, Option<u32>)>, InjectError> {
    let reading = |error| InjectError::reading("/proc/PID/task", &error);
    let mut filtered = Vec::new();
    for tid in proc::tasks(pid).map_err(reading)? {
        match proc::task_status(pid, tid) {
            Ok(status) if status.seccomp == FILTER => {
                filtered.push((tid, status.seccomp_filters));
            }
            Ok(_) => {}
            Err(error) if proc::is_gone(&error) => {}
            // A filter that is not seen could kill the target.
            Err(error) => return Err(reading(error)),
        }
    }
    Ok(filtered)
}

/// Checks the filters of all threads. Returns a refusal unless they permit the injection.
pub(super) fn check(facts: &ProcessFacts, permits: Permits) -> Result<SeccompReport, InjectError> {
    let threads = filtered(facts.pid)?;
    if threads.is_empty() {
        return Ok(SeccompReport::of_none());
    }
    let judged = if may_read() { read_all(facts, &threads) } else { try_out(facts, &threads) };
    match judged {
        Err(InjectError::Refused(Refusal::SeccompUnknown { why, .. }))
            if permits.seccomp_filter =>
        {
            let seen = format!("permitted by --allow-seccomp, although {why}");
            Ok(SeccompReport { seen, no_timers: None })
        }
        judged => judged,
    }
}

/// Whether this process may read filters. The kernel shows filters to a process with all
/// capabilities that is under no filter itself.
fn may_read() -> bool {
    let own = proc::status(std::process::id() as i32).unwrap_or_default();
    let capable = own.cap_effective >> CAP_SYS_ADMIN & 1 == 1;
    capable && own.seccomp == 0 && proc::is_initial_user_namespace()
}

fn unknown(why: impl Into<String>, needs_root: bool) -> InjectError {
    Refusal::SeccompUnknown { why: why.into(), needs_root }.into()
}

fn read_all(
    facts: &ProcessFacts,
    threads: &[(i32, Option<u32>)],
) -> Result<SeccompReport, InjectError> {
    let mut known: Vec<Filters> = Vec::new();
    let mut judgement = SeccompReport::default();
    let mut count = 0;
    for &(tid, _) in threads {
        identity::check(facts.pid, facts.start_time)?;
        let Some(filters) = on_tracing_thread(|| read(facts.pid, tid))? else { continue };
        count += 1;
        if known.contains(&filters) {
            continue;
        }
        let of = |call: &SyscallPattern| verdict(&filters, call);
        let no_timers =
            combine_verdicts(required_calls::all().iter().map(|call| (call, of(call))), Some(tid))?;
        judgement.no_timers = judgement.no_timers.or(no_timers);
        known.push(filters);
    }
    let plural = if count == 1 { "" } else { "s" };
    judgement.seen = format!("the filters of {count} thread{plural} permit all required calls");
    Ok(judgement)
}

/// Returns the filters of a thread; `None` if the thread has exited.
fn read(pid: i32, tid: i32) -> Result<Option<Filters>, InjectError> {
    let mut stopped = match stop::stop(tid, STOP_MAX, QUEUED_MAX) {
        Ok(stopped) => stopped,
        Err(NotStopped::Gone(InjectError::Gone)) => return Ok(None),
        Err(NotStopped::Failed(error)) => return Err(identity::explain(pid, tid, error)),
        Err(NotStopped::Timeout | NotStopped::Foreign) => {
            let why = format!("thread {tid} did not stop, so that its filters could not be read");
            return Err(unknown(why, false));
        }
        Err(failure) => return Err(failure.into()),
    };
    let filters = stopped.filters();
    let restarts = |call: &&SyscallPattern| call.number == libc::SYS_restart_syscall as u64;
    if let Ok(filters) = &filters
        && let Some(restart) = required_calls::all().iter().find(restarts)
        && verdict(filters, restart) != Verdict::Sure(FilterAnswer::Permitted)
    {
        stopped.forgo_restart();
    }
    stopped.release()?;
    match filters {
        Ok(filters) => Ok(Some(filters)),
        Err(error) => {
            Err(unknown(format!("this kernel does not show its filters ({error})"), false))
        }
    }
}

/// Evaluates all filters for a call. The most severe answer counts.
fn verdict(filters: &Filters, call: &SyscallPattern) -> Verdict {
    /// x86-64, 64-bit, little-endian.
    const AUDIT_ARCH: u32 = 0xc000_003e;
    let question = Question { number: call.number as u32, arch: AUDIT_ARCH, args: call.args };
    let (mut gravest, mut mildest) = (ALLOW, ALLOW);
    for filter in filters {
        let Some(all) = answers(filter, &question) else { return Verdict::Depends };
        let (Some(worst), Some(best)) =
            (all.iter().min_by_key(|it| gravity(**it)), all.iter().max_by_key(|it| gravity(**it)))
        else {
            return Verdict::Depends;
        };
        gravest = if gravity(*worst) < gravity(gravest) { *worst } else { gravest };
        mildest = if gravity(*best) < gravity(mildest) { *best } else { mildest };
    }
    match (answer(gravest), answer(mildest)) {
        (worst, best) if worst == best => Verdict::Sure(worst),
        (FilterAnswer::Other(_) | FilterAnswer::Fails(_), FilterAnswer::Permitted) => {
            Verdict::Depends
        }
        (worst, _) => Verdict::Sure(worst),
    }
}

const ALLOW: u32 = 0x7fff_0000;
const ACTION: u32 = 0xffff_0000;
const ERRNO_MAX: u32 = 4095;

/// Returns the rank of an action. The kernel takes the action with the smallest signed value.
fn gravity(returned: u32) -> i32 {
    (returned & ACTION) as i32
}

fn answer(returned: u32) -> FilterAnswer {
    match returned & ACTION {
        ALLOW | 0x7ffc_0000 => FilterAnswer::Permitted,
        0x0005_0000 => FilterAnswer::Fails((returned & !ACTION).min(ERRNO_MAX)),
        0x0003_0000 => FilterAnswer::Other("it sends SIGSYS"),
        0x7ff0_0000 => FilterAnswer::Other("it leaves the decision to its tracer"),
        0x7fc0_0000 => FilterAnswer::Other("it leaves the decision to another process"),
        0 => FilterAnswer::Other("it kills the thread"),
        _ => FilterAnswer::Other("it kills the process"),
    }
}

/// Returns a refusal if a required call is not permitted. Otherwise returns the reason why timers
/// are impossible, if they are.
fn combine_verdicts<'a>(
    verdicts: impl Iterator<Item = (&'a SyscallPattern, Verdict)>,
    tid: Option<i32>,
) -> Result<Option<String>, InjectError> {
    let mut no_timers = None;
    let mut depends = None;
    for (call, verdict) in verdicts {
        let answer = match verdict {
            Verdict::Sure(FilterAnswer::Permitted) => continue,
            Verdict::Depends => {
                depends = depends.or(Some(call.name));
                continue;
            }
            Verdict::Sure(FilterAnswer::Fails(errno)) => {
                let text = std::io::Error::from_raw_os_error(errno as i32).to_string();
                if required_calls::is_for_timers(call) {
                    let why = format!("its seccomp filter does not permit {}: {text}", call.name);
                    no_timers = no_timers.or(Some(why));
                    continue;
                }
                text
            }
            Verdict::Sure(FilterAnswer::Other(how)) => how.to_owned(),
        };
        return Err(Refusal::SeccompForbids { call: call.name.to_owned(), answer, tid }.into());
    }
    match depends {
        None => Ok(no_timers),
        Some(call) => {
            let why = format!("its answer to {call} depends on arguments that are not known yet");
            Err(unknown(why, false))
        }
    }
}

/// Tries the calls out. The filters are not readable, but this process has as many, in the same
/// container.
fn try_out(
    facts: &ProcessFacts,
    threads: &[(i32, Option<u32>)],
) -> Result<SeccompReport, InjectError> {
    let own = proc::status(std::process::id() as i32).unwrap_or_default();
    let same = [Namespace::Pid, Namespace::Mount, Namespace::User];
    let is_alike = own.seccomp == FILTER
        && own.seccomp_filters.is_some()
        && threads.iter().all(|(_, count)| *count == own.seccomp_filters)
        && same.into_iter().all(|kind| proc::same_namespace(facts.pid, kind).is_ok_and(|it| it));
    if !is_alike {
        let why = "only root (CAP_SYS_ADMIN) may read its filters, and traceprof is not in the \
                   same container under as many filters";
        return Err(unknown(why, true));
    }
    let calls = required_calls::all();
    let tried =
        trial::try_all(&calls).map_err(|error| InjectError::system("trying the calls", &error))?;
    let verdicts = calls.iter().zip(tried).map(|(call, answer)| (call, Verdict::Sure(answer)));
    let no_timers = combine_verdicts(verdicts, None)?;
    let seen = "as many as traceprof has in the same container, where all calls were tried out";
    Ok(SeccompReport { seen: seen.to_owned(), no_timers })
}
