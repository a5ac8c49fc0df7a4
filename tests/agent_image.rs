//! The built agent image, read with an ELF reader: what it must not contain.

use object::Endianness;
use object::elf::{self, FileHeader64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader, SectionHeader, Sym};
use traceprof::inject::image;

const LITTLE: Endianness = Endianness::Little;

fn header() -> &'static FileHeader64<Endianness> {
    FileHeader64::parse(image::bytes()).unwrap()
}

fn segments() -> &'static [elf::ProgramHeader64<Endianness>] {
    header().program_headers(LITTLE, image::bytes()).unwrap()
}

#[test]
fn it_needs_no_library() {
    let mut seen = 0;
    for segment in segments() {
        for entry in segment.dynamic(LITTLE, image::bytes()).unwrap().into_iter().flatten() {
            seen += 1;
            let tag = entry.d_tag(LITTLE);
            let unwanted = [elf::DT_NEEDED, elf::DT_TEXTREL, elf::DT_INIT, elf::DT_INIT_ARRAY];
            assert!(!unwanted.contains(&tag), "dynamic entry {tag:?}");
        }
    }
    assert!(seen > 0, "the image has a dynamic section to look at");
}

#[test]
fn it_has_no_undefined_symbols() {
    let sections = header().sections(LITTLE, image::bytes()).unwrap();
    let symbols = sections.symbols(LITTLE, image::bytes(), elf::SHT_DYNSYM).unwrap();
    // The first symbol of every table is undefined by definition.
    let named: Vec<_> = symbols.iter().skip(1).collect();
    assert!(named.len() >= 3, "the three entry symbols are there");
    for symbol in named {
        assert_ne!(symbol.st_shndx(LITTLE), elf::SHN_UNDEF, "undefined symbol");
    }
}

#[test]
fn it_has_no_thread_local_storage_and_no_interpreter() {
    for segment in segments() {
        let kind = segment.p_type(LITTLE);
        assert!(kind != elf::PT_TLS && kind != elf::PT_INTERP, "segment type {kind:?}");
    }
}

#[test]
fn no_segment_is_writable_and_executable() {
    let mut executable = 0;
    for segment in segments() {
        let flags = segment.p_flags(LITTLE);
        assert!(
            !(flags.contains(elf::PF_W) && flags.contains(elf::PF_X)),
            "a segment with flags {flags:?}"
        );
        let loaded = segment.p_type(LITTLE) == elf::PT_LOAD;
        executable += usize::from(loaded && flags.contains(elf::PF_X));
    }
    assert_eq!(executable, 1);
}

#[test]
fn all_relocations_are_relative() {
    let sections = header().sections(LITTLE, image::bytes()).unwrap();
    for section in sections.iter().filter(|section| section.sh_type(LITTLE) == elf::SHT_RELA) {
        let (relocations, _) = section.rela(LITTLE, image::bytes()).unwrap().unwrap();
        for relocation in relocations {
            assert_eq!(relocation.r_type(LITTLE, false), elf::R_X86_64_RELATIVE);
        }
    }
}

#[test]
fn nothing_in_it_panics() {
    let bytes = image::bytes();
    for text in ["panicking", "unwrap", "index out of bounds", "overflow"] {
        let found = bytes.windows(text.len()).any(|window| window == text.as_bytes());
        assert!(!found, "the image contains {text:?}: some path of it can panic");
    }
}

#[test]
fn it_fits_its_segment_and_lays_out_anywhere() {
    let mut code = vec![0u8; traceprof_abi::layout::CODE_LEN as usize];
    for base in [0x1000_0000u64, 0x7f00_0000_0000] {
        let entries = image::lay_out(&mut code, base).unwrap();
        for address in [entries.entry, entries.handler, entries.restorer] {
            assert!((base..base + code.len() as u64).contains(&address));
        }
    }
}
