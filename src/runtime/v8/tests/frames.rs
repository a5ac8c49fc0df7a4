//! The frames of the engine on the stack of a thread, as the frame pointers link them.

use traceprof_abi::runtime::v8::{
    BYTECODES_SLOT, CONTEXT_SLOT, FUNCTION_SLOT, OFFSET_SLOT, object_of,
};

use super::nodes::LiveEngine;
use crate::proc::ProcessMemory;
use crate::runtime::v8::{BuiltinRole, JsFunction, JsPosition, JsTier, V8Reader};
use crate::runtime::{Gone, TargetWords};

/// Most frames of a stack.
const FRAMES_MAX: usize = 4096;

/// Number of words of the frame through which native code calls.
const ENTRY_WORDS: u64 = 16;

/// A frame of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LiveFrame {
    pub(crate) pc: u64,
    /// Whether it is a return address.
    pub(crate) is_return: bool,
    /// The address and the cookie of what the function in the frame shares, if it has one.
    pub(crate) function: Option<(u64, u32)>,
    /// The offset of the bytecode, if there is one.
    pub(crate) offset: Option<u32>,
}

impl LiveFrame {
    /// Returns an address in the instruction.
    pub(crate) fn avma(&self) -> u64 {
        self.pc - u64::from(self.is_return)
    }
}

/// A function and a line, as names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamedPosition {
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) line: u32,
    pub(crate) tier: JsTier,
    /// Whether it is inlined into the next one.
    pub(crate) is_inlined: bool,
}

impl LiveEngine {
    fn is_code(&self, avma: u64) -> bool {
        self.builtin(avma).is_some() || self.is_generated(avma)
    }

    /// Returns the frame with this pc and frame pointer.
    fn frame(&self, memory: &ProcessMemory, (pc, is_return): (u64, bool), fp: u64) -> LiveFrame {
        let slot = |at: i64| {
            let mut bytes = [0; 8];
            let avma = fp.wrapping_add_signed(at);
            (memory.read(avma, &mut bytes) == 8).then(|| u64::from_le_bytes(bytes))
        };
        let layout = &self.machine.layout;
        let function = || {
            let words = &mut TargetWords(memory);
            object_of(slot(CONTEXT_SLOT)?)?;
            let function = slot(FUNCTION_SLOT)?;
            let kind = layout.instance_type(function, words)?;
            let is_function = (layout.function_first..=layout.function_last).contains(&kind);
            let shared = layout.field(object_of(function)?, layout.function_shared, words)?;
            let is_shared = layout.instance_type(shared, words)? == layout.shared_type;
            let shared = object_of(shared).filter(|_| is_function && is_shared)?;
            Some((shared, layout.cookie(shared, words)?))
        };
        let offset = || {
            object_of(slot(BYTECODES_SLOT)?)?;
            slot(OFFSET_SLOT).filter(|it| *it as u32 == 0).map(|it| (it >> 32) as u32)
        };
        LiveFrame { pc, is_return, function: function(), offset: offset() }
    }

    /// Returns the frames from this one on, up to the first that is none of the engine, and the
    /// frame pointer of the last one.
    pub(crate) fn frames_from(
        &self,
        memory: &ProcessMemory,
        pc: (u64, bool),
        fp: u64,
    ) -> (Vec<LiveFrame>, u64) {
        let word = |avma: u64| {
            let mut bytes = [0; 8];
            (memory.read(avma, &mut bytes) == 8).then(|| u64::from_le_bytes(bytes))
        };
        let (mut found, mut last) = (Vec::new(), fp);
        let mut next = Some((pc, fp));
        while let Some((pc, fp)) = next.filter(|((pc, _), _)| self.is_code(*pc)) {
            found.push(self.frame(memory, pc, fp));
            last = fp;
            let caller = word(fp + 8).zip(word(fp)).filter(|(_, caller)| *caller > fp);
            next = caller.map(|(pc, fp)| ((pc, true), fp));
            if found.len() > FRAMES_MAX {
                break;
            }
        }
        (found, last)
    }

    /// Returns the frames of a thread that sleeps, with this stack pointer: those that a chain of
    /// frame pointers leads to, and then those from which native code was called before. Native
    /// code leaves parts of the stack as they were, so the caller tells the first chain from old
    /// ones.
    pub(crate) fn sleeping_frames(
        &self,
        memory: &ProcessMemory,
        sp: u64,
        is_right: impl Fn(&[LiveFrame]) -> bool,
    ) -> Vec<LiveFrame> {
        let stack = self.mappings.iter().find(|it| (it.start..it.end).contains(&sp)).unwrap();
        let mut bytes = vec![0; (stack.end - sp) as usize];
        let got = memory.read(sp, &mut bytes);
        let (words, _) = bytes[..got].as_chunks::<8>();
        let word = |avma: u64| {
            let at = avma.checked_sub(sp).filter(|at| at % 8 == 0)?;
            words.get(at as usize / 8).map(|word| u64::from_le_bytes(*word))
        };
        // Whether a frame that was called from code of the engine has this frame pointer.
        let is_exit = |at: u64| {
            word(at).is_some_and(|fp| fp > at && fp < stack.end)
                && word(at.wrapping_add(8)).is_some_and(|pc| self.is_code(pc))
        };
        let mut found = Vec::new();
        let chain = |exit: u64| match (word(exit.wrapping_add(8)), word(exit)) {
            (Some(pc), Some(fp)) => self.frames_from(memory, (pc, true), fp),
            _ => (Vec::new(), 0),
        };
        let is_first = |at: &u64| is_exit(*at) && is_right(&chain(*at).0);
        let mut next = (sp..stack.end).step_by(8).find(is_first);
        while let Some(exit) = next {
            let (frames, entry) = chain(exit);
            found.extend(frames);
            // The frame through which native code has called keeps where that was called from.
            let kept = (1..=ENTRY_WORDS).filter_map(|index| word(entry - index * 8));
            next = kept.filter(|at| *at > entry).find(|at| is_exit(*at));
        }
        found
    }

    /// Returns the functions of a frame, innermost first. `None` if it has no function.
    pub(crate) fn names(
        &self,
        reader: &V8Reader<'_>,
        frame: &LiveFrame,
    ) -> Option<Result<Vec<NamedPosition>, Gone>> {
        let (shared, cookie) = frame.function?;
        Some(self.named(reader, frame, (shared, cookie)))
    }

    fn named(
        &self,
        reader: &V8Reader<'_>,
        frame: &LiveFrame,
        (shared, cookie): (u64, u32),
    ) -> Result<Vec<NamedPosition>, Gone> {
        let function = reader.function(shared, cookie)?;
        let alone = |tier, line| vec![named(&function, line, tier)];
        let interpreted =
            || alone(JsTier::Interpreted, frame.offset.map_or(0, |it| function.place_at(it).line));
        if let Some(svma) = self.builtin(frame.avma()) {
            let role = self.exports.builtin_at(svma);
            let is_interpreted = matches!(role, BuiltinRole::Trampoline | BuiltinRole::Handler);
            return Ok(if is_interpreted { interpreted() } else { alone(JsTier::Unknown, 0) });
        }
        let code = reader.code_at(frame.avma(), frame.function)?;
        if code.tier == JsTier::Interpreted {
            return Ok(interpreted());
        }
        if !code.is_of(cookie) {
            return Err(Gone::OtherCode);
        }
        let position = |it: &JsPosition<'_>| match it.function {
            Ok(function) => named(function, it.place.line, code.tier),
            Err(_) => NamedPosition {
                name: "unread".to_owned(),
                file: String::new(),
                line: 0,
                tier: code.tier,
                is_inlined: false,
            },
        };
        let positions = code.positions(frame.avma());
        let mut found: Vec<NamedPosition> = positions.iter().rev().map(position).collect();
        if let Some((_, inlined)) = found.split_last_mut() {
            inlined.iter_mut().for_each(|it| it.is_inlined = true);
        }
        Ok(found)
    }
}

fn named(function: &JsFunction, line: u32, tier: JsTier) -> NamedPosition {
    let (name, file) = (function.name.clone(), function.file.clone());
    NamedPosition { name, file, line, tier, is_inlined: false }
}
