//! Address space that an engine of JavaScript has reserved for its code.
//!
//! The engine reserves it once, without access, and makes pages of it executable as its code grows.
//! No event tells when. So all of it counts as code from the start.

use std::ops::Range;

use crate::proc::Mapping;

/// Longest memory in it that is not code: the heads of the engine's pages have 8 KiB.
const HEAD_MAX: u64 = 32 << 10;
/// Longest reservation. The newest versions have 512 MiB.
const RESERVED_MAX: u64 = 512 << 20;

/// What a mapping may be in a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Code,
    Reserved,
    Head,
}

fn part(mapping: &Mapping) -> Option<Part> {
    let path = mapping.path.to_string_lossy();
    if mapping.inode != 0 || !path.is_empty() && !path.starts_with("[anon:") {
        return None;
    }
    let len = mapping.end - mapping.start;
    match (mapping.read, mapping.write, mapping.exec) {
        (true, _, true) => Some(Part::Code),
        (false, false, false) if len <= RESERVED_MAX => Some(Part::Reserved),
        (true, true, false) if len <= HEAD_MAX => Some(Part::Head),
        _ => None,
    }
}

/// Returns the reservations among the mappings of a process, which are in the order of their
/// addresses: each adjoins code.
pub(super) fn reservations<'m>(mappings: impl Iterator<Item = &'m Mapping>) -> Vec<Range<u64>> {
    let mut found: Vec<Range<u64>> = Vec::new();
    let mut open: Option<(Range<u64>, bool)> = None;
    let mut close = |open: &mut Option<(Range<u64>, bool)>| {
        found.extend(open.take().and_then(|(range, has_code)| has_code.then_some(range)));
    };
    let mut end = 0;
    for mapping in mappings {
        let part = part(mapping);
        if mapping.start != end || part.is_none() {
            close(&mut open);
        }
        end = mapping.end;
        match part {
            Some(Part::Code | Part::Reserved) => {
                let (range, has_code) = open.get_or_insert((mapping.start..mapping.end, false));
                range.end = mapping.end;
                *has_code |= part == Some(Part::Code);
            }
            // It is a part only if more follows.
            Some(Part::Head) | None => {}
        }
    }
    close(&mut open);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a mapping of a number of pages: `x` of code, `-` without access, `w` of data, `f` of
    /// a file.
    fn mapping(start: u64, pages: u64, kind: char) -> Mapping {
        Mapping {
            read: kind != '-',
            write: kind == 'w',
            exec: kind == 'x' || kind == 'f',
            inode: u64::from(kind == 'f'),
            ..Mapping::writable(start * 4096, (start + pages) * 4096, "")
        }
    }

    #[track_caller]
    fn check(kinds: &[(u64, u64, char)], expected: &[(u64, u64)]) {
        let mappings: Vec<Mapping> =
            kinds.iter().map(|(start, pages, kind)| mapping(*start, *pages, *kind)).collect();
        let found: Vec<(u64, u64)> = reservations(mappings.iter())
            .iter()
            .map(|it| (it.start / 4096, it.end / 4096))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn what_is_reserved_around_code_belongs_to_it() {
        check(&[(16, 4, '-'), (20, 1, 'w'), (21, 3, 'x'), (24, 40, '-')], &[(16, 64)]);
        check(&[(16, 4, 'x'), (20, 1, 'w'), (21, 3, 'x')], &[(16, 24)]);
        check(&[(16, 4, 'x')], &[(16, 20)]);
    }

    #[test]
    fn other_memory_does_not() {
        check(&[(16, 4, '-')], &[]);
        check(&[(16, 4, '-'), (20, 4, 'w')], &[]);
        // Data at its ends, or much of it; a gap; a file; a reservation for something else.
        check(&[(16, 4, 'w'), (20, 4, 'x'), (24, 4, 'w')], &[(20, 24)]);
        check(&[(16, 4, 'x'), (20, 9, 'w'), (29, 4, '-')], &[(16, 20)]);
        check(&[(16, 4, 'x'), (20, 1 << 18, '-')], &[(16, 20)]);
        check(&[(16, 4, 'x'), (21, 4, '-')], &[(16, 20)]);
        check(&[(16, 4, '-'), (20, 4, 'f'), (24, 4, 'x'), (28, 4, '-')], &[(24, 32)]);
    }
}
