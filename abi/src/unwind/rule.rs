//! An unwind rule: how to compute the caller's registers from a frame's, in eight bytes.
//!
//! Notation: `sp`, `fp` and `pc` are the frame's registers, `[x]` is the stack word at `x`, `o` is
//! [`Rule::cfa_off`], and `f` is 8 * [`Rule::fp_off`]. Unless a rule says otherwise, the caller's
//! `sp` is the CFA and its `pc` is `[cfa - 8]`.
//!
//! # Invariants
//! - Readers treat a number without a meaning as [`op::BAD`]: they never trust the byte.
//!
//! # Safety
//! Only a test is unsafe: it reads the bits of a rule from memory.

/// Values of [`Rule::op`]: where the CFA is.
pub mod op {
    /// The call frame information needs something that no rule can express.
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
    /// Like [`PLT_11`] with 9: an entry of `.plt` with `endbr64` and without `bnd`.
    pub const PLT_9: u8 = 14;
    /// sp, fp and pc come from registers: the last three bytes of o, lowest first, are their
    /// numbers in DWARF order. This is the end of `longjmp`; exact frames only.
    pub const FROM_REGISTERS: u8 = 15;
    /// sp, fp and pc come from `[r + 8 * n]`: the bytes of o, lowest first, are r in DWARF order
    /// and the three n. This is the end of `setcontext`; exact frames only.
    pub const FROM_CONTEXT: u8 = 16;
    /// All registers come from the `ucontext` at sp: the trampoline that ends a signal handler.
    pub const SIGNAL: u8 = 10;
    /// The outermost frame: it has no caller.
    pub const STOP: u8 = 11;
    /// The code has no call frame information and is assumed to keep frame pointers. With o > 0, it
    /// has no frame here: pc is `[sp + o - 8]`, sp + o is the CFA and fp is the caller's. With
    /// o < 0, pc is in register !o in DWARF order, and sp and fp are the caller's. The unwinder
    /// accepts either if a call is before the return address, and a frame pointer otherwise.
    pub const GAP_FP: u8 = 12;
    /// The code has no call frame information and does not keep frame pointers. A leaf may have its
    /// return address at `[sp]`, and a single function may have a frame pointer. The unwinder
    /// accepts either if the call before the return address leads to this code.
    pub const GAP_GUESS: u8 = 13;
    /// Like [`FP_STD`], for a function that moved sp to another stack: its frame is on the stack
    /// that fp points to. That stack may be in the same memory range as sp and at a lower address.
    pub const FP_SWITCH: u8 = 17;
    /// Like [`SP`], for code that a signal handler called between two instructions. The caller's
    /// frame is exact, because the caller made no call.
    pub const SP_INJECTED: u8 = 18;
    /// cfa = `[sp + the lower 24 bits of o]` + 8 * the upper 8.
    pub const DEREF_SP_ADD: u8 = 19;
    /// Like [`FP_SWITCH`], for a function without a frame, where fp points to its caller's frame.
    /// The unwinder searches for the return address below that, in a frame of at most o bytes. The
    /// function starts at most [`Rule::fp_off`](super::Rule::fp_off) bytes before pc. If the search
    /// fails, the unwinding omits the caller.
    pub const FP_CALLER: u8 = 20;
    /// Like [`STOP`], for code that removed its return address before it called. Until that call,
    /// a register may still hold the address, so only a frame that is not exact is outermost.
    pub const STOP_CALLED: u8 = 21;
    /// A frame of HotSpot's interpreter: pc = `[fp + 8]`, fp = `[fp]`, and sp is the higher one of
    /// `[fp - 8]` and fp + 16. The last byte of o says where the method is: see
    /// [`method`](super::method).
    pub const INTERPRETED: u8 = 22;
    /// Like [`SP`] with fp = `[cfa - 16]`, for a frame of HotSpot whose return address was replaced
    /// by the address of a handler. The original one is at `[sp + f]`.
    pub const DEOPTIMIZED: u8 = 23;
    /// The code to which the lowest frame of a virtual thread returns where frames below it are
    /// frozen. The caller is the frame that entered the virtual thread: of [`Rule::fp_off`]
    /// words, a few words above sp. Its pc is this code's address plus o. With [`AT_FP`], the
    /// frame pointer is that frame's: code that thaws frames has any number of them below.
    ///
    /// [`AT_FP`]: super::fp_op::AT_FP
    /// [`Rule::fp_off`]: super::Rule::fp_off
    pub const RETURN_BARRIER: u8 = 24;
    /// pc = `[sp + o - 8]`, sp = sp + o + f, fp is the caller's already. Code of HotSpot that has
    /// removed a frame keeps words above the return address that it has pushed.
    pub const RETURN_BELOW: u8 = 25;
    /// cfa = `[[sp + g] + e]` - `[sp + d]` + a, where the bytes of o, lowest first, are the words
    /// g, e, d and a: how far the CFA is below the end of a stack that another one may replace.
    /// Code of Go that runs C keeps that on the thread's stack, with the goroutine that knows the
    /// end.
    pub const DEPTH: u8 = 26;
    /// cfa = r + o for register `op - REG_LEAF` in DWARF order; exact frames only. rbx is also
    /// allowed in other frames, where the unwinder followed it through the frames below (see
    /// [`crate::unwind::tables::RBX_LOST`]).
    pub const REG_LEAF: u8 = 0x20;
    /// cfa = sp + o, pc = r for register `op - RA_REG_LEAF` in DWARF order; exact frames only.
    pub const RA_REG_LEAF: u8 = 0x40;
    /// cfa = `[sp + 8 * r + o]` + 8 for register `op - INDEXED_LEAF` in DWARF order; exact frames
    /// only. Multiplications of long numbers keep the caller's sp behind an array on the stack,
    /// whose length is in a register.
    pub const INDEXED_LEAF: u8 = 0x60;
    /// pc = `[sp + the lower 16 bits of o]`, sp = r for register `op - SENDER_LEAF` in DWARF order;
    /// exact frames only. HotSpot's interpreter and its adapters keep the caller's sp in a
    /// register. The last byte of o says where the method is: see [`method`](super::method).
    pub const SENDER_LEAF: u8 = 0x80;
    /// Number of registers that [`REG_LEAF`], [`RA_REG_LEAF`], [`INDEXED_LEAF`] and [`SENDER_LEAF`]
    /// can name.
    pub const REGISTERS: u8 = 16;
}

/// Values of [`Rule::fp_op`]: where the caller's frame pointer is.
pub mod fp_op {
    /// fp is the caller's already.
    pub const SAME: u8 = 0;
    /// fp = `[cfa + f]`
    pub const AT_CFA: u8 = 1;
    /// fp = `[fp + f]`, if that is in the frame. Otherwise fp is the caller's already, whatever the
    /// unwind information says: this is the end of a function that realigned its stack.
    pub const AT_FP: u8 = 2;
    /// The caller's frame pointer is not saved: fp = 0.
    pub const CLEAR: u8 = 3;
    /// fp = `[sp + f]`
    pub const AT_SP: u8 = 4;
}

/// Where the method of a frame of HotSpot's interpreter is. [`op::INTERPRETED`] and
/// [`op::SENDER_LEAF`] have such a number, and [`op::FROM_REGISTERS`] as its base.
pub mod method {
    /// Nowhere: the frame is of code and not of a method.
    pub const NONE: u8 = 0;
    /// In rbx; exact frames only. The method has not begun to run.
    pub const IN_RBX: u8 = 1;
    /// In the frame, with the position in its code.
    pub const IN_FRAME: u8 = 2;
}

/// Values of [`Rule::fp_op`] on aarch64: where the return address and the caller's frame pointer
/// are. Calls leave the return address in a register.
pub mod ra_op {
    /// Neither is saved: pc = x30, fp = x29; exact frames only.
    pub const LINK: u8 = 0;
    /// A frame record: fp = `[cfa + f]`, pc = `[cfa + f + 8]`
    pub const PAIR: u8 = 1;
    /// pc = `[cfa + f]`, fp = x29
    pub const RA_ONLY: u8 = 2;
    /// fp = `[cfa + f]`, pc = x30; exact frames only.
    pub const FP_ONLY: u8 = 3;
    /// This op and all higher ones: pc = `[cfa + f]`, and fp is saved at the distance from there
    /// that [`fp_distance`] returns.
    pub const SEPARATE: u8 = 0x80;
    /// The op for distance 0, in the middle of the range of [`SEPARATE`].
    const MIDDLE: i64 = 0xC0;

    /// Returns the distance from the return address to the saved frame pointer, in bytes.
    pub const fn fp_distance(op: u8) -> i64 {
        (op as i64).wrapping_sub(MIDDLE).wrapping_mul(8)
    }

    /// Returns the op for a distance, if there is one.
    pub const fn separate(distance: i64) -> Option<u8> {
        let op = MIDDLE.wrapping_add(distance / 8);
        if distance % 8 == 0 && op >= SEPARATE as i64 && op <= u8::MAX as i64 {
            Some(op as u8)
        } else {
            None
        }
    }
}

/// An unwind rule. See [`op`] and [`fp_op`] for the formulas.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rule {
    /// One of [`op`].
    pub op: u8,
    /// One of [`fp_op`], or on aarch64 of [`ra_op`].
    pub fp_op: u8,
    /// Offset of the saved frame pointer, in units of 8 bytes.
    pub fp_off: i16,
    /// Offset for [`Self::op`], in bytes. For [`op::FROM_REGISTERS`] and [`op::FROM_CONTEXT`] it is
    /// four single bytes.
    pub cfa_off: i32,
}
#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Rule>() == 8 && align_of::<Rule>() == 4);
    assert!(core::mem::offset_of!(Rule, fp_off) == 2 && core::mem::offset_of!(Rule, cfa_off) == 4);
};

impl Rule {
    /// A rule that cannot be applied.
    pub const BAD: Self = Self::plain(op::BAD);
    /// The outermost frame.
    pub const STOP: Self = Self::plain(op::STOP);
    /// The outermost frame, once it has called.
    pub const STOP_CALLED: Self = Self::plain(op::STOP_CALLED);
    /// A signal trampoline.
    pub const SIGNAL: Self = Self::plain(op::SIGNAL);
    /// A gap in code with frame pointers. Anonymous executable memory has this rule, too.
    pub const GAP_FP: Self = Self::plain(op::GAP_FP);
    /// A gap in code that may be hand-written.
    pub const GAP_GUESS: Self = Self::plain(op::GAP_GUESS);
    /// Two equivalent rules for gaps, to give neighbouring functions different rows.
    pub const GUESSES: [Self; 2] = [Self::GAP_GUESS, Self { fp_off: 1, ..Self::GAP_GUESS }];
    /// A standard frame.
    pub const FP_STD: Self = Self { op: op::FP_STD, fp_op: fp_op::AT_CFA, fp_off: -2, cfa_off: 16 };

    /// The standard frame of a function that changes stacks.
    pub const FP_SWITCH: Self = Self { op: op::FP_SWITCH, ..Self::FP_STD };

    /// Creates a rule without parameters.
    pub const fn plain(op: u8) -> Self {
        Self { op, fp_op: fp_op::SAME, fp_off: 0, cfa_off: 0 }
    }

    /// Creates a rule with the words of [`op::DEPTH`].
    pub const fn depth(words: [u8; 4]) -> Self {
        Self { cfa_off: i32::from_le_bytes(words), ..Self::plain(op::DEPTH) }
    }

    /// Creates the rule of code without a frame in a gap: `cfa_off` is as [`op::GAP_FP`] says.
    pub const fn frameless(cfa_off: i32) -> Self {
        Self { cfa_off, ..Self::GAP_FP }
    }

    /// Creates a rule with an op that names the locations of sp, fp and pc.
    pub const fn from(op: u8, base: u8, [sp, fp, pc]: [u8; 3]) -> Self {
        Self { cfa_off: i32::from_le_bytes([base, sp, fp, pc]), ..Self::plain(op) }
    }

    /// Returns the rule as a word with the layout that it has in memory.
    pub const fn to_bits(self) -> u64 {
        self.op as u64
            | (self.fp_op as u64) << 8
            | (self.fp_off as u16 as u64) << 16
            | (self.cfa_off as u32 as u64) << 32
    }

    /// Returns the rule that a word holds.
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
    fn distances_of_a_separate_frame_pointer_are_read_back() {
        for distance in [-512, -16, 0, 8, 504] {
            assert_eq!(ra_op::separate(distance).map(ra_op::fp_distance), Some(distance));
        }
        assert_eq!([-520, 4, 512].map(ra_op::separate), [None; 3]);
    }

    #[test]
    fn bits_are_the_layout_in_memory() {
        let rule = Rule { op: op::SP, fp_op: fp_op::AT_CFA, fp_off: -3, cfa_off: -540_128 };
        assert_eq!(Rule::from_bits(rule.to_bits()), rule);
        let words = [rule.to_bits()];
        // SAFETY: the eight bytes are initialised, and every bit pattern is a `Rule`.
        let read = unsafe { words.as_ptr().cast::<Rule>().read() };
        assert_eq!(read, rule);
    }
}
