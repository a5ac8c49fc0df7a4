//! The thread-neutral objects of a trace while it is read: by id, then with references resolved.
//!
//! # Invariants
//! - Ids are dense: a new object has the next id of its kind, one that is written again has equal
//!   content. So a file cannot make a table larger than itself. Where frames are lost, ids may be
//!   passed; placeholders keep their places.
//! - An inlined location's parent has a smaller id, so that chains end.

use std::collections::{BTreeMap, BTreeSet};

use super::budget::Budget;
use super::object::Neutral;
use super::{
    CallTraces, LOST, Location, LocationId, MAX_DEPTH, MappedModule, Metadata, Method, MethodId,
    Module, ModuleId, NONE, TextId, Thread, Value,
};

/// What was read so far.
#[derive(Debug, Default)]
pub(super) struct Neutrals {
    strings: Table<String>,
    modules: Table<Neutral>,
    methods: Table<Neutral>,
    locations: Table<Neutral>,
    nodes: Table<(u32, u32)>,
    depths: Vec<u32>,
    traces: Table<(u64, u32, u16)>,
    threads: Table<Neutral>,
    mappings: Table<Neutral>,
    metadata_count: u32,
    metadata: Metadata,
    may_skip_metadata: bool,
    placeholders: u64,
    added: u64,
}

/// The objects of a kind; `None` for those that are lost.
#[derive(Debug)]
struct Table<T> {
    objects: Vec<Option<T>>,
    /// How many ids may be passed.
    may_skip: u64,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { objects: Vec::new(), may_skip: 0 }
    }
}

/// How many objects of a kind blocks of threads refer to: one more than the largest id.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Referred {
    pub(super) locations: u64,
    pub(super) threads: u64,
    /// Of the strings, by samples.
    pub(super) texts: u64,
}

/// What is wrong with an object or a reference.
type Checked<T> = Result<T, &'static str>;

const UNRESOLVED: &str = "an object refers to one that does not exist";
const CHANGED: &str = "an object is written again with other content";

impl<T: PartialEq> Table<T> {
    /// Adds an object; gives how many ids before it were passed.
    fn insert(&mut self, id: u32, object: T) -> Checked<u64> {
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
                // What follows may have been lost too: an object with a known id is written again.
                self.may_skip -= skipped as u64;
                self.objects.resize_with(id as usize, || None);
                self.objects.push(Some(object));
                Ok(skipped as u64)
            }
        }
    }

    /// Makes sure that there are `len` objects, if frames that are lost may have had them.
    fn reach(&mut self, len: u64) -> Checked<u64> {
        let lacking = len.saturating_sub(self.len() as u64);
        if lacking > self.may_skip {
            return Err(UNRESOLVED);
        }
        self.objects.resize_with(self.len() + lacking as usize, || None);
        Ok(lacking)
    }

    fn len(&self) -> usize {
        self.objects.len()
    }

    fn there(&self) -> impl Iterator<Item = &T> {
        self.objects.iter().flatten()
    }
}

impl Neutrals {
    /// Frames are lost: so many ids of each kind may be passed from now on.
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

    /// How many objects there were, one that is written again counted again.
    pub(super) fn added(&self) -> u64 {
        self.added
    }

    /// How many objects are placeholders.
    pub(super) fn placeholders(&self) -> u64 {
        self.placeholders
    }

    /// How many threads there are.
    pub(super) fn thread_count(&self) -> u32 {
        self.threads.len() as u32
    }

    /// The place of a thread is kept by a placeholder.
    pub(super) fn is_thread_lost(&self, id: u32) -> bool {
        matches!(self.threads.objects.get(id as usize), Some(None))
    }

    /// Takes an object in.
    pub(super) fn add(&mut self, object: Neutral, budget: &mut Budget) -> Checked<()> {
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
                // Nothing keeps their places, but they are missed.
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

    fn add_thread(&mut self, id: u32, object: Neutral) -> Checked<u64> {
        match (self.threads.objects.get_mut(id as usize), &object) {
            (
                Some(Some(Neutral::Thread { tid: old_tid, pid: old_pid, .. })),
                Neutral::Thread { tid, pid, .. },
            ) if (&*old_tid, &*old_pid) != (tid, pid) => {
                Err("a thread is written again as another one")
            }
            (Some(known), _) => {
                *known = Some(object);
                Ok(0)
            }
            (None, _) => self.threads.insert(id, object),
        }
    }

    fn add_node(&mut self, id: u32, node: (u32, u32)) -> Checked<u64> {
        let depth = match node.0 {
            NONE => 0,
            parent if parent < id => self.depths.get(parent as usize).map_or(0, |depth| depth + 1),
            _ => return Err("a stack node lies under a later one"),
        };
        if depth as usize >= MAX_DEPTH {
            return Err("a call trace is too deep");
        }
        let skipped = self.nodes.insert(id, node)?;
        self.depths.resize(self.nodes.len(), 0);
        self.depths[id as usize] = depth;
        Ok(skipped)
    }

    /// Makes all that is referred to be there, as a placeholder if it is lost. Nothing may be added
    /// after this.
    pub(super) fn settle(&mut self, referred: Referred, budget: &mut Budget) -> Checked<()> {
        let Referred { locations, threads, texts } = referred;
        let after = |id: u32| if id == NONE { 0 } else { u64::from(id) + 1 };
        let mut needed = [0u64; 5];
        let [strings, modules, methods, location, nodes] = &mut needed;
        let need = |count: &mut u64, id: u32| *count = (*count).max(after(id));
        let objects = self.modules.there().chain(self.methods.there());
        let objects = objects.chain(self.locations.there()).chain(self.threads.there());
        for object in objects.chain(self.mappings.there()) {
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
                Neutral::Thread { name, .. } => need(strings, name),
                Neutral::Mapping { module, .. } => need(modules, module),
                _ => {}
            }
        }
        self.nodes.there().for_each(|(_, id)| need(location, *id));
        self.traces.there().for_each(|(_, id, _)| need(nodes, *id));
        let [strings, modules, methods, location, nodes] = needed;
        let mut made = self.strings.reach(strings.max(texts))?;
        made += self.modules.reach(modules)?;
        made += self.nodes.reach(nodes)?;
        let missing = "a trace point refers to a location that does not exist";
        made += self.locations.reach(location.max(locations)).map_err(|_| missing)?;
        made += self.methods.reach(methods)?;
        let missing = "a block belongs to a thread that does not exist";
        made += self.threads.reach(threads).map_err(|_| missing)?;
        self.placeholders += made;
        // What the placeholders themselves refer to.
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

    /// The ids of the call traces, in the order in which they were written.
    pub(super) fn trace_ids(&self) -> impl Iterator<Item = u64> {
        self.traces.there().map(|(trace_id, ..)| *trace_id)
    }

    pub(super) fn modules(&self, budget: &mut Budget) -> Checked<Vec<Module>> {
        let resolve = |object: &Option<Neutral>| match object {
            Some(Neutral::Module { path, build_id, .. }) => {
                budget.take((size_of::<Module>() + build_id.len()) as u64)?;
                Ok(Module { path: self.string(*path, budget)?, build_id: build_id.clone() })
            }
            _ => Ok(Module { path: LOST.into(), build_id: Vec::new() }),
        };
        self.modules.objects.iter().map(resolve).collect()
    }

    pub(super) fn methods(&self, budget: &mut Budget) -> Checked<Vec<Method>> {
        let resolve = |object: &Option<Neutral>| match object {
            Some(Neutral::Method { module, start_svma, name, .. }) => {
                budget.take(size_of::<Method>() as u64)?;
                Ok(Method {
                    module: reference(*module, self.modules.len())?.map(ModuleId),
                    name: self.string(*name, budget)?,
                    start_svma: *start_svma,
                })
            }
            _ => Ok(Method { module: None, name: LOST.into(), start_svma: 0 }),
        };
        self.methods.objects.iter().map(resolve).collect()
    }

    pub(super) fn locations(&self, budget: &mut Budget) -> Checked<Vec<Location>> {
        let lost = self.methods.objects.iter().position(Option::is_none);
        let lost = MethodId(lost.unwrap_or(0) as u32);
        let resolve = |object: &Option<Neutral>| match object {
            Some(Neutral::Location { method, svma, file, line, inline_parent, .. }) => {
                budget.take(size_of::<Location>() as u64)?;
                let method = reference(*method, self.methods.len())?;
                Ok(Location {
                    method: method.map(MethodId).ok_or(UNRESOLVED)?,
                    svma: *svma,
                    file: reference(*file, self.strings.len())?
                        .map(|file| self.string(file, budget))
                        .transpose()?,
                    line: *line,
                    inline_parent: reference(*inline_parent, self.locations.len())?.map(LocationId),
                })
            }
            _ => Ok(Location { method: lost, svma: 0, file: None, line: 0, inline_parent: None }),
        };
        self.locations.objects.iter().map(resolve).collect()
    }

    pub(super) fn call_traces(&self) -> Checked<CallTraces> {
        let lost = self.locations.objects.iter().position(Option::is_none);
        let node = |node: &Option<(u32, u32)>| {
            let (parent, location) = node.unwrap_or((NONE, lost.unwrap_or(0) as u32));
            let location = reference(location, self.locations.len())?.ok_or(UNRESOLVED)?;
            Ok((parent, LocationId(location)))
        };
        let nodes = self.nodes.objects.iter().map(node).collect::<Checked<_>>()?;
        CallTraces::new(nodes, self.traces.there().copied()).ok_or(UNRESOLVED)
    }

    pub(super) fn threads(&self, budget: &mut Budget) -> Checked<Vec<Thread>> {
        let resolve = |object: &Option<Neutral>| match object {
            Some(Neutral::Thread { tid, pid, name, first_seen, ended, .. }) => {
                budget.take(size_of::<Thread>() as u64)?;
                Ok(Thread {
                    pid: *pid,
                    tid: *tid,
                    name: self.string(*name, budget)?,
                    first_seen_ns: *first_seen,
                    ended_ns: (*ended != u64::MAX).then_some(*ended),
                })
            }
            _ => Ok(Thread { name: LOST.into(), ..Thread::default() }),
        };
        self.threads.objects.iter().map(resolve).collect()
    }

    pub(super) fn mapped(&self) -> Checked<Vec<MappedModule>> {
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
        self.mappings.there().map(resolve).collect()
    }

    /// All texts, by id.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        self.strings.objects.iter().map(|text| text.as_deref().unwrap_or(LOST))
    }

    /// The texts with these ids.
    pub(super) fn texts_of(
        &self,
        ids: BTreeSet<TextId>,
        budget: &mut Budget,
    ) -> Checked<BTreeMap<TextId, String>> {
        ids.into_iter().map(|id| Ok((id, self.string(id.0, budget)?))).collect()
    }

    fn string(&self, id: u32, budget: &mut Budget) -> Checked<String> {
        let text = self.strings.objects.get(id as usize).ok_or(UNRESOLVED)?;
        let text = text.as_deref().unwrap_or(LOST);
        budget.take(text.len() as u64)?;
        Ok(text.into())
    }
}

/// What an object takes beyond its fixed part.
fn object_bytes(object: &Neutral) -> u64 {
    match object {
        Neutral::String { text, .. } => text.len() as u64,
        Neutral::Module { build_id, .. } => build_id.len() as u64,
        Neutral::Metadata { key, value, .. } => key.len() as u64 + value_bytes(value),
        _ => 0,
    }
}

/// What a value takes; lists nest only a little.
fn value_bytes(value: &Value) -> u64 {
    size_of::<Value>() as u64
        + match value {
            Value::Unsigned(_) => 0,
            Value::Text(text) => text.len() as u64,
            Value::List(values) => values.iter().map(value_bytes).sum(),
        }
}

/// An id that is in its table, or none.
fn reference(id: u32, count: usize) -> Checked<Option<u32>> {
    match id {
        NONE => Ok(None),
        id if (id as usize) < count => Ok(Some(id)),
        _ => Err(UNRESOLVED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::LoadLimits;

    fn free() -> Budget {
        Budget::new(LoadLimits::default())
    }

    fn added(objects: &[Neutral]) -> Checked<Neutrals> {
        let mut neutrals = Neutrals::default();
        objects.iter().try_for_each(|object| neutrals.add(object.clone(), &mut free()))?;
        Ok(neutrals)
    }

    fn string(id: u32, text: &str) -> Neutral {
        Neutral::String { id, text: text.into() }
    }

    fn method(id: u32, name: u32) -> Neutral {
        Neutral::Method { id, module: NONE, start_svma: 1, name }
    }

    fn location(id: u32, inline_parent: u32) -> Neutral {
        Neutral::Location { id, method: 0, svma: 2, file: NONE, line: 3, inline_parent }
    }

    fn thread(tid: u32, name: u32) -> Neutral {
        Neutral::Thread { id: 0, tid, pid: 1, name, first_seen: 0, ended: u64::MAX }
    }

    #[test]
    fn duplicates_must_be_equal_and_ids_dense() {
        assert!(added(&[string(0, "a"), string(0, "a"), string(1, "a")]).is_ok());
        assert!(added(&[string(0, "a"), string(0, "b")]).is_err());
        assert!(added(&[string(1, "a")]).is_err());
        assert!(added(&[method(0, 0), method(0, 1)]).is_err());
        let metadata =
            |id| Neutral::Metadata { id, key: "k".into(), value: super::super::Value::Unsigned(1) };
        assert!(added(&[metadata(0), metadata(1), metadata(1)]).is_ok());
        assert!(added(&[metadata(1)]).is_err());
    }

    #[test]
    fn a_thread_may_change_its_name_only() {
        let renamed = [string(0, "a"), string(1, "b"), thread(7, 0), thread(7, 1)];
        assert_eq!(added(&renamed).unwrap().threads(&mut free()).unwrap()[0].name, "b");
        assert!(added(&[thread(7, 0), thread(8, 0)]).is_err());
    }

    #[test]
    fn references_must_lead_somewhere_and_inlining_must_end() {
        assert!(added(&[method(0, 0)]).unwrap().methods(&mut free()).is_err());
        assert!(added(&[method(0, 0), string(0, "later")]).unwrap().methods(&mut free()).is_ok());
        assert!(added(&[location(0, NONE)]).unwrap().locations(&mut free()).is_err());
        assert!(added(&[location(0, 0)]).is_err());
        assert!(added(&[location(0, 1)]).is_err());
        let chain = [method(0, 0), location(0, NONE), location(1, 0)];
        assert_eq!(added(&chain).unwrap().locations(&mut free()).unwrap().len(), 2);
    }
}
