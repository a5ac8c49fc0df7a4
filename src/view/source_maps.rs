//! The original functions, files and lines of JavaScript that was generated, by its source maps.
//!
//! # Invariants
//! - A function or place without a mapping stays as it was recorded. So does a file whose map is
//!   missing or wrong, or that no longer has the recorded places: a message says so.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::symbol::source_map::{GeneratedPlace, OriginalPlace, SourceMap};
use crate::trace::{
    FIRST_PROCESS_START, Language, Location, Metadata, Method, Module, ModuleId, Objects, Relabel,
    Value,
};
use crate::view::text::number::counted;

/// Maximum number of files that a message names.
const NAMED_MAX: usize = 3;
/// The name of the code outside of all functions of a file.
const TOP_LEVEL: &str = "(top level)";

/// Reads source maps, and gives functions their original names and places.
#[derive(Debug)]
pub struct SourceMaps {
    /// When the first of the recorded processes started. If that is not known, when the recording
    /// began.
    began: Option<SystemTime>,
}

/// The keys of this time, the best one first. Earlier versions wrote only the others.
const BEGINNINGS: [&str; 3] =
    [FIRST_PROCESS_START, "recording_start_realtime_ns", "start_realtime_ns"];

/// The parts of a generated file, by their indices.
#[derive(Debug, Default)]
struct GeneratedParts {
    /// Methods that have a column.
    methods: Vec<usize>,
    /// Locations that have a column.
    locations: Vec<usize>,
    /// Locations whose line is not known.
    unplaced: Vec<usize>,
}

/// Files about which there is a message.
#[derive(Debug, Default)]
struct ToldFiles {
    /// Those that keep their functions, with the reason.
    kept: Vec<String>,
    /// Those that are newer than the start of the first process.
    newer: Vec<String>,
}

/// What is written into the objects.
struct Original<'o> {
    objects: &'o mut Objects,
    modules: HashMap<String, ModuleId>,
    text_bytes: u64,
}

impl SourceMaps {
    /// Prepares the reading for a trace with this metadata.
    pub fn of(metadata: &Metadata) -> Self {
        let number = |key: &&str| match metadata.get(*key) {
            Some(Value::Unsigned(ns)) => Some(*ns),
            _ => None,
        };
        let began_ns = BEGINNINGS.iter().find_map(number);
        let began = began_ns.and_then(|ns| UNIX_EPOCH.checked_add(Duration::from_nanos(ns)));
        Self { began }
    }
}

impl Relabel for SourceMaps {
    fn relabel(&self, objects: &mut Objects) -> (u64, Vec<String>) {
        let mut told = ToldFiles::default();
        let mut files: Vec<_> = generated(objects).into_iter().collect();
        files.sort_by(|(one, _), (other, _)| one.cmp(other));
        if files.is_empty() {
            let what = "no function in this trace is of a file that names a source map, or the \
                        trace is of an earlier version: --source-maps changes nothing";
            return (0, vec![what.to_owned()]);
        }
        let ids = (0..).map(ModuleId);
        let modules = objects.modules.iter().zip(ids).map(|(it, id)| (it.path.clone(), id));
        let modules = modules.collect();
        let mut original = Original { objects, modules, text_bytes: 0 };
        for (path, parts) in files {
            match original.map_of(Path::new(&path), &parts) {
                Ok(map) => {
                    if self.began.is_some_and(|began| map.changed.is_some_and(|it| it > began)) {
                        told.newer.push(path);
                    }
                    original.take(&map, &parts);
                }
                Err(what) => told.kept.push(format!("{path}: {what}")),
            }
        }
        (original.text_bytes, told.messages())
    }
}

impl ToldFiles {
    fn messages(&self) -> Vec<String> {
        let named = |files: &[String]| {
            let mut text: Vec<&str> = files.iter().take(NAMED_MAX).map(String::as_str).collect();
            let more = files.len().saturating_sub(NAMED_MAX);
            let more = (more > 0).then(|| counted(more as u64, "more file"));
            text.extend(more.as_deref());
            text.join(", ")
        };
        let kept = format!("without source maps, as they were recorded: {}", named(&self.kept));
        let newer = format!(
            "changed after the process started, so original lines may be wrong: {}",
            named(&self.newer)
        );
        let messages = [(kept, &self.kept), (newer, &self.newer)];
        messages.into_iter().filter(|(_, files)| !files.is_empty()).map(|(text, _)| text).collect()
    }
}

/// Returns what of generated files may have an original, by the paths of the files.
fn generated(objects: &Objects) -> HashMap<String, GeneratedParts> {
    let mut found = HashMap::<String, GeneratedParts>::new();
    let is_path = |path: &&str| path.starts_with('/');
    let is_javascript = |it: &(usize, &Location)| it.1.kind.language() == Language::JavaScript;
    for (index, location) in objects.locations.iter().enumerate().filter(is_javascript) {
        let Some(file) = location.file.as_deref().filter(is_path) else { continue };
        let parts = found.entry(file.to_owned()).or_default();
        match (location.line, location.column) {
            (0, _) => parts.unplaced.push(index),
            (_, 0) => {}
            _ => parts.locations.push(index),
        }
    }
    for (index, method) in objects.methods.iter().enumerate().filter(|(_, it)| it.column > 0) {
        if let Some(file) = path_of(objects, method).filter(is_path) {
            found.entry(file.to_owned()).or_default().methods.push(index);
        }
    }
    found.retain(|_, parts| !parts.methods.is_empty() || !parts.locations.is_empty());
    found
}

fn path_of<'o>(objects: &'o Objects, method: &Method) -> Option<&'o str> {
    objects.modules.get(method.module?.0 as usize).map(|module| module.path.as_str())
}

/// Returns the place and the name of a location's function, if they are known. The code outside of
/// all functions is none.
fn function_of<'o>(objects: &'o Objects, location: &Location) -> Option<(GeneratedPlace, &'o str)> {
    let method = objects.methods.get(location.method.0 as usize)?;
    if method.name == TOP_LEVEL {
        return None;
    }
    let is_known = method.column > 0 && path_of(objects, method) == location.file.as_deref();
    let place = GeneratedPlace { line: method.line, column: method.column };
    is_known.then_some((place, method.name.as_str()))
}

impl Original<'_> {
    /// Reads the map of a file, if the file has all places that were recorded.
    fn map_of(&self, path: &Path, parts: &GeneratedParts) -> Result<SourceMap, String> {
        let map = SourceMap::of(path)?;
        let locations = parts.locations.iter().filter_map(|it| self.objects.locations.get(*it));
        let methods = parts.methods.iter().filter_map(|it| self.objects.methods.get(*it));
        let places = locations.map(|it| (it.line, it.column));
        let mut places = places.chain(methods.map(|it| (it.line, it.column)));
        match places.all(|(line, column)| map.has(GeneratedPlace { line, column })) {
            true => Ok(map),
            false => Err("it has not all recorded places, so it is another file now".to_owned()),
        }
    }

    fn take(&mut self, map: &SourceMap, parts: &GeneratedParts) {
        for index in &parts.locations {
            let Some(location) = self.objects.locations.get(*index) else { continue };
            let place = GeneratedPlace { line: location.line, column: location.column };
            let function = function_of(self.objects, location);
            let found = map.place(place, function);
            let Some(location) = self.objects.locations.get_mut(*index) else { continue };
            if let Some(OriginalPlace { file, line, column, .. }) = found {
                self.text_bytes = self.text_bytes.saturating_add(file.len() as u64);
                location.file = Some(file.to_owned());
                (location.line, location.column) = (line, column);
            }
        }
        let taken = parts.methods.iter().filter(|index| self.take_method(map, **index));
        let taken: HashSet<usize> = taken.copied().collect();
        // Of these, nothing but the function is known.
        for index in &parts.unplaced {
            let Some(location) = self.objects.locations.get_mut(*index) else { continue };
            let method = location.method.0 as usize;
            let Some(method) = self.objects.methods.get(method).filter(|_| taken.contains(&method))
            else {
                continue;
            };
            let module = method.module.and_then(|id| self.objects.modules.get(id.0 as usize));
            location.file = module.map(|module| module.path.clone());
        }
    }

    /// Gives a method its original, and returns whether there is one.
    fn take_method(&mut self, map: &SourceMap, index: usize) -> bool {
        let Some(method) = self.objects.methods.get(index) else { return false };
        // That of a bundle is of all files in it.
        if method.name == TOP_LEVEL && map.sources() != 1 {
            return false;
        }
        let place = GeneratedPlace { line: method.line, column: method.column };
        let Some(found) = map.function(place, &method.name) else { return false };
        let OriginalPlace { file, line, column, name } = found;
        let next = ModuleId(self.objects.modules.len() as u32);
        let module = *self.modules.entry(file.to_owned()).or_insert(next);
        if module == next {
            self.objects.modules.push(Module { path: file.to_owned(), build_id: Vec::new() });
        }
        let Some(method) = self.objects.methods.get_mut(index) else { return false };
        let name = name.map_or_else(|| std::mem::take(&mut method.name), str::to_owned);
        let bytes = file.len().saturating_add(name.len()) as u64;
        self.text_bytes = self.text_bytes.saturating_add(bytes);
        *method = Method { module: Some(module), name, start_svma: 0, line, column };
        true
    }
}
