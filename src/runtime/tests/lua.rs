//! Live interpreters of LuaJIT, against what their programs say.

use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use traceprof_abi::runtime::word::{SectionEnd, sections};
use traceprof_abi::runtime::{Captured, CapturedThread, capture};
use traceprof_abi::sync::{AtomicU64, Ordering};

use super::interpreters::{Found, Program, script};
use super::tools;
use crate::proc::{self, ProcessMemory, TaskActivity};
use crate::runtime::{ManagedLanguage, Runtime, TargetWords};

/// Where Debian's packages have libraries.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// Returns the commands that run the interpreters that are here: the system's, and unpacked ones.
pub(super) fn interpreters() -> Vec<Command> {
    let system = PathBuf::from("/usr/bin/luajit");
    let mut found: Vec<Command> =
        system.exists().then(|| Command::new(system)).into_iter().collect();
    let folders = std::fs::read_dir(tools().join("luajit")).into_iter().flatten().flatten();
    for folder in folders {
        let libraries = folder.path().join(LIBRARIES);
        // The branch for OpenResty is a library alone.
        let program = folder.path().join("usr/bin/luajit");
        if !program.exists() {
            continue;
        }
        let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
        command.arg("--library-path").arg(&libraries).arg(program);
        found.push(command);
    }
    found
}

/// Returns the stack pointer and the program counter of a process that waits for input.
fn waiting(pid: i32) -> CapturedThread {
    for _ in 0..1000 {
        if let Ok(TaskActivity::Syscall { sp, pc, .. }) = proc::task_activity(pid, pid) {
            return CapturedThread { stack: sp, pc, ..CapturedThread::of(0) };
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("{pid} does not wait");
}

/// Returns the functions of a process that waits, innermost first, as `stacks.lua` tells them.
fn stack(runtime: &Runtime, pid: i32) -> Result<String, Captured> {
    let memory = ProcessMemory::of(pid);
    let words: Vec<AtomicU64> = (0..4096).map(|_| AtomicU64::new(0)).collect();
    let thread = waiting(pid);
    let captured = capture((0, &runtime.block), thread, &mut TargetWords(&memory), &words);
    let Captured::Section { words: count, end: SectionEnd::Root, foreign: 0 } = captured else {
        return Err(captured);
    };
    // Relaxed: no other thread has the words.
    let words: Vec<u64> = words[..count].iter().map(|word| word.load(Ordering::Relaxed)).collect();
    let frames = sections(&words).flat_map(|section| section.frames().collect::<Vec<_>>());
    let frames = frames.filter(|frame| frame.is_named()).map(|frame| {
        let function = runtime.functions(&memory, &[(frame.object, frame.cookie)]).remove(0);
        let function = function.expect("a function");
        let line = function.line_at(frame.position);
        let source = function.source_file().unwrap_or(&function.name).to_owned();
        format!("{source}:{}:{line}", function.line)
    });
    Ok(frames.collect::<Vec<_>>().join("|"))
}

/// Compares all stacks of `stacks.lua` with what it tells, and returns their names.
fn check(mut command: Command, option: &str) -> Vec<String> {
    command.arg(option).arg("stacks.lua");
    command.current_dir(script("lua"));
    let mut target = Program::start(command);
    let pid = target.pid();
    let mut names = Vec::new();
    let mut wrong = Vec::new();
    let mut line = target.line();
    let found = Found::in_process(pid).expect("an interpreter");
    let runtime = found.locate(pid).expect("a supported build").expect("a runtime");
    assert_eq!(runtime.language, ManagedLanguage::Lua);
    assert!(runtime.label.starts_with("LuaJIT 2.1."), "{}", runtime.label);
    while let Some((name, expected)) = line.trim_end().split_once('\t') {
        let seen = stack(&runtime, pid);
        if seen.as_deref() != Ok(expected) {
            wrong.push(format!("{name}:\n  told {expected}\n  seen {seen:?}"));
        }
        names.push(name.to_owned());
        target.ask();
        line = target.line();
    }
    assert_eq!(line, "end\n", "after {names:?}");
    assert!(wrong.is_empty(), "{} {option}:\n{}", runtime.label, wrong.join("\n"));
    eprintln!("{} {option}: {} stacks", runtime.label, names.len());
    names
}

#[test]
fn stacks_are_those_that_the_program_tells() {
    let found = interpreters();
    if found.is_empty() {
        let required = std::env::var_os("TRACEPROF_TEST_REQUIRE").is_some();
        assert!(!required, "no interpreter here, and no test may be skipped");
        eprintln!("SKIP: no interpreter of LuaJIT here");
    }
    for number in 0..found.len() {
        for option in ["-joff", "-jon"] {
            let command = interpreters().remove(number);
            assert_eq!(check(command, option).len(), 31);
        }
    }
}
