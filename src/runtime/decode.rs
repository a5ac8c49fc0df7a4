//! What machine code tells about an interpreter's data, where there are no symbols: x86_64.
//!
//! Bytes are tried as instructions at every offset, so what is found is a candidate. The caller
//! compares candidates with the live process.

use std::ops::Range;

use crate::elf::TlsAccess;
use crate::runtime::loops::number_at;

/// Maximum number of candidates for the offset of a variable.
const CANDIDATES_MAX: usize = 8;

/// Returns the possible offsets in this part of the data of the variables that a function uses:
/// the code refers to them relative to itself, by their addresses, or relative to the part.
pub(super) fn variables_in(code: &[u8], svma: u64, state: &Range<u64>) -> Vec<u32> {
    let mut found: Vec<u32> = Vec::new();
    for at in 0..code.len() {
        let Some(number) = number_at(code, at) else { break };
        let after = svma.wrapping_add(at as u64 + 4);
        // One byte more than the number follows in a comparison with a small constant.
        let relative = [0, 1].map(|more| after.wrapping_add(more).wrapping_add_signed(number));
        let absolute = u64::from(number as u32);
        let in_state = |address: u64| state.contains(&address).then(|| address - state.start);
        let places = relative.into_iter().chain([absolute]).filter_map(in_state);
        let displacement = is_address_of(code, at).then_some(absolute);
        let displacement = displacement.filter(|it| *it < state.end - state.start);
        for offset in places.chain(displacement) {
            // The second half of the variable is used on its own.
            let Ok(offset) = u32::try_from(offset & !7) else { continue };
            if offset > 0 && found.len() < CANDIDATES_MAX && !found.contains(&offset) {
                found.push(offset);
            }
        }
    }
    found
}

/// Whether the number at this offset ends `lea NUMBER(%register), %register`.
fn is_address_of(code: &[u8], at: usize) -> bool {
    let before = at.checked_sub(3).and_then(|start| code.get(start..at));
    matches!(before, Some([0x48..=0x4f, 0x8d, operands]) if operands >> 6 == 2)
}

/// Returns the access to the thread-local variable that a function returns the value of.
pub(super) fn thread_local_in(code: &[u8], svma: u64) -> Option<TlsAccess> {
    (0..code.len()).find_map(|at| access(code.get(at..)?, svma.wrapping_add(at as u64)))
}

/// Returns the access that begins with these instructions.
fn access(code: &[u8], svma: u64) -> Option<TlsAccess> {
    let number = |at: usize| number_at(code, at);
    let target =
        |at: usize| Some(svma.wrapping_add(at as u64 + 4).wrapping_add_signed(number(at)?));
    match code {
        // mov %fs:NUMBER, %rax. Variables are below the thread pointer: above it is what protects
        // the stack.
        [0x64, 0x48, 0x8b, 0x04, 0x25, ..] => {
            number(5).filter(|offset| *offset < 0).map(|offset| TlsAccess::Offset(offset as u64))
        }
        // mov WORD(%rip), %register; mov %fs:(%register), %rax
        [0x48, 0x8b, first, _, _, _, _, 0x64, 0x48, 0x8b, second, ..]
            if first & 0xc7 == 0x05 && *second == first >> 3 =>
        {
            Some(TlsAccess::OffsetWord { svma: target(3)?, delta: 0 })
        }
        // lea DESCRIPTOR(%rip), %rax; call *(%rax)
        [0x48, 0x8d, 0x05, _, _, _, _, 0xff, 0x10, rest @ ..] => {
            let delta = displacement(rest, &[0x64, 0x48, 0x8b])?;
            Some(TlsAccess::Descriptor { svma: target(3)?, delta })
        }
        // lea WORDS(%rip), %rdi; call __tls_get_addr
        [0x48, 0x8d, 0x3d, _, _, _, _, rest @ ..] => {
            let called = call_len(rest)?;
            let svma = target(3)?;
            Some(match displacement(rest.get(called..)?, &[0x48, 0x8b])? {
                0 => TlsAccess::ModuleAndOffset { svma },
                offset => TlsAccess::Module { svma, offset },
            })
        }
        _ => None,
    }
}

/// Returns the length of a call, with its prefixes.
fn call_len(code: &[u8]) -> Option<usize> {
    let prefixes = code.iter().take_while(|byte| matches!(byte, 0x48 | 0x66)).count();
    match code.get(prefixes..)? {
        [0xe8, ..] => Some(prefixes + 5),
        [0xff, 0x15, ..] => Some(prefixes + 6),
        _ => None,
    }
}

/// Returns the distance that a load of `%rax` adds to its address in `%rax`. The load has this
/// opcode.
fn displacement(code: &[u8], opcode: &[u8]) -> Option<u64> {
    match code.strip_prefix(opcode)? {
        [0x00, ..] => Some(0),
        [0x40, byte, ..] => Some(i64::from(*byte as i8) as u64),
        [0x80, rest @ ..] => Some(number_at(rest, 0)? as u64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_access(code: &[u8], expected: Option<TlsAccess>) {
        let code = [&[0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x83, 0xec, 0x08][..], code].concat();
        assert_eq!(thread_local_in(&code, 0x1000), expected, "{code:x?}");
    }

    #[test]
    fn each_way_to_a_thread_local_variable_is_known() {
        let load = |rest: &[u8]| [&[0x64, 0x48, 0x8b][..], rest, &[0xc3]].concat();
        check_access(
            &load(&[0x04, 0x25, 0xf8, 0xff, 0xff, 0xff]),
            Some(TlsAccess::Offset(8u64.wrapping_neg())),
        );
        let guarded =
            [load(&[0x04, 0x25, 0x28, 0, 0, 0]), load(&[0x04, 0x25, 0xf0, 0xff, 0xff, 0xff])];
        check_access(&guarded.concat(), Some(TlsAccess::Offset(16u64.wrapping_neg())));
        let word = [&[0x48, 0x8b, 0x15, 0x10, 0, 0, 0][..], &load(&[0x02])].concat();
        check_access(&word, Some(TlsAccess::OffsetWord { svma: 0x101f, delta: 0 }));
        let other = [&[0x48, 0x8b, 0x15, 0x10, 0, 0, 0][..], &load(&[0x00])].concat();
        check_access(&other, None);
        let call = [0x48, 0x8d, 0x05, 0x10, 0, 0, 0, 0xff, 0x10];
        let described = |rest: &[u8]| [&call[..], &load(rest)].concat();
        check_access(&described(&[0x00]), Some(TlsAccess::Descriptor { svma: 0x101f, delta: 0 }));
        check_access(
            &described(&[0x40, 0x18]),
            Some(TlsAccess::Descriptor { svma: 0x101f, delta: 0x18 }),
        );
        let called = |rest: &[u8]| {
            let call = [0x66, 0x48, 0x8d, 0x3d, 0x10, 0, 0, 0, 0x66, 0x66, 0x48, 0xe8, 1, 2, 3, 4];
            [&call[..], &[0x48, 0x8b], rest].concat()
        };
        check_access(&called(&[0x00, 0xc3]), Some(TlsAccess::ModuleAndOffset { svma: 0x1020 }));
        let far = called(&[0x80, 0x18, 1, 0, 0]);
        check_access(&far, Some(TlsAccess::Module { svma: 0x1020, offset: 0x118 }));
        check_access(&[0xe8, 1, 2, 3, 4, 0xc3], None);
    }

    #[test]
    fn variables_are_found_by_each_kind_of_reference() {
        let state = 0x5000..0x6000;
        let check = |code: &[u8], expected: &[u32]| {
            assert_eq!(variables_in(code, 0x1000, &state), expected, "{code:x?}");
        };
        // cmpq $0, 0x5248; mov 0x5254, %edi
        let relative = [
            &[0x48, 0x83, 0x3d, 0x40, 0x42, 0, 0, 0][..],
            &[0x8b, 0x3d, 0x46, 0x42, 0, 0, 0xe9, 0, 0, 0, 0],
        ];
        check(&relative.concat(), &[0x240, 0x248, 0x250]);
        // mov 0x5254, %edi
        check(&[0x8b, 0x3c, 0x25, 0x54, 0x52, 0, 0], &[0x250]);
        // lea 0x870(%rax), %rbx
        check(&[0x48, 0x8d, 0x98, 0x70, 0x08, 0, 0], &[0x870]);
        check(&[0x48, 0x8b, 0x98, 0x70, 0x08, 0, 0], &[]);
        check(&[0x48, 0x8d, 0x98, 0x70, 0x18, 0, 0], &[]);
    }
}
