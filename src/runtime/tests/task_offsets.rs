//! The offsets of asyncio's tasks, which the module `_asyncio` publishes for debuggers from 3.14 on.

use std::path::PathBuf;

use object::{Object, ObjectSection};
use traceprof_abi::runtime::python::TaskLayout;

use super::tools;
use crate::runtime::python::structures;

/// Returns the modules of this machine for 3.14 with the interpreter's lock.
fn modules() -> Vec<PathBuf> {
    let folders = [
        tools().join("python/3.14/freeze_core/lib"),
        PathBuf::from("/usr/lib/python3.14/lib-dynload"),
    ];
    let entries = folders.into_iter().filter_map(|folder| std::fs::read_dir(folder).ok());
    let paths = entries.flatten().flatten().map(|entry| entry.path());
    paths.filter(|path| path.to_string_lossy().contains("/_asyncio.cpython-314-")).collect()
}

#[test]
fn tasks_are_where_the_module_says() {
    let modules = modules();
    if modules.is_empty() {
        eprintln!("SKIP: no module _asyncio of Python 3.14 here");
    }
    let TaskLayout { state_task, size, name, mark, .. } = structures(14).unwrap().layout.task;
    for path in modules {
        let bytes = std::fs::read(&path).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let data = file.section_by_name(".AsyncioDebug").unwrap().data().unwrap();
        let (words, _) = data.as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        // The task's size, name, awaiter and mark; two flags; the size of an interpreter's state and
        // its list of tasks; the size of a thread's state, its loop and its task.
        let told = [words[0], words[1], words[3], words[11]];
        assert_eq!(told, [size, name, mark, state_task].map(u64::from), "{}", path.display());
    }
}
