//! The language runtimes of the target.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use traceprof_abi::context::RecordKind;
use traceprof_abi::runtime::{RUNTIMES_MAX, RuntimeBlock};

use super::address_map::AddressRange;
use crate::proc::{self, ProcessMemory};
use crate::runtime::Runtime;
use crate::runtime::java::{JavaExports, JavaMachine, carried_block};
use crate::runtime::node::NodeThreads;
use crate::runtime::pthreads::Pthreads;
use crate::runtime::v8::V8Machine;

/// The message about a processor or kernel on which handlers cannot find their thread.
const NO_HANDLERS: &str = "handlers cannot read their thread pointer here, so the functions of \
                           language runtimes are not shown";

/// The pause between two searches for a machine that starts.
const SEARCH_PAUSE: Duration = Duration::from_millis(10);
/// Such a search may take one part in this many of the time.
const SEARCH_SHARE: u32 = 10;
/// How long a machine may take until its tables are complete.
const STARTING: Duration = Duration::from_secs(2);

/// The runtimes that were found in a program so far.
#[derive(Debug, Default)]
pub(super) struct RuntimeSearch {
    /// The runtimes, by the numbers that frame words have.
    pub(super) found: Vec<Arc<Runtime>>,
    /// The Java machine, of which a process has one at most.
    pub(super) java: Option<Arc<JavaMachine>>,
    /// The block with which handlers name the virtual threads of the machine, once it was found.
    carried: Option<RuntimeBlock>,
    /// Whether the machine was found since the last [`Self::takes_new_java`].
    is_java_new: bool,
    /// The engine of JavaScript with its module: the first one, if a process has several.
    pub(super) v8: Option<Arc<V8Machine>>,
    v8_module: Option<ModulePlace>,
    /// The threads of Node.js, if that is the program.
    pub(super) node: Option<Arc<NodeThreads>>,
    /// When a machine that was not found is searched again: one that starts.
    next_search: Option<Instant>,
    /// The machine whose tables were not complete, and when that was seen first.
    starting: Option<(ModulePlace, Instant)>,
    /// The modules of these runtimes, and whether each is mapped.
    modules: Vec<(ModulePlace, bool)>,
    /// Whether PHP has compiled functions.
    has_compiled: bool,
    /// Modules with a runtime that is not supported.
    refused: HashSet<ModulePlace>,
}

/// The number of a module, and its load bias.
type ModulePlace = (u32, u64);

fn place(range: &AddressRange) -> Option<ModulePlace> {
    Some((range.module.as_ref()?.index, range.bias))
}

/// Returns what the file of a Java machine says, and its place.
fn exports_of_java(ranges: &[AddressRange]) -> Option<(&JavaExports, ModulePlace)> {
    ranges.iter().find_map(|range| Some((range.module.as_ref()?.java.as_ref()?, place(range)?)))
}

impl RuntimeSearch {
    /// Searches the modules for runtimes, and returns whether some are new or were unloaded.
    ///
    /// A runtime that is not initialised yet is found by a later call.
    pub(super) fn search(
        &mut self,
        pid: i32,
        ranges: &[AddressRange],
        notices: &mut Vec<String>,
    ) -> bool {
        let before = self.found.len();
        let mut has_changed = false;
        for (known, is_mapped) in &mut self.modules {
            let is_there = ranges.iter().any(|range| place(range) == Some(*known));
            has_changed |= is_there != *is_mapped;
            *is_mapped = is_there;
        }
        let is_musl = |range: &AddressRange| {
            range.module.as_ref().is_some_and(|module| module.exports.is_of_musl)
        };
        let is_of_musl = ranges.iter().any(is_musl);
        let vector = if is_of_musl { RecordKind::Musl } else { RecordKind::Glibc };
        let mut seen: Vec<ModulePlace> = Vec::new();
        for range in ranges {
            let Some(module) = &range.module else { continue };
            let Some(exports) = &module.runtime else { continue };
            let key = (module.index, range.bias);
            if seen.contains(&key) || self.refused.contains(&key) {
                continue;
            }
            seen.push(key);
            match exports.locate(range.bias, &ProcessMemory::of(pid), vector) {
                Ok(None) => {}
                Ok(Some(runtime)) => has_changed |= self.note(key, runtime, notices),
                Err(refusal) => {
                    self.refused.insert(key);
                    notices.push(refusal.to_string());
                }
            }
        }
        let has_compiled = ranges.iter().any(|range| range.is_loop);
        has_changed |= std::mem::replace(&mut self.has_compiled, has_compiled) != has_compiled;
        has_changed |= self.search_java(pid, ranges, notices);
        has_changed |= self.search_carried(pid, ranges, vector);
        has_changed |= self.search_v8(pid, ranges, notices);
        has_changed |= self.search_node(ranges);
        let has_new = self.found.len() > before;
        if has_new && before == 0 && !proc::may_read_thread_pointer() {
            notices.push(NO_HANDLERS.to_owned());
        }
        has_new || has_changed
    }

    /// Searches the modules for an engine of JavaScript, and returns whether another one was found
    /// than before, or it was unloaded.
    fn search_v8(&mut self, pid: i32, ranges: &[AddressRange], notices: &mut Vec<String>) -> bool {
        if let Some(known) = self.v8_module {
            let is_there = ranges.iter().any(|range| place(range) == Some(known));
            if !is_there {
                (self.v8, self.v8_module) = (None, None);
            }
            // A program that starts says later which version it has.
            if !is_there || self.v8.as_ref().is_none_or(|v8| v8.is_labelled) {
                return !is_there;
            }
        }
        let exports = |range: &AddressRange| range.module.as_ref()?.v8.clone();
        // Newer engines map their own functions a second time, at another bias.
        let with_engine = ranges.iter().filter(|range| exports(range).is_some());
        let Some(range) = with_engine.max_by_key(|range| range.end - range.start) else {
            return false;
        };
        let (Some(exports), Some(key)) = (exports(range), place(range)) else { return false };
        if self.refused.contains(&key) {
            return false;
        }
        let generated = ranges.iter().filter(|range| range.module.is_none());
        let generated: Vec<_> = generated.map(|range| range.start..range.end).collect();
        let found = match exports.locate(range.bias, &ProcessMemory::of(pid), &generated) {
            Ok(found) => found,
            Err(refusal) => {
                self.refused.insert(key);
                notices.push(refusal.to_string());
                None
            }
        };
        let Some(found) = found else { return false };
        let has_changed = self.v8.as_ref().is_none_or(|known| known.label != found.label);
        (self.v8, self.v8_module) = (Some(Arc::new(found)), Some(key));
        has_changed
    }

    /// Searches the modules for Node.js, and returns whether its threads are others than before.
    fn search_node(&mut self, ranges: &[AddressRange]) -> bool {
        let node = ranges.iter().find_map(|it| Some((it.module.as_ref()?.node.as_ref()?, it.bias)));
        let found = node.map(|(exports, bias)| {
            let modules = ranges.iter().filter_map(|it| Some((it.module.as_ref()?, it.bias)));
            let pthreads = Pthreads::of(modules.map(|(module, bias)| (&module.pthreads, bias)));
            NodeThreads::of(exports, bias, pthreads)
        });
        let has_changed = self.node.as_deref() != found.as_ref();
        if has_changed {
            self.node = found.map(Arc::new);
        }
        has_changed
    }

    /// Searches the modules for a Java machine, and returns whether there is a new one.
    fn search_java(
        &mut self,
        pid: i32,
        ranges: &[AddressRange],
        notices: &mut Vec<String>,
    ) -> bool {
        if self.java.is_some() {
            return false;
        }
        let Some((java, key)) = exports_of_java(ranges) else { return false };
        if self.refused.contains(&key) {
            return false;
        }
        match java.locate(key.1, &ProcessMemory::of(pid)) {
            Ok(found) => self.java = found.map(Arc::new),
            Err(refusal) => {
                let known = self.starting.filter(|(starting, _)| *starting == key);
                let since = known.map_or_else(Instant::now, |(_, since)| since);
                self.starting = Some((key, since));
                if !refusal.may_be_starting || since.elapsed() >= STARTING {
                    self.refused.insert(key);
                    notices.push(refusal.to_string());
                }
            }
        }
        self.is_java_new = self.java.is_some();
        self.is_java_new
    }

    /// Searches what handlers need to name the virtual threads of the machine, and returns whether
    /// it is new.
    fn search_carried(&mut self, pid: i32, ranges: &[AddressRange], vector: RecordKind) -> bool {
        if self.carried.is_some() || self.found.len() >= RUNTIMES_MAX {
            return false;
        }
        let Some((machine, (exports, key))) = self.java.as_ref().zip(exports_of_java(ranges))
        else {
            return false;
        };
        let memory = ProcessMemory::of(pid);
        self.carried = carried_block(machine, (exports, key.1), vector, &memory);
        self.carried.is_some()
    }

    /// Searches a Java machine that has not been found, if that is due, and returns whether it was
    /// found. A program that starts runs methods a moment after its machine is there.
    pub(super) fn search_again(
        &mut self,
        pid: i32,
        ranges: &[AddressRange],
        notices: &mut Vec<String>,
    ) -> bool {
        let began = Instant::now();
        if self.java.is_some() || self.next_search.is_some_and(|due| began < due) {
            return false;
        }
        let is_found = self.search_java(pid, ranges, notices);
        self.next_search = Some(began + SEARCH_PAUSE.max(began.elapsed() * SEARCH_SHARE));
        is_found
    }

    /// Returns the Java machine if it was found since the last call.
    pub(super) fn takes_new_java(&mut self) -> Option<Arc<JavaMachine>> {
        std::mem::take(&mut self.is_java_new).then(|| self.java.clone()).flatten()
    }

    /// Adds a runtime, or replaces one that was initialised anew. Returns whether it differs from
    /// the one that was known.
    fn note(&mut self, key: ModulePlace, runtime: Runtime, notices: &mut Vec<String>) -> bool {
        if let Some(number) = self.modules.iter().position(|(known, _)| *known == key) {
            let is_same = self.found[number].block == runtime.block;
            if !is_same {
                self.found[number] = Arc::new(runtime);
            }
            return !is_same;
        }
        if self.found.len() >= RUNTIMES_MAX {
            self.refused.insert(key);
            notices.push(format!(
                "{}: the process has more than {RUNTIMES_MAX} language runtimes, so its functions \
                 have no names",
                runtime.label
            ));
            return false;
        }
        self.modules.push((key, true));
        self.found.push(Arc::new(runtime));
        true
    }

    /// Returns the blocks for the handlers.
    pub(super) fn blocks(&self) -> Vec<RuntimeBlock> {
        // A handler takes the block of a list of frames as a promise that it may read its thread
        // pointer.
        let may_read = proc::may_read_thread_pointer();
        let found = self.found.iter().zip(&self.modules);
        let block =
            |(runtime, (_, is_mapped)): (&Arc<Runtime>, &(ModulePlace, bool))| match *is_mapped
                && may_read
            {
                true if self.has_compiled => runtime.block_with_compiled(),
                true => runtime.block,
                false => RuntimeBlock::UNLOADED,
            };
        // Behind the others, whose numbers stay. Machines are never unloaded.
        let carried = self.carried.filter(|_| may_read);
        let v8 = self.v8.iter().map(|machine| machine.block());
        found.map(block).chain(carried).chain(v8).take(RUNTIMES_MAX).collect()
    }
}
