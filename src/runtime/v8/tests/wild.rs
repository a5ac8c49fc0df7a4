//! Engines whose memory holds anything.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::nodes::{LiveEngine, NodeProgram, nodes};
use crate::proc::ProcessMemory;
use crate::runtime::TargetMemory;
use crate::runtime::pages::PAGES_MAX;
use crate::runtime::v8::{V8Exports, V8Machine};
use crate::test_turn::turn;
use crate::text::LENGTH_MAX;

/// Maximum number of reads of one operation: the pages of its three readers, and those of a second
/// look at what must not have changed.
const READS_MAX: usize = 4 * PAGES_MAX;
/// Number of pieces of code, and of functions, that are read.
const SOME: usize = 12;

/// The memory of a process, with some words replaced: always the same ones for one seed.
struct Damaged {
    memory: ProcessMemory,
    seed: u64,
    /// One of so many words is replaced.
    one_in: u64,
    /// An address with contents.
    known: u64,
    replaced: Cell<u64>,
    reads: Cell<usize>,
}

impl TargetMemory for Damaged {
    fn read(&self, avma: u64, into: &mut [u8]) -> usize {
        self.reads.set(self.reads.get() + 1);
        assert!(self.reads.get() <= READS_MAX, "no end of reads");
        let got = self.memory.read(avma, into);
        for at in (0..got.saturating_sub(7)).step_by(8) {
            let mut hash = (avma + at as u64) ^ self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            hash = (hash ^ hash >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            hash ^= hash >> 29;
            if hash.is_multiple_of(self.one_in) {
                // References, small integers, and others.
                let wild = [0, 1, u64::MAX, self.known | 1, hash << 32, hash << 52 >> 20, hash];
                let word = wild[(hash >> 40) as usize % wild.len()];
                into[at..at + 8].copy_from_slice(&word.to_le_bytes());
                self.replaced.set(self.replaced.get() + 1);
            }
        }
        got
    }
}

/// What is read of a program.
struct Wanted {
    code: Vec<u64>,
    functions: Vec<(u64, u32)>,
}

/// Reads all that there is to read, and returns the number of names.
fn read(machine: &V8Machine, memory: &dyn TargetMemory, wanted: &Wanted) -> usize {
    let reader = machine.reader(memory);
    let mut named = 0;
    for (shared, cookie) in &wanted.functions {
        if let Ok(function) = reader.function(*shared, *cookie) {
            named += 1;
            assert!([&function.name, &function.file].iter().all(|text| is_printable(text)));
            for offset in [0, 1, 60, u32::MAX] {
                function.place_at(offset);
            }
        }
    }
    for (index, pc) in wanted.code.iter().enumerate() {
        let of = wanted.functions.get(index % wanted.functions.len().max(1)).copied();
        let Ok(code) = reader.code_at(*pc, of) else { continue };
        for avma in [*pc, code.code.start, code.code.end, 0, u64::MAX] {
            for position in code.positions(avma) {
                named += usize::from(position.function.is_ok_and(|it| is_printable(&it.name)));
            }
        }
        assert!(code.bytes() < 64 << 20 && code.is_same_code(&code));
    }
    named
}

fn is_printable(text: &str) -> bool {
    assert!(text.len() <= LENGTH_MAX && !text.contains(char::is_control), "{text:?}");
    true
}

fn check(engine: &LiveEngine, memory: &Damaged, wanted: &Wanted) {
    let (exports, code) = (&engine.exports, &engine.code);
    let held = catch_unwind(AssertUnwindSafe(|| {
        if let Ok(Some(machine)) = exports.locate(engine.bias, memory, code) {
            read(&machine, memory, wanted);
        }
        read(&engine.machine, memory, wanted);
    }));
    assert!(held.is_ok(), "seed {}, one in {}", memory.seed, memory.one_in);
}

/// Returns some pieces of code, and some functions that were compiled into them.
fn wanted(engine: &LiveEngine, memory: &ProcessMemory) -> Wanted {
    let reader = engine.machine.reader(memory);
    let mut wanted = Wanted { code: Vec::new(), functions: Vec::new() };
    for range in &engine.code {
        for at in (range.start..range.end.min(range.start + (4 << 20))).step_by(4096) {
            let Ok(code) = reader.code_at(at, None) else { continue };
            wanted.code.push(at);
            wanted.functions.extend(code.own);
        }
    }
    assert!(wanted.code.len() >= SOME && wanted.functions.len() > 2, "{}", wanted.code.len());
    let step = wanted.code.len() / SOME;
    wanted.code = wanted.code.into_iter().step_by(step).collect();
    wanted.functions.dedup();
    wanted.functions.truncate(SOME);
    wanted
}

#[test]
fn damaged_memory_holds() {
    for (version, node) in nodes() {
        let program = NodeProgram::start(&node, &[], &["v8_mix.js"]);
        std::thread::sleep(Duration::from_secs(2));
        program.pause();
        let (engine, memory) = (program.engine(), program.memory());
        let wanted = wanted(&engine, &memory);
        let whole = read(&engine.machine, &memory, &wanted);
        assert!(whole > wanted.functions.len() / 2, "{version}: {whole}");
        let (mut replaced, mut reads) = (0, 0);
        for seed in turn(0..25, 5) {
            for one_in in [3, 40, 400, 4000] {
                let damaged = Damaged {
                    memory,
                    seed: seed as u64,
                    one_in,
                    known: wanted.functions[seed % wanted.functions.len()].0,
                    replaced: Cell::default(),
                    reads: Cell::default(),
                };
                check(&engine, &damaged, &wanted);
                replaced += damaged.replaced.get();
                reads = damaged.reads.get().max(reads);
            }
        }
        eprintln!("{version}: {replaced} words replaced, {reads} reads at most, {whole} names");
        assert!(replaced > 10_000, "{replaced}");
    }
}

#[test]
fn other_files_have_no_engine() {
    for path in ["/proc/self/exe", "/usr/bin/true"] {
        let bytes = std::fs::read(path).unwrap();
        assert!(V8Exports::of(&bytes, path).is_none());
    }
    assert!(V8Exports::of(b"", "").is_none());
}

#[test]
fn memory_without_an_engine_has_none() {
    struct Nothing;
    impl TargetMemory for Nothing {
        fn read(&self, _avma: u64, _into: &mut [u8]) -> usize {
            0
        }
    }
    for (_, node) in nodes().into_iter().take(1) {
        let program = NodeProgram::start(&node, &[], &["v8_mix.js"]);
        let engine = program.engine();
        assert!(engine.exports.locate(engine.bias, &Nothing, &[]).unwrap().is_none());
        let reader = engine.machine.reader(&Nothing);
        assert!(reader.function(0x1000, 0).is_err() && reader.code_at(0x1000, None).is_err());
    }
}
