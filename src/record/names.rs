//! From frame words to the trace's locations: each distinct address is symbolized once.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;
use std::sync::Arc;

use traceprof_abi::unwind::lookup_avma;

use super::collections::Collection;
use super::modules::{AddressMap, LoadedModule};
use super::symbolizers::{Symbolizers, Wanted};
use crate::symbol::Resolved;
use crate::trace::{Location, LocationId, Method, Module, ModuleId, TraceError, TraceWriter};

/// An address: the module's index (`None` outside all modules) and the SVMA in it.
pub(super) type Place = (Option<u32>, u64);

/// Locations by address, over one recording.
pub(super) struct Names {
    symbolizers: Symbolizers,
    modules: HashMap<Option<u32>, ModuleId>,
    /// Outermost function first.
    places: HashMap<Place, Box<[LocationId]>>,
}

impl Names {
    /// None are known yet.
    pub(super) fn start() -> io::Result<Self> {
        let symbolizers = Symbolizers::start()?;
        Ok(Self { symbolizers, modules: HashMap::new(), places: HashMap::new() })
    }

    /// Makes sure that the addresses of all new traces are known.
    pub(super) fn learn(
        &mut self,
        writer: &mut TraceWriter,
        addresses: &AddressMap,
        traces: &Collection,
    ) -> Result<(), TraceError> {
        let mut wanted: BTreeMap<Option<u32>, Wanted> = BTreeMap::new();
        // A preserved trace was new once, and what is mapped may have changed since.
        let new = traces.entries().iter().filter(|entry| !entry.preserved);
        for frame in new.flat_map(|entry| traces.frames_of(entry)) {
            let (module, place) = locate(addresses, *frame);
            if !self.places.contains_key(&place) {
                let wanted = wanted.entry(place.0).or_default();
                wanted.module = module.cloned();
                wanted.svmas.push(place.1);
            }
        }
        if wanted.is_empty() {
            return Ok(());
        }
        for answer in self.symbolizers.resolve(wanted.into_values().map(Wanted::each_once)) {
            self.name(writer, &answer)?;
        }
        Ok(())
    }

    /// The locations of a trace, root first. All its addresses have been learned.
    pub(super) fn stack(&self, addresses: &AddressMap, frames: &[u64]) -> Vec<LocationId> {
        let places = frames.iter().rev().filter_map(|frame| {
            let (_, place) = locate(addresses, *frame);
            self.places.get(&place)
        });
        places.flat_map(|locations| locations.iter().copied()).collect()
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

    fn name(&mut self, writer: &mut TraceWriter, answer: &Wanted) -> Result<(), TraceError> {
        let module = answer.module.as_deref();
        let id = self.module(writer, module)?;
        let index = module.map(|module| module.index);
        for (position, svma) in answer.svmas.iter().enumerate() {
            let locations = write(writer, id, module, *svma, answer.resolved.get(position))?;
            self.places.insert((index, *svma), locations.into());
        }
        Ok(())
    }
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
