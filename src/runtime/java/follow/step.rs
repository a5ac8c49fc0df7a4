//! The effect of an instruction on what is known.

use iced_x86::{
    FlowControl, Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpAccess,
    OpKind, Register,
};

use super::GeneratedKind;
use super::state::{RAX, RBP, RSP, State, TrackedValue};

/// Applies instructions to states.
pub(super) struct StateStepper {
    info: InstructionInfoFactory,
    kind: GeneratedKind,
    /// The stack pointer of the code's body, which code that saved it restores.
    body_sp: TrackedValue,
}

/// Returns the DWARF number of a 64-bit register.
fn number(register: Register) -> Option<usize> {
    /// The order of the instruction set: rax rcx rdx rbx rsp rbp rsi rdi.
    const ORDER: [usize; 8] = [0, 2, 1, 3, 7, 6, 4, 5];
    if !register.is_gpr64() {
        return None;
    }
    let at = register.number();
    Some(ORDER.get(at).copied().unwrap_or(at))
}

impl StateStepper {
    pub(super) fn new(kind: GeneratedKind, body_sp: TrackedValue) -> Self {
        Self { info: InstructionInfoFactory::new(), kind, body_sp }
    }

    /// Changes the state to that after the instruction. Returns whether it may be another one.
    pub(super) fn apply(&mut self, instruction: &Instruction, state: &mut State) -> bool {
        match instruction.flow_control() {
            FlowControl::Call | FlowControl::IndirectCall => return call(instruction, state),
            FlowControl::Next | FlowControl::XbeginXabortXend => {}
            _ => return false,
        }
        if self.is_inert(instruction, state) {
            return false;
        }
        let is_done = match instruction.mnemonic() {
            Mnemonic::Push => push(instruction, state),
            Mnemonic::Pop => self.pop(instruction, state),
            Mnemonic::Mov => self.copy(instruction, state),
            Mnemonic::Lea => load_address(instruction, state),
            Mnemonic::Add => add(instruction, state, 1),
            Mnemonic::Sub => add(instruction, state, -1),
            Mnemonic::Leave => {
                state.set_sp(state.register(RBP));
                let saved = state.pop();
                state.set(RBP, saved);
                true
            }
            Mnemonic::And => self.align(instruction, state),
            Mnemonic::Nop => true,
            _ => false,
        };
        if !is_done {
            self.forget(instruction, state);
        }
        true
    }

    /// Whether the instruction is one of the usual ones that write their first operand at most, and
    /// neither that nor what is written is known. What [`Self::forget`] asks for takes longer than
    /// all else.
    fn is_inert(&self, instruction: &Instruction, state: &State) -> bool {
        use Mnemonic::{
            Add, And, Cmp, Dec, Inc, Lea, Mov, Movsx, Movsxd, Movzx, Nop, Or, Sar, Shl, Shr, Sub,
            Test, Xor,
        };
        let is_known = |register| {
            number(register)
                .is_some_and(|it| it == RSP || state.register(it) != TrackedValue::Unknown)
        };
        let is_source_known = match instruction.mnemonic() {
            Cmp | Test | Nop => return true,
            Mov => match instruction.op1_kind() {
                OpKind::Register => is_known(instruction.op1_register()),
                OpKind::Memory => {
                    is_known(instruction.memory_base()) || self.kind == GeneratedKind::Poll
                }
                _ => false,
            },
            Lea => is_known(instruction.memory_base()),
            Add | And | Dec | Inc | Movsx | Movsxd | Movzx | Or | Sar | Shl | Shr | Sub | Xor => {
                false
            }
            _ => return false,
        };
        !is_source_known
            && match instruction.op0_kind() {
                OpKind::Register => !is_known(instruction.op0_register().full_register()),
                OpKind::Memory => !is_known(instruction.memory_base()),
                _ => false,
            }
    }

    /// Aligns the stack pointer, if that does not move it: the CFA of a function to which a method
    /// jumps is a multiple of 16. That of code that the interpreter calls need not be.
    fn align(&self, instruction: &Instruction, state: &State) -> bool {
        let is_by_16 = instruction.op0_register() == Register::RSP
            && matches!(instruction.op1_kind(), OpKind::Immediate8to64 | OpKind::Immediate32to64)
            && instruction.immediate(1) as i64 == -16;
        let is_multiple = matches!(state.register(RSP), TrackedValue::Cfa(at) if at % 16 == 0);
        self.kind == GeneratedKind::Exception && is_by_16 && is_multiple
    }

    fn pop(&self, instruction: &Instruction, state: &mut State) -> bool {
        let Some(register) = number(instruction.op0_register()) else { return false };
        let value = state.pop();
        if register == RSP {
            self.restore_sp(state, value);
        } else {
            state.set(register, value);
        }
        true
    }

    /// Sets the stack pointer to a value from memory. Code saves only the one of its body there.
    fn restore_sp(&self, state: &mut State, value: TrackedValue) {
        state.set_sp(if value == TrackedValue::Unknown { self.body_sp } else { value });
    }

    fn copy(&mut self, instruction: &Instruction, state: &mut State) -> bool {
        let (to, from) = (number(instruction.op0_register()), number(instruction.op1_register()));
        match (instruction.op0_kind(), instruction.op1_kind()) {
            (OpKind::Register, OpKind::Register) => {
                let (Some(to), Some(from)) = (to, from) else { return false };
                if (to, from) == (RBP, RSP)
                    && self.kind == GeneratedKind::Deoptimization
                    && matches!(state.register(RSP), TrackedValue::Second(_))
                    && state.holder(TrackedValue::ReturnAddress).is_none()
                {
                    state.begin_frame(-16);
                    state.store((super::state::Base::Cfa, -16), TrackedValue::CallerFp);
                }
                state.set(to, state.register(from));
                true
            }
            (OpKind::Register, OpKind::Memory) => {
                let Some(to) = to else { return false };
                let value = match slot(instruction, state) {
                    Some(slot) => state.slot(slot),
                    None if self.kind == GeneratedKind::Poll && is_of_thread(instruction) => {
                        TrackedValue::ReturnAddress
                    }
                    None => TrackedValue::Unknown,
                };
                match to {
                    RSP => self.restore_sp(state, value),
                    _ => state.set(to, value),
                }
                true
            }
            (OpKind::Memory, OpKind::Register) => {
                let (Some(from), Some(slot)) = (from, slot(instruction, state)) else {
                    return false;
                };
                let value = match self.kind {
                    // Functions of C1 return to the handler of an exception so
                    // (`c1_Runtime1_x86.cpp`).
                    GeneratedKind::RuntimeStub | GeneratedKind::FramedStub
                        if from == RAX && slot == (super::state::Base::Cfa, -8) =>
                    {
                        TrackedValue::Handler
                    }
                    _ => state.register(from),
                };
                state.store(slot, value);
                true
            }
            _ => false,
        }
    }

    /// Forgets what the instruction writes.
    fn forget(&mut self, instruction: &Instruction, state: &mut State) {
        if instruction.is_stack_instruction() {
            let bytes = instruction.stack_pointer_increment();
            state.move_sp(bytes);
            if bytes < 0 {
                let slot = state.slot_at(RSP, 0);
                slot.into_iter().for_each(|slot| state.overwrite(slot, -bytes));
            }
        }
        let info = self.info.info_options(instruction, InstructionInfoOptions::NONE);
        let writes = |access: OpAccess| {
            use OpAccess::{CondWrite, ReadCondWrite, ReadWrite, Write};
            matches!(access, Write | CondWrite | ReadWrite | ReadCondWrite)
        };
        for used in info.used_memory().iter().filter(|it| writes(it.access())) {
            let base = number(used.base()).filter(|_| used.index() == Register::None);
            let slot = base.and_then(|base| state.slot_at(base, used.displacement() as i32));
            let bytes = used.memory_size().size() as i32;
            slot.into_iter().for_each(|slot| state.overwrite(slot, bytes));
        }
        for used in info.used_registers().iter().filter(|it| writes(it.access())) {
            match number(used.register().full_register()) {
                Some(RSP) if instruction.is_stack_instruction() => {}
                Some(register) => state.set(register, TrackedValue::Unknown),
                None => {}
            }
        }
    }
}

/// Returns the slot of the stack that the memory operand names.
fn slot(instruction: &Instruction, state: &State) -> Option<super::state::Slot> {
    if instruction.memory_index() != Register::None {
        return None;
    }
    let base = number(instruction.memory_base())?;
    let distance = i32::try_from(instruction.memory_displacement64() as i64).ok()?;
    state.slot_at(base, distance)
}

/// Whether the memory operand is a field of the machine's thread.
fn is_of_thread(instruction: &Instruction) -> bool {
    instruction.memory_base() == Register::R15 && instruction.memory_index() == Register::None
}

/// Registers of which neither calls of C nor calls of generated code say anything afterwards.
const CLOBBERED: [usize; 9] = [0, 1, 2, 4, 5, 8, 9, 10, 11];

fn call(instruction: &Instruction, state: &mut State) -> bool {
    if instruction.near_branch_target() == instruction.next_ip() {
        // The code pushes its own address.
        state.push(TrackedValue::Unknown);
        return true;
    }
    let mut known = CLOBBERED.into_iter().filter(|it| state.register(*it) != TrackedValue::Unknown);
    let is_other = known.next().is_some();
    for register in CLOBBERED {
        state.set(register, TrackedValue::Unknown);
    }
    is_other
}

fn push(instruction: &Instruction, state: &mut State) -> bool {
    let value = match instruction.op0_kind() {
        OpKind::Register => match number(instruction.op0_register()) {
            Some(register) => state.register(register),
            None => return false,
        },
        OpKind::Memory if instruction.stack_pointer_increment() == -8 => {
            slot(instruction, state).map_or(TrackedValue::Unknown, |slot| state.slot(slot))
        }
        _ if instruction.stack_pointer_increment() == -8 => TrackedValue::Unknown,
        _ => return false,
    };
    state.push(value);
    true
}

fn load_address(instruction: &Instruction, state: &mut State) -> bool {
    let Some(to) = number(instruction.op0_register()) else { return false };
    let distance = i32::try_from(instruction.memory_displacement64() as i64).ok();
    let is_plain = instruction.memory_index() == Register::None;
    let base = number(instruction.memory_base()).filter(|_| is_plain);
    let moved = |at: i32| distance.and_then(|by| at.checked_add(by));
    let value = match base.map(|base| state.register(base)) {
        Some(TrackedValue::Cfa(at)) => moved(at).map(TrackedValue::Cfa),
        Some(TrackedValue::Second(at)) => moved(at).map(TrackedValue::Second),
        _ => None,
    };
    state.set(to, value.unwrap_or(TrackedValue::Unknown));
    true
}

fn add(instruction: &Instruction, state: &mut State, sign: i64) -> bool {
    let Some(to) = number(instruction.op0_register()) else { return false };
    if !matches!(instruction.op1_kind(), OpKind::Immediate8to64 | OpKind::Immediate32to64) {
        return false;
    }
    let Ok(bytes) = i32::try_from(sign * instruction.immediate(1) as i64) else { return false };
    let moved = match state.register(to) {
        _ if to == RSP => {
            state.move_sp(bytes);
            return true;
        }
        TrackedValue::Cfa(at) => at.checked_add(bytes).map(TrackedValue::Cfa),
        TrackedValue::Second(at) => at.checked_add(bytes).map(TrackedValue::Second),
        _ => None,
    };
    moved.into_iter().for_each(|value| state.set(to, value));
    moved.is_some()
}
