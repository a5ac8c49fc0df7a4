//! The executable part of a module, and ranges of it.

use std::ops::Range;

use traceprof_abi::unwind::tables::BLOCK;

use super::error::CompileError;
use crate::elf::Elf;

/// Executable bytes from the first to the last that a table covers. The small code model ends at
/// 2 GiB; the limit keeps a file with nonsense addresses from asking for gigabytes of index.
const SPAN_MAX: u64 = 1 << 30;

/// The bytes of `nop` in all its lengths, of `int3`, and of nothing.
pub(super) const PADDING: [u8; 11] =
    [0x00, 0x0F, 0x1F, 0x2E, 0x40, 0x44, 0x66, 0x80, 0x84, 0x90, 0xCC];
/// The executable part of a module.
#[derive(Debug)]
pub(super) struct Code {
    pub(super) base: u64,
    /// Behind the base.
    pub(super) end: u32,
    /// (start, end) of the executable segments' contents, SVMAs.
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

    /// A range of code behind the base.
    pub(super) fn range(&self, start: u64, end: u64) -> Option<(u32, u32)> {
        let inside = |part: &(u64, u64)| part.0 <= start && start < end && end <= part.1;
        self.parts.iter().any(inside).then(|| {
            // Both are at most SPAN_MAX behind the base: `Code::of` has checked the parts.
            ((start - self.base) as u32, (end - self.base) as u32)
        })
    }
}

/// Parts of code, none of which touches another.
#[derive(Debug, Default)]
pub(super) struct Parts(Vec<Range<u32>>);

impl Parts {
    /// All of these.
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

    /// A byte of the range is in one.
    pub(super) fn touch(&self, range: Range<u32>) -> bool {
        let behind = self.0.partition_point(|part| part.end <= range.start);
        self.0.get(behind).is_some_and(|part| part.start < range.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_touch_what_has_a_byte_of_them() {
        let parts = Parts::of([40..50, 10..20, 15..30, 30..32].into_iter());
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
        assert!(!Parts::default().touch(0..u32::MAX));
    }
}
