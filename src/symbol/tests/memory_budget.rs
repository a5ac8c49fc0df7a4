//! Debug files that do not fit into the memory budget together.

use std::sync::Arc;

use super::*;

const MISSING: &str = "without what did not fit in the 0 MiB for debug files";

/// Returns the unpacked size in bytes of a file's compressed sections.
fn unpacked_len(path: &Path) -> u64 {
    elf_headers::ElfHeaders::read(path).unwrap().packed.debug
}

fn with_budget(path: &Path, budget: &Arc<MemoryBudget>) -> ElfFile {
    let files = DebugFiles { budget: Arc::clone(budget), ..DebugFiles::default() };
    open(path).with_debug_files(Arc::new(files))
}

#[test]
fn the_first_file_keeps_its_debug_information() {
    let flags = ["-g", "-O2", "-gz=zlib"];
    let (first, second) =
        (build("cc", "lines.c", C_SOURCE, &flags), build("cc", "b.c", C_SOURCE, &flags));
    let len = unpacked_len(&first.path);
    assert!(len > 100, "the premise");
    let budget = Arc::new(MemoryBudget::new(len + len / 2));
    let (outer, _) = symbol(&first.path, "outer");
    let (first, second) = (with_budget(&first.path, &budget), with_budget(&second.path, &budget));
    let mut symbolizer = Symbolizer::new();
    let mut ask = |file: &ElfFile| {
        let answer = symbolizer.resolve(file, &[outer]).remove(0);
        assert_eq!(name(&answer), Some("outer"), "there is always budget for symbols");
        (answer.line > 0, symbolizer.source(file).unwrap())
    };
    let whole = "its own debug information".to_owned();
    assert_eq!(ask(&first), (true, whole.clone()));
    assert_eq!(ask(&second), (false, format!("{whole}, {MISSING}")));
    assert_eq!(ask(&first), (true, whole.clone()));
    // The budget of another file, after it is released.
    symbolizer.forget(&first);
    symbolizer.forget(&second);
    let mut ask = |file: &ElfFile| symbolizer.resolve(file, &[outer]).remove(0).line > 0;
    assert_eq!((ask(&second), ask(&first)), (true, false));
}

#[test]
fn pieces_of_debug_information_use_the_same_budget() {
    let built = separate::build_split(&["-g", "-gsplit-dwarf"]);
    let (outer, _) = symbol(&built.path, "outer");
    let ask = |budget: u64| {
        let budget = Arc::new(MemoryBudget::new(budget));
        let (file, mut symbolizer) = (with_budget(&built.path, &budget), Symbolizer::new());
        let line = symbolizer.resolve(&file, &[outer])[0].line;
        let source = symbolizer.source(&file).unwrap();
        assert_eq!(name(&symbolizer.resolve(&file, &[outer])[0]), Some("outer"));
        (line > 0, source.ends_with(MISSING))
    };
    assert_eq!(ask(1 << 20), (true, false));
    let piece = fs::metadata(built.dir.path().join("lines.dwo")).unwrap().len();
    for budget in [0, 40, piece / 2] {
        let (_, has_lack) = ask(budget);
        assert!(has_lack, "{budget} bytes");
    }
}

#[test]
fn compressed_symbol_tables_use_the_same_budget() {
    let built = build("cc", "lines.c", C_SOURCE, &["-O2"]);
    let (hidden, _) = symbol(&built.path, "hidden");
    pack_symbols(built.dir.path());
    let ask = |budget: u64| {
        let budget = Arc::new(MemoryBudget::new(budget));
        let (file, mut symbolizer) = (with_budget(&built.path, &budget), Symbolizer::new());
        let answer = symbolizer.resolve(&file, &[hidden]).remove(0);
        (name(&answer).is_some(), symbolizer.source(&file).unwrap())
    };
    let table = "its compressed symbol table".to_owned();
    assert_eq!(ask(1 << 20), (true, table.clone()));
    assert_eq!(ask(100), (false, format!("{table}, {MISSING}")));
}
