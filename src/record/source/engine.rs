//! The sampling engine, and the reason for its choice.
//!
//! All engines take the same samples in the same handler. With `perf` the kernel signals each
//! thread exactly on time, from its first instruction on, and at the least cost. But the kernel
//! sends SIGTRAP, which kills a program that has reset its action. Where that may happen, the
//! recorder chooses `signal`: events that send a signal that is ignored by default. Their expiries
//! cost twice as much, and a new thread is sampled without a signal at first. Where perf events are
//! refused, it chooses `timer`.
//!
//! With events, the kernel itself takes the samples of its own time, and it cannot see the frames
//! of a language runtime. A timer that expires in the kernel signals the thread when it returns to
//! the program, so the handler sees them. (Measured with a Python program that mostly calls the
//! kernel: 37 % of the samples had Python functions with `perf`, and all with `timer`.)

use crate::record::contract::sampling::{Choice, Engine};
use crate::record::target::signals::SIGTRAP;
use std::io;
use std::path::PathBuf;

use crate::proc::{self, DescriptorUse, Mapping};
use crate::record::contract::options::EngineChoice;
use crate::record::contract::sampling::Setup;
use crate::record::source::{kernel, perf, signal_events};
use crate::record::target::signals::SignalUse;
use crate::record::target::{command, crash_reporter, language_runtime};

/// The facts on which the choice of the engine depends.
#[derive(Debug)]
pub(crate) struct EngineFacts {
    /// Whether an event can be opened on the target.
    perf: io::Result<()>,
    /// The version of the running kernel.
    kernel: Option<(u32, u32)>,
    /// The descriptors of the events of all threads.
    descriptors: EventDescriptors,
    /// Whether the program is started for the recording.
    is_started: bool,
    /// Whether the application handles SIGTRAP, and may stop doing so.
    handles_trap: bool,
    /// The crash reporter that the application contains.
    reporter: Option<&'static str>,
    /// The language whose frames only a handler sees, if time in the kernel is wanted.
    language: Option<&'static str>,
    /// The application's use of signals.
    pub(crate) signals: SignalUse,
    /// The period of sampling, in nanoseconds.
    period_ns: u64,
    /// The reason why the events of engine `signal` cannot sample everything that those of `perf`
    /// do, if there is one.
    no_signal: Option<&'static str>,
}

/// How many descriptors events need, and how many there are.
#[derive(Debug, Clone, Copy)]
struct EventDescriptors {
    /// The number of threads.
    threads: u64,
    /// The number of events for each thread.
    each: u64,
    /// The number of descriptors that events may take now.
    left: u64,
    /// The limit of all descriptors.
    limit: u64,
}

impl EventDescriptors {
    /// Returns what the events of this many threads need in this process.
    ///
    /// A thread has one event for user mode, and for kernel mode one on each core.
    fn of(threads: u64, has_kernel: bool) -> Self {
        let limit = proc::raise_descriptor_limit();
        let each = 1 + if has_kernel { kernel::cpus().len() as u64 } else { 0 };
        Self { threads, each, left: DescriptorUse::Events.left(), limit }
    }

    fn wanted(self) -> u64 {
        self.threads.saturating_mul(self.each)
    }

    fn why_not(self) -> Option<String> {
        let Self { threads, limit, .. } = self;
        let (wanted, left) = (self.wanted(), self.left.saturating_sub(DESCRIPTORS_KEPT));
        (wanted > left).then(|| {
            format!(
                "perf events need {wanted} descriptors for {threads} threads; the limit of {limit} \
                 leaves {left} for them"
            )
        })
    }
}

/// The shortest period at which the cost of a harmless signal does not matter: 500 expiries a
/// second that each cost 17 us more take 1 % of the time.
pub(crate) const RARE_NS: u64 = 2_000_000;
/// The shortest period of engine `signal`: the kernel needs 32 us for an expiry (measured).
const SIGNAL_PERIOD_NS: u64 = 50_000;
/// The reasons against engine `signal`.
const FOREIGN: &str = "the kernel does not send events' signals to a process of another user";
const NO_SIGNAL_LEFT: &str = "SIGURG and SIGWINCH are in use, blocked or waited for";
const NO_KERNEL_EVENTS: &str = "perf events may not sample the kernel here";
/// The first kernel whose signalling events lose no signal.
const KERNEL_MIN: (u32, u32) = (6, 1);
/// Descriptors that the recorder opens before its events, for other purposes.
const DESCRIPTORS_KEPT: u64 = 64;
/// Descriptors that a limit must have besides those of events: these, those that are open already,
/// and those that [`DescriptorUse::Events`] leaves free.
const DESCRIPTORS_LEFT: u64 = 256;

impl EngineFacts {
    /// Reads the facts of a process before anything is changed in it.
    pub(crate) fn gather(pid: i32, is_started: bool, setup: Setup) -> io::Result<Self> {
        let status = proc::status(pid)?;
        let mappings = proc::mappings(pid)?;
        let catches = status.catches(SIGTRAP);
        let program = PathBuf::from(format!("/proc/{pid}/exe"));
        let has_kernel = setup.kernel && kernel::is_permitted(pid, setup);
        let signals = SignalUse::of(pid)?;
        Ok(Self {
            perf: perf::probe(pid, setup),
            kernel: proc::kernel_version(),
            descriptors: EventDescriptors::of(u64::from(status.threads), has_kernel),
            is_started,
            // Go's runtime handles every signal from start to end.
            handles_trap: catches && !command::takes_all_signals(program.as_os_str()),
            reporter: first_in_modules(&mappings, |it| crash_reporter::in_module(pid, it)),
            language: match setup.kernel {
                true => first_in_modules(&mappings, |it| language_runtime::in_module(pid, it)),
                false => None,
            },
            no_signal: if !signal_events::may_notify(&status) {
                Some(FOREIGN)
            } else if signals.choose_harmless().is_none() {
                Some(NO_SIGNAL_LEFT)
            } else if !has_kernel {
                Some(NO_KERNEL_EVENTS)
            } else {
                None
            },
            signals,
            period_ns: setup.period_ns,
        })
    }

    /// Returns everything that speaks for or against `perf`, the gravest first.
    pub(crate) fn concerns(&self) -> [Concern; 8] {
        let EventDescriptors { limit, .. } = self.descriptors;
        let wanted = self.descriptors.wanted();
        [
            self.kernel_concern(),
            self.event_concern(),
            Concern {
                subject: "descriptors",
                gravity: Gravity::Shortage,
                seen: format!("{limit}, {wanted} of them for perf events"),
                why_not: self.descriptors.why_not(),
                remedy: Some(format!("ulimit -n {}", wanted + DESCRIPTORS_LEFT)),
            },
            danger(
                "start",
                "the program was already running",
                self.is_started.then(|| "a program that starts may still reset SIGTRAP".to_owned()),
            ),
            danger(
                "crash reporter",
                "none known",
                self.reporter
                    .map(|reporter| format!("its crash reporter ({reporter}) may reset SIGTRAP")),
            ),
            danger(
                "SIGTRAP",
                "not handled by the application, or by Go's runtime",
                self.handles_trap
                    .then(|| "the application handles SIGTRAP and may reset it".to_owned()),
            ),
            danger("waiting", "no thread waits for SIGTRAP", self.signals.trap_doubt()),
            self.language_concern(),
        ]
    }

    /// Describes the thread or descriptor that would mistake expiries of perf events for the
    /// program's own SIGTRAP.
    pub(crate) fn trap_waiter(&self) -> Option<String> {
        self.signals.trap_waiter.map(|waiter| waiter.to_string())
    }

    fn kernel_concern(&self) -> Concern {
        let (name, is_old) = match self.kernel {
            Some(version) => (format!("Linux {}.{}", version.0, version.1), version < KERNEL_MIN),
            None => ("unknown version".to_owned(), false),
        };
        Concern {
            subject: "kernel",
            gravity: Gravity::Refusal,
            why_not: is_old
                .then(|| format!("{name} has no reliable events that signal threads; 6.1 has")),
            seen: name,
            remedy: None,
        }
    }

    fn event_concern(&self) -> Concern {
        let error = self.perf.as_ref().err();
        Concern {
            subject: "perf events",
            gravity: Gravity::Refusal,
            seen: "perf_event_open returns an event that signals its thread".to_owned(),
            why_not: error.map(|error| match error.raw_os_error().is_some_and(perf::is_unknown) {
                true => format!(
                    "this kernel has no events that signal threads ({error}); Linux 6.1 has"
                ),
                false => format!("perf events are refused here ({error})"),
            }),
            remedy: error.and_then(permission_remedy),
        }
    }

    fn language_concern(&self) -> Concern {
        let why_not = self.language.map(|language| {
            format!("perf events of the kernel's time would show no {language} functions")
        });
        Concern {
            subject: "runtime",
            gravity: Gravity::Blindness,
            seen: "no language runtime with frames that only handlers see".to_owned(),
            why_not,
            remedy: None,
        }
    }

    /// Returns whether events can sample the program if they send a signal other than SIGTRAP.
    ///
    /// Without events in the kernel, threads that are too young to have an event of their own would
    /// be sampled at less than half of the rate, and nothing would make up for it.
    fn is_signal_enough(&self) -> bool {
        self.reason(Gravity::Shortage).is_none()
            && self.language.is_none()
            && self.no_signal.is_none()
            && self.period_ns >= SIGNAL_PERIOD_NS
    }

    /// Returns the reason why the engine `signal` cannot be used even if the user requests it.
    pub(crate) fn why_no_signal(&self) -> Option<&'static str> {
        self.no_signal.filter(|why| *why != NO_KERNEL_EVENTS)
    }

    /// Returns the first reason that is at least this grave.
    fn reason(&self, least: Gravity) -> Option<String> {
        let mut grave = self.concerns().into_iter().filter(|concern| concern.gravity <= least);
        grave.find_map(|concern| concern.why_not)
    }
}

/// The weight of a reason against `perf`; the smallest value is the gravest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Gravity {
    /// No thread can have a perf event.
    Refusal,
    /// Some threads cannot have a perf event.
    Shortage,
    /// The signal may end the program.
    Danger,
    /// Some stacks would lack functions.
    Blindness,
}

/// One circumstance that the choice depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Concern {
    /// What it concerns.
    pub(crate) subject: &'static str,
    /// Its weight.
    pub(crate) gravity: Gravity,
    /// The finding, if nothing speaks against `perf`.
    pub(crate) seen: String,
    /// The reason against `perf`, if there is one.
    pub(crate) why_not: Option<String>,
    /// The command that removes the reason, if there is one.
    pub(crate) remedy: Option<String>,
}

fn danger(subject: &'static str, seen: &str, why_not: Option<String>) -> Concern {
    let (gravity, seen) = (Gravity::Danger, seen.to_owned());
    Concern { subject, gravity, seen, why_not, remedy: None }
}

/// Returns the command that permits perf events.
fn permission_remedy(error: &io::Error) -> Option<String> {
    let is_denied = matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM));
    is_denied.then(|| "sysctl kernel.perf_event_paranoid=2".to_owned())
}

/// Chooses the requested engine, or else the best one that works.
///
/// # Errors
/// Returns the kernel's reason if the requested engine does not work. A target that has exited is
/// always an error.
pub(crate) fn choose(asked: EngineChoice, facts: &EngineFacts) -> io::Result<Choice> {
    let (is_free, is_started) = (asked == EngineChoice::Auto, facts.is_started);
    let choice =
        |engine, why: &str| Ok(Choice { engine, why: why.to_owned(), is_free, is_started });
    let is_gone =
        |error: &io::Error| matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT));
    match (asked, &facts.perf) {
        (_, Err(error)) if is_gone(error) => Err(again(error)),
        (EngineChoice::Timer, _) => choice(Engine::Timer, "requested"),
        (EngineChoice::Perf | EngineChoice::Signal, Ok(()))
            if facts.descriptors.threads > facts.descriptors.left =>
        {
            Err(io::Error::from_raw_os_error(libc::EMFILE))
        }
        (EngineChoice::Perf, Ok(())) => choice(Engine::Perf, "requested"),
        (EngineChoice::Signal, Ok(())) => choice(Engine::Signal, "requested"),
        (EngineChoice::Perf | EngineChoice::Signal, Err(error)) => Err(again(error)),
        (EngineChoice::Auto, _) => match facts.reason(Gravity::Blindness) {
            Some(why) if facts.is_signal_enough() => choice(Engine::Signal, &why),
            Some(why) => choice(Engine::Timer, &why),
            None if facts.period_ns >= RARE_NS && facts.is_signal_enough() => {
                choice(Engine::Signal, "the safest engine that works here")
            }
            None => choice(Engine::Perf, "the best engine at this rate"),
        },
    }
}

/// Copies an error; errors from the kernel carry a number.
fn again(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error)
}

/// Returns the reason why threads that cannot have a timer cannot have a perf event either.
pub(crate) fn why_no_events(facts: &EngineFacts) -> Option<String> {
    let is_reason =
        |concern: &Concern| !matches!(concern.gravity, Gravity::Shortage | Gravity::Blindness);
    facts.concerns().into_iter().filter(is_reason).find_map(|concern| concern.why_not)
}

/// Returns what the search finds in the first module in which it finds something. It looks once at
/// each file that has mapped code.
fn first_in_modules(
    mappings: &[Mapping],
    search: impl Fn(&Mapping) -> Option<&'static str>,
) -> Option<&'static str> {
    let mut checked = Vec::new();
    mappings.iter().filter(|mapping| mapping.exec && mapping.inode != 0).find_map(|mapping| {
        let file = (mapping.device, mapping.inode);
        if checked.contains(&file) {
            return None;
        }
        checked.push(file);
        search(mapping)
    })
}

#[cfg(test)]
mod tests;
