//! What a file says about its code: its unwind table, its functions, and the symbols that lead to
//! language runtimes. The same for all processes that map the file.

use std::io;
use std::sync::Arc;

use traceprof_abi::unwind::Rule;

use crate::elf;
use crate::proc::DescriptorUse;
use crate::runtime::RuntimeExports;
use crate::runtime::java::{JavaExports, has_agent};
use crate::runtime::node::NodeExports;
use crate::runtime::pthreads::PthreadExports;
use crate::runtime::v8::{BuiltinRole, V8Exports};
use crate::symbol::ElfFile;
use crate::unwind::ModuleTable;

use super::compiled::{self, CompiledModule, ContextExports, LoadSegments};

/// A file with code.
#[derive(Debug, Default)]
pub(crate) struct ModuleFile {
    /// The path as the target sees it.
    pub(crate) path: String,
    /// The GNU build id, empty if there is none.
    pub(crate) build_id: Vec<u8>,
    /// The open file, if it could be opened and kept open.
    pub(crate) elf: Option<ElfFile>,
    /// Functions by the unwind information: start and length (SVMA), sorted.
    pub(super) functions: Vec<(u64, u64)>,
    /// The load segments, from which the bias of each mapping follows.
    pub(super) loads: LoadSegments,
    /// The symbols that lead to contexts of threads.
    pub(crate) exports: ContextExports,
    /// The symbols that lead to a language runtime, if the file has one.
    pub(crate) runtime: Option<RuntimeExports>,
    /// The symbols that lead to a Java machine, if the file has one.
    pub(crate) java: Option<JavaExports>,
    /// The symbols that lead to an engine of JavaScript, if the file has one.
    pub(crate) v8: Option<V8Exports>,
    /// The functions of threads of Node.js, if the file has it.
    pub(crate) node: Option<NodeExports>,
    /// What the file says about threads.
    pub(crate) pthreads: PthreadExports,
    /// Whether the file has an agent of a Java machine.
    pub(super) has_java_agent: bool,
    /// The unwind rule of the loop of its runtime, if that compiles code that shares the frame.
    pub(super) loop_rule: Option<Rule>,
}

/// A file and its unwind table.
#[derive(Debug)]
pub(super) struct ReadModule {
    pub(super) file: Arc<ModuleFile>,
    /// The table, or why there is none.
    pub(super) table: Result<ModuleTable, String>,
    /// Whether the file stays open. If not, its code has no names.
    pub(super) is_kept: bool,
}

impl ReadModule {
    /// Reads a file or the vDSO; `None` for a file that is not an ELF file.
    pub(super) fn of(elf: ElfFile, is_vdso: bool) -> io::Result<Option<Self>> {
        let bytes = elf.map()?;
        if !elf::is_elf(&bytes) {
            return Ok(None);
        }
        let mut file = match is_vdso {
            true => ModuleFile { path: elf.path().to_owned(), ..ModuleFile::default() },
            false => ModuleFile::with_exports(elf.path(), &bytes),
        };
        let build_id = compiled::build_id(&bytes, is_vdso);
        let elf = elf.with_build_id(build_id.clone());
        let is_kept = elf.is_within(DescriptorUse::Files);
        let table = match CompiledModule::of(&elf, &bytes, is_vdso) {
            Ok((compiled, table)) => {
                let shared = file.runtime.as_ref().and_then(RuntimeExports::shared_loop);
                file.loop_rule = shared.and_then(|range| table.usual_rule(&range));
                (file.functions, file.loads) = (compiled.functions, compiled.loads);
                (file.build_id, file.elf) = (build_id, Some(elf).filter(|_| is_kept));
                Ok(table)
            }
            Err(what) => Err(what),
        };
        Ok(Some(Self { file: Arc::new(file), table, is_kept }))
    }
}

impl ModuleFile {
    /// Reads the symbols that lead to runtimes.
    fn with_exports(path: &str, bytes: &[u8]) -> Self {
        Self {
            path: path.to_owned(),
            exports: ContextExports::of(bytes),
            runtime: RuntimeExports::of(bytes, path),
            java: JavaExports::of(bytes, path),
            v8: V8Exports::of(bytes, path),
            node: NodeExports::of(bytes),
            pthreads: PthreadExports::of(bytes),
            has_java_agent: has_agent(bytes),
            ..Self::default()
        }
    }

    /// Makes the file with this path that cannot be opened.
    pub(super) fn unopened(path: String) -> Self {
        Self { path, ..Self::default() }
    }

    /// Returns the start of the function at this SVMA, by the unwind information.
    pub(crate) fn function_start(&self, svma: u64) -> Option<u64> {
        let after = self.functions.partition_point(|(start, _)| *start <= svma);
        let (start, len) = self.functions.get(after.checked_sub(1)?)?;
        (svma - start < *len).then_some(*start)
    }

    /// Returns whether a function of this module only carries managed frames: it has this name, or
    /// none.
    pub(crate) fn is_carrier(&self, function: Option<&str>) -> bool {
        self.runtime.as_ref().is_some_and(|runtime| runtime.is_carrier(function))
    }

    /// Returns what an address (SVMA) is a part of, if it is in a function of an engine of
    /// JavaScript itself.
    pub(crate) fn builtin_at(&self, svma: u64) -> Option<BuiltinRole> {
        let exports = self.v8.as_ref().filter(|it| it.builtins().contains(&svma))?;
        Some(exports.builtin_at(svma))
    }
}
