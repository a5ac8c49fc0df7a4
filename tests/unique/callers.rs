//! The callers in programs in which every function has one caller, and the check of stacks against
//! them.
//!
//! `leaf_K` is called by `parent_K`, that by `root_K`, and that by `main`. Exceptions of a program
//! are added with [`Callers::with`]. Functions with other names belong to libraries.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use traceprof::trace::{self, FrameKind, LoadedTrace, LocationId};
use traceprof_abi::storage::log::flags::KERNEL;
use traceprof_abi::unwind::EndReason;

/// The most wrong stacks that a message shows.
const SHOWN_MAX: usize = 12;

/// At least one sample in this many is in each kind of function.
const KIND_PART: u64 = 1000;

/// Permitted share of samples with torn registers, over all programs. At the end of a signal
/// handler the kernel restores the registers one after the other. That takes a few instructions:
/// one such sample in 240,000 was seen.
const TORN_PART: f64 = 1.0 / 20_000.0;
/// One test in so many fails by chance.
const CHANCE: f64 = 1e-6;
static TORN: AtomicU64 = AtomicU64::new(0);
static SAMPLES: AtomicU64 = AtomicU64::new(0);

/// Length in bytes of the instructions that return to where an exception is caught: 144 in libgcc
/// of GCC 12.
const LANDING_LEN: u64 = 192;
/// One part in this many of an exception's time at most is in those instructions. Searching and
/// unwinding take the rest.
const LANDING_PART: u64 = 4;

/// The required caller of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Caller {
    /// This function, directly.
    Direct(String),
    /// One of these functions.
    Either(&'static [&'static str]),
    /// Functions of libraries, and then this function.
    Through(&'static str),
    /// The return of a signal handler, and any code that the signal interrupted.
    Signal,
    /// No function of the program, up to the root.
    Start,
}

/// The callers of a program's functions.
#[derive(Debug, Clone)]
pub(super) struct Callers {
    /// The function that calls the roots.
    start: &'static str,
    other: HashMap<&'static str, Caller>,
    /// Whether libraries have no unwind information. Their callers are then found only where
    /// possible.
    has_gaps: bool,
    /// Functions with a frame larger than the copy of the stack that a sample in the kernel has.
    large: &'static [&'static str],
}

/// A stack as the trace has it, leaf first.
struct Stack {
    names: Vec<String>,
    /// The offsets of the frames in their files and the flags of the sample, to find the cause of
    /// an error.
    places: Vec<u64>,
    flags: u32,
    end: Option<EndReason>,
    /// Whether the stack is longer than the trace shows, see [`is_cut`].
    is_cut: bool,
}

/// The counts of a trace's samples.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) samples: u64,
    /// Samples whose stack ends at a root.
    pub(super) rooted: u64,
    /// Samples by the innermost function of the program.
    pub(super) by_function: BTreeMap<String, u64>,
    ends: BTreeMap<&'static str, u64>,
    pub(super) cut: u64,
    /// Samples with a function of the C++ runtime, and the offsets of those that end in one.
    unwinding: u64,
    landings: HashMap<String, Vec<u64>>,
    /// Samples taken while the kernel exchanged the thread's registers.
    torn: u64,
    wrong: Vec<String>,
    wrong_count: u64,
}

impl Default for Callers {
    fn default() -> Self {
        Self::of_start("main")
    }
}

impl Callers {
    /// Returns the callers of a program whose roots are called by this function.
    pub(super) fn of_start(start: &'static str) -> Self {
        Self { start, other: HashMap::new(), has_gaps: false, large: &[] }
    }

    /// Adds a function whose caller is not the one that its name implies.
    pub(super) fn with(mut self, function: &'static str, caller: Caller) -> Self {
        self.other.insert(function, caller);
        self
    }

    /// Permits stacks that end in a library, because libraries have no unwind information.
    pub(super) fn with_gaps(mut self) -> Self {
        self.has_gaps = true;
        self
    }

    /// Adds functions with frames that a sample in the kernel does not copy.
    pub(super) fn with_large(mut self, large: &'static [&'static str]) -> Self {
        self.large = large;
        self
    }

    fn of(&self, function: &str) -> Option<Caller> {
        if let Some(caller) = self.other.get(function) {
            return Some(caller.clone());
        }
        let direct = |kind: &str, name: &str| Caller::Direct(format!("{kind}_{name}"));
        match function.split_once('_') {
            Some(("leaf", name)) => Some(direct("parent", name)),
            Some(("parent", name)) => Some(direct("root", name)),
            Some(("root", _)) => Some(Caller::Direct(self.start.into())),
            _ => (function == self.start).then_some(Caller::Start),
        }
    }

    /// Returns what is wrong with a stack.
    fn fault(&self, stack: &Stack) -> Option<String> {
        let names = &stack.names;
        let is_own = |name: &&String| self.of(name).is_some();
        for (at, name) in names.iter().enumerate() {
            let Some(caller) = self.of(name) else { continue };
            let above = &names[at + 1..];
            let next = above.first().map(String::as_str);
            let is_right = match &caller {
                _ if above.is_empty() && stack.is_cut => true,
                Caller::Direct(expected) => next == Some(expected.as_str()),
                Caller::Either(expected) => next.is_some_and(|next| expected.contains(&next)),
                Caller::Through(expected) => match above.iter().position(|name| is_own(&name)) {
                    Some(place) => place > 0 && above[place] == *expected,
                    None => self.may_end(stack) && !above.is_empty(),
                },
                Caller::Signal => above.len() > 1 && !is_own(&&above[0]),
                Caller::Start => !above.iter().any(|name| is_own(&name)),
            };
            if !is_right {
                return Some(format!("{name} is not called by {caller:?}"));
            }
        }
        let reached = names.iter().any(|name| self.of(name) == Some(Caller::Start));
        let is_ended = stack.end == Some(EndReason::Root) || self.may_end(stack);
        match reached || self.may_end(stack) {
            true if is_ended => None,
            true => Some("no root".into()),
            false => Some("nothing that begins".into()),
        }
    }

    /// Whether the stack is longer than what was found: a sample in the kernel, which copied part
    /// of one stack, or a sample in the instructions that return to where an exception is caught.
    fn is_cut(&self, names: &[String], end: Option<EndReason>, flags: u32) -> bool {
        match end {
            Some(EndReason::Copied) => flags & KERNEL != 0 && self.is_beyond_copy(names),
            Some(EndReason::BadRule) => {
                names.last().is_some_and(|name| name.starts_with("_Unwind_"))
            }
            _ => false,
        }
    }

    /// Whether a frame is larger than the copy, or a signal handler runs or returns, which may be
    /// on another stack than the code that it interrupted.
    fn is_beyond_copy(&self, names: &[String]) -> bool {
        let is_beyond = |name: &String| {
            self.large.contains(&name.as_str()) || self.of(name) == Some(Caller::Signal)
        };
        let is_outside = names.first().is_some_and(|name| self.of(name).is_none());
        is_outside || names.iter().any(is_beyond)
    }

    /// Whether the stack may be incomplete for a known reason.
    fn may_end(&self, stack: &Stack) -> bool {
        stack.is_cut || self.has_gaps && stack.end == Some(EndReason::Gap)
    }
}

impl Tally {
    /// Checks every sample of the trace against the callers.
    pub(super) fn of(path: &Path, callers: &Callers) -> Self {
        let trace = trace::load(path).expect("a trace");
        let mut tally = Self::default();
        for thread in &trace.threads {
            thread.for_each_sample(&mut |sample, stack| {
                // The kernel's own frames say nothing about the unwinding.
                let location = |id: &LocationId| &trace.locations[id.0 as usize];
                let own = stack.iter().rev().filter(|id| location(id).kind != FrameKind::Kernel);
                let names: Vec<String> = own.clone().map(|id| name(&trace, *id)).collect();
                let end = EndReason::from_number(sample.end_reason);
                let places = own.map(|id| location(id).svma).collect();
                let flags = sample.flags;
                let is_cut = callers.is_cut(&names, end, flags);
                tally.add(&Stack { names, places, flags, end, is_cut }, callers);
            });
        }
        tally
    }

    fn add(&mut self, stack: &Stack, callers: &Callers) {
        self.samples += 1;
        self.cut += u64::from(stack.is_cut);
        self.rooted += u64::from(stack.end == Some(EndReason::Root));
        let end = stack.end.map_or("unknown", EndReason::name);
        *self.ends.entry(end).or_default() += 1;
        if let Some(own) = stack.names.iter().find(|name| callers.of(name).is_some()) {
            *self.by_function.entry(own.clone()).or_default() += 1;
        }
        let is_of_runtime = |name: &String| name.starts_with("_Unwind_");
        self.unwinding += u64::from(stack.names.iter().any(is_of_runtime));
        if stack.is_cut
            && stack.end == Some(EndReason::BadRule)
            && let (Some(name), Some(svma)) = (stack.names.last(), stack.places.last())
        {
            self.landings.entry(name.clone()).or_default().push(*svma);
        }
        // The supposed return address is not in code, or cannot be an address.
        let is_nowhere = matches!(stack.end, Some(EndReason::NoModule | EndReason::Range));
        if stack.flags & KERNEL != 0 && is_nowhere && stack.names.len() <= 2 {
            self.torn += 1;
        } else if let Some(fault) = callers.fault(stack) {
            self.wrong_count += 1;
            let (flags, leaf) = (stack.flags, stack.places.first());
            let names = stack.names.join(" < ");
            let text = format!("{fault}: {names} [{end}] at {leaf:x?}, flags {flags}");
            if self.wrong.len() < SHOWN_MAX && !self.wrong.contains(&text) {
                self.wrong.push(text);
            }
        }
    }

    /// Checks that no stack is wrong and that every kind of function has samples.
    pub(super) fn assert_right(&self, program: &str, kinds: &[&str]) {
        let Self { samples, rooted, ends, wrong, wrong_count, by_function, .. } = self;
        self.assert_few_torn(program);
        self.assert_cut_by_landings(program);
        let shown = wrong.join("\n");
        assert_eq!(
            *wrong_count, 0,
            "{program}: of {samples} ({rooted} rooted, {ends:?}):\n{shown}"
        );
        let of = |function: &str, kind: &str| {
            by_function.get(&format!("{function}_{kind}")).copied().unwrap_or(0)
        };
        for kind in kinds {
            let seen: u64 = ["leaf", "parent", "root"].iter().map(|it| of(it, kind)).sum();
            let least = samples / KIND_PART + 2;
            assert!(seen >= least, "{program}: {seen} of {samples} samples are of {kind}");
        }
        // Many leaves are a few instructions long. Which of them gets a sample depends on the
        // processor.
        let leaves: u64 = kinds.iter().map(|kind| of("leaf", kind)).sum();
        assert!(leaves > samples / KIND_PART + 2, "{program}: {leaves} in {by_function:?}");
    }

    fn assert_few_torn(&self, program: &str) {
        // Relaxed, both: sums, which guard nothing.
        let torn = TORN.fetch_add(self.torn, Ordering::Relaxed) + self.torn;
        let samples = SAMPLES.fetch_add(self.samples, Ordering::Relaxed) + self.samples;
        let most = most_by_chance(samples as f64 * TORN_PART);
        assert!(torn <= most, "{program}: {torn} of {samples} samples of all programs are torn");
    }

    /// Checks that stacks truncated at the landing of an exception are truncated in the few
    /// instructions that do it.
    fn assert_cut_by_landings(&self, program: &str) {
        for (name, svmas) in &self.landings {
            let span = svmas.iter().max().zip(svmas.iter().min()).map(|(last, first)| last - first);
            assert!(span.is_some_and(|span| span < LANDING_LEN), "{program}: {name} {svmas:x?}");
        }
        let cut: u64 = self.landings.values().map(|svmas| svmas.len() as u64).sum();
        let most = most_by_chance((self.unwinding / LANDING_PART) as f64);
        assert!(cut <= most, "{program}: {cut} of {} are truncated, {most} may be", self.unwinding);
    }
}

/// Returns the most samples that chance makes of an expected number, by the distribution of Poisson.
fn most_by_chance(expected: f64) -> u64 {
    // Of large numbers it is nearly normal.
    if expected > 500.0 {
        return (expected + 5.0 * expected.sqrt()) as u64;
    }
    let (mut most, mut exactly) = (0, (-expected).exp());
    let mut at_most = exactly;
    while at_most < 1.0 - CHANCE {
        most += 1;
        exactly *= expected / most as f64;
        at_most += exactly;
    }
    most
}

/// Returns a function's name without the suffixes of its parts and of its entry in a linkage table.
fn name(trace: &LoadedTrace, id: LocationId) -> String {
    let location = &trace.locations[id.0 as usize];
    let name = &trace.methods[location.method.0 as usize].name;
    let base = name.split(['.', '@', '(']).next().unwrap_or(name);
    base.rsplit("::").next().unwrap_or(base).to_owned()
}

#[test]
fn wrong_and_missing_callers_are_reported() {
    let callers = Callers::default()
        .with("leaf_sorted", Caller::Through("parent_sorted"))
        .with("root_handled", Caller::Signal);
    let check = |names: &str, end: EndReason, expected: bool| {
        let names: Vec<String> = names.split(' ').map(str::to_owned).collect();
        let fault = callers.fault(&Stack {
            names,
            places: Vec::new(),
            flags: 0,
            end: Some(end),
            is_cut: false,
        });
        assert_eq!(fault.is_none(), expected, "{fault:?}");
    };
    let root = EndReason::Root;
    check("leaf_a parent_a root_a main start", root, true);
    check("memset leaf_a parent_a root_a main", root, true);
    check("leaf_a parent_a root_a main", EndReason::Gap, false);
    check("leaf_a parent_a root_a", root, false);
    check("leaf_a root_a main", root, false);
    check("leaf_a parent_b root_b main", root, false);
    check("leaf_a other parent_a root_a main", root, false);
    check("memset start", root, false);
    check("main main start", root, false);
    check("leaf_sorted qsort qsort parent_sorted root_sorted main", root, true);
    check("leaf_sorted parent_sorted root_sorted main", root, false);
    check("leaf_sorted qsort root_sorted main", root, false);
    check("root_handled restore leaf_a parent_a root_a main", root, true);
    check("root_handled leaf_a parent_a root_a main", root, false);
    check("root_handled restore", root, false);
    check("", root, false);
}

#[test]
fn a_copy_ends_where_the_stack_is_larger() {
    let callers = Callers::default().with("root_handled", Caller::Signal).with_large(&["parent_a"]);
    let check = |names: &str, end: EndReason, flags: u32, expected: bool| {
        let names: Vec<String> = names.split(' ').map(str::to_owned).collect();
        assert_eq!(callers.is_cut(&names, Some(end), flags), expected, "{names:?}");
    };
    let copied = EndReason::Copied;
    check("parent_a", copied, KERNEL, true);
    check("parent_a", copied, 0, false);
    check("parent_a", EndReason::Gap, KERNEL, false);
    check("parent_b", copied, KERNEL, false);
    check("leaf_b parent_b root_handled restore parent_c", copied, KERNEL, true);
    check("restore parent_b", copied, KERNEL, true);
    check("throw _Unwind_Resume", EndReason::BadRule, 0, true);
    check("_Unwind_Resume throw", EndReason::BadRule, 0, false);
}
