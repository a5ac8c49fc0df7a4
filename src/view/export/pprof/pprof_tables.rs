//! The tables of a pprof profile. They contain each text, function, location and module once.

use std::collections::HashMap;

use super::proto::{Function, Line, Location, Mapping, Profile as Made};
use crate::trace::{self, FrameKind, Language, LocationId, MethodId, ModuleId};
use crate::view::export::shown_path;
use crate::view::profile::call_tree::StackStep;
use crate::view::profile::thread_profile::Profile;
use crate::view::text::escape::escaped;

/// The name of functions that the trace does not define.
const UNKNOWN: &str = "[unknown]";

/// The key of a row of the location table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum PprofLocationKey {
    /// An instruction: its innermost function, and the outermost function that it is inlined into.
    Code(LocationId, LocationId),
    /// A placeholder, and the index of its name.
    Mark(i64),
}

/// What distinguishes locations.
#[derive(Debug, PartialEq, Eq, Hash)]
struct PprofContent {
    language: Option<Language>,
    /// The mapping and the address in it.
    address: (u64, u64),
    /// The functions and their lines.
    lines: Vec<(u64, i64)>,
}

/// Fills the tables.
pub(super) struct PprofTables<'a> {
    profile: &'a Profile,
    made: Made,
    strings: HashMap<String, i64>,
    /// The functions by method, and by file or name. Placeholders have no method.
    functions: HashMap<(Option<MethodId>, i64), u64>,
    locations: HashMap<PprofLocationKey, u64>,
    /// The locations by content: kinds of frames that this format does not have may be all that
    /// distinguishes two.
    contents: HashMap<PprofContent, u64>,
    mappings: HashMap<ModuleId, u64>,
    /// The kind of each location's code, if it is known.
    kinds: Vec<Option<FrameKind>>,
}

impl<'a> PprofTables<'a> {
    pub(super) fn new(profile: &'a Profile) -> Self {
        let mut tables = Self {
            profile,
            made: Made::default(),
            strings: HashMap::new(),
            functions: HashMap::new(),
            locations: HashMap::new(),
            contents: HashMap::new(),
            mappings: HashMap::new(),
            kinds: Vec::new(),
        };
        tables.string("");
        tables
    }

    /// Returns the tables, and the kind of each location's code if it is known.
    pub(super) fn finish(self) -> (Made, Vec<Option<FrameKind>>) {
        (self.made, self.kinds)
    }

    /// Returns the index of a text.
    pub(super) fn string(&mut self, text: &str) -> i64 {
        if let Some(index) = self.strings.get(text) {
            return *index;
        }
        let index = self.made.string_table.len() as i64;
        self.made.string_table.push(text.to_owned());
        self.strings.insert(text.to_owned(), index);
        index
    }

    /// Returns the locations that `location` is inlined into, innermost first, as far as they are
    /// the next steps of `outer`.
    pub(super) fn inlined(
        &self,
        location: LocationId,
        outer: &[StackStep<LocationId>],
    ) -> Vec<LocationId> {
        let mut inlined = Vec::new();
        let mut at = location;
        for step in outer {
            let parent = self
                .profile
                .locations
                .get(at.0 as usize)
                .and_then(|location| location.inline_parent);
            match (parent, step) {
                (Some(parent), StackStep::Frame(next)) if parent == *next => {
                    inlined.push(parent);
                    at = parent;
                }
                _ => break,
            }
        }
        inlined
    }

    /// Returns the location of an instruction whose inlined functions these are, innermost first.
    pub(super) fn code(&mut self, location: LocationId, inlined: &[LocationId]) -> u64 {
        let outermost = inlined.last().copied().unwrap_or(location);
        let key = PprofLocationKey::Code(location, outermost);
        if let Some(id) = self.locations.get(&key) {
            return *id;
        }
        let all = [location].into_iter().chain(inlined.iter().copied());
        let line = all.map(|id| self.line(id)).collect();
        let (mut mapping_id, mut address) = (0, 0);
        let profile = self.profile;
        let physical = profile.locations.get(outermost.0 as usize);
        // A module without native code is a file of source, which was not mapped.
        let is_native = |location: &&trace::Location| {
            location.svma != 0 || !location.kind.language().is_managed()
        };
        if let Some(physical) = physical.filter(is_native) {
            address = physical.svma;
            let module = profile.method(physical.method).and_then(|method| method.module);
            mapping_id =
                module.map_or(0, |module| self.mapping(module, address, !inlined.is_empty()));
        }
        let kind = physical.and_then(|location| self.known_kind(location));
        self.add(key, kind, Location { id: 0, mapping_id, address, line })
    }

    /// Returns the location of a placeholder.
    pub(super) fn mark(&mut self, name: &str) -> u64 {
        let name = self.string(name);
        let key = PprofLocationKey::Mark(name);
        if let Some(id) = self.locations.get(&key) {
            return *id;
        }
        let function_id = self.function(None, name, 0);
        let line = vec![Line { function_id, line: 0 }];
        self.add(key, None, Location { line, ..Location::default() })
    }

    /// Returns the kind of code at a location. Of code that a runtime generates, a trace without
    /// kinds says only that it is not of a file.
    fn known_kind(&self, location: &trace::Location) -> Option<FrameKind> {
        let module = self.profile.method(location.method).and_then(|method| method.module);
        let path = module.and_then(|id| self.profile.modules.get(id.0 as usize)).map(|it| &it.path);
        let is_of_file = path.is_some_and(|path| path.starts_with('/') || path == "[vdso]");
        (location.kind != FrameKind::Native || is_of_file).then_some(location.kind)
    }

    fn add(&mut self, key: PprofLocationKey, kind: Option<FrameKind>, location: Location) -> u64 {
        let content = PprofContent {
            language: kind.map(FrameKind::language),
            address: (location.mapping_id, location.address),
            lines: location.line.iter().map(|line| (line.function_id, line.line)).collect(),
        };
        let locations = &mut self.made.location;
        let id = *self.contents.entry(content).or_insert_with(|| {
            let id = locations.len() as u64 + 1;
            locations.push(Location { id, ..location });
            self.kinds.push(kind);
            id
        });
        self.locations.insert(key, id);
        id
    }

    fn line(&mut self, id: LocationId) -> Line {
        let Some(location) = self.profile.locations.get(id.0 as usize) else {
            let name = self.string(UNKNOWN);
            return Line { function_id: self.function(None, name, 0), line: 0 };
        };
        let method = self.profile.method(location.method);
        let name = method.map_or(UNKNOWN, |method| &method.name);
        let name = self.string(&escaped(name));
        let file = self.string(&escaped(location.file.as_deref().unwrap_or("")));
        let function_id = self.function(Some(location.method), name, file);
        Line { function_id, line: location.line.into() }
    }

    fn function(&mut self, method: Option<MethodId>, name: i64, filename: i64) -> u64 {
        let method_line = method.and_then(|id| self.profile.method(id)).map_or(0, |it| it.line);
        let start_line = i64::from(method_line);
        // A placeholder is identified by its name.
        let key = (method, if method.is_some() { filename } else { name });
        let functions = &mut self.made.function;
        *self.functions.entry(key).or_insert_with(|| {
            let id = functions.len() as u64 + 1;
            functions.push(Function { id, name, system_name: name, filename, start_line });
            id
        })
    }

    /// Returns the mapping of a module, extended to at least this address.
    pub(super) fn mapping(&mut self, module: ModuleId, address: u64, is_inlined: bool) -> u64 {
        let id = match self.mappings.get(&module) {
            Some(id) => *id,
            None => self.add_mapping(module),
        };
        if let Some(mapping) = self.made.mapping.get_mut(id as usize - 1) {
            mapping.memory_limit = mapping.memory_limit.max(address.saturating_add(1));
            mapping.has_inline_frames |= is_inlined;
        }
        id
    }

    fn add_mapping(&mut self, module: ModuleId) -> u64 {
        let known = self.profile.modules.get(module.0 as usize);
        let path = known.map_or(UNKNOWN, |module| shown_path(&module.path));
        let build_id: String = known
            .map_or(&[][..], |module| &module.build_id)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let (filename, build_id) = (self.string(&escaped(path)), self.string(&build_id));
        let id = self.made.mapping.len() as u64 + 1;
        self.mappings.insert(module, id);
        // Names are complete: pprof must not search files that may have changed since.
        let (has_functions, has_filenames, has_line_numbers) = (true, true, true);
        self.made.mapping.push(Mapping {
            id,
            filename,
            build_id,
            has_functions,
            has_filenames,
            has_line_numbers,
            ..Mapping::default()
        });
        id
    }
}
