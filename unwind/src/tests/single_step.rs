//! Programs under the instruction-exact oracle: C in many builds, the hand-written code of
//! libcrypto, and the exceptions and streams of libstdc++.

use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;
use traceprof_abi::layout::DEPTH_MAX;
use traceprof_abi::runtime::lua::LuaStacks;
use traceprof_abi::unwind::{EndReason, RETURN_ADDRESS, Registers};

use super::SegmentMemory;
use super::oracle::{Oracle, Tally};
use crate::test_turn::turn;

const LIBCRYPTO: &str = "/usr/lib/x86_64-linux-gnu/libcrypto.so.3";

/// Builds a program of one file with `flags`.
fn compiled(directory: &Path, (file, source): (&str, &str), flags: &[&str]) -> PathBuf {
    let code = directory.join(file);
    std::fs::write(&code, source).unwrap();
    let program = directory.join("program");
    compile((&code, &program), if file.ends_with(".cpp") { "c++" } else { "cc" }, flags);
    program
}

fn compile((code, program): (&Path, &Path), compiler: &str, flags: &[&str]) {
    let mut command = Command::new(compiler);
    let status = command.arg("-o").arg(program).arg(code).args(flags).status();
    assert!(status.expect("a compiler is needed").success(), "{flags:?}");
}

/// Runs at full speed to the deepest recursion, compares there, and runs on to the last mark.
fn recurse(oracle: &mut Oracle<'_>) -> Registers {
    assert_eq!(oracle.child.run(), Some(Signal::SIGTRAP));
    let registers = oracle.child.registers();
    let unwound = oracle.unwind(&registers);
    assert_eq!((unwound.depth, unwound.end), (DEPTH_MAX, EndReason::Depth));
    assert_eq!((unwound.loop_stack, unwound.lua), (0, LuaStacks::default()));
    let words = oracle.words(unwound.depth);
    assert!(words[1] & RETURN_ADDRESS != 0);
    assert!(words[1..].iter().all(|&word| word == words[1]), "one function, one call");
    assert_eq!(oracle.child.run(), Some(Signal::SIGTRAP));
    oracle.child.registers()
}

/// Runs to the first mark, which is in main.
fn run_to_main(oracle: &mut Oracle<'_>) -> Registers {
    assert_eq!(oracle.child.run(), Some(Signal::SIGTRAP));
    oracle.child.publish(&mut oracle.writer);
    let registers = oracle.child.registers();
    oracle.seed(&registers);
    registers
}

/// Steps `callers.c` built with `flags`, from its first instruction or from main.
fn check_callers(flags: &[&str], from_start: bool) -> Tally {
    let directory = tempfile::tempdir().unwrap();
    let program = compiled(directory.path(), ("callers.c", include_str!("callers.c")), flags);
    let segment = SegmentMemory::new(16 << 20);
    let mut command = Command::new(program);
    command.env_clear();
    let mut oracle = Oracle::new(command, &segment);
    let mut registers;
    if from_start {
        registers = oracle.child.registers();
        assert!(oracle.step_to_mark(&mut registers));
    } else {
        registers = run_to_main(&mut oracle);
    }
    assert!(oracle.step_to_mark(&mut registers), "stepped to the pause");
    registers = recurse(&mut oracle);
    assert!(!oracle.step_to_mark(&mut registers), "stepped to the end");
    let tally = oracle.tally;
    tally.assert_exact(&format!("{flags:?}"));
    assert!(tally.signal_frames > 100);
    assert!(tally.resumed > 0, "longjmp was stepped through");
    tally
}

#[test]
fn lazily_bound_program_is_exact_from_its_first_instruction() {
    let tally = check_callers(&["-O2", "-fomit-frame-pointer", "-Wl,-z,lazy"], true);
    assert!(tally.steps > 50_000);
}

#[test]
fn programs_are_exact_however_they_are_compiled() {
    let ways = [
        &["-O0"][..],
        &["-Os", "-fomit-frame-pointer", "-Wl,-z,now"],
        &["-O3", "-fno-omit-frame-pointer"],
        &["-O1", "-fcf-protection=full", "-mno-red-zone", "-Wl,-z,lazy,-z,ibtplt"],
        &["-O2", "-static"],
        &["-O2", "-static", "-fcf-protection=full", "-Wl,-z,ibtplt"],
        // Linkers other than GNU's do not describe the frames of linkage tables.
        &["-O2", "-Wl,-z,lazy,--no-ld-generated-unwind-info"],
        // The program itself has only .debug_frame.
        &["-O2", "-g", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables"],
    ];
    for way in turn(0..ways.len(), 2) {
        let tally = check_callers(ways[way], false);
        assert!(tally.steps > 5_000);
    }
}

/// The C library has no unwind information. What cannot be proved is a gap.
#[test]
fn code_that_nothing_describes_is_never_wrong() {
    let directory = tempfile::tempdir().unwrap();
    let code = directory.path().join("callers.c");
    std::fs::write(&code, include_str!("callers.c")).unwrap();
    for flags in [["-static", "-O2"], ["-static", "-O1"]] {
        let program = directory.path().join("program");
        compile((&code, &program), "musl-gcc", &flags);
        let segment = SegmentMemory::new(16 << 20);
        let mut command = Command::new(program);
        command.env_clear();
        let mut oracle = Oracle::new(command, &segment);
        let mut registers = run_to_main(&mut oracle);
        assert!(oracle.step_to_mark(&mut registers), "stepped to the pause");
        oracle.tally.assert_never_wrong(&format!("{flags:?}"));
        assert!(oracle.tally.exact * 100 > oracle.tally.steps * 99);
        assert!(oracle.tally.steps > 5_000);
    }
}

/// Steps between the marks of a program, and to its end.
fn check_library(name: &str, command: Command, library: &str, least: u64) {
    let segment = SegmentMemory::new(64 << 20);
    let mut oracle = Oracle::new(command, &segment);
    let mut registers = run_to_main(&mut oracle);
    assert!(oracle.step_to_mark(&mut registers), "{name}: stepped to the last mark");
    let tally = oracle.tally;
    tally.assert_exact(name);
    let of_library = |(module, _): &(&String, &u64)| module.starts_with(library);
    let inside: u64 = tally.modules.iter().filter(of_library).map(|(_, steps)| steps).sum();
    assert!(inside > least, "{name}: {inside} instructions of {library}");
}

/// Steps parts of `crypto.c`, with the processor features that libcrypto may use in
/// OPENSSL_ia32cap's syntax.
fn check_crypto(abilities: &str, parts: &str) {
    assert!(Path::new(LIBCRYPTO).exists(), "{LIBCRYPTO} is needed: install libssl3");
    let directory = tempfile::tempdir().unwrap();
    let source = ("crypto.c", include_str!("crypto.c"));
    let program = compiled(directory.path(), source, &["-O2", LIBCRYPTO]);
    let mut command = Command::new(&program);
    command.env_clear().arg(parts);
    if !abilities.is_empty() {
        command.env("OPENSSL_ia32cap", abilities);
    }
    let name = format!("libcrypto {parts} {abilities}");
    check_library(&name, command, "libcrypto.so.3", 20_000);
}

#[test]
fn hand_written_cryptography_is_exact() {
    check_crypto("", "hcne");
}

#[test]
fn cryptography_for_old_processors_is_exact() {
    check_crypto("~0x200000200000000:~0x20000020", "hc");
}

#[test]
fn exceptions_and_streams_are_exact() {
    let directory = tempfile::tempdir().unwrap();
    let source = ("streams.cpp", include_str!("streams.cpp"));
    let flags = ["-O2", "-Wl,-z,lazy"];
    let program = compiled(directory.path(), source, &flags);
    let mut command = Command::new(&program);
    command.env_clear();
    check_library(&format!("{flags:?}"), command, "libstdc++.so.6.", 10_000);
}
