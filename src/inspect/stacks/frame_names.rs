//! The names of the frames of stacks that were unwound from outside.

use std::collections::HashMap;
use std::io;

use traceprof_abi::unwind::RETURN_ADDRESS;

use crate::record::name::addresses::{ModuleAddress, by_module, fallback, locate};
use crate::record::name::symbolizers;
use crate::record::target::modules::{AddressMap, LoadedModule};
use crate::symbol::Resolved;
use crate::unwind::RemoteStack;

/// A function on a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedFrame {
    /// The pc (AVMA): where it runs, or where a call returns to.
    pub avma: u64,
    /// The name of the function.
    pub function: String,
    /// The module's path as the target sees it and the SVMA in it, for code of a file.
    pub module: Option<(String, u64)>,
    /// The source file and line; the line is 0 if unknown.
    pub source: Option<(String, u32)>,
    /// Whether it has no frame of its own, being inlined into the next function.
    pub inlined: bool,
    /// Whether it may be from a later time than the frames before it.
    pub late: bool,
}

/// The names of addresses, each looked up once.
pub(super) struct FrameNaming<'a> {
    addresses: &'a AddressMap,
    resolved: HashMap<ModuleAddress, Resolved>,
}

impl<'a> FrameNaming<'a> {
    /// Looks up all these frame words.
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

    /// Returns the functions of a stack, innermost first.
    pub(super) fn stack(&self, stack: &RemoteStack) -> Vec<NamedFrame> {
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
