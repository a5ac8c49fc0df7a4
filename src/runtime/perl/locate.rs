//! Finds the interpreter in a live process.

use traceprof_abi::context::{RecordKind, TlsLocation};
use traceprof_abi::runtime::perl::PerlLayout;
use traceprof_abi::runtime::{CapturedThread, RuntimeBlock};

use super::exports::PerlExports;
use super::functions::PerlReader;
use crate::elf::resolve_tls;
use crate::runtime::foreign_frames::has_foreign_frames;
use crate::runtime::memory::{self, TargetMemory};
use crate::runtime::{Names, Runtime, Unsupported};

impl PerlExports {
    /// Finds the interpreter in a process: see [`crate::runtime::RuntimeExports::locate`].
    pub(in crate::runtime) fn locate(
        &self,
        bias: u64,
        memory: &dyn TargetMemory,
        vector: RecordKind,
    ) -> Result<Option<Runtime>, Unsupported> {
        let (known, first) = self.structures().map_err(|reason| self.file.refused(reason))?;
        let first = first.wrapping_add(bias);
        let load = |avma: u64| memory::word(memory, avma);
        let has_interpreter = load(first).is_some_and(|interpreter| interpreter != 0);
        let mut ways = self.context.iter();
        let location = ways.find_map(|way| resolve_tls(*way, bias, vector, load));
        let Some(location) = location.filter(|_| has_interpreter) else { return Ok(None) };
        let layout = |TlsLocation { kind, offset, module }| PerlLayout {
            context_kind: kind as u64,
            context_offset: offset,
            context_module: module,
            ..known.layout
        };
        // The variable of the process leads to the first interpreter as that of its thread does.
        let of_process = TlsLocation { kind: RecordKind::Offset, offset: 0, module: 0 };
        let trial = RuntimeBlock::of_perl(&layout(of_process));
        let statement = || {
            let interpreter = load(first)?;
            load(interpreter.wrapping_add(u64::from(known.layout.statement)))
        };
        if has_foreign_frames((&trial, CapturedThread::of(first)), memory, statement) {
            return Err(self.file.refused("has other frames than its release"));
        }
        let layout = layout(location);
        let block = RuntimeBlock::of_perl(&layout);
        Ok(Some(self.file.runtime(bias, block, Names::Perl(PerlReader { layout }))))
    }
}
