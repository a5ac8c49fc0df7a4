//! Who calls whom in programs in which every function has one caller, and stacks held against it.
//!
//! `leaf_K` is called by `parent_K`, that by `root_K`, and that by `main`; what is different in a
//! program is said by [`Callers::with`]. Functions with other names are the libraries'.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use traceprof::trace::{self, LoadedTrace, LocationId};
use traceprof_abi::storage::log::flags::KERNEL;
use traceprof_abi::unwind::EndReason;

/// Wrong stacks that are shown.
const SHOWN_MAX: usize = 12;

/// One sample in so many, at least, is in each kind of function.
const KIND_PART: u64 = 1000;

/// Hits while the kernel exchanges registers, one after the other, at the end of a signal's handler: one
/// in some 300,000 samples, which are fewer than all programs have together.
const TORN_MAX: u64 = 4;
static TORN: AtomicU64 = AtomicU64::new(0);

/// Of a thousand samples so many may be cut short for a known reason, see [`is_cut`].
const CUT_MAX: u64 = 10;
/// By chance there may be more, by so many standard deviations.
const CHANCE: f64 = 4.0;

/// What must be above a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Caller {
    /// This function.
    Direct(String),
    /// One of these.
    Either(&'static [&'static str]),
    /// Functions of libraries, and then this one.
    Through(&'static str),
    /// The way back from a signal's handler, and whatever the signal interrupted.
    Signal,
    /// Nothing of the program, up to the root.
    Start,
}

/// The callers of a program's functions.
#[derive(Debug, Clone)]
pub(super) struct Callers {
    /// What calls the roots.
    start: &'static str,
    other: HashMap<&'static str, Caller>,
    /// Libraries have no unwind information: what they call is found where it can be.
    has_gaps: bool,
    /// In a thousand samples.
    cut_max: u64,
}

/// A stack as the trace has it, leaf first.
struct Stack {
    names: Vec<String>,
    /// Where the frames are in their files, and what the hit was: to find out what is wrong.
    places: Vec<u64>,
    flags: u32,
    end: Option<EndReason>,
    /// There is more of it, see [`is_cut`].
    is_cut: bool,
}

/// What came of a trace.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) samples: u64,
    /// Those that end at a root.
    pub(super) rooted: u64,
    /// Samples whose innermost function of the program is this one.
    pub(super) by_function: BTreeMap<String, u64>,
    ends: BTreeMap<&'static str, u64>,
    pub(super) cut: u64,
    /// Steps that were taken over from the samples before, as the recorder counted them.
    pub(super) taken: u64,
    /// Hits in the kernel while it exchanged the thread's registers.
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
    /// The roots are called by this function.
    pub(super) fn of_start(start: &'static str) -> Self {
        Self { start, other: HashMap::new(), has_gaps: false, cut_max: CUT_MAX }
    }

    /// The function is called by something else than its name says.
    pub(super) fn with(mut self, function: &'static str, caller: Caller) -> Self {
        self.other.insert(function, caller);
        self
    }

    /// Libraries have no unwind information: a stack may end in them, for that reason.
    pub(super) fn with_gaps(mut self) -> Self {
        self.has_gaps = true;
        self
    }

    /// So many of a thousand samples may be cut short, as the program spends that much where they are.
    pub(super) fn with_cuts(mut self, cut_max: u64) -> Self {
        self.cut_max = cut_max;
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

    /// What is wrong with a stack.
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

    /// There may be more of it than was found, for a known reason.
    fn may_end(&self, stack: &Stack) -> bool {
        stack.is_cut || self.has_gaps && stack.end == Some(EndReason::Gap)
    }
}

impl Tally {
    /// Holds every sample of the trace against the callers.
    pub(super) fn of(path: &Path, callers: &Callers) -> Self {
        let trace = trace::load(path).expect("a trace");
        let mut tally = Self::default();
        for thread in &trace.threads {
            thread.for_each_sample(&mut |sample, stack| {
                let names: Vec<String> = stack.iter().rev().map(|id| name(&trace, *id)).collect();
                let end = EndReason::from_number(sample.end_reason);
                let places =
                    stack.iter().rev().map(|id| trace.locations[id.0 as usize].svma).collect();
                let flags = sample.flags;
                let is_cut = is_cut(&names, end, flags);
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
        let is_torn = stack.flags & KERNEL != 0 && stack.end == Some(EndReason::NoModule);
        if is_torn && stack.names.len() <= 2 {
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

    /// No stack is wrong, and all that the program does was seen.
    pub(super) fn assert_right(&self, program: &str, callers: &Callers, kinds: &[&str]) {
        let Self { samples, rooted, ends, cut, torn, wrong, wrong_count, by_function, .. } = self;
        // Relaxed: a sum, which guards nothing.
        let torn = TORN.fetch_add(*torn, Ordering::Relaxed) + torn;
        assert!(torn <= TORN_MAX, "{program}: {torn} of all programs' samples are torn");
        let cut_max = most_by_chance(*samples, callers.cut_max);
        assert!(*cut <= cut_max, "{program}: {cut} of {samples} are cut, {cut_max} may be");
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
        // Many are a few instructions long.
        let leaves = kinds.iter().filter(|kind| of("leaf", kind) > 0).count();
        assert!(leaves * 2 >= kinds.len(), "{program}: {leaves} leaves in {by_function:?}");
    }
}

/// As many of `samples` as `of_thousand` comes to, and what chance may add.
fn most_by_chance(samples: u64, of_thousand: u64) -> u64 {
    let expected = (samples * of_thousand) as f64 / 1000.0;
    (expected + CHANCE * expected.sqrt()) as u64
}

/// There is more than was found: of a hit in the kernel, which copied a part, and of one in the
/// instructions that return to where an exception is caught.
fn is_cut(names: &[String], end: Option<EndReason>, flags: u32) -> bool {
    let returns = || names.last().is_some_and(|name| name.starts_with("_Unwind_"));
    match end {
        Some(EndReason::Copied) => flags & KERNEL != 0,
        Some(EndReason::BadRule) => returns(),
        _ => false,
    }
}

/// A function's name without what tells its parts, and its entry in a linkage table, apart.
fn name(trace: &LoadedTrace, id: LocationId) -> String {
    let location = &trace.locations[id.0 as usize];
    let name = &trace.methods[location.method.0 as usize].name;
    let base = name.split(['.', '@', '(']).next().unwrap_or(name);
    base.rsplit("::").next().unwrap_or(base).to_owned()
}

#[test]
fn wrong_and_missing_callers_are_told() {
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
