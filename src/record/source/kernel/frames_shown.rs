//! What samples show of the kernel's own functions, and what would make them show more.

use crate::proc::{self, KernelNames};
use crate::record::contract::sampling::{KernelFrames, Setup};
use crate::record::source::kernel::{cpus, stack_len};
use crate::record::source::perf::{self, Modes, SampleContent, Scope};

/// Returns what samples of this thread can show of the kernel's functions.
pub(crate) fn shown(tid: i32, setup: Setup) -> KernelFrames {
    let cpu = cpus().first().copied().unwrap_or(0);
    let family = (Scope::Family, Modes::Kernel);
    let content = |has_chain| SampleContent { user_stack: stack_len(setup.period_ns), has_chain };
    let opened =
        |has_chain| perf::open_kernel(family, (tid, cpu), setup.period_ns, content(has_chain));
    if opened(false).is_err() {
        return KernelFrames::NotSampled;
    }
    match proc::kernel_names() {
        KernelNames::Shown if opened(true).is_ok() => KernelFrames::Chain,
        KernelNames::Shown => KernelFrames::NoChain,
        KernelNames::Hidden | KernelNames::Unreadable => KernelFrames::Nameless,
    }
}

/// Why samples do not show the kernel's functions, and what would change it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Obstacle {
    /// The reason.
    pub(crate) why: String,
    /// What would change it besides `sysctl`, or a condition.
    change: Option<&'static str>,
    /// The setting that would change it.
    pub(crate) sysctl: Option<&'static str>,
}

impl Obstacle {
    fn new(why: impl Into<String>) -> Self {
        Self { why: why.into(), change: None, sysctl: None }
    }

    /// Returns the obstacle to what this is; `None` if samples show the kernel's functions, or if
    /// the user does not want them.
    pub(crate) fn to(frames: KernelFrames) -> Option<Self> {
        const PARANOID: &str = "kernel.perf_event_paranoid";
        let level = |name: &str| proc::sysctl(name).unwrap_or(-1);
        let not_shown = |why: &str| Self::new(format!("its functions are not shown: {why}"));
        let nameless = |why: &str| Self::new(format!("its functions have no names: {why}"));
        let paranoid = |obstacle: Self, capability| Self {
            why: format!("{}{PARANOID} is {}", obstacle.why, level(PARANOID)),
            sysctl: Some("kernel.perf_event_paranoid=1"),
            change: Some(capability),
        };
        Some(match frames {
            KernelFrames::Chain | KernelFrames::Unwanted => return None,
            KernelFrames::Timers => Self {
                change: Some("--engine perf shows them"),
                ..not_shown("the signals of timers arrive when a thread leaves it")
            },
            KernelFrames::NotSampled if level(PARANOID) > 1 => {
                paranoid(not_shown(""), "or CAP_PERFMON, shows them")
            }
            KernelFrames::NotSampled => not_shown("time in it is not sampled here"),
            KernelFrames::NoChain => not_shown("it gives no call chain of its own"),
            KernelFrames::Nameless => match (proc::kernel_names(), level("kernel.kptr_restrict")) {
                (KernelNames::Unreadable, _) => nameless("/proc/kallsyms lists none here"),
                (_, 2..) => Self {
                    sysctl: Some("kernel.kptr_restrict=1"),
                    change: Some("and CAP_SYSLOG, show them"),
                    ..nameless("kernel.kptr_restrict is 2")
                },
                (_, 1) => Self {
                    sysctl: Some("kernel.kptr_restrict=0"),
                    change: Some("or CAP_SYSLOG, shows them"),
                    ..nameless("kernel.kptr_restrict is 1")
                },
                _ => paranoid(nameless(""), "or CAP_SYSLOG, shows them"),
            },
        })
    }

    /// Returns the reason, and what would change it.
    pub(crate) fn line(&self) -> String {
        let Self { why, change, sysctl } = self;
        let sysctl = sysctl.map(|setting| format!("sysctl {setting}"));
        let change: Vec<&str> = sysctl.as_deref().into_iter().chain(*change).collect();
        match change.is_empty() {
            true => why.clone(),
            false => format!("{why} ({})", change.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_why_and_what_would_change_it() {
        let line = |frames| Obstacle::to(frames).map(|it| it.line());
        assert_eq!((line(KernelFrames::Chain), line(KernelFrames::Unwanted)), (None, None));
        let timers = line(KernelFrames::Timers).unwrap();
        assert!(timers.ends_with(" (--engine perf shows them)"), "{timers}");
        let none = line(KernelFrames::NoChain).unwrap();
        assert_eq!(none, "its functions are not shown: it gives no call chain of its own");
        let both = Obstacle {
            why: "why".to_owned(),
            change: Some("or CAP_SYSLOG, shows them"),
            sysctl: Some("kernel.kptr_restrict=0"),
        };
        let expected = "why (sysctl kernel.kptr_restrict=0, or CAP_SYSLOG, shows them)";
        assert_eq!(both.line(), expected);
    }
}
