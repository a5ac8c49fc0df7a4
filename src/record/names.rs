//! From frame words to the trace's locations: each distinct address is symbolized once.
//!
//! # Invariants
//! - Nothing here waits for a symbolizer. Whoever cannot wait for an answer has the address written
//!   without a name, and counted.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::Path;
use std::sync::Arc;

use traceprof_abi::unwind::lookup_avma;

use super::collections::Collection;
use super::modules::{AddressMap, LoadedModule};
use super::symbolizers::{Answer, Symbolizers, Wanted};
use crate::symbol::Resolved;
use crate::trace::{Location, LocationId, Method, Module, ModuleId, TraceError, TraceWriter};

/// An address: the module's index (`None` outside all modules) and the SVMA in it.
pub(super) type Place = (Option<u32>, u64);

/// Locations by address, over one recording.
pub(super) struct Names {
    symbolizers: Symbolizers,
    modules: HashMap<Option<u32>, ModuleId>,
    /// Outermost function first; `None` as long as the address is only asked for.
    places: HashMap<Place, Option<Box<[LocationId]>>>,
    /// Questions without an answer.
    open: BTreeSet<u64>,
    /// How many questions there were.
    asked: u64,
    /// Addresses that were written before their names were known.
    pub(super) unnamed: u64,
}

impl Names {
    /// None are known yet. `answer` takes answers to where [`Self::learn`] is called with them.
    pub(super) fn start(
        answer: impl Fn(Answer) -> bool + Clone + Send + 'static,
    ) -> io::Result<Self> {
        Symbolizers::start(answer).map(Self::of)
    }

    /// None are known yet, and these find them.
    pub(super) fn of(symbolizers: Symbolizers) -> Self {
        Self {
            symbolizers,
            modules: HashMap::new(),
            places: HashMap::new(),
            open: BTreeSet::new(),
            asked: 0,
            unnamed: 0,
        }
    }

    /// Asks for the addresses of all new traces that are not known. When what was asked up to now is
    /// [answered](Self::is_answered), their names are known.
    pub(super) fn ask(&mut self, addresses: &AddressMap, traces: &Collection) -> u64 {
        // A preserved trace was new once, and what is mapped may have changed since.
        let new = traces.entries().iter().filter(|entry| !entry.preserved);
        let words = new.flat_map(|entry| traces.frames_of(entry));
        for wanted in by_module(words, addresses, |place| !self.places.contains_key(place)) {
            let index = wanted.module.as_ref().map(|module| module.index);
            self.places.extend(wanted.svmas.iter().map(|svma| ((index, *svma), None)));
            self.asked += 1;
            self.open.insert(self.asked);
            self.symbolizers.ask(Wanted { question: self.asked, ..wanted });
        }
        self.asked
    }

    /// All questions up to this one are answered.
    pub(super) fn is_answered(&self, question: u64) -> bool {
        self.open.first().is_none_or(|first| *first > question)
    }

    /// Takes an answer in.
    pub(super) fn learn(
        &mut self,
        writer: &mut TraceWriter,
        answer: &Wanted,
    ) -> Result<(), TraceError> {
        let module = answer.module.as_deref();
        let id = self.module(writer, module)?;
        let index = module.map(|module| module.index);
        for (position, svma) in answer.svmas.iter().enumerate() {
            let locations = write(writer, id, module, *svma, answer.resolved.get(position))?;
            self.places.insert((index, *svma), Some(locations.into()));
        }
        self.open.remove(&answer.question);
        Ok(())
    }

    /// The locations of a trace, root first. Addresses that are not known get no name.
    pub(super) fn stack(
        &mut self,
        writer: &mut TraceWriter,
        addresses: &AddressMap,
        frames: &[u64],
    ) -> Result<Vec<LocationId>, TraceError> {
        let mut stack = Vec::with_capacity(frames.len());
        for frame in frames.iter().rev() {
            let (module, place) = locate(addresses, *frame);
            if let Some(Some(known)) = self.places.get(&place) {
                stack.extend(known);
                continue;
            }
            let module = module.map(|module| &**module);
            let id = self.module(writer, module)?;
            let unnamed = write(writer, id, module, place.1, None)?;
            self.unnamed += 1;
            stack.extend(&unnamed);
            self.places.insert(place, Some(unnamed.into()));
        }
        Ok(stack)
    }

    /// The trace's id of a module.
    pub(super) fn module(
        &mut self,
        writer: &mut TraceWriter,
        module: Option<&LoadedModule>,
    ) -> Result<ModuleId, TraceError> {
        let index = module.map(|module| module.index);
        if let Some(id) = self.modules.get(&index) {
            return Ok(*id);
        }
        let id = writer.module(&match module {
            Some(module) => Module { path: module.path.clone(), build_id: module.build_id.clone() },
            None => Module { path: "[unknown]".to_string(), build_id: Vec::new() },
        })?;
        self.modules.insert(index, id);
        Ok(id)
    }
}

/// The addresses of frame words, each once, that are wanted; by module, in the order of their numbers.
pub(super) fn by_module<'f>(
    words: impl Iterator<Item = &'f u64>,
    addresses: &AddressMap,
    is_wanted: impl Fn(&Place) -> bool,
) -> Vec<Wanted> {
    let mut wanted: BTreeMap<Option<u32>, Wanted> = BTreeMap::new();
    for word in words {
        let (module, place) = locate(addresses, *word);
        if is_wanted(&place) {
            let wanted = wanted.entry(place.0).or_default();
            wanted.module = module.cloned();
            wanted.svmas.push(place.1);
        }
    }
    wanted.into_values().map(Wanted::each_once).collect()
}

/// Where a frame word is.
pub(super) fn locate(addresses: &AddressMap, frame: u64) -> (Option<&Arc<LoadedModule>>, Place) {
    let avma = lookup_avma(frame);
    match addresses.find(avma) {
        Some(range) => match &range.module {
            Some(module) => (Some(module), (Some(module.index), avma.wrapping_sub(range.bias))),
            None => (None, (None, avma)),
        },
        None => (None, (None, avma)),
    }
}

/// Writes the locations of one address: the physical function, then what is inlined into it.
fn write(
    writer: &mut TraceWriter,
    module: ModuleId,
    loaded: Option<&LoadedModule>,
    svma: u64,
    resolved: Option<&Resolved>,
) -> Result<Vec<LocationId>, TraceError> {
    let function = resolved.and_then(|resolved| resolved.function.as_ref());
    let (name, start_svma) = match function {
        Some(function) => (function.name.clone(), function.start_svma),
        None => fallback(loaded, svma),
    };
    let method = writer.method(&Method { module: Some(module), name, start_svma })?;
    let mut parent = writer.location(&Location {
        method,
        svma,
        file: resolved.and_then(|resolved| resolved.file.clone()),
        line: resolved.map_or(0, |resolved| resolved.line),
        inline_parent: None,
    })?;
    let mut locations = vec![parent];
    for inlined in resolved.map_or(&[][..], |resolved| &resolved.inlined) {
        let name = inlined.name.clone();
        let method = writer.method(&Method { module: Some(module), name, start_svma: 0 })?;
        parent = writer.location(&Location {
            method,
            svma,
            file: inlined.file.clone(),
            line: inlined.line,
            inline_parent: Some(parent),
        })?;
        locations.push(parent);
    }
    Ok(locations)
}

/// Without a symbol, the function's start from the unwind information still tells functions apart.
pub(super) fn fallback(module: Option<&LoadedModule>, svma: u64) -> (String, u64) {
    let Some(module) = module else { return ("[unknown]".to_string(), 0) };
    let file = Path::new(&module.path).file_name();
    let file = file.map_or_else(|| module.path.clone(), |name| name.to_string_lossy().into_owned());
    let start = module.function_start(svma).unwrap_or(svma);
    (format!("[{file}+{start:#x}]"), start)
}
