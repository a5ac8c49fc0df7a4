//! What the files of Node.js say about the engine in them.

use super::nodes::{NodeProgram, nodes};
use crate::elf::{Definitions, Elf, largest_gap};
use crate::runtime::v8::{BuiltinRole, V8Exports};

#[test]
fn programs_are_called_by_their_versions() {
    let engines = [(18, "10.2"), (20, "11.3"), (22, "12.4"), (24, "13.6")];
    for (version, node) in nodes() {
        let output = std::process::Command::new(&node).arg("--version").output().unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        let engine = engines.iter().find(|(known, _)| *known == version).unwrap().1;
        let program = NodeProgram::start(&node, &[], &["v8_mix.js"]);
        let label = format!("Node.js {} (V8 {engine})", told.trim().trim_start_matches('v'));
        assert_eq!(program.engine().machine.label, label);
    }
}

#[test]
fn functions_of_the_engine_are_told_apart() {
    for (version, node) in nodes() {
        let bytes = std::fs::read(&node).unwrap();
        let exports = V8Exports::of(&bytes, "node").unwrap();
        assert!(exports.is_supported(), "{version}: {:?}", exports.layout);
        let elf = Elf::parse(&bytes).unwrap();
        let named = Definitions::of(&elf).own_after("Builtins_");
        let expected = |name: &str| match name {
            "InterpreterEntryTrampoline" | "InterpreterEnterAtBytecode" => BuiltinRole::Trampoline,
            "LdaZeroHandler" | "CallProperty1Handler" | "AddWideHandler" => BuiltinRole::Handler,
            _ => BuiltinRole::Other,
        };
        let mut seen = 0;
        for name in [
            "InterpreterEntryTrampoline",
            "InterpreterEnterAtBytecode",
            "LdaZeroHandler",
            "CallProperty1Handler",
            "AddWideHandler",
            "ArrayMap",
            "LoadIC",
            // The newer versions have these.
            "LoadIC_BytecodeHandler",
            "AtomicsMutexAsyncUnlockResolveHandler",
        ] {
            let Some((_, found)) = named.iter().find(|(known, _)| *known == name) else { continue };
            assert_eq!(exports.builtin_at(found.svma), expected(name), "{version}: {name}");
            seen += 1;
        }
        assert!(seen >= 7, "{version}: {seen}");
        let is_handler = |svma| exports.builtin_at(svma) == BuiltinRole::Handler;
        let handlers = named.iter().filter(|(_, it)| is_handler(it.svma)).count();
        assert!((400..600).contains(&handlers), "{version}: {handlers}");
        assert_eq!(exports.builtin_at(elf.entry()), BuiltinRole::Unknown);
        // Without symbols, they are found by what is missing for them.
        let (known, gap) = (exports.builtins(), largest_gap(&elf).unwrap());
        assert!(gap.start <= known.start && known.end <= gap.end, "{version}: {gap:x?}");
        let outside = (gap.end - gap.start) - (known.end - known.start);
        assert!(outside < (known.end - known.start) / 8, "{version}: {gap:x?} {known:x?}");
    }
}
