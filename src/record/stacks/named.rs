//! The names of the frames of stacks that were unwound outside.

use std::collections::HashMap;
use std::io;

use traceprof_abi::unwind::RETURN_ADDRESS;

use super::super::modules::{AddressMap, LoadedModule};
use super::super::names::{Place, by_module, fallback, locate};
use super::super::symbolizers;
use crate::symbol::Resolved;
use crate::unwind::OutsideStack;

/// A function on a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedFrame {
    /// Its pc: where it runs, or where a call returns to (AVMA).
    pub avma: u64,
    /// Name of the function.
    pub function: String,
    /// Path of its module as the target sees it, and the place in it (SVMA); for code of a file.
    pub module: Option<(String, u64)>,
    /// Source file and line, 0 if that is unknown.
    pub source: Option<(String, u32)>,
    /// It has no frame of its own: it is inlined into the next.
    pub inlined: bool,
    /// It may be of a later time than the frames before it.
    pub late: bool,
}

/// Names of addresses, each looked up once.
pub(super) struct Naming<'a> {
    addresses: &'a AddressMap,
    resolved: HashMap<Place, Resolved>,
}

impl<'a> Naming<'a> {
    /// Looks all these frame words up.
    pub(super) fn of<'f>(
        words: impl Iterator<Item = &'f u64>,
        addresses: &'a AddressMap,
    ) -> io::Result<Self> {
        let mut resolved = HashMap::new();
        let words = words.map(|word| (*word, addresses.epoch()));
        for answer in symbolizers::resolve(by_module(words, addresses, |_| true))? {
            let number = answer.module.as_ref().map(|module| module.index);
            let places = answer.svmas.into_iter().map(|svma| (number, svma));
            resolved.extend(places.zip(answer.resolved));
        }
        Ok(Self { addresses, resolved })
    }

    /// The functions of a stack, innermost first.
    pub(super) fn stack(&self, stack: &OutsideStack) -> Vec<NamedFrame> {
        let late = stack.late.unwrap_or(usize::MAX);
        let words = stack.frames.iter().enumerate();
        words.flat_map(|(depth, word)| self.functions(*word, depth >= late)).collect()
    }

    fn functions(&self, word: u64, late: bool) -> Vec<NamedFrame> {
        let (module, place) = locate(self.addresses, word, self.addresses.epoch());
        let module = module.map(|module| &**module);
        let resolved = self.resolved.get(&place);
        let frame = |function: String, source: Option<(String, u32)>, inlined| NamedFrame {
            avma: word & !RETURN_ADDRESS,
            function,
            module: module.map(|module| (module.path.clone(), place.1)),
            source,
            inlined,
            late,
        };
        let inlined = resolved.map_or(&[][..], |resolved| &resolved.inlined).iter().rev();
        let mut functions: Vec<NamedFrame> = inlined
            .map(|it| frame(it.name.clone(), it.file.clone().map(|file| (file, it.line)), true))
            .collect();
        let source = resolved.and_then(|it| Some((it.file.clone()?, it.line)));
        functions.push(frame(physical(resolved, module, place.1), source, false));
        functions
    }
}

fn physical(resolved: Option<&Resolved>, module: Option<&LoadedModule>, svma: u64) -> String {
    match resolved.and_then(|resolved| resolved.function.as_ref()) {
        Some(function) => function.name.clone(),
        None => fallback(module, svma).0,
    }
}
