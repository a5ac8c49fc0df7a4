//! Stacks of Java threads whose compiled frames are being replaced by interpreted ones.
//!
//! The machine first makes the frames and then fills them. The test makes threads stay between the
//! two: an endless loop takes the place of the first instruction of the function that fills them.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use object::{Object, ObjectSymbol};
use serde_json::Value;

use crate::common::{
    Java, Target, java_classes_of, needs_recording, skip, together, traceprof, wait_until,
};

/// The function that fills the frames.
const FILLS: &str = "_ZN14Deoptimization13unpack_framesEP10JavaThreadi";
const FILLS_NAME: &str = "Deoptimization::unpack_frames";
/// What frames show that are of no known method.
const INTERPRETER: &str = "[Java interpreter]";
/// In most rounds, the frame of one method alone is replaced by each of two threads.
const ROUNDS: usize = 4;
/// `jmp .`, on x86-64
const ENDLESS_LOOP: [u8; 2] = [0xeb, 0xfe];

/// A function that no thread leaves.
struct EndlessFunction {
    memory: File,
    avma: u64,
    replaced: [u8; 2],
}

impl EndlessFunction {
    /// Changes the function of the machine's library, if that has a symbol for it.
    fn of(pid: i32) -> Option<Self> {
        let (path, base) = library(pid);
        let bytes = fs::read(path).expect("the library");
        let library = object::File::parse(&*bytes).expect("an ELF file");
        let symbol = library.symbols().find(|it| it.name() == Ok(FILLS))?;
        let avma = base + symbol.address();
        let memory = OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem"));
        let memory = memory.expect("memory of the target");
        let mut replaced = [0; 2];
        memory.read_exact_at(&mut replaced, avma).expect("the function");
        memory.write_all_at(&ENDLESS_LOOP, avma).expect("a loop");
        Some(Self { memory, avma, replaced })
    }
}

impl Drop for EndlessFunction {
    fn drop(&mut self) {
        let written = self.memory.write_all_at(&self.replaced, self.avma);
        assert!(written.is_ok() || std::thread::panicking(), "{written:?}");
    }
}

/// Returns the file of the machine's library and the address of its first byte.
fn library(pid: i32) -> (PathBuf, u64) {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
    let line = maps.lines().find(|line| line.ends_with("/libjvm.so")).expect("a library");
    let start = line.split('-').next().and_then(|it| u64::from_str_radix(it, 16).ok());
    let path = line.split_whitespace().last().expect("a path");
    (path.into(), start.expect("an address"))
}

/// Checks stacks of threads that are about to fill new frames.
fn check(version: u32) {
    needs_recording!();
    let Some(java) = Java::of(version) else {
        skip!("java {version}: not installed");
    };
    let _machine = together();
    let classes = java_classes_of("Deopts", &["Deopts.java"]);
    let target = Target::spawn(java.runs_in(&classes, "Deopts", &[]));
    let (mut seen, mut deepest) = (0, 0);
    for _ in 0..ROUNDS {
        let Some(endless) = EndlessFunction::of(target.pid()) else {
            skip!("java {version}: its library has no symbol of {FILLS}");
        };
        let is_there = || stacks(target.pid()).iter().any(|it| it[0].starts_with(FILLS_NAME));
        assert!(wait_until(Duration::from_secs(20), is_there), "java {version}");
        for stack in stacks(target.pid()).iter().filter(|it| it[0].starts_with(FILLS_NAME)) {
            deepest = deepest.max(unfilled(stack));
            seen += 1;
        }
        drop(endless);
    }
    eprintln!("java {version}: {seen} stacks with up to {deepest} frames that are not filled");
    assert!(seen >= ROUNDS, "java {version}: {seen} stacks");
}

/// Checks a stack, innermost function first. Returns the number of its frames that are not filled.
fn unfilled(stack: &[String]) -> usize {
    let blobs = ["[Java: UncommonTrapBlob]", "[Java: DeoptimizationBlob]"];
    assert!(blobs.contains(&&*stack[1]), "{stack:#?}");
    let new = stack.iter().skip(2).take_while(|it| *it == INTERPRETER).count();
    let before = &stack[2 + new..];
    let own = before.iter().filter_map(|it| it.strip_prefix("Deopts$Chain.d_")).rev();
    let numbers: Vec<_> = own.map(|it| it.parse::<usize>().expect("a number")).collect();
    // Each of them has one caller, and `d_5` and `step` call nothing of the chain.
    assert!(numbers.iter().copied().eq(0..numbers.len()), "{stack:#?}");
    assert!(new > 0 && !before.iter().any(|it| it == INTERPRETER), "{stack:#?}");
    assert!(before.iter().any(|it| it == "java.lang.Thread.run"), "{stack:#?}");
    new
}

/// Returns the functions of each thread's stack, innermost first.
fn stacks(pid: i32) -> Vec<Vec<String>> {
    let output = traceprof(&["stacks", "--json", "--pid", &pid.to_string()]).output();
    let output = output.expect("traceprof");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let shown: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let name = |frame: &Value| frame["function"].as_str().unwrap_or("?").to_owned();
    let frames = |thread: &Value| -> Vec<String> {
        thread["frames"].as_array().expect("frames").iter().map(name).collect()
    };
    let threads = shown["threads"].as_array().expect("threads").iter();
    threads.map(frames).filter(|stack| stack.len() > 2).collect()
}

#[test]
fn frames_of_11_that_are_not_filled_have_no_method() {
    check(11);
}

#[test]
fn frames_of_17_that_are_not_filled_have_no_method() {
    check(17);
}

#[test]
fn frames_of_21_that_are_not_filled_have_no_method() {
    check(21);
}

#[test]
fn frames_of_25_that_are_not_filled_have_no_method() {
    check(25);
}
