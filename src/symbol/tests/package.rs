//! Packages of DWARF 5 pieces, built here: the packer of binutils 2.40 leaves such units out, and
//! the packer of LLVM 14 never terminates.
//!
//! The index has the format of section 7.3.5.3 of the DWARF 5 standard.

use object::{Object, ObjectSection};

use super::*;

/// Sections of a piece and their numbers in an index (`DW_SECT_*`).
const SECTIONS: [(&str, u32); 6] = [
    (".debug_info.dwo", 1),
    (".debug_abbrev.dwo", 3),
    (".debug_line.dwo", 4),
    (".debug_loclists.dwo", 5),
    (STR_OFFSETS, 6),
    (".debug_rnglists.dwo", 8),
];
const STR_OFFSETS: &str = ".debug_str_offsets.dwo";
/// The section that all units share. It is in no index.
const STR: &str = ".debug_str.dwo";
/// Length in bytes of the header of each unit's part of the string offsets.
const STR_OFFSETS_HEAD: usize = 8;
/// Offset of the identifier in the header of a split unit.
const DWO_ID: usize = 12;

fn section(piece: &[u8], name: &str) -> Vec<u8> {
    let elf = object::File::parse(piece).unwrap();
    elf.section_by_name(name).map_or(Vec::new(), |it| it.data().unwrap().to_vec())
}

fn dwo_id(piece: &[u8]) -> u64 {
    let info = section(piece, SECTIONS[0].0);
    assert_eq!(info[4..7], [5, 0, 5], "premise: DW_UT_split_compile of DWARF 5");
    u64::from_le_bytes(info[DWO_ID..DWO_ID + 8].try_into().unwrap())
}

/// Returns an index of units by their identifiers. `lens` gives the length of each unit's part of
/// each section.
fn index(ids: &[u64], lens: &[[u32; SECTIONS.len()]]) -> Vec<u8> {
    let slots = (ids.len() * 2).next_power_of_two();
    let mut rows = vec![(0, 0); slots];
    for (row, id) in (1_u32..).zip(ids) {
        let (mask, mut slot) = (slots - 1, *id as usize & (slots - 1));
        while rows[slot].1 != 0 {
            slot = (slot + ((id >> 32) as usize & mask | 1)) & mask;
        }
        rows[slot] = (*id, row);
    }
    let head = [5, SECTIONS.len() as u32, ids.len() as u32, slots as u32];
    let mut bytes: Vec<u8> = head.into_iter().flat_map(u32::to_le_bytes).collect();
    bytes.extend(rows.iter().flat_map(|row| row.0.to_le_bytes()));
    bytes.extend(rows.iter().flat_map(|row| row.1.to_le_bytes()));
    bytes.extend(SECTIONS.iter().flat_map(|(_, number)| number.to_le_bytes()));
    let mut offsets = [0; SECTIONS.len()];
    for row in lens {
        bytes.extend(offsets.iter().flat_map(|offset: &u32| offset.to_le_bytes()));
        offsets.iter_mut().zip(row).for_each(|(offset, len)| *offset += len);
    }
    bytes.extend(lens.iter().flatten().flat_map(|len| len.to_le_bytes()));
    bytes
}

/// Writes a package of pieces and returns the position of its index.
fn pack(dir: &Path, pieces: &[&Path]) -> PathBuf {
    let pieces: Vec<Vec<u8>> = pieces.iter().map(|path| fs::read(path).unwrap()).collect();
    let (mut all, mut lens, mut strings) =
        (vec![Vec::new(); SECTIONS.len()], Vec::new(), Vec::new());
    for piece in &pieces {
        let mut own = SECTIONS.map(|(name, _)| section(piece, name));
        for word in own[4][STR_OFFSETS_HEAD..].chunks_exact_mut(4) {
            let offset = u32::from_le_bytes(word.try_into().unwrap()) + strings.len() as u32;
            word.copy_from_slice(&offset.to_le_bytes());
        }
        strings.extend(section(piece, STR));
        lens.push(own.each_ref().map(|data| data.len() as u32));
        all.iter_mut().zip(own).for_each(|(all, own)| all.extend(own));
    }
    let ids: Vec<u64> = pieces.iter().map(|piece| dwo_id(piece)).collect();
    fs::write(dir.join("index"), index(&ids, &lens)).unwrap();
    fs::write(dir.join("first"), &pieces[0]).unwrap();
    let names = SECTIONS.iter().map(|(name, _)| *name).chain([STR]);
    let mut options = vec!["--add-section".to_owned(), ".debug_cu_index=index".to_owned()];
    for (name, data) in names.zip(all.into_iter().chain([strings])) {
        if !data.is_empty() {
            let there = !section(&pieces[0], name).is_empty();
            options.push(if there { "--update-section" } else { "--add-section" }.to_owned());
            options.push(format!("{name}={}", &name[1..]));
            fs::write(dir.join(&name[1..]), data).unwrap();
        }
    }
    options.extend(["first", "program.dwp"].map(str::to_owned));
    run("objcopy", &options.iter().map(String::as_str).collect::<Vec<_>>(), dir);
    dir.join("index")
}

#[test]
fn packages_of_dwarf_5_are_read() {
    let flags = ["-gsplit-dwarf", "-gdwarf-5"];
    let built = separate::build_split(&flags);
    let (dir, outer) = (built.dir.path(), symbol(&built.path, "outer"));
    fs::write(
        dir.join("other.c"),
        "static int more(int x) { return x * 9; }\nint other(int x) { return more(x); }\n",
    )
    .unwrap();
    run("cc", &[&["-O2", "-c", "other.c"], &flags[..]].concat(), dir);
    let (own, other) = (dir.join("lines.dwo"), dir.join("other.dwo"));
    // After another unit, and before it.
    for pieces in [[&*other, &*own], [&*own, &*other]] {
        pack(dir, &pieces);
        fs::rename(&own, dir.join("away")).unwrap();
        separate::check_outer(&open(&built.path), outer, "package");
        assert_eq!(separate::source(&open(&built.path), outer.0), "its own debug information");
        fs::rename(dir.join("away"), &own).unwrap();
    }
    pack(dir, &[&*other]);
    fs::remove_file(&own).unwrap();
    let missing = "its own debug information, without 1 split file (.dwo)";
    assert_eq!(separate::source(&open(&built.path), outer.0), missing, "it is not in there");
}

#[test]
fn damaged_indices_of_packages_cost_names_of_inlined_calls_at_most() {
    let built = separate::build_split(&["-gsplit-dwarf", "-gdwarf-5"]);
    let (dir, outer) = (built.dir.path(), symbol(&built.path, "outer"));
    let index = pack(dir, &[&dir.join("lines.dwo")]);
    fs::remove_file(dir.join("lines.dwo")).unwrap();
    let (package, index) = (fs::read(dir.join("program.dwp")).unwrap(), fs::read(index).unwrap());
    let start = package.windows(index.len()).position(|bytes| bytes == index).unwrap();
    let svmas: Vec<u64> = (outer.0..outer.0 + outer.1).collect();
    let mut whole = 0;
    for (round, at) in (start..start + index.len()).enumerate() {
        let mut bytes = package.clone();
        bytes[at] ^= [0xff, 1, 0x80, 0x10][round % 4];
        fs::write(dir.join("program.dwp"), bytes).unwrap();
        let answers = Symbolizer::new().resolve(&open(&built.path), &svmas);
        assert!(answers.iter().all(|it| name(it) == Some("outer")), "damage at {}", at - start);
        whole += usize::from(answers.iter().any(|it| it.inlined.len() == 2));
    }
    assert!(whole > 0 && whole < index.len(), "the corruption matters at some offsets: {whole}");
}
