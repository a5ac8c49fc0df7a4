//! The threads of an interpreter, and where each keeps its state.
//!
//! # Invariants
//! - The lists of interpreters and threads are followed for a bounded number of steps.
//! - A place of the state is used only if threads that are there do not contradict it.

use std::time::Duration;

use traceprof_abi::context::{RecordKind, TlsLocation, is_own_block};
use traceprof_abi::runtime::python::{ABSENT, PythonLayout};
use traceprof_abi::runtime::word::{FRAME_WORDS, SectionEnd};
use traceprof_abi::runtime::{Captured, CapturedThread, RuntimeBlock, WordReader, capture};
use traceprof_abi::sync::AtomicU64;

use super::offsets::ThreadOffsets;
use crate::elf::{TlsAccess, resolve_tls};
use crate::runtime::memory::{self, TargetMemory, TargetWords};

const INTERPRETERS_MAX: usize = 64;
const THREADS_MAX: usize = 256;
/// Number of threads, and of frames of each, on which a layout is tried.
const THREADS_CHECKED: usize = 8;
const FRAMES_CHECKED: usize = 16;
/// Number of times that frames are looked at before they are taken for foreign, the time between,
/// and the number of different frames that must be so.
const ATTEMPTS: usize = 6;
const PAUSE: Duration = Duration::from_micros(500);
const STATES_MIN: usize = 3;
/// The keys of a thread that glibc and musl can have.
const KEYS_MAX: u32 = 1024;
const MUSL_KEYS_MAX: u32 = 128;

/// The reason why there are no threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotFound {
    /// The interpreter is not initialised, or has ended.
    NotYet,
    /// The structures are not those that were expected.
    Other,
}

/// A thread that has a state in an interpreter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PythonThread {
    state: u64,
    /// Its thread pointer.
    pointer: u64,
}

/// The threads of all interpreters of a process.
#[derive(Debug)]
pub(super) struct PythonThreads {
    /// The states of the interpreters.
    pub(super) interpreters: Vec<u64>,
    /// The states, also those without a running thread.
    states: Vec<u64>,
    /// The threads that are there.
    live: Vec<PythonThread>,
}

impl PythonThreads {
    /// Reads the threads of the interpreters of a runtime.
    pub(super) fn read(
        offsets: &ThreadOffsets,
        runtime: u64,
        memory: &dyn TargetMemory,
    ) -> Result<Self, NotFound> {
        let word = |base: u64, at: u64| memory::word(memory, base.wrapping_add(at)).unwrap_or(0);
        let mut threads = Self { interpreters: Vec::new(), states: Vec::new(), live: Vec::new() };
        let mut interpreter = word(runtime, offsets.interpreters);
        let mut has_foreign = false;
        for _ in 0..INTERPRETERS_MAX {
            if interpreter == 0 {
                break;
            }
            threads.interpreters.push(interpreter);
            let mut state = word(interpreter, offsets.interpreter_threads);
            while state != 0 && threads.states.len() < THREADS_MAX {
                let owner = word(state, offsets.state_interpreter);
                if owner != interpreter {
                    // A new state is in the list before it has an owner.
                    has_foreign |= owner != 0;
                    break;
                }
                threads.add(offsets, state, memory);
                state = word(state, offsets.state_next);
            }
            interpreter = word(interpreter, offsets.interpreter_next);
        }
        match (threads.states.is_empty(), has_foreign) {
            (false, _) => Ok(threads),
            (true, true) => Err(NotFound::Other),
            (true, false) => Err(NotFound::NotYet),
        }
    }

    fn add(&mut self, offsets: &ThreadOffsets, state: u64, memory: &dyn TargetMemory) {
        self.states.push(state);
        let word = |avma: u64| memory::word(memory, avma);
        let Some(pointer) = word(state.wrapping_add(offsets.state_pointer)) else { return };
        // The block at a thread pointer begins with its own address.
        let is_block = pointer != 0 && word(pointer) == Some(pointer);
        let is_its_own = offsets.state_tid.is_none_or(|at| {
            let tid = word(state.wrapping_add(at)).unwrap_or(0);
            is_own_block(pointer, tid as u32, |avma| {
                word(avma & !7).map(|it| it >> ((avma & 4) * 8))
            })
        });
        if is_block && is_its_own {
            self.live.push(PythonThread { state, pointer });
        }
    }

    /// Finds the key whose value in each thread is its state. `offsets` are possible ones from the
    /// runtime's state. Returns whether one of them is of a key at all.
    pub(super) fn find_key(
        &self,
        (runtime, offsets): (u64, impl Iterator<Item = u32>),
        vector: RecordKind,
        memory: &dyn TargetMemory,
        layout: &mut PythonLayout,
    ) -> bool {
        let mut is_any = false;
        for offset in offsets {
            // A variable of two halves: whether the key was created, and the key.
            let Some(variable) = memory::word(memory, runtime.wrapping_add(u64::from(offset)))
            else {
                continue;
            };
            if variable as u32 != 1 {
                continue;
            }
            let Some(place) = place_of_key((variable >> 32) as u32, vector) else { continue };
            is_any = true;
            if self.confirm(|thread| value_of_key(place, thread.pointer, memory)) {
                (layout.key, layout.key_value) = place;
                return true;
            }
        }
        is_any
    }

    /// Finds the variable with the state of the thread that holds the lock of its interpreter.
    pub(super) fn find_variable(
        &self,
        (accesses, bias): (&[TlsAccess], u64),
        vector: RecordKind,
        memory: &dyn TargetMemory,
        layout: &mut PythonLayout,
    ) {
        let load = |avma| memory::word(memory, avma);
        for access in accesses {
            let Some(location) = resolve_tls(*access, bias, vector, load) else { continue };
            let value = |thread: &PythonThread| {
                let variable = location.variable(thread.pointer, load).ok().flatten();
                variable.map_or(Some(0), load)
            };
            let is_state = |thread: &PythonThread| {
                value(thread).is_some_and(|value| value == 0 || self.states.contains(&value))
            };
            let agree = self.live.iter().filter(|thread| is_state(thread)).count();
            // A thread that has just started is not in the list of states.
            if agree * 2 >= self.live.len() {
                let TlsLocation { kind, offset, module } = location;
                (layout.state_kind, layout.state_offset) = (kind as u64, offset);
                layout.state_module = module;
                return;
            }
        }
    }

    /// Whether a thread that is there runs code of the interpreter.
    pub(super) fn has_frames(&self, layout: &PythonLayout, memory: &dyn TargetMemory) -> bool {
        self.leaves(layout, memory).iter().any(|frame| *frame != 0)
    }

    /// Whether the layout leads from threads that are there to frames, most of which have no code
    /// object. `None` if that may have been so for a moment: a thread that runs changes its frames
    /// meanwhile, and one that has been interrupted may have done so half.
    pub(super) fn has_foreign_frames(
        &self,
        layout: &PythonLayout,
        memory: &dyn TargetMemory,
    ) -> Option<bool> {
        let mut seen = Vec::new();
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                std::thread::sleep(PAUSE);
            }
            let before = self.leaves(layout, memory);
            if !self.has_now_foreign_frames(layout, memory) {
                return Some(false);
            }
            if !seen.contains(&before) {
                seen.push(before);
            }
        }
        (seen.len() >= STATES_MIN).then_some(true)
    }

    /// Returns the innermost frame of each thread, or 0.
    fn leaves(&self, layout: &PythonLayout, memory: &dyn TargetMemory) -> Vec<u64> {
        let word = |base: u64, at: u16| {
            memory::word(memory, base.wrapping_add(u64::from(at))).unwrap_or(0)
        };
        let leaf = |thread: &PythonThread| {
            let frame = word(thread.state, layout.state_frame);
            let is_chain = frame != 0 && layout.chain_frame != ABSENT;
            if is_chain { word(frame, layout.chain_frame) } else { frame }
        };
        self.live.iter().map(leaf).collect()
    }

    fn has_now_foreign_frames(&self, layout: &PythonLayout, memory: &dyn TargetMemory) -> bool {
        let block = RuntimeBlock::of_python(layout);
        let words: [AtomicU64; FRAMES_CHECKED * FRAME_WORDS + 1] =
            std::array::from_fn(|_| AtomicU64::new(0));
        let (mut all, mut wrong) = (0, 0);
        for thread in self.live.iter().take(THREADS_CHECKED) {
            let mut reader = TargetWords(memory);
            let thread = CapturedThread::of(thread.pointer);
            match capture((0, &block), thread, &mut reader, &words) {
                Captured::Section { words, foreign, end, .. } => {
                    all += words / FRAME_WORDS;
                    wrong += foreign + usize::from(end == SectionEnd::Unreadable);
                }
                Captured::Unreadable => wrong += 1,
                Captured::Nothing | Captured::Refused => {}
            }
        }
        wrong > all / 2
    }

    /// Whether a place has the states of threads that are there, or there are none.
    fn confirm(&self, value: impl Fn(&PythonThread) -> Option<u64>) -> bool {
        let is_state = |thread: &PythonThread| {
            value(thread).is_some_and(|value| value == thread.state || self.states.contains(&value))
        };
        self.live.is_empty() || self.live.iter().any(is_state)
    }
}

/// Returns the distance of a key's value from the thread pointer, and `u64::MAX`; or the distance
/// of the pointer to a block, and the offset of the value in the block.
fn place_of_key(key: u32, vector: RecordKind) -> Option<(u64, u64)> {
    /// Offsets in glibc's block of a thread: of the values of the first keys, and of the pointers
    /// to blocks with those of the others. Each value has a number before it.
    const FIRST: u64 = 0x310;
    const BLOCKS: u64 = 0x510;
    const BLOCK: u64 = 32;
    /// Offset in musl's block of a thread: of the pointer to all values.
    const VALUES: u64 = 0x80;
    let number = u64::from(key);
    match vector {
        RecordKind::Musl if key < MUSL_KEYS_MAX => Some((VALUES, number * 8)),
        RecordKind::Musl => None,
        _ if number < BLOCK => Some((FIRST + number * 16 + 8, u64::MAX)),
        _ if key < KEYS_MAX => Some((BLOCKS + number / BLOCK * 8, number % BLOCK * 16 + 8)),
        _ => None,
    }
}

fn value_of_key(
    (key, key_value): (u64, u64),
    pointer: u64,
    memory: &dyn TargetMemory,
) -> Option<u64> {
    let value = TargetWords(memory).load(pointer.wrapping_add(key))?;
    if key_value == u64::MAX || value == 0 {
        return Some(value);
    }
    TargetWords(memory).load(value.wrapping_add(key_value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_where_the_library_keeps_them() {
        let glibc = |key| place_of_key(key, RecordKind::Glibc);
        assert_eq!(glibc(0), Some((0x318, u64::MAX)));
        assert_eq!(glibc(31), Some((0x508, u64::MAX)));
        assert_eq!(glibc(32), Some((0x518, 8)));
        assert_eq!(glibc(1023), Some((0x510 + 31 * 8, 31 * 16 + 8)));
        assert_eq!(glibc(1024), None);
        let musl = |key| place_of_key(key, RecordKind::Musl);
        assert_eq!((musl(3), musl(128)), (Some((0x80, 24)), None));
    }
}
