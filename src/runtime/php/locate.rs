//! Finds the interpreter in a live process.

use std::ops::Range;

use traceprof_abi::runtime::php::PhpLayout;
use traceprof_abi::runtime::{CapturedThread, RuntimeBlock};

use super::exports::PhpExports;
use super::functions::PhpReader;
use crate::runtime::foreign_frames::has_foreign_frames;
use crate::runtime::memory::{self, TargetMemory};
use crate::runtime::{ManagedLanguage, Names, Runtime, Unsupported};

impl PhpExports {
    /// Finds the interpreter in a process: see [`crate::runtime::RuntimeExports::locate`].
    pub(in crate::runtime) fn locate(
        &self,
        bias: u64,
        memory: &dyn TargetMemory,
    ) -> Result<Runtime, Unsupported> {
        let (globals, known) = self.structures().map_err(|reason| self.refused(reason))?;
        let global = |at: u32| globals.wrapping_add(bias).wrapping_add(u64::from(at));
        let range =
            |range: &Range<u64>| range.start.wrapping_add(bias)..range.end.wrapping_add(bias);
        let loops: Vec<Range<u64>> = self.loops.iter().map(range).collect();
        let body = loops.first().cloned().unwrap_or_default();
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
            return Err(self.refused("has other frames than its release"));
        }
        Ok(Runtime {
            block,
            label: self.version.to_string(),
            language: ManagedLanguage::Php,
            loops,
            code: range(&self.code),
            locks: Vec::new(),
            names: Names::Php(PhpReader::new(layout, known.closures)),
        })
    }

    fn refused(&self, reason: &str) -> Unsupported {
        let text =
            format!("{}: {} {reason}, so its functions have no names", self.path, self.version);
        Unsupported { text, may_be_starting: false }
    }
}
