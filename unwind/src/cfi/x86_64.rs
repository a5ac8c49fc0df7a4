//! Translates one row of x86_64 call frame information into a rule.

use gimli::{
    CfaRule, Encoding, Operation, OperationIter, Register, RegisterRule, UnwindExpression,
    UnwindSection,
};
use traceprof_abi::unwind::Rule;
use traceprof_abi::unwind::rule::{fp_op, op};
use traceprof_abi::unwind::tables::RBX_LOST;

use crate::dwarf::{Fde, Slice, UnwindRow};

const RAX: Register = Register(0);
const RBX: Register = Register(3);
const RBP: Register = Register(6);
const RSP: Register = Register(7);
const RETURN_ADDRESS: Register = Register(16);

/// The expression of linkers for `.plt`: breg7 8; breg16 0; lit15; and; lit11; ge; lit3; shl; plus.
/// The other two are for entries that start with `endbr64`.
const PLT_11: [u8; 11] = [0x77, 8, 0x80, 0, 0x3F, 0x1A, 0x3B, 0x2A, 0x33, 0x24, 0x22];
const PLT_10: [u8; 11] = [0x77, 8, 0x80, 0, 0x3F, 0x1A, 0x3A, 0x2A, 0x33, 0x24, 0x22];
const PLT_9: [u8; 11] = [0x77, 8, 0x80, 0, 0x3F, 0x1A, 0x39, 0x2A, 0x33, 0x24, 0x22];

/// The operation and offset of a CFA.
type Cfa = (u8, i64);

/// Returns the rule for a row of `fde`.
pub(crate) fn rule<'a>(
    row: &UnwindRow,
    fde: &Fde<'a>,
    section: &impl UnwindSection<Slice<'a>>,
) -> Rule {
    express(row, fde, section).unwrap_or(Rule::BAD)
}

/// Returns whether the row says where rax is saved. No ordinary function needs to save rax.
pub(crate) fn keeps_rax(row: &UnwindRow) -> bool {
    matches!(row.register(RAX), Some(RegisterRule::Offset(_)))
}

/// Returns the slot where a row keeps the caller's rbx.
pub(crate) fn rbx_slot(row: &UnwindRow) -> i16 {
    match row.register(RBX) {
        None | Some(RegisterRule::SameValue) => 0,
        Some(RegisterRule::Offset(offset)) if offset != 0 && offset % 8 == 0 => {
            i16::try_from(offset / 8).unwrap_or(RBX_LOST)
        }
        _ => RBX_LOST,
    }
}

fn express<'a>(
    row: &UnwindRow,
    fde: &Fde<'a>,
    section: &impl UnwindSection<Slice<'a>>,
) -> Option<Rule> {
    if fde.cie().return_address_register() != RETURN_ADDRESS {
        return None;
    }
    let encoding = fde.cie().encoding();
    let (cfa_op, cfa_off) = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => register_cfa(*register, *offset)?,
        CfaRule::Expression(expression) => expression_cfa(*expression, section, encoding)?,
    };
    if let Some(rule) = resumed(row)? {
        return Some(rule);
    }
    let (cfa_op, cfa_off) = match row.register(RETURN_ADDRESS) {
        Some(RegisterRule::Undefined) => return Some(Rule::STOP),
        // The return address is below sp: the code removed it for good, as musl's `__clone` does on
        // the new thread.
        Some(RegisterRule::Offset(-8)) if cfa_op == op::SP && cfa_off < 8 => {
            return Some(Rule::STOP_CALLED);
        }
        Some(RegisterRule::Offset(-8)) => (cfa_op, cfa_off),
        Some(RegisterRule::Register(Register(number)))
            if cfa_op == op::SP && number < u16::from(op::REGISTERS) =>
        {
            (op::RA_REG_LEAF + number as u8, cfa_off)
        }
        _ => return None,
    };
    let (fp_op, fp_off) = match row.register(RBP) {
        None | Some(RegisterRule::SameValue) => (fp_op::SAME, 0),
        Some(RegisterRule::Undefined) => (fp_op::CLEAR, 0),
        Some(RegisterRule::Offset(offset)) => (fp_op::AT_CFA, offset),
        Some(RegisterRule::Expression(expression)) => fp_expression(expression, section, encoding)?,
        _ => return None,
    };
    if fp_off % 8 != 0 {
        return None;
    }
    let rule = Rule {
        op: cfa_op,
        fp_op,
        fp_off: i16::try_from(fp_off / 8).ok()?,
        cfa_off: i32::try_from(cfa_off).ok()?,
    };
    let standard = Rule { op: op::FP, ..Rule::FP_STD };
    Some(if rule == standard { Rule::FP_STD } else { rule })
}

/// Returns the rule of a row that states the caller's sp, as at the end of `longjmp` and
/// `setcontext`. Returns `None` if no rule can express it.
fn resumed(row: &UnwindRow) -> Option<Option<Rule>> {
    let [sp, fp, pc] = [RSP, RBP, RETURN_ADDRESS].map(|number| row.register(number));
    let fp = fp.unwrap_or(RegisterRule::SameValue);
    let number =
        |register: Register| u8::try_from(register.0).ok().filter(|number| *number < op::REGISTERS);
    Some(match (sp, pc) {
        // The CFA is the caller's sp, unless the row says otherwise.
        (None | Some(RegisterRule::SameValue | RegisterRule::ValOffset(0)), _) => None,
        (Some(RegisterRule::Register(sp)), Some(RegisterRule::Register(pc))) => {
            let fp = match fp {
                RegisterRule::SameValue => RBP,
                RegisterRule::Register(fp) => fp,
                _ => return None,
            };
            let registers = [number(sp)?, number(fp)?, number(pc)?];
            Some(Rule::from(op::FROM_REGISTERS, 0, registers))
        }
        (Some(RegisterRule::Offset(sp)), Some(RegisterRule::Offset(pc))) => {
            let (CfaRule::RegisterAndOffset { register, offset }, RegisterRule::Offset(fp)) =
                (row.cfa(), fp)
            else {
                return None;
            };
            let slot = |at: i64| {
                let at = at.checked_add(*offset).filter(|at| at % 8 == 0)?;
                u8::try_from(at / 8).ok()
            };
            let slots = [slot(sp)?, slot(fp)?, slot(pc)?];
            Some(Rule::from(op::FROM_CONTEXT, number(*register)?, slots))
        }
        _ => return None,
    })
}

fn register_cfa(register: Register, offset: i64) -> Option<Cfa> {
    match register {
        RSP => Some((op::SP, offset)),
        RBP => Some((op::FP, offset)),
        Register(number) if number < u16::from(op::REGISTERS) => {
            Some((op::REG_LEAF + number as u8, offset))
        }
        _ => None,
    }
}

fn expression_cfa<'a>(
    expression: UnwindExpression<usize>,
    section: &impl UnwindSection<Slice<'a>>,
    encoding: Encoding,
) -> Option<Cfa> {
    let expression = expression.get(section).ok()?;
    match expression.0.slice() {
        bytes if bytes == PLT_11 => return Some((op::PLT_11, 8)),
        bytes if bytes == PLT_10 => return Some((op::PLT_10, 8)),
        bytes if bytes == PLT_9 => return Some((op::PLT_9, 8)),
        _ => {}
    }
    let mut operations = expression.operations(encoding);
    let Some(Operation::RegisterOffset { register, offset, .. }) = operations.next().ok()? else {
        return None;
    };
    match operations.next().ok()? {
        None => return register_cfa(register, offset),
        Some(Operation::Deref { size: 8, space: false, .. }) => {}
        Some(Operation::RegisterOffset { register: index, offset: 0, .. }) if register == RSP => {
            return indexed_cfa(&mut operations, index).map(|op| (op, offset));
        }
        _ => return None,
    }
    let add = match operations.next().ok()? {
        None => 0,
        Some(Operation::PlusConstant { value }) if operations.next().ok()?.is_none() => value,
        _ => return None,
    };
    match (register, add) {
        (RSP, 0) => Some((op::DEREF_SP, offset)),
        (RSP, 8) => Some((op::DEREF_SP_8, offset)),
        (RBP, 0) => Some((op::DEREF_FP, offset)),
        (RBP, 8) => Some((op::DEREF_FP_8, offset)),
        (RSP, add) if add % 8 == 0 && (0..1 << 24).contains(&offset) => {
            let above = u8::try_from(add / 8).ok()?;
            Some((op::DEREF_SP_ADD, i64::from((u32::from(above) << 24) as i32) + offset))
        }
        _ => None,
    }
}

/// Parses the part after the index in `[rsp + 8 * index + offset] + 8`.
fn indexed_cfa(operations: &mut OperationIter<Slice<'_>>, index: Register) -> Option<u8> {
    let mut next = || operations.next().ok().flatten();
    let is_indexed = matches!(next()?, Operation::UnsignedConstant { value: 8 })
        && matches!(next()?, Operation::Mul)
        && matches!(next()?, Operation::Plus)
        && matches!(next()?, Operation::Deref { size: 8, space: false, .. })
        && matches!(next()?, Operation::PlusConstant { value: 8 })
        && next().is_none();
    let number = u8::try_from(index.0).ok().filter(|number| *number < op::REGISTERS);
    number.filter(|_| is_indexed).map(|number| op::INDEXED_LEAF + number)
}

/// Returns the operation and offset of an expression `[rbp + offset]` or `[rsp + offset]`.
fn fp_expression<'a>(
    expression: UnwindExpression<usize>,
    section: &impl UnwindSection<Slice<'a>>,
    encoding: Encoding,
) -> Option<(u8, i64)> {
    let mut operations = expression.get(section).ok()?.operations(encoding);
    match (operations.next().ok()?, operations.next().ok()?) {
        (Some(Operation::RegisterOffset { register: RBP, offset, .. }), None) => {
            Some((fp_op::AT_FP, offset))
        }
        (Some(Operation::RegisterOffset { register: RSP, offset, .. }), None) => {
            Some((fp_op::AT_SP, offset))
        }
        _ => None,
    }
}
