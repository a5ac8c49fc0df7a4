//! The thread-neutral objects of a trace while it is read: by id, then with resolved references.
//!
//! # Invariants
//! - Ids are dense: a new object has the next id of its kind, and an object that is written again
//!   has equal content. So a file cannot make a table larger than itself. If frames are lost, ids
//!   may be skipped; placeholders take their slots.
//! - An inlined location's parent has a smaller id, so chains end.

use std::collections::{BTreeMap, BTreeSet};

use super::budget::Budget;
use super::object::Neutral;
use super::{
    CallTraces, FrameKind, LOST, Location, LocationId, MAX_DEPTH, MappedModule, Metadata, Method,
    MethodId, Module, ModuleId, NONE, TextId, Thread, Value,
};

/// The objects that were read so far.
#[derive(Debug, Default)]
pub(super) struct Neutrals {
    strings: ObjectTable<String>,
    modules: ObjectTable<Neutral>,
    methods: ObjectTable<Neutral>,
    locations: ObjectTable<Neutral>,
    nodes: ObjectTable<(u32, u32)>,
    depths: Vec<u32>,
    traces: ObjectTable<(u64, u32, u16)>,
    threads: ObjectTable<Neutral>,
    mappings: ObjectTable<Neutral>,
    metadata_count: u32,
    metadata: Metadata,
    may_skip_metadata: bool,
    placeholders: u64,
    added: u64,
}

/// The objects of one kind; `None` for lost objects.
#[derive(Debug)]
struct ObjectTable<T> {
    objects: Vec<Option<T>>,
    /// The number of ids that may be skipped.
    may_skip: u64,
}

impl<T> Default for ObjectTable<T> {
    fn default() -> Self {
        Self { objects: Vec::new(), may_skip: 0 }
    }
}

/// The number of objects of each kind that blocks of threads need: the largest id they refer to,
/// plus one.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Referred {
    pub(super) locations: u64,
    pub(super) threads: u64,
    /// The number of strings that samples need.
    pub(super) texts: u64,
}

/// A result with the reason why an object or a reference is invalid.
type ObjectResult<T> = Result<T, &'static str>;

const UNRESOLVED: &str = "an object refers to a missing object";
const CHANGED: &str = "an object is written again with different content";

impl<T: PartialEq> ObjectTable<T> {
    /// Adds an object. Returns the number of ids that were skipped before it.
    fn insert(&mut self, id: u32, object: T) -> ObjectResult<u64> {
        match self.objects.get_mut(id as usize) {
            Some(Some(known)) if *known != object => Err(CHANGED),
            Some(known) => {
                *known = Some(object);
                Ok(0)
            }
            None => {
                let skipped = id as usize - self.objects.len();
                if skipped as u64 > self.may_skip {
                    return Err("an object skips an id");
                }
                // Later ids may have been lost too: a known object is written again after a loss.
                self.may_skip -= skipped as u64;
                self.objects.resize_with(id as usize, || None);
                self.objects.push(Some(object));
                Ok(skipped as u64)
            }
        }
    }

    /// Extends the table to `len` objects, if lost frames may explain the missing ones. Returns the
    /// number of added placeholders.
    fn extend_to(&mut self, len: u64) -> ObjectResult<u64> {
        let missing = len.saturating_sub(self.len() as u64);
        if missing > self.may_skip {
            return Err(UNRESOLVED);
        }
        self.objects.resize_with(self.len() + missing as usize, || None);
        Ok(missing)
    }

    fn len(&self) -> usize {
        self.objects.len()
    }

    fn present(&self) -> impl Iterator<Item = &T> {
        self.objects.iter().flatten()
    }
}

impl Neutrals {
    /// Records a loss of frames: `may_skip` more ids of each kind may be skipped.
    pub(super) fn note_loss(&mut self, may_skip: u64) {
        let Self { strings, modules, methods, locations, nodes, traces, threads, mappings, .. } =
            self;
        let counts = [
            &mut strings.may_skip,
            &mut modules.may_skip,
            &mut methods.may_skip,
            &mut locations.may_skip,
            &mut nodes.may_skip,
            &mut traces.may_skip,
            &mut threads.may_skip,
            &mut mappings.may_skip,
        ];
        counts.into_iter().for_each(|count| *count = count.saturating_add(may_skip));
        self.may_skip_metadata = true;
    }

    /// Returns the number of added objects; an object that is written again counts again.
    pub(super) fn added(&self) -> u64 {
        self.added
    }

    /// Returns the number of placeholders.
    pub(super) fn placeholders(&self) -> u64 {
        self.placeholders
    }

    /// Returns the number of threads.
    pub(super) fn thread_count(&self) -> u32 {
        self.threads.len() as u32
    }

    /// Returns whether a thread is a placeholder.
    pub(super) fn is_thread_lost(&self, id: u32) -> bool {
        matches!(self.threads.objects.get(id as usize), Some(None))
    }

    /// Adds an object.
    pub(super) fn add(&mut self, object: Neutral, budget: &mut Budget) -> ObjectResult<()> {
        budget.take(size_of::<Option<Neutral>>() as u64 + object_bytes(&object))?;
        self.added += 1;
        let skipped = match object {
            Neutral::String { id, text } => self.strings.insert(id, text)?,
            Neutral::Module { id, .. } => self.modules.insert(id, object)?,
            Neutral::Method { id, .. } => self.methods.insert(id, object)?,
            Neutral::Location { id, inline_parent, .. } => {
                if inline_parent != NONE && inline_parent >= id {
                    return Err("a location is inlined into a later one");
                }
                self.locations.insert(id, object)?
            }
            Neutral::StackNode { id, parent, location } => self.add_node(id, (parent, location))?,
            Neutral::CallTrace { id, trace_id, node, end_reason } => {
                self.traces.insert(id, (trace_id, node, end_reason))?
            }
            Neutral::Thread { id, .. } => self.add_thread(id, object)?,
            Neutral::Mapping { id, .. } => self.mappings.insert(id, object)?,
            Neutral::Metadata { id, key, value } => {
                if id > self.metadata_count && !self.may_skip_metadata {
                    return Err("an object skips an id");
                }
                // They get no placeholders, but count as missing.
                self.placeholders += u64::from(id.saturating_sub(self.metadata_count));
                if id >= self.metadata_count {
                    self.metadata_count = id.saturating_add(1);
                    self.may_skip_metadata = false;
                }
                self.metadata.insert(key, value);
                0
            }
        };
        self.placeholders += skipped;
        budget.take(skipped * size_of::<Option<Neutral>>() as u64)
    }

    fn add_thread(&mut self, id: u32, object: Neutral) -> ObjectResult<u64> {
        match (self.threads.objects.get_mut(id as usize), &object) {
            (
                Some(Some(Neutral::Thread { tid: old_tid, pid: old_pid, .. })),
                Neutral::Thread { tid, pid, .. },
            ) if (&*old_tid, &*old_pid) != (tid, pid) => {
                Err("a thread is written again with different ids")
            }
            (Some(known), _) => {
                *known = Some(object);
                Ok(0)
            }
            (None, _) => self.threads.insert(id, object),
        }
    }

    fn add_node(&mut self, id: u32, node: (u32, u32)) -> ObjectResult<u64> {
        let depth = match node.0 {
            NONE => 0,
            parent if parent < id => self.depths.get(parent as usize).map_or(0, |depth| depth + 1),
            _ => return Err("a stack node is the child of a later one"),
        };
        if depth as usize >= MAX_DEPTH {
            return Err("a call trace is too deep");
        }
        let skipped = self.nodes.insert(id, node)?;
        self.depths.resize(self.nodes.len(), 0);
        self.depths[id as usize] = depth;
        Ok(skipped)
    }

    /// Adds a placeholder for each lost object that is referred to, and fails if an object is
    /// missing without a loss. Nothing may be added after this.
    pub(super) fn settle(&mut self, referred: Referred, budget: &mut Budget) -> ObjectResult<()> {
        let Referred { locations, threads, texts } = referred;
        let after = |id: u32| if id == NONE { 0 } else { u64::from(id) + 1 };
        let mut needed = [0u64; 5];
        let [strings, modules, methods, location, nodes] = &mut needed;
        let need = |count: &mut u64, id: u32| *count = (*count).max(after(id));
        let objects = self.modules.present().chain(self.methods.present());
        let objects = objects.chain(self.locations.present()).chain(self.threads.present());
        for object in objects.chain(self.mappings.present()) {
            match *object {
                Neutral::Module { path, .. } => need(strings, path),
                Neutral::Method { module, name, .. } => {
                    need(modules, module);
                    need(strings, name);
                }
                Neutral::Location { method, file, .. } => {
                    need(methods, method);
                    need(strings, file);
                }
                Neutral::Thread { name, runtime_name, .. } => {
                    need(strings, name);
                    need(strings, runtime_name.wrapping_sub(1));
                }
                Neutral::Mapping { module, .. } => need(modules, module),
                _ => {}
            }
        }
        self.nodes.present().for_each(|(_, id)| need(location, *id));
        self.traces.present().for_each(|(_, id, _)| need(nodes, *id));
        let [strings, modules, methods, location, nodes] = needed;
        let mut made = self.strings.extend_to(strings.max(texts))?;
        made += self.modules.extend_to(modules)?;
        made += self.nodes.extend_to(nodes)?;
        let missing = "a trace point refers to a missing location";
        made += self.locations.extend_to(location.max(locations)).map_err(|_| missing)?;
        made += self.methods.extend_to(methods)?;
        let missing = "a block belongs to a missing thread";
        made += self.threads.extend_to(threads).map_err(|_| missing)?;
        self.placeholders += made;
        // The objects that the placeholders themselves refer to.
        if self.nodes.objects.contains(&None) && !self.locations.objects.contains(&None) {
            self.locations.objects.push(None);
        }
        if self.locations.objects.contains(&None) && !self.methods.objects.contains(&None) {
            self.methods.objects.push(None);
        }
        budget.take(made * size_of::<Option<Neutral>>() as u64)
    }

    pub(super) fn take_metadata(&mut self) -> Metadata {
        std::mem::take(&mut self.metadata)
    }

    pub(super) fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Returns the ids of the call traces, in the order of writing.
    pub(super) fn trace_ids(&self) -> impl Iterator<Item = u64> {
        self.traces.present().map(|(trace_id, ..)| *trace_id)
    }

    pub(super) fn modules(&self, budget: &mut Budget) -> ObjectResult<Vec<Module>> {
        let resolve = |object: &Option<Neutral>| match object {
            Some(Neutral::Module { path, build_id, .. }) => {
                budget.take((size_of::<Module>() + build_id.len()) as u64)?;
                Ok(Module { path: self.string(*path, budget)?, build_id: build_id.clone() })
            }
            _ => Ok(Module { path: LOST.into(), build_id: Vec::new() }),
        };
        self.modules.objects.iter().map(resolve).collect()
    }

    pub(super) fn methods(&self, budget: &mut Budget) -> ObjectResult<Vec<Method>> {
        let resolve = |object: &Option<Neutral>| match object {
            Some(Neutral::Method { module, start_svma, name, line, column, .. }) => {
                budget.take(size_of::<Method>() as u64)?;
                Ok(Method {
                    module: reference(*module, self.modules.len())?.map(ModuleId),
                    name: self.string(*name, budget)?,
                    start_svma: *start_svma,
                    line: *line,
                    column: *column,
                })
            }
            _ => Ok(Method::named(LOST)),
        };
        self.methods.objects.iter().map(resolve).collect()
    }

    pub(super) fn locations(&self, budget: &mut Budget) -> ObjectResult<Vec<Location>> {
        let lost = self.methods.objects.iter().position(Option::is_none);
        let lost = MethodId(lost.unwrap_or(0) as u32);
        let resolve = |object: &Option<Neutral>| match object {
            Some(Neutral::Location {
                method,
                svma,
                file,
                line,
                column,
                inline_parent,
                frame_kind,
                ..
            }) => {
                budget.take(size_of::<Location>() as u64)?;
                let method = reference(*method, self.methods.len())?;
                Ok(Location {
                    method: method.map(MethodId).ok_or(UNRESOLVED)?,
                    svma: *svma,
                    file: reference(*file, self.strings.len())?
                        .map(|file| self.string(file, budget))
                        .transpose()?,
                    line: *line,
                    column: *column,
                    inline_parent: reference(*inline_parent, self.locations.len())?.map(LocationId),
                    kind: FrameKind::from_number(*frame_kind),
                })
            }
            _ => Ok(Location::at(lost, 0)),
        };
        self.locations.objects.iter().map(resolve).collect()
    }

    pub(super) fn call_traces(&self) -> ObjectResult<CallTraces> {
        let lost = self.locations.objects.iter().position(Option::is_none);
        let node = |node: &Option<(u32, u32)>| {
            let (parent, location) = node.unwrap_or((NONE, lost.unwrap_or(0) as u32));
            let location = reference(location, self.locations.len())?.ok_or(UNRESOLVED)?;
            Ok((parent, LocationId(location)))
        };
        let nodes = self.nodes.objects.iter().map(node).collect::<ObjectResult<_>>()?;
        CallTraces::new(nodes, self.traces.present().copied()).ok_or(UNRESOLVED)
    }

    pub(super) fn threads(&self, budget: &mut Budget) -> ObjectResult<Vec<Thread>> {
        let resolve = |object: &Option<Neutral>| match object {
            Some(Neutral::Thread { tid, pid, name, first_seen, ended, runtime_name, .. }) => {
                budget.take(size_of::<Thread>() as u64)?;
                let name = self.string(*name, budget)?;
                let in_runtime = runtime_name.checked_sub(1);
                let runtime_name = in_runtime.map(|id| self.string(id, budget)).transpose()?;
                let (first_seen_ns, ended_ns) =
                    (*first_seen, (*ended != u64::MAX).then_some(*ended));
                Ok(Thread { pid: *pid, tid: *tid, name, runtime_name, first_seen_ns, ended_ns })
            }
            _ => Ok(Thread { name: LOST.into(), ..Thread::default() }),
        };
        self.threads.objects.iter().map(resolve).collect()
    }

    pub(super) fn mapped(&self) -> ObjectResult<Vec<MappedModule>> {
        let resolve = |object: &Neutral| match *object {
            Neutral::Mapping { pid, start, end, file_offset, module, seen, .. } => {
                let module = reference(module, self.modules.len())?.ok_or(UNRESOLVED)?;
                Ok(MappedModule {
                    pid,
                    start,
                    end,
                    file_offset,
                    module: ModuleId(module),
                    first_seen_ns: seen,
                })
            }
            _ => Err(UNRESOLVED),
        };
        self.mappings.present().map(resolve).collect()
    }

    /// Returns all texts by id.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        self.strings.objects.iter().map(|text| text.as_deref().unwrap_or(LOST))
    }

    /// Returns the texts with these ids.
    pub(super) fn texts_of(
        &self,
        ids: BTreeSet<TextId>,
        budget: &mut Budget,
    ) -> ObjectResult<BTreeMap<TextId, String>> {
        ids.into_iter().map(|id| Ok((id, self.string(id.0, budget)?))).collect()
    }

    fn string(&self, id: u32, budget: &mut Budget) -> ObjectResult<String> {
        let text = self.strings.objects.get(id as usize).ok_or(UNRESOLVED)?;
        let text = text.as_deref().unwrap_or(LOST);
        budget.take(text.len() as u64)?;
        Ok(text.into())
    }
}

/// Returns the size of an object beyond its fixed part.
pub(super) fn object_bytes(object: &Neutral) -> u64 {
    match object {
        Neutral::String { text, .. } => text.len() as u64,
        Neutral::Module { build_id, .. } => build_id.len() as u64,
        Neutral::Metadata { key, value, .. } => key.len() as u64 + value_bytes(value),
        _ => 0,
    }
}

/// Returns the size of a value. The recursion is bounded by the nesting limit.
fn value_bytes(value: &Value) -> u64 {
    size_of::<Value>() as u64
        + match value {
            Value::Unsigned(_) => 0,
            Value::Text(text) => text.len() as u64,
            Value::List(values) => values.iter().map(value_bytes).sum(),
        }
}

/// Returns an id if it is in its table, or `None` for no id.
fn reference(id: u32, count: usize) -> ObjectResult<Option<u32>> {
    match id {
        NONE => Ok(None),
        id if (id as usize) < count => Ok(Some(id)),
        _ => Err(UNRESOLVED),
    }
}

#[cfg(test)]
mod tests;
