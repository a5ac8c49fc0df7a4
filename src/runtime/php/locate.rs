//! Finds the interpreter in a live process.

use traceprof_abi::runtime::php::PhpLayout;
use traceprof_abi::runtime::{CapturedThread, RuntimeBlock};

use super::exports::PhpExports;
use super::functions::PhpReader;
use crate::runtime::foreign_frames::has_foreign_frames;
use crate::runtime::interpreter_file::biased;
use crate::runtime::memory::{self, TargetMemory};
use crate::runtime::{Names, Runtime, Unsupported};

impl PhpExports {
    /// Finds the interpreter in a process: see [`crate::runtime::RuntimeExports::locate`].
    pub(in crate::runtime) fn locate(
        &self,
        bias: u64,
        memory: &dyn TargetMemory,
    ) -> Result<Runtime, Unsupported> {
        let (globals, known) = self.structures().map_err(|reason| self.file.refused(reason))?;
        let global = |at: u32| globals.wrapping_add(bias).wrapping_add(u64::from(at));
        let body = self.file.loops().first().map(|it| biased(it, bias)).unwrap_or_default();
        let layout = PhpLayout {
            current: global(known.globals.current),
            bailout: global(known.globals.bailout),
            thrown: known.globals.thrown.map_or(0, global),
            handling: known.globals.thrown.map_or(0, |at| global(at + 8)),
            loop_start: body.start,
            loop_end: body.end,
            has_registers: u16::from(self.has_registers),
            ..known.layout
        };
        let block = RuntimeBlock::of_php(&layout);
        let current = || memory::word(memory, layout.current);
        if has_foreign_frames((&block, CapturedThread::of(0)), memory, current) {
            return Err(self.file.refused("has other frames than its release"));
        }
        let names = Names::Php(PhpReader::new(layout, known.closures));
        Ok(self.file.runtime(bias, block, names))
    }
}
