//! Machines whose memory holds anything.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::machines::{JavaProgram, machines};
use crate::proc::ProcessMemory;
use crate::runtime::TargetMemory;
use crate::runtime::java::compiled::DEPTH_MAX;
use crate::runtime::java::threads::THREADS_MAX;
use crate::runtime::java::{JavaExports, JavaMachine};
use crate::runtime::pages::PAGES_MAX;
use crate::test_turn::turn;

/// Maximum number of reads of one operation: its pages, and those of a second look at what must not
/// have changed. That is at most three pages for each thread.
const READS_MAX: usize = 2 * PAGES_MAX + 3 * THREADS_MAX as usize;

/// The memory of a process, with some words replaced: always the same ones for one seed.
struct Damaged {
    memory: ProcessMemory,
    seed: u64,
    /// One of so many words is replaced.
    one_in: u64,
    /// An address with contents.
    known: u64,
    replaced: Cell<u64>,
    /// Number of reads of the present operation, and of that with the most.
    reads: Cell<usize>,
    most_reads: Cell<usize>,
}

impl Damaged {
    /// Counts the reads of another operation from here on.
    fn begin(&self) {
        self.reads.set(0);
    }
}

impl TargetMemory for Damaged {
    fn read(&self, avma: u64, into: &mut [u8]) -> usize {
        let reads = self.reads.get() + 1;
        assert!(reads <= READS_MAX, "no end of reads");
        self.reads.set(reads);
        self.most_reads.set(self.most_reads.get().max(reads));
        let got = self.memory.read(avma, into);
        for at in (0..got.saturating_sub(7)).step_by(8) {
            let mut hash = (avma + at as u64) ^ self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            hash = (hash ^ hash >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            hash ^= hash >> 29;
            if hash.is_multiple_of(self.one_in) {
                let wild = [0, 1, u64::MAX, self.known, self.known + hash % 4096 * 8, hash];
                let word = wild[(hash >> 40) as usize % wild.len()];
                into[at..at + 8].copy_from_slice(&word.to_le_bytes());
                self.replaced.set(self.replaced.get() + 1);
            }
        }
        got
    }
}

/// Reads all that there is to read. `begin` is called before each operation.
fn read(machine: &JavaMachine, memory: &dyn TargetMemory, pcs: &[u64], begin: impl Fn()) -> usize {
    begin();
    let threads = machine.now(memory).threads();
    let mut named = threads.map_or(0, |threads| threads.len());
    for pc in pcs {
        begin();
        let reader = machine.now(memory);
        let Some(blob) = reader.blob_at(*pc) else { continue };
        let Ok(code) = reader.compiled(&blob) else { continue };
        for avma in [*pc, blob.code.start, blob.code.end, 0, u64::MAX] {
            let positions = code.at(avma);
            assert!(positions.len() <= DEPTH_MAX, "{} positions", positions.len());
            for position in positions {
                let name = position.method.map(|method| method.full_name());
                assert!(!name.unwrap_or_default().contains(char::is_control));
                position.line();
                named += 1;
            }
        }
    }
    named
}

fn check(exports: &JavaExports, bias: u64, whole: &JavaMachine, memory: &Damaged, pcs: &[u64]) {
    let held = catch_unwind(AssertUnwindSafe(|| {
        if let Ok(Some(machine)) = exports.locate(bias, memory) {
            read(&machine, memory, pcs, || memory.begin());
        }
        read(whole, memory, pcs, || memory.begin());
    }));
    assert!(held.is_ok(), "seed {}, one in {}", memory.seed, memory.one_in);
}

#[test]
fn damaged_memory_holds() {
    for (version, launcher) in machines() {
        let program = JavaProgram::start(&launcher, &[], 500);
        let (machine, exports, bias) = program.machine();
        let memory = program.memory();
        let reader = machine.now(&memory);
        // Some pieces of compiled code of each heap.
        let mut pcs = Vec::new();
        for heap in &machine.code {
            let starts = (heap.start..heap.end.min(heap.start + (4 << 20))).step_by(4096);
            let compiled =
                starts.filter(|at| reader.blob_at(*at).is_some_and(|it| it.compiled.is_some()));
            pcs.extend(compiled.take(4));
        }
        let whole = read(&machine, &memory, &pcs, || ());
        assert!(whole > 20, "Java {version}: {whole}");
        let (mut replaced, mut most_reads) = (0, 0);
        for seed in turn(0..60, 4) {
            let seed = seed as u64;
            for one_in in [3, 40, 400, 4000] {
                let known = program.machine().0.code[0].start;
                let damaged = Damaged {
                    memory,
                    seed,
                    one_in,
                    known,
                    replaced: Cell::default(),
                    reads: Cell::default(),
                    most_reads: Cell::default(),
                };
                check(&exports, bias, &machine, &damaged, &pcs);
                replaced += damaged.replaced.get();
                most_reads = damaged.most_reads.get().max(most_reads);
            }
        }
        eprintln!("Java {version}: {replaced} words were replaced, {most_reads} reads at most");
        assert!(replaced > 10_000, "{replaced}");
    }
}

#[test]
fn other_files_have_no_machine() {
    for path in ["/proc/self/exe", "/usr/bin/true"] {
        let bytes = std::fs::read(path).unwrap();
        assert!(JavaExports::of(&bytes, path).is_none());
    }
    assert!(JavaExports::of(b"", "").is_none());
}

#[test]
fn memory_without_a_machine_has_none() {
    struct Nothing;
    impl TargetMemory for Nothing {
        fn read(&self, _avma: u64, _into: &mut [u8]) -> usize {
            0
        }
    }
    for (_, launcher) in machines().into_iter().take(1) {
        let program = JavaProgram::start(&launcher, &[], 500);
        let (machine, exports, bias) = program.machine();
        assert!(exports.locate(bias, &Nothing).unwrap().is_none());
        assert!(machine.now(&Nothing).threads().is_none());
        assert_eq!(machine.now(&Nothing).blob_at(machine.code[0].start), None);
    }
}
