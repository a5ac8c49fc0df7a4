//! Symbolization of programs that are compiled here and have known functions and lines.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object, ObjectSection, ObjectSymbol};

use super::*;

mod fuzz;
mod memory_budget;
mod package;
mod separate;
mod shared;

const C_SOURCE: &str = "\
__attribute__((always_inline)) static inline int innermost(int x) {
    return x * 3 + __builtin_bswap32(x);
}
__attribute__((always_inline)) static inline int middle(int x) {
    x += 7;
    return innermost(x) ^ 5;
}
__attribute__((noinline)) int outer(int x) {
    volatile int keep = x;
    return middle(keep);
}
__attribute__((noinline)) static int hidden(int x) { volatile int keep = x; return keep; }
int main(int argc, char **argv) { (void)argv; return outer(argc) + hidden(argc); }
";

struct Built {
    dir: tempfile::TempDir,
    path: PathBuf,
}

fn run(program: &str, args: &[&str], dir: &Path) {
    let output = Command::new(program).args(args).current_dir(dir).output();
    let output = output.unwrap_or_else(|error| panic!("{program} is needed here: {error}"));
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}

fn build(compiler: &str, source_name: &str, source: &str, flags: &[&str]) -> Built {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(source_name), source).unwrap();
    let args: Vec<&str> = flags.iter().copied().chain(["-o", "program", source_name]).collect();
    run(compiler, &args, dir.path());
    let path = dir.path().join("program");
    Built { dir, path }
}

fn open(path: &Path) -> ElfFile {
    let build_id = elf_headers::ElfHeaders::read(path).and_then(|headers| headers.build_id);
    ElfFile::new(
        File::open(path).unwrap().into(),
        path.to_string_lossy().into_owned(),
        build_id.unwrap_or_default(),
    )
}

/// Returns the start and size of the symbol with this name, or of the first symbol whose raw name
/// contains it.
fn symbol(path: &Path, part: &str) -> (u64, u64) {
    let bytes = fs::read(path).unwrap();
    let elf = object::File::parse(&*bytes).unwrap();
    let found = elf.symbol_by_name(part).or_else(|| {
        elf.symbols().find(|symbol| symbol.name().is_ok_and(|name| name.contains(part)))
    });
    let found = found.unwrap_or_else(|| panic!("no symbol {part}"));
    (found.address(), found.size())
}

/// Resolves every byte of a function.
fn resolve_all(built: &Built, part: &str) -> Vec<Resolved> {
    let (start, size) = symbol(&built.path, part);
    let svmas: Vec<u64> = (start..start + size).collect();
    Symbolizer::new().resolve(&open(&built.path), &svmas)
}

fn name(resolved: &Resolved) -> Option<&str> {
    resolved.function.as_ref().map(|function| function.name.as_str())
}

#[test]
fn inlined_calls_come_outermost_first_and_each_has_its_own_line() {
    let built = build("cc", "lines.c", C_SOURCE, &["-g", "-O2"]);
    let (start, _) = symbol(&built.path, "outer");
    let all = resolve_all(&built, "outer");
    let deepest = all.iter().find(|resolved| resolved.inlined.len() == 2).expect("two inlined");
    assert_eq!(
        deepest.function,
        Some(ResolvedFunction { name: "outer".into(), start_svma: start }),
        "the physical function"
    );
    assert_eq!(deepest.line, 10, "the call of middle()");
    let names: Vec<_> =
        deepest.inlined.iter().map(|call| (call.name.as_str(), call.line)).collect();
    assert_eq!(names, [("middle", 6), ("innermost", 2)]);
    for file in deepest.inlined.iter().map(|call| &call.file).chain([&deepest.file]) {
        assert!(file.as_deref().is_some_and(|file| file.ends_with("lines.c")), "{file:?}");
    }
    let plain = all.iter().find(|resolved| resolved.inlined.is_empty()).expect("outer's own code");
    assert!((8..=11).contains(&plain.line), "line {}", plain.line);
}

#[test]
fn answers_keep_the_order_of_the_questions() {
    let built = build("cc", "lines.c", C_SOURCE, &["-g", "-O2"]);
    let (outer, _) = symbol(&built.path, "outer");
    let (main, _) = symbol(&built.path, "main");
    let answers = Symbolizer::new().resolve(&open(&built.path), &[main, 0, outer, u64::MAX, main]);
    let names: Vec<_> = answers.iter().map(name).collect();
    assert_eq!(names, [Some("main"), None, Some("outer"), None, Some("main")]);
}

#[test]
fn without_debug_information_the_symbol_table_answers() {
    let built = build("cc", "lines.c", C_SOURCE, &["-O2"]);
    let answers = resolve_all(&built, "hidden");
    assert!(
        answers.iter().all(|answer| name(answer).is_some_and(|name| name.starts_with("hidden")))
    );
    assert!(answers.iter().all(|answer| answer.line == 0 && answer.file.is_none()));
}

#[test]
fn stripped_program_has_no_names_instead_of_wrong_ones() {
    let built = build("cc", "lines.c", C_SOURCE, &["-O2"]);
    let (start, size) = symbol(&built.path, "outer");
    run("strip", &["program"], built.dir.path());
    let svmas: Vec<u64> = (start..start + size).collect();
    let answers = Symbolizer::new().resolve(&open(&built.path), &svmas);
    assert!(answers.iter().all(|answer| *answer == Resolved::default()), "{answers:?}");
}

#[test]
fn stripped_library_keeps_its_exported_names() {
    let built = build("cc", "lines.c", C_SOURCE, &["-O2", "-shared", "-fPIC"]);
    let (outer, size) = symbol(&built.path, "outer");
    let (hidden, _) = symbol(&built.path, "hidden");
    run("strip", &["program"], built.dir.path());
    let answers =
        Symbolizer::new().resolve(&open(&built.path), &[outer, outer + size - 1, hidden + 1]);
    let names: Vec<_> = answers.iter().map(name).collect();
    assert_eq!(names, [Some("outer"), Some("outer"), None]);
}

#[test]
fn a_label_in_a_function_does_not_take_its_place() {
    let source = r#"
        asm(".text\n .type around, @function\n around: nop\n first: nop\n second: nop\n ret\n"
            " .size around, . - around\n alone: nop\n ret\n");
        int main(void) { return 0; }"#;
    let built = build("cc", "labels.c", source, &["-O2"]);
    let (around, size) = symbol(&built.path, "around");
    assert_eq!(size, 4);
    let svmas: Vec<u64> = (around..around + 6).collect();
    let answers = Symbolizer::new().resolve(&open(&built.path), &svmas);
    let names: Vec<_> = answers.iter().map(|answer| name(answer).unwrap()).collect();
    assert_eq!(names, ["around", "around", "around", "around", "alone", "alone"]);
    let start = |answer: &Resolved| answer.function.as_ref().unwrap().start_svma;
    assert_eq!([3, 5].map(|at| start(&answers[at])), [around, around + 4]);
}

#[test]
fn symbol_without_size_ends_with_its_section() {
    let built = build("cc", "lines.c", C_SOURCE, &["-O2"]);
    let (init, size) = symbol(&built.path, "_init");
    assert_eq!(size, 0, "premise: the linker gives _init no size");
    let bytes = fs::read(&built.path).unwrap();
    let elf = object::File::parse(&*bytes).unwrap();
    let init_section = elf.section_by_name(".init").unwrap();
    let behind = init_section.address() + init_section.size();
    let answers = Symbolizer::new().resolve(&open(&built.path), &[init, init + 4, behind]);
    let names: Vec<_> = answers.iter().map(name).collect();
    assert_eq!(names, [Some("_init"), Some("_init"), None]);
}

#[test]
fn plt_stubs_have_the_name_of_what_they_call() {
    let source = "#include <stdlib.h>\n#include <string.h>\n
        int main(int argc, char **argv) { (void)argv; return atoi(getenv(\"x\")) + \
            (int)strtol(\"1\", 0, argc); }";
    for flags in [
        &["-O0", "-Wl,-z,lazy"][..],
        &["-O0", "-fcf-protection=full", "-Wl,-z,ibtplt,-z,lazy"],
        &["-O0", "-Wl,-z,now"],
    ] {
        let built = build("cc", "calls.c", source, flags);
        run("strip", &["program"], built.dir.path());
        let bytes = fs::read(&built.path).unwrap();
        let elf = object::File::parse(&*bytes).unwrap();
        let sections =
            elf.sections().filter(|section| section.name().is_ok_and(plt::is_stub_section));
        let ranges = sections.map(|section| section.address()..section.address() + section.size());
        let svmas: Vec<u64> = ranges.flatten().collect();
        let mut names: Vec<String> = Symbolizer::new()
            .resolve(&open(&built.path), &svmas)
            .iter()
            .filter_map(|answer| name(answer).map(str::to_owned))
            .collect();
        names.sort();
        names.dedup();
        for expected in ["atoi@plt", "getenv@plt", "strtol@plt"] {
            assert!(
                names.iter().any(|name| name == expected),
                "{flags:?}: {expected} in {names:?}"
            );
        }
    }
}

#[test]
fn cpp_names_are_demangled() {
    let source = "
        namespace deep { template <class T> struct Box { T value;
            __attribute__((noinline)) T twice(T by) { volatile T keep = by; return value * keep; } }; }
        int main(int argc, char **) { deep::Box<int> box{argc}; return box.twice(2); }";
    for flags in [&["-O1"][..], &["-O1", "-g"]] {
        let built = build("c++", "box.cpp", source, flags);
        let answers = resolve_all(&built, "twice");
        let expected = Some("deep::Box<int>::twice(int)");
        assert!(answers.iter().all(|answer| name(answer) == expected), "{flags:?} {answers:?}");
    }
}

#[test]
fn rust_names_are_demangled_and_inlined() {
    let source = "
        mod geometry { #[inline(always)] pub fn square(side: u64) -> u64 { side.wrapping_mul(side) }
            #[inline(never)] pub fn volume(side: u64) -> u64 { std::hint::black_box(square(side)) } }
        fn main() { println!(\"{}\", geometry::volume(std::env::args().count() as u64)); }";
    for mangling in ["-Csymbol-mangling-version=v0", "-Copt-level=2"] {
        let built = build("rustc", "geometry.rs", source, &["-g", "-O", mangling]);
        let answers = resolve_all(&built, "volume");
        assert!(
            answers.iter().all(|answer| name(answer) == Some("geometry::geometry::volume")),
            "{answers:?}"
        );
        let inlined = answers.iter().flat_map(|answer| &answer.inlined);
        assert!(inlined.clone().any(|call| call.name.ends_with("square") && call.line == 2));
    }
}

#[test]
fn deleted_file_is_still_readable() {
    let built = build("cc", "lines.c", C_SOURCE, &["-g", "-O2"]);
    let (outer, _) = symbol(&built.path, "outer");
    let elf = open(&built.path);
    fs::remove_file(&built.path).unwrap();
    fs::write(&built.path, "another file under the same name").unwrap();
    let answers = Symbolizer::new().resolve(&elf, &[outer]);
    assert_eq!(name(&answers[0]), Some("outer"));
    assert_ne!(answers[0].line, 0);
}

#[test]
fn forget_releases_the_descriptor() {
    let built = build("cc", "lines.c", C_SOURCE, &["-g", "-O2"]);
    let (outer, _) = symbol(&built.path, "outer");
    let elf = open(&built.path);
    let mut symbolizer = Symbolizer::new();
    symbolizer.resolve(&elf, &[outer]);
    assert!(is_mapped(&built.path), "premise: the parser maps the file");
    symbolizer.forget(&elf);
    assert!(!is_mapped(&built.path));
    assert_eq!(name(&symbolizer.resolve(&elf, &[outer])[0]), Some("outer"));
}

fn is_mapped(path: &Path) -> bool {
    fs::read_to_string("/proc/self/maps").unwrap().contains(path.to_str().unwrap())
}

#[test]
fn two_descriptors_of_one_file_share_what_was_parsed() {
    let built = build("cc", "lines.c", C_SOURCE, &["-O2"]);
    let (outer, _) = symbol(&built.path, "outer");
    let mut symbolizer = Symbolizer::new();
    symbolizer.resolve(&open(&built.path), &[outer]);
    symbolizer.resolve(&open(&built.path), &[outer]);
    assert_eq!(symbolizer.engines.len(), 1);
}

/// Corrupts every header byte and many body bytes of a real program in turn.
#[test]
fn damaged_files_cost_names_and_nothing_else() {
    let built = build("cc", "lines.c", C_SOURCE, &["-g", "-O2", "-gz=zlib"]);
    let (outer, size) = symbol(&built.path, "outer");
    let pristine = fs::read(&built.path).unwrap();
    let svmas: Vec<u64> = (outer..outer + size).step_by(3).chain([0, u64::MAX]).collect();
    let damaged_path = built.dir.path().join("damaged");
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut still_named = 0;
    for round in 0..400 {
        let mut bytes = pristine.clone();
        for _ in 0..1 + round % 16 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let index = match round % 3 {
                0 => random as usize % 64,
                1 => bytes.len() - 1 - random as usize % 4096,
                _ => random as usize % bytes.len(),
            };
            bytes[index] = (random >> 32) as u8;
        }
        if round % 7 == 0 {
            bytes.truncate(random as usize % bytes.len());
        }
        fs::write(&damaged_path, &bytes).unwrap();
        let answers = Symbolizer::new().resolve(&open(&damaged_path), &svmas);
        assert_eq!(answers.len(), svmas.len());
        still_named += usize::from(name(&answers[0]).is_some());
    }
    assert!(still_named > 20, "the damage is not total: {still_named}");
    assert!(still_named < 400, "the damage is noticed: {still_named}");
}

#[test]
fn a_file_that_is_not_elf_has_no_names() {
    let dir = tempfile::tempdir().unwrap();
    for (file, content) in [("empty", &b""[..]), ("text", b"hello"), ("magic", b"\x7fELF")] {
        let path = dir.path().join(file);
        fs::write(&path, content).unwrap();
        let answers = Symbolizer::new().resolve(&open(&path), &[0, 1]);
        assert_eq!(answers, [Resolved::default(), Resolved::default()]);
    }
}

/// Strips `program`, except for its function `hidden`, whose symbol goes to `.gnu_debugdata`.
fn pack_symbols(dir: &Path) {
    run("objcopy", &["-S", "--keep-symbol=hidden", "program", "small"], dir);
    let mut packer = liblzma::write::XzEncoder::new(Vec::new(), 6);
    std::io::Write::write_all(&mut packer, &fs::read(dir.join("small")).unwrap()).unwrap();
    fs::write(dir.join("small.xz"), packer.finish().unwrap()).unwrap();
    run("strip", &["program"], dir);
    run("objcopy", &["--add-section", ".gnu_debugdata=small.xz", "program"], dir);
}

/// Distributions put only the symbols, compressed, into a section of the stripped file.
#[test]
fn compressed_symbol_table_is_read() {
    let built = build("cc", "lines.c", C_SOURCE, &["-O2"]);
    let (hidden, _) = symbol(&built.path, "hidden");
    let dir = built.dir.path();
    pack_symbols(dir);
    run("objcopy", &["-R", ".gnu_debugdata", "program", "bare"], dir);
    let bare = Symbolizer::new().resolve(&open(&dir.join("bare")), &[hidden]);
    assert_eq!(name(&bare[0]), None, "the premise");
    let answers = Symbolizer::new().resolve(&open(&built.path), &[hidden]);
    assert!(name(&answers[0]).is_some_and(|name| name.starts_with("hidden")), "{answers:?}");
}

/// In a library of such a distribution, the exported symbols are not in the compressed table.
#[test]
fn exported_names_beside_a_compressed_symbol_table_are_kept() {
    let built = build("cc", "lines.c", C_SOURCE, &["-O2", "-shared", "-fPIC"]);
    let (outer, size) = symbol(&built.path, "outer");
    let (hidden, _) = symbol(&built.path, "hidden");
    let dir = built.dir.path();
    // The compressed table leaves out what the stripped file itself has.
    run("objcopy", &["--only-keep-debug", "program", "debug"], dir);
    run("objcopy", &["-S", "--keep-symbol=hidden", "debug", "small"], dir);
    let mut packer = liblzma::write::XzEncoder::new(Vec::new(), 6);
    std::io::Write::write_all(&mut packer, &fs::read(dir.join("small")).unwrap()).unwrap();
    fs::write(dir.join("small.xz"), packer.finish().unwrap()).unwrap();
    run("strip", &["program"], dir);
    run("objcopy", &["--add-section", ".gnu_debugdata=small.xz", "program"], dir);
    let svmas = [outer, outer + size - 1, hidden, 1];
    let answers = Symbolizer::new().resolve(&open(&built.path), &svmas);
    let names: Vec<_> = answers.iter().map(name).collect();
    assert_eq!(names[..2], [Some("outer"); 2]);
    assert!(names[2].is_some_and(|name| name.starts_with("hidden")) && names[3].is_none());
}

/// A program whose debug information describes a function without its name.
const NAMELESS: &str = "
.text
.globl main
.type main, @function
main: nop
ret
end: .size main, end - main
.section .debug_abbrev
.byte 1, 0x11, 1, 0x11, 1, 0x12, 7, 0, 0
.byte 2, 0x2e, 0, 0x11, 1, 0x12, 7, 0, 0, 0
.section .debug_info
.long unit_end - unit
unit: .short 4
.long .debug_abbrev
.byte 8, 1
.quad main, end - main
.byte 2
.quad main, end - main
.byte 0
unit_end:
.section .note.GNU-stack
";

#[test]
fn functions_that_debug_information_has_no_name_for_are_named_by_its_symbols() {
    let built = build("cc", "nameless.s", NAMELESS, &["-Wl,--build-id"]);
    let (main, _) = symbol(&built.path, "main");
    run("objcopy", &["--only-keep-debug", "program", "program.debug"], built.dir.path());
    run("strip", &["program"], built.dir.path());
    let id = crate::elf::build_id_text(open(&built.path).build_id());
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join(format!("usr/lib/debug/.build-id/{}", &id[..2]));
    fs::create_dir_all(&folder).unwrap();
    let debug = built.dir.path().join("program.debug");
    fs::copy(debug, folder.join(format!("{}.debug", &id[2..]))).unwrap();
    let root = crate::proc::Root::at(root.path(), nix::unistd::geteuid().as_raw()).unwrap();
    let files = DebugFiles { system: System::Another(root), ..DebugFiles::default() };
    let elf = open(&built.path).with_debug_files(std::sync::Arc::new(files));
    let answers = Symbolizer::new().resolve(&elf, &[main]);
    assert_eq!(name(&answers[0]), Some("main"));
}
