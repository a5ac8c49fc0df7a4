//! Finds V8 in a live process.

use std::ops::Range;

use super::code::JsTier;
use super::code_finder::some_code;
use super::exports::V8Exports;
use super::machine::{V8Machine, V8Reader};
use super::script::KnownLines;
use crate::runtime::memory::{self, TargetMemory};
use crate::runtime::{Gone, Unsupported};
use crate::text::printable;

/// Number of pieces of code with which the layout is checked, and of bytes in which they are
/// searched.
const CHECKED: usize = 16;
const SEARCHED: u64 = 8 << 20;
/// Maximum length of a version of Node.js in bytes.
const VERSION_MAX: u64 = 32;

impl V8Exports {
    /// Finds the engine in a process that has loaded the file, with this load bias. `code` are the
    /// anonymous executable mappings of the process (AVMAs), where the code is with which the
    /// layout is checked.
    ///
    /// The result is `None` if the program's memory is not readable.
    ///
    /// # Errors
    /// [`Unsupported`] if the version or build of the engine is not known.
    pub fn locate(
        &self,
        bias: u64,
        memory: &dyn TargetMemory,
        code: &[Range<u64>],
    ) -> Result<Option<V8Machine>, Unsupported> {
        let layout = match &self.layout {
            Ok(layout) => layout.clone(),
            Err(reason) => return Err(self.refused(reason)),
        };
        let Some((label, is_labelled)) = self.label(bias, memory) else { return Ok(None) };
        let mut machine = V8Machine {
            label,
            is_labelled,
            is_proven: false,
            layout: layout.for_handlers(),
            heap: layout,
            sizes: self.sizes.clone(),
            trampolines: self.builtins.trampoline_lens(),
            lines: KnownLines::default(),
        };
        let (fits, others) = compared(&machine.reader(memory), code);
        if fits == 0 && others > 1 {
            return Err(self.refused("has other code than its release"));
        }
        machine.is_proven = fits > 0;
        Ok(Some(machine))
    }

    /// Returns the name of the program with its version, and whether it is all that there will be:
    /// Node.js has no version while it starts. `None` if it is not readable.
    fn label(&self, bias: u64, memory: &dyn TargetMemory) -> Option<(String, bool)> {
        let engine = self.version.to_string();
        let Some(metadata) = self.node_metadata else { return Some((engine, true)) };
        // A string of the program's library: its characters and their number.
        let at = metadata.wrapping_add(bias);
        let (text, len) = (memory::word(memory, at)?, memory::word(memory, at.wrapping_add(8))?);
        let mut version = vec![0; len.min(VERSION_MAX) as usize];
        let is_read = memory.read(text, &mut version) == version.len();
        let version = String::from_utf8(version).ok().filter(|_| is_read);
        let is_number =
            |it: &String| it.starts_with(|first: char| first.is_ascii_digit()) && it.contains('.');
        Some(match version.filter(is_number) {
            Some(version) => (printable(&format!("Node.js {version} ({engine})")), true),
            None => (engine, false),
        })
    }
}

/// Returns how many pieces of optimized code of the process are as the layout says, and how many
/// are not. There may be none yet, and what is read while it changes may be anything.
fn compared(reader: &V8Reader<'_>, code: &[Range<u64>]) -> (usize, usize) {
    let (mut fits, mut others, mut bytes) = (0, 0, SEARCHED);
    let is_optimized = |code: &_| matches!(reader.tier(code), JsTier::Mid | JsTier::Optimized);
    for range in code {
        for found in some_code(reader, range, is_optimized, CHECKED, &mut bytes) {
            match reader.code_at(found.instructions.start, None) {
                Ok(code) if code.function.is_some() => fits += 1,
                Ok(_) | Err(Gone::OtherType) => others += 1,
                Err(_) => {}
            }
        }
        if fits + others >= CHECKED {
            break;
        }
    }
    (fits, others)
}
