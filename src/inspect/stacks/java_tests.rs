//! Stacks of HotSpot machines, by the rules of followed code. Machines that keep frame pointers
//! tell what is right.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use traceprof_abi::runtime::word::{FrameWord, frames};
use traceprof_abi::unwind::rule::{method, op};
use traceprof_abi::unwind::{RETURN_ADDRESS, Rule};

use super::*;
use crate::proc::ProcessMemory;
use crate::runtime::java::tests::machines::{JavaProgram, machine};
use crate::runtime::java::{BlobKind, CodeBlob, JavaMachine};

/// How long a machine is watched at least.
const WATCH: Duration = Duration::from_secs(12);
/// How many stacks are examined at least, on a computer with much other work.
const STACKS_MIN: usize = 80;
/// Most frames of a chain of frame pointers.
const CHAIN_MAX: usize = 4096;

/// A machine whose threads are stopped and unwound from outside.
struct WatchedMachine {
    process: InspectedProcess,
    machine: JavaMachine,
    memory: ProcessMemory,
    start_time: u64,
    mappings: Vec<Mapping>,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    stacks: usize,
    rooted: usize,
    frames: usize,
    interpreted: usize,
    without_position: usize,
    compared: usize,
    equal: usize,
    compared_frames: usize,
    /// Ends of stacks without a root, and the last frames of these.
    ends: BTreeMap<String, usize>,
    differences: Vec<String>,
}

impl WatchedMachine {
    fn open(program: &JavaProgram) -> Self {
        let (pid, memory) = (program.pid(), program.memory());
        let (machine, ..) = program.machine();
        let mappings = proc::mappings(pid).unwrap();
        Self {
            process: InspectedProcess::open(pid, &mappings).unwrap(),
            machine,
            memory,
            start_time: proc::start_time(pid).unwrap(),
            mappings,
            counts: Counts::default(),
        }
    }

    fn watch(&mut self) {
        let since = Instant::now();
        let mut unwinder = RemoteUnwinder::default();
        while since.elapsed() < WATCH || self.counts.stacks < STACKS_MIN {
            let pid = self.process.pid;
            let captures = inject::capture(pid, self.start_time, &self.mappings, |_| ()).unwrap();
            // Code is not freed at once, so what a thread ran at its stop is there.
            self.process.follow();
            for Capture { tid, outcome, .. } in captures.threads {
                if let Ok(stopped) = outcome {
                    self.examine(&mut unwinder, tid, &stopped);
                }
            }
        }
    }

    fn blob(&self, avma: u64) -> Option<CodeBlob> {
        self.machine.now(&self.memory).blob_at(avma)
    }

    fn name(&self, avma: u64) -> String {
        self.blob(avma).map_or_else(|| "no blob".to_owned(), |blob| blob.name)
    }

    fn examine(&mut self, unwinder: &mut RemoteUnwinder, tid: i32, stopped: &ThreadSnapshot) {
        let stack = self.process.unwind(unwinder, tid, stopped);
        let words: Vec<FrameWord> = frames(&stack.frames).collect();
        let is_java = |word: &FrameWord| match word {
            FrameWord::Pc(pc) | FrameWord::WithFunction(pc, _) => {
                self.machine.may_have(pc & !RETURN_ADDRESS)
            }
            FrameWord::InPlace { .. } => true,
        };
        if !words.iter().any(is_java) {
            return;
        }
        self.counts.stacks += 1;
        self.counts.frames += words.len();
        for word in &words {
            if let FrameWord::InPlace { frame, .. } = word {
                self.counts.interpreted += 1;
                let read = self.machine.now(&self.memory).interpreted(frame.object);
                let is_unknown = read.is_ok_and(|found| found.method.bci_of(frame).is_none());
                self.counts.without_position += usize::from(is_unknown);
            }
        }
        if stack.end == EndReason::Root {
            self.counts.rooted += 1;
        } else {
            let last = match words.last() {
                Some(FrameWord::Pc(pc)) => self.name(pc & !RETURN_ADDRESS),
                _ => "a method of the interpreter".to_owned(),
            };
            let depth = if words.len() == 1 { "at the top" } else { "further up" };
            let end = format!("{} {depth} in {last}", stack.end.name());
            *self.counts.ends.entry(end).or_default() += 1;
        }
        self.compare(&words, stopped);
    }

    /// Compares a stack with the chain of frame pointers, from a complete frame at the top up to
    /// the first frame that need not have one.
    fn compare(&mut self, words: &[FrameWord], stopped: &ThreadSnapshot) {
        let pc = stopped.registers.pc;
        let Some(blob) = self.blob(pc).filter(|blob| self.is_complete(blob, pc)) else { return };
        let read = |avma: u64| {
            let at = usize::try_from(avma.checked_sub(stopped.stack_avma)?).ok()?;
            let bytes = stopped.stack.get(at..)?.first_chunk()?;
            Some(u64::from_le_bytes(*bytes))
        };
        let mut fp = stopped.registers.fp;
        let mut compared = 0;
        for word in words.iter().skip(1).take(CHAIN_MAX) {
            let (Some(pc), Some(caller_fp)) = (read(fp.wrapping_add(8)), read(fp)) else { break };
            let Some(caller) = self.blob(pc) else { break };
            let is_equal = match word {
                FrameWord::Pc(found) | FrameWord::WithFunction(found, _) => {
                    let found = found & !RETURN_ADDRESS;
                    let is_deoptimized = caller.compiled.is_some_and(|it| it.is_deopt_handler(pc));
                    found == pc || is_deoptimized && caller.code.contains(&found)
                }
                FrameWord::InPlace { .. } => caller.kind == BlobKind::Interpreter,
            };
            compared += 1;
            if !is_equal {
                let offset = stopped.registers.pc - blob.code.start;
                let at = format!("{} +{offset:#x}, frame {compared}: {pc:x}, {word:x?}", blob.name);
                self.counts.differences.push(at);
                self.counts.compared += 1;
                return;
            }
            let has_frame_pointer = matches!(
                caller.kind,
                BlobKind::Compiled | BlobKind::NativeWrapper | BlobKind::Interpreter
            );
            if !has_frame_pointer {
                break;
            }
            fp = caller_fp;
        }
        self.counts.compared += 1;
        self.counts.equal += 1;
        self.counts.compared_frames += compared;
    }

    /// Whether the frame of this instruction is complete.
    fn is_complete(&self, blob: &CodeBlob, pc: u64) -> bool {
        let Some(rule) = self.rule(pc) else { return false };
        match blob.kind {
            BlobKind::Compiled => {
                let is_behind = blob.frame_complete.is_some_and(|complete| pc >= complete);
                is_behind && rule.op == op::SP && rule.cfa_off as u32 == blob.frame_words * 8
            }
            BlobKind::Interpreter => {
                rule.op == op::INTERPRETED && rule.cfa_off.to_le_bytes()[3] == method::IN_FRAME
            }
            _ => false,
        }
    }

    fn rule(&self, pc: u64) -> Option<Rule> {
        let tables = self.process.tables.as_tables();
        let snapshot = tables.snapshot()?;
        Some(snapshot.heap(snapshot.range(pc)?)?.table(pc)?.rule(pc))
    }
}

/// Watches the machine of a version. Returns the counts, if the machine is here.
fn watch(version: u8, options: &[&str]) -> Option<Counts> {
    let launcher = machine(version)?;
    let options = [&["-Xmx300m"], options].concat();
    let program = JavaProgram::run(&launcher, &options, &["JavaMix"]);
    let mut watched = WatchedMachine::open(&program);
    watched.watch();
    eprintln!("Java {version} {options:?}: {:#?}", watched.counts);
    Some(watched.counts)
}

/// Compares the stacks of a machine that keeps frame pointers with those: none may be another one.
fn stacks_are_those_of_the_frame_pointers(version: u8) {
    let Some(counts) = watch(version, &["-XX:+PreserveFramePointer"]) else { return };
    assert!(counts.compared >= 8, "Java {version}: too few were compared: {counts:#?}");
    assert_eq!(counts.compared, counts.equal, "Java {version}: {counts:#?}");
}

/// Checks that stacks of a machine reach their roots, but one in a thousand: code may be freed in
/// the second that a build without optimisation needs to follow it.
fn stacks_reach_their_roots(version: u8) {
    let Some(counts) = watch(version, &[]) else { return };
    let (lost, mean) = (counts.stacks - counts.rooted, counts.stacks as f64 / 1000.0);
    // Three standard errors above.
    assert!(lost as f64 <= mean + 3.0 * mean.sqrt(), "Java {version}: {counts:#?}");
    assert_eq!(counts.without_position, 0, "Java {version}");
}

#[test]
fn stacks_of_8_are_those_of_the_frame_pointers() {
    stacks_are_those_of_the_frame_pointers(8);
}

#[test]
fn stacks_of_11_are_those_of_the_frame_pointers() {
    stacks_are_those_of_the_frame_pointers(11);
}

#[test]
fn stacks_of_17_are_those_of_the_frame_pointers() {
    stacks_are_those_of_the_frame_pointers(17);
}

#[test]
fn stacks_of_21_are_those_of_the_frame_pointers() {
    stacks_are_those_of_the_frame_pointers(21);
}

#[test]
fn stacks_of_25_are_those_of_the_frame_pointers() {
    stacks_are_those_of_the_frame_pointers(25);
}

#[test]
fn stacks_of_8_reach_their_roots() {
    stacks_reach_their_roots(8);
}

#[test]
fn stacks_of_11_reach_their_roots() {
    stacks_reach_their_roots(11);
}

#[test]
fn stacks_of_17_reach_their_roots() {
    stacks_reach_their_roots(17);
}

#[test]
fn stacks_of_21_reach_their_roots() {
    stacks_reach_their_roots(21);
}

#[test]
fn stacks_of_25_reach_their_roots() {
    stacks_reach_their_roots(25);
}
