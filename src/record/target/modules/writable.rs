//! The memory of the target that may contain stacks.

use std::ops::Range;

use crate::proc::Mapping;

/// Returns the readable and writable ranges, which may contain stacks.
///
/// The main stack grows on demand, so its range includes the room to grow.
pub(super) fn writable(mappings: &[Mapping], own: &Range<u64>) -> Vec<(u64, u64)> {
    const GROWTH: u64 = 8 << 20;
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for mapping in mappings {
        if !(mapping.read && mapping.write) || own.contains(&mapping.start) {
            continue;
        }
        let floor = ranges.last().map_or(0, |(_, end)| *end);
        let start = if mapping.path == "[stack]" {
            mapping.end.saturating_sub(GROWTH).min(mapping.start).max(floor)
        } else {
            mapping.start
        };
        ranges.push((start, mapping.end));
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_stack_may_grow_down_to_its_neighbour() {
        let (top, own) = (0x7fff_0000_0000, 0x100..0x200);
        let stack = Mapping::writable(top - 0x2000, top, "[stack]");
        let far = Mapping::writable(0x1000, 0x2000, "");
        let near = Mapping::writable(0x1000, top - 0x10_0000, "");
        let agents = Mapping::writable(0x100, 0x200, "");
        let guard = Mapping { read: false, ..Mapping::writable(0x3000, 0x4000, "") };
        let of = |mappings: &[&Mapping]| {
            let mappings: Vec<Mapping> = mappings.iter().copied().cloned().collect();
            writable(&mappings, &own)
        };
        assert_eq!(
            of(&[&agents, &far, &guard, &stack]),
            [(0x1000, 0x2000), (top - (8 << 20), top)]
        );
        let near_end = top - 0x10_0000;
        assert_eq!(of(&[&near, &stack]), [(0x1000, near_end), (near_end, top)]);
    }
}
