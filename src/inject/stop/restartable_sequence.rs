//! Restartable sequences (rseq) of a stopped thread.
//!
//! If the tracer moved a thread inside a sequence away and back, the kernel would forget the
//! sequence. The sequence would then commit although other threads ran on its processor. So the
//! thread continues where the kernel would continue it: at the address for aborted sequences.
//!
//! # Safety
//! Only a test has unsafe code: a sequence in assembly, which nothing runs.

use std::os::fd::AsFd;

use crate::elf::Elf;
use crate::inject::ptrace::{Tracee, read_part};
use crate::proc;

/// The length of a descriptor (`struct rseq_cs`).
const DESCRIPTOR_LEN: usize = 32;
/// The section in which the programs that use sequences declare all of them.
const SECTION: &str = "__rseq_cs";
/// More sequences than any module has.
const SECTION_LEN_MAX: usize = 1 << 20;

/// Returns the address at which a thread that was interrupted at `pc` must continue, if it was
/// inside a restartable sequence.
pub(super) fn abort(tracee: &Tracee, pc: u64) -> Option<u64> {
    match tracee.rseq() {
        Ok(area) => active(tracee, area?, pc),
        // Kernels before 5.13 do not tell the area.
        Err(_) => declared(tracee.tid(), pc),
    }
}

/// Looks at the sequence that the thread has announced in its area.
fn active(tracee: &Tracee, area: u64, pc: u64) -> Option<u64> {
    let mut pointer = [0; 8];
    tracee.read(area + 8, &mut pointer).ok()?;
    let descriptor = u64::from_le_bytes(pointer);
    if descriptor == 0 {
        return None;
    }
    let mut bytes = [0; DESCRIPTOR_LEN];
    tracee.read(descriptor, &mut bytes).ok()?;
    abort_of(&bytes, pc)
}

/// Looks for the sequence among those that the code's module declares.
fn declared(tid: i32, pc: u64) -> Option<u64> {
    let mappings = proc::mappings(tid).ok()?;
    let code = mappings.iter().find(|mapping| (mapping.start..mapping.end).contains(&pc))?;
    if code.inode == 0 {
        return None;
    }
    let file = proc::map_file(proc::open_mapping(tid, code).ok()?.as_fd()).ok()?;
    let elf = Elf::parse(&file).ok()?;
    let section = elf.section(SECTION)?;
    let bias = elf.bias(code.start, code.file_offset, code.exec)?;
    // The loader has relocated the descriptors in memory, and not those in the file.
    let mut bytes = vec![0; section.data.len().min(SECTION_LEN_MAX)];
    let got = read_part(tid, section.svma.wrapping_add(bias), &mut bytes);
    bytes[..got].chunks_exact(DESCRIPTOR_LEN).find_map(|descriptor| abort_of(descriptor, pc))
}

/// Returns the abort address of a descriptor whose sequence contains the address.
fn abort_of(descriptor: &[u8], pc: u64) -> Option<u64> {
    let (words, _) = descriptor.as_chunks();
    let [_, start, length, abort] = words else { return None };
    let [start, length, abort] = [start, length, abort].map(|word| u64::from_le_bytes(*word));
    (pc.wrapping_sub(start) < length).then_some(abort)
}

#[cfg(test)]
#[allow(unsafe_code, reason = "a sequence in assembly")]
mod tests {
    use super::*;

    // A sequence of three instructions, which nothing runs, and its declaration.
    core::arch::global_asm!(
        ".pushsection .text.traceprof_test_sequence, \"ax\"",
        ".globl traceprof_test_sequence",
        "traceprof_test_sequence:",
        "2: nop",
        "nop",
        "nop",
        "3: ret",
        "4: ud2",
        ".popsection",
        ".pushsection __rseq_cs, \"awR\"",
        ".balign 32",
        ".long 0, 0",
        ".quad 2b, 3b - 2b, 4b",
        ".popsection",
    );

    // SAFETY: the label above; nothing calls it.
    unsafe extern "C" {
        fn traceprof_test_sequence();
    }

    #[test]
    fn a_declared_sequence_is_found_without_its_area() {
        let start = traceprof_test_sequence as *const () as u64;
        let own = std::process::id() as i32;
        let abort = Some(start + 4);
        assert_eq!([0, 1, 2].map(|step| declared(own, start + step)), [abort; 3]);
        assert_eq!(
            [-1, 3, 4].map(|step| declared(own, start.wrapping_add_signed(step))),
            [None; 3]
        );
        assert_eq!(declared(own, own as u64), None);
    }
}
