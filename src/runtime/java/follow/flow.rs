//! The paths through a piece of code.
//!
//! First the instructions are found that the entries reach, and among them those at which paths
//! meet. Then states are carried along the paths until they no longer change. Last come the holes:
//! code that no known entry reaches, such as handlers of exceptions. What is found there does not
//! change what the entries reach.

use std::collections::VecDeque;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};

use super::state::{RSP, State, TrackedValue};
use super::step::StateStepper;
use super::{GeneratedCode, GeneratedKind, is_call_stub};

/// Number of instructions that are applied for each byte of code, and at least and at most.
const WORK_PER_BYTE: usize = 64;
const WORK_MIN: usize = 4096;
const WORK_MAX: usize = 1 << 21;
/// The frame pointer's usual prologue in both encodings: `push rbp; mov rbp, rsp`.
const PROLOGUES: [[u8; 4]; 2] = [[0x55, 0x48, 0x8b, 0xec], [0x55, 0x48, 0x89, 0xe5]];

/// What is known of a byte of code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct FlowMark {
    /// The number of the instruction that starts here. 0 if none does.
    instruction: u32,
    /// Paths meet here, or one begins.
    is_join: bool,
}

/// An instruction that a path has reached.
#[derive(Debug, Clone, Copy)]
struct FlowInstruction {
    decoded: Instruction,
    next: Next,
    /// Number of the pass that found it.
    pass: u32,
    /// The number of the state before it, at a join that was reached. 0 if there is none.
    state: u32,
}

/// The states before the instructions of a piece of code.
pub(super) struct Flow<'a> {
    code: &'a GeneratedCode<'a>,
    marks: Vec<FlowMark>,
    /// Decoded once: that takes longer than all else.
    instructions: Vec<FlowInstruction>,
    states: Vec<State>,
    work: usize,
    pass: u32,
    cursor: FlowCursor,
    /// One for all instructions: making a decoder takes longer than decoding.
    decoder: Decoder<'a>,
}

fn decoder_of<'a>(code: &GeneratedCode<'a>) -> Decoder<'a> {
    Decoder::with_ip(64, code.bytes, code.start, DecoderOptions::NONE)
}

/// How an instruction goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// To the next one only.
    On,
    /// To the next one and to a target, if that is in the code.
    Branch(Option<u32>),
    /// To a target only, if that is in the code.
    Jump(Option<u32>),
    /// To the next one, after a function that may never return. It may be in the code.
    Call(Option<u32>),
    /// Nowhere that is known.
    End,
}

impl<'a> Flow<'a> {
    /// Follows a piece of code. `None` if that takes too much work.
    pub(super) fn of(code: &'a GeneratedCode<'a>) -> Option<Self> {
        let mut flow = Self {
            code,
            marks: vec![FlowMark::default(); code.bytes.len()],
            instructions: Vec::with_capacity(code.bytes.len() / 4),
            states: Vec::new(),
            work: (code.bytes.len() * WORK_PER_BYTE + WORK_MIN).min(WORK_MAX),
            pass: 1,
            cursor: FlowCursor::default(),
            decoder: decoder_of(code),
        };
        let entries = flow.entries();
        flow.follow(entries)?;
        if let (Some(offset), Some(body)) = (code.frame_complete, code.body()) {
            // The entry of a method that is no longer entered was overwritten with a jump.
            if (offset as usize) < code.bytes.len() && flow.state_at(offset).is_none() {
                flow.follow(vec![(offset, body)])?;
            }
        }
        // Each round finds at least one instruction that no round before has found.
        while let Some(hole) = flow.next_hole() {
            flow.pass += 1;
            flow.follow(vec![hole])?;
        }
        Some(flow)
    }

    /// Makes an offset, within the code, the place of the next instruction.
    fn seek(decoder: &mut Decoder<'a>, code: &GeneratedCode<'_>, offset: u32) {
        // The code has the offset, so its position is one.
        let _ = decoder.set_position(offset as usize);
        decoder.set_ip(code.start.wrapping_add(u64::from(offset)));
    }

    /// Returns the instruction that starts at an offset.
    fn instruction_at(&self, offset: u32) -> Option<&FlowInstruction> {
        let number = self.marks.get(offset as usize)?.instruction.checked_sub(1)?;
        self.instructions.get(number as usize)
    }

    /// Returns the state before an instruction at which paths meet.
    fn state_at(&self, offset: u32) -> Option<&State> {
        self.states.get(self.instruction_at(offset)?.state.checked_sub(1)? as usize)
    }

    fn offset(&self, avma: u64) -> Option<u32> {
        let offset = u32::try_from(avma.wrapping_sub(self.code.start)).ok()?;
        ((offset as usize) < self.code.bytes.len()).then_some(offset)
    }

    fn next(&self, instruction: &Instruction) -> Next {
        let target = || self.offset(instruction.near_branch_target());
        match instruction.flow_control() {
            _ if instruction.is_invalid() || instruction.mnemonic() == Mnemonic::Hlt => Next::End,
            FlowControl::Next | FlowControl::XbeginXabortXend => Next::On,
            FlowControl::ConditionalBranch => Next::Branch(target()),
            FlowControl::UnconditionalBranch => Next::Jump(target()),
            FlowControl::Call if instruction.near_branch_target() == instruction.next_ip() => {
                Next::On
            }
            FlowControl::Call => Next::Call(target()),
            FlowControl::IndirectCall => Next::Call(None),
            _ => Next::End,
        }
    }

    /// Returns the entries and their states.
    fn entries(&self) -> Vec<(u32, State)> {
        let code = self.code;
        let body = code.body();
        let called = match code.kind {
            GeneratedKind::InterpreterEntry | GeneratedKind::MethodHandles => State::method_entry(),
            GeneratedKind::Interpreter => State::interpreted(),
            GeneratedKind::FramedStub => State::framed(),
            GeneratedKind::Poll => State::polled(),
            // rdx has the address at which the exception was thrown.
            GeneratedKind::Exception => State::returned(1),
            _ => State::called(),
        };
        let mut entries: Vec<(u32, State)> = vec![(0, called)];
        entries.extend(code.entries.iter().map(|entry| (*entry, called)));
        if code.kind == GeneratedKind::Stubs {
            let starts = code.bytes.windows(4).enumerate();
            let starts = starts.filter(|(_, bytes)| PROLOGUES.iter().any(|it| it == bytes));
            entries.extend(starts.map(|(at, _)| (self.before_pushed(at) as u32, called)));
        }
        if let Some(body) = body {
            entries.extend(code.deoptimized.handlers.iter().map(|handler| (*handler, body)));
        }
        entries.retain(|(offset, _)| (*offset as usize) < code.bytes.len());
        entries
    }

    /// Returns where a stub begins that has this prologue: some push a constant first, such as the
    /// barrier at the entries of methods.
    fn before_pushed(&self, prologue: usize) -> usize {
        let pushes = [&[0x68, 0xff, 0xff, 0xff, 0xff][..], &[0x6a, 0xff]];
        let before = self.code.bytes.get(..prologue).unwrap_or_default();
        let pushed = pushes.iter().find(|push| before.ends_with(push));
        prologue - pushed.map_or(0, |push| push.len())
    }

    /// Finds the instructions that the entries reach, and their states.
    fn follow(&mut self, entries: Vec<(u32, State)>) -> Option<()> {
        let mut found: Vec<u32> = entries.iter().map(|(offset, _)| *offset).collect();
        if let Some(mark) = self.code.frame_complete.and_then(|it| self.marks.get_mut(it as usize))
        {
            mark.is_join = true;
        }
        let mut called = Vec::new();
        while let Some(start) = found.pop() {
            self.marks[start as usize].is_join |= self.is_own(start);
            self.find(start, &mut found, &mut called);
        }
        let called = called.into_iter().map(|offset| (offset, State::called()));
        self.settle(entries.into_iter().chain(called).collect())
    }

    /// Whether calls within the code are parts of the frame that makes them: the interpreter calls
    /// so what calls the machine.
    fn is_interpreter(&self) -> bool {
        matches!(self.code.kind, GeneratedKind::Interpreter | GeneratedKind::InterpreterEntry)
    }

    /// Whether an instruction may be changed by this pass.
    fn is_own(&self, offset: u32) -> bool {
        self.instruction_at(offset).is_none_or(|it| it.pass == self.pass)
    }

    /// Marks the instructions from an offset to the end of the path.
    fn find(&mut self, start: u32, found: &mut Vec<u32>, called: &mut Vec<u32>) {
        Self::seek(&mut self.decoder, self.code, start);
        let mut instruction = Instruction::default();
        let mut at = start;
        while self.decoder.can_decode() && self.marks[at as usize].instruction == 0 {
            self.decoder.decode_out(&mut instruction);
            if instruction.is_invalid() {
                return;
            }
            let next = self.next(&instruction);
            let (decoded, pass) = (instruction, self.pass);
            self.instructions.push(FlowInstruction { decoded, next, pass, state: 0 });
            self.marks[at as usize].instruction = self.instructions.len() as u32;
            match next {
                Next::On => {}
                Next::Branch(target) => found.extend(target),
                Next::Call(target) => {
                    if !self.is_interpreter() {
                        called.extend(target);
                    }
                    found.extend(target);
                }
                Next::Jump(target) => return found.extend(target),
                Next::End => return,
            }
            at += instruction.len() as u32;
        }
        // The path runs into another one.
        if self.instruction_at(at).is_some_and(|it| it.pass == self.pass) {
            self.marks[at as usize].is_join = true;
        }
    }

    /// Carries states along the paths until they no longer change. What only a call leads to, which
    /// may never return, comes last.
    fn settle(&mut self, entries: Vec<(u32, State)>) -> Option<()> {
        let mut stepper = self.stepper();
        let mut strong: VecDeque<u32> = VecDeque::new();
        let mut weak: VecDeque<(u32, State)> = VecDeque::new();
        for (offset, state) in entries {
            self.reach(offset, state, &mut strong);
        }
        loop {
            if let Some(offset) = strong.pop_front() {
                self.carry(offset, &mut stepper, &mut strong, &mut weak)?;
            } else if let Some((offset, state)) = weak.pop_front() {
                let is_other = self.state_at(offset).is_some_and(|it| !it.is_at(&state));
                if !is_other {
                    self.reach(offset, state, &mut strong);
                }
            } else {
                return Some(());
            }
        }
    }

    fn stepper(&self) -> StateStepper {
        let body = self.code.body();
        let sp = body.map_or(TrackedValue::Unknown, |body| body.register(RSP));
        let kind = self.code.kind;
        let body_sp = if kind == GeneratedKind::Method { sp } else { TrackedValue::Unknown };
        StateStepper::new(kind, body_sp)
    }

    /// Meets the state at a join with another one.
    fn reach(&mut self, offset: u32, state: State, changed: &mut VecDeque<u32>) {
        let state = self.at_body(offset, state.normal());
        let Some(number) = self.marks[offset as usize].instruction.checked_sub(1) else { return };
        let instruction = &mut self.instructions[number as usize];
        if instruction.pass != self.pass {
            return;
        }
        match instruction.state.checked_sub(1) {
            None => {
                self.states.push(state);
                instruction.state = self.states.len() as u32;
            }
            Some(number) => {
                let before = &mut self.states[number as usize];
                if *before == state {
                    return;
                }
                let both = before.meet(&state);
                if both == *before {
                    return;
                }
                *before = both;
            }
        }
        changed.push_back(offset);
    }

    /// Returns the state, or the body's where the frame is complete and the state says otherwise.
    fn at_body(&self, offset: u32, state: State) -> State {
        if self.code.frame_complete != Some(offset) {
            return state;
        }
        self.code.body().filter(|body| !state.is_at(body)).unwrap_or(state)
    }

    /// Carries the state of a join to the next ones.
    fn carry(
        &mut self,
        start: u32,
        stepper: &mut StateStepper,
        strong: &mut VecDeque<u32>,
        weak: &mut VecDeque<(u32, State)>,
    ) -> Option<()> {
        let Some(mut state) = self.state_at(start).copied() else { return Some(()) };
        let mut at = start;
        let mut is_after_call = false;
        loop {
            let Some(found) = self.instruction_at(at).filter(|it| it.pass == self.pass) else {
                return Some(());
            };
            let FlowInstruction { decoded: instruction, next, .. } = *found;
            if self.marks[at as usize].is_join && at != start {
                match is_after_call {
                    true => weak.push_back((at, state)),
                    false => self.reach(at, state, strong),
                }
                return Some(());
            }
            self.work = self.work.checked_sub(1)?;
            if let (Next::Call(Some(target)), true) = (&next, self.is_interpreter()) {
                let mut within = state;
                within.push(TrackedValue::Unknown);
                self.reach(*target, within, strong);
            }
            stepper.apply(&instruction, &mut state);
            is_after_call = match next {
                Next::Call(_) => true,
                _ => is_after_call && instruction.mnemonic() == Mnemonic::Nop,
            };
            match next {
                Next::On | Next::Call(_) => {}
                Next::Branch(target) => {
                    target.into_iter().for_each(|target| self.reach(target, state, strong));
                }
                Next::Jump(target) => {
                    target.into_iter().for_each(|target| self.reach(target, state, strong));
                    return Some(());
                }
                Next::End => return Some(()),
            }
            at += instruction.len() as u32;
        }
    }

    /// Returns the next code that no path has reached, with the state that its kind implies. Such
    /// code begins where a path ends, maybe behind padding.
    fn next_hole(&mut self) -> Option<(u32, State)> {
        let mut instruction = Instruction::default();
        while (self.cursor.at as usize) < self.code.bytes.len() {
            let at = self.cursor.at;
            if let Some(found) = self.instruction_at(at) {
                let is_after_return = found.decoded.flow_control() == FlowControl::Return;
                let is_after_end = matches!(found.next, Next::Jump(_) | Next::End);
                let at = at + found.decoded.len() as u32;
                self.cursor = FlowCursor { at, is_after_end, is_after_return };
                continue;
            }
            Self::seek(&mut self.decoder, self.code, at);
            self.decoder.decode_out(&mut instruction);
            let is_padding = matches!(instruction.mnemonic(), Mnemonic::Nop | Mnemonic::Int3);
            if is_padding && self.cursor.is_after_end {
                // Padding has one or more instructions.
                let to_start = self.marks[at as usize..].iter().take(instruction.len());
                let len = to_start.take_while(|mark| mark.instruction == 0).count();
                self.cursor.at = at + len as u32;
            } else {
                let hole = self.cursor.is_after_end.then(|| self.hole_state(at)).flatten();
                if let Some(state) = hole.filter(|_| !instruction.is_invalid()) {
                    return Some((at, state));
                }
                self.cursor = FlowCursor { at: at + 1, ..FlowCursor::default() };
            }
        }
        None
    }

    /// Returns the state of code that no path reaches.
    fn hole_state(&self, at: u32) -> Option<State> {
        let code = self.code;
        match code.kind {
            GeneratedKind::Interpreter => Some(State::interpreted()),
            GeneratedKind::MethodHandles => Some(State::method_entry()),
            GeneratedKind::Adapter => Some(State::called()),
            GeneratedKind::Stubs => self.cursor.is_after_return.then(State::called),
            GeneratedKind::Method if is_call_stub(&code.bytes[at as usize..]) => {
                Some(State::called())
            }
            GeneratedKind::Method if code.frame_complete.is_some_and(|it| at > it) => code.body(),
            _ => None,
        }
    }

    /// Shows the instructions that were found, in the order of their addresses, each with the state
    /// before it, whether that may be another one than the last known state that was shown, and
    /// whether it calls. Bytes that no path reaches have no state. An instruction that overlaps the
    /// one before is left out.
    pub(super) fn each(&self, mut visit: impl FnMut(u32, Option<(&State, bool)>, bool)) {
        let mut stepper = self.stepper();
        // The state after the last instruction, and whether that goes on to the next one.
        let (mut state, mut is_known) = (State::called(), false);
        let mut is_other = true;
        let mut at = 0;
        while let Some(mark) = self.marks.get(at as usize) {
            let Some(FlowInstruction { decoded, next, .. }) = self.instruction_at(at) else {
                visit(at, None, false);
                (at, is_known) = (at + 1, false);
                continue;
            };
            match self.state_at(at) {
                Some(met) => (state, is_known, is_other) = (*met, true, true),
                // A join without a state is reached by calls only that never return.
                None => is_known &= !mark.is_join,
            }
            visit(at, is_known.then_some((&state, is_other)), matches!(next, Next::Call(_)));
            is_other &= !is_known;
            is_known &= matches!(next, Next::On | Next::Branch(_) | Next::Call(_));
            if is_known {
                is_other |= stepper.apply(decoded, &mut state);
            }
            at += decoded.len().max(1) as u32;
        }
    }
}

/// The place from which the next hole is searched.
#[derive(Debug, Clone, Copy, Default)]
struct FlowCursor {
    at: u32,
    /// Whether a path ends before.
    is_after_end: bool,
    /// Whether that is by a return.
    is_after_return: bool,
}

impl GeneratedCode<'_> {
    /// Returns the state in the body of a function with a frame.
    pub(super) fn body(&self) -> Option<State> {
        let bytes = i32::try_from(self.frame_words).ok()?.checked_mul(8)?;
        (bytes > 0).then(|| State::body(bytes))
    }
}
