//! Ruby in memory that was made by hand, and then damaged.

use std::cell::Cell;

use traceprof_abi::context::RecordKind;
use traceprof_abi::runtime::word::{ManagedFrame, sections};
use traceprof_abi::runtime::{Captured, CapturedThread, capture};
use traceprof_abi::sync::{AtomicU64, Ordering};

use crate::runtime::fuzz_entry::{self, START};
use crate::runtime::ruby::RubyExports;
use crate::runtime::tests::made::{Image, damage};
use crate::runtime::{Gone, ManagedLanguage, Runtime, TargetMemory, TargetWords};

/// Addresses relative to the start of the memory. The first three variables are those of
/// [`RubyExports::for_test`]; the thread's variable is before its thread pointer.
const MACHINE: u64 = 0;
const OBJECT: u64 = 8;
const SYMBOLS: u64 = 16;
const POINTER: u64 = 0x40;
const THREAD: u64 = 0x80;
const NATIVE_THREAD: u64 = 0x1e0;
const CONTEXT: u64 = 0x100;
const FRAMES: u64 = 0x200;
const FRAMES_LEN: u64 = 0x200;
const ENVIRONMENTS: u64 = 0x400;
const METHOD: u64 = 0x480;
const IN_C: u64 = 0x500;
const BODIES: [u64; 2] = [0x600, 0x800];
const CLASS: u64 = 0xa00;
const SINGLETON: u64 = 0xb00;
const TEXTS: u64 = 0xc00;
const LABELS: [u64; 2] = [TEXTS, TEXTS + 0x40];
const PATH: u64 = TEXTS + 0x80;
const PATH_BYTES: u64 = TEXTS + 0xa0;
const CLASS_NAME: u64 = TEXTS + 0xe0;
const SYMBOL_TEXTS: u64 = TEXTS + 0x110;
const SYMBOL_TEXT_LEN: u64 = 0x30;
const TABLES: u64 = 0xe00;
const END: u64 = 0x4000;
/// The numbers of symbols: two variables of classes, and a method.
const NAME: u64 = 200 << 4 | 1;
const ATTACHED: u64 = 201 << 4 | 1;
const TIMES: u64 = 202 << 4 | 1;

/// Where a version has what others have elsewhere.
#[derive(Clone, Copy)]
struct Version {
    text: &'static str,
    frame_len: u64,
    thread_context: u64,
    /// Whether a thread has its thread pointer in another structure.
    has_native_thread: bool,
    /// The word of a body with this first line.
    first_line: fn(u64) -> u64,
    lines: u64,
    lines_len: u64,
    lines_index: u64,
    /// Whether classes have their names in themselves.
    has_named_classes: bool,
    text_start: u64,
}

const VERSIONS: [Version; 2] = [V3_1, V3_3];
const V3_1: Version = Version {
    text: "3.1.2",
    frame_len: 64,
    thread_context: 40,
    has_native_thread: false,
    first_line: |line| line << 1 | 1,
    lines: 120,
    lines_len: 136,
    lines_index: 144,
    has_named_classes: false,
    text_start: 16,
};
const V3_3: Version = Version {
    text: "3.3.8",
    frame_len: 56,
    thread_context: 48,
    has_native_thread: true,
    first_line: |line| line | 99 << 32,
    lines: 112,
    lines_len: 128,
    lines_index: 136,
    has_named_classes: true,
    text_start: 24,
};

impl Image {
    /// Makes the memory of a process: a method that a block calls, below a method in C.
    fn of_ruby(version: Version) -> Self {
        let mut image = Self(vec![0; END as usize]);
        image.pointer(MACHINE, 0x1c0);
        image.pointer(0x1c0 + 40, THREAD);
        image.pointer(OBJECT, CLASS);
        image.pointer(THREAD + 32, 0x1c0);
        if version.has_native_thread {
            image.pointer(THREAD + 40, NATIVE_THREAD);
            image.pointer(NATIVE_THREAD + 16, POINTER);
        } else {
            image.pointer(THREAD + 80, POINTER);
        }
        image.pointer(THREAD + version.thread_context, CONTEXT);
        image.pointer(POINTER - 8, CONTEXT);
        image.make_context(version);
        image.make_method(METHOD, 0);
        image.make_method(IN_C, 1);
        for (index, body) in BODIES.into_iter().enumerate() {
            image.make_body(version, body, index as u64);
        }
        image.make_classes(version);
        image.make_symbols(version);
        image
    }

    fn make_context(&mut self, Version { frame_len, .. }: Version) {
        self.pointer(CONTEXT, FRAMES);
        self.word(CONTEXT + 8, FRAMES_LEN / 8);
        self.pointer(CONTEXT + 16, FRAMES + FRAMES_LEN - 3 * frame_len);
        self.pointer(CONTEXT + 48, THREAD);
        let frames = [(0x1111_0003, METHOD, 0), (0x2222_0021, 0, 1), (0x5555_0083, IN_C, 0)];
        for (index, (flags, method, body)) in frames.into_iter().enumerate() {
            let frame = FRAMES + FRAMES_LEN - (3 - index as u64) * frame_len;
            let environment = ENVIRONMENTS + index as u64 * 32 + 16;
            self.pointer(frame, BODIES[body] + 0x120 + 16);
            self.pointer(frame + 16, BODIES[body] + 0x1e0);
            self.pointer(frame + 32, environment);
            self.word(environment, flags);
            if method != 0 {
                self.pointer(environment - 16, method);
            }
        }
    }

    fn make_method(&mut self, method: u64, kind: u64) {
        self.word(method, 0x1a | 6 << 12);
        self.pointer(method + 16, method + 0x40);
        self.pointer(method + 32, CLASS);
        self.word(method + 0x40, kind);
        self.pointer(method + 0x48, BODIES[0] + 0x1e0);
        self.word(method + 0x60, TIMES);
        self.word(method + 0x68, method);
    }

    fn make_body(&mut self, version: Version, body: u64, number: u64) {
        self.word(body, number * 2 + (6 << 32));
        self.pointer(body + 8, body + 0x120);
        self.pointer(body + 64, PATH);
        self.pointer(body + 80, LABELS[number as usize]);
        self.word(body + 88, (version.first_line)(7));
        self.pointer(body + version.lines, body + 0x180);
        self.half(body + version.lines_len, 3);
        self.pointer(body + version.lines_index, body + 0x1c0);
        self.pointer(body + 0x1e0 + 16, body);
        // Entries begin at positions 0, 2 and 4.
        for (entry, line) in [8, 9, 11].into_iter().enumerate() {
            self.half(body + 0x180 + entry as u64 * 12, line);
        }
        let ranks = [1u64, 1, 2, 2, 3, 3];
        let ranks = ranks.iter().enumerate().map(|(at, rank)| rank << (at * 7));
        self.word(body + 0x1c0, ranks.sum());
        self.near_text(version, LABELS[0], "größe");
        self.near_text(version, LABELS[1], "block in größe");
        self.far_text(PATH, PATH_BYTES, "/srv/app/models/order_line.rb");
    }

    fn make_classes(&mut self, version: Version) {
        self.near_text(version, CLASS_NAME, "Object");
        if version.has_named_classes {
            self.word(CLASS, 2);
            self.pointer(CLASS + 8, SINGLETON);
            self.word(CLASS + 144, 1 << 40);
            self.pointer(CLASS + 152, CLASS_NAME);
            self.word(SINGLETON, 2 | 1 << 12);
            self.pointer(SINGLETON + 128, CLASS);
            return;
        }
        for (class, flags, number, value) in
            [(CLASS, 2, NAME, CLASS_NAME), (SINGLETON, 2 | 1 << 12, ATTACHED, CLASS)]
        {
            self.word(class, flags);
            self.pointer(class + 8, SINGLETON);
            self.pointer(class + 24, class + 0x40);
            self.word(class + 32, class);
            self.pointer(class + 0x48, class + 0x80);
            // The second entry of two is left.
            self.word(class + 0x80 + 40, 2);
            self.pointer(class + 0x80 + 48, class + 0xc0);
            self.word(class + 0xc0, u64::MAX);
            self.word(class + 0xd8, 5);
            self.word(class + 0xe0, number);
            self.pointer(class + 0xe8, value);
        }
    }

    fn make_symbols(&mut self, version: Version) {
        self.pointer(SYMBOLS + 16, TABLES);
        self.word(TABLES, 7 | 1 << 13 | 1 << 15);
        self.pointer(TABLES + 16, TABLES + 0x40);
        self.word(TABLES + 0x40, 7);
        self.word(TABLES + 0x50, 1024);
        self.pointer(TABLES + 0x60, TABLES + 0x200);
        let names = [(43, "+"), (200, "__classpath__"), (201, "__attached__"), (202, "times")];
        for (place, (number, name)) in names.into_iter().enumerate() {
            let text = SYMBOL_TEXTS + place as u64 * SYMBOL_TEXT_LEN;
            self.pointer(TABLES + 0x200 + number * 16, text);
            self.near_text(version, text, name);
        }
    }

    /// Makes a string that has its bytes in itself.
    fn near_text(&mut self, version: Version, at: u64, text: &str) {
        // One of the two is the number.
        self.word(at, 5 | (text.len() as u64) << 14);
        self.word(at + 16, text.len() as u64);
        self.put(at + version.text_start, text.as_bytes());
    }

    fn far_text(&mut self, at: u64, bytes: u64, text: &str) {
        self.word(at, 5 | 1 << 13);
        self.word(at + 16, text.len() as u64);
        self.pointer(at + 24, bytes);
        self.put(bytes, text.as_bytes());
    }
}

fn locate(version: Version, image: &Image) -> Runtime {
    let exports = RubyExports::for_test(version.text);
    exports.locate(START, image, RecordKind::Glibc).unwrap().unwrap()
}

fn frames(runtime: &Runtime, image: &Image) -> Vec<ManagedFrame> {
    let words: [AtomicU64; 9] = Default::default();
    let thread = CapturedThread::of(START + POINTER);
    let captured = capture((0, &runtime.block), thread, &mut TargetWords(image), &words);
    assert!(matches!(captured, Captured::Section { foreign: 0, .. }), "{captured:?}");
    let words = words.map(|word| word.load(Ordering::Relaxed));
    sections(&words).next().unwrap().frames().collect()
}

#[test]
fn methods_and_blocks_are_named() {
    for version in VERSIONS {
        check_names(version);
    }
}

fn check_names(version: Version) {
    let image = Image::of_ruby(version);
    let runtime = locate(version, &image);
    let label = format!("Ruby {}", version.text);
    assert_eq!((&runtime.label, runtime.language), (&label, ManagedLanguage::Ruby));
    let named = frames(&runtime, &image).into_iter().map(|frame| {
        let function = runtime.functions(&image, &[(frame.object, frame.cookie)]).remove(0);
        let function = function.unwrap();
        let line = function.line_at(frame.position);
        (function.name, function.file, function.line, line)
    });
    let path = "/srv/app/models/order_line.rb";
    let expected = [
        // Its instruction may be one of two lines.
        ("Object#größe", path, 7, 0),
        ("block in größe", path, 7, 8),
        ("Object#times", "", 0, 0),
    ];
    let expected =
        expected.map(|(name, file, first, line)| (name.to_owned(), file.to_owned(), first, line));
    assert_eq!(named.collect::<Vec<_>>(), expected);
    // A method of the class itself.
    let mut image = image;
    image.pointer(METHOD + 32, SINGLETON);
    let frame = frames(&runtime, &image)[0];
    let function = runtime.functions(&image, &[(frame.object, frame.cookie)]).remove(0).unwrap();
    assert_eq!(function.name, "Object.größe");
    let innermost = |position: u32| function.line_at(position | 1 << 31);
    assert_eq!([0, 1, 2, 3, 4, 5, 6].map(|it| function.line_at(it)), [8, 8, 8, 9, 9, 11, 11]);
    assert_eq!([0, 1, 2, 3, 4, 5, 6].map(innermost), [8, 8, 0, 9, 0, 11, 11]);
    assert_eq!([7, 1 << 20, u32::MAX].map(|it| function.line_at(it)), [0; 3]);
}

/// Checks the name of a frame whose memory changes after the capture.
fn check_gone(
    version: Version,
    of: usize,
    change: &dyn Fn(&mut Image),
    expected: Result<&str, Gone>,
) {
    let mut image = Image::of_ruby(version);
    let runtime = locate(version, &image);
    let frame = frames(&runtime, &image)[of];
    change(&mut image);
    let function = runtime.functions(&image, &[(frame.object, frame.cookie)]).remove(0);
    let name = function.map(|function| function.name);
    assert_eq!(name.as_deref().map_err(|gone| *gone), expected, "{}", version.text);
}

#[test]
fn methods_that_are_gone_say_why() {
    for version in VERSIONS {
        let check = |of, change: &dyn Fn(&mut Image), expected| {
            check_gone(version, of, change, expected);
        };
        check(0, &|_| {}, Ok("Object#größe"));
        check(0, &|it| it.0.truncate(METHOD as usize), Err(Gone::Unreadable));
        check(0, &|it| it.word(METHOD, 0x1a | 7 << 12), Err(Gone::Replaced));
        check(0, &|it| it.word(METHOD + 0x68, 1), Err(Gone::Replaced));
        check(0, &|it| it.word(METHOD + 0x40, 4), Err(Gone::OtherType));
        check(0, &|it| it.word(LABELS[0], 0x1e), Err(Gone::Name));
        check(0, &|it| it.word(PATH, 0x1e), Err(Gone::File));
        let lines_len = BODIES[0] + version.lines_len;
        check(0, &|it| it.half(lines_len, u32::MAX), Err(Gone::LineTable));
        check(0, &|it| it.word(BODIES[0] + 0x1c0, u64::MAX), Err(Gone::LineTable));
        check(1, &|it| it.near_text(version, LABELS[1], "block in other"), Err(Gone::Replaced));
        check(1, &|it| it.put(PATH_BYTES + 8, b"X"), Err(Gone::Replaced));
        check(1, &|it| it.word(BODIES[1], 5 << 32 | 2), Err(Gone::Replaced));
        check(2, &|it| it.word(IN_C + 0x60, 400 << 4 | 1), Err(Gone::Name));
    }
    check_gone(V3_1, 0, &|it| it.word(CLASS + 32, 1), Err(Gone::Replaced));
    // A class without a name of its own, or with one that is not for good.
    check_gone(V3_1, 0, &|it| it.word(CLASS + 0xe0, 7), Ok("größe"));
    check_gone(V3_3, 0, &|it| it.word(CLASS + 144, 0), Ok("größe"));
    check_gone(V3_3, 0, &|it| it.near_text(V3_3, CLASS_NAME, "Others"), Err(Gone::Replaced));
    check_gone(V3_3, 0, &|it| it.word(CLASS + 152, 0), Err(Gone::Replaced));
}

/// Memory that is another one for a single read.
struct Moving<'a> {
    usual: &'a Image,
    moved: &'a Image,
    /// Number of reads before that one.
    before: Cell<usize>,
}

impl TargetMemory for Moving<'_> {
    fn read(&self, avma: u64, into: &mut [u8]) -> usize {
        let before = self.before.get();
        self.before.set(before.wrapping_sub(1));
        if before == 0 { self.moved.read(avma, into) } else { self.usual.read(avma, into) }
    }
}

#[test]
fn strings_that_move_while_they_are_read_give_no_name() {
    for version in VERSIONS {
        check_moving(version);
    }
}

fn check_moving(version: Version) {
    let usual = Image::of_ruby(version);
    let runtime = locate(version, &usual);
    let mut moved = usual.clone();
    moved.near_text(version, LABELS[0], "other");
    moved.near_text(version, LABELS[1], "block in other");
    moved.near_text(version, CLASS_NAME, "Others");
    moved.put(PATH_BYTES, b"/tmp");
    moved.near_text(version, SYMBOL_TEXTS + 3 * SYMBOL_TEXT_LEN, "other");
    for frame in frames(&runtime, &usual) {
        let read = |memory: &dyn TargetMemory| {
            runtime.functions(memory, &[(frame.object, frame.cookie)]).remove(0)
        };
        let (expected, mut changed) = (read(&usual), 0);
        assert!(expected.is_ok());
        for before in 0.. {
            let memory = Moving { usual: &usual, moved: &moved, before: Cell::new(before) };
            let found = read(&memory);
            changed += usize::from(found == Err(Gone::Changing));
            assert!(found == expected || found.is_err(), "{before}: {found:?}");
            if memory.before.get() < usize::MAX / 2 {
                break;
            }
        }
        assert!(changed > 1, "{changed}");
    }
}

#[test]
fn other_builds_are_refused_by_name() {
    for version in ["3.0.5", "3.2.3", "3.4.1", "4.0.0"] {
        let exports = RubyExports::for_test(version);
        let image = Image::of_ruby(V3_3);
        let refused = exports.locate(START, &image, RecordKind::Glibc).unwrap_err();
        let expected =
            format!("libruby: Ruby {version} is not supported (releases of 3.1 and 3.3 are)");
        assert!(refused.to_string().starts_with(&expected), "{refused}");
    }
    for version in VERSIONS {
        check_refusals(version);
    }
    let of_other = |version: Version, made: Version| {
        let exports = RubyExports::for_test(version.text);
        let found = exports.locate(START, &Image::of_ruby(made), RecordKind::Glibc);
        matches!(found, Ok(Some(_)))
    };
    assert!(!of_other(V3_1, V3_3) && !of_other(V3_3, V3_1));
}

fn check_refusals(version: Version) {
    let located = |change: &dyn Fn(&mut Image)| {
        let mut image = Image::of_ruby(version);
        change(&mut image);
        let exports = RubyExports::for_test(version.text);
        let found = exports.locate(START, &image, RecordKind::Glibc);
        found.map(|found| found.is_some()).map_err(|refusal| refusal.to_string())
    };
    assert_eq!(located(&|_| {}), Ok(true));
    // It starts.
    assert_eq!(located(&|it| it.word(MACHINE, 0)), Ok(false));
    assert_eq!(located(&|it| it.word(POINTER - 8, 0)), Ok(false));
    assert_eq!(located(&|it| it.word(CONTEXT + 48, START)), Ok(false));
    // Another variable than that with the machine.
    assert_eq!(located(&|it| it.word(THREAD + 32, START)), Ok(false));
    let refused = located(&|it| it.word(SYMBOLS + 16, 0)).unwrap_err();
    assert!(refused.contains("keeps its names elsewhere than its release"), "{refused}");
    let refused = located(&|it| it.near_text(version, CLASS_NAME, "Other")).unwrap_err();
    assert!(refused.contains("keeps its names elsewhere than its release"), "{refused}");
}

#[test]
fn damaged_memory_holds() {
    for version in VERSIONS {
        damage(&Image::of_ruby(version), 31, fuzz_entry::ruby);
    }
}
