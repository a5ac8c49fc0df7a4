//! Debug information that is not in the file itself, in every form.

use std::sync::Arc;

use super::*;
use crate::proc::Root;

/// Checks what debug information must provide for `outer`: its line, and the calls inlined there.
pub(super) fn check_outer(elf: &ElfFile, (start, size): (u64, u64), what: &str) {
    let svmas: Vec<u64> = (start..start + size).collect();
    let all = Symbolizer::new().resolve(elf, &svmas);
    let deepest = all.iter().find(|resolved| resolved.inlined.len() == 2);
    let deepest = deepest.unwrap_or_else(|| panic!("{what}: {all:?}"));
    let function = ResolvedFunction { name: "outer".into(), start_svma: start };
    assert_eq!(deepest.function.as_ref(), Some(&function), "{what}");
    let calls: Vec<_> =
        deepest.inlined.iter().map(|call| (call.name.as_str(), call.line)).collect();
    assert_eq!((deepest.line, &calls[..]), (10, &[("middle", 6), ("innermost", 2)][..]), "{what}");
    let file = deepest.file.as_deref().unwrap_or_default();
    assert!(file.ends_with("lines.c"), "{what}: {file}");
    assert!(all.iter().all(|it| name(it) == Some("outer")), "{what}: {all:?}");
}

pub(super) fn source(elf: &ElfFile, svma: u64) -> String {
    let mut symbolizer = Symbolizer::new();
    symbolizer.resolve(elf, &[svma]);
    symbolizer.source(elf).unwrap()
}

#[test]
fn every_version_of_dwarf_is_read() {
    for version in ["-gdwarf-4", "-gdwarf-5"] {
        for packed in ["-gz=none", "-gz=zlib"] {
            let built = build("cc", "lines.c", C_SOURCE, &["-O2", version, packed]);
            check_outer(&open(&built.path), symbol(&built.path, "outer"), version);
        }
    }
}

/// Compiles and links in two steps: the compiler writes the pieces next to the object.
pub(super) fn build_split(flags: &[&str]) -> Built {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("lines.c"), C_SOURCE).unwrap();
    run("cc", &[&["-O2", "-c", "lines.c"], flags].concat(), dir.path());
    run("cc", &["-o", "program", "lines.o"], dir.path());
    let path = dir.path().join("program");
    Built { dir, path }
}

#[test]
fn split_debug_information_is_found_beside_the_object_and_in_packages() {
    for version in ["-gdwarf-4", "-gdwarf-5"] {
        let built = build_split(&["-gsplit-dwarf", version]);
        let (dir, outer) = (built.dir.path(), symbol(&built.path, "outer"));
        let whole = "its own debug information";
        check_outer(&open(&built.path), outer, version);
        assert_eq!(source(&open(&built.path), outer.0), whole);

        // The program is moved with its pieces.
        let moved = tempfile::tempdir().unwrap();
        fs::rename(dir.join("lines.dwo"), moved.path().join("lines.dwo")).unwrap();
        fs::copy(&built.path, moved.path().join("program")).unwrap();
        check_outer(&open(&moved.path().join("program")), outer, "moved");

        // No pieces: the symbol table has the name, the program has the line, and the source
        // reports the missing file.
        let bare = Symbolizer::new().resolve(&open(&built.path), &[outer.0]);
        assert_eq!(name(&bare[0]), Some("outer"));
        assert!((8..=9).contains(&bare[0].line), "{}", bare[0].line);
        let missing = format!("{whole}, without 1 split file (.dwo)");
        assert_eq!(source(&open(&built.path), outer.0), missing);

        // The pieces of another build.
        let other = build_split(&["-gsplit-dwarf", version, "-DX", "-fno-ipa-ra"]);
        fs::copy(other.dir.path().join("lines.dwo"), dir.join("lines.dwo")).unwrap();
        assert_eq!(source(&open(&built.path), outer.0), missing);
        fs::remove_file(dir.join("lines.dwo")).unwrap();

        if version == "-gdwarf-5" {
            // No packer here packs these units: the module `package` has such packages.
            continue;
        }
        run("dwp", &["-o", "program.dwp", moved.path().join("lines.dwo").to_str().unwrap()], dir);
        check_outer(&open(&built.path), outer, "package");
        assert_eq!(source(&open(&built.path), outer.0), whole);
        run("objcopy", &["--only-keep-debug", "program", "program.debug"], dir);
        run("objcopy", &["-S", "--add-gnu-debuglink=program.debug", "program"], dir);
        check_outer(&open(&built.path), outer, "package of a stripped program");
    }
}

#[test]
fn damaged_pieces_cost_names_and_nothing_else() {
    let built = build_split(&["-g", "-gsplit-dwarf"]);
    let (start, size) = symbol(&built.path, "outer");
    let svmas: Vec<u64> = (start..start + size).collect();
    let whole = Symbolizer::new().resolve(&open(&built.path), &svmas);
    assert!(whole.iter().any(|it| it.inlined.len() == 2), "premise: the piece is read");
    let piece = built.dir.path().join("lines.dwo");
    let pristine = fs::read(&piece).unwrap();
    for (round, at) in (0..pristine.len()).step_by(1 + pristine.len() / 150).enumerate() {
        let mut bytes = pristine.clone();
        bytes[at] ^= [0xff, 1, 0x80][round % 3];
        bytes.truncate(if round % 10 == 0 { at } else { bytes.len() });
        fs::write(&piece, &bytes).unwrap();
        let answers = Symbolizer::new().resolve(&open(&built.path), &svmas);
        // The symbol table is always available.
        let nameless: Vec<_> = answers.iter().filter(|it| name(it).is_none()).collect();
        assert!(nameless.is_empty(), "damage at {at} of round {round}: {nameless:?}");
    }
}

/// Debug information that several programs share, in its own file.
#[test]
fn supplementary_files_of_dwz_are_read() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("lines.c"), C_SOURCE).unwrap();
    let cc = |name| run("cc", &["-g", "-O2", "-Wl,--build-id", "-o", name, "lines.c"], dir.path());
    ["program", "other"].into_iter().for_each(cc);
    let path = dir.path().join("program");
    let outer = symbol(&path, "outer");
    if Command::new("dwz").arg("--version").output().is_err() {
        let required = std::env::var_os("TRACEPROF_TEST_REQUIRE").is_some();
        assert!(!required, "dwz is needed here");
        eprintln!("skipped: dwz is not installed");
        return;
    }
    run("dwz", &["-m", "common.debug", "program", "other"], dir.path());
    let bytes = fs::read(&path).unwrap();
    let elf = object::File::parse(&*bytes).unwrap();
    assert!(elf.section_by_name(".gnu_debugaltlink").is_some(), "the premise");
    check_outer(&open(&path), outer, "dwz");
    // Compressed, as distributions ship them.
    for file in ["program", "common.debug"] {
        run("objcopy", &["--compress-debug-sections=zlib", file], dir.path());
    }
    check_outer(&open(&path), outer, "dwz, compressed");
    assert_eq!(source(&open(&path), outer.0), "its own debug information");
    fs::remove_file(dir.path().join("common.debug")).unwrap();
    let bare = Symbolizer::new().resolve(&open(&path), &[outer.0]);
    assert_eq!(name(&bare[0]), Some("outer"), "the symbol table is still there");
    let missing = "its own debug information, without what dwz put aside";
    assert_eq!(source(&open(&path), outer.0), missing);
    let all: Vec<u64> = (outer.0..outer.0 + outer.1).collect();
    let all = Symbolizer::new().resolve(&open(&path), &all);
    assert!(all.iter().flat_map(|it| &it.inlined).all(|call| !call.name.is_empty()));
}

#[test]
fn debug_link_beside_the_file_is_followed_and_its_checksum_compared() {
    let built = build("cc", "lines.c", C_SOURCE, &["-g", "-O2", "-Wl,--build-id=none"]);
    let (hidden, _) = symbol(&built.path, "hidden");
    let dir = built.dir.path();
    run("objcopy", &["--only-keep-debug", "program", "program.debug"], dir);
    run("objcopy", &["--strip-all", "--add-gnu-debuglink=program.debug", "program"], dir);
    let answers = Symbolizer::new().resolve(&open(&built.path), &[hidden]);
    assert!(name(&answers[0]).is_some_and(|name| name.starts_with("hidden")));
    assert_eq!(answers[0].line, 12);

    let debug = dir.join("program.debug");
    let mut bytes = fs::read(&debug).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&debug, bytes).unwrap();
    let answers = Symbolizer::new().resolve(&open(&built.path), &[hidden]);
    assert_eq!(answers[0], Resolved::default(), "a debug file of another build");
}

/// A container has its debug files at the same paths inside its own file system.
#[test]
fn debug_files_of_the_targets_own_system_are_found() {
    let built = build("cc", "lines.c", C_SOURCE, &["-g", "-O2", "-Wl,--build-id"]);
    let (hidden, _) = symbol(&built.path, "hidden");
    let dir = built.dir.path();
    run("objcopy", &["--only-keep-debug", "program", "program.debug"], dir);
    run("strip", &["program"], dir);
    let ask = |elf: ElfFile, root: &Path| {
        let root = Root::at(root, nix::unistd::geteuid().as_raw()).unwrap();
        let system = System::Another(root);
        let elf = elf.with_debug_files(Arc::new(DebugFiles { system, ..DebugFiles::default() }));
        let mut symbolizer = Symbolizer::new();
        let line = symbolizer.resolve(&elf, &[hidden])[0].line;
        (line, symbolizer.source(&elf).unwrap())
    };
    let id = crate::elf::build_id_text(open(&built.path).build_id());
    let root = tempfile::tempdir().unwrap();
    assert_eq!(ask(open(&built.path), root.path()), (0, "its exported names only".to_owned()));
    let place = format!("usr/lib/debug/.build-id/{}/{}.debug", &id[..2], &id[2..]);
    fs::create_dir_all(root.path().join(&place).parent().unwrap()).unwrap();
    // Some distributions use a symbolic link, which is relative to the container's own root.
    fs::copy(dir.join("program.debug"), root.path().join("real.debug")).unwrap();
    std::os::unix::fs::symlink("/real.debug", root.path().join(&place)).unwrap();
    assert_eq!(ask(open(&built.path), root.path()), (12, format!("debug file /{place}")));

    // By the debug link, next to a program that is /opt/program in the container and has no build
    // id.
    run(
        "objcopy",
        &["--add-gnu-debuglink=program.debug", "-R", ".note.gnu.build-id", "program"],
        dir,
    );
    let linked =
        || ElfFile::new(File::open(&built.path).unwrap().into(), "/opt/program".into(), vec![]);
    fs::remove_file(root.path().join(&place)).unwrap();
    fs::rename(dir.join("program.debug"), dir.join("moved")).unwrap();
    fs::create_dir_all(root.path().join("opt/.debug")).unwrap();
    let beside = root.path().join("opt/.debug/program.debug");
    fs::copy(dir.join("moved"), &beside).unwrap();
    let source = "debug file /opt/.debug/program.debug".to_owned();
    assert_eq!(ask(linked(), root.path()), (12, source));
    fs::write(&beside, "of another build").unwrap();
    assert_eq!(ask(linked(), root.path()).0, 0);
}
