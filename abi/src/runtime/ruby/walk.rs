//! The walk over the frames of a thread or fiber, from the innermost one to the outermost one.

use super::compiled::makes_frame;
use super::cookie::{cookie, method};
use super::{
    BODY_CODE, BODY_LEN, DEFINITION_SEQUENCE, INNERMOST, Lost, METHOD_DEFINITION, NOWHERE, Reader,
    SEQUENCE_BODY,
};
use crate::runtime::frames::FrameWriter;
use crate::runtime::word::{ENTRY, FOREIGN, ManagedFrame, SectionEnd};
use crate::runtime::{CapturedThread, FRAMES_MAX, WordReader};

/// Offsets in a context: of its array of frames and values, the number of words of that, and the
/// innermost frame.
const ARRAY: u16 = 0;
const ARRAY_LEN: u16 = 8;
const CURRENT: u16 = 16;
/// Offsets in a frame: of its position, its sequence of instructions, and its environment.
const POSITION: u16 = 0;
const SEQUENCE: u16 = 16;
const ENVIRONMENT: u16 = 32;
/// Distance before an environment's flags of what tells its method.
const METHOD_BEFORE: u64 = 16;
/// The kinds of frames in the flags of their environments.
const KIND_MASK: u64 = 0x7fff_0001;
const METHOD: u64 = 0x1111_0001;
const IN_C: u64 = 0x5555_0001;
/// The kind of a frame below all others, which may have instructions but runs nothing.
const OF_NOTHING: u64 = 0x7999_0001;
/// The kind of a frame of a file. One without a position stands for a library in C that is loaded,
/// and runs nothing: the interpreter's own backtraces leave it out.
const OF_FILE: u64 = 0x4444_0001;
/// The kinds of other frames: of blocks, class bodies, files, blocks in C, strings, and `rescue`
/// and `ensure`.
const OTHERS: [u64; 7] =
    [0x2222_0001, 0x3333_0001, OF_FILE, 0x6666_0001, 0x7777_0001, 0x7888_0001, OF_NOTHING];
/// The flag of a frame that native code called.
const FROM_NATIVE: u64 = 0x20;
/// The flag of a frame without instructions.
const OF_NATIVE: u64 = 0x80;
/// The kind of a definition that has a sequence of instructions, and that of one in C.
const KIND_BITS: u64 = 0xf;
const WITH_SEQUENCE: u64 = 0;
const WITH_FUNCTION: u64 = 1;
/// Maximum number of words of an array: the largest ones of fibers and threads have a million.
const WORDS_MAX: u64 = 1 << 24;
/// Maximum number of steps: of frames with a method or code, and of those without between them.
const STEPS_MAX: usize = 2 * FRAMES_MAX;
/// What a body has instead of native code is less.
const CODE_MIN: u64 = 64;

/// The frames of a thread or fiber, which grow towards lower addresses.
pub(super) struct FrameArray {
    /// The innermost frame that is complete.
    leaf: u64,
    /// Whether that frame calls: it has its position behind the call.
    calls: bool,
    /// The end of the array.
    end: u64,
    /// Whether the thread's stack is the one on which these frames run.
    is_own: bool,
}

impl FrameArray {
    /// Finds the frames of a thread. `None` if it runs no Ruby code.
    pub(super) fn of(
        reader: &mut Reader<'_, impl WordReader>,
        thread: CapturedThread,
    ) -> Result<Option<Self>, Lost> {
        let Some(way) = reader.layout.context() else { return Ok(None) };
        let variable = way.variable(thread.pointer, |avma| reader.memory.load(avma))?;
        let context = variable.map_or(Ok(0), |variable| reader.word(variable))?;
        if context == 0 {
            return Ok(None);
        }
        let array = reader.field(context, ARRAY)?;
        let leaf = reader.field(context, CURRENT)?;
        if array == 0 || leaf == 0 {
            return Ok(None);
        }
        let len = reader.field(context, ARRAY_LEN)?.min(WORDS_MAX).wrapping_mul(8);
        if leaf & 7 != 0 || leaf.wrapping_sub(array) > len {
            return Err(Lost);
        }
        // A thread that changes to another fiber has its frames before it has its stack.
        let stack = reader.field(context, reader.layout.context_stack)?;
        let stack_len = match reader.field(context, reader.layout.context_stack_len)? {
            0 => u64::MAX,
            len => len,
        };
        let is_on_stack = thread.stack <= stack && stack.wrapping_sub(thread.stack) <= stack_len;
        let is_own = thread.stack == 0 || is_on_stack;
        // Only frames that do not tell are made in parts.
        let calls = reader.layout.frame_compiled == 0 && makes_frame(reader.memory, thread.pc);
        let made = if calls { u64::from(reader.layout.frame_len) } else { 0 };
        let (leaf, end) = (leaf.wrapping_add(made), array.wrapping_add(len));
        Ok(Some(Self { leaf, calls, end, is_own }))
    }
}

/// The walk over the frames.
pub(super) struct RubyWalk<'w> {
    /// The frames that were stored.
    pub(super) frames: FrameWriter<'w>,
    /// The object of the last frame, and its cookie.
    last: (u64, Option<u32>),
}

impl<'w> RubyWalk<'w> {
    /// Makes a walk that stores frames.
    pub(super) fn into(frames: FrameWriter<'w>) -> Self {
        Self { frames, last: (0, None) }
    }

    /// Stores the frames of an array, and returns why it ended.
    pub(super) fn run(
        &mut self,
        reader: &mut Reader<'_, impl WordReader>,
        array: &FrameArray,
    ) -> SectionEnd {
        if !array.is_own {
            let unknown = ManagedFrame { flags: FOREIGN | ENTRY, ..ManagedFrame::NONE };
            return self.frames.push(unknown).err().unwrap_or(SectionEnd::Unlinked);
        }
        let len = u64::from(reader.layout.frame_len);
        let mut frame = array.leaf;
        for _ in 0..STEPS_MAX {
            if array.end.wrapping_sub(frame) < len {
                return SectionEnd::Root;
            }
            if let Err(end) = self.step(reader, frame, frame == array.leaf && !array.calls) {
                return end;
            }
            frame = frame.wrapping_add(len);
        }
        SectionEnd::Depth
    }

    /// Stores a frame, unless it runs nothing.
    fn step(
        &mut self,
        reader: &mut Reader<'_, impl WordReader>,
        frame: u64,
        is_leaf: bool,
    ) -> Result<(), SectionEnd> {
        let environment = reader.field(frame, ENVIRONMENT)?;
        let flags = reader.word(environment)?;
        let kind = flags & KIND_MASK;
        let is_entry = flags & FROM_NATIVE != 0 && flags & OF_NATIVE == 0;
        let entry = if is_entry { ENTRY } else { 0 };
        if kind == IN_C {
            let method = method_of(reader, environment, WITH_FUNCTION)?;
            return self.push(reader, method.map_or(0, |(method, _)| method), (entry, 0));
        }
        if kind != METHOD && !OTHERS.contains(&kind) {
            return self.push(reader, 0, (entry, 0));
        }
        if flags & OF_NATIVE != 0 || kind == OF_NOTHING {
            return Ok(());
        }
        if kind == OF_FILE && reader.field(frame, POSITION)? == 0 {
            return Ok(());
        }
        let sequence = reader.field(frame, SEQUENCE)?;
        let body = reader.field(sequence, SEQUENCE_BODY)?;
        let position = position(reader, (frame, body), is_leaf)?;
        let method = match kind {
            METHOD => method_of(reader, environment, WITH_SEQUENCE)?,
            _ => None,
        };
        // Methods with optional arguments may have a second sequence, of which no entry tells.
        let method = method.filter(|(_, of_method)| *of_method == sequence);
        let object = method.map_or(body, |(method, _)| method);
        self.push(reader, object, (entry, position))
    }

    fn push(
        &mut self,
        reader: &mut Reader<'_, impl WordReader>,
        object: u64,
        (flags, position): (u8, u32),
    ) -> Result<(), SectionEnd> {
        if self.last.0 != object {
            self.last = (object, cookie(reader.layout, object, reader.memory));
        }
        let (foreign, cookie) = self.last.1.map_or((FOREIGN, 0), |cookie| (0, cookie));
        self.frames.push(ManagedFrame { object, flags: flags | foreign, position, cookie })
    }
}

/// Returns the entry of a frame's method whose definition is of this kind, and the definition's
/// sequence of instructions.
fn method_of(
    reader: &mut Reader<'_, impl WordReader>,
    environment: u64,
    kind: u64,
) -> Result<Option<(u64, u64)>, Lost> {
    let object = reader.word(environment.wrapping_sub(METHOD_BEFORE))?;
    let Some(method) = method(reader, object)? else { return Ok(None) };
    let definition = reader.field(method, METHOD_DEFINITION)?;
    let is_it = reader.word(definition)? & KIND_BITS == kind;
    let sequence = reader.field(definition, DEFINITION_SEQUENCE)?;
    Ok(is_it.then_some((method, sequence)))
}

/// Returns the position of a frame: the index of a word of its instructions.
fn position(
    reader: &mut Reader<'_, impl WordReader>,
    (frame, body): (u64, u64),
    is_leaf: bool,
) -> Result<u32, Lost> {
    let at = reader.field(frame, POSITION)?.wrapping_sub(reader.field(body, BODY_CODE)?);
    let len = reader.half(body, BODY_LEN)? & !INNERMOST;
    if at & 7 != 0 || at >> 3 > u64::from(len) {
        return Ok(NOWHERE);
    }
    let position = (at >> 3) as u32;
    if !is_leaf {
        return Ok(position);
    }
    // Native code stores its position only before it calls.
    let is_compiled = reader.field(body, reader.layout.body_compiled)? >= CODE_MIN
        || has_run_compiled(reader, frame)?;
    Ok(if is_compiled { NOWHERE } else { position | INNERMOST })
}

/// Whether a frame says that it has run native code.
fn has_run_compiled(reader: &mut Reader<'_, impl WordReader>, frame: u64) -> Result<bool, Lost> {
    match reader.layout.frame_compiled {
        0 => Ok(false),
        at => Ok(reader.field(frame, at)? != 0),
    }
}
