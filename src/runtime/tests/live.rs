//! Live interpreters of each version that is installed.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use traceprof_abi::runtime::word::{FOREIGN, ManagedFrame, SectionEnd, sections};
use traceprof_abi::runtime::{Captured, CapturedThread, capture};
use traceprof_abi::sync::{AtomicU64, Ordering};

use super::interpreters::{
    Found, Program, Witness, WitnessedThread, built, interpreters, library_of, script,
};
use crate::proc::{self, ProcessMemory};
use crate::runtime::{Function, Gone, Runtime, TargetWords};
use crate::test_turn::turn;
use crate::text::printable;

/// Says loudly what is not tested here, and fails where nothing may be skipped.
fn note_missing(found: &[u32]) {
    let missing: Vec<u32> = (8..=14).filter(|minor| !found.contains(minor)).collect();
    if !missing.is_empty() {
        eprintln!("SKIP: no interpreter of Python 3.{missing:?} here");
    }
    let required = std::env::var_os("TRACEPROF_TEST_REQUIRE").is_some();
    assert!(!(required && found.is_empty()), "no interpreter here, and no test may be skipped");
}

/// Returns a third of the interpreters, or all in long runs and where there are few.
fn some_interpreters() -> Vec<((u32, PathBuf), PathBuf)> {
    let found: Vec<_> = interpreters().into_iter().collect();
    let parts = if found.len() < 6 { 1 } else { 3 };
    turn(0..found.len(), parts).map(|at| found[at].clone()).collect()
}

/// Returns the frames of a thread, leaf first, or what there was instead.
fn frames(runtime: &Runtime, pid: i32, pointer: u64) -> Result<Vec<ManagedFrame>, Captured> {
    let memory = ProcessMemory::of(pid);
    let words: Vec<AtomicU64> = (0..4096).map(|_| AtomicU64::new(0)).collect();
    let thread = CapturedThread::of(pointer);
    let captured = capture((0, &runtime.block), thread, &mut TargetWords(&memory), &words);
    match captured {
        Captured::Section {
            words: count,
            end: SectionEnd::Root | SectionEnd::Outer,
            foreign: 0,
        } => {
            let words = words[..count].iter().map(|word| word.load(Ordering::Relaxed));
            let words: Vec<u64> = words.collect();
            Ok(sections(&words).flat_map(|section| section.frames().collect::<Vec<_>>()).collect())
        }
        Captured::Nothing => Ok(Vec::new()),
        _ => Err(captured),
    }
}

fn functions(runtime: &Runtime, pid: i32, frames: &[ManagedFrame]) -> Vec<Result<Function, Gone>> {
    let objects: Vec<_> = frames.iter().map(|frame| (frame.object, frame.cookie)).collect();
    runtime.functions(&ProcessMemory::of(pid), &objects)
}

/// Returns name, file and line of each frame of a thread, leaf first, and the number of frames that
/// no source code has.
fn stack(runtime: &Runtime, pid: i32, pointer: u64) -> (Vec<(String, String, u32)>, usize) {
    let frames = frames(runtime, pid, pointer).unwrap();
    assert!(frames.iter().all(|frame| frame.flags & FOREIGN == 0));
    let functions = functions(runtime, pid, &frames);
    let named = frames.iter().zip(functions).map(|(frame, function)| {
        let function = function.unwrap();
        let line = function.line_at(frame.position);
        (function.is_pseudo, (function.name, function.file, line))
    });
    let (pseudo, shown): (Vec<_>, Vec<_>) = named.partition(|(is_pseudo, _)| *is_pseudo);
    (shown.into_iter().map(|(_, frame)| frame).collect(), pseudo.len())
}

/// Compares the stack of a thread with that of the program itself, and returns the number of frames
/// that no source code has.
fn compare(runtime: &Runtime, pid: i32, thread: &WitnessedThread) -> usize {
    let memory = ProcessMemory::of(pid);
    let pointer = proc::thread_pointer(thread.tid, |avma, into| memory.read(avma, into));
    // A thread of musl is known to the kernel from its first robust lock on.
    assert_eq!(pointer.unwrap_or(thread.pointer), thread.pointer, "{}", thread.name);
    let (found, pseudo) = stack(runtime, pid, thread.pointer);
    assert_eq!(found, thread.frames, "{}", thread.name);
    pseudo
}

fn witness(target: &mut Program) -> Witness {
    let mut witness: Witness = serde_json::from_str(&target.line()).unwrap();
    for (name, file, _) in witness.threads.iter_mut().flat_map(|thread| &mut thread.frames) {
        (*name, *file) = (printable(name), printable(file));
    }
    witness
}

/// Compares the stacks of `python_stacks.py` with what it prints. `None` if this build is refused
/// by name.
fn check(mut command: Command, minor: u32) -> Option<Runtime> {
    // The code of this module is a part of the interpreter, from 3.11 on.
    let run = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')";
    command.args(["-c", run]).arg(script("python_stacks.py"));
    let mut target = Program::start(command);
    let first = witness(&mut target);
    let found = Found::in_process(target.pid()).unwrap();
    let runtime = match found.locate(target.pid()) {
        Ok(runtime) => runtime.unwrap(),
        Err(refused) => {
            assert!(refused.to_string().contains("free-threaded"), "{refused}");
            return None;
        }
    };
    assert_eq!(runtime.label, format!("Python {}", first.version));
    let code = &runtime.code;
    assert!(runtime.loops.iter().all(|it| code.start <= it.start && it.end <= code.end));
    assert!(!runtime.loops.is_empty());
    target.ask();
    for witness in [first, witness(&mut target)] {
        let pid = target.pid();
        let pseudo: usize = witness.threads.iter().map(|it| compare(&runtime, pid, it)).sum();
        assert_eq!(witness.threads.len(), 11);
        let frames: usize = witness.threads.iter().map(|thread| thread.frames.len()).sum();
        assert!(frames > 200, "{frames}");
        assert_eq!(pseudo, usize::from(minor >= 13), "inlined calls of classes");
    }
    Some(runtime)
}

#[test]
fn whole_stacks_are_those_that_the_program_sees() {
    let found = interpreters();
    note_missing(&found.keys().map(|(minor, _)| *minor).collect::<Vec<_>>());
    for ((minor, _), program) in found {
        check(Command::new(&program), minor);
    }
}

/// Of a stripped library, other symbols are known than those for other modules.
#[test]
fn stripped_libraries_say_as_much() {
    for ((minor, _), program) in some_interpreters() {
        let Some(library) = library_of(&program) else { continue };
        let folder = tempfile::tempdir().unwrap();
        let stripped = folder.path().join(library.file_name().unwrap());
        let done = Command::new("strip").arg("-o").arg(&stripped).arg(&library).status();
        assert!(done.unwrap().success());
        let mut command = Command::new(&program);
        command.env("LD_LIBRARY_PATH", folder.path());
        let [before, after] = [Command::new(&program), command].map(|it| check(it, minor).unwrap());
        let shape = |it: &Runtime| {
            let part = |part: &std::ops::Range<u64>| {
                part.start.wrapping_sub(it.code.start)..part.end.wrapping_sub(it.code.start)
            };
            let layout = *it.block.python().unwrap();
            let way = (layout.state_kind, layout.state_offset, layout.key, layout.key_value);
            (it.loops.first().map(part), way)
        };
        assert_eq!(shape(&before), shape(&after), "{}", library.display());
    }
}

#[test]
fn keys_beyond_the_first_block_are_found() {
    let keys = built("keys", &["-shared", "-fPIC", "-pthread"]);
    for ((minor, _), program) in some_interpreters() {
        let mut command = Command::new(&program);
        command.env("LD_PRELOAD", keys.path().join("keys"));
        let Some(runtime) = check(command, minor) else { continue };
        let layout = runtime.block.python().unwrap();
        eprintln!("{}: {:x} {:x}", program.display(), layout.key, layout.key_value);
        let is_wrapped = std::fs::read(&program).unwrap().starts_with(b"#!");
        assert!(is_wrapped || layout.key == 0x510 + 2 * 8 && layout.key_value != u64::MAX);
    }
}

#[test]
fn embedded_interpreters_are_found_from_their_start_to_their_end() {
    let embedder = built("embedder", &["-ldl"]);
    for ((minor, _), program) in some_interpreters() {
        let Some(library) = library_of(&program) else { continue };
        let text = "import os\ndef one():\n print('runs', flush=True)\n os.read(0, 1)\none()";
        let mut command = Command::new(embedder.path().join("embedder"));
        command.arg(&library).arg(text);
        let mut target = Program::start(command);
        let pid = target.pid();
        assert_eq!(target.line(), "loaded\n");
        let found = Found::in_process(pid).unwrap();
        assert!(found.locate(pid).unwrap().is_none(), "{minor}: not initialised yet");
        target.ask();
        assert_eq!(target.line(), "initialised\n");
        let runtime = found.locate(pid).unwrap().unwrap();
        let memory = ProcessMemory::of(pid);
        let pointer = proc::thread_pointer(pid, |avma, into| memory.read(avma, into)).unwrap();
        assert_eq!(frames(&runtime, pid, pointer), Ok(Vec::new()));
        target.ask();
        assert_eq!(target.line(), "runs\n");
        let frame = |name: &str, line| (name.to_owned(), "<string>".to_owned(), line);
        let expected = vec![frame("one", 4), frame("<module>", 5)];
        let deadline = Instant::now() + Duration::from_secs(10);
        // The program goes on from the line on which it prints.
        while Instant::now() < deadline && stack(&runtime, pid, pointer).0 != expected {
            std::thread::yield_now();
        }
        assert_eq!(stack(&runtime, pid, pointer).0, expected, "{minor}");
        target.ask();
        target.ask();
        assert_eq!(target.line(), "ended\n");
        assert!(found.locate(pid).unwrap().is_none(), "{minor}: ended");
    }
}

/// What an interpreter is like while it starts is not taken for another build.
#[test]
fn interpreters_that_start_are_not_refused() {
    for ((minor, _), program) in some_interpreters() {
        let (mut waited, mut early) = (0, 0);
        for _ in 0..4 {
            let mut command = Command::new(&program);
            command.args(["-c", "import json; print('ready', flush=True); input()"]);
            let mut target = Program::start(command);
            let pid = target.pid();
            let deadline = Instant::now() + Duration::from_secs(20);
            let found = loop {
                assert!(Instant::now() < deadline, "3.{minor} does not start");
                if let Some(found) = Found::in_process(pid) {
                    break found;
                }
            };
            // As the first look may come late, others follow until the end of the start.
            for round in 0.. {
                match found.locate(pid) {
                    Ok(None) => waited += 1,
                    Ok(Some(_)) => early += u32::from(round == 0),
                    Err(refused) => {
                        assert!(refused.to_string().contains("free-threaded"), "{refused}");
                        break;
                    }
                }
                if round > 60 {
                    break;
                }
            }
            assert_eq!(target.line(), "ready\n");
        }
        eprintln!("3.{minor}: not yet {waited} times, at once {early} times");
    }
}

#[test]
fn children_that_a_thread_forks_are_read() {
    for ((minor, _), program) in some_interpreters() {
        let mut command = Command::new(&program);
        command.arg(script("python_fork.py")).env("PYTHONWARNINGS", "ignore");
        let mut target = Program::start(command);
        let line = target.line();
        let child: i32 = line.trim().parse().unwrap_or_else(|_| panic!("{program:?}: {line:?}"));
        let Ok(Some(runtime)) = Found::in_process(child).unwrap().locate(child) else { continue };
        let memory = ProcessMemory::of(child);
        let pointer = proc::thread_pointer(child, |avma, into| memory.read(avma, into));
        let Some(pointer) = pointer else { continue };
        let (stack, _) = stack(&runtime, child, pointer);
        let names: Vec<&str> =
            stack.iter().map(|(name, _, _)| name.rsplit('.').next().unwrap()).collect();
        assert_eq!(
            names,
            ["within", "forks", "run", "_bootstrap_inner", "_bootstrap"],
            "3.{minor}"
        );
        target.ask();
        assert!(target.child.wait().unwrap().success());
    }
}

/// Each interpreter of a process has states of its own.
#[test]
fn functions_of_other_interpreters_of_a_process_are_found() {
    for ((minor, _), program) in some_interpreters() {
        for argument in [&[][..], &["works"]] {
            let mut command = Command::new(&program);
            command.arg(script("python_within.py")).args(argument);
            let mut target = Program::start(command);
            assert_eq!(target.line(), "ready\n");
            let pid = target.pid();
            let Ok(Some(runtime)) = Found::in_process(pid).unwrap().locate(pid) else { continue };
            let memory = ProcessMemory::of(pid);
            let pointer = proc::thread_pointer(pid, |avma, into| memory.read(avma, into));
            let Some(pointer) = pointer else { continue };
            let (stack, _) = stack(&runtime, pid, pointer);
            let names: Vec<&str> = stack.iter().map(|(name, _, _)| name.as_str()).collect();
            let expected = ["inner", "<module>", "outer", "<module>"];
            assert_eq!(names, expected, "3.{minor} {argument:?}");
            let is_script = |file: &str| file.ends_with("python_within.py");
            let places: Vec<bool> = stack.iter().map(|(_, file, _)| is_script(file)).collect();
            assert_eq!(places, [false, false, true, true]);
        }
    }
}

/// Names the same frames at once and later, while the program makes and frees functions.
#[test]
fn functions_that_are_gone_have_no_other_names() {
    for ((minor, _), program) in some_interpreters() {
        let mut command = Command::new(&program);
        command.arg(script("python_churn.py"));
        let mut target = Program::start(command);
        target.line();
        let pid = target.pid();
        let Ok(Some(runtime)) = Found::in_process(pid).unwrap().locate(pid) else { continue };
        let memory = ProcessMemory::of(pid);
        let pointer = proc::thread_pointer(pid, |avma, into| memory.read(avma, into));
        let Some(pointer) = pointer else { continue };
        let (mut named, mut gone, mut other, mut torn) = (0, 0, 0, 0);
        for _ in 0..100 {
            let mut seen = Vec::new();
            for _ in 0..10 {
                let Ok(frames) = frames(&runtime, pid, pointer) else { continue };
                seen.extend(frames.clone().into_iter().zip(functions(&runtime, pid, &frames)));
            }
            std::thread::sleep(Duration::from_millis(2));
            for (frame, first) in seen {
                let Ok(first) = first else { continue };
                let number = |text: &str, at: &str| {
                    Some(text.strip_prefix(at)?.parse::<u32>().expect("a number"))
                };
                let numbers = (number(&first.name, "made_"), number(&first.file, "file_"));
                if let (Some(name), Some(file)) = numbers {
                    let is_whole = name == file && first.line == name % 5000 + 1;
                    torn += u32::from(!is_whole);
                }
                match functions(&runtime, pid, &[frame]).remove(0) {
                    Ok(later) if later == first => named += 1,
                    Ok(_) => other += 1,
                    Err(_) => gone += 1,
                }
            }
        }
        eprintln!("3.{minor}: {named} named, {gone} gone, {other} other, {torn} torn");
        assert!(named > 100 && torn == 0);
        assert!(if minor < 12 { other * 100 < named } else { other == 0 });
    }
}
