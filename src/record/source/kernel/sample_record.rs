//! A sample as the kernel writes it into a buffer.

use traceprof_abi::runtime::word;
use traceprof_abi::unwind::{RETURN_ADDRESS, Registers};

use crate::record::source::perf;

/// The most frames of the kernel that a sample keeps, innermost first.
const CHAIN_MAX: usize = 127;
/// The lowest address of the kernel's half.
const KERNEL_START: u64 = 0xff00_0000_0000_0000;
/// Numbers from here on are marks in a call chain (`PERF_CONTEXT_MAX`).
const MARKS: u64 = -4095_i64 as u64;
/// The mark before the kernel's frames (`PERF_CONTEXT_KERNEL`).
const MARK_KERNEL: u64 = -128_i64 as u64;

/// The state of a thread that a sample interrupted.
pub(super) struct InterruptedThread<'r> {
    pub(super) pid: i32,
    pub(super) tid: u32,
    pub(super) time_ns: u64,
    /// The kernel's id of the event, or of the event that it was inherited from.
    pub(super) event: u64,
    pub(super) cpu: u32,
    /// The kernel's own call chain, if the event has one.
    pub(super) chain: CallChain<'r>,
    pub(super) registers: Registers,
    pub(super) stack: &'r [u8],
}

/// The 64-bit words of a record.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Words<'r>(pub(super) &'r [u8]);

impl Iterator for Words<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_ne_bytes(*word))
    }
}

impl<'r> Words<'r> {
    /// Takes the next words: first their number, then themselves.
    fn take_counted(&mut self) -> Option<Words<'r>> {
        let len = usize::try_from(self.next()?).ok()?.checked_mul(8)?;
        let (counted, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(Words(counted))
    }
}

/// A call chain: addresses, with a mark before those of each mode.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CallChain<'r>(Words<'r>);

impl<'r> CallChain<'r> {
    /// Returns the frame words of the kernel's functions, innermost first.
    ///
    /// The first one is the interrupted instruction, the others are return addresses.
    pub(super) fn frame_words(self) -> impl Iterator<Item = u64> + use<'r> {
        let mut is_in_kernel = false;
        let in_kernel = self.0.filter(move |address| {
            if *address >= MARKS {
                is_in_kernel = *address == MARK_KERNEL;
                return false;
            }
            is_in_kernel && *address >= KERNEL_START
        });
        let word = |(index, address): (usize, u64)| {
            let mark = if index == 0 { 0 } else { RETURN_ADDRESS };
            address & !RETURN_ADDRESS | mark
        };
        in_kernel.take(CHAIN_MAX).enumerate().map(word).filter(|word| word::is_kernel(*word))
    }
}

impl<'r> InterruptedThread<'r> {
    /// Parses the fields in the kernel's order: pid and tid, time, event id, core, call chain if
    /// the event has one, user registers, user stack.
    ///
    /// Returns `None` for a sample without user registers.
    pub(super) fn parse(body: &'r [u8], has_chain: bool) -> Option<Self> {
        const ABI_64: u64 = 2;
        let mut words = Words(body);
        let ids = words.next()?;
        let (pid, tid) = (ids as i32, (ids >> 32) as u32);
        let time_ns = words.next()?;
        let event = words.next()?;
        let cpu = words.next()? as u32;
        let chain = if has_chain { words.take_counted()? } else { Words::default() };
        if words.next()? != ABI_64 {
            return None;
        }
        let mut regs = [0u64; perf::USER_REGISTERS];
        for register in &mut regs {
            *register = words.next()?;
        }
        let registers = perf::registers(regs);
        let size = usize::try_from(words.next()?).ok()?;
        let copied = words.0.get(..size)?;
        let used = words.0.get(size..).and_then(<[u8]>::first_chunk::<8>);
        let used = used.map_or(0, |word| u64::from_ne_bytes(*word));
        let stack = copied.get(..usize::try_from(used).ok()?)?;
        let chain = CallChain(chain);
        Some(Self { pid, tid, time_ns, event, cpu, chain, registers, stack })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: u64 = -512_i64 as u64;
    const GUEST: u64 = -2048_i64 as u64;
    const LEAF: u64 = 0xffff_ffff_8100_0010;
    const CALLER: u64 = 0xffff_ffff_c000_0020;

    fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn frame_words(chain: &[u64]) -> Vec<u64> {
        CallChain(Words(&bytes(chain))).frame_words().collect()
    }

    #[test]
    fn the_leaf_is_exact_and_its_callers_are_return_addresses() {
        let leaf = LEAF & !RETURN_ADDRESS;
        assert_eq!(frame_words(&[MARK_KERNEL, LEAF, CALLER]), [leaf, CALLER]);
        assert_eq!(frame_words(&[MARK_KERNEL, LEAF, USER, 0x5000, CALLER]), [leaf]);
        assert_eq!(frame_words(&[GUEST, CALLER, MARK_KERNEL, LEAF]), [leaf]);
    }

    #[test]
    fn marks_and_other_addresses_are_no_frames() {
        let none: [&[u64]; 6] = [
            &[],
            &[MARK_KERNEL],
            &[MARK_KERNEL, USER, MARK_KERNEL],
            &[LEAF, CALLER],
            &[USER, 0x5000],
            &[MARK_KERNEL, 0, 0x5000, 0x7fff_ffff_ffff, 0x0123_4567_89ab_cdef],
        ];
        for chain in none {
            assert_eq!(frame_words(chain), [] as [u64; 0], "{chain:x?}");
        }
        // A wild number is not mistaken for another word.
        for wild in (0..64).map(|bit| 1u64 << bit).chain([u64::MAX, u64::MAX - 4096]) {
            let words = frame_words(&[MARK_KERNEL, wild, !wild]);
            assert!(words.iter().all(|word| word::is_kernel(*word)), "{wild:x}");
        }
    }

    #[test]
    fn the_outermost_frames_of_a_long_chain_are_left_out() {
        let long: Vec<u64> = (0..1000).map(|number| LEAF + number).collect();
        let words = frame_words(&[&[MARK_KERNEL], &long[..]].concat());
        assert_eq!((words.len(), words[126]), (CHAIN_MAX, LEAF + 126));
    }

    /// Returns a record's body with this chain behind its count, and a stack of two words.
    fn body(count: u64, chain: &[u64]) -> Vec<u8> {
        let registers = [0x5000; perf::USER_REGISTERS];
        let head = [7 << 32 | 6, 99, 77, 1, count];
        bytes(&[&head[..], chain, &[2], &registers, &[16, 1, 2, 16]].concat())
    }

    #[test]
    fn the_chain_is_between_the_core_and_the_registers() {
        let body = body(3, &[MARK_KERNEL, LEAF, CALLER]);
        let whole = InterruptedThread::parse(&body, true).unwrap();
        let found: Vec<u64> = whole.chain.frame_words().collect();
        assert_eq!(found, [LEAF & !RETURN_ADDRESS, CALLER]);
        assert_eq!((whole.tid, whole.registers.pc, whole.stack.len()), (7, 0x5000, 16));
        for len in 0..body.len() - 24 {
            assert!(InterruptedThread::parse(&body[..len], true).is_none(), "{len}");
        }
    }

    #[test]
    fn a_count_beyond_the_record_is_refused() {
        let chain = [MARK_KERNEL, LEAF];
        for count in [100, 1 << 32, 1 << 61, (1 << 61) + 2, u64::MAX] {
            assert!(InterruptedThread::parse(&body(count, &chain), true).is_none(), "{count}");
        }
        // A wrong count within the record: nothing is read beyond it.
        for count in 0..30 {
            InterruptedThread::parse(&body(count, &chain), true);
        }
        assert!(InterruptedThread::parse(&body(0, &[]), true).is_some());
    }
}
