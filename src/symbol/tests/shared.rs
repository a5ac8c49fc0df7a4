//! Parsed data that several open files share.

use super::*;

/// Returns programs and the address of `outer` in each.
fn programs(count: usize) -> Vec<(Built, u64)> {
    let one = |number: usize| {
        let flag = format!("-DNUMBER={number}");
        let built = build("cc", "a.c", C_SOURCE, &["-g", "-O1", &flag]);
        let bytes = fs::read(&built.path).unwrap();
        let elf = object::File::parse(&*bytes).unwrap();
        let outer = elf.symbols().find(|it| it.name() == Ok("outer")).unwrap().address();
        (built, outer)
    };
    (0..count).map(one).collect()
}

fn name(symbolizer: &mut Symbolizer, elf: &ElfFile, svma: u64) -> Option<String> {
    symbolizer.resolve(elf, &[svma]).remove(0).function.map(|it| it.name)
}

#[test]
fn a_second_open_file_uses_the_parsed_data_after_the_first_is_closed() {
    let programs = programs(1);
    let (built, outer) = &programs[0];
    let mut symbolizer = Symbolizer::new();
    let first = open(&built.path);
    assert_eq!(name(&mut symbolizer, &first, *outer).as_deref(), Some("outer"));
    let second = open(&built.path);
    drop(first);
    // Takes the descriptor number of the first file.
    let others: Vec<File> = (0..8).map(|_| File::open("/dev/null").unwrap()).collect();
    let next = symbolizer.resolve(&second, &[*outer + 1, *outer]);
    assert!(next.iter().all(|it| it.function.as_ref().is_some_and(|it| it.name == "outer")));
    assert_eq!(symbolizer.engines.len(), 1, "parsed once");
    drop(others);
}

#[test]
fn parsed_data_of_closed_files_is_kept_for_a_few_files_only() {
    let programs = programs(UNUSED_MAX + 4);
    let mut symbolizer = Symbolizer::new();
    let held = open(&programs[0].0.path);
    name(&mut symbolizer, &held, programs[0].1);
    for (built, outer) in &programs[1..] {
        let elf = open(&built.path);
        assert_eq!(name(&mut symbolizer, &elf, *outer).as_deref(), Some("outer"));
    }
    // The file that is still open, and the last one added.
    assert_eq!(symbolizer.engines.len(), UNUSED_MAX + 2);
    assert!(symbolizer.engines.contains_key(&held.key()), "the file is still open");
    drop(held);
    let again = open(&programs[1].0.path);
    name(&mut symbolizer, &again, programs[1].1);
    assert_eq!(symbolizer.engines.len(), UNUSED_MAX + 1);
}

#[test]
fn another_system_has_its_own_debug_files() {
    let programs = programs(1);
    let path = &programs[0].0.path;
    let root = crate::proc::Root::at(programs[0].0.dir.path(), 0).unwrap();
    let files = DebugFiles { system: System::Another(root), ..DebugFiles::default() };
    let (here, there) = (open(path), open(path).with_debug_files(files.into()));
    assert_eq!(here.key(), open(path).key());
    assert_ne!(here.key(), there.key());
    assert_eq!(here.hash(), there.hash());
}
