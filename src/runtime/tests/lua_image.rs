//! LuaJIT in memory that was made by hand, and then damaged.

use std::path::Path;

use traceprof_abi::runtime::lua::{LuaStacks, NOWHERE, compiled_frame};
use traceprof_abi::runtime::word::{EMPTY, ENTRY, ManagedFrame, SectionEnd, sections};
use traceprof_abi::runtime::{Captured, CapturedThread, capture, may_have_frames};
use traceprof_abi::sync::{AtomicU64, Ordering};

use crate::runtime::fuzz_entry::{self, START};
use crate::runtime::lua::LuaExports;
use crate::runtime::tests::made::{Image, damage};
use crate::runtime::{Gone, ManagedLanguage, Runtime, TargetWords};

const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fuzz/corpus/lua");

/// Addresses relative to the start of the memory, whose first bytes are the interpreter's code.
const STACK: u64 = 0x200;
/// The frames of the interpreter: of a coroutine, and of the program.
const FRAMES: [u64; 2] = [0x240, 0x290];
/// The threads of Lua: the coroutine and the program, behind which its variables are.
const THREADS: [u64; 2] = [0x400, 0x500];
const VARIABLES: u64 = 0x560;
/// Their slots.
const SLOTS: [u64; 2] = [0x800, 0x900];
/// Functions and prototypes: of the program and of the coroutine.
const FUNCTIONS: [u64; 2] = [0xa00, 0xa40];
const NATIVE: u64 = 0xa80;
const PROTOTYPES: [u64; 2] = [0xb00, 0xc00];
const SOURCE: u64 = 0xd00;
const LINES: u64 = 0xd80;
const END: u64 = 0x1000;

/// Returns the address of an instruction of a prototype.
fn instruction(which: usize, number: u64) -> u64 {
    PROTOTYPES[which] + 104 + number * 4
}

impl Image {
    /// Makes the memory of a process: the program resumes a coroutine, in which a function calls
    /// native code.
    fn of_lua() -> Self {
        let mut image = Self(vec![0; END as usize]);
        for which in [0, 1] {
            image.make_thread(which);
        }
        // The coroutine begins in its frame.
        image.word(THREADS[0] + 80, START + FRAMES[0] + 1);
        image.pointer(FRAMES[0] - 8, 0x80);
        image.pointer(FRAMES[0] + 72, 0x40);
        image.pointer(FRAMES[0] + 24, instruction(1, 3));
        image.pointer(FRAMES[1] + 24, instruction(0, 4));
        image.pointer(FRAMES[1] + 72, 0x8000);
        image.pointer(VARIABLES + 0x60, 0x20);
        for (which, prototype) in PROTOTYPES.into_iter().enumerate() {
            image.0[(FUNCTIONS[which] + 9) as usize] = 8;
            image.pointer(FUNCTIONS[which] + 32, prototype + 104);
            image.0[(prototype + 9) as usize] = 7;
            image.half(prototype + 12, 6);
            image.half(prototype + 56, 0x90);
            image.pointer(prototype + 64, SOURCE);
            image.half(prototype + 72, which as u32 * 10);
            image.half(prototype + 76, 20);
            image.pointer(prototype + 80, LINES);
        }
        image.0[(NATIVE + 9) as usize] = 8;
        image.0[(NATIVE + 10) as usize] = 1;
        image.put(LINES, &[1, 2, 3, 4, 5]);
        image.0[(SOURCE + 9) as usize] = 4;
        image.word(SOURCE + 16, 0x1234 | 10 << 32);
        image.put(SOURCE + 24, b"@/srv/a.lua"[..10].as_ref());
        // The coroutine: its function, and the native code that it has called in slot 3.
        image.function(SLOTS[0] + 16, FUNCTIONS[1]);
        image.word(SLOTS[0] + 24, 16 | 5);
        image.function(SLOTS[0] + 56, NATIVE);
        image.pointer(SLOTS[0] + 64, instruction(1, 4));
        image.put(instruction(1, 3), &[66, 3, 1, 2]);
        image.pointer(THREADS[0] + 32, SLOTS[0] + 72);
        // The program, which has called the coroutine from native code.
        image.function(SLOTS[1] + 16, FUNCTIONS[0]);
        image.word(SLOTS[1] + 24, 16 | 1);
        image.pointer(THREADS[1] + 32, SLOTS[1] + 32);
        image
    }

    fn make_thread(&mut self, which: usize) {
        let thread = THREADS[which];
        self.0[(thread + 9) as usize] = 6;
        self.pointer(thread + 16, VARIABLES);
        self.pointer(thread + 48, SLOTS[which] + 0xc0);
        self.pointer(thread + 56, SLOTS[which]);
        self.pointer(thread + 80, FRAMES[which]);
        self.pointer(FRAMES[which] + 16, thread);
    }

    fn function(&mut self, slot: u64, function: u64) {
        self.word(slot, (0x1fff7 << 47) | (START + function));
    }
}

fn runtime() -> Runtime {
    LuaExports::for_test().locate(START).unwrap()
}

fn thread() -> CapturedThread {
    let registers = [0, 0, 0, START + instruction(1, 3), 0];
    CapturedThread { pc: START + 0x9000, stack: START + STACK, registers, ..CapturedThread::of(0) }
}

fn frames(image: &Image, thread: CapturedThread) -> (SectionEnd, Vec<ManagedFrame>) {
    let words: [AtomicU64; 11] = Default::default();
    let block = runtime().block;
    let captured = capture((0, &block), thread, &mut TargetWords(image), &words);
    let Captured::Section { end, .. } = captured else { panic!("{captured:?}") };
    let words = words.map(|word| word.load(Ordering::Relaxed));
    (end, sections(&words).next().unwrap().frames().collect())
}

#[test]
fn functions_of_a_coroutine_and_of_the_program_are_named() {
    let image = Image::of_lua();
    let runtime = runtime();
    assert_eq!((runtime.label.as_str(), runtime.language), ("LuaJIT 2.1", ManagedLanguage::Lua));
    let (end, frames) = frames(&image, thread());
    assert_eq!(end, SectionEnd::Root);
    let named: Vec<_> = frames
        .iter()
        .map(|frame| {
            let function = runtime.functions(&image, &[(frame.object, frame.cookie)]).remove(0);
            let function = function.unwrap();
            (
                frame.flags,
                function.name.clone(),
                function.file.clone(),
                function.line_at(frame.position),
            )
        })
        .collect();
    let expected = [(ENTRY, "function </srv/a.lu:10>", 13), (ENTRY, "main chunk", 3)];
    let expected =
        expected.map(|(flags, name, line)| (flags, name.to_owned(), "/srv/a.lu".to_owned(), line));
    assert_eq!(named, expected);
}

#[test]
fn what_is_left_over_of_a_frame_is_none() {
    let mut image = Image::of_lua();
    // The coroutine is suspended.
    image.word(THREADS[0] + 80, 0);
    let (end, found) = frames(&image, thread());
    assert_eq!((end, found.len()), (SectionEnd::Root, 1));
    // Nothing runs.
    image.word(THREADS[1] + 80, 0);
    let words: [AtomicU64; 11] = Default::default();
    let block = runtime().block;
    let captured = capture((0, &block), thread(), &mut TargetWords(&image), &words);
    assert_eq!(captured, Captured::Nothing);
}

#[test]
fn threads_of_another_build_are_left_to_it() {
    let mut image = Image::of_lua();
    image.pointer(VARIABLES + 0x60, 0x8000);
    let words: [AtomicU64; 11] = Default::default();
    let captured = capture((0, &runtime().block), thread(), &mut TargetWords(&image), &words);
    assert_eq!(captured, Captured::Nothing);
    // Of several builds, each has an outermost frame of its own.
    let mut stacks = LuaStacks::default();
    assert_eq!(stacks.found(true, false), LuaStacks::WITHOUT);
    [START, START + 0x80].into_iter().for_each(|stack| stacks.note(stack));
    assert_eq!(stacks.found(true, true), stacks);
    let expected = LuaStacks { innermost: START, outermost: 0 };
    assert_eq!([stacks.found(true, false), stacks.found(false, true)], [expected; 2]);
}

#[test]
fn compiled_code_has_no_line() {
    let mut image = Image::of_lua();
    image.pointer(VARIABLES + 0x40, THREADS[0]);
    image.pointer(VARIABLES + 0x50, SLOTS[0] + 32);
    let (end, found) = frames(&image, thread());
    assert_eq!((end, found.len()), (SectionEnd::Root, 2));
    assert_eq!((found[0].object, found[0].position), (START + PROTOTYPES[1], NOWHERE));
}

#[test]
fn only_the_code_of_traces_that_run_is_compiled() {
    const TRACES: u64 = 0xe00;
    const TRACE: [u64; 3] = [0xe40, 0xec0, 0xf40];
    const CODE: [u64; 3] = [0x7_0000, 0x7_1000, 0x7_2000];
    let image = |runs: u32| {
        let mut image = Image::of_lua();
        image.pointer(VARIABLES + 0x40, THREADS[0]);
        image.pointer(VARIABLES + 0x50, SLOTS[0] + 32);
        image.half(VARIABLES + 0x48, runs);
        image.pointer(VARIABLES + 0x58, TRACES);
        for (number, (trace, code)) in (1..).zip(TRACE.into_iter().zip(CODE)) {
            image.pointer(TRACES + number * 8, trace);
            image.half(trace + 0x54, 0x100);
            image.pointer(trace + 0x58, code);
            image.put(trace + 0x68, &[number as u8, 0]);
        }
        // The second one is a branch of the first one, and both go on at the third one.
        image.put(TRACE[0] + 0x70, &[2, 0]);
        image.put(TRACE[1] + 0x6c, &[1, 0]);
        image.put(TRACE[1] + 0x6a, &[3, 0]);
        image
    };
    let block = runtime().block;
    let layout = block.lua().unwrap();
    let compiled = |image: &Image, avma: u64, is_exact: bool| {
        let at = (START + avma, is_exact);
        compiled_frame(layout, at, START + STACK, &mut TargetWords(image))
    };
    let is_found = |runs: u32, avma: u64| {
        let found = compiled(&image(runs), avma, true);
        assert!(found.is_none_or(|stack| stack == START + FRAMES[0]));
        found.is_some()
    };
    let seen = |runs: u32| CODE.map(|code| [0, 0xff, 0x100].map(|at| is_found(runs, code + at)));
    let [all, none] = [[true, true, false], [false; 3]];
    assert_eq!(seen(1), [all, all, none], "a trace, and its branch that has not begun");
    assert_eq!(seen(2), [none, all, all], "a branch, and the trace at which it goes on");
    assert_eq!(seen(!0), [none; 3], "the interpreter");
    // Memory is freed: whatever has called that is compiled.
    assert_eq!([true, false].map(|it| compiled(&image(!2), CODE[0], it).is_some()), [false, true]);
    let mut other = image(1);
    other.word(VARIABLES + 0x50, 0);
    assert_eq!(compiled(&other, CODE[0], true), None, "no compiled code runs");
}

#[test]
fn functions_that_have_ended_or_not_begun_are_left_out() {
    let mut image = Image::of_lua();
    // The function of the coroutine has called itself.
    let inner = SLOTS[0] + 56;
    image.function(inner, FUNCTIONS[1]);
    image.pointer(inner + 8, instruction(1, 4));
    image.half(VARIABLES + 0x48, u32::MAX);
    let of = |image: &Image, position: u64| {
        let registers = [0, 0, START + inner + 16, position, 0];
        let interpreted = CapturedThread { stack: START + FRAMES[0], pc: START + 0x40, ..thread() };
        let (end, found) = frames(image, CapturedThread { registers, ..interpreted });
        (
            end,
            found.iter().map(|it| (it.object.wrapping_sub(START), it.position)).collect::<Vec<_>>(),
        )
    };
    let [program, coroutine] = [(PROTOTYPES[0], 3), (PROTOTYPES[1], 3)];
    let complete = |frames: &[(u64, u32)]| (SectionEnd::Root, frames.to_vec());
    let runs = START + instruction(1, 2);
    assert_eq!(of(&image, runs), complete(&[(PROTOTYPES[1], 1), coroutine, program]));
    let returns = START + instruction(1, 4);
    assert_eq!(of(&image, returns), complete(&[coroutine, program]), "it has not begun");
    // It returns functions: one is where it was, and one is where its link was.
    image.function(inner, FUNCTIONS[0]);
    assert_eq!(of(&image, returns), complete(&[coroutine, program]), "it has returned");
    image.function(inner + 8, FUNCTIONS[0]);
    assert_eq!(of(&image, returns), complete(&[coroutine, program]), "it has returned two");
    let (end, found) = of(&image, START + instruction(0, 9));
    assert_eq!((end, found.len()), (SectionEnd::Unlinked, 1), "nothing is known");
}

/// Returns the end and the prototypes of a section.
fn prototypes(image: &Image, thread: CapturedThread) -> (SectionEnd, Vec<u64>) {
    let (end, found) = frames(image, thread);
    (end, found.iter().map(|it| it.object.wrapping_sub(START)).collect())
}

#[test]
fn threads_of_lua_are_in_the_order_of_the_native_stack() {
    const OUTER: u64 = 0x2e0;
    let [inner, between] = FRAMES;
    let mut image = Image::of_lua();
    // The program has resumed the coroutine, which has called native code, and that has called a
    // function in the program's own thread of Lua.
    image.pointer(THREADS[1] + 80, inner);
    image.pointer(inner + 16, THREADS[1]);
    image.pointer(inner + 32, OUTER);
    image.pointer(inner + 72, 0x8000);
    image.word(THREADS[0] + 80, START + between + 1);
    image.pointer(between + 16, THREADS[0]);
    image.pointer(between + 72, 0x40);
    image.pointer(between + 24, instruction(1, 4));
    image.pointer(OUTER + 16, THREADS[1]);
    image.pointer(OUTER + 72, 0x8000);
    image.put(instruction(0, 3), &[66, 3, 1, 2]);
    image.function(SLOTS[1] + 56, NATIVE);
    image.pointer(SLOTS[1] + 64, instruction(0, 4));
    image.function(SLOTS[1] + 80, FUNCTIONS[0]);
    image.word(SLOTS[1] + 88, 24 | 1);
    image.half(VARIABLES + 0x48, u32::MAX);
    let registers = [0, 0, START + SLOTS[1] + 96, START + instruction(0, 2), 0];
    let thread = CapturedThread { stack: START + inner, pc: START + 0x40, registers, ..thread() };
    let expected = vec![PROTOTYPES[0], PROTOTYPES[1], PROTOTYPES[0]];
    assert_eq!(prototypes(&image, thread), (SectionEnd::Root, expected));
}

#[test]
fn threads_of_lua_are_found_as_far_as_the_native_stack_has_frames() {
    const FAR: u64 = 0x3000;
    let mut image = Image::of_lua();
    image.0.resize(0x4000, 0);
    image.pointer(FRAMES[0] + 72, 0x8000);
    image.pointer(THREADS[1] + 80, FAR);
    image.pointer(FAR + 16, THREADS[1]);
    image.pointer(FAR + 72, 0x8000);
    let with = |outermost: u64| {
        let lua = LuaStacks { innermost: START + FRAMES[0], outermost };
        prototypes(&image, CapturedThread { lua, ..thread() })
    };
    assert_eq!(with(START + FAR), (SectionEnd::Root, vec![PROTOTYPES[1], PROTOTYPES[0]]));
    assert_eq!(with(START + FRAMES[0]), (SectionEnd::Root, vec![PROTOTYPES[1]]));
    let (end, found) = with(START + FAR - 16);
    assert_eq!((end, found.len()), (SectionEnd::Unreadable, 1), "one that is not found");
    let block = runtime().block;
    assert!(may_have_frames(&block, LuaStacks::default()));
    assert!(!may_have_frames(&block, LuaStacks::WITHOUT));
}

#[test]
fn native_frames_without_a_function_are_segments() {
    let mut image = Image::of_lua();
    // The function of the program is native code, too.
    image.function(SLOTS[1] + 16, NATIVE);
    let (_, found) = frames(&image, thread());
    assert_eq!(found.iter().map(|it| it.flags).collect::<Vec<_>>(), [ENTRY, ENTRY | EMPTY]);
}

#[test]
fn returns_outside_of_the_caller_end_the_list() {
    let mut image = Image::of_lua();
    image.pointer(SLOTS[0] + 64, instruction(1, 7));
    let (end, found) = frames(&image, thread());
    assert_eq!((end, found.len()), (SectionEnd::Unreadable, 0));
}

#[test]
fn functions_that_are_gone_say_why() {
    let check = |change: &dyn Fn(&mut Image), expected: Gone| {
        let mut image = Image::of_lua();
        let (_, found) = frames(&image, thread());
        change(&mut image);
        let found = runtime().functions(&image, &[(found[0].object, found[0].cookie)]).remove(0);
        assert_eq!(found.map(|function| function.name), Err(expected));
    };
    check(&|it| it.0.truncate(PROTOTYPES[1] as usize), Gone::Unreadable);
    check(&|it| it.half(PROTOTYPES[1] + 72, 11), Gone::Replaced);
    check(&|it| it.half(SOURCE + 20, 9), Gone::Replaced);
    check(&|it| it.half(PROTOTYPES[1] + 12, 7), Gone::Replaced);
    check(&|it| it.put(SOURCE + 30, b"b"), Gone::Replaced);
    check(&|it| it.0[(PROTOTYPES[1] + 9) as usize] = 8, Gone::Replaced);
    check(&|it| it.pointer(PROTOTYPES[1] + 80, END), Gone::LineTable);
}

#[test]
fn strings_that_are_hashed_anew_are_the_same() {
    let mut image = Image::of_lua();
    let (_, found) = frames(&image, thread());
    image.half(SOURCE + 16, 0x4321);
    let function = runtime().functions(&image, &[(found[0].object, found[0].cookie)]).remove(0);
    assert_eq!(function.map(|it| it.name).as_deref(), Ok("function </srv/a.lu:10>"));
}

/// Returns the memory with a thread, as [`fuzz_entry::lua_thread`] takes it.
fn with_thread(image: &Image, thread: CapturedThread) -> Image {
    let LuaStacks { innermost, outermost } = thread.lua;
    let words = [thread.pc, thread.stack, innermost, outermost];
    let words = words.into_iter().chain(thread.registers).flat_map(u64::to_le_bytes);
    Image(image.0.iter().copied().chain(words).collect())
}

/// Returns memory with threads in native, interpreted and compiled code.
fn seeds() -> [(&'static str, Image); 3] {
    let mut image = Image::of_lua();
    let native = with_thread(&image, thread());
    let registers = [0, 0, START + SLOTS[0] + 32, START + instruction(1, 2), 0];
    let interpreted = CapturedThread {
        pc: START + 0x40,
        stack: START + FRAMES[0],
        lua: LuaStacks { innermost: START + FRAMES[0], outermost: START + FRAMES[1] },
        registers,
        ..thread()
    };
    image.half(VARIABLES + 0x48, u32::MAX);
    let interpreted = with_thread(&image, interpreted);
    image.pointer(VARIABLES + 0x40, THREADS[0]);
    image.pointer(VARIABLES + 0x50, SLOTS[0] + 32);
    image.half(VARIABLES + 0x48, 1);
    image.pointer(VARIABLES + 0x58, 0xe00);
    image.pointer(0xe08, 0xe40);
    image.half(0xe40 + 0x54, 0x100);
    image.pointer(0xe40 + 0x58, 0x9000);
    let compiled = with_thread(&image, thread());
    [("native", native), ("interpreted", interpreted), ("compiled", compiled)]
}

#[test]
fn damaged_memory_holds_the_invariants() {
    let is_update = std::env::var_os("UPDATE").is_some();
    for (name, image) in seeds() {
        let path = Path::new(CORPUS).join(name);
        if is_update {
            std::fs::create_dir_all(CORPUS).unwrap();
            std::fs::write(&path, &image.0).unwrap();
        }
        assert_eq!(std::fs::read(&path).unwrap(), image.0, "{}", path.display());
    }
    for (seed, entry) in (0..).zip(std::fs::read_dir(CORPUS).unwrap()) {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        damage(&Image(bytes), seed, fuzz_entry::lua_thread);
    }
    for seed in 0..8 {
        damage(&Image::of_lua(), seed, fuzz_entry::lua);
    }
}
