//! Tables of each version, made by hand, and the table of a real program.

use super::super::tests::own;
use super::*;

/// Makes a table with a function from `text` + 16 to + 32, on line 7 for four bytes and then on
/// line 9.
fn table(version: PclntabVersion, text: u64) -> Vec<u8> {
    let magic: u32 = match version {
        PclntabVersion::V116 => 0xffff_fffa,
        PclntabVersion::V118 => 0xffff_fff0,
        PclntabVersion::V120 => 0xffff_fff1,
    };
    let words = version.header_words();
    let head = 8 + 8 * words;
    let names = b"\0main.f\0";
    let units = [0_u8; 4];
    let files = b"a.go\0\0\0\0";
    // Unused, then frame sizes 0 and 32, then file 0, then lines 7 and 9.
    let values = [0, 2, 4, 64, 12, 0, 2, 16, 0, 16, 4, 4, 12, 0, 0, 0];
    let mut parts = head as u64;
    let mut bytes = [&magic.to_le_bytes()[..], &[0, 0, 1, 8]].concat();
    let mut header = vec![1, 1];
    header.extend((version != PclntabVersion::V116).then_some(text));
    for len in [names.len(), units.len(), files.len(), values.len(), 0] {
        header.push(parts);
        parts += len as u64;
    }
    header.iter().for_each(|word: &u64| bytes.extend(word.to_le_bytes()));
    bytes.extend([&names[..], &units, files, &values].concat());
    let number = |value: u64| value.to_le_bytes()[..version.number_len()].to_vec();
    let start = if version == PclntabVersion::V116 { text } else { 0 };
    let list = [number(start + 16), number(3 * version.number_len() as u64), number(start + 32)];
    bytes.extend(list.concat());
    bytes.extend(number(start + 16));
    for field in [1_u32, 0, 0, 1, 6, 9, 0, 0] {
        bytes.extend(field.to_le_bytes());
    }
    if version == PclntabVersion::V120 {
        bytes.extend([0; 4]);
    }
    // Kind, flags, nothing, tables.
    bytes.extend([0, 3, 0, 0]);
    bytes
}

/// Parses a table without a file around it.
fn parse_with(version: PclntabVersion, text: u64, bytes: &[u8]) -> Option<Pclntab<'_>> {
    let text = if version == PclntabVersion::V116 { 0 } else { text };
    Pclntab::parts(bytes).map(|table| Pclntab { text, code: 0x1000..0x2000, ..table })
}

#[test]
fn all_versions_give_the_same_result() {
    let program = own();
    let elf = Elf::parse(&program).unwrap();
    for version in [PclntabVersion::V116, PclntabVersion::V118, PclntabVersion::V120] {
        let bytes = table(version, 0x1000);
        let table = parse_with(version, 0x1000, &bytes).unwrap();
        let function = table.find_function(0x1015).unwrap();
        assert_eq!(function.range, 0x1010..0x1020, "{version:?}");
        assert_eq!(function.name(), Some("main.f"));
        assert!(function.is_outermost() && function.writes_sp());
        let sizes: Vec<_> = function.frame_sizes().collect();
        assert_eq!(sizes, [(0x1010..0x1014, 0), (0x1014..0x1020, 32)]);
        let location = |line| GoLocation { name: "main.f", file: Some("a.go"), line };
        assert_eq!(function.locations(0x1011), [location(7)]);
        assert_eq!(function.locations(0x1014), [location(9)]);
        assert!(table.find_function(0x100f).is_none() && table.find_function(0x1020).is_none());
    }
    assert!(Pclntab::find(&elf).is_none(), "no Go program");
}

#[test]
fn damaged_tables_are_read_to_the_end() {
    for version in [PclntabVersion::V116, PclntabVersion::V118, PclntabVersion::V120] {
        let whole = table(version, 0x1000);
        for at in 0..whole.len() {
            for value in [0, 0x7f, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                read_all(version, &bytes);
                read_all(version, &bytes[..at]);
            }
        }
    }
}

fn read_all(version: PclntabVersion, bytes: &[u8]) {
    let Some(table) = parse_with(version, 0x1000, bytes) else { return };
    let mut behind = 0;
    for function in table.functions() {
        assert!(behind <= function.range.start && function.range.end <= 0x2000);
        behind = function.range.end;
        let sizes = function.frame_sizes().count() as u64;
        assert!(sizes <= function.range.end - function.range.start);
        function.locations(function.range.start);
        table.find_function(function.range.start);
    }
}

/// A table of functions that each cover all the code would take endless memory.
#[test]
fn functions_over_each_other_end_the_list() {
    let mut bytes = table(PclntabVersion::V120, 0x1000);
    let list = bytes.len() - 44 - 12 - 8;
    let entries: Vec<u8> =
        (0..500_u32).flat_map(|i| [16 + i % 2 * 8, 12]).flat_map(u32::to_le_bytes).collect();
    bytes.truncate(list);
    bytes.extend(&entries);
    bytes[8..16].copy_from_slice(&(499_u64 / 2).to_le_bytes());
    let table = parse_with(PclntabVersion::V120, 0x1000, &bytes).unwrap();
    assert_eq!(table.functions().count(), 1, "from 16 to 24, and from there back");
}

/// C's linker puts C's start files in front of Go's functions.
#[test]
fn functions_behind_those_of_c_are_found_where_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let source = "package main\nfunc main() { println(1) }\n";
    std::fs::write(dir.path().join("main.go"), source).unwrap();
    for mode in ["internal", "external"] {
        let mut go = std::process::Command::new("go");
        let link = format!("-ldflags=-linkmode={mode}");
        go.args(["build", "-buildmode=pie", &link, "-o", mode, "main.go"]).current_dir(dir.path());
        let Ok(status) = go.status() else {
            let required = std::env::var_os("TRACEPROF_TEST_REQUIRE").is_some();
            assert!(!required, "go is needed here");
            eprintln!("skipped: go is not installed");
            return;
        };
        assert!(status.success(), "{mode}");
        let file = std::fs::read(dir.path().join(mode)).unwrap();
        let elf = Elf::parse(&file).unwrap();
        let table = Pclntab::find(&elf).unwrap();
        let named = table.functions().find(|it| it.name() == Some("main.main")).unwrap();
        assert!(elf.function_symbols().contains(&named.range.start), "{mode}");
        let (svma, data) = find::tables(&elf).next().unwrap();
        let described = inline::text_start(&elf, &table, svma, data);
        assert_eq!(described, Some(table.text), "{mode}");
        // Without symbols and description, only the section is left.
        let text = elf.section(".text").unwrap().svma;
        let is_go = find::starts_with_go(&elf, &table, text);
        assert_eq!(is_go, mode == "internal");
        assert_eq!(is_go, table.text == text, "{mode}");
    }
}

/// Some builds leave the note out, to be reproducible.
#[test]
fn program_without_a_build_id_is_of_go_too() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("main.go"), "package main\nfunc main() { println(1) }\n")
        .unwrap();
    let mut go = std::process::Command::new("go");
    go.args(["build", "-ldflags=-s -w -buildid=", "-o", "program", "main.go"]);
    let Ok(status) = go.current_dir(dir.path()).status() else {
        let required = std::env::var_os("TRACEPROF_TEST_REQUIRE").is_some();
        assert!(!required, "go is needed here");
        eprintln!("skipped: go is not installed");
        return;
    };
    assert!(status.success());
    let file = std::fs::read(dir.path().join("program")).unwrap();
    let elf = Elf::parse(&file).unwrap();
    assert!(elf.notes().all(|(_, data)| !data.windows(4).any(|it| it == b"Go\0\0")), "no note");
    assert!(elf.is_go());
    assert!(!Elf::parse(&own()).unwrap().is_go());
}
