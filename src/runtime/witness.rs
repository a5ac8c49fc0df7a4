//! What names were read from: as long as it is the same, so are the names.

use super::memory::TargetMemory;
use super::pages::TargetPages;

/// Most parts of one witness.
const PARTS_MAX: usize = 16;

/// Bytes of the target, each with its address (AVMA).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Witness {
    parts: Vec<(u64, Box<[u8]>)>,
}

impl Witness {
    /// Adds the bytes at an address.
    pub(super) fn add_bytes(
        &mut self,
        pages: &TargetPages<'_>,
        avma: u64,
        len: usize,
    ) -> Option<()> {
        if self.parts.len() >= PARTS_MAX {
            return None;
        }
        self.parts.push((avma, pages.bytes(avma, len)?.into()));
        Some(())
    }

    /// Returns the bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        let parts = self.parts.iter().map(|(_, bytes)| bytes.len() + size_of::<(u64, Box<[u8]>)>());
        size_of::<Self>() + parts.sum::<usize>()
    }

    fn len(&self) -> usize {
        self.parts.iter().map(|(_, bytes)| bytes.len()).sum()
    }

    fn is_in(&self, mut read: &[u8]) -> bool {
        self.parts.iter().all(|(_, bytes)| {
            let Some((now, later)) = read.split_at_checked(bytes.len()) else { return false };
            read = later;
            now == &**bytes
        })
    }
}

/// Returns which of these hold now. They are read together, in few calls.
pub fn which_hold(witnesses: &[&Witness], memory: &dyn TargetMemory) -> Vec<bool> {
    let pieces = |some: &[&Witness]| -> Vec<(u64, usize)> {
        let parts = some.iter().flat_map(|witness| &witness.parts);
        parts.map(|(avma, bytes)| (*avma, bytes.len())).collect()
    };
    let len = |some: &[&Witness]| some.iter().map(|witness| witness.len()).sum::<usize>();
    let mut hold = Vec::with_capacity(witnesses.len());
    let mut open = vec![witnesses];
    while let Some(some) = open.pop() {
        let mut bytes = vec![0; len(some)];
        if memory.read_pieces(&pieces(some), &mut bytes) {
            let mut rest = &*bytes;
            for witness in some {
                let (now, later) = rest.split_at_checked(witness.len()).unwrap_or_default();
                hold.push(witness.is_in(now));
                rest = later;
            }
        } else if let [_] = some {
            hold.push(false);
        } else {
            // One of them is not readable any more. The first half is next.
            let (first, second) = some.split_at(some.len() / 2);
            open.extend([second, first]);
        }
    }
    hold
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page of numbers at this address, of which one is different.
    struct Page(u64, Option<u64>);

    impl TargetMemory for Page {
        fn read(&self, avma: u64, into: &mut [u8]) -> usize {
            let mut count = 0;
            for (at, byte) in (avma..).zip(into) {
                if !(self.0..self.0 + 4096).contains(&at) {
                    break;
                }
                *byte = if self.1 == Some(at) { 0xaa } else { at as u8 };
                count += 1;
            }
            count
        }
    }

    fn witness(avmas: &[u64]) -> Witness {
        let page = Page(0x1000, None);
        let pages = TargetPages::of(&page);
        let mut witness = Witness::default();
        for avma in avmas {
            witness.add_bytes(&pages, *avma, 4).unwrap();
        }
        witness
    }

    #[test]
    fn a_witness_holds_as_long_as_all_its_bytes_are_the_same() {
        let all = [&[0x1000, 0x1100][..], &[0x1004], &[0x1ffc, 0x1010], &[]].map(witness);
        let hold = |memory: Page| which_hold(&all.each_ref(), &memory);
        assert_eq!(hold(Page(0x1000, None)), [true; 4]);
        assert_eq!(hold(Page(0x1000, Some(0x1103))), [false, true, true, true]);
        assert_eq!(hold(Page(0x1000, Some(0x1013))), [true, true, false, true]);
        assert_eq!(hold(Page(0x1000, Some(0x1014))), [true; 4]);
        // The first bytes are not readable any more.
        assert_eq!(hold(Page(0x1001, None)), [false, true, true, true]);
        assert_eq!(hold(Page(0x8000, None)), [false, false, false, true]);
        assert!(which_hold(&[], &Page(0, None)).is_empty());
    }
}
