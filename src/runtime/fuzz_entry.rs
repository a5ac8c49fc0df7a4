//! Entry points for fuzzing: they take bytes and check the invariants that hold for any input.

use std::cell::Cell;
use std::collections::HashSet;

use traceprof_abi::context::RecordKind;
use traceprof_abi::layout::FRAME_WORDS_MAX;
use traceprof_abi::runtime::lua::{LuaStacks, compiled_frame, frame_above};
use traceprof_abi::runtime::python::cookie;
use traceprof_abi::runtime::word::sections;
use traceprof_abi::runtime::{Captured, CapturedThread, capture};
use traceprof_abi::sync::{AtomicU64, Ordering};

use super::lua::LuaExports;
use super::perl::PerlExports;
use super::php::PhpExports;
use super::python::PythonExports;
use super::ruby::RubyExports;
use super::v8::V8Machine;
use super::{
    Function, NamesThreads, Runtime, RuntimeExports, TargetMemory, TargetWords, ThreadNameMemo,
    WantedNames,
};
use crate::text::LENGTH_MAX;

/// Maximum number of reads of one call: lists have bounds.
const READS_MAX: usize = 1 << 20;
/// Maximum number of objects that are named.
const OBJECTS_MAX: usize = 8;
/// Where the memory starts.
pub(super) const START: u64 = 0x10_0000;

/// Memory that consists of the input, again and again, so that pointers in it lead to it.
pub(super) struct Wild<'b> {
    pub(super) bytes: &'b [u8],
    pub(super) reads: Cell<usize>,
}

impl TargetMemory for Wild<'_> {
    fn read(&self, avma: u64, into: &mut [u8]) -> usize {
        self.reads.set(self.reads.get() + 1);
        assert!(self.reads.get() < READS_MAX, "no end of reads");
        assert!(into.len() <= 8 << 20, "a read of {} bytes", into.len());
        let Some(at) = avma.checked_sub(START).filter(|at| *at < 1 << 32) else { return 0 };
        if self.bytes.is_empty() {
            return 0;
        }
        let (mut done, mut from) = (0, at as usize % self.bytes.len());
        while done < into.len() {
            let len = (self.bytes.len() - from).min(into.len() - done);
            into[done..done + len].copy_from_slice(&self.bytes[from..from + len]);
            (done, from) = (done + len, 0);
        }
        into.len()
    }
}

/// Reads functions and code of V8 from memory that holds the bytes.
pub fn v8(bytes: &[u8]) {
    for machine in V8Machine::for_test() {
        let memory = Wild { bytes, reads: Cell::new(0) };
        let reader = machine.reader(&memory);
        let (words, _) = bytes.as_chunks::<8>();
        let references = words.iter().map(|word| u64::from_le_bytes(*word));
        let objects = references.filter(|word| word & 3 == 1).map(|word| word - 1);
        for object in objects.take(OBJECTS_MAX).chain([0, START, START + 3, u64::MAX]) {
            let cookie = machine.layout.cookie(object, &mut TargetWords(&memory)).unwrap_or(7);
            if let Ok(function) = reader.function(object, cookie) {
                let texts = [&function.name, &function.file];
                assert!(texts.iter().all(|text| is_printable_text(text)));
                for offset in [0, 1, 60, u32::MAX] {
                    function.place_at(offset);
                }
            }
            assert!(reader.function(object, !cookie).is_err(), "another cookie");
            let Ok(code) = reader.code_at(object, Some((object, cookie))) else { continue };
            assert!(code.code.contains(&object));
            code.positions(object);
        }
    }
}

fn is_printable_text(text: &str) -> bool {
    text.len() <= LENGTH_MAX && !text.contains(char::is_control)
}

/// Reads a runtime from memory that holds the bytes.
pub fn runtime(bytes: &[u8]) {
    if let Some(exports) = RuntimeExports::of(bytes, "fuzzed") {
        locate(bytes, |memory| exports.locate(START, memory, RecordKind::Glibc));
    }
    for minor in 7..=15 {
        let exports = PythonExports::for_test(minor);
        for vector in [RecordKind::Glibc, RecordKind::Musl] {
            locate(bytes, |memory| exports.locate(START, memory, vector));
        }
        let Some(runtime) = exports.without_process(START) else { continue };
        name(&runtime, bytes);
    }
    php(bytes);
    ruby(bytes);
    perl(bytes);
    lua(bytes);
}

/// Reads the frames of an interpreter of PHP, and names their functions, in memory that holds the
/// bytes.
pub fn php(bytes: &[u8]) {
    for interface in [20_210_902, 20_220_829, 20_230_831, 20_240_924] {
        for has_registers in [false, true] {
            let memory = Wild { bytes, reads: Cell::new(0) };
            let exports = PhpExports::for_test(interface, has_registers);
            let Ok(runtime) = exports.locate(START, &memory) else { continue };
            let with_registers = CapturedThread {
                pointer: START,
                pc: START + 0x400,
                stack: START,
                loop_stack: START + 0x800,
                lua: LuaStacks::default(),
                registers: [START + 0x800, START + 0xd20, 0, 0, 0],
            };
            name_frames(&runtime, &memory, &[CapturedThread::of(START), with_registers]);
        }
    }
}

/// Reads the frames of an interpreter of Ruby, and names its methods, in memory that holds the
/// bytes.
pub fn ruby(bytes: &[u8]) {
    for version in ["3.1.2", "3.3.8"] {
        let memory = Wild { bytes, reads: Cell::new(0) };
        let located = RubyExports::for_test(version).locate(START, &memory, RecordKind::Glibc);
        if let Ok(Some(runtime)) = located {
            let threads = [START, START + 0x40].map(CapturedThread::of);
            name_frames(&runtime, &memory, &threads);
        }
    }
}

/// Reads the frames of an interpreter of Perl, and names its subs, in memory that holds the bytes.
pub fn perl(bytes: &[u8]) {
    let memory = Wild { bytes, reads: Cell::new(0) };
    let located = PerlExports::for_test(36).locate(START, &memory, RecordKind::Glibc);
    if let Ok(Some(runtime)) = located {
        let threads = [START + 8, START + 0x40].map(CapturedThread::of);
        name_frames(&runtime, &memory, &threads);
    }
}

/// Reads the frames of an interpreter of LuaJIT, and names its functions, in memory that holds the
/// bytes.
pub fn lua(bytes: &[u8]) {
    let memory = Wild { bytes, reads: Cell::new(0) };
    let Ok(runtime) = LuaExports::for_test().locate(START) else { return };
    let on_stack = CapturedThread { stack: START + 0x200, ..CapturedThread::of(START) };
    let registers = [0, 0, START + 0x820, START + 0xc74, START + 0x820];
    let in_loop = CapturedThread { pc: START + 0x20, stack: START + 0x240, registers, ..on_stack };
    name_frames(&runtime, &memory, &[CapturedThread::of(START), on_stack, in_loop]);
    let Some(layout) = runtime.block.lua() else { return };
    for is_exact in [true, false] {
        compiled_frame(layout, (START + 0xa00, is_exact), START + 0x200, &mut TargetWords(&memory));
    }
}

/// Number of words at the end of the input of [`lua_thread`] that describe the thread.
pub(super) const THREAD_WORDS: usize = 9;
/// Maximum number of reads for a thread of LuaJIT in its handler.
const LUA_READS_MAX: usize = 1 << 17;

/// As [`lua`], for a thread that the last words of the input describe: the program counter, the
/// stack pointer, the innermost and the outermost frame of the interpreter, and five registers.
pub fn lua_thread(bytes: &[u8]) {
    let Some((bytes, thread)) = bytes.split_last_chunk::<{ THREAD_WORDS * 8 }>() else { return };
    let mut words = thread.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    let mut next = || words.next().unwrap_or(0);
    let (pc, stack) = (next(), next());
    let lua = LuaStacks { innermost: next(), outermost: next() };
    let registers = std::array::from_fn(|_| next());
    let thread = CapturedThread { pc, stack, lua, registers, ..CapturedThread::of(START) };
    let memory = Wild { bytes, reads: Cell::new(0) };
    let Ok(runtime) = LuaExports::for_test().locate(START) else { return };
    let frames: Vec<AtomicU64> = (0..FRAME_WORDS_MAX).map(|_| AtomicU64::new(0)).collect();
    capture((0, &runtime.block), thread, &mut TargetWords(&memory), &frames);
    let Some(layout) = runtime.block.lua() else { return };
    for is_exact in [true, false] {
        let found = compiled_frame(layout, (pc, is_exact), stack, &mut TargetWords(&memory));
        assert!(found.is_none_or(|frame| frame >= stack && frame & 15 == 0));
    }
    let near = frame_above(layout, stack, &mut TargetWords(&memory));
    assert!(near.is_none_or(|frame| frame >= stack && frame & 15 == 0));
    assert!(memory.reads.get() < LUA_READS_MAX, "{} reads", memory.reads.get());
    name_frames(&runtime, &memory, &[thread]);
}

/// Names what the frames of threads have.
fn name_frames(runtime: &Runtime, memory: &Wild<'_>, threads: &[CapturedThread]) {
    let words: Vec<AtomicU64> = (0..FRAME_WORDS_MAX).map(|_| AtomicU64::new(0)).collect();
    for thread in threads.iter().copied() {
        let block = (0, &runtime.block);
        let Captured::Section { words: count, .. } =
            capture(block, thread, &mut TargetWords(memory), &words)
        else {
            continue;
        };
        // Relaxed: no other thread has the words.
        let found: Vec<u64> =
            words[..count].iter().map(|word| word.load(Ordering::Relaxed)).collect();
        let frames = sections(&found).flat_map(|section| section.frames());
        for frame in frames.take(OBJECTS_MAX) {
            let known = (frame.object, frame.cookie);
            let named = runtime.functions(memory, &[known, (frame.object, !frame.cookie)]);
            assert!(named.iter().flatten().all(is_printable));
            // What an object says in its lowest bits is known without the rest of it.
            assert!(named[1].is_err() || frame.object & 7 != 0, "another cookie");
        }
    }
}

fn locate<E>(bytes: &[u8], found: impl Fn(&Wild<'_>) -> Result<Option<Runtime>, E>) {
    let memory = Wild { bytes, reads: Cell::new(0) };
    if let Ok(Some(runtime)) = found(&memory) {
        name(&runtime, bytes);
    }
}

/// Names what looks like a code object, and what does not.
fn name(runtime: &Runtime, bytes: &[u8]) {
    let memory = Wild { bytes, reads: Cell::new(0) };
    let Some(layout) = runtime.block.python() else { return };
    let (words, _) = bytes.as_chunks::<8>();
    let types = words.iter().enumerate().skip(1);
    let types = types.filter(|(_, word)| u64::from_le_bytes(**word) == layout.code_type);
    let objects = types.map(|(index, _)| START + index as u64 * 8 - 8).take(OBJECTS_MAX);
    let tids = HashSet::from([0, 7, 4321]);
    let wanted = WantedNames { tids: &tids, first: 7 };
    let names = runtime.thread_names(&mut ThreadNameMemo::default(), &memory, wanted);
    assert!(names.iter().all(|(_, name)| !name.contains(char::is_control)));
    for object in objects.chain([0, 1, START, START + 3, u64::MAX - 7, u64::MAX]) {
        let known = cookie(layout, object, &mut TargetWords(&memory)).unwrap_or(7);
        let found = runtime.functions(&memory, &[(object, known), (object, !known)]);
        assert!(found.iter().flatten().all(is_printable));
        assert!(found[1].is_err(), "another cookie");
    }
}

fn is_printable(function: &Function) -> bool {
    for position in [0, 1, 2, 400, u32::MAX, u32::MAX - 1, 1 << 31] {
        function.line_at(position);
    }
    let texts = [&function.name, &function.file];
    texts.iter().all(|text| is_printable_text(text))
}
