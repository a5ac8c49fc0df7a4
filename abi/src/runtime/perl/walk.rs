//! The walk over the contexts of an interpreter, from the innermost one to the outermost one.

use super::cookie::{CodeKind, PerlObject, of_code, of_sub};
use super::sub::{Sub, line_in};
use super::{Lost, Reader};
use crate::runtime::frames::FrameWriter;
use crate::runtime::word::{EMPTY, ENTRY, FOREIGN, ManagedFrame, SectionEnd};
use crate::runtime::{FRAMES_MAX, WordReader};

/// Offsets in a stack: of its array of contexts, the stack below it, and the index of the innermost
/// context and the largest one, each of 32 bits.
const CONTEXTS: u16 = 8;
const OUTER: u16 = 16;
const INNERMOST: u16 = 32;
const LARGEST: u16 = 36;
const CONTEXT_LEN: u64 = 104;
/// Offsets in a context: of its type, the statement that made it, where its code continues when it
/// has ended, its sub and the number of calls of that before, and the root of the code of the file
/// or string before.
const TYPE: u16 = 0;
const STATEMENT: u16 = 16;
const CONTINUES: u16 = 48;
const SUB: u16 = 72;
const DEPTH_BEFORE: u16 = 80;
const EVALUATED_BEFORE: u16 = 72;
/// The place in a context's first word of the type of the operation that made it.
const MADE_BY_SHIFT: u32 = 16 + 7;
/// Types of contexts: of expressions, blocks, subs, formats, and `eval`.
const KIND_MASK: u8 = 0xf;
const OF_EXPRESSION: u8 = 0;
const OF_BLOCK: u8 = 2;
const OF_SUB: u8 = 9;
const OF_FORMAT: u8 = 10;
const OF_EVAL: u8 = 11;
/// Flags: native code calls the sub or expression again and again, `eval` of a block, and what a
/// regular expression or `try` has.
const REPEATED: u8 = 0x10;
const EVAL_BLOCK: u8 = 0x40;
const OTHER: u8 = 0x80;
/// Maximum number of contexts, and of stacks.
const STEPS_MAX: usize = 8 * FRAMES_MAX;
/// log2 of the number of frames that a walk remembers.
const KNOWN_SHIFT: u32 = 3;
/// A number whose products have different upper bits: 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// A context, as far as its frame needs it.
#[derive(Clone, Copy)]
struct PerlContext {
    avma: u64,
    first: u64,
    /// Whether it is the innermost one.
    is_leaf: bool,
}

impl PerlContext {
    fn kind(self) -> u8 {
        self.first as u8 & KIND_MASK
    }

    fn has(self, flag: u8) -> bool {
        self.first as u8 & flag != 0
    }
}

/// A sub, and what its frames have for it.
struct KnownSub {
    sub: Sub,
    object: u64,
    cookie: Option<u32>,
}

impl KnownSub {
    fn of(reader: &mut Reader<'_, impl WordReader>, avma: u64) -> Result<Self, Lost> {
        let sub = Sub::of(reader, avma)?;
        if sub.is_anonymous(reader).unwrap_or(false) {
            let object = PerlObject::Code(CodeKind::Anonymous, sub.start).word();
            return Ok(Self { sub, object, cookie: of_code(reader, sub.start).ok() });
        }
        Ok(Self { sub, object: avma, cookie: of_sub(reader, &sub).ok() })
    }

    /// Returns a frame of the sub at a line.
    fn frame(&self, position: u32) -> ManagedFrame {
        let (flags, cookie) = self.cookie.map_or((FOREIGN, 0), |cookie| (0, cookie));
        ManagedFrame { object: self.object, flags, position, cookie }
    }
}

/// The frame of a sub at a statement.
#[derive(Clone, Copy)]
struct KnownFrame {
    sub: u64,
    statement: u64,
    frame: ManagedFrame,
}

impl KnownFrame {
    const NONE: Self = Self { sub: 0, statement: 0, frame: ManagedFrame::NONE };
}

/// The walk over the contexts.
pub(super) struct PerlWalk<'w> {
    /// The frames that were stored.
    pub(super) frames: FrameWriter<'w>,
    /// The innermost stack.
    stack: u64,
    /// The operation that runs.
    operation: u64,
    /// The statement that runs in the next frame, or 0 if it is unknown.
    statement: u64,
    /// The statement that stands for those of code that is compiled.
    compiling: u64,
    /// The root of the next code of a file or string.
    evaluated: u64,
    /// The first operation of the program.
    program: u64,
    /// Frames, each at a hash of its sub and statement: recursion has the same ones many times.
    known: [KnownFrame; 1 << KNOWN_SHIFT],
}

impl<'w> PerlWalk<'w> {
    /// Makes a walk that stores frames of an interpreter.
    pub(super) fn into(
        frames: FrameWriter<'w>,
        reader: &mut Reader<'_, impl WordReader>,
        interpreter: u64,
    ) -> Result<Self, Lost> {
        let layout = reader.layout;
        let stack = reader.field(interpreter, layout.stack)?;
        if stack == 0 {
            return Err(Lost);
        }
        Ok(Self {
            frames,
            stack,
            operation: reader.field(interpreter, layout.operation)?,
            statement: reader.field(interpreter, layout.statement)?,
            compiling: interpreter.wrapping_add(u64::from(layout.compiling)),
            evaluated: reader.field(interpreter, layout.evaluated)?,
            program: reader.field(interpreter, layout.program)?,
            known: [KnownFrame::NONE; 1 << KNOWN_SHIFT],
        })
    }

    /// Stores the frames, and returns why they ended.
    pub(super) fn run(&mut self, reader: &mut Reader<'_, impl WordReader>) -> SectionEnd {
        self.walk(reader).err().unwrap_or(SectionEnd::Root)
    }

    fn walk(&mut self, reader: &mut Reader<'_, impl WordReader>) -> Result<(), SectionEnd> {
        let mut steps = STEPS_MAX;
        let mut stack = self.stack;
        loop {
            let contexts = reader.field(stack, CONTEXTS)?;
            let (mut count, largest) =
                (count(reader, stack, INNERMOST)?, reader.half(stack, LARGEST)?);
            if count > largest.wrapping_add(1) {
                return Err(SectionEnd::Unreadable);
            }
            let mut is_leaf = stack == self.stack;
            let mut kind = None;
            while let Some(index) = count.checked_sub(1) {
                steps = steps.checked_sub(1).ok_or(SectionEnd::Depth)?;
                let avma = contexts.wrapping_add(u64::from(index).wrapping_mul(CONTEXT_LEN));
                let context = PerlContext { avma, first: reader.field(avma, TYPE)?, is_leaf };
                self.step(reader, context)?;
                (count, is_leaf, kind) = (index, false, Some(context.kind()));
            }
            let outer = reader.field(stack, OUTER)?;
            if outer == 0 {
                // A thread, or a program with an interpreter in it, begins with a sub.
                return if kind == Some(OF_BLOCK) { self.push_program(reader) } else { Ok(()) };
            }
            steps = steps.checked_sub(1).ok_or(SectionEnd::Depth)?;
            stack = outer;
        }
    }

    fn step(
        &mut self,
        reader: &mut Reader<'_, impl WordReader>,
        context: PerlContext,
    ) -> Result<(), SectionEnd> {
        match context.kind() {
            // A regular expression runs code in the sub of the frame below.
            OF_SUB if context.has(OTHER) => self.push_call(),
            OF_SUB | OF_FORMAT => self.push_sub(reader, context),
            OF_EXPRESSION if context.has(REPEATED) => {
                // Between two calls, nothing of the expression runs.
                if context.is_leaf && self.operation == 0 { Ok(()) } else { self.push_call() }
            }
            OF_EVAL if context.has(EVAL_BLOCK | OTHER) => {
                self.evaluated = reader.field(context.avma, EVALUATED_BEFORE)?;
                Ok(())
            }
            OF_EVAL => self.push_eval(reader, context),
            _ => Ok(()),
        }
    }

    /// Stores the call of code that is a part of the frame below.
    fn push_call(&mut self) -> Result<(), SectionEnd> {
        self.frames.push(ManagedFrame { flags: EMPTY | ENTRY, ..ManagedFrame::NONE })
    }

    /// Stores the frame of a sub, unless it is not complete.
    fn push_sub(
        &mut self,
        reader: &mut Reader<'_, impl WordReader>,
        context: PerlContext,
    ) -> Result<(), SectionEnd> {
        let avma = reader.field(context.avma, SUB)?;
        let caller = reader.field(context.avma, STATEMENT)?;
        let continues = reader.field(context.avma, CONTINUES)?;
        let frame = match context.is_leaf {
            _ if avma == 0 => None,
            true => self.leaf(reader, (context, avma), (caller, continues))?,
            false => Some(self.frame(reader, avma)?),
        };
        let Some(frame) = frame else {
            // The context begins or ends; it has what its caller runs, or will have it.
            self.statement = if self.statement == caller { caller } else { 0 };
            return Ok(());
        };
        self.statement = caller;
        let entry = if continues == 0 { ENTRY } else { 0 };
        self.frames.push(ManagedFrame { flags: frame.flags | entry, ..frame })
    }

    /// Returns the frame of the innermost context. `None` if the context is not complete.
    fn leaf(
        &self,
        reader: &mut Reader<'_, impl WordReader>,
        (context, avma): (PerlContext, u64),
        continuation: (u64, u64),
    ) -> Result<Option<ManagedFrame>, Lost> {
        let Ok(known) = KnownSub::of(reader, avma) else { return Ok(None) };
        if !self.runs(reader, context, &known.sub)? {
            return Ok(None);
        }
        let is_entering = self.is_entering(reader, &known.sub, continuation)?;
        let line = if is_entering { 0 } else { known.sub.line_of(reader, self.statement)? };
        Ok(Some(known.frame(line)))
    }

    /// Returns the frame of another context.
    fn frame(
        &mut self,
        reader: &mut Reader<'_, impl WordReader>,
        sub: u64,
    ) -> Result<ManagedFrame, Lost> {
        let statement = self.statement;
        let index = (sub ^ statement).wrapping_mul(SPREAD) >> (64 - KNOWN_SHIFT);
        let index = index as usize;
        let known = self.known.get(index);
        if let Some(it) = known.filter(|it| it.sub == sub && it.statement == statement) {
            return Ok(it.frame);
        }
        let frame = match KnownSub::of(reader, sub) {
            Ok(known) => known.frame(known.sub.line_of(reader, statement)?),
            Err(Lost) => ManagedFrame { object: sub, flags: FOREIGN, ..ManagedFrame::NONE },
        };
        if let Some(place) = self.known.get_mut(index) {
            *place = KnownFrame { sub, statement, frame };
        }
        Ok(frame)
    }

    /// Whether the innermost context is complete and its sub runs.
    fn runs(
        &self,
        reader: &mut Reader<'_, impl WordReader>,
        context: PerlContext,
        sub: &Sub,
    ) -> Result<bool, Lost> {
        if context.kind() == OF_FORMAT {
            return Ok(true);
        }
        if context.has(REPEATED) && self.operation == 0 {
            return Ok(false);
        }
        Ok(sub.depth(reader)? > reader.half(context.avma, DEPTH_BEFORE)?)
    }

    /// Whether the innermost sub has not begun its first statement.
    fn is_entering(
        &self,
        reader: &mut Reader<'_, impl WordReader>,
        sub: &Sub,
        (caller, continues): (u64, u64),
    ) -> Result<bool, Lost> {
        if self.statement != caller {
            return Ok(false);
        }
        if continues == 0 || self.operation == 0 || self.operation == sub.start {
            return Ok(true);
        }
        Ok(reader.word(self.operation)? == continues)
    }

    /// Stores the frame of a file or string, unless it is not complete.
    fn push_eval(
        &mut self,
        reader: &mut Reader<'_, impl WordReader>,
        context: PerlContext,
    ) -> Result<(), SectionEnd> {
        let made_by = context.first >> MADE_BY_SHIFT & 0x1ff;
        let is_string = made_by == u64::from(reader.layout.string_type);
        let kind = if is_string { CodeKind::String } else { CodeKind::File };
        let caller = reader.field(context.avma, STATEMENT)?;
        let line = line_in(reader, self.statement, self.evaluated).ok().flatten();
        if context.is_leaf && line.is_none() && self.statement != self.compiling {
            self.statement = if self.statement == caller { caller } else { 0 };
            return Ok(());
        }
        let flags = if reader.field(context.avma, CONTINUES)? == 0 { ENTRY } else { 0 };
        self.push_code(reader, (kind, line), flags)?;
        self.statement = caller;
        self.evaluated = reader.field(context.avma, EVALUATED_BEFORE)?;
        Ok(())
    }

    fn push_program(&mut self, reader: &mut Reader<'_, impl WordReader>) -> Result<(), SectionEnd> {
        let line = line_in(reader, self.statement, self.program).ok().flatten();
        self.push_code(reader, (CodeKind::Program, line), ENTRY)
    }

    /// Stores the frame of code that is not in a sub. What is compiled has no line of its own yet.
    fn push_code(
        &mut self,
        reader: &mut Reader<'_, impl WordReader>,
        (kind, line): (CodeKind, Option<u32>),
        flags: u8,
    ) -> Result<(), SectionEnd> {
        let known = line.and_then(|line| Some((line, of_code(reader, self.statement).ok()?)));
        let (statement, line, cookie) =
            known.map_or((0, 0, 0), |(line, cookie)| (self.statement, line, cookie));
        let object = PerlObject::Code(kind, statement).word();
        self.frames.push(ManagedFrame { object, flags, position: line, cookie })
    }
}

/// Returns the number of contexts up to that whose index is in this field.
fn count(reader: &mut Reader<'_, impl WordReader>, stack: u64, field: u16) -> Result<u32, Lost> {
    Ok(reader.half(stack, field)?.wrapping_add(1))
}
