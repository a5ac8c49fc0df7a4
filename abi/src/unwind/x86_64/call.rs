//! Calls of x86_64 code, known by the bytes before the address that they return to.

use super::super::walk::Memory;

/// Maximum number of instructions of a linkage table's entry, the jump included: `endbr64`, `bnd`
/// and the jump.
const STUB_PREFIXES: usize = 3;

/// Whether the instruction before an address is a call.
pub(super) fn is_behind_call(ret: u64, memory: &mut impl Memory) -> bool {
    let Some(bytes) = memory.load_code(ret.wrapping_sub(8)) else { return false };
    let bytes = bytes.to_le_bytes();
    let is_indirect = |len: usize| {
        let call = bytes.get(7usize.wrapping_sub(len)..);
        matches!(call, Some([0xFF, modrm, ..]) if modrm >> 3 & 7 == 2 && operand_len(*modrm) == len)
    };
    matches!(bytes, [_, _, _, 0xE8, ..]) || (1..=6).any(is_indirect)
}

/// Returns the number of bytes of an operand in a register or in memory, from this one on.
fn operand_len(modrm: u8) -> usize {
    let index = usize::from(modrm & 7 == 4);
    let displacement = match (modrm >> 6, modrm & 7) {
        (3, _) => return 1,
        (0, 5) | (2, _) => 4,
        (mode, _) => usize::from(mode),
    };
    index.wrapping_add(displacement).wrapping_add(1)
}

/// Returns the target of the call that returns to `ret`, if its operand names the target.
pub(super) fn call_target(ret: u64, memory: &mut impl Memory) -> Option<u64> {
    let (opcode, operand) = relative(memory.load_code(ret.wrapping_sub(8))?);
    let target = ret.wrapping_add_signed(operand);
    match opcode {
        [_, 0xE8] => Some(target),
        // call *operand(%rip)
        [0xFF, 0x15] => memory.load_code(target),
        _ => None,
    }
}

/// Returns the address to which an entry of a linkage table jumps.
pub(super) fn stub_target(stub: u64, memory: &mut impl Memory) -> Option<u64> {
    let mut at = stub;
    for _ in 0..STUB_PREFIXES {
        at = match memory.load_code(at)?.to_le_bytes() {
            // endbr64
            [0xF3, 0x0F, 0x1E, 0xFA, ..] => at.wrapping_add(4),
            // bnd
            [0xF2, ..] => at.wrapping_add(1),
            // jmp *operand(%rip)
            [0xFF, 0x25, a, b, c, d, ..] => {
                let operand = i64::from(i32::from_le_bytes([a, b, c, d]));
                return memory.load_code(at.wrapping_add(6).wrapping_add_signed(operand));
            }
            _ => return None,
        };
    }
    None
}

/// Returns the two bytes of the opcode, and the last four of the eight bytes as the operand after
/// it.
fn relative(bytes: u64) -> ([u8; 2], i64) {
    let [_, _, first, second, operand @ ..] = bytes.to_le_bytes();
    ([first, second], i64::from(i32::from_le_bytes(operand)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Code at an address, and the address and value of a slot.
    struct Code<'c>(u64, &'c [u8], (u64, u64));

    impl Memory for Code<'_> {
        fn load(&mut self, _: u64) -> Option<u64> {
            None
        }

        fn rebound(&mut self, _: u64) -> bool {
            false
        }

        fn bounds(&self) -> (u64, u64) {
            (0, 0)
        }

        fn load_code(&mut self, avma: u64) -> Option<u64> {
            if avma == self.2.0 {
                return Some(self.2.1);
            }
            let at = avma.checked_sub(self.0)? as usize;
            let bytes = (at..at + 8).map(|at| self.1.get(at).copied().unwrap_or(0x90));
            let mut word = [0; 8];
            word.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
            Some(u64::from_le_bytes(word))
        }
    }

    /// Checks the target of the call at the end of `code`. The memory starts at 0x1000, and 0x5000
    /// contains 0x7777.
    fn check(code: &[u8], stub: &[u8], expected: Option<u64>) {
        let mut all = [0x90; 0x40];
        all[8..8 + code.len()].copy_from_slice(code);
        all[0x20..0x20 + stub.len()].copy_from_slice(stub);
        let mut memory = Code(0x1000, &all, (0x5000, 0x7777));
        let target = call_target(0x1008 + code.len() as u64, &mut memory);
        let found = target.map(|target| stub_target(target, &mut memory).unwrap_or(target));
        assert_eq!(found, expected, "{code:x?}");
    }

    #[test]
    fn calls_are_known_by_their_last_bytes() {
        let is_call = |code: &[u8]| {
            let mut all = [0x90; 0x20];
            all[0x10 - code.len()..0x10].copy_from_slice(code);
            is_behind_call(0x1010, &mut Code(0x1000, &all, (0, 0)))
        };
        // call 0x100; call *%rcx; *%r12; *(%rax); *(%r15,%r10,8); *8(%rsp); *8(%rdi);
        // *0x100(%r13); *0x100(%r13,%rax,8); *0x100(%rip)
        let calls: [&[u8]; 10] = [
            &[0xE8, 0, 1, 0, 0],
            &[0xFF, 0xD1],
            &[0x41, 0xFF, 0xD4],
            &[0xFF, 0x10],
            &[0x43, 0xFF, 0x14, 0xD7],
            &[0xFF, 0x54, 0x24, 8],
            &[0xFF, 0x57, 8],
            &[0x41, 0xFF, 0x95, 0, 1, 0, 0],
            &[0x41, 0xFF, 0x94, 0xC5, 0, 1, 0, 0],
            &[0xFF, 0x15, 0, 1, 0, 0],
        ];
        for call in calls {
            assert!(is_call(call), "{call:x?}");
            assert!(!is_call(&[call, &[0x90][..]].concat()), "{call:x?} and a nop");
        }
        // jmp *%rcx; call *%rcx with another byte for an operand in memory; pop %r10; int3
        for other in [&[0xFF, 0xE1][..], &[0xFF, 0x14], &[0x41, 0x5A], &[0xCC]] {
            assert!(!is_call(other), "{other:x?}");
        }
    }

    #[test]
    fn operands_give_the_targets_of_calls() {
        // call 0x1020
        let direct = [0xE8, 0x13, 0, 0, 0];
        check(&direct, &[0x55], Some(0x1020));
        check(&[0xE8, 0xFB, 0xFF, 0xFF, 0xFF], &[], Some(0x1008));
        // Its target is jmp *0x5000, with and without prefixes.
        check(&direct, &[0xFF, 0x25, 0xDA, 0x3F, 0, 0], Some(0x7777));
        check(&direct, &[0xF2, 0xFF, 0x25, 0xD9, 0x3F, 0, 0], Some(0x7777));
        check(&direct, &[0xF3, 0x0F, 0x1E, 0xFA, 0xFF, 0x25, 0xD6, 0x3F, 0, 0], Some(0x7777));
        let both = [0xF3, 0x0F, 0x1E, 0xFA, 0xF2, 0xFF, 0x25, 0xD5, 0x3F, 0, 0];
        check(&direct, &both, Some(0x7777));
        // call *0x5000
        check(&[0xFF, 0x15, 0xF2, 0x3F, 0, 0], &[], Some(0x7777));
        // call *%rax, call *8(%rsp), nops
        check(&[0xFF, 0xD0], &[], None);
        check(&[0xFF, 0x54, 0x24, 0x08], &[], None);
        check(&[], &[], None);
    }
}
