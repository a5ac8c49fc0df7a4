//! LuaJIT that is stepped through one machine instruction at a time: the frames at each of them,
//! against the callers that its program tells.

use std::collections::{BTreeMap, HashMap};
use std::process::Command;
use std::thread;
use std::time::Duration;

use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use traceprof_abi::runtime::word::{FOREIGN, ManagedFrame, SectionEnd, sections};
use traceprof_abi::runtime::{Captured, CapturedThread, capture};
use traceprof_abi::sync::{AtomicU64, Ordering};
use traceprof_abi::unwind::Registers;

use super::interpreters::{Found, Program, script};
use super::lua::interpreters;
use crate::proc::ProcessMemory;
use crate::runtime::{Function, Runtime, TargetWords};
use crate::test_turn;

const PROGRAM: &str = include_str!("../../../tests/targets/lua/steps.lua");
/// Number of instructions that are stepped through: several rounds of the program.
const STEPS: u64 = 12_000;

/// What the program says of its functions.
struct Expected {
    /// The names of functions by the lines on which they start.
    functions: BTreeMap<u32, &'static str>,
    /// The callers of functions, each with the line of the call. The main chunk has no name.
    calls: BTreeMap<&'static str, Vec<(&'static str, u32)>>,
}

impl Expected {
    fn read() -> Self {
        let lines = || (1..).zip(PROGRAM.lines());
        let function = |(number, line): (u32, &'static str)| {
            let (_, rest) = line.split_once("function c_")?;
            Some((number, rest.split_once('(')?.0))
        };
        let functions: BTreeMap<u32, &str> = lines().filter_map(function).collect();
        let mut calls = BTreeMap::<_, Vec<_>>::new();
        for (number, line) in lines() {
            if let Some((_, called)) = line.split_once("-- calls c_") {
                let caller = functions.range(..=number).next_back().expect("a function").1;
                let caller = if line.starts_with(' ') { *caller } else { "" };
                calls.entry(called).or_default().push((caller, number));
            }
        }
        Self { functions, calls }
    }

    /// Returns the name of a function, if it is one of those whose callers are known.
    fn name(&self, function: &Function) -> Option<&'static str> {
        match function.name.as_str() {
            "main chunk" => Some(""),
            _ => self.functions.get(&function.line).copied(),
        }
    }

    /// Returns what is wrong with the functions of a stack, root first, each with its line.
    fn check(&self, stack: &[(Function, u32)]) -> Option<String> {
        let names: Vec<_> = stack.iter().map(|(function, _)| self.name(function)).collect();
        for (at, pair) in names.windows(2).enumerate() {
            let ([Some(caller), Some(called)], line) = (pair, stack[at].1) else { continue };
            let known = self.calls.get(called).map_or(&[][..], Vec::as_slice);
            if !known.iter().any(|it| it.0 == *caller && (line == 0 || it.1 == line)) {
                return Some(format!("{caller}:{line} calls {called}"));
            }
        }
        let ((_, line), name) = (stack.last()?, names.last()?.filter(|name| !name.is_empty())?);
        let at = self.functions.range(..=*line).next_back().map(|(_, name)| *name);
        (*line > 0 && at != Some(name)).then(|| format!("{name} at {line}"))
    }
}

#[derive(Debug, Default)]
struct Tally {
    /// Number of instructions at which all frames are known.
    complete: u64,
    /// Number of those at which the innermost frame has a line.
    with_line: u64,
    /// Where frames are missing: the distance from the start of the interpreter's code, if it is
    /// there.
    incomplete: BTreeMap<(Option<u64>, String), u64>,
    wrong: BTreeMap<String, (u64, Option<u64>)>,
}

/// A program that is stopped whenever test code runs.
struct Stepped<'e> {
    program: Program,
    runtime: Runtime,
    expected: &'e Expected,
    known: HashMap<(u64, u32), Function>,
    words: Vec<AtomicU64>,
    tally: Tally,
}

impl<'e> Stepped<'e> {
    fn start(mut command: Command, option: &str, expected: &'e Expected) -> Self {
        command.args([option, "-Ohotloop=3", "-Ohotexit=2"]).arg("steps.lua");
        command.current_dir(script("lua"));
        let mut program = Program::start(command);
        assert_eq!(program.line(), "ready\n");
        // What is compiled at all is compiled.
        thread::sleep(Duration::from_millis(300));
        let pid = Pid::from_raw(program.pid());
        ptrace::attach(pid).unwrap();
        assert_eq!(waitpid(pid, None), Ok(WaitStatus::Stopped(pid, Signal::SIGSTOP)));
        let found = Found::in_process(program.pid()).expect("an interpreter");
        let runtime = found.locate(program.pid()).unwrap().unwrap();
        let words = (0..4096).map(|_| AtomicU64::new(0)).collect();
        let (known, tally) = (HashMap::new(), Tally::default());
        Self { program, runtime, expected, known, words, tally }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.program.pid())
    }

    fn thread(&self) -> CapturedThread {
        let r = ptrace::getregs(self.pid()).unwrap();
        let mut gpr = [0; 16];
        (gpr[1], gpr[3], gpr[6], gpr[14], gpr[15]) = (r.rdx, r.rbx, r.rbp, r.r14, r.r15);
        let registers = Registers { pc: r.rip, sp: r.rsp, fp: r.rbp, gpr }.of_interpreter();
        CapturedThread { pc: r.rip, stack: r.rsp, registers, ..CapturedThread::of(0) }
    }

    fn step(&mut self) {
        let pid = self.pid();
        ptrace::step(pid, None).unwrap();
        assert_eq!(waitpid(pid, None), Ok(WaitStatus::Stopped(pid, Signal::SIGTRAP)));
    }

    /// Compares the frames with what the program says.
    fn compare(&mut self) {
        let thread = self.thread();
        let memory = ProcessMemory::of(self.program.pid());
        let block = (0, &self.runtime.block);
        let captured = capture(block, thread, &mut TargetWords(&memory), &self.words);
        let layout = self.runtime.block.lua().expect("a block of Lua");
        let at = layout.has_code(thread.pc).then(|| thread.pc - layout.code_start);
        let Captured::Section { words: count, end, .. } = captured else {
            *self.tally.incomplete.entry((at, format!("{captured:?}"))).or_default() += 1;
            return;
        };
        // Relaxed: no other thread has the words.
        let words = self.words[..count].iter().map(|word| word.load(Ordering::Relaxed));
        let words: Vec<u64> = words.collect();
        let frames: Vec<ManagedFrame> = sections(&words).flat_map(|it| it.frames()).collect();
        let is_complete =
            end == SectionEnd::Root && frames.iter().all(|it| it.flags & FOREIGN == 0);
        if !is_complete {
            let what = format!("{end:?}, {} frames", frames.len());
            *self.tally.incomplete.entry((at, what)).or_default() += 1;
        }
        let named: Vec<_> = frames.iter().rev().filter(|frame| frame.is_named()).collect();
        let stack: Vec<_> = named.into_iter().map(|frame| self.named(frame)).collect();
        self.tally.complete += u64::from(is_complete);
        self.tally.with_line += u64::from(stack.last().is_some_and(|(_, line)| *line > 0));
        let is_main = stack.first().is_some_and(|(function, _)| function.name == "main chunk");
        let wrong = self.expected.check(&stack);
        let wrong = wrong.or_else(|| (is_complete && !is_main).then(|| "no main chunk".to_owned()));
        if let Some(wrong) = wrong {
            self.tally.wrong.entry(wrong).or_insert((0, at)).0 += 1;
        }
    }

    fn named(&mut self, frame: &ManagedFrame) -> (Function, u32) {
        let key = (frame.object, frame.cookie);
        let (pid, runtime) = (self.program.pid(), &self.runtime);
        let function = self.known.entry(key).or_insert_with(|| {
            let mut found = runtime.functions(&ProcessMemory::of(pid), &[key]);
            found.remove(0).expect("a function")
        });
        (function.clone(), function.line_at(frame.position))
    }
}

/// Steps through the program with one interpreter, or with all of them in a long run.
fn check_by_turn(option: &str) {
    let mut all: Vec<Option<Command>> = interpreters().into_iter().map(Some).collect();
    for index in test_turn::turn(0..all.len(), all.len().max(1)) {
        if let Some(command) = all[index].take() {
            check(command, option);
        }
    }
}

/// Steps through the program.
fn check(command: Command, option: &str) -> Tally {
    let expected = Expected::read();
    let mut stepped = Stepped::start(command, option, &expected);
    for _ in 0..STEPS {
        stepped.compare();
        stepped.step();
    }
    let (tally, label) = (stepped.tally, &stepped.runtime.label);
    eprintln!("{label} {option}: {tally:#x?}");
    assert!(tally.wrong.is_empty(), "{label} {option}: {:#x?}", tally.wrong);
    tally
}

#[test]
fn interpreted_functions_have_their_callers_at_each_instruction() {
    check_by_turn("-joff");
}

#[test]
fn compiled_functions_have_their_callers_at_each_instruction() {
    check_by_turn("-jon");
}
