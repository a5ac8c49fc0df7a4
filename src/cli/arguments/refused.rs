//! What users of other profilers type and what has no meaning here: each is refused with what has.

use std::fmt;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};

/// An option that is refused.
struct Refused {
    short: Option<char>,
    long: &'static str,
    /// What to do instead.
    advice: &'static str,
}

const fn refused(short: Option<char>, long: &'static str, advice: &'static str) -> Refused {
    Refused { short, long, advice }
}

const STACKS: &str =
    "call stacks are always recorded, and unwound by what each module has: leave it out";
const FORMAT: &str = "record writes a trace, which --output names; for another format convert it: \
                      traceprof export FILE --format flamegraph (or pprof, firefox, speedscope, folded)";
const THREADS: &str = "all threads are recorded, each on its own; choose when you look: \
                       traceprof print --thread NAME FILE";

const REFUSED: [Refused; 11] = [
    refused(Some('g'), "call-graph", STACKS),
    refused(None, "cstack", STACKS),
    refused(Some('n'), "native", STACKS),
    refused(
        Some('a'),
        "all-cpus",
        "the whole system is not recorded, only processes that are named: give --pid PID",
    ),
    refused(Some('c'), "count", "the period is a time: give --interval 1ms, or a rate, --freq 999"),
    refused(Some('t'), "tid", THREADS),
    refused(None, "per-thread", THREADS),
    refused(None, "threads", THREADS),
    refused(Some('f'), "format", FORMAT),
    refused(None, "file", FORMAT),
    refused(None, "nonblocking", "no thread is stopped to be sampled while it runs: leave it out"),
];

/// None of them was given.
#[derive(Debug)]
pub struct RefusedArguments;

impl FromArgMatches for RefusedArguments {
    fn from_arg_matches(_: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self)
    }

    fn update_from_arg_matches(&mut self, _: &ArgMatches) -> Result<(), clap::Error> {
        Ok(())
    }
}

impl Args for RefusedArguments {
    fn augment_args(command: Command) -> Command {
        REFUSED.iter().fold(command, |command, it| {
            // It fails where it is met, so that nothing is said of what may be wrong besides.
            let refuse = |_: &str| Err::<String, _>(Refusal { option: it.long, advice: it.advice });
            let arg = Arg::new(it.long).long(it.long).hide(true).value_parser(refuse);
            let arg = arg.num_args(0..=1).require_equals(true).default_missing_value("");
            command.arg(match it.short {
                Some(short) => arg.short(short),
                None => arg,
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// Why a command line is refused that another profiler would take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Refusal {
    option: &'static str,
    advice: &'static str,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { option, advice } = self;
        let short = REFUSED.iter().find(|it| it.long == *option).and_then(|it| it.short);
        match short {
            Some(short) => write!(f, "-{short} (--{option}): {advice}"),
            None => write!(f, "--{option}: {advice}"),
        }
    }
}

impl std::error::Error for Refusal {}
