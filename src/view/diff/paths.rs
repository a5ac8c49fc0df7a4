//! The stacks of both sides by name, so that those of two builds of a program meet.
//!
//! # Invariants
//! - A function is its name and the file name of its module: not the path and not the build id, which
//!   change from one deployment to the next. Functions of one name in one module are one.
//! - Paths of several processes are kept apart: they begin with the process.
//! - A path comes after the path of its caller, so one pass backwards adds up what is below each.

use std::collections::HashMap;

use super::estimate::Series;
use super::owners;
use super::side::Side;
use crate::trace::LocationId;
use crate::view::calls::Step;
use crate::view::profile::Profile;

/// A function of either side, or what stands for one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Function {
    /// As the traces have it.
    pub(super) name: String,
    /// The file name of its module; empty if there is none.
    pub(super) module: String,
    /// It is none, but the process that the stacks below it are of.
    pub(super) is_process: bool,
}

impl Function {
    fn new(name: &str, module: &str) -> Self {
        Self { name: name.to_owned(), module: module.to_owned(), is_process: false }
    }
}

/// Index of a [`Function`].
type FunctionId = usize;

/// The path of the root of all; its function has no samples.
const ROOT: usize = 0;

/// All paths of two sides.
#[derive(Debug)]
pub(super) struct Paths {
    pub(super) functions: Vec<Function>,
    known_functions: HashMap<Function, FunctionId>,
    calls: Vec<(usize, FunctionId)>,
    known: HashMap<(usize, FunctionId), usize>,
    /// By path, of both sides: what ends in it. Most paths only lead to others.
    own: HashMap<usize, [Series; 2]>,
}

impl Paths {
    /// Those of `before` and `after`.
    pub(super) fn new(before: &Side, after: &Side) -> Self {
        let mut paths = Self {
            functions: Vec::new(),
            known_functions: HashMap::new(),
            calls: Vec::new(),
            known: HashMap::new(),
            own: HashMap::new(),
        };
        let thread = paths.function(Function::new("[thread]", ""));
        paths.calls.push((ROOT, thread));
        let labels = owners::labels([&before.processes, &after.processes]);
        for (place, (side, labels)) in [before, after].into_iter().zip(&labels).enumerate() {
            paths.add(side, place, labels);
        }
        paths
    }

    /// `labels` are what the processes are called, by group; none of them is if there is one only.
    fn add(&mut self, side: &Side, place: usize, labels: &[String]) {
        let methods: Vec<FunctionId> = side
            .profile
            .methods
            .iter()
            .map(|method| {
                let module = side.profile.module_name(method).unwrap_or_default();
                self.function(Function::new(&method.name, module))
            })
            .collect();
        let mut here = vec![ROOT; side.tree.calls().len()];
        for (index, call) in side.tree.calls().iter().enumerate().skip(1) {
            if let Step::Group(process) = call.step {
                if let Some(label) = labels.get(process.place()) {
                    let process = Function { is_process: true, ..Function::new(label, "") };
                    let process = self.function(process);
                    here[index] = self.callee(ROOT, process);
                }
                continue;
            }
            let method = match call.step {
                Step::Frame(location) => side.profile.method_of(location),
                _ => None,
            };
            let known = method.and_then(|method| methods.get(method.0 as usize)).copied();
            let function = known.unwrap_or_else(|| self.function(mark(&side.profile, call.step)));
            let path = self.callee(here[call.caller()], function);
            here[index] = path;
            if let Some(own) = side.own.get(&index) {
                self.own.entry(path).or_default()[place] += own;
            }
        }
    }

    fn function(&mut self, function: Function) -> FunctionId {
        let functions = &mut self.functions;
        *self.known_functions.entry(function).or_insert_with_key(|function| {
            functions.push(function.clone());
            functions.len() - 1
        })
    }

    fn callee(&mut self, caller: usize, function: FunctionId) -> usize {
        let calls = &mut self.calls;
        *self.known.entry((caller, function)).or_insert_with(|| {
            calls.push((caller, function));
            calls.len() - 1
        })
    }

    /// What ends in a path.
    pub(super) fn own(&self, path: usize) -> [Series; 2] {
        self.own.get(&path).copied().unwrap_or_default()
    }

    /// By path, what is in it and in all that it called.
    pub(super) fn totals(&self) -> Vec<[Series; 2]> {
        let mut totals: Vec<_> = (0..self.calls.len()).map(|path| self.own(path)).collect();
        for path in (1..totals.len()).rev() {
            let below = totals[path];
            add(&mut totals[self.calls[path].0], &below);
        }
        totals
    }

    /// By function, what ends in it, and what goes through it, however often it calls itself.
    pub(super) fn by_function(&self, totals: &[[Series; 2]]) -> Vec<[[Series; 2]; 2]> {
        let mut sums = vec![<[[Series; 2]; 2]>::default(); self.functions.len()];
        for (path, is_outermost) in self.outermost().into_iter().enumerate() {
            let [own, total] = &mut sums[self.calls[path].1];
            add(own, &self.own(path));
            if is_outermost {
                add(total, &totals[path]);
            }
        }
        sums
    }

    /// By path, whether its function is none of its callers. No recursion: stacks may be thousands of
    /// calls deep.
    fn outermost(&self) -> Vec<bool> {
        let mut callees = vec![Vec::new(); self.calls.len()];
        for (path, (caller, _)) in self.calls.iter().enumerate().skip(1) {
            callees[*caller].push(path);
        }
        let mut open = vec![0u32; self.functions.len()];
        let mut outermost = vec![false; self.calls.len()];
        let mut pending = vec![(ROOT, false)];
        while let Some((path, is_over)) = pending.pop() {
            let function = self.calls[path].1;
            if is_over {
                open[function] -= 1;
                continue;
            }
            outermost[path] = open[function] == 0;
            open[function] += 1;
            pending.push((path, true));
            pending.extend(callees[path].iter().map(|callee| (*callee, false)));
        }
        outermost
    }

    /// The paths that are calls, callers first.
    pub(super) fn all(&self) -> std::ops::Range<usize> {
        1..self.calls.len()
    }

    /// The caller of a path; the root is its own.
    pub(super) fn caller(&self, path: usize) -> usize {
        self.calls[path].0
    }

    /// The functions of a path, root first.
    pub(super) fn stack(&self, path: usize) -> Vec<&Function> {
        let mut stack = Vec::new();
        let mut at = path;
        while at != ROOT {
            stack.push(&self.functions[self.calls[at].1]);
            at = self.calls[at].0;
        }
        stack.reverse();
        stack
    }
}

fn add(sum: &mut [Series; 2], more: &[Series; 2]) {
    for (sum, more) in sum.iter_mut().zip(more) {
        *sum += more;
    }
}

/// What stands for a step that is no known function.
fn mark(profile: &Profile, step: Step<LocationId>) -> Function {
    let name = match step {
        Step::Truncated => "[truncated]",
        Step::Dropped => "[stack dropped]",
        Step::Empty => "[no stack]",
        Step::Wait(wait) => profile.waits.name(wait),
        Step::Thread | Step::Group(_) | Step::Context(_) | Step::Frame(_) => "[unknown]",
    };
    Function::new(name, "")
}
