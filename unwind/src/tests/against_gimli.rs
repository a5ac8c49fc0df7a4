//! At random addresses of real modules, one step reads what gimli says it must.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, EndianSlice, EvaluationResult, LittleEndian,
    Location, Register, RegisterRule, UnwindContext, UnwindExpression, UnwindSection,
    UnwindTableRow, Value, Vendor,
};
use traceprof_abi::unwind::rule::op;
use traceprof_abi::unwind::tables::RBX_LOST;
use traceprof_abi::unwind::{EndReason, Memory, RETURN_ADDRESS, Registers, Rule, Snapshot, unwind};

use super::{Random, SegmentMemory};
use crate::{ExecRange, TableWriter, compile};
use traceprof_elf::{Elf, LoadSegment, Pclntab};

const SP: u64 = 0x7000_0000_0000;
const BOUNDS: (u64, u64) = (SP - (1 << 20), SP + (1 << 24));
const BIAS: u64 = 0x5500_0000_0000;
/// Maximum number of bytes between two functions that count as padding.
const PADDING_MAX: u64 = 16;
/// Maximum number of earlier entries that may overlap an entry.
const OVERLAPPING_MAX: usize = 8;
/// Modules with entries that are known to be wrong, apart from those whose rules refer to other
/// modules.
const AMENDED: [&str; 4] = ["libc.so", "libcrypto.so", "node", "luajit"];
/// Maximum number of such entries per module.
const AMENDED_FDES_MAX: usize = 2;
/// Sections that only GNU's linker describes.
const LINKAGE_TABLES: [&str; 4] = [".plt", ".plt.got", ".plt.sec", ".iplt"];
/// Minimum length in bytes of an interpreter.
const BLOCK_MIN: u64 = 4096;
/// Maximum number of disagreements that are printed.
const SHOWN_MAX: usize = 8;
type Fde<'a> = gimli::FrameDescriptionEntry<EndianSlice<'a, LittleEndian>>;

const EM_AARCH64: u16 = 183;

/// Returns the word at an address: distinct, and valid as a CFA, a frame pointer or a return
/// address.
fn word(avma: u64) -> u64 {
    SP + 0x10_0000 + ((avma.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20) & 0xF_FFF8)
}

fn register(number: u16) -> u64 {
    if number == 7 { SP } else { SP + 0x2000 + u64::from(number) * 0x140 }
}

/// Value of a register that is used as an index.
const INDEX: u64 = 0x40;

#[derive(Default)]
struct Logged(BTreeSet<u64>);

impl Memory for Logged {
    fn load(&mut self, avma: u64) -> Option<u64> {
        assert!(avma >= BOUNDS.0 && avma + 8 <= BOUNDS.1, "load of {avma:#x} out of bounds");
        self.0.insert(avma);
        Some(word(avma))
    }

    fn rebound(&mut self, sp: u64) -> bool {
        (BOUNDS.0..BOUNDS.1).contains(&sp)
    }

    fn bounds(&self) -> (u64, u64) {
        BOUNDS
    }
}

/// The outcome by gimli: the words read and the return address.
#[derive(Debug, PartialEq)]
enum Truth {
    Caller {
        loads: BTreeSet<u64>,
        pc: u64,
        rbx: Option<u64>,
    },
    Root,
    /// Not expected of one step: a CFA or slot outside the stack, or a signal frame.
    Other,
}

pub(super) struct Oracle<'a> {
    frames: EhFrame<EndianSlice<'a, LittleEndian>>,
    bases: BaseAddresses,
    pub(super) fdes: Vec<Fde<'a>>,
    /// Functions in Go's own table.
    go: Vec<Range<u64>>,
    /// Linkage tables.
    stubs: Vec<Range<u64>>,
    is_x86_64: bool,
    /// The register that is an index in the rule under test.
    index: Cell<Option<u16>>,
}

impl<'a> Oracle<'a> {
    pub(super) fn new(elf: &Elf<'a>) -> Self {
        let section = elf.section(".eh_frame").expect(".eh_frame");
        let text = elf.section(".text").map_or(0, |text| text.svma);
        let bases = BaseAddresses::default().set_eh_frame(section.svma).set_text(text);
        let mut frames = EhFrame::new(section.data, LittleEndian);
        if elf.machine() == EM_AARCH64 {
            frames.set_vendor(Vendor::AArch64);
        }
        let mut fdes = Vec::new();
        let mut entries = frames.entries(&bases);
        while let Some(entry) = entries.next().unwrap() {
            if let CieOrFde::Fde(partial) = entry {
                fdes.extend(partial.parse(EhFrame::cie_from_offset));
            }
        }
        fdes.sort_by_key(Fde::initial_address);
        let go = Pclntab::find(elf).map_or_else(Vec::new, |table| {
            table.functions().map(|function| function.range).collect()
        });
        let stubs = LINKAGE_TABLES.iter().filter_map(|name| elf.section(name));
        let stubs = stubs.map(|table| table.svma..table.svma + table.data.len() as u64).collect();
        let is_x86_64 = elf.machine() != EM_AARCH64;
        Self { frames, bases, fdes, go, stubs, is_x86_64, index: Cell::new(None) }
    }

    pub(super) fn fde(&self, svma: u64) -> Option<&Fde<'a>> {
        let above = self.fdes.partition_point(|fde| fde.initial_address() <= svma);
        self.fdes[..above].last().filter(|fde| fde.contains(svma))
    }

    fn register(&self, number: u16) -> u64 {
        if self.index.get() == Some(number) { INDEX } else { register(number) }
    }

    fn evaluate(
        &self,
        (fde, svma): (&Fde<'a>, u64),
        expression: UnwindExpression<usize>,
        start: Option<u64>,
        loads: &mut BTreeSet<u64>,
    ) -> Option<u64> {
        let expression = expression.get(&self.frames).ok()?;
        let mut evaluation = expression.evaluation(fde.cie().encoding());
        if let Some(start) = start {
            evaluation.set_initial_value(start);
        }
        let mut result = evaluation.evaluate().ok()?;
        loop {
            result = match result {
                EvaluationResult::RequiresRegister { register: Register(16), .. } => {
                    evaluation.resume_with_register(Value::Generic(svma)).ok()?
                }
                EvaluationResult::RequiresRegister { register: Register(number), .. } => {
                    evaluation.resume_with_register(Value::Generic(self.register(number))).ok()?
                }
                EvaluationResult::RequiresMemory { address, .. } => {
                    loads.insert(address);
                    evaluation.resume_with_memory(Value::Generic(word(address))).ok()?
                }
                EvaluationResult::Complete => break,
                _ => return None,
            };
        }
        match evaluation.result().first()?.location {
            Location::Address { address } => Some(address),
            _ => None,
        }
    }

    /// Returns whether the rule differs from the entry on purpose: glibc's `swapcontext` and
    /// `__start_context`, libcrypto frames that are kept in %rbp, LuaJIT's interpreter.
    fn is_amended(&self, fde: &Fde<'a>, row: &UnwindTableRow<usize>, rule: Rule) -> bool {
        let by_sp = match *row.cfa() {
            CfaRule::RegisterAndOffset { register: Register(7), offset } => Some(offset),
            _ => None,
        };
        match rule.op {
            op::FROM_CONTEXT => row.register(Register(7)).is_none(),
            op::STOP | op::STOP_CALLED => {
                row.register(Register(16)) == Some(RegisterRule::Offset(-8))
            }
            op::FP => by_sp == Some(i64::from(rule.cfa_off)),
            op::SP | op::BAD => {
                let is_block =
                    fde.len() >= BLOCK_MIN && row.start_address() == fde.initial_address();
                is_block
                    && row.end_address() == fde.end_address()
                    && by_sp > Some(8)
                    && (rule.op == op::BAD || by_sp != Some(i64::from(rule.cfa_off)))
            }
            _ => false,
        }
    }

    /// Returns whether the row is an ordinary one.
    fn is_plain(row: &UnwindTableRow<usize>) -> bool {
        let is_offset =
            |number| matches!(row.register(number), Some(RegisterRule::Offset(at)) if at % 8 == 0);
        let cfa = matches!(row.cfa(), CfaRule::RegisterAndOffset { register: Register(6 | 7), .. });
        let fp = is_offset(Register(6)) || row.register(Register(6)).is_none();
        let sp = row.register(Register(7)).is_none();
        cfa && fp && sp && row.register(Register(16)) == Some(RegisterRule::Offset(-8))
    }

    /// Returns whether a row of the entry says where rax is kept, as in functions that return to
    /// another function.
    fn returns_elsewhere(&self, fde: &Fde<'a>) -> bool {
        let mut context = UnwindContext::new();
        let Ok(mut rows) = fde.rows(&self.frames, &self.bases, &mut context) else { return false };
        while let Ok(Some(row)) = rows.next_row() {
            if row.register(Register(0)).is_some() {
                return true;
            }
        }
        false
    }

    pub(super) fn row(&self, fde: &Fde<'a>, svma: u64) -> Option<UnwindTableRow<usize>> {
        let mut context = UnwindContext::new();
        let row = fde.unwind_info_for_address(&self.frames, &self.bases, &mut context, svma);
        row.ok().cloned()
    }

    fn is_go(&self, svma: u64) -> bool {
        let above = self.go.partition_point(|function| function.start <= svma);
        self.go[..above].last().is_some_and(|function| function.contains(&svma))
    }

    /// Returns the length of the gap between entries that contains an address.
    fn gap_len(&self, svma: u64) -> u64 {
        let above = self.fdes.partition_point(|fde| fde.initial_address() <= svma);
        let before = self.fdes[..above].iter().rev().take(OVERLAPPING_MAX).map(Fde::end_address);
        let start = before.max().unwrap_or(0);
        self.fdes.get(above).map_or(u64::MAX, |fde| fde.initial_address()) - start
    }

    fn truth(&self, fde: &Fde<'a>, svma: u64) -> Truth {
        self.caller(fde, svma).unwrap_or(Truth::Other)
    }

    /// Evaluates a row that states sp, fp and pc.
    fn resumed(row: &UnwindTableRow<usize>, sp: RegisterRule<usize>, cfa: u64) -> Truth {
        let mut loads = BTreeSet::new();
        let mut value = |rule: Option<RegisterRule<usize>>| match rule {
            Some(RegisterRule::Register(number)) => Some(register(number.0)),
            Some(RegisterRule::Offset(offset)) => {
                let at = cfa.wrapping_add_signed(offset);
                loads.insert(at);
                Some(word(at))
            }
            _ => None,
        };
        let [_, _, pc] =
            [Some(sp), row.register(Register(6)), row.register(Register(16))].map(&mut value);
        pc.map_or(Truth::Other, |pc| Truth::Caller { loads, pc, rbx: None })
    }

    fn caller(&self, fde: &Fde<'a>, svma: u64) -> Option<Truth> {
        if fde.is_signal_trampoline() {
            return None;
        }
        let row = self.row(fde, svma)?;
        let mut loads = BTreeSet::new();
        let cfa = match row.cfa() {
            CfaRule::RegisterAndOffset { register: base, offset } => {
                register(base.0).wrapping_add_signed(*offset)
            }
            CfaRule::Expression(e) => self.evaluate((fde, svma), *e, None, &mut loads)?,
        };
        if let Some(sp) = row.register(Register(7)) {
            return Some(Self::resumed(&row, sp, cfa));
        }
        let pc = match row.register(Register(16)) {
            None | Some(RegisterRule::Undefined) => return Some(Truth::Root),
            Some(RegisterRule::Offset(offset)) => {
                let at = cfa.wrapping_add_signed(offset);
                if at < SP {
                    return Some(Truth::Root);
                }
                loads.insert(at);
                word(at)
            }
            Some(RegisterRule::Register(number)) => register(number.0),
            _ => return None,
        };
        match row.register(Register(6)) {
            Some(RegisterRule::Offset(offset)) => {
                loads.insert(cfa.wrapping_add_signed(offset));
            }
            Some(RegisterRule::Expression(e)) => {
                let at = self.evaluate((fde, svma), e, Some(cfa), &mut loads)?;
                loads.insert(at);
            }
            _ => {}
        }
        let rbx = match row.register(Register(3)) {
            Some(RegisterRule::Offset(offset)) => Some(cfa.wrapping_add_signed(offset)),
            _ => None,
        };
        let readable = |at: &u64| *at >= SP - 128 && at + 8 <= BOUNDS.1 && at.is_multiple_of(8);
        (loads.iter().all(readable) && cfa >= SP && cfa <= BOUNDS.1).then_some(Truth::Caller {
            loads,
            pc,
            rbx,
        })
    }
}

#[derive(Default, Debug)]
pub(super) struct Counts {
    pub(super) checked: u64,
    pub(super) bad: u64,
    pub(super) gap: u64,
    pub(super) go: u64,
    pub(super) other: u64,
    pub(super) roots: u64,
    /// Outcomes where the entry is known to be wrong.
    amended: u64,
    /// Start addresses of the entries that are known to be wrong.
    amended_fdes: BTreeSet<u64>,
    pub(super) ops: BTreeSet<u8>,
    pub(super) fp_ops: BTreeSet<u8>,
}

/// Unwinds one step from an address and compares it with gimli. Adds to the counts, or returns what
/// is wrong.
fn compare(
    snapshot: &Snapshot<'_>,
    svma: u64,
    oracle: &Oracle<'_>,
    counts: &mut Counts,
) -> Result<(), String> {
    let mut registers = Registers { sp: SP, fp: register(6), ..Registers::default() };
    registers.pc = svma + BIAS;
    let module = snapshot.module(snapshot.range(registers.pc).unwrap()).unwrap();
    let (rule, rbx_slot) = module.rule_and_rbx(svma);
    let index = u16::from(rule.op.wrapping_sub(op::INDEXED_LEAF));
    oracle.index.set((index < u16::from(op::REGISTERS)).then_some(index));
    registers.gpr = std::array::from_fn(|number| oracle.register(number as u16));
    let wrong = |what: String| Err(format!("{svma:#x} {rule:?}: {what}"));
    if oracle.is_go(svma) {
        counts.go += 1;
        return Ok(());
    }
    let Some(fde) = oracle.fde(svma) else {
        counts.gap += 1;
        let is_of_gap = matches!(rule.op, op::GAP_FP | op::GAP_GUESS | op::SIGNAL | op::STOP);
        let is_padding = oracle.gap_len(svma) < PADDING_MAX;
        let is_stub = rule.op == op::SP && oracle.stubs.iter().any(|table| table.contains(&svma));
        // The tests of `followed` say whether these are right.
        let is_followed = oracle.is_x86_64 && matches!(rule.op, op::SP | op::FP | op::FP_STD);
        return match is_of_gap || is_padding || is_stub || is_followed {
            true => Ok(()),
            false => wrong("no entry states it".into()),
        };
    };
    let row = oracle.row(fde, svma);
    if row.as_ref().is_some_and(|row| oracle.is_amended(fde, row, rule)) {
        counts.amended += 1;
        counts.amended_fdes.insert(fde.initial_address());
        return Ok(());
    }
    if rule.op == op::BAD {
        counts.bad += 1;
        let is_known = row.is_none_or(|row| !Oracle::is_plain(&row));
        let is_bad = is_known || oracle.returns_elsewhere(fde);
        return if is_bad { Ok(()) } else { wrong("it can be expressed".into()) };
    }
    let frames: [AtomicU64; 2] = Default::default();
    let mut memory = Logged::default();
    let unwound = unwind(snapshot, &registers, &mut memory, &frames);
    match oracle.truth(fde, svma) {
        Truth::Other => counts.other += 1,
        Truth::Root if unwound.end == EndReason::Root => counts.roots += 1,
        Truth::Root => return wrong(format!("{:?} is no root", unwound.end)),
        Truth::Caller { mut loads, pc, rbx } => {
            if rbx_slot != RBX_LOST {
                loads.extend(rbx);
            }
            let words = frames.each_ref().map(|word| word.load(Ordering::Relaxed));
            let is_right = words == [registers.pc, pc | RETURN_ADDRESS] && memory.0 == loads;
            if !is_right || unwound.depth != 2 {
                let read = memory.0;
                return wrong(format!("{words:x?} for {pc:x}, {read:x?} for {loads:x?}"));
            }
            counts.checked += 1;
            counts.ops.insert(rule.op);
            counts.fp_ops.insert(rule.fp_op);
        }
    }
    Ok(())
}

pub(super) fn check(bytes: &[u8], name: &str, samples: u64) -> Counts {
    let elf = Elf::parse(bytes).unwrap();
    let oracle = Oracle::new(&elf);
    let module = compile(bytes).unwrap();
    let segment = SegmentMemory::new(TableWriter::module_bytes(&module) as usize + 16384);
    let mut writer = TableWriter::new(segment.words());
    let reference = writer.add_module(&module).unwrap();
    let code: Vec<_> = elf.loads().iter().filter(|load| load.exec).collect();
    let range = |load: &&LoadSegment| {
        let start = load.svma + BIAS;
        ExecRange { start, end: start + load.mem_len, bias: BIAS, module: Some(reference) }
    };
    writer.publish(&code.iter().map(range).collect::<Vec<_>>(), &[]).unwrap();
    let tables = segment.tables();
    let snapshot = tables.snapshot().unwrap();

    let (mut counts, mut wrong) = (Counts::default(), Vec::new());
    let mut random = Random(0x1234_5678_9ABC_DEF1);
    for round in 0..samples {
        let load = code[random.below(code.len() as u64) as usize];
        let svma = if round % 2 == 0 {
            load.svma + random.below(load.file_len)
        } else {
            // Half of the addresses are near the start of a function: prologues, PLT, short
            // routines.
            let fde = &oracle.fdes[random.below(oracle.fdes.len() as u64) as usize];
            fde.initial_address() + random.below(fde.len().min(64))
        };
        wrong.extend(compare(&snapshot, svma, &oracle, &mut counts).err());
    }
    eprintln!("{name}: {counts:?} {:?}", module.statistics());
    let shown = &wrong[..wrong.len().min(SHOWN_MAX)];
    assert!(wrong.is_empty(), "{name}: {} wrong\n{}", wrong.len(), shown.join("\n"));
    let is_known = AMENDED.iter().any(|part| name.contains(part));
    let has_any = is_known || elf.section(".dynamic").is_none();
    let amended_max = if has_any { AMENDED_FDES_MAX } else { 0 };
    assert!(counts.amended_fdes.len() <= amended_max, "{name}: {:x?}", counts.amended_fdes);
    counts
}
