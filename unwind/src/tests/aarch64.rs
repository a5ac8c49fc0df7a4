//! aarch64 unwinding, tested on any host. At random addresses of a real C library, one step reads
//! what gimli says it must. Hand-made stacks are walked to their roots.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use gimli::{CfaRule, Register, RegisterRule, UnwindTableRow};
use traceprof_abi::unwind::aarch64::Registers;
use traceprof_abi::unwind::rule::{op, ra_op};
use traceprof_abi::unwind::{EndReason, Memory, RETURN_ADDRESS, Rule, Snapshot, Unwound, unwind};

use super::against_gimli::Oracle;
use super::{Random, SegmentMemory};
use crate::architecture::Architecture;
use crate::compile::{Statistics, block_index, compile_elf};
use crate::rows::Row;
use crate::{ExecRange, ModuleTable, TableWriter, compile};
use traceprof_elf::Elf;

const LIBRARIES: &str = "/usr/aarch64-linux-gnu/lib";
const BIAS: u64 = 0x5500_0000_0000;
const STACK: u64 = 0x7000_0000_0000;
const SP: u64 = STACK + 0x10_0000;
const STACK_END: u64 = STACK + 0x100_0000;
/// The bits of a signed address that hold its signature.
const PAC_MASK: u64 = 0x007F_0000_0000_0000;
/// A signature.
const SIGNATURE: u64 = 0x0055_0000_0000_0000;

/// The words of a stack.
struct Stack<'w> {
    word: &'w dyn Fn(u64) -> Option<u64>,
    read: BTreeSet<u64>,
    /// The instruction at every address of code.
    code: u64,
}

impl Memory for Stack<'_> {
    fn load(&mut self, avma: u64) -> Option<u64> {
        assert!(avma >= STACK && avma + 8 <= STACK_END, "load of {avma:#x} out of bounds");
        self.read.insert(avma);
        (self.word)(avma)
    }

    fn rebound(&mut self, sp: u64) -> bool {
        (STACK..STACK_END).contains(&sp)
    }

    fn bounds(&self) -> (u64, u64) {
        (STACK, STACK_END)
    }

    fn load_code(&mut self, _: u64) -> Option<u64> {
        Some(self.code)
    }
}

/// Unwinds, and returns the frame words, the end reason, and the addresses that were read.
fn walked(
    snapshot: &Snapshot<'_>,
    registers: &Registers,
    (word, code): (&dyn Fn(u64) -> Option<u64>, u64),
    depth: usize,
) -> (Vec<u64>, EndReason, BTreeSet<u64>) {
    let frames: Vec<AtomicU64> = (0..depth).map(|_| AtomicU64::new(0)).collect();
    let mut stack = Stack { word, read: BTreeSet::new(), code };
    let Unwound { depth, end, .. } = unwind(snapshot, registers, &mut stack, &frames);
    let words = frames[..depth].iter().map(|word| word.load(Ordering::Relaxed)).collect();
    (words, end, stack.read)
}

/// Returns the word at an address: a signed address or a number, distinct for each address.
fn word(avma: u64) -> u64 {
    (SP + 0x10_0000 + (avma.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 44 & !7)) | SIGNATURE
}

fn register(number: u16) -> u64 {
    if number == 31 { SP } else { SP + 0x2000 + u64::from(number) * 0x140 }
}

/// Returns the caller's pc and the addresses that are read to find it, or `None` if it takes more
/// than one step.
fn truth(row: &UnwindTableRow<usize>) -> Option<(u64, BTreeSet<u64>)> {
    let CfaRule::RegisterAndOffset { register: base, offset } = row.cfa() else { return None };
    let cfa = register(base.0).wrapping_add_signed(*offset);
    let mut read = BTreeSet::new();
    let mut slot = |number| match row.register(Register(number)) {
        Some(RegisterRule::Offset(at)) => {
            let at = cfa.wrapping_add_signed(at);
            read.insert(at);
            Some(word(at))
        }
        None | Some(RegisterRule::SameValue) => Some(register(number)),
        _ => None,
    };
    let (_, pc) = (slot(29)?, slot(30)?);
    let is_there = |at: &u64| (SP..STACK_END - 8).contains(at);
    (read.iter().all(is_there) && cfa >= SP).then_some((pc & !PAC_MASK, read))
}

/// The number of outcomes of each kind.
type Counts = BTreeMap<&'static str, u64>;

fn compare(
    snapshot: &Snapshot<'_>,
    svma: u64,
    oracle: &Oracle<'_>,
    counts: &mut Counts,
) -> Result<(), String> {
    let pc = svma + BIAS;
    let module = snapshot.module(snapshot.range(pc).unwrap()).unwrap();
    let rule = module.rule(svma);
    let (fp, lr) = (register(29), register(30) | SIGNATURE);
    let registers = Registers { pc, sp: SP, fp, lr, pac_mask: PAC_MASK };
    let found = walked(snapshot, &registers, (&|avma| Some(word(avma)), 0), 2);
    let row = oracle.fde(svma).and_then(|fde| oracle.row(fde, svma));
    let outcome = match (&row, rule.op) {
        (None, _) => "gap",
        (Some(_), op::BAD) => "bad",
        (Some(row), op::STOP) if row.register(Register(30)) == Some(RegisterRule::Undefined) => {
            "root"
        }
        (Some(row), _) => match truth(row) {
            None => "other",
            Some((caller, read)) if found.0 == [pc, caller | RETURN_ADDRESS] && found.2 == read => {
                "checked"
            }
            Some(expected) => return Err(format!("{svma:#x} {rule:?}: {found:x?}, {expected:x?}")),
        },
    };
    *counts.entry(outcome).or_default() += 1;
    Ok(())
}

fn check(path: &Path, samples: u64) -> Counts {
    let bytes = std::fs::read(path).unwrap_or_else(|error| {
        panic!("{}: {error}; install libc6-arm64-cross", path.display());
    });
    assert!(compile(&bytes).is_err(), "modules of another machine are refused");
    let elf = Elf::parse(&bytes).unwrap();
    let oracle = Oracle::new(&elf);
    let table = compile_elf(&elf, Architecture::Aarch64, None).unwrap();
    let segment = SegmentMemory::new(TableWriter::module_bytes(&table) as usize + 16384);
    let end = elf.loads().iter().map(|load| load.svma + load.mem_len).max().unwrap();
    publish(&segment, &table, end);
    let tables = segment.tables();
    let snapshot = tables.snapshot().unwrap();
    let (mut counts, mut wrong) = (Counts::default(), Vec::new());
    let mut random = Random(0x1234_5678_9ABC_DEF1);
    for _ in 0..samples {
        let fde = &oracle.fdes[random.below(oracle.fdes.len() as u64) as usize];
        let svma = fde.initial_address() + random.below(fde.len()) / 4 * 4;
        wrong.extend(compare(&snapshot, svma, &oracle, &mut counts).err());
    }
    eprintln!("{}: {counts:?} {:?}", path.display(), table.statistics());
    assert!(wrong.is_empty(), "{} wrong, such as {}", wrong.len(), wrong[0]);
    counts
}

fn publish(segment: &SegmentMemory, table: &ModuleTable, end: u64) {
    let mut writer = TableWriter::new(segment.words());
    let module = Some(writer.add_module(table).unwrap());
    let code = ExecRange { start: BIAS, end: BIAS + end, bias: BIAS, module };
    writer.publish(&[code], &[(STACK, STACK_END)]).unwrap();
}

#[test]
fn c_library_of_aarch64_is_stepped_as_its_call_frame_information_says() {
    for (name, samples) in [("libc.so.6", 20_000), ("libm.so.6", 5_000)] {
        let counts = check(&Path::new(LIBRARIES).join(name), samples);
        let of = |outcome| counts.get(outcome).copied().unwrap_or(0);
        assert!(of("checked") * 100 > samples * 99, "{name}: {counts:?}");
        assert!(of("bad") * 1000 < samples, "{name}: {counts:?}");
    }
}

/// Returns a table of rules that each apply to 256 bytes, from address 0 on.
fn table(rules: &[Rule]) -> ModuleTable {
    let row = |number: usize| Row { offset: number as u32 * 256, rule: number as u16 };
    let rows: Vec<Row> = (0..rules.len()).map(row).collect();
    ModuleTable {
        base: 0,
        blocks: block_index(&rows, rules.len() as u32 * 256),
        lows: rows.iter().map(|row| row.offset as u8).collect(),
        ids: rows.iter().map(|row| row.rule).collect(),
        rules: rules.to_vec(),
        default_rule: 0,
        rbx_slots: Vec::new(),
        statistics: Statistics::default(),
    }
}

const fn rule(op: u8, ra_op: u8, slot: i16, cfa_off: i32) -> Rule {
    Rule { op, fp_op: ra_op, fp_off: slot / 8, cfa_off }
}

/// One function for each way to save registers.
const RULES: [Rule; 8] = [
    rule(op::SP, ra_op::LINK, 0, 0),
    rule(op::SP, ra_op::PAIR, -32, 32),
    rule(op::SP, ra_op::RA_ONLY, -16, 48),
    // x29 at cfa - 64, x30 at cfa - 16
    rule(op::SP, ra_op::separate(-48).unwrap(), -16, 64),
    rule(op::FP, ra_op::PAIR, -64, 64),
    Rule::GAP_GUESS,
    Rule::SIGNAL,
    Rule::STOP,
];
/// An address in each function.
const LEAF: u64 = 0x10;
const PAIR: u64 = 0x110;
const RA: u64 = 0x210;
const APART: u64 = 0x310;
const BY_FP: u64 = 0x410;
const GAP: u64 = 0x510;
const SIGNAL: u64 = 0x610;
const STOP: u64 = 0x710;

/// Walks over these words from these registers, whose addresses are in `RULES`.
fn chain(registers: Registers, words: &[(u64, u64)], code: u64) -> (Vec<u64>, EndReason) {
    let segment = SegmentMemory::new(1 << 16);
    publish(&segment, &table(&RULES), RULES.len() as u64 * 256);
    let tables = segment.tables();
    let snapshot = tables.snapshot().unwrap();
    let words: BTreeMap<u64, u64> = words.iter().copied().collect();
    let load = |avma| Some(words.get(&avma).copied().unwrap_or(1));
    let (frames, end, _) = walked(&snapshot, &registers, (&load, code), 16);
    let place = |word: &u64| ((word & !RETURN_ADDRESS) - BIAS) | (word & RETURN_ADDRESS);
    (frames.iter().map(place).collect(), end)
}

fn at(place: u64) -> u64 {
    BIAS + place
}

fn returned(places: &[u64]) -> Vec<u64> {
    let callers = places[1..].iter().map(|place| place | RETURN_ADDRESS);
    std::iter::once(places[0]).chain(callers).collect()
}

#[test]
fn every_way_to_keep_a_return_address_is_followed() {
    let signed = |place| at(place) | SIGNATURE;
    let lr = signed(PAIR);
    let registers = Registers { pc: at(LEAF), sp: SP, fp: SP, lr, pac_mask: PAC_MASK };
    let words = [
        // The frames of PAIR (32 bytes), RA (48), APART (64), and BY_FP (any size).
        (SP, SP + 0x1000),
        (SP + 8, signed(RA)),
        (SP + 32 + 32, signed(APART)),
        (SP + 80, SP + 0x2000),
        (SP + 80 + 48, signed(BY_FP)),
        (SP + 0x2000, 0),
        (SP + 0x2008, signed(STOP)),
    ];
    let (frames, end) = chain(registers, &words, 0);
    assert_eq!(frames, returned(&[LEAF, PAIR, RA, APART, BY_FP, STOP]));
    assert_eq!(end, EndReason::Root);
}

#[test]
fn link_register_belongs_only_to_the_leaf() {
    let registers = Registers { pc: at(PAIR), sp: SP, fp: SP, lr: at(STOP), pac_mask: 0 };
    // The caller's rule says that it saved nothing, which is impossible.
    let (frames, end) = chain(registers, &[(SP, SP + 64), (SP + 8, at(LEAF))], 0);
    assert_eq!((frames, end), (returned(&[PAIR, LEAF]), EndReason::BadRule));
}

/// The caller of the handler is the frame that the signal interrupted. Its registers are above sp.
#[test]
fn interrupted_frames_have_their_link_register_again() {
    let registers = Registers { pc: at(LEAF), sp: SP, fp: 0, lr: at(SIGNAL), pac_mask: 0 };
    let (saved, below) = (SP + 312, SP + 0x3000);
    let words = [
        (saved + 29 * 8, below),
        (saved + 30 * 8, at(PAIR)),
        (saved + 31 * 8, below),
        (saved + 32 * 8, at(LEAF)),
        (below, 0),
        (below + 8, at(STOP)),
    ];
    let (frames, end) = chain(registers, &words, 0);
    let callers = |place| place | RETURN_ADDRESS;
    let expected = [LEAF, callers(SIGNAL), LEAF, callers(PAIR), callers(STOP)];
    assert_eq!((frames, end), (expected.to_vec(), EndReason::Root));
}

#[test]
fn gaps_are_left_by_the_link_register_or_the_frame_record() {
    // A leaf may have moved sp, but its caller keeps a frame record, which x29 points to.
    let leaf = Registers { pc: at(GAP), sp: SP, fp: SP + 64, lr: at(PAIR), pac_mask: 0 };
    let words = [(SP + 64, 0), (SP + 72, at(STOP))];
    let (frames, end) = chain(leaf, &words, 0);
    assert_eq!((frames, end), (returned(&[GAP, PAIR, STOP]), EndReason::Root));

    // If the caller has no frame record, sp is unknown.
    let (frames, end) = chain(Registers { lr: at(RA), ..leaf }, &words, 0);
    assert_eq!((frames, end), (returned(&[GAP, RA]), EndReason::BadRule));
    // An entry of a linkage table (`br x17`) does not move sp.
    let words = [(SP + 32, at(STOP))];
    let (frames, end) = chain(Registers { lr: at(RA), ..leaf }, &words, 0xD61F_0220);
    assert_eq!((frames, end), (returned(&[GAP, RA, STOP]), EndReason::Root));

    // After the function has made a call, the link register points into the function itself, which
    // has a record.
    let called = Registers { lr: at(GAP) + 4, ..leaf };
    let words = [
        (SP + 64, SP + 0x400),
        (SP + 72, at(PAIR)),
        (SP + 0x400, SP + 0x800),
        (SP + 0x408, at(GAP)),
        (SP + 0x800, 0),
        (SP + 0x808, at(STOP)),
    ];
    let (frames, end) = chain(called, &words, 0);
    assert_eq!((frames, end), (returned(&[GAP, PAIR, GAP, STOP]), EndReason::Root));
}

#[test]
fn records_that_lead_nowhere_end_the_walk() {
    let registers = Registers { pc: at(GAP), sp: SP, fp: SP + 64, lr: 0, pac_mask: 0 };
    // A return address outside code; a record below sp; an unaligned record.
    let (_, end) = chain(registers, &[(SP + 64, 0), (SP + 72, 0x4444)], 0);
    assert_eq!(end, EndReason::Gap);
    let (_, end) = chain(Registers { fp: SP - 64, ..registers }, &[], 0);
    assert_eq!(end, EndReason::Gap);
    let (_, end) = chain(Registers { fp: SP + 4, ..registers }, &[], 0);
    assert_eq!(end, EndReason::Gap);
    // Two zeroes in what may be a record, and a record that has a frame pointer of zero.
    let (_, end) = chain(registers, &[(SP + 64, 0), (SP + 72, 0)], 0);
    assert_eq!(end, EndReason::Unproven);
    let (_, end) = chain(registers, &[(SP + 64, 0), (SP + 72, at(GAP))], 0);
    assert_eq!(end, EndReason::Unproven);
    // A CFA at sp in a frame that is not a leaf would loop forever.
    let pair = Registers { pc: at(BY_FP), sp: SP, fp: SP - 64, lr: 0, pac_mask: 0 };
    let (frames, end) = chain(pair, &[(SP - 64, SP - 64), (SP - 56, at(BY_FP))], 0);
    assert_eq!((frames.len(), end), (1, EndReason::Range));
}
