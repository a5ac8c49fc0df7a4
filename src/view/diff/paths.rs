//! The stacks of both sides by name, so that the stacks of two builds of a program match.
//!
//! # Invariants
//! - A function is identified by its name and the file name of its module. The path and the build
//!   id do not count, because they change with each deployment. Functions with one name in one
//!   module are merged.
//! - Paths of several processes are not merged: they start with the process.
//! - A path comes after the path of its caller, so one pass backwards computes all totals.

use std::collections::HashMap;

use super::estimate::BlockWeights;
use super::process_labels;
use super::side::DiffSide;
use crate::trace::LocationId;
use crate::view::profile::call_tree::StackStep;
use crate::view::profile::thread_profile::Profile;

/// A function of either side, or a placeholder.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct DiffFunction {
    /// The name as in the traces.
    pub(super) name: String,
    /// The file name of its module, empty if it has none.
    pub(super) module: String,
    /// Whether this is a placeholder for the process of the stacks below it.
    pub(super) is_process: bool,
}

impl DiffFunction {
    fn new(name: &str, module: &str) -> Self {
        Self { name: name.to_owned(), module: module.to_owned(), is_process: false }
    }
}

/// The index of a [`DiffFunction`].
type FunctionId = usize;

/// The path of the root, whose function has no samples.
const ROOT: usize = 0;

/// All paths of two sides.
#[derive(Debug)]
pub(super) struct Paths {
    pub(super) functions: Vec<DiffFunction>,
    known_functions: HashMap<DiffFunction, FunctionId>,
    calls: Vec<(usize, FunctionId)>,
    known: HashMap<(usize, FunctionId), usize>,
    /// The self weights of both sides by path. Most paths only lead to others.
    own: HashMap<usize, [BlockWeights; 2]>,
}

impl Paths {
    /// Collects the paths of `before` and `after`.
    pub(super) fn new(before: &DiffSide, after: &DiffSide) -> Self {
        let mut paths = Self {
            functions: Vec::new(),
            known_functions: HashMap::new(),
            calls: Vec::new(),
            known: HashMap::new(),
            own: HashMap::new(),
        };
        let thread = paths.function(DiffFunction::new("[thread]", ""));
        paths.calls.push((ROOT, thread));
        let labels = process_labels::labels([&before.processes, &after.processes]);
        for (side_index, (side, labels)) in [before, after].into_iter().zip(&labels).enumerate() {
            paths.add(side, side_index, labels);
        }
        paths
    }

    /// Adds the paths of a side. `labels` are the labels of the processes by group, empty if there
    /// is only one process.
    fn add(&mut self, side: &DiffSide, side_index: usize, labels: &[String]) {
        let methods: Vec<FunctionId> = side
            .profile
            .methods
            .iter()
            .map(|method| {
                let module = side.profile.module_name(method).unwrap_or_default();
                self.function(DiffFunction::new(&method.name, module))
            })
            .collect();
        let mut here = vec![ROOT; side.tree.calls().len()];
        for (index, call) in side.tree.calls().iter().enumerate().skip(1) {
            if let StackStep::Group(process) = call.step {
                if let Some(label) = labels.get(process.index()) {
                    let process = DiffFunction { is_process: true, ..DiffFunction::new(label, "") };
                    let process = self.function(process);
                    here[index] = self.callee(ROOT, process);
                }
                continue;
            }
            let method = match call.step {
                StackStep::Frame(location) => side.profile.method_of(location),
                _ => None,
            };
            let known = method.and_then(|method| methods.get(method.0 as usize)).copied();
            let function = known.unwrap_or_else(|| self.function(mark(&side.profile, call.step)));
            let path = self.callee(here[call.caller()], function);
            here[index] = path;
            if let Some(own) = side.own.get(&index) {
                self.own.entry(path).or_default()[side_index] += own;
            }
        }
    }

    fn function(&mut self, function: DiffFunction) -> FunctionId {
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

    /// Returns the self weights of a path.
    pub(super) fn own(&self, path: usize) -> [BlockWeights; 2] {
        self.own.get(&path).copied().unwrap_or_default()
    }

    /// Returns the total weights by path.
    pub(super) fn totals(&self) -> Vec<[BlockWeights; 2]> {
        let mut totals: Vec<_> = (0..self.calls.len()).map(|path| self.own(path)).collect();
        for path in (1..totals.len()).rev() {
            let below = totals[path];
            add(&mut totals[self.calls[path].0], &below);
        }
        totals
    }

    /// Returns the self and total weights by function. Recursion counts once.
    pub(super) fn by_function(&self, totals: &[[BlockWeights; 2]]) -> Vec<[[BlockWeights; 2]; 2]> {
        let mut sums = vec![<[[BlockWeights; 2]; 2]>::default(); self.functions.len()];
        for (path, is_outermost) in self.outermost().into_iter().enumerate() {
            let [own, total] = &mut sums[self.calls[path].1];
            add(own, &self.own(path));
            if is_outermost {
                add(total, &totals[path]);
            }
        }
        sums
    }

    /// Returns for each path whether its function is not one of its callers.
    ///
    /// The search does not recurse: stacks may be thousands of calls deep.
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

    /// Returns the paths that are calls, callers first.
    pub(super) fn all(&self) -> std::ops::Range<usize> {
        1..self.calls.len()
    }

    /// Returns the caller of a path. The root is its own caller.
    pub(super) fn caller(&self, path: usize) -> usize {
        self.calls[path].0
    }

    /// Returns the functions of a path, root first.
    pub(super) fn stack(&self, path: usize) -> Vec<&DiffFunction> {
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

fn add(sum: &mut [BlockWeights; 2], more: &[BlockWeights; 2]) {
    for (sum, more) in sum.iter_mut().zip(more) {
        *sum += more;
    }
}

/// Returns the placeholder for a step that is not a known function.
fn mark(profile: &Profile, step: StackStep<LocationId>) -> DiffFunction {
    let name = match step {
        StackStep::Truncated => "[truncated]",
        StackStep::Dropped => "[stack dropped]",
        StackStep::Empty => "[no stack]",
        StackStep::Wait(wait) => profile.waits.name(wait),
        StackStep::Thread
        | StackStep::Group(_)
        | StackStep::ContextText(_)
        | StackStep::Frame(_) => "[unknown]",
    };
    DiffFunction::new(name, "")
}
