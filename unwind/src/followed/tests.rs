//! The states of code whose call frame information says what they are, and of short pieces.

use std::path::Path;

use gimli::{BaseAddresses, CfaRule, CieOrFde, EhFrame, LittleEndian, Register, RegisterRule};
use gimli::{EndianSlice, UnwindContext, UnwindSection, UnwindTableRow};
use object::{Object, ObjectSection};
use traceprof_abi::unwind::Rule;
use traceprof_abi::unwind::rule::{fp_op, op};

use super::flow::GapFlow;
use super::parts;
use super::state::{FrameState, Rbp};

const RSP: Register = Register(7);
const RBP: Register = Register(6);
const SVMA: u64 = 0x10_0000;

/// How many bytes of code have the state that their information says.
#[derive(Debug, Default)]
struct Agreement {
    right: u64,
    wrong: u64,
    unknown: u64,
    /// The information is an expression, or of a register that is not followed.
    other: u64,
}

/// Returns whether a state is what a row says, `None` if the state or the row does not say it.
fn agrees(state: &FrameState, row: &UnwindTableRow<usize>) -> Option<bool> {
    state.rule()?;
    let (sp, rbp, saved) = state.parts();
    let is_cfa = match *row.cfa() {
        CfaRule::RegisterAndOffset { register: RSP, offset } => sp? == offset as i32,
        CfaRule::RegisterAndOffset { register: RBP, offset } => match rbp {
            Rbp::Frame(distance) => distance == offset as i32,
            _ => return None,
        },
        _ => return None,
    };
    let is_saved = match row.register(RBP) {
        Some(RegisterRule::Offset(slot)) => rbp == Rbp::Caller || saved == Some(-slot as i32),
        Some(RegisterRule::SameValue) | None => rbp == Rbp::Caller || saved.is_some(),
        _ => true,
    };
    Some(is_cfa && is_saved)
}

/// Compares the states of a module's code with its call frame information. The functions to begin
/// with are those that the information lists, or all but one in so many.
fn agreement(path: &Path, one_in: usize) -> Agreement {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let file = object::File::parse(&*bytes).expect("a module");
    let section = |name| file.section_by_name(name).expect("a section");
    let (text, frames) = (section(".text"), section(".eh_frame"));
    let (svma, code) = (text.address(), text.data().expect("code"));
    let code = &code[..code.len().min(super::CODE_MAX)];
    let of = EhFrame::from(EndianSlice::new(frames.data().expect("entries"), LittleEndian));
    let bases = BaseAddresses::default().set_eh_frame(frames.address()).set_text(svma);
    let mut functions = Vec::new();
    let mut entries = of.entries(&bases);
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let fde = partial.parse(EhFrame::cie_from_offset).expect("an entry");
        if (svma..svma + code.len() as u64).contains(&fde.initial_address()) {
            functions.push(fde);
        }
    }
    functions.sort_by_key(|fde| fde.initial_address());
    let starts = functions.iter().map(|fde| (fde.initial_address() - svma) as u32).enumerate();
    let starts: Vec<u32> =
        starts.filter(|(index, _)| (index + 1) % one_in != 0).map(|(_, start)| start).collect();
    let mut states = vec![None; code.len()];
    for (at, len, state) in GapFlow::of(code, svma, &starts).known() {
        states[at as usize..][..usize::from(len)].fill(Some(state));
    }
    let mut found = Agreement::default();
    let mut context = UnwindContext::new();
    for fde in &functions {
        let mut rows = fde.rows(&of, &bases, &mut context).expect("rows");
        while let Ok(Some(row)) = rows.next_row() {
            for at in row.start_address() - svma..row.end_address() - svma {
                match states.get(at as usize).map(Option::as_ref) {
                    Some(None) => found.unknown += 1,
                    Some(Some(state)) => match agrees(state, row) {
                        Some(true) => found.right += 1,
                        Some(false) => found.wrong += 1,
                        None => found.other += 1,
                    },
                    None => {}
                }
            }
        }
    }
    eprintln!("{}, without one in {one_in}: {found:?}", path.display());
    found
}

/// In libc some of the information is wrong: functions of GMP push registers and do not say so.
#[test]
fn code_has_the_states_that_its_call_frame_information_says() {
    for path in ["/usr/lib/x86_64-linux-gnu/libc.so.6", "/usr/bin/python3", "/usr/bin/git"] {
        let all = agreement(Path::new(path), usize::MAX);
        assert!(all.wrong * 1000 < all.right, "{path}: {all:?}");
        assert!(all.unknown * 5 < all.right, "{path}: {all:?}");
        // Functions that nobody lists are found by their calls, and behind the ends of others.
        let some = agreement(Path::new(path), 3);
        assert!(some.wrong * 500 < some.right, "{path}: {some:?}");
        assert!(some.unknown * 3 < some.right, "{path}: {some:?}");
    }
}

fn sp(cfa_off: i32, fp_off: i16) -> Rule {
    let fp_op = if fp_off == 0 { fp_op::SAME } else { fp_op::AT_CFA };
    Rule { op: op::SP, fp_op, fp_off, cfa_off }
}

/// Returns the rules of code that has a function at its start.
fn rules(code: &[u8]) -> Vec<(u32, Rule)> {
    let parts = parts(code, SVMA, &[0]);
    parts.into_iter().map(|(range, rule)| (range.start, rule)).collect()
}

#[test]
fn pushes_and_frames_are_counted() {
    // push %rbp; push %rbx; sub $24,%rsp; xor %ebp,%ebp; add $24,%rsp; pop %rbx; pop %rbp; ret
    let code =
        [0x55, 0x53, 0x48, 0x83, 0xEC, 24, 0x31, 0xED, 0x48, 0x83, 0xC4, 24, 0x5B, 0x5D, 0xC3];
    let same = |cfa_off| sp(cfa_off, 0);
    let expected = [
        (0, same(8)),
        (1, same(16)),
        (2, same(24)),
        (6, same(48)),
        (8, sp(48, -2)),
        (12, sp(24, -2)),
        (13, sp(16, -2)),
        (14, same(8)),
    ];
    assert_eq!(rules(&code), expected);
}

#[test]
fn a_frame_of_variable_size_is_found_by_rbp() {
    // push %rbp; mov %rsp,%rbp; sub %rdi,%rsp; nop; leave; ret
    let code = [0x55, 0x48, 0x89, 0xE5, 0x48, 0x29, 0xFC, 0x90, 0xC9, 0xC3];
    let expected =
        [(0, sp(8, 0)), (1, sp(16, 0)), (4, sp(16, -2)), (7, Rule::FP_STD), (9, sp(8, 0))];
    assert_eq!(rules(&code), expected);
}

#[test]
fn code_that_does_not_return_to_its_caller_has_no_rule() {
    // push %rax; ret, and add $8,%rsp; ret
    for code in [&[0x50, 0xC3][..], &[0x48, 0x83, 0xC4, 8, 0xC3]] {
        assert_eq!(rules(code), [], "{code:x?}");
    }
    // mov %rax,(%rsp); ret
    assert!(!rules(&[0x48, 0x89, 0x04, 0x24, 0xC3]).iter().any(|(at, _)| *at == 4));
    // test %edi,%edi; je +1; push %rax; ret: one path is right, and the other is not.
    assert_eq!(rules(&[0x85, 0xFF, 0x74, 1, 0x50, 0xC3]), []);
}

#[test]
fn code_behind_a_call_that_does_not_return_is_a_function_of_its_own() {
    // push %rax; call +12: a function that never returns
    let mut code = vec![0x50, 0xE8, 12, 0, 0, 0];
    // push %rbx; push %rcx; pop %rcx; pop %rbx; ret
    code.extend([0x53, 0x51, 0x59, 0x5B, 0xC3]);
    code.resize(18, 0xCC);
    // push %rax; call itself; hlt
    code.extend([0x50, 0xE8, 0xF9, 0xFF, 0xFF, 0xFF, 0xF4]);
    let found = rules(&code);
    let rule = |at: u32| found.iter().rev().find(|(start, _)| *start <= at).map(|it| it.1);
    assert_eq!([6, 7, 8].map(rule), [Some(sp(8, 0)), Some(sp(16, 0)), Some(sp(24, 0))]);
    assert_eq!([0, 1, 19].map(rule), [Some(sp(8, 0)), Some(sp(16, 0)), Some(sp(16, 0))]);
}

#[test]
fn targets_of_a_jump_table_have_the_state_of_the_jump() {
    // sub $24,%rsp; jmp *%rax; two targets: nop; add $24,%rsp; ret
    let target = [0x89, 0xC0, 0x48, 0x83, 0xC4, 24, 0xC3];
    let code = [&[0x48, 0x83, 0xEC, 24, 0xFF, 0xE0][..], &target, &target].concat();
    // The jump itself proves nothing: the function never calls.
    let expected = [(6, sp(32, 0)), (12, sp(8, 0)), (13, sp(32, 0)), (19, sp(8, 0))];
    assert_eq!(rules(&code), expected);
}

#[test]
fn any_bytes_take_bounded_work() {
    let mut seed = 1_u64;
    for len in [0, 1, 100, 100_000] {
        let mut random = || {
            seed = seed.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            (seed >> 56) as u8
        };
        let code: Vec<u8> = (0..len).map(|_| random()).collect();
        let starts: Vec<u32> = (0..len as u32 * 2).step_by(7).collect();
        for (range, _) in parts(&code, u64::MAX - 1000, &starts) {
            assert!(range.start < range.end && range.end as usize <= code.len());
        }
        // Each byte a function, each instruction a jump: back, and to the next one.
        let jumps = [0xEB, 0xFE].repeat(len / 2);
        parts(&jumps, SVMA, &starts);
        let branches = [0x74, 0x80].repeat(len / 2);
        parts(&branches, SVMA, &starts);
    }
}
