//! Code without call frame information.
//!
//! # Invariants
//! - Padding between functions is no gap: nothing runs there, so it needs no row of its own.

use traceprof_abi::unwind::Rule;

use super::rows::{Rows, Rules};
use crate::elf::Elf;

/// Fewer bytes than this without information can be padding: functions are aligned to 16.
const GAP_MIN: u32 = 16;
/// The bytes of `nop` in all its lengths, of `int3`, and of nothing.
const PADDING: [u8; 11] = [0x00, 0x0F, 0x1F, 0x2E, 0x40, 0x44, 0x66, 0x80, 0x84, 0x90, 0xCC];
/// A gap of this size is no hand-written routine but a block of generated code.
const GENERATED_MIN: u32 = 64 << 10;

/// `mov $15,%rax; syscall`, in the encodings of C libraries and of Go: the kernel's only way back
/// from a signal handler.
const SIGRETURNS: [&[u8]; 2] =
    [&[0x48, 0xC7, 0xC0, 0x0F, 0, 0, 0, 0x0F, 0x05], &[0xB8, 0x0F, 0, 0, 0, 0x0F, 0x05]];

/// The code starts with a call of `rt_sigreturn`: how many bytes of it.
pub(super) fn sigreturn_len(code: &[u8]) -> Option<usize> {
    SIGRETURNS.iter().find(|pattern| code.starts_with(pattern)).map(|pattern| pattern.len())
}

/// Fills gaps with rules.
#[derive(Debug)]
pub(super) struct Gaps<'e, 'a> {
    elf: &'e Elf<'a>,
    base: u64,
    frame_pointers: bool,
}

impl<'e, 'a> Gaps<'e, 'a> {
    /// `frame_pointers` says that most of the module's code keeps them.
    pub(super) fn new(elf: &'e Elf<'a>, base: u64, frame_pointers: bool) -> Self {
        let go = elf.section(".gopclntab").or_else(|| elf.section(".data.rel.ro.gopclntab"));
        Self { elf, base, frame_pointers: frame_pointers || go.is_some() }
    }

    /// Adds the rows for the gap from `start` to `end`; true if it is one.
    pub(super) fn fill(&self, start: u32, end: u32, rules: &mut Rules, rows: &mut Rows) -> bool {
        let length = end.saturating_sub(start);
        if length == 0 {
            return false;
        }
        let svma = self.base + u64::from(start);
        let code = self.elf.data(svma).unwrap_or_default();
        let code = &code[..code.len().min(length as usize)];
        // `.fini` is shorter than 16 bytes, and it runs.
        if length < GAP_MIN && code.iter().all(|byte| PADDING.contains(byte)) {
            return false;
        }
        let generated = length > GENERATED_MIN && self.frame_pointers;
        let rule = rules.number(if generated { Rule::GAP_FP } else { Rule::GAP_GUESS });
        rows.push(start, rule);
        for (at, len) in sigreturns(code) {
            // From one byte early on: the trampoline is looked up as a return address.
            rows.push((start + at).saturating_sub(1).max(start), rules.number(Rule::SIGNAL));
            rows.push(start + at + len, rule);
        }
        true
    }
}

/// Offsets and lengths of the trampolines in code, ascending.
fn sigreturns(code: &[u8]) -> impl Iterator<Item = (u32, u32)> {
    // All patterns end with `0F 00 00 00 0F 05`, after one or three bytes.
    let at = |i: usize| sigreturn_len(&code[i..]).map(|len| (i as u32, len as u32));
    let starts = code.iter().enumerate().filter(|&(_, &byte)| byte == 0x48 || byte == 0xB8);
    starts.filter_map(move |(i, _)| at(i))
}
