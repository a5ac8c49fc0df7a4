//! At random addresses of real modules, one step reads what gimli says it must.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, EndianSlice, EvaluationResult, LittleEndian,
    Location, Register, RegisterRule, UnwindContext, UnwindExpression, UnwindSection, Value,
};
use traceprof_abi::unwind::rule::op;
use traceprof_abi::unwind::tables::RBX_LOST;
use traceprof_abi::unwind::{EndReason, Memory, RETURN_ADDRESS, Registers, Snapshot, unwind};

use super::{Random, SegmentMemory, libc_path, vdso};
use crate::elf::{Elf, Load};
use crate::unwind::{ExecRange, TableWriter, compile, compile_image};

const SP: u64 = 0x7000_0000_0000;
const BOUNDS: (u64, u64) = (SP - (1 << 20), SP + (1 << 24));
const BIAS: u64 = 0x5500_0000_0000;

type Fde<'a> = gimli::FrameDescriptionEntry<EndianSlice<'a, LittleEndian>>;

/// The word at an address: distinct, and good as a CFA, a frame pointer or a return address.
fn word(avma: u64) -> u64 {
    SP + 0x10_0000 + ((avma.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20) & 0xF_FFF8)
}

fn register(number: u16) -> u64 {
    if number == 7 { SP } else { SP + 0x2000 + u64::from(number) * 0x140 }
}

#[derive(Default)]
struct Logged(BTreeSet<u64>);

impl Memory for Logged {
    fn load(&mut self, avma: u64) -> Option<u64> {
        assert!(avma >= BOUNDS.0 && avma + 8 <= BOUNDS.1, "load of {avma:#x} out of bounds");
        self.0.insert(avma);
        Some(word(avma))
    }

    fn rebound(&mut self, _: u64) -> bool {
        false
    }

    fn bounds(&self) -> (u64, u64) {
        BOUNDS
    }
}

/// What gimli says: the words read and the return address.
#[derive(Debug, PartialEq)]
enum Truth {
    Caller {
        loads: BTreeSet<u64>,
        pc: u64,
        rbx: Option<u64>,
    },
    Root,
    /// Outside of what one step of ours is to do: a CFA or slot out of the stack, a signal frame.
    Other,
}

struct Oracle<'a> {
    frames: EhFrame<EndianSlice<'a, LittleEndian>>,
    bases: BaseAddresses,
    fdes: Vec<Fde<'a>>,
}

impl<'a> Oracle<'a> {
    fn new(elf: &Elf<'a>) -> Self {
        let section = elf.section(".eh_frame").expect(".eh_frame");
        let text = elf.section(".text").map_or(0, |text| text.svma);
        let bases = BaseAddresses::default().set_eh_frame(section.svma).set_text(text);
        let frames = EhFrame::new(section.data, LittleEndian);
        let mut fdes = Vec::new();
        let mut entries = frames.entries(&bases);
        while let Some(entry) = entries.next().unwrap() {
            if let CieOrFde::Fde(partial) = entry {
                fdes.push(partial.parse(EhFrame::cie_from_offset).unwrap());
            }
        }
        fdes.sort_by_key(Fde::initial_address);
        Self { frames, bases, fdes }
    }

    fn fde(&self, svma: u64) -> Option<&Fde<'a>> {
        let above = self.fdes.partition_point(|fde| fde.initial_address() <= svma);
        self.fdes[..above].last().filter(|fde| fde.contains(svma))
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
                    evaluation.resume_with_register(Value::Generic(register(number))).ok()?
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

    fn truth(&self, fde: &Fde<'a>, svma: u64) -> Truth {
        self.caller(fde, svma).unwrap_or(Truth::Other)
    }

    fn caller(&self, fde: &Fde<'a>, svma: u64) -> Option<Truth> {
        if fde.is_signal_trampoline() {
            return None;
        }
        let mut context = UnwindContext::new();
        let row = fde
            .unwind_info_for_address(&self.frames, &self.bases, &mut context, svma)
            .ok()?
            .clone();
        let mut loads = BTreeSet::new();
        let cfa = match row.cfa() {
            CfaRule::RegisterAndOffset { register: base, offset } => {
                register(base.0).wrapping_add_signed(*offset)
            }
            CfaRule::Expression(e) => self.evaluate((fde, svma), *e, None, &mut loads)?,
        };
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
struct Counts {
    checked: u64,
    bad: u64,
    gap: u64,
    other: u64,
    roots: u64,
    ops: BTreeSet<u8>,
}

/// Unwinds one step from an address and compares; adds to the counts.
fn compare(snapshot: &Snapshot<'_>, svma: u64, oracle: &Oracle<'_>, counts: &mut Counts) {
    let mut registers = Registers { sp: SP, fp: register(6), ..Registers::default() };
    registers.gpr = std::array::from_fn(|number| register(number as u16));
    registers.pc = svma + BIAS;
    let module = snapshot.module(snapshot.range(registers.pc).unwrap()).unwrap();
    let (rule, rbx_slot) = module.rule_and_rbx(svma);
    counts.ops.insert(rule.op);
    let Some(fde) = oracle.fde(svma) else {
        counts.gap += 1;
        return;
    };
    if rule.op == op::BAD {
        counts.bad += 1;
        return;
    }
    let frames: [AtomicU64; 2] = Default::default();
    let mut memory = Logged::default();
    let unwound = unwind(snapshot, &registers, &mut memory, &frames);
    match oracle.truth(fde, svma) {
        Truth::Other => counts.other += 1,
        Truth::Root => {
            assert_eq!(unwound.end, EndReason::Root, "{svma:#x} {rule:?}");
            counts.roots += 1;
        }
        Truth::Caller { mut loads, pc, rbx } => {
            assert_eq!(frames[0].load(Ordering::Relaxed), registers.pc);
            assert_eq!(unwound.depth, 2, "{svma:#x} {rule:?} {:?}", unwound.end);
            let caller = frames[1].load(Ordering::Relaxed);
            assert_eq!(caller, pc | RETURN_ADDRESS, "{svma:#x} {rule:?}");
            if rbx_slot != RBX_LOST {
                loads.extend(rbx);
            }
            assert_eq!(memory.0, loads, "{svma:#x} {rule:?}");
            counts.checked += 1;
        }
    }
}

fn check(bytes: &[u8], name: &str, samples: u64) -> Counts {
    let elf = Elf::parse(bytes).unwrap();
    let oracle = Oracle::new(&elf);
    let module = compile(bytes).unwrap();
    let segment = SegmentMemory::new(TableWriter::module_bytes(&module) as usize + 16384);
    let mut writer = TableWriter::new(segment.words());
    let reference = writer.add_module(&module).unwrap();
    let code: Vec<_> = elf.loads().iter().filter(|load| load.exec).collect();
    let range = |load: &&Load| {
        let start = load.svma + BIAS;
        ExecRange { start, end: start + load.mem_len, bias: BIAS, module: Some(reference) }
    };
    writer.publish(&code.iter().map(range).collect::<Vec<_>>(), &[]).unwrap();
    let tables = segment.tables();
    let snapshot = tables.snapshot().unwrap();

    let mut counts = Counts::default();
    let mut random = Random(0x1234_5678_9ABC_DEF1);
    for round in 0..samples {
        let load = code[random.below(code.len() as u64) as usize];
        let svma = if round % 2 == 0 {
            load.svma + random.below(load.file_len)
        } else {
            // Half of them near the start of a function: prologues, PLT, short routines.
            let fde = &oracle.fdes[random.below(oracle.fdes.len() as u64) as usize];
            fde.initial_address() + random.below(fde.len().min(64))
        };
        compare(&snapshot, svma, &oracle, &mut counts);
    }
    eprintln!("{name}: {counts:?} {:?}", module.statistics());
    let seen = counts.checked + counts.gap;
    assert!(seen * 10 > samples * 9, "{name}: too little was compared");
    assert!(counts.checked * 2 > samples, "{name}: too little was compared");
    assert!(counts.bad * 200 < samples, "{name}: too many rules cannot be expressed");
    counts
}

fn check_file(path: &Path) -> Option<Counts> {
    let Ok(bytes) = std::fs::read(path) else {
        eprintln!("skipped: {} is not there", path.display());
        return None;
    };
    Some(check(&bytes, &path.display().to_string(), 20_000))
}

#[test]
fn libc_is_stepped_as_its_call_frame_information_says() {
    check_file(&libc_path()).unwrap();
    let table = compile(&std::fs::read(libc_path()).unwrap()).unwrap();
    for expected in [op::SP, op::FP_STD, op::SIGNAL, op::STOP, op::GAP_GUESS] {
        assert!(table.rules.iter().any(|rule| rule.op == expected), "no rule with op {expected}");
    }
}

#[test]
fn this_program_is_stepped_as_its_call_frame_information_says() {
    check_file(&std::env::current_exe().unwrap());
}

#[test]
fn distribution_modules_are_stepped_as_their_call_frame_information_says() {
    let lib = Path::new("/usr/lib/x86_64-linux-gnu");
    for path in [
        lib.join("libcrypto.so.3"),
        lib.join("libgmp.so.10"),
        lib.join("ld-linux-x86-64.so.2"),
        "/usr/bin/python3".into(),
        "/usr/lib/gcc/x86_64-linux-gnu/12/cc1".into(),
        "/usr/bin/perl".into(),
        "/usr/bin/git".into(),
    ] {
        check_file(&path);
    }
}

#[test]
fn vdso_has_the_same_table_from_its_image_as_from_its_bytes() {
    let bytes = vdso();
    let image = compile_image(&bytes).unwrap();
    assert!(image.statistics().fdes > 0, "{:?}", image.statistics());
    let file = compile(&bytes).unwrap();
    assert_eq!(image.statistics().rows, file.statistics().rows);
    assert_eq!((&image.ids, &image.lows, &image.blocks), (&file.ids, &file.lows, &file.blocks));
    let counts = check(&bytes, "vdso", 5_000);
    assert!(counts.checked > 0);
}
