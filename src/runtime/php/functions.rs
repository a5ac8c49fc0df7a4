//! Names functions.
//!
//! # Invariants
//! - A function is returned only if it had the cookie of the capture before and after its strings
//!   were read. The cookie is made of the hashes of these strings, and their bytes have the hashes.

use traceprof_abi::runtime::php::{
    CLASS_NAME, FUNCTION_CLASS, FUNCTION_KIND, FUNCTION_NAME, FunctionKind, PhpLayout, cookie,
};

use super::text;
use crate::runtime::function::{PositionKind, read_unchanged};
use crate::runtime::memory::{self, TargetMemory, TargetWords};
use crate::runtime::{Function, Gone};

/// What a file has outside of functions, as in PHP's own stack traces.
const MAIN: &str = "{main}";
/// The code of a string.
const EVAL: &str = "{eval}";

/// Reads the functions of one interpreter.
#[derive(Debug, Clone)]
pub(in crate::runtime) struct PhpReader {
    pub(super) layout: PhpLayout,
}

impl PhpReader {
    /// Reads a function that had this cookie when it was captured.
    pub(in crate::runtime) fn function(
        &self,
        memory: &dyn TargetMemory,
        object: u64,
        captured: u32,
    ) -> Result<Function, Gone> {
        let cookie = || {
            memory::word(memory, object).filter(|_| object != 0).ok_or(Gone::Unreadable)?;
            Ok(cookie(&self.layout, object, &mut TargetWords(memory)))
        };
        read_unchanged(captured, cookie, || self.read(memory, object))
    }

    fn read(&self, memory: &dyn TargetMemory, object: u64) -> Result<Function, Gone> {
        let word = |base: u64, at: u64| {
            memory::word(memory, base.wrapping_add(at)).ok_or(Gone::Unreadable)
        };
        let kind = FunctionKind::of(word(object, FUNCTION_KIND)?).ok_or(Gone::OtherType)?;
        let name = match (word(object, FUNCTION_NAME.into())?, kind) {
            (0, FunctionKind::Eval) => EVAL.to_owned(),
            (0, _) => MAIN.to_owned(),
            (name, _) => text::read(memory, name).ok_or(Gone::Name)?,
        };
        let name = match word(object, FUNCTION_CLASS.into())? {
            0 => name,
            class => {
                let class = word(class, CLASS_NAME.into())?;
                let class = text::read(memory, class).ok_or(Gone::Name)?;
                format!("{class}::{name}")
            }
        };
        let (mut file, mut line) = (String::new(), 0);
        if kind != FunctionKind::Internal {
            let avma = word(object, self.layout.file.into())?;
            file = text::read(memory, avma).ok_or(Gone::File)?;
            line = word(object, self.layout.lines.into())? as u32;
        }
        Ok(Function { name, file, line, is_pseudo: false, lines: PositionKind::Positions })
    }
}
