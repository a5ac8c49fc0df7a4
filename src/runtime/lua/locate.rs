//! Finds the interpreter in a live process.

use traceprof_abi::runtime::RuntimeBlock;
use traceprof_abi::runtime::lua::LuaLayout;

use super::exports::LuaExports;
use super::functions::LuaReader;
use crate::runtime::interpreter_file::biased;
use crate::runtime::{Names, Runtime, Unsupported};

impl LuaExports {
    /// Finds the interpreter in a process: see [`crate::runtime::RuntimeExports::locate`].
    pub(in crate::runtime) fn locate(&self, bias: u64) -> Result<Runtime, Unsupported> {
        let (code, known) = self.structures().map_err(|reason| self.file.refused(reason))?;
        let code = biased(&code, bias);
        let layout = LuaLayout {
            code_start: code.start,
            code_end: code.end,
            current: known.current,
            compiled_base: known.compiled_base,
            state: known.state,
            traces: known.traces,
            machine_code: known.machine_code,
            dispatch: known.dispatch,
            reserved: [0; 2],
        };
        let block = RuntimeBlock::of_lua(&layout);
        Ok(self.file.runtime(bias, block, Names::Lua(LuaReader { layout })))
    }
}
