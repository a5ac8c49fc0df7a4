//! Resolves the locations of thread-local variables in a live process, from the loader's data.
//!
//! # Invariants
//! - Constant offsets are known at once. A word that the loader has not filled in yet gives no
//!   location, and is read again later.
//!
//! # Does not
//! - read the process: the caller does.

use traceprof_abi::context::{RecordKind, TlsLocation};

use super::TlsAccess;

/// The largest plausible module number.
const MODULE_MAX: u64 = 1 << 20;
/// The largest plausible size of a module's block, and distance from the thread pointer, in bytes.
const BLOCK_MAX: u64 = 1 << 32;

/// Resolves a module's access to a variable in a live process.
///
/// `bias` is the load bias of the module. `vector` is the C library's layout of the dynamic thread
/// vector, for TLS blocks without a static offset. `read` returns a word of memory. The result is
/// `None` if the loader has not decided yet, or if its value is impossible.
pub fn resolve_tls(
    access: TlsAccess,
    bias: u64,
    vector: RecordKind,
    read: impl Fn(u64) -> Option<u64>,
) -> Option<TlsLocation> {
    let word = |svma: u64| read(svma.wrapping_add(bias));
    let at_offset = |offset: u64| {
        let is_near = offset.wrapping_neg() < BLOCK_MAX && offset != 0;
        is_near.then_some(TlsLocation { kind: RecordKind::Offset, offset, module: 0 })
    };
    let in_module = |module: u64, offset: u64| {
        let is_one = (1..=MODULE_MAX).contains(&module) && offset < BLOCK_MAX;
        is_one.then_some(TlsLocation { kind: vector, offset, module })
    };
    match access {
        TlsAccess::Offset(offset) => at_offset(offset),
        TlsAccess::OffsetWord { svma, delta } => {
            let offset = word(svma).filter(|offset| *offset != 0)?;
            at_offset(offset.wrapping_add(delta))
        }
        TlsAccess::ModuleAndOffset { svma } => in_module(word(svma)?, word(svma.wrapping_add(8))?),
        TlsAccess::Module { svma, offset } => in_module(word(svma)?, offset),
        TlsAccess::Descriptor { svma, delta } => {
            let (resolver, argument) = (word(svma)?, word(svma.wrapping_add(8))?);
            if resolver == 0 {
                return None;
            }
            // Such a negative number is never an address in the program.
            if let Some(location) = at_offset(argument.wrapping_add(delta)) {
                return Some(location);
            }
            let (module, offset) = (read(argument)?, read(argument.wrapping_add(8))?);
            // Before its first use, the descriptor points to its own relocation, which starts with
            // the address of the descriptor.
            let is_resolved = module != svma;
            in_module(module, offset.wrapping_add(delta)).filter(|_| is_resolved)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BIAS: u64 = 0x7000_0000;

    fn check(access: TlsAccess, words: &[(u64, u64)], expected: Option<(RecordKind, u64, u64)>) {
        let read = |avma: u64| words.iter().find(|(at, _)| *at == avma).map(|(_, word)| *word);
        let location = resolve_tls(access, BIAS, RecordKind::Glibc, read);
        let expected = expected.map(|(kind, offset, module)| TlsLocation { kind, offset, module });
        assert_eq!(location, expected, "{access:?} {words:x?}");
    }

    fn below(distance: u64) -> Option<(RecordKind, u64, u64)> {
        Some((RecordKind::Offset, distance.wrapping_neg(), 0))
    }

    #[test]
    fn fixed_distances_are_below_the_thread_pointer() {
        check(TlsAccess::Offset(8u64.wrapping_neg()), &[], below(8));
        check(TlsAccess::Offset(1 << 40), &[], None);
        let access = TlsAccess::OffsetWord { svma: 0x10, delta: 8 };
        check(access, &[(BIAS + 0x10, 0x40u64.wrapping_neg())], below(0x38));
        check(access, &[(BIAS + 0x10, 0)], None);
        check(access, &[], None);
    }

    #[test]
    fn numbers_of_modules_are_the_loaders() {
        let both = TlsAccess::ModuleAndOffset { svma: 0x10 };
        let words = |module, offset| [(BIAS + 0x10, module), (BIAS + 0x18, offset)];
        check(both, &words(3, 0x20), Some((RecordKind::Glibc, 0x20, 3)));
        check(both, &words(0, 0x20), None);
        check(both, &words(u64::MAX, 0x20), None);
        check(both, &words(3, u64::MAX), None);
        let own = TlsAccess::Module { svma: 0x10, offset: 0x48 };
        check(own, &words(2, 0x20), Some((RecordKind::Glibc, 0x48, 2)));
    }

    #[test]
    fn descriptors_hold_a_distance_or_lead_to_a_module() {
        let access = |delta| TlsAccess::Descriptor { svma: 0x10, delta };
        let slot = |argument| [(BIAS + 0x10, 0xf000), (BIAS + 0x18, argument)];
        check(access(8), &slot(0x40u64.wrapping_neg()), below(0x38));
        let [resolver, argument] = slot(0x9000);
        let dynamic = |module| [resolver, argument, (0x9000, module), (0x9008, 0x20)];
        check(access(4), &dynamic(5), Some((RecordKind::Glibc, 0x24, 5)));
        check(access(4), &dynamic(0x10), None);
        check(access(4), &[(BIAS + 0x10, 0), argument], None);
        check(access(4), &[resolver, argument], None);
    }
}
