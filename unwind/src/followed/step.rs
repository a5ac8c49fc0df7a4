//! The effect of an instruction on what is known.

use iced_x86::{
    Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpAccess, OpKind,
    Register,
};

use super::state::{FrameState, Rbp};

/// Applies instructions to states.
pub(super) struct FrameStepper(InstructionInfoFactory);

impl FrameStepper {
    pub(super) fn new() -> Self {
        Self(InstructionInfoFactory::new())
    }

    /// Changes the state to that after an instruction that goes on to the next one.
    pub(super) fn apply(&mut self, instruction: &Instruction, state: &mut FrameState) {
        let is_done = match instruction.mnemonic() {
            Mnemonic::Push => push(instruction, state),
            Mnemonic::Pop => pop(instruction, state),
            Mnemonic::Mov => copy(instruction, state),
            Mnemonic::Lea => load_address(instruction, state),
            Mnemonic::Add => add(instruction, state, -1),
            Mnemonic::Sub => add(instruction, state, 1),
            // A call that pushes its own address.
            Mnemonic::Call => {
                state.lower(8);
                true
            }
            Mnemonic::Leave => {
                state.set_sp_from_rbp(0);
                pop_into(Register::RBP, state);
                true
            }
            _ => false,
        };
        if !is_done {
            self.forget(instruction, state);
        }
        let is_read =
            matches!(instruction.mnemonic(), Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push);
        let is_of_rbp = instruction.mnemonic() == Mnemonic::Mov
            && instruction.op1_kind() == OpKind::Register
            && instruction.op1_register() == Register::RBP;
        if instruction.op0_kind() == OpKind::Memory
            && let Some(offset) = of_sp(instruction)
            && !is_read
            && !(is_of_rbp && is_done)
        {
            state.store(offset);
        }
    }

    /// Forgets what the instruction writes.
    fn forget(&mut self, instruction: &Instruction, state: &mut FrameState) {
        let is_either = |operand: u32| {
            let register = instruction.op_register(operand).full_register();
            register == Register::RSP || register == Register::RBP
        };
        if instruction.is_stack_instruction() {
            state.lower(instruction.stack_pointer_increment().wrapping_neg());
        } else if !(0..instruction.op_count()).any(is_either) {
            return;
        }
        let info = self.0.info_options(instruction, InstructionInfoOptions::NO_MEMORY_USAGE);
        for used in info.used_registers() {
            let is_read = matches!(used.access(), OpAccess::Read | OpAccess::CondRead);
            match used.register().full_register() {
                _ if is_read => {}
                Register::RSP if !instruction.is_stack_instruction() => state.set_sp(None),
                Register::RBP => state.set_rbp(Rbp::Other),
                _ => {}
            }
        }
    }
}

fn push(instruction: &Instruction, state: &mut FrameState) -> bool {
    if instruction.stack_pointer_increment() != -8 {
        return false;
    }
    state.lower(8);
    if instruction.op0_kind() == OpKind::Register && instruction.op0_register() == Register::RBP {
        state.store_rbp(0);
    }
    true
}

fn pop(instruction: &Instruction, state: &mut FrameState) -> bool {
    let is_simple =
        instruction.stack_pointer_increment() == 8 && instruction.op0_kind() == OpKind::Register;
    if is_simple {
        pop_into(instruction.op0_register(), state);
    }
    is_simple
}

fn pop_into(register: Register, state: &mut FrameState) {
    if register == Register::RBP {
        state.load_rbp(0);
    }
    state.lower(-8);
    if register == Register::RSP {
        state.set_sp(None);
    }
}

fn copy(instruction: &Instruction, state: &mut FrameState) -> bool {
    let (to, from) = (instruction.op0_register(), instruction.op1_register());
    match (instruction.op0_kind(), instruction.op1_kind()) {
        (OpKind::Register, OpKind::Register) => match (to, from) {
            (Register::RBP, Register::RSP) => state.frame(),
            (Register::RSP, Register::RBP) => state.set_sp_from_rbp(0),
            _ => return false,
        },
        (OpKind::Register, OpKind::Memory) if to == Register::RBP => match of_sp(instruction) {
            Some(offset) => state.load_rbp(offset),
            None => return false,
        },
        (OpKind::Memory, OpKind::Register) if from == Register::RBP => match of_sp(instruction) {
            Some(offset) => state.store_rbp(offset),
            None => return false,
        },
        _ => return false,
    }
    true
}

fn load_address(instruction: &Instruction, state: &mut FrameState) -> bool {
    if instruction.op0_register() != Register::RSP {
        return false;
    }
    let Some(offset) = displacement(instruction) else { return false };
    match (instruction.memory_base(), instruction.memory_index()) {
        (Register::RSP, Register::None) => state.lower(offset.wrapping_neg()),
        (Register::RBP, Register::None) => state.set_sp_from_rbp(offset),
        _ => return false,
    }
    true
}

/// Applies `add` or `sub` with a constant to the stack pointer.
fn add(instruction: &Instruction, state: &mut FrameState, sign: i32) -> bool {
    let is_constant =
        matches!(instruction.op1_kind(), OpKind::Immediate8to64 | OpKind::Immediate32to64);
    if instruction.op0_register() != Register::RSP || !is_constant {
        return false;
    }
    let Ok(bytes) = i32::try_from(instruction.immediate(1) as i64) else { return false };
    state.lower(bytes.wrapping_mul(sign));
    true
}

/// Returns the offset of an operand in memory from the stack pointer, if it is at one.
fn of_sp(instruction: &Instruction) -> Option<i32> {
    let is_at_sp = instruction.memory_base() == Register::RSP
        && instruction.memory_index() == Register::None
        && instruction.segment_prefix() == Register::None;
    displacement(instruction).filter(|_| is_at_sp)
}

fn displacement(instruction: &Instruction) -> Option<i32> {
    i32::try_from(instruction.memory_displacement64() as i64).ok()
}
