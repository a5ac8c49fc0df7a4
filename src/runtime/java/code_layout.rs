//! The layout of what the unwind rules of code need besides: entries, and the interpreter's parts.

use std::ops::Range;

use traceprof_abi::unwind::code_heap::InterpreterLayout;

use super::tables::{Field, Missing, Tables};
use crate::runtime::pages::TargetPages;

/// Maximum number of parts of the interpreter. Machines have 300.
const PARTS_MAX: usize = 4096;
/// Alignment of the code of a part.
const PART_ALIGN: u64 = 32;
const NAME_MAX: usize = 256;
/// The slot of the position in a frame of the interpreter, in words from the frame pointer: a slot
/// before it came in with 9.
const POSITION_SLOT: i8 = -8;
const POSITION_SLOT_8: i8 = -7;

/// Where code is entered.
#[derive(Debug, Clone)]
pub(super) struct CodeLayout {
    pub(super) interpreter: InterpreterLayout,
    /// The entry of a method that was checked: a pointer, or an offset from the start of the code.
    verified_entry: Field,
    osr_entry: Option<Field>,
    /// Offset of the original return address from the stack pointer of a deoptimized frame.
    pub(super) original_pc: Field,
    queue: QueueLayout,
    /// Where the address is to which methods return that native code has called.
    pub(super) call_return: u64,
    /// Where pointers to entries of stubs are.
    stub_entries: Vec<u64>,
}

/// The queue of the interpreter's parts.
#[derive(Debug, Clone, Copy)]
struct QueueLayout {
    /// Where the pointer to the queue is.
    queue: u64,
    buffer: Field,
    begin: Field,
    end: Field,
    part_len: u64,
    size: Field,
    description: Field,
}

/// A part of the interpreter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InterpreterPart {
    pub(super) code: Range<u64>,
    pub(super) kind: PartKind,
}

/// What a part of the interpreter is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PartKind {
    /// Methods begin here.
    Entry,
    /// Methods go on here after the machine has replaced their compiled frames.
    ///
    /// The machine first makes frames that all return to the start of this part, then fills them,
    /// the outermost first, and gives each its own return address (`vframeArray.cpp`). Before that,
    /// the slots of a frame hold what was on the stack. The innermost frame may keep this address,
    /// but runs nothing as long as it is a return address.
    Deoptimized,
    /// Everything else.
    Other,
}

impl PartKind {
    fn of(name: &str) -> Self {
        match name {
            _ if name.contains("method entry") => Self::Entry,
            "deoptimization entry points" => Self::Deoptimized,
            _ => Self::Other,
        }
    }
}

impl CodeLayout {
    /// Looks up all fields of a machine of this version.
    pub(super) fn of(tables: &Tables, version: u8) -> Result<Self, Missing> {
        Ok(Self {
            interpreter: InterpreterLayout {
                runtime: 0,
                position_slot: if version == 8 { POSITION_SLOT_8 } else { POSITION_SLOT },
            },
            verified_entry: tables
                .field(&["nmethod::_verified_entry_point", "nmethod::_verified_entry_offset"])?,
            osr_entry: tables.optional("nmethod::_osr_entry_point"),
            original_pc: tables.field(&["nmethod::_orig_pc_offset"])?,
            queue: QueueLayout {
                queue: tables.address(&["AbstractInterpreter::_code"])?,
                buffer: tables.field(&["StubQueue::_stub_buffer"])?,
                begin: tables.field(&["StubQueue::_queue_begin"])?,
                end: tables.field(&["StubQueue::_queue_end"])?,
                part_len: tables.size("InterpreterCodelet")?,
                size: tables.field(&["InterpreterCodelet::_size"])?,
                description: tables.field(&["InterpreterCodelet::_description"])?,
            },
            call_return: tables.address(&["StubRoutines::_call_stub_return_address"])?,
            stub_entries: tables
                .addresses("StubRoutines::")
                // Neither is called.
                .filter(|(name, _)| {
                    !name.contains("return_address") && !name.contains("catch_exception")
                })
                .map(|(_, address)| address)
                .collect(),
        })
    }

    /// Returns the offsets in its code of the entries of a method.
    pub(super) fn method_entries(
        &self,
        start: u64,
        code: &Range<u64>,
        pages: &TargetPages<'_>,
    ) -> Vec<u32> {
        let verified = self.verified_entry.read(pages, start);
        let verified = match self.verified_entry.end() - self.verified_entry.at {
            8 => verified,
            _ => verified.and_then(|offset| code.start.checked_add(offset)),
        };
        let osr = self.osr_entry.and_then(|field| field.read(pages, start));
        verified.into_iter().chain(osr).filter_map(|entry| offset_in(code, entry)).collect()
    }

    /// Returns the offsets in this code of the entries of stubs.
    pub(super) fn stub_entries(&self, code: &Range<u64>, pages: &TargetPages<'_>) -> Vec<u32> {
        let entries = self.stub_entries.iter().filter_map(|at| pages.word(*at));
        entries.filter_map(|entry| offset_in(code, entry)).collect()
    }

    /// Reads the parts of the interpreter.
    pub(super) fn interpreter_parts(&self, pages: &TargetPages<'_>) -> Vec<InterpreterPart> {
        let QueueLayout { queue, buffer, begin, end, part_len, size, description } = self.queue;
        let mut parts = Vec::new();
        let read = || {
            let queue = pages.pointer(queue)?;
            let first = buffer.pointer(pages, queue)?;
            Some((first, begin.count(pages, queue)?, end.count(pages, queue)?))
        };
        let Some((first, mut at, end)) = read() else { return parts };
        while at < end && parts.len() < PARTS_MAX {
            let Some(start) = first.checked_add(at) else { break };
            let len = size.count(pages, start).filter(|len| *len > part_len);
            let Some(len) = len.filter(|len| *len <= end - at) else { break };
            let name = description.read(pages, start).and_then(|it| pages.text(it, NAME_MAX));
            let code = (start + part_len).next_multiple_of(PART_ALIGN)..start + len;
            let kind = name.map_or(PartKind::Other, |name| PartKind::of(&name));
            parts.push(InterpreterPart { code, kind });
            at += len;
        }
        parts
    }
}

/// Returns the offset of an address in a piece of code.
pub(super) fn offset_in(code: &Range<u64>, avma: u64) -> Option<u32> {
    code.contains(&avma).then(|| u32::try_from(avma - code.start).ok()).flatten()
}
