//! A module of the target.

use traceprof_abi::unwind::Rule;

use crate::runtime::RuntimeExports;
use crate::runtime::java::JavaExports;
use crate::runtime::node::NodeExports;
use crate::runtime::pthreads::PthreadExports;
use crate::runtime::v8::{BuiltinRole, V8Exports};
use crate::symbol::ElfFile;
use crate::unwind::ModuleRef;

use super::compiled::{ContextExports, LoadSegments};

/// A module of the target.
#[derive(Debug)]
pub(crate) struct LoadedModule {
    /// The module's number within the recording.
    pub(crate) index: u32,
    /// The path as the target sees it.
    pub(crate) path: String,
    /// The GNU build id, empty if there is none.
    pub(crate) build_id: Vec<u8>,
    /// The open file, if it could be opened.
    pub(crate) elf: Option<ElfFile>,
    /// Functions by the unwind information: start and length (SVMA), sorted.
    pub(super) functions: Vec<(u64, u64)>,
    /// The position of its table in the tables segment.
    pub(super) table: Option<ModuleRef>,
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

impl LoadedModule {
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

    #[cfg(test)]
    pub(crate) fn for_test(index: u32, path: &str, elf: ElfFile) -> Self {
        let (build_id, functions) = (Vec::new(), Vec::new());
        let (path, elf) = (path.to_string(), Some(elf));
        let (loads, exports) = (LoadSegments::default(), ContextExports::default());
        let (runtime, java, v8, has_java_agent, table) = (None, None, None, false, None);
        let (node, pthreads) = (None, PthreadExports::default());
        let loop_rule = None;
        Self {
            index,
            path,
            build_id,
            elf,
            functions,
            table,
            loads,
            exports,
            runtime,
            java,
            v8,
            node,
            pthreads,
            has_java_agent,
            loop_rule,
        }
    }

    #[cfg(test)]
    pub(crate) fn with_functions(self, functions: &[(u64, u64)]) -> Self {
        Self { functions: functions.to_vec(), ..self }
    }
}
