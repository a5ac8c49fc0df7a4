//! One unwind rule: how to get from a frame's registers to its caller's, in eight bytes.
//!
//! Notation: `sp`, `fp` and `pc` are the frame's registers, `[x]` is the stack word at `x`, `o` is
//! [`Rule::cfa_off`], `f` is 8 * [`Rule::fp_off`]. After every rule the caller's `sp` is the CFA
//! and, unless the rule says otherwise, its `pc` is `[cfa - 8]`.
//!
//! # Invariants
//! - A number without a meaning is treated as [`op::BAD`]: readers never trust the byte.
//!
//! # Safety
//! Only a test is unsafe: it reads a rule as the bytes in memory that its bits are.

/// Values of [`Rule::op`]: where the CFA is.
pub mod op {
    /// The call frame information says something that no rule here can express.
    pub const BAD: u8 = 0;
    /// cfa = sp + o
    pub const SP: u8 = 1;
    /// cfa = fp + o
    pub const FP: u8 = 2;
    /// cfa = fp + 16, fp = `[fp]`, pc = `[fp + 8]`: a standard frame, in one step.
    pub const FP_STD: u8 = 3;
    /// cfa = `[sp + o]`
    pub const DEREF_SP: u8 = 4;
    /// cfa = `[sp + o]` + 8
    pub const DEREF_SP_8: u8 = 5;
    /// cfa = `[fp + o]`
    pub const DEREF_FP: u8 = 6;
    /// cfa = `[fp + o]` + 8
    pub const DEREF_FP_8: u8 = 7;
    /// cfa = sp + o + (8 if (pc & 15) >= 11, else 0): an entry of `.plt`.
    pub const PLT_11: u8 = 8;
    /// cfa = sp + o + (8 if (pc & 15) >= 10, else 0): an entry of `.plt` with `endbr64`.
    pub const PLT_10: u8 = 9;
    /// As [`PLT_11`] with 9: with `endbr64` and no `bnd`.
    pub const PLT_9: u8 = 14;
    /// All registers come from the `ucontext` at sp: the trampoline that ends a signal handler.
    pub const SIGNAL: u8 = 10;
    /// The outermost frame: it has no caller.
    pub const STOP: u8 = 11;
    /// No call frame information here; taken to be code with frame pointers.
    pub const GAP_FP: u8 = 12;
    /// No call frame information here; taken to be hand-written code: a leaf may keep its return
    /// address at `[sp]`, all else is tried as code with frame pointers.
    pub const GAP_GUESS: u8 = 13;
    /// cfa = r + o for register `op - REG_LEAF` in DWARF order; exact frames only, but rbx also
    /// where it is followed through the frames below (see [`crate::unwind::tables::RBX_LOST`]).
    pub const REG_LEAF: u8 = 0x20;
    /// cfa = sp + o, pc = r for register `op - RA_REG_LEAF` in DWARF order; exact frames only.
    pub const RA_REG_LEAF: u8 = 0x40;
    /// Registers that [`REG_LEAF`] and [`RA_REG_LEAF`] can name.
    pub const REGISTERS: u8 = 16;
}

/// Values of [`Rule::fp_op`]: where the caller's frame pointer is.
pub mod fp_op {
    /// The frame pointer is the caller's already.
    pub const SAME: u8 = 0;
    /// fp = `[cfa + f]`
    pub const AT_CFA: u8 = 1;
    /// fp = `[fp + f]`, if that lies in the frame. Else, at the end of a function that realigned
    /// its stack, the frame pointer is the caller's already, whatever the unwind information says.
    pub const AT_FP: u8 = 2;
    /// The caller's frame pointer is not kept: 0.
    pub const CLEAR: u8 = 3;
}

/// An unwind rule. See [`op`] and [`fp_op`] for the formulas.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rule {
    /// One of [`op`].
    pub op: u8,
    /// One of [`fp_op`].
    pub fp_op: u8,
    /// Offset of the saved frame pointer, in units of 8 bytes.
    pub fp_off: i16,
    /// Offset that belongs to [`Self::op`], in bytes.
    pub cfa_off: i32,
}
#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Rule>() == 8 && align_of::<Rule>() == 4);
    assert!(core::mem::offset_of!(Rule, fp_off) == 2 && core::mem::offset_of!(Rule, cfa_off) == 4);
};

impl Rule {
    /// Cannot be applied.
    pub const BAD: Self = Self::plain(op::BAD);
    /// The outermost frame.
    pub const STOP: Self = Self::plain(op::STOP);
    /// A signal trampoline.
    pub const SIGNAL: Self = Self::plain(op::SIGNAL);
    /// A gap in code with frame pointers; also the rule of anonymous executable memory.
    pub const GAP_FP: Self = Self::plain(op::GAP_FP);
    /// A gap in code that may be hand-written.
    pub const GAP_GUESS: Self = Self::plain(op::GAP_GUESS);
    /// A standard frame.
    pub const FP_STD: Self = Self { op: op::FP_STD, fp_op: fp_op::AT_CFA, fp_off: -2, cfa_off: 16 };

    /// A rule without parameters.
    pub const fn plain(op: u8) -> Self {
        Self { op, fp_op: fp_op::SAME, fp_off: 0, cfa_off: 0 }
    }

    /// The rule as a word, as it lies in memory.
    pub const fn to_bits(self) -> u64 {
        self.op as u64
            | (self.fp_op as u64) << 8
            | (self.fp_off as u16 as u64) << 16
            | (self.cfa_off as u32 as u64) << 32
    }

    /// The rule of a word.
    pub const fn from_bits(bits: u64) -> Self {
        Self {
            op: bits as u8,
            fp_op: (bits >> 8) as u8,
            fp_off: (bits >> 16) as i16,
            cfa_off: (bits >> 32) as i32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_the_layout_in_memory() {
        let rule = Rule { op: op::SP, fp_op: fp_op::AT_CFA, fp_off: -3, cfa_off: -540_128 };
        assert_eq!(Rule::from_bits(rule.to_bits()), rule);
        let words = [rule.to_bits()];
        // SAFETY: eight initialised bytes, and every bit pattern is a `Rule`.
        let read = unsafe { words.as_ptr().cast::<Rule>().read() };
        assert_eq!(read, rule);
    }
}
