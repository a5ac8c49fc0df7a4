//! Locations of the kernel's own frames.
//!
//! # Invariants
//! - A function of the kernel is identified by its name and its module. Its address is another one
//!   after each boot, so recordings could not be compared by it.

use std::collections::{BTreeSet, HashMap};

use traceprof_abi::runtime::word::{KERNEL_NAMELESS, split_kernel};
use traceprof_abi::unwind::{RETURN_ADDRESS, lookup_avma};

use crate::record::batch::kernel_functions::{FoundFunction, NewKernelFunctions};
use crate::record::batch::traces::Collection;
use crate::record::name::symbolizers::SymbolQuery;
use crate::trace::{FrameKind, Location, LocationId, Method, Module, TraceError, TraceSeries};

/// The module of the kernel's own functions. Those of its modules have `[NAME]`.
const KERNEL: &str = "[kernel]";
/// The name of a frame whose function this user may not know.
const NAMELESS: &str = "[kernel]";
/// The name of a function that the kernel does not list.
const UNKNOWN: &str = "[unknown]";

/// The locations of the kernel's frames, by what frame words are looked up by. `None` while the
/// answer is pending.
#[derive(Debug, Default)]
pub(super) struct KernelLocations(HashMap<u64, Option<LocationId>>);

impl KernelLocations {
    /// Returns a query of the unknown addresses of new traces, if there are any.
    pub(super) fn unknown(&mut self, traces: &Collection) -> Option<SymbolQuery> {
        let new = traces.entries().iter().filter(|entry| !entry.preserved);
        let words = new.flat_map(|entry| split_kernel(traces.frames_of(entry)).0);
        let unknown: BTreeSet<u64> = words
            .map(|word| lookup_avma(*word))
            .filter(|place| has_address(*place) && !self.0.contains_key(place))
            .collect();
        if unknown.is_empty() {
            return None;
        }
        self.0.extend(unknown.iter().map(|place| (*place, None)));
        let svmas = unknown.into_iter().map(avma_of).collect();
        Some(SymbolQuery { is_kernel: true, svmas, ..SymbolQuery::default() })
    }

    /// Stores functions in which threads sleep.
    pub(super) fn learn_functions(
        &mut self,
        writer: &mut TraceSeries,
        new: &NewKernelFunctions,
    ) -> Result<(), TraceError> {
        for (word, function) in new {
            let location = location(writer, Some(function))?;
            self.0.insert(lookup_avma(*word), Some(location));
        }
        Ok(())
    }

    /// Stores the names of an answer.
    pub(super) fn learn(
        &mut self,
        writer: &mut TraceSeries,
        answer: &SymbolQuery,
    ) -> Result<(), TraceError> {
        for (avma, function) in answer.svmas.iter().zip(&answer.functions) {
            let location = location(writer, function.as_ref())?;
            self.0.insert(avma & !RETURN_ADDRESS, Some(location));
        }
        Ok(())
    }

    /// Adds the locations of frames, which are given leaf first, and returns how many were written
    /// before their names were known.
    pub(super) fn push(
        &mut self,
        writer: &mut TraceSeries,
        words: &[u64],
        locations: &mut Vec<LocationId>,
    ) -> Result<u64, TraceError> {
        let mut late = 0;
        for word in words.iter().rev() {
            let (location, is_late) = self.of(writer, *word)?;
            late += u64::from(is_late);
            locations.push(location);
        }
        Ok(late)
    }

    /// Returns the location of a frame word, and whether its name is late.
    fn of(
        &mut self,
        writer: &mut TraceSeries,
        word: u64,
    ) -> Result<(LocationId, bool), TraceError> {
        let place = lookup_avma(word);
        if let Some(Some(known)) = self.0.get(&place) {
            return Ok((*known, false));
        }
        let is_nameless = place == KERNEL_NAMELESS;
        let found = if is_nameless {
            let function = FoundFunction { name: NAMELESS.to_owned(), module: None };
            location(writer, Some(&function))?
        } else {
            location(writer, None)?
        };
        self.0.insert(place, Some(found));
        Ok((found, !is_nameless))
    }
}

/// Returns whether a frame is at an address, and does not just stand for a function.
fn has_address(place: u64) -> bool {
    const LOWEST: u64 = 0x7f00_0000_0000_0000;
    place >= LOWEST && place != KERNEL_NAMELESS
}

/// Returns the address that a frame word is looked up by: the word has its top bit for a mark.
fn avma_of(place: u64) -> u64 {
    place | RETURN_ADDRESS
}

/// Returns the location of a function. It has no address: whoever reads the trace may be somebody
/// who must not know where the kernel's code is.
fn location(
    writer: &mut TraceSeries,
    function: Option<&FoundFunction>,
) -> Result<LocationId, TraceError> {
    let module = function.and_then(|function| function.module.as_ref());
    let path = module.map_or_else(|| KERNEL.to_owned(), |module| format!("[{module}]"));
    let module = writer.module(&Module { path, build_id: Vec::new() })?;
    let name = function.map_or(UNKNOWN, |function| &function.name);
    let method = writer.method(&Method { module: Some(module), ..Method::named(name) })?;
    writer.location(&Location { kind: FrameKind::Kernel, ..Location::at(method, 0) })
}
