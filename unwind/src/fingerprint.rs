//! The inputs of an unwind: enough to see later that a sleeping thread has the same stack.
//!
//! A walk depends on the registers that it starts with, the stack words that it loads, and the
//! tables. If the tables, the stack pointer, the pc and these words are the same, the stack is the
//! same.
//!
//! The other registers are not compared. A stack that was unwound without them is certainly the
//! same. A stack that was unwound with them can differ in one case only: the thread returned to the
//! same location with a frame of another size below the same return addresses.
//!
//! # Does not
//! - know whether the tables are the same: a fingerprint is valid only while the mappings are
//!   unchanged.

/// Number of bytes per read.
const READ_LEN: usize = 8 << 10;
const WORD: usize = size_of::<u64>();

/// The inputs that a stack was unwound from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackFingerprint {
    sp: u64,
    pc: u64,
    /// The addresses that were read, ascending, and their words.
    words: Vec<(u64, u64)>,
    /// The addresses that could not be read.
    missing: Vec<u64>,
}

impl StackFingerprint {
    pub(super) fn new((sp, pc): (u64, u64), loaded: Vec<(u64, u64)>, missing: Vec<u64>) -> Self {
        let (mut words, mut missing) = (loaded, missing);
        words.sort_unstable();
        words.dedup();
        words.shrink_to_fit();
        missing.sort_unstable();
        missing.dedup();
        Self { sp, pc, words, missing }
    }

    /// Returns whether every word that the walk loaded could be read.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty()
    }

    /// Returns whether a thread that sleeps with this stack pointer and pc has this stack. `read`
    /// reads the process's memory, as far as it exists, and returns the number of bytes read.
    ///
    /// The caller ensures that the thread does not run from the time its registers are read until
    /// this function returns.
    pub fn matches(
        &self,
        (sp, pc): (u64, u64),
        read: &mut dyn FnMut(u64, &mut [u8]) -> usize,
    ) -> bool {
        let mut is_missing = |avma: &u64| read(*avma, &mut [0; WORD]) < WORD;
        (self.sp, self.pc) == (sp, pc)
            && self.missing.iter().all(&mut is_missing)
            && holds(&self.words, read)
    }
}

/// Returns whether the words are unchanged. Adjacent words are read together.
fn holds(mut words: &[(u64, u64)], read: &mut dyn FnMut(u64, &mut [u8]) -> usize) -> bool {
    let mut bytes = [0; READ_LEN];
    while let Some(&(first, _)) = words.first() {
        let offset = |avma: u64| (avma - first) as usize;
        let is_near = |word: &(u64, u64)| word.0 - first <= (READ_LEN - WORD) as u64;
        let (near, rest) = words.split_at(words.partition_point(is_near));
        let len = near.last().map_or(0, |last| offset(last.0) + WORD);
        let (into, _) = bytes.split_at_mut(len);
        let is_there = read(first, into) == len;
        let is_same = |&(avma, word): &(u64, u64)| {
            let found = into.get(offset(avma)..).and_then(|rest| rest.first_chunk());
            found.map(|bytes| u64::from_le_bytes(*bytes)) == Some(word)
        };
        if !is_there || !near.iter().all(is_same) {
            return false;
        }
        words = rest;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const STACK: u64 = 0x7000_0000_0000;

    /// Memory of 64 KiB at `STACK`, whose words hold their own offsets.
    fn memory() -> Vec<u8> {
        (0..1u64 << 16).step_by(WORD).flat_map(u64::to_le_bytes).collect()
    }

    fn read_from(memory: &[u8]) -> impl FnMut(u64, &mut [u8]) -> usize {
        |avma, into| {
            let there = memory.get((avma - STACK) as usize..).unwrap_or_default();
            let len = there.len().min(into.len());
            into[..len].copy_from_slice(&there[..len]);
            len
        }
    }

    fn at(offsets: &[u64]) -> StackFingerprint {
        let loaded = offsets.iter().map(|offset| (STACK + offset, *offset)).collect();
        StackFingerprint::new(PLACE, loaded, Vec::new())
    }

    const PLACE: (u64, u64) = (STACK, 0x40_1000);

    #[test]
    fn stack_is_the_same_if_registers_and_words_are() {
        // Adjacent words, the last word of the first read, the first word beyond it, and the last
        // word of all.
        let offsets = [0, 8, READ_LEN as u64 - 8, READ_LEN as u64, 0x9000, 0xFFF8];
        let fingerprint = at(&offsets);
        let memory = memory();
        assert!(fingerprint.matches(PLACE, &mut read_from(&memory)));
        assert!(!fingerprint.matches((STACK + 8, 0x40_1000), &mut read_from(&memory)));
        assert!(!fingerprint.matches((STACK, 0x40_1002), &mut read_from(&memory)));
        for offset in offsets {
            for byte in [offset, offset + 7] {
                let mut other = memory.clone();
                other[byte as usize] ^= 0x40;
                assert!(!fingerprint.matches(PLACE, &mut read_from(&other)), "{byte:#x}");
            }
        }
        let mut beside = memory.clone();
        beside[16] ^= 1;
        assert!(fingerprint.matches(PLACE, &mut read_from(&beside)), "no word of it has changed");
    }

    #[test]
    fn missing_memory_does_not_match() {
        let memory = memory();
        assert!(!at(&[0, 0xFFF8]).matches(PLACE, &mut read_from(&memory[..0xFFF8])));
        assert!(!at(&[0x9000]).matches(PLACE, &mut |_, _| 0));
        let gappy = StackFingerprint::new(PLACE, vec![(STACK + 8, 8)], vec![STACK + 0x1_0000]);
        assert!(!gappy.is_complete() && gappy.matches(PLACE, &mut read_from(&memory)));
        let longer = [&memory[..], &[0; WORD]].concat();
        assert!(!gappy.matches(PLACE, &mut read_from(&longer)), "it is there now");
        assert!(at(&[]).matches(PLACE, &mut |_, _| 0), "a stack of one frame needs nothing");
    }
}
