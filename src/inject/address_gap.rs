//! A free address range for the segments.

use std::hash::{BuildHasher, RandomState};

use crate::proc::Mapping;

/// Alignment of the range, so that huge pages stay possible.
const ALIGN: u64 = 2 << 20;
/// The least distance to the neighbours on either side, so that the heap, the mapping area and the
/// stack can grow.
const MARGIN: u64 = 256 << 20;
/// The first address beyond user space (4-level page tables).
const USER_END: u64 = 0x7fff_ffff_f000;
/// The lowest address that is used: the kernel often forbids lower mappings, and null pointers
/// should fault.
const USER_START: u64 = 0x10_0000;

/// Returns the start of a free range of `len` bytes, or `None` if no gap is wide enough.
///
/// The range is in the middle half of the widest gap above the executable and below the stack. The
/// heap, the mapping area and the stack all grow far away from it. The gap below everything is the
/// last resort.
///
/// The address within that half is random. A thread that an earlier recording launched may detach
/// its segment only now, and must not hit a segment of this recording.
pub fn find_gap(mappings: &[Mapping], len: u64) -> Option<u64> {
    let len = len.checked_next_multiple_of(ALIGN)?;
    let gaps = mappings.windows(2).filter_map(|pair| {
        let grows_down = pair[1].path == "[stack]";
        (!grows_down).then_some((pair[0].end, pair[1].start.min(USER_END)))
    });
    let lowest = mappings.first().map_or(USER_END, |mapping| mapping.start.min(USER_END));
    widest(gaps, len).or_else(|| widest(std::iter::once((USER_START, lowest)), len))
}

fn widest(gaps: impl Iterator<Item = (u64, u64)>, len: u64) -> Option<u64> {
    let (start, end) = gaps.max_by_key(|(start, end)| end.saturating_sub(*start))?;
    let spare = end.checked_sub(start)?.checked_sub(len)?;
    // At least a quarter of the spare room stays free on either side.
    let least = (spare / 4).max(MARGIN + ALIGN);
    (spare / 2 >= MARGIN + ALIGN).then(|| {
        let most = spare - least;
        let choices = most.saturating_sub(least) / ALIGN + 1;
        (start + least + random() % choices * ALIGN) & !(ALIGN - 1)
    })
}

/// Returns a random number: each hasher of the standard library has another seed.
fn random() -> u64 {
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(layout: &[(u64, u64, &str)], len: u64) -> Option<u64> {
        let mappings: Vec<_> =
            layout.iter().map(|(s, e, p)| Mapping::writable(*s, *e, p)).collect();
        let found = find_gap(&mappings, len);
        if let Some(start) = found {
            assert_eq!(start % ALIGN, 0);
            let is_far = |m: &Mapping| m.end + MARGIN <= start || start + len + MARGIN <= m.start;
            assert!(mappings.iter().all(is_far), "{start:x}");
        }
        found
    }

    #[test]
    fn gap_is_between_heap_and_libraries() {
        let start = check(
            &[
                (0x5555_5555_4000, 0x5555_5557_7000, "/bin/x"),
                (0x5555_5557_7000, 0x5555_5560_0000, "[heap]"),
                (0x7f00_0000_0000, 0x7f00_0100_0000, "/lib/libc.so.6"),
                (0x7ffc_0000_0000, 0x7ffc_0002_1000, "[stack]"),
            ],
            2 << 30,
        )
        .unwrap();
        assert!((0x5555_5560_0000..0x7f00_0000_0000).contains(&start));
    }

    #[test]
    fn gap_below_the_stack_is_left_to_it() {
        let layout = [
            (0x10_0000, 0x7000_0000_0000, "/bin/x"),
            (0x7ffc_0000_0000, 0x7ffc_0002_1000, "[stack]"),
        ];
        assert_eq!(check(&layout, 2 << 30), None);
    }

    #[test]
    fn full_address_space_has_no_gap() {
        assert_eq!(check(&[(0x1000, USER_END, "")], 1 << 30), None);
        assert_eq!(check(&[(0x1000, USER_END, "")], u64::MAX), None);
    }
}
