//! The bounds of the functions of a file without symbols, from the index of its call frame
//! information.

use std::ops::Range;

use gimli::{BaseAddresses, EhFrame, EhFrameHdr, LittleEndian, Pointer, UnwindSection};

use super::Elf;

/// Returns, for each address, the function that contains it, as an entry of `.eh_frame` has it.
pub fn functions_around(elf: &Elf<'_>, svmas: &[u64]) -> Vec<Option<Range<u64>>> {
    bounds(elf, svmas).unwrap_or_else(|| vec![None; svmas.len()])
}

fn bounds(elf: &Elf<'_>, svmas: &[u64]) -> Option<Vec<Option<Range<u64>>>> {
    let index = elf.eh_frame_hdr()?;
    let bases = BaseAddresses::default().set_eh_frame_hdr(index);
    let header = EhFrameHdr::new(elf.data(index)?, LittleEndian).parse(&bases, 8).ok()?;
    let Pointer::Direct(frames) = header.eh_frame_ptr() else { return None };
    let bases = bases.set_eh_frame(frames);
    let (table, section) = (header.table()?, EhFrame::new(elf.data(frames)?, LittleEndian));
    let bounds = |svma: &u64| {
        let cie = EhFrame::cie_from_offset;
        let entry = table.fde_for_address(&section, &bases, *svma, cie).ok()?;
        Some(entry.initial_address()..entry.end_address())
    };
    Some(svmas.iter().map(bounds).collect())
}

/// Number of long distances between entries that are looked at.
const GAPS: usize = 16;

/// Returns the longest piece of code between two functions that no entry of `.eh_frame` has.
pub fn largest_gap(elf: &Elf<'_>) -> Option<Range<u64>> {
    let index = elf.eh_frame_hdr()?;
    let bases = BaseAddresses::default().set_eh_frame_hdr(index);
    let header = EhFrameHdr::new(elf.data(index)?, LittleEndian).parse(&bases, 8).ok()?;
    let mut starts = Vec::new();
    let table = header.table()?;
    let mut entries = table.iter(&bases);
    while let Ok(Some((Pointer::Direct(start), _))) = entries.next() {
        starts.push(start);
    }
    starts.sort_unstable();
    let next = starts.iter().skip(1);
    let mut distances: Vec<(u64, u64)> =
        starts.iter().zip(next).map(|(start, next)| (next - start, *start)).collect();
    distances.sort_unstable_by(|one, other| other.cmp(one));
    distances.truncate(GAPS);
    let firsts: Vec<u64> = distances.iter().map(|(_, start)| *start).collect();
    let functions = functions_around(elf, &firsts).into_iter().zip(distances);
    let gaps = functions.filter_map(|(function, (distance, start))| {
        let next = start.checked_add(distance)?;
        let end = function.map_or(start, |function| function.end);
        (end < next && elf.code().any(|code| code.contains(&end))).then_some(end..next)
    });
    gaps.max_by_key(|gap| gap.end - gap.start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Definitions;
    use crate::tests::own;

    #[test]
    fn functions_are_found_by_addresses_in_them() {
        let bytes = own();
        let elf = Elf::parse(&bytes).unwrap();
        let symbols = Definitions::of(&elf).functions_named("main");
        let main = symbols.first().unwrap();
        let inside = main.end - 1;
        let found = functions_around(&elf, &[main.start, inside, 1]);
        let [Some(first), Some(last), None] = &found[..] else { panic!("{found:?}") };
        assert_eq!((first, first.start), (last, main.start));
        assert!(first.end >= main.end, "{first:x?} {main:x?}");
    }
}
