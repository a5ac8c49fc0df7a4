//! The check whether a thread's stack may be written below its stack pointer.

use crate::inject::arch;
use crate::inject::stop::Stopped;
use crate::proc::Mapping;

/// Bytes that a chain and the signal frames below it need on the main thread's stack.
const MAIN_STACK_ROOM: u64 = 24 << 10;
/// Bytes that a chain and the signal frames below it need on another thread's stack.
const THREAD_STACK_ROOM: u64 = 64 << 10;

/// Returns the upper end of the free part of a thread's stack, or `None` if the stack may not be
/// written.
///
/// Below the red zone, memory is free on stacks that the C library or the kernel allocates. It is
/// not free on the stacks of Go and of fibers, which are close together in ordinary memory. A stack
/// counts as the C library's if its mapping contains the thread's control block above the stack
/// pointer and has a guard page directly below. Go keeps such words in its heap, too, where its
/// stacks are. But only a C library's control block starts with its own address, as the processor's
/// ABI demands.
pub(in crate::inject) fn stack_top(stopped: &Stopped, mappings: &[Mapping]) -> Option<u64> {
    let registers = &stopped.saved().registers;
    let sp = registers.rsp;
    let index = containing(mappings, sp)?;
    let mapping = &mappings[index];
    let room = sp - mapping.start;
    let good = if mapping.path == "[stack]" {
        room >= MAIN_STACK_ROOM
    } else {
        let guarded = index.checked_sub(1).map(|below| &mappings[below]).is_some_and(|below| {
            below.end == mapping.start && !below.read && !below.write && !below.exec
        });
        let control_block = registers.fs_base > sp && registers.fs_base < mapping.end;
        mapping.write
            && guarded
            && control_block
            && room >= THREAD_STACK_ROOM
            // If it cannot be read, the stack is left alone.
            && stopped.holds(registers.fs_base, &registers.fs_base.to_ne_bytes()) == Ok(true)
    };
    good.then(|| sp - arch::RED_ZONE)
}

pub(super) fn may_be_roomy(mappings: &[Mapping], sp: u64) -> bool {
    containing(mappings, sp).is_some_and(|index| {
        let mapping = &mappings[index];
        let room = sp - mapping.start;
        let wanted = if mapping.path == "[stack]" { MAIN_STACK_ROOM } else { THREAD_STACK_ROOM };
        mapping.write && room >= wanted
    })
}

pub(in crate::inject) fn containing(mappings: &[Mapping], address: u64) -> Option<usize> {
    let index = mappings.partition_point(|mapping| mapping.end <= address);
    (mappings.get(index)?.start <= address).then_some(index)
}
