//! The executable code of a module, and ranges in it.

use std::ops::Range;

use traceprof_abi::unwind::tables::BLOCK;

use super::error::CompileError;
use traceprof_elf::Elf;

/// Maximum distance in bytes from the first to the last executable byte that a table covers. The
/// small code model ends at 2 GiB. The limit keeps a file with nonsense addresses from demanding
/// gigabytes of index.
const SPAN_MAX: u64 = 1 << 30;

/// Bytes that occur in padding: in `nop` of every length, in `int3`, and zero.
pub(super) const PADDING: [u8; 11] =
    [0x00, 0x0F, 0x1F, 0x2E, 0x40, 0x44, 0x66, 0x80, 0x84, 0x90, 0xCC];

/// The executable code of a module.
#[derive(Debug)]
pub(super) struct Code {
    pub(super) base: u64,
    /// End of the code, as an offset from `base`.
    pub(super) end: u32,
    /// Start and end (SVMAs) of the contents of each executable segment.
    pub(super) parts: Vec<(u64, u64)>,
}

impl Code {
    pub(super) fn of(elf: &Elf<'_>) -> Result<Self, CompileError> {
        let parts: Vec<(u64, u64)> = elf
            .loads()
            .iter()
            .filter(|load| load.exec)
            .filter_map(|load| {
                let length = elf.data(load.svma)?.len() as u64;
                Some((load.svma, load.svma.checked_add(length)?))
            })
            .filter(|(start, end)| start < end)
            .collect();
        let first = parts.first().ok_or(CompileError::NoCode)?.0;
        let base = first - first % BLOCK;
        let end = parts.iter().map(|part| part.1).max().unwrap_or(base);
        if end - base > SPAN_MAX {
            return Err(CompileError::Span(end - base));
        }
        Ok(Self { base, end: (end - base) as u32, parts })
    }

    /// Converts a range of SVMAs to offsets from `base`. Returns `None` if it is not inside one
    /// segment.
    pub(super) fn range(&self, start: u64, end: u64) -> Option<(u32, u32)> {
        let inside = |part: &(u64, u64)| part.0 <= start && start < end && end <= part.1;
        self.parts.iter().any(inside).then(|| {
            // Both offsets are at most SPAN_MAX: `Code::of` has checked the segments.
            ((start - self.base) as u32, (end - self.base) as u32)
        })
    }
}

/// Ranges of code that neither overlap nor touch each other, ascending.
#[derive(Debug, Default)]
pub(super) struct DisjointRanges(Vec<Range<u32>>);

impl DisjointRanges {
    /// Merges ranges that overlap or touch.
    pub(super) fn of(ranges: impl Iterator<Item = Range<u32>>) -> Self {
        let mut sorted: Vec<Range<u32>> = ranges.collect();
        sorted.sort_unstable_by_key(|range| range.start);
        let mut parts: Vec<Range<u32>> = Vec::new();
        for range in sorted {
            match parts.last_mut().filter(|last| range.start <= last.end) {
                Some(last) => last.end = last.end.max(range.end),
                None => parts.push(range),
            }
        }
        Self(parts)
    }

    /// Returns whether at least one byte of `range` is in one of the ranges.
    pub(super) fn touch(&self, range: Range<u32>) -> bool {
        let next = self.0.partition_point(|part| part.end <= range.start);
        self.0.get(next).is_some_and(|part| part.start < range.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_touches_if_it_shares_a_byte() {
        let parts = DisjointRanges::of([40..50, 10..20, 15..30, 30..32].into_iter());
        assert_eq!(parts.0, [10..32, 40..50]);
        for (range, touched) in [
            (0..10, false),
            (0..11, true),
            (31..32, true),
            (32..40, false),
            (32..60, true),
            (49..50, true),
            (50..90, false),
        ] {
            assert_eq!(parts.touch(range.clone()), touched, "{range:?}");
        }
        assert!(!DisjointRanges::default().touch(0..u32::MAX));
    }
}
