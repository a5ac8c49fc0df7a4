//! Frameless parts of the builtins of V8: code of its interpreter and its library, which is made
//! when V8 is built, without call frame information.
//!
//! Builtins keep frame pointers, but many have no frame for a part of their code, or for all of it.
//! The frame pointer is that of a caller there. The instructions are followed from the entry of
//! each builtin to find these parts. A few builtins are reached by a jump from a function that has
//! a frame; the return address is not where the rows here say then, and the unwinder sees that.
//!
//! # Invariants
//! - Where paths disagree, or the code does something unknown, the rule is [`Rule::GAP_FP`].
//! - The work is bounded by the length of the code: the state before an instruction changes at most
//!   twice.

use std::ops::Range;

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register,
};
use memchr::memmem;
use traceprof_abi::unwind::Rule;
use traceprof_abi::unwind::rule::{fp_op, op};

use super::rows::RuleRange;
use traceprof_elf::Elf;

/// What the names of all builtins begin with.
const PREFIX: &str = "Builtins_";
/// Longest builtin that is followed. The longest that is known has 36 KiB.
const LEN_MAX: usize = 1 << 20;
/// Largest distance of the stack pointer from the return address that is followed.
const DISTANCE_MAX: i32 = 1 << 20;

/// Where the return address is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Return {
    /// This many bytes above the stack pointer.
    At(i32),
    /// In a register, in the order of the instruction set.
    In(usize),
    /// The frame pointer points to a frame.
    Framed,
    /// The stack pointer has the address of the frame, which is about to be left.
    Leaving,
    /// Unknown.
    Lost,
}

/// The function with which the collector of garbage begins: it saves all registers on the stack. It
/// is written by hand and has no call frame information, and those that call it jump to it.
///
/// `push %rbp; mov %rsp,%rbp; push $0xcdcdcd; push %rbx, %r12 to %r15`
const SAVES_ALL: [u8; 18] = [
    0x55, 0x48, 0x89, 0xE5, 0x68, 0xCD, 0xCD, 0xCD, 0, 0x53, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56,
    0x41, 0x57,
];
/// Its end: `pop %rbp; ret`.
const SAVES_ALL_END: [u8; 2] = [0x5D, 0xC3];
/// Maximum length of the function in bytes. It has 33.
const SAVES_ALL_MAX: usize = 64;

/// Returns the rules of the function with which the collector begins, if the code has it:
/// offsets from the code's start, ascending.
pub(super) fn collector_parts(code: &[u8]) -> Vec<RuleRange> {
    let Some(at) = memmem::find(code, &SAVES_ALL) else { return Vec::new() };
    let body = &code[at..code.len().min(at + SAVES_ALL_MAX)];
    let Some(end) = memmem::find(body, &SAVES_ALL_END).map(|end| (at + end) as u32) else {
        return Vec::new();
    };
    let at = at as u32;
    let at_sp = |cfa_off| Rule { cfa_off, ..Rule::plain(op::SP) };
    let pushed = Rule { fp_op: fp_op::AT_CFA, fp_off: -2, ..at_sp(16) };
    vec![
        (at..at + 1, at_sp(8)),
        (at + 1..at + 4, pushed),
        (at + 4..end + 1, Rule::FP_STD),
        (end + 1..end + 2, at_sp(8)),
    ]
}

/// Returns the start addresses of the builtins in a file, ascending.
pub(super) fn starts(elf: &Elf<'_>) -> Vec<u64> {
    elf.functions_beginning(PREFIX)
}

/// Returns the parts without a frame of the builtins in code that starts at `svma`: offsets from
/// there, ascending. `starts` are the builtins' addresses (SVMA).
pub(super) fn all_parts(code: &[u8], svma: u64, starts: &[u64]) -> Vec<RuleRange> {
    let first = starts.partition_point(|start| *start < svma);
    let offset = |start: &u64| usize::try_from(start - svma).ok().filter(|it| *it < code.len());
    let offsets: Vec<usize> = starts[first..].iter().map_while(offset).collect();
    let ends = offsets.iter().skip(1).copied().chain([code.len()]);
    let parts = offsets.iter().zip(ends).flat_map(|(at, end)| {
        let moved = move |(bytes, rule): RuleRange| {
            (bytes.start + *at as u32..bytes.end + *at as u32, rule)
        };
        parts(&code[*at..end], svma + *at as u64).into_iter().map(moved)
    });
    parts.collect()
}

/// Returns the parts of a builtin without a frame: offsets from its start, ascending. `start` is
/// its address (SVMA).
fn parts(code: &[u8], start: u64) -> Vec<RuleRange> {
    let code = &code[..code.len().min(LEN_MAX)];
    let mut flow = BuiltinFlow::new(code, start);
    flow.run();
    flow.parts()
}

struct BuiltinFlow<'c> {
    code: &'c [u8],
    start: u64,
    decoder: Decoder<'c>,
    info: InstructionInfoFactory,
    /// What is known before the instruction at each offset, and the length of the instruction.
    states: Vec<Option<(Return, u8)>>,
}

impl<'c> BuiltinFlow<'c> {
    fn new(code: &'c [u8], start: u64) -> Self {
        Self {
            code,
            start,
            decoder: Decoder::with_ip(64, code, start, DecoderOptions::NONE),
            info: InstructionInfoFactory::new(),
            states: vec![None; code.len()],
        }
    }

    fn run(&mut self) {
        let mut pending = vec![(0, Return::At(0))];
        while let Some((offset, state)) = pending.pop() {
            self.follow(offset, state, &mut pending);
        }
    }

    /// Follows a path until it ends, or meets another one that knows the same.
    fn follow(&mut self, mut at: usize, mut state: Return, pending: &mut Vec<(usize, Return)>) {
        let mut instruction = Instruction::default();
        while let Some(known) = self.states.get(at) {
            match known {
                Some((before, _)) if *before == state || *before == Return::Lost => return,
                Some(_) => state = Return::Lost,
                None => {}
            }
            // The offset is within the code, so it is a position of the decoder.
            if self.decoder.set_position(at).is_err() {
                return;
            }
            self.decoder.set_ip(self.start.wrapping_add(at as u64));
            self.decoder.decode_out(&mut instruction);
            if instruction.is_invalid() {
                return;
            }
            self.states[at] = Some((state, instruction.len() as u8));
            state = self.after(&instruction, state);
            let target = self.offset(instruction.near_branch_target());
            match instruction.flow_control() {
                FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall => {}
                FlowControl::ConditionalBranch => pending.extend(target.map(|to| (to, state))),
                FlowControl::UnconditionalBranch => {
                    return pending.extend(target.map(|to| (to, state)));
                }
                _ => return,
            }
            at += instruction.len();
        }
    }

    fn offset(&self, svma: u64) -> Option<usize> {
        let offset = usize::try_from(svma.checked_sub(self.start)?).ok()?;
        (offset < self.code.len()).then_some(offset)
    }

    /// Returns what is known after an instruction.
    fn after(&mut self, instruction: &Instruction, before: Return) -> Return {
        let first =
            (instruction.op0_kind() == OpKind::Register).then(|| instruction.op0_register());
        let second =
            (instruction.op1_kind() == OpKind::Register).then(|| instruction.op1_register());
        match (instruction.mnemonic(), first) {
            (Mnemonic::Leave, _) => Return::At(0),
            (Mnemonic::Mov, Some(Register::RBP)) if second == Some(Register::RSP) => match before {
                Return::At(_) | Return::Framed => Return::Framed,
                // Called before the caller had a frame, whose frame pointer this is.
                other => other,
            },
            (Mnemonic::Mov, Some(Register::RSP)) if second == Some(Register::RBP) => {
                Return::Leaving
            }
            (Mnemonic::Pop, Some(Register::RBP)) => match before {
                Return::Leaving => Return::At(0),
                _ => Return::Lost,
            },
            (Mnemonic::Pop, Some(register)) if register.is_gpr64() => {
                popped(before, register.number())
            }
            (Mnemonic::Push, _) if instruction.stack_pointer_increment() == -8 => {
                pushed(before, first)
            }
            (Mnemonic::Add | Mnemonic::Sub, Some(Register::RSP)) => {
                let is_add = instruction.mnemonic() == Mnemonic::Add;
                let bytes = instruction.try_immediate(1).ok().map(|bytes| bytes as i32);
                let down = bytes.map(|bytes| if is_add { bytes.wrapping_neg() } else { bytes });
                moved(before, down.unwrap_or(0)).filter_constant(down.is_some())
            }
            (Mnemonic::Lea, Some(Register::RSP)) => {
                let is_plain = instruction.memory_base() == Register::RSP
                    && instruction.memory_index() == Register::None;
                let by = (instruction.memory_displacement64() as i64).wrapping_neg() as i32;
                moved(before, by).filter_constant(is_plain)
            }
            _ => self.overwritten(instruction, before),
        }
    }

    /// Returns what is known after an instruction that only may write registers.
    fn overwritten(&mut self, instruction: &Instruction, before: Return) -> Return {
        let is_call =
            matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall);
        if is_call {
            return if matches!(before, Return::In(_)) { Return::Lost } else { before };
        }
        let matters = |register: Register| match before {
            Return::At(_) | Return::Leaving => {
                matches!(register, Register::RSP | Register::RBP)
            }
            Return::In(number) => {
                register == Register::RBP || register.is_gpr64() && register.number() == number
            }
            Return::Framed => register == Register::RBP,
            Return::Lost => false,
        };
        let writes = |access: OpAccess| {
            use OpAccess::{CondWrite, ReadCondWrite, ReadWrite, Write};
            matches!(access, Write | CondWrite | ReadWrite | ReadCondWrite)
        };
        let info = self.info.info(instruction);
        let mut used = info.used_registers().iter();
        let is_lost = used.any(|it| writes(it.access()) && matters(it.register().full_register()));
        if is_lost { Return::Lost } else { before }
    }

    fn parts(&self) -> Vec<RuleRange> {
        let mut parts: Vec<RuleRange> = Vec::new();
        for (at, known) in self.states.iter().enumerate() {
            let Some((state, len)) = known else { continue };
            let Some(rule) = rule(*state) else { continue };
            let bytes: Range<u32> = at as u32..(at + usize::from(*len)) as u32;
            match parts.last_mut() {
                Some((before, same)) if before.end == bytes.start && *same == rule => {
                    before.end = bytes.end;
                }
                // Instructions that overlap are not those of a builtin.
                Some((before, _)) if before.end > bytes.start => {}
                _ => parts.push((bytes, rule)),
            }
        }
        parts
    }
}

impl Return {
    /// Returns this if the instruction's operand was a constant.
    fn filter_constant(self, is_constant: bool) -> Self {
        match self {
            // The return address may be in a register while the arguments are dropped.
            Self::At(_) if !is_constant => Self::Lost,
            other => other,
        }
    }
}

fn rule(state: Return) -> Option<Rule> {
    match state {
        Return::At(distance) => Some(Rule::frameless(distance + 8)),
        Return::In(number) => Some(Rule::frameless(!dwarf(number))),
        Return::Framed | Return::Leaving | Return::Lost => None,
    }
}

/// Returns the DWARF number of a register.
fn dwarf(number: usize) -> i32 {
    /// The order of the instruction set: rax rcx rdx rbx rsp rbp rsi rdi.
    const ORDER: [i32; 8] = [0, 2, 1, 3, 7, 6, 4, 5];
    ORDER.get(number).copied().unwrap_or(number as i32)
}

fn popped(before: Return, number: usize) -> Return {
    match before {
        Return::At(0) => Return::In(number),
        Return::In(held) if held == number => Return::Lost,
        other => moved(other, -8),
    }
}

fn pushed(before: Return, register: Option<Register>) -> Return {
    match before {
        Return::In(number) if register.is_some_and(|it| it.number() == number) => Return::At(0),
        other => moved(other, 8),
    }
}

/// Returns what is known after the stack pointer has gone down.
fn moved(before: Return, bytes: i32) -> Return {
    match before {
        Return::At(distance) => match distance.checked_add(bytes) {
            Some(distance @ 0..=DISTANCE_MAX) => Return::At(distance),
            _ => Return::Lost,
        },
        Return::Leaving => Return::Lost,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the rules of code: `cfa_off` of each byte, 0 where there is no rule.
    fn check(code: &[(&[u8], i32)]) {
        let bytes: Vec<u8> = code.iter().flat_map(|(bytes, _)| bytes.iter().copied()).collect();
        let expected: Vec<i32> =
            code.iter().flat_map(|(bytes, cfa_off)| vec![*cfa_off; bytes.len()]).collect();
        let mut found = vec![0; bytes.len()];
        for (range, rule) in parts(&bytes, 0x1000) {
            assert_eq!(Rule { cfa_off: 0, ..rule }, Rule::GAP_FP);
            found[range.start as usize..range.end as usize].fill(rule.cfa_off);
        }
        assert_eq!(found, expected);
    }

    /// DWARF numbers, as a rule has them.
    const IN_RCX: i32 = !2;
    const IN_R11: i32 = !11;

    #[test]
    fn the_entry_of_the_interpreter_has_no_frame_before_its_prologue_and_behind_its_end() {
        check(&[
            // mov 0x1f(%rdi),%r11; je +1; nop
            (&[0x4C, 0x8B, 0x5F, 0x1F, 0x74, 1, 0x90], 8),
            // push %rbp
            (&[0x55], 8),
            // mov %rsp,%rbp: the frame pointer is the caller's before it
            (&[0x48, 0x89, 0xE5], 16),
            // push %rsi; push %rax; call *%rcx; jne -5; leave
            (&[0x56, 0x50, 0xFF, 0xD1, 0x75, 0xFC, 0xC9], 0),
            // pop %rcx
            (&[0x59], 8),
            // lea (%rsp,%rbx,8),%rsp; push %rcx
            (&[0x48, 0x8D, 0x24, 0xDC, 0x51], IN_RCX),
            // ret
            (&[0xC3], 8),
        ]);
    }

    #[test]
    fn the_prologue_of_baseline_code_returns_through_a_register() {
        check(&[
            // mov 0x2f(%rdi),%r8; pop %r11
            (&[0x4C, 0x8B, 0x47, 0x2F, 0x41, 0x5B], 8),
            // push %rbp; mov %rsp,%rbp; push %rsi; jb +3
            (&[0x55, 0x48, 0x89, 0xE5, 0x56, 0x72, 3], IN_R11),
            // push %r11
            (&[0x41, 0x53], IN_R11),
            // ret
            (&[0xC3], 8),
            // push %r11
            (&[0x41, 0x53], IN_R11),
            // push %rbp; mov %rsp,%rbp
            (&[0x55], 8),
            (&[0x48, 0x89, 0xE5], 16),
            // call +0; pop %rdx; mov %rbp,%rsp; pop %rbp
            (&[0xE8, 0, 0, 0, 0, 0x5A, 0x48, 0x89, 0xEC, 0x5D], 0),
            (&[0xC3], 8),
        ]);
    }

    #[test]
    fn a_frame_that_a_caller_has_made_may_be_left() {
        check(&[
            // mov -0x28(%rbp),%r8
            (&[0x4C, 0x8B, 0x45, 0xD8], 8),
            // mov %rbp,%rsp; pop %rbp
            (&[0x48, 0x89, 0xEC], 8),
            (&[0x5D], 0),
            // pop %r8; lea (%rsp,%rbx,8),%rsp; push %r8; ret
            (&[0x41, 0x58], 8),
            (&[0x48, 0x8D, 0x24, 0xDC, 0x41, 0x50], !8),
            (&[0xC3], 8),
        ]);
    }

    #[test]
    fn where_paths_disagree_nothing_is_known() {
        check(&[
            // je +1; push %rax
            (&[0x74, 1, 0x50], 8),
            // They meet here: nop; ret
            (&[0x90, 0xC3], 0),
        ]);
        // and $-16,%rsp; mov $0,%rbp; add $8,%rsp; each before a nop
        for bytes in [
            &[0x48, 0x83, 0xE4, 0xF0][..],
            &[0x48, 0xC7, 0xC5, 0, 0, 0, 0],
            &[0x48, 0x83, 0xC4, 8],
            &[0x48, 0x01, 0xC4],
        ] {
            check(&[(bytes, 8), (&[0x90], 0)]);
        }
        check(&[(&[0x48, 0x83, 0xEC, 0x18], 8), (&[0x90, 0xC3], 32)]);
    }

    #[test]
    fn the_function_that_saves_all_registers_has_a_frame() {
        // mov %rdx,%r8; mov %rsp,%rdx; call *%r8; add $0x30,%rsp
        let body = [0x49, 0x89, 0xD0, 0x48, 0x89, 0xE2, 0x41, 0xFF, 0xD0, 0x48, 0x83, 0xC4, 0x30];
        let code = [&[0x90; 3][..], &SAVES_ALL, &body, &SAVES_ALL_END, &[0x90; 4]].concat();
        let found = collector_parts(&code);
        let ranges: Vec<_> = found.iter().map(|(bytes, rule)| (bytes.clone(), rule.op)).collect();
        let expected = [(3..4, op::SP), (4..7, op::SP), (7..35, op::FP_STD), (35..36, op::SP)];
        assert_eq!(ranges, expected);
        assert_eq!([0, 1, 3].map(|at| found[at].1.cfa_off), [8, 16, 8]);
        assert_eq!(found[1].1.fp_off, -2);
        assert_eq!(collector_parts(&code[..30]), [], "it does not end");
        assert_eq!(collector_parts(&code[4..]), [], "it does not begin");
    }

    #[test]
    fn any_bytes_are_followed() {
        let mut random = 0x5EED_u64;
        let mut next = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        let mut found = 0;
        for _ in 0..2000 {
            let code: Vec<u8> = (0..next() % 300).map(|_| next() as u8).collect();
            let parts = parts(&code, next());
            assert!(parts.iter().all(|(bytes, _)| bytes.end as usize <= code.len()));
            assert!(parts.is_sorted_by(|one, other| one.0.end <= other.0.start));
            found += parts.len();
        }
        assert!(found > 1000, "{found}");
    }
}
