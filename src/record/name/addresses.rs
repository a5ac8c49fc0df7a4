//! The modules of addresses, names for code without symbols, and the locations of addresses.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use traceprof_abi::unwind::lookup_avma;

use crate::record::name::symbolizers::SymbolQuery;
use crate::record::target::modules::{AddressMap, LoadedModule};
use crate::symbol::Resolved;
use crate::trace::{Location, LocationId, Method, ModuleId, TraceError, TraceSeries};

/// An address: the module's index (`None` outside all modules) and the SVMA in it.
pub(crate) type ModuleAddress = (Option<u32>, u64);

/// Groups the wanted addresses of frame words and their epochs by module, each address once.
///
/// The groups are in the order of the modules' numbers.
pub(crate) fn by_module(
    words: impl Iterator<Item = (u64, u16)>,
    addresses: &AddressMap,
    is_wanted: impl Fn(&ModuleAddress) -> bool,
) -> Vec<SymbolQuery> {
    let mut wanted: BTreeMap<Option<u32>, SymbolQuery> = BTreeMap::new();
    for (word, epoch) in words {
        let (module, address) = locate(addresses, word, epoch);
        if is_wanted(&address) {
            let wanted = wanted.entry(address.0).or_default();
            wanted.module = module.cloned();
            wanted.svmas.push(address.1);
        }
    }
    wanted.into_values().map(SymbolQuery::deduplicated).collect()
}

/// Finds the module of a frame word in an epoch, and the address in that module.
pub(crate) fn locate(
    addresses: &AddressMap,
    frame: u64,
    epoch: u16,
) -> (Option<&Arc<LoadedModule>>, ModuleAddress) {
    let avma = lookup_avma(frame);
    match addresses.find_at(avma, epoch) {
        Some(range) => match &range.module {
            Some(module) => (Some(module), (Some(module.index), avma.wrapping_sub(range.bias))),
            None => (None, (None, avma)),
        },
        None => (None, (None, avma)),
    }
}

/// Returns the name of code without a symbol, and the start of its function.
///
/// The start comes from the unwind information and distinguishes functions.
pub(crate) fn fallback(module: Option<&LoadedModule>, svma: u64) -> (String, u64) {
    let Some(module) = module else { return ("[unknown]".to_string(), 0) };
    let file = Path::new(&module.path).file_name();
    let file = file.map_or_else(|| module.path.clone(), |name| name.to_string_lossy().into_owned());
    let start = module.function_start(svma).unwrap_or(svma);
    (format!("[{file}+{start:#x}]"), start)
}

/// Writes the locations of one address: the physical function, then the functions inlined into it.
pub(crate) fn write_locations(
    writer: &mut TraceSeries,
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
    let method = Method { module: Some(module), name, start_svma, ..Method::default() };
    let method = writer.method(&method)?;
    let mut parent = writer.location(&Location {
        file: resolved.and_then(|resolved| resolved.file.clone()),
        line: resolved.map_or(0, |resolved| resolved.line),
        ..Location::at(method, svma)
    })?;
    let mut locations = vec![parent];
    for inlined in resolved.map_or(&[][..], |resolved| &resolved.inlined) {
        let name = inlined.name.clone();
        let method = Method { module: Some(module), name, ..Method::default() };
        let method = writer.method(&method)?;
        parent = writer.location(&Location {
            file: inlined.file.clone(),
            line: inlined.line,
            inline_parent: Some(parent),
            ..Location::at(method, svma)
        })?;
        locations.push(parent);
    }
    Ok(locations)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::symbol::ElfFile;

    #[test]
    fn code_without_a_symbol_is_named_by_its_file_and_the_start_of_its_function() {
        let module = |path: &str| {
            let file = File::open("/proc/self/exe").unwrap();
            let elf = ElfFile::new(file.into(), path.to_owned(), Vec::new());
            let functions = [(0x1000, 0x20), (0x1020, 0x10), (0x2000, 8)];
            LoadedModule::for_test(0, path, elf).with_functions(&functions)
        };
        let library = module("/usr/lib/libx y.so.1");
        for (svma, start) in [
            (0xfff, 0xfff),
            (0x1000, 0x1000),
            (0x101f, 0x1000),
            (0x1020, 0x1020),
            (0x102f, 0x1020),
            (0x1030, 0x1030),
            (0x1fff, 0x1fff),
            (0x2007, 0x2000),
            (u64::MAX, u64::MAX),
        ] {
            let expected = (format!("[libx y.so.1+{start:#x}]"), start);
            assert_eq!(fallback(Some(&library), svma), expected, "{svma:#x}");
        }
        assert_eq!(fallback(Some(&module("[vdso]")), 0x1004).0, "[[vdso]+0x1000]");
        assert_eq!(fallback(Some(&module("/..")), 0x1004).0, "[/..+0x1000]");
        assert_eq!(fallback(None, 0x1004), ("[unknown]".to_owned(), 0));
    }
}
