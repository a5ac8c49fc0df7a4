//! The parts of the function in which an interpreter runs.

use std::ops::Range;

use crate::elf::{Definition, Definitions, Elf, functions_around};

/// Maximum number of parts of the function that interprets code.
const PARTS_MAX: usize = 16;
/// Minimum number of jumps that show where a function continues. A function that is in one piece
/// may have a byte or two that look like a jump.
const JUMPS_MIN: usize = 3;

/// Returns the parts of a function that interprets code, first that in which it starts. The names
/// of the others begin with its name.
pub(super) fn loops(elf: &Elf<'_>, name: &str, interpret: Definition) -> Vec<Range<u64>> {
    let around = || functions_around(elf, &[interpret.svma]).into_iter().next().flatten();
    let Some(start) = interpret.range().or_else(around) else { return Vec::new() };
    let mut parts = vec![start.clone()];
    for part in Definitions::of(elf).functions_named(name) {
        if parts.len() < PARTS_MAX && !parts.iter().any(|known| known.start == part.start) {
            parts.push(part);
        }
    }
    if parts.len() == 1 {
        parts.extend(cold_part(elf, &start));
    }
    parts
}

/// Returns the part of a function that the compiler has put elsewhere, as it does with code that
/// seldom runs. Jumps of the function lead into it. A jump to the start of a function is a call.
fn cold_part(elf: &Elf<'_>, function: &Range<u64>) -> Option<Range<u64>> {
    let code = elf.data(function.start)?;
    let len = usize::try_from(function.end - function.start).ok()?;
    let mut targets = jump_targets(code.get(..len)?, function);
    targets.sort_unstable();
    let parts = functions_around(elf, &targets);
    let parts = targets.iter().zip(parts).filter_map(|(target, part)| {
        let part = part?;
        (part.start < *target && part != *function).then_some(part)
    });
    // The targets are sorted, so those of one part are adjacent.
    let mut counts: Vec<(Range<u64>, usize)> = Vec::new();
    for part in parts {
        match counts.last_mut() {
            Some((last, count)) if *last == part => *count += 1,
            _ => counts.push((part, 1)),
        }
    }
    let (part, count) = counts.into_iter().max_by_key(|(_, count)| *count)?;
    (count >= JUMPS_MIN).then_some(part)
}

/// Returns the targets of the possible jumps out of a function.
fn jump_targets(code: &[u8], function: &Range<u64>) -> Vec<u64> {
    let targets = (0..code.len()).filter_map(|at| {
        let number_at_offset = match code.get(at..)? {
            [0x0f, 0x80..=0x8f, ..] => at + 2,
            [0xe9, ..] => at + 1,
            _ => return None,
        };
        let after = function.start.wrapping_add(number_at_offset as u64 + 4);
        Some(after.wrapping_add_signed(number_at(code, number_at_offset)?))
    });
    targets.filter(|target| !function.contains(target)).collect()
}

/// Returns the number of 32 bits at this offset.
pub(super) fn number_at(code: &[u8], at: usize) -> Option<i64> {
    let bytes = code.get(at..)?.first_chunk()?;
    Some(i64::from(i32::from_le_bytes(*bytes)))
}
