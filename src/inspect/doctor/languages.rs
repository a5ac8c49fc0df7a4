//! The language runtimes in a process, and what a recording shows of their programs.

use std::ops::Range;

use traceprof_abi::context::RecordKind;

use super::Finding;
use crate::elf::Elf;
use crate::proc::{Mapping, ProcessMemory};
use crate::runtime::java::{JavaExports, JavaMachine};
use crate::runtime::v8::{V8Exports, V8Machine};
use crate::runtime::{Runtime, RuntimeExports};

const SUBJECT: &str = "language";

/// The runtimes that the file of a module contains.
#[derive(Debug, Default)]
pub(super) struct LanguageExports {
    bias: u64,
    managed: Option<RuntimeExports>,
    java: Option<JavaExports>,
    v8: Option<V8Exports>,
}

impl LanguageExports {
    /// Reads the file of a mapping.
    pub(super) fn of(mapping: &Mapping, bytes: &[u8], elf: &Elf<'_>, path: &str) -> Self {
        let bias = elf.bias(mapping.start, mapping.file_offset, mapping.exec).unwrap_or_default();
        let (managed, java) = (RuntimeExports::of(bytes, path), JavaExports::of(bytes, path));
        Self { bias, managed, java, v8: V8Exports::of(bytes, path) }
    }

    /// Finds the runtimes in the process. `vector` tells its C library, and `generated` is its code
    /// without a file (AVMA).
    pub(super) fn findings(
        &self,
        pid: i32,
        vector: RecordKind,
        generated: &[Range<u64>],
    ) -> Vec<Finding> {
        let memory = ProcessMemory::of(pid);
        let managed = self.managed.as_ref().map(|exports| {
            let found = exports.locate(self.bias, &memory, vector);
            (exports.language().name(), found.map(|it| it.map(|it| of_runtime(&it))))
        });
        let java = self.java.as_ref().map(|exports| {
            ("Java", exports.locate(self.bias, &memory).map(|it| it.map(|it| of_machine(&it))))
        });
        let v8 = self.v8.as_ref().map(|exports| {
            let found = exports.locate(self.bias, &memory, generated);
            ("JavaScript", found.map(|it| it.map(|it| of_engine(&it))))
        });
        let finding = |(name, found)| match found {
            Ok(Some(seen)) => Finding::fine(SUBJECT, seen),
            Ok(None) => Finding::fine(SUBJECT, format!("{name}, which does not run yet")),
            Err(refusal) => Finding::limit(SUBJECT, format!("{refusal}"), None),
        };
        managed.into_iter().chain(java).chain(v8).map(finding).collect()
    }
}

fn of_runtime(runtime: &Runtime) -> String {
    let threads = if runtime.names_threads() { ", threads" } else { "" };
    let tasks = if runtime.has_tasks() { ", asyncio tasks" } else { "" };
    format!("{}: functions, lines{threads}{tasks}", runtime.label)
}

fn of_machine(machine: &JavaMachine) -> String {
    let threads = match machine.names_threads() {
        true => "threads",
        false => "threads only in stacks, because of ZGC",
    };
    format!("{}: methods, lines, {threads}", machine.label)
}

fn of_engine(machine: &V8Machine) -> String {
    let label = &machine.label;
    if machine.is_proven {
        format!("{label}: functions, lines")
    } else {
        // The layout is checked with code that only a program that has run for a while has.
        format!("{label}: functions, lines (not checked: it has no optimized code yet)")
    }
}
