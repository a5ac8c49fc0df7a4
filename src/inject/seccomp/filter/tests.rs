//! Tests of every instruction that seccomp accepts, with the kernel's own answers for comparison.
//!
//! # Safety
//! A forked child installs a filter, makes one call that touches no memory, and leaves by `_exit`.
#![allow(unsafe_code, reason = "forks, and makes a bare system call in the child")]

use std::io;

use super::*;

const RETURN_ACCUMULATOR: FilterInstruction = op(0x16, 0);

const fn op(code: u16, operand: u32) -> FilterInstruction {
    FilterInstruction { code, jump_true: 0, jump_false: 0, operand }
}

const fn jump(code: u16, operand: u32, jump_true: u8, jump_false: u8) -> FilterInstruction {
    FilterInstruction { code, jump_true, jump_false, operand }
}

fn question(args: [Option<u64>; 6]) -> Question {
    Question { number: 77, arch: 0xc000_003e, args }
}

fn all(program: &[FilterInstruction]) -> Option<Vec<u32>> {
    let args = [Some(0x1_0000_0002), None, Some(u64::MAX), Some(0), None, Some(5)];
    answers(program, &question(args)).map(|all| all.into_iter().collect())
}

/// Checks the accumulator after the instructions.
fn check(program: &[FilterInstruction], expected: u32) {
    let whole = [program, &[RETURN_ACCUMULATOR]].concat();
    assert_eq!(all(&whole), Some(vec![expected]), "{program:?}");
}

#[test]
fn loads_and_stores() {
    for (offset, expected) in [(0, 77), (4, 0xc000_003e), (16, 2), (20, 1), (32, u32::MAX), (56, 5)]
    {
        check(&[op(0x20, offset)], expected);
    }
    check(&[op(0x80, 0)], 64);
    check(&[op(0x81, 0), op(0x87, 0)], 64);
    check(&[op(0x00, 9)], 9);
    check(&[op(0x01, 9), op(0x87, 0)], 9);
    check(&[op(0x00, 9), op(0x07, 0), op(0x00, 1), op(0x87, 0)], 9);
    check(&[op(0x00, 9), op(0x02, 15), op(0x00, 1), op(0x60, 15)], 9);
    check(&[op(0x01, 9), op(0x03, 0), op(0x61, 0), op(0x87, 0)], 9);
    check(&[], 0);
}

#[test]
fn arithmetic_with_a_constant_and_with_the_index() {
    for (constant, index, expected) in [
        (0x04, 0x0c, 7 + 3),
        (0x14, 0x1c, 7 - 3),
        (0x24, 0x2c, 7 * 3),
        (0x34, 0x3c, 7 / 3),
        (0x44, 0x4c, 7 | 3),
        (0x54, 0x5c, 7 & 3),
        (0x64, 0x6c, 7 << 3),
        (0x74, 0x7c, 7 >> 3),
        (0xa4, 0xac, 7 ^ 3),
    ] {
        check(&[op(0x00, 7), op(constant, 3)], expected);
        check(&[op(0x00, 7), op(0x01, 3), op(index, 0)], expected);
    }
    check(&[op(0x00, 7), op(0x84, 0)], 7u32.wrapping_neg());
    check(&[op(0x00, 0), op(0x14, 1)], u32::MAX);
    // Division by an index of zero ends the program with 0.
    assert_eq!(all(&[op(0x00, 7), op(0x3c, 0), op(0x06, 5)]), Some(vec![0]));
}

#[test]
fn jumps_both_ways() {
    for (code, operand, holds) in [
        (0x15, 7, true),
        (0x15, 8, false),
        (0x25, 6, true),
        (0x25, 7, false),
        (0x35, 7, true),
        (0x35, 8, false),
        (0x45, 2, true),
        (0x45, 8, false),
    ] {
        let ends = [op(0x06, 1), op(0x06, 2)];
        let constant = [&[op(0x00, 7), jump(code, operand, 0, 1)], &ends[..]].concat();
        let expected = Some(vec![if holds { 1 } else { 2 }]);
        assert_eq!(all(&constant), expected, "{code:#x} {operand}");
        let start = [op(0x01, operand), op(0x00, 7), jump(code | 8, 0, 0, 1)];
        assert_eq!(all(&[&start, &ends[..]].concat()), expected, "{code:#x} {operand} by index");
    }
    assert_eq!(all(&[op(0x05, 1), op(0x06, 1), op(0x06, 2)]), Some(vec![2]));
}

#[test]
fn unknown_values_take_both_branches() {
    let unknown = op(0x20, 24);
    let either = [unknown, jump(0x15, 1, 0, 1), op(0x06, 1), op(0x06, 2)];
    assert_eq!(all(&either), Some(vec![1, 2]));
    // An upper half that no value of the argument can have set, and masks without bits.
    check(&[unknown, op(0x54, 0)], 0);
    assert_eq!(all(&[unknown, RETURN_ACCUMULATOR]), None);
    assert_eq!(
        all(&[op(0x20, 8), jump(0x35, 9, 0, 1), op(0x06, 1), op(0x06, 2)]),
        Some(vec![1, 2])
    );
    // Arithmetic on an unknown value is unknown.
    let moved = [unknown, op(0x04, 1), op(0x02, 0), op(0x61, 0), jump(0x1d, 0, 0, 1)];
    let ends = [op(0x06, 1), op(0x06, 2)];
    assert_eq!(all(&[&moved, &ends[..]].concat()), Some(vec![1, 2]));
}

#[test]
fn programs_that_the_kernel_rejects_have_no_answer() {
    for program in [
        &[][..],
        &[op(0x00, 1)],
        &[op(0x20, 64), RETURN_ACCUMULATOR],
        &[op(0x20, 2), RETURN_ACCUMULATOR],
        &[op(0x60, 16), RETURN_ACCUMULATOR],
        &[op(0x94, 3), RETURN_ACCUMULATOR],
        &[op(0x28, 0), RETURN_ACCUMULATOR],
        &[op(0x05, u32::MAX)],
    ] {
        assert_eq!(all(program), None, "{program:?}");
    }
}

/// Thirty branches on unknown values have a thousand million paths, and few states.
#[test]
fn paths_that_join_again_are_followed_once() {
    let mut program = Vec::new();
    for bit in 0..30 {
        program.extend([op(0x20, 24), jump(0x45, 1 << bit, 0, 0)]);
    }
    program.push(op(0x06, 3));
    assert_eq!(all(&program), Some(vec![3]));
}

/// Installs the filter in a child, which makes the call. `getpid` stands for any call.
fn kernel_errno(program: &[FilterInstruction], args: [u64; 6]) -> i32 {
    // SAFETY: the child makes system calls only, and leaves by `_exit`.
    match unsafe { nix::unistd::fork() }.unwrap() {
        nix::unistd::ForkResult::Child => {
            let filter = libc::sock_fprog {
                len: program.len() as u16,
                filter: program.as_ptr().cast::<libc::sock_filter>().cast_mut(),
            };
            // SAFETY: takes numbers.
            unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
            let mode = libc::SECCOMP_MODE_FILTER;
            // SAFETY: reads the program, which lives across the call.
            let done = unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter) };
            let [a, b, c, d, e, f] = args;
            // SAFETY: touches no memory whatever its arguments.
            let got = unsafe { libc::syscall(libc::SYS_getpid, a, b, c, d, e, f) };
            let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
            let reported = if done != 0 {
                255
            } else if got < 0 {
                errno as u8
            } else {
                0
            };
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(reported)) }
        }
        nix::unistd::ForkResult::Parent { child } => {
            match nix::sys::wait::waitpid(child, None).unwrap() {
                nix::sys::wait::WaitStatus::Exited(_, code) => code,
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Random arithmetic on the arguments. The kernel and the interpreter return its result as an
/// errno.
#[test]
fn kernel_gives_the_same_answers() {
    const CALCULATIONS: [u16; 18] = [
        0x04, 0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x34, 0x44, 0x4c, 0x54, 0x5c, 0x64, 0x74, 0xa4, 0xac,
        0x84, 0x07, 0x87,
    ];
    const JUMPS: [u16; 8] = [0x15, 0x1d, 0x25, 0x2d, 0x35, 0x3d, 0x45, 0x4d];
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    for round in 0..60 {
        let args: [u64; 6] = std::array::from_fn(|_| next(1 << 33));
        // All other calls pass: the child makes more calls than this one.
        let getpid = libc::SYS_getpid as u32;
        let mut program = vec![op(0x20, 0), jump(0x15, getpid, 1, 0), op(0x06, 0x7fff_0000)];
        program.push(op(0x01, next(1 << 32) as u32));
        for _ in 0..12 {
            program.push(match next(4) {
                0 => op(0x20, 16 + 4 * next(12) as u32),
                1 => jump(
                    JUMPS[next(8) as usize],
                    next(1 << 32) as u32,
                    next(2) as u8,
                    next(2) as u8,
                ),
                _ => op(CALCULATIONS[next(18) as usize], 1 + next(31) as u32),
            });
        }
        // A last jump may skip one instruction.
        program.extend([
            op(0x04, 0),
            op(0x04, 0),
            op(0x54, 0x3f),
            op(0x44, 0x0005_0000),
            RETURN_ACCUMULATOR,
        ]);
        let asked = Question { number: getpid, arch: 0xc000_003e, args: args.map(Some) };
        let ours = answers(&program, &asked).unwrap();
        let expected = ours.into_iter().next().unwrap() as i32 & 0xffff;
        assert_eq!(kernel_errno(&program, args), expected, "round {round}: {program:?} {args:x?}");
    }
}
