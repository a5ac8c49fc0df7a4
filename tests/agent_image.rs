//! Checks of the built agent image with an ELF reader: what it must not contain. Some tests call
//! the few functions in it that the compiler may call.
//!
//! # Safety
//! The image is copied into memory of this test. Its functions are called like the C functions of
//! the same name, with slices of this process.
#![allow(unsafe_code, reason = "calls machine code out of an image")]

use std::ffi::c_int;
use std::process::Command;

use object::Endianness;
use object::elf::{self, FileHeader64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader, SectionHeader, Sym};
use traceprof::inject::image;

use super::common::scratch_dir;

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
    assert!(seen > 0, "the image has a dynamic section");
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

/// Returns the image's code as objdump writes it, without the bytes of the instructions.
pub(super) fn disassembly() -> String {
    let dir = scratch_dir();
    let file = dir.path().join("agent.so");
    std::fs::write(&file, image::bytes()).unwrap();
    let words = ["--disassemble", "--no-show-raw-insn"];
    let output = Command::new("objdump").args(words).arg(&file).output();
    let output = output.expect("objdump of the Debian package binutils");
    String::from_utf8(output.stdout).unwrap()
}

/// The agent reads a thread's context through the thread pointer as a plain number. It never uses
/// the segment register through which a compiler reaches thread-local variables: they may not exist
/// yet, or may belong to no library.
#[test]
fn it_reads_the_thread_pointer_and_no_thread_local_variable() {
    let text = disassembly();
    let instructions = text.lines().filter(|line| line.starts_with("    ")).count();
    assert!(instructions > 1000, "{instructions} instructions are too few for the agent");
    let find = |word: &str| text.lines().filter(|line| line.contains(word)).collect::<Vec<_>>();
    for word in ["%fs", "%gs", "__tls_get_addr"] {
        assert_eq!(find(word), Vec::<&str>::new());
    }
    assert!(!find("rdfsbase").is_empty(), "nothing reads a context");
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

/// Copies the image into memory of this process and returns the address of one of its functions.
fn function(name: &str) -> usize {
    let len = traceprof_abi::layout::CODE_LEN as usize;
    let (writable, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new anonymous mapping, which is never unmapped.
    let place = unsafe { libc::mmap(std::ptr::null_mut(), len, writable, flags, -1, 0) };
    assert_ne!(place, libc::MAP_FAILED);
    // SAFETY: covers exactly the new mapping, and nothing else refers to it.
    let code = unsafe { std::slice::from_raw_parts_mut(place.cast::<u8>(), len) };
    let base = place as usize;
    image::lay_out(code, base as u64).unwrap();
    // SAFETY: the same mapping, and nothing writes to it any more.
    let outcome = unsafe { libc::mprotect(place, len, libc::PROT_READ | libc::PROT_EXEC) };
    assert_eq!(outcome, 0);
    let sections = header().sections(LITTLE, image::bytes()).unwrap();
    let symbols = sections.symbols(LITTLE, image::bytes(), elf::SHT_DYNSYM).unwrap();
    let is_it = |symbol: &&elf::Sym64<Endianness>| {
        symbol.name(LITTLE, symbols.strings()).is_ok_and(|it| it == name.as_bytes())
    };
    base + symbols.iter().find(is_it).expect("a function of the image").st_value(LITTLE) as usize
}

#[test]
fn functions_for_the_compiler_behave_as_in_c() {
    type Compare = unsafe extern "C" fn(*const u8, *const u8, usize) -> c_int;
    type Copy = unsafe extern "C" fn(*mut u8, *const u8, usize) -> *mut u8;
    type Set = unsafe extern "C" fn(*mut u8, c_int, usize) -> *mut u8;
    // SAFETY: the function of that name, which takes C's arguments.
    let compare = unsafe { std::mem::transmute::<usize, Compare>(function("memcmp")) };
    // SAFETY: as above.
    let copy = |name| unsafe { std::mem::transmute::<usize, Copy>(function(name)) };
    let copies = ["memcpy", "memmove"].map(copy);
    // SAFETY: as above.
    let set = unsafe { std::mem::transmute::<usize, Set>(function("memset")) };
    let bytes: Vec<u8> = (0..300u32).map(|it| (it * 7) as u8).collect();
    for len in [0, 1, 7, 8, 64, 255] {
        let mut other = vec![0; 300];
        for copy in copies {
            other.fill(0);
            // SAFETY: both buffers have 300 bytes.
            let end = unsafe { copy(other.as_mut_ptr(), bytes.as_ptr(), len) };
            assert_eq!(end, other.as_mut_ptr());
            assert!(other[..len] == bytes[..len] && other[len..].iter().all(|it| *it == 0));
        }
        for at in 0..len {
            let mut changed = bytes.clone();
            changed[at] = changed[at].wrapping_add(1);
            // SAFETY: as above.
            let order = unsafe { compare(bytes.as_ptr(), changed.as_ptr(), len) };
            assert_eq!(order.signum(), bytes[..len].cmp(&changed[..len]) as c_int, "{at} of {len}");
        }
        let mut longer = bytes.clone();
        longer[len] = longer[len].wrapping_add(1);
        // SAFETY: as above.
        assert_eq!(unsafe { compare(bytes.as_ptr(), longer.as_ptr(), len) }, 0);
        for (from, to) in [(0, 9), (9, 0)] {
            let (mut moved, mut expected) = (bytes.clone(), bytes.clone());
            expected.copy_within(from..from + len, to);
            let start = moved.as_mut_ptr();
            let (target, source) = (start.wrapping_add(to), start.wrapping_add(from));
            // SAFETY: both ranges are inside the vector.
            unsafe { copies[1](target, source, len) };
            assert_eq!(moved, expected);
        }
        other.fill(0);
        // SAFETY: the buffer has 300 bytes.
        unsafe { set(other.as_mut_ptr(), 0x1a5, len) };
        assert!(other[..len].iter().all(|it| *it == 0xa5));
        assert!(other[len..].iter().all(|it| *it == 0));
    }
}
