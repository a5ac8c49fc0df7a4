//! The thread-neutral objects of a trace while it is read: by id, then with references resolved.
//!
//! # Invariants
//! - Ids are dense: a new object has the next id of its kind, one that is written again has equal
//!   content. So a file cannot make a table larger than itself.
//! - An inlined location's parent has a smaller id, so that chains end.

use super::object::Neutral;
use super::{
    CallTraces, Location, LocationId, MAX_DEPTH, MappedModule, Metadata, Method, MethodId, Module,
    ModuleId, NONE, Thread,
};

/// What was read so far.
#[derive(Debug, Default)]
pub(super) struct Neutrals {
    strings: Vec<String>,
    modules: Vec<Neutral>,
    methods: Vec<Neutral>,
    locations: Vec<Neutral>,
    nodes: Vec<(u32, u32)>,
    depths: Vec<u32>,
    traces: Vec<(u64, u32, u16)>,
    threads: Vec<Neutral>,
    mappings: Vec<Neutral>,
    metadata_count: u32,
    metadata: Metadata,
}

/// What is wrong with an object or a reference.
type Checked<T> = Result<T, &'static str>;

const UNRESOLVED: &str = "an object refers to one that does not exist";

impl Neutrals {
    /// Takes an object in.
    pub(super) fn add(&mut self, object: Neutral) -> Checked<()> {
        match object {
            Neutral::String { id, text } => insert(&mut self.strings, id, text),
            Neutral::Module { id, .. } => insert(&mut self.modules, id, object),
            Neutral::Method { id, .. } => insert(&mut self.methods, id, object),
            Neutral::Location { id, inline_parent, .. } => {
                if inline_parent != NONE && inline_parent >= id {
                    return Err("a location is inlined into a later one");
                }
                insert(&mut self.locations, id, object)
            }
            Neutral::StackNode { id, parent, location } => self.add_node(id, (parent, location)),
            Neutral::CallTrace { id, trace_id, node, end_reason } => {
                insert(&mut self.traces, id, (trace_id, node, end_reason))
            }
            Neutral::Thread { id, tid, pid, .. } => match self.threads.get_mut(id as usize) {
                Some(Neutral::Thread { tid: old_tid, pid: old_pid, .. })
                    if (*old_tid, *old_pid) != (tid, pid) =>
                {
                    Err("a thread is written again as another one")
                }
                Some(known) => {
                    *known = object;
                    Ok(())
                }
                None => insert(&mut self.threads, id, object),
            },
            Neutral::Mapping { id, .. } => insert(&mut self.mappings, id, object),
            Neutral::Metadata { id, key, value } => {
                if id > self.metadata_count {
                    return Err("an object skips an id");
                }
                self.metadata_count += u32::from(id == self.metadata_count);
                self.metadata.insert(key, value);
                Ok(())
            }
        }
    }

    fn add_node(&mut self, id: u32, node: (u32, u32)) -> Checked<()> {
        let depth = match node.0 {
            NONE => 0,
            parent if parent < id => self.depths.get(parent as usize).map_or(0, |depth| depth + 1),
            _ => return Err("a stack node lies under a later one"),
        };
        if depth as usize >= MAX_DEPTH {
            return Err("a call trace is too deep");
        }
        insert(&mut self.nodes, id, node)?;
        self.depths.resize(self.nodes.len().max(self.depths.len()), depth);
        Ok(())
    }

    pub(super) fn metadata(&mut self) -> Metadata {
        std::mem::take(&mut self.metadata)
    }

    pub(super) fn modules(&self) -> Checked<Vec<Module>> {
        let resolve = |object: &Neutral| match object {
            Neutral::Module { path, build_id, .. } => {
                Ok(Module { path: self.string(*path)?, build_id: build_id.clone() })
            }
            _ => Err(UNRESOLVED),
        };
        self.modules.iter().map(resolve).collect()
    }

    pub(super) fn methods(&self) -> Checked<Vec<Method>> {
        let resolve = |object: &Neutral| match object {
            Neutral::Method { module, start_svma, name, .. } => Ok(Method {
                module: reference(*module, self.modules.len())?.map(ModuleId),
                name: self.string(*name)?,
                start_svma: *start_svma,
            }),
            _ => Err(UNRESOLVED),
        };
        self.methods.iter().map(resolve).collect()
    }

    pub(super) fn locations(&self) -> Checked<Vec<Location>> {
        let resolve = |object: &Neutral| match object {
            Neutral::Location { method, svma, file, line, inline_parent, .. } => Ok(Location {
                method: reference(*method, self.methods.len())?.map(MethodId).ok_or(UNRESOLVED)?,
                svma: *svma,
                file: reference(*file, self.strings.len())?
                    .map(|file| self.string(file))
                    .transpose()?,
                line: *line,
                inline_parent: reference(*inline_parent, self.locations.len())?.map(LocationId),
            }),
            _ => Err(UNRESOLVED),
        };
        self.locations.iter().map(resolve).collect()
    }

    pub(super) fn call_traces(&self) -> Checked<CallTraces> {
        let node = |(parent, location): &(u32, u32)| {
            let location = reference(*location, self.locations.len())?.ok_or(UNRESOLVED)?;
            Ok((*parent, LocationId(location)))
        };
        let nodes = self.nodes.iter().map(node).collect::<Checked<_>>()?;
        CallTraces::new(nodes, self.traces.iter().copied()).ok_or(UNRESOLVED)
    }

    pub(super) fn threads(&self) -> Checked<Vec<Thread>> {
        let resolve = |object: &Neutral| match object {
            Neutral::Thread { tid, pid, name, first_seen, ended, .. } => Ok(Thread {
                pid: *pid,
                tid: *tid,
                name: self.string(*name)?,
                first_seen_ns: *first_seen,
                ended_ns: (*ended != u64::MAX).then_some(*ended),
            }),
            _ => Err(UNRESOLVED),
        };
        self.threads.iter().map(resolve).collect()
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
        self.mappings.iter().map(resolve).collect()
    }

    fn string(&self, id: u32) -> Checked<String> {
        self.strings.get(id as usize).cloned().ok_or(UNRESOLVED)
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

fn insert<T: PartialEq>(table: &mut Vec<T>, id: u32, object: T) -> Checked<()> {
    match table.get(id as usize) {
        Some(known) if *known == object => Ok(()),
        Some(_) => Err("an object is written again with other content"),
        None if id as usize == table.len() => {
            table.push(object);
            Ok(())
        }
        None => Err("an object skips an id"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(objects: &[Neutral]) -> Checked<Neutrals> {
        let mut neutrals = Neutrals::default();
        objects.iter().try_for_each(|object| neutrals.add(object.clone()))?;
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
        assert_eq!(added(&renamed).unwrap().threads().unwrap()[0].name, "b");
        assert!(added(&[thread(7, 0), thread(8, 0)]).is_err());
    }

    #[test]
    fn references_must_lead_somewhere_and_inlining_must_end() {
        assert!(added(&[method(0, 0)]).unwrap().methods().is_err());
        assert!(added(&[method(0, 0), string(0, "later")]).unwrap().methods().is_ok());
        assert!(added(&[location(0, NONE)]).unwrap().locations().is_err());
        assert!(added(&[location(0, 0)]).is_err());
        assert!(added(&[location(0, 1)]).is_err());
        let chain = [method(0, 0), location(0, NONE), location(1, 0)];
        assert_eq!(added(&chain).unwrap().locations().unwrap().len(), 2);
    }
}
