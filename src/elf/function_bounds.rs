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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::Definitions;
    use crate::elf::tests::own;

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
