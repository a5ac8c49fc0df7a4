//! Listings of real functions, and what stands in their place.

use std::cell::RefCell;
use std::fs;
use std::rc::Rc;

use super::listing::ListedInstruction;
use super::*;
use crate::elf::Elf;
use crate::trace::Module;

/// A loop, and calls: by address, and through a slot.
const CODE: [u8; 22] = [
    0x31, 0xc0, // 1000 xor eax, eax
    0x48, 0x01, 0xf8, // 1002 add rax, rdi
    0x48, 0xff, 0xcf, // 1005 dec rdi
    0x75, 0xf8, // 1008 jne 1002
    0xe8, 0xf1, 0x0f, 0x00, 0x00, // 100a call 2000
    0xff, 0x15, 0xeb, 0x1f, 0x00, 0x00, // 100f call [3000]
    0xc3, // 1015 ret
];
const RANGE: Range<u64> = 0x1000..0x1016;

fn names(asked: &[u64]) -> HashMap<u64, String> {
    let known = [(0x2000, "leaf"), (0x3000, "malloc"), (0x1002, "never")];
    let known = known.into_iter().filter(|(svma, _)| asked.contains(svma));
    known.map(|(svma, name)| (svma, name.to_owned())).collect()
}

#[test]
fn instructions_have_addresses_texts_and_targets() {
    let code = CodeRows::of(&CODE, &RANGE, &BTreeMap::new(), names);
    let rows: Vec<_> = code.rows.iter().map(|row| (row.svma, row.text.as_str())).collect();
    let expected = [
        (0x1000, "xor eax, eax"),
        (0x1002, "add rax, rdi"),
        (0x1005, "dec rdi"),
        (0x1008, "jne 0x1002"),
        (0x100a, "call leaf"),
        (0x100f, "call qword ptr [rip+0x1feb] # malloc"),
        (0x1015, "ret"),
    ];
    assert_eq!(rows, expected);
    assert_eq!((code.count, code.skipped), (7, 0));
    let targets = code.rows.iter().map(|row| row.target).collect::<Vec<_>>();
    assert_eq!(targets, [None, None, None, Some(0x1002), None, None, None]);
    // The address of a caller is the last byte of its call.
    let found = [0x1000, 0x1001, 0x1002, 0x100e, 0x1015].map(|svma| code.row_of(svma));
    assert_eq!(found, [Some(0), Some(0), Some(1), Some(4), Some(6)]);
    assert_eq!(code.row_of(0xfff), None);
}

#[test]
fn addresses_relative_to_the_instruction_are_comments() {
    // lea rdi, [rip+0x1ff9]; mov rax, fs:[0x28]
    let code = [0x48, 0x8d, 0x3d, 0xf9, 0x1f, 0, 0, 0x64, 0x48, 0x8b, 4, 0x25, 0x28, 0, 0, 0];
    let code = CodeRows::of(&code, &(0x1000..0x1010), &BTreeMap::new(), |_| HashMap::new());
    let texts: Vec<_> = code.rows.iter().map(|row| row.text.as_str()).collect();
    assert_eq!(texts, ["lea rdi, [rip+0x1ff9] # 0x3000", "mov rax, fs:[0x28]"]);
}

/// Numbers that only look like addresses have no names.
#[test]
fn only_targets_and_addresses_relative_to_the_instruction_are_named() {
    // mov eax, 0x2000; mov eax, [rax+0x2000]; jmp 0x1000
    let code = [0xb8, 0, 0x20, 0, 0, 0x8b, 0x80, 0, 0x20, 0, 0, 0xeb, 0xf3];
    let asked = RefCell::new(Vec::new());
    let names = |svmas: &[u64]| {
        asked.borrow_mut().extend_from_slice(svmas);
        names(&[0x2000])
    };
    let code = CodeRows::of(&code, &(0x1000..0x100d), &BTreeMap::new(), names);
    let texts: Vec<_> = code.rows.iter().map(|row| row.text.as_str()).collect();
    assert_eq!(texts, ["mov eax, 0x2000", "mov eax, [rax+0x2000]", "jmp 0x1000"]);
    assert_eq!(*asked.borrow(), [0u64; 0]);
}

fn listed(len: usize, weights: &[(u64, f64)]) -> CodeRows {
    let code = vec![0x90; len];
    let weights = weights.iter().copied().collect();
    CodeRows::of(&code, &(0x1000..0x1000 + len as u64), &weights, |_| HashMap::new())
}

#[test]
fn a_long_function_is_listed_around_its_samples() {
    let code = listed(500, &[(0x1005, 1.0)]);
    assert_eq!((code.rows.len(), code.count, code.skipped), (500, 500, 0));
    let code = listed(3000, &[(0x1000 + 1000, 1.0), (0x1000 + 2999, 1.0)]);
    let skipped = |row: &ListedInstruction| row.skipped;
    assert_eq!((code.rows.len(), code.count, code.skipped), (65 + 33, 3000, 0));
    assert_eq!((skipped(&code.rows[0]), skipped(&code.rows[65])), (968, 3000 - 33 - 1033));
    assert_eq!([code.row_of(0x1000 + 1000), code.row_of(0x1000 + 2999)], [Some(32), Some(97)]);
    assert_eq!([1033, 967].map(|at| code.row_of(0x1000 + at)), [None, None]);
    // With many samples there is less around each, and at last there are only the heaviest.
    let many: Vec<_> = (0..100).map(|at| (0x1000 + at * 30, 1.0)).collect();
    assert_eq!(listed(3000, &many).rows.len(), 100 * 5 - 2);
    let all: Vec<_> = (0..3000).map(|at| (0x1000 + at, (at % 3 + at / 2500) as f64)).collect();
    let code = listed(3000, &all);
    let lightest = code.rows.iter().map(|row| all[(row.svma - 0x1000) as usize].1);
    assert_eq!(code.rows.len(), 500);
    assert_eq!(lightest.fold(9.0, f64::min), 2.0);
    let rows: usize = code.rows.iter().map(|row| row.skipped + 1).sum();
    assert_eq!(rows + code.skipped, 3000);
}

#[test]
fn code_is_read_only_of_the_recorded_file_and_for_this_architecture() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("true");
    let bytes = fs::read("/usr/bin/true").unwrap();
    let build_id = Elf::parse(&bytes).unwrap().build_id().unwrap().to_vec();
    let why = |path: &str, build_id: &[u8]| {
        let module = Module { path: path.to_owned(), build_id: build_id.to_vec() };
        CodeFiles::default().get(ModuleId(0), &module).err().unwrap_or_default()
    };
    let path = path.to_str().unwrap();
    assert!(why(path, &build_id).contains("is not on this system"));
    fs::write(path, &bytes).unwrap();
    assert_eq!(why(path, &build_id), "");
    assert!(why(path, &[]).contains("has no build id"));
    let other = why(path, &[0xab, 0xcd]);
    assert!(
        other.contains("is another file now") && other.ends_with("recorded was abcd"),
        "{other}"
    );
    assert!(why("[vdso]", &build_id).starts_with("[vdso] is in no file"));
    assert!(why(dir.path().to_str().unwrap(), &build_id).contains("not a regular file"));
    let mut bytes = bytes;
    bytes[18..20].copy_from_slice(&[183, 0]);
    fs::write(path, &bytes).unwrap();
    assert!(why(path, &build_id).contains("no code for x86-64"));
    bytes.truncate(60);
    fs::write(path, &bytes).unwrap();
    assert!(!why(path, &build_id).is_empty());
}

#[test]
fn a_file_is_read_once_whatever_it_is_called() {
    let build_id =
        Elf::parse(&fs::read("/usr/bin/true").unwrap()).unwrap().build_id().map(Vec::from);
    let mut files = CodeFiles::default();
    let mut get = |id: u32, path: &str, build_id: Vec<u8>| {
        files.get(ModuleId(id), &Module { path: path.to_owned(), build_id })
    };
    let build_id = build_id.unwrap();
    let one = get(0, "/usr/bin/true", build_id.clone()).ok().unwrap();
    let other = get(1, "/usr/bin/../bin/true", build_id.clone()).ok().unwrap();
    assert!(Rc::ptr_eq(&one, &other));
    assert!(get(2, "/usr/./bin/true", vec![1; 20]).is_err_and(|why| why.contains("another file")));
    let mut last = String::new();
    for id in 3..=200 {
        assert!(!last.contains("with the most time"), "{id}: {last}");
        last = get(id, &format!("/nowhere/{id}"), Vec::new()).err().unwrap();
    }
    assert!(last.contains("200 files with the most time"), "{last}");
    // A file that is open stays at hand.
    assert!(get(0, "/usr/bin/true", build_id).is_ok());
}

/// Stripped files have no symbols of their own functions, but unwind information.
#[test]
fn a_function_is_bounded_by_its_symbol_or_by_unwind_information() {
    let own = std::env::current_exe().unwrap();
    let bytes = fs::read(&own).unwrap();
    let elf = Elf::parse(&bytes).unwrap();
    let module = Module {
        path: own.to_str().unwrap().to_owned(),
        build_id: elf.build_id().unwrap_or_default().to_vec(),
    };
    let file = CodeFiles::default().get(ModuleId(0), &module).ok().unwrap();
    let symbols = crate::elf::Definitions::of(&elf).functions_named("main");
    let main = symbols.first().unwrap();
    assert_eq!(file.range(main.start, main.start + 1), Ok(main.clone()));
    assert_eq!(file.names(&[main.start])[&main.start], "main");
    // Without the start that is known, the unwind information tells.
    let around = file.range(0, main.start + 1).unwrap();
    assert_eq!(around.start, main.start);
    assert!(file.range(0, 1).unwrap_err().contains("neither a symbol nor"));
    assert_eq!(file.code(main).len() as u64, main.end - main.start);
}
