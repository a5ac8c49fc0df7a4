//! Interpreters in memory that was made by hand, and then damaged.

use std::cell::Cell;
use std::panic::catch_unwind;
use std::path::Path;

use traceprof_abi::context::RecordKind;
use traceprof_abi::runtime::python::cookie;
use traceprof_abi::runtime::word::sections;
use traceprof_abi::runtime::{Captured, CapturedThread, capture};
use traceprof_abi::sync::{AtomicU64, Ordering};

use super::image::{
    CODE, CODE_TYPE, Image, NAME, NO_FRAME, STATE, TABLE, THREAD, frame_at, interpreters,
};
use crate::runtime::fuzz_entry::{self, START};
use crate::runtime::memory::read_made;
use crate::runtime::python::PythonExports;
use crate::runtime::{Gone, Runtime, TargetMemory, TargetWords, Unsupported};

const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fuzz/corpus/runtime");

impl TargetMemory for Image {
    fn read(&self, avma: u64, into: &mut [u8]) -> usize {
        read_made((START, &self.bytes), avma, into)
    }
}

fn locate(minor: u8, image: &Image) -> Result<Option<Runtime>, Unsupported> {
    PythonExports::for_test(minor).locate(START, image, RecordKind::Glibc)
}

/// Names the function of the interpreter's only thread, which had this cookie.
fn named(runtime: &Runtime, image: &Image, known: u32) -> Result<String, Gone> {
    let function = runtime.functions(image, &[(START + CODE, known)]).remove(0)?;
    Ok(format!("{} {}:{}", function.name, function.file, function.line))
}

fn cookie_of(runtime: &Runtime, image: &Image) -> u32 {
    let layout = runtime.block.python().unwrap();
    cookie(layout, START + CODE, &mut TargetWords(image)).unwrap()
}

#[test]
fn frames_of_each_version_are_found_and_named() {
    for minor in 8..=14 {
        let image = Image::of(minor, START);
        let runtime = locate(minor, &image).unwrap().unwrap();
        assert_eq!(runtime.label, format!("Python 3.{minor}.0"));
        let words: [AtomicU64; 9] = Default::default();
        let thread = CapturedThread::of(START + THREAD);
        let captured = capture((0, &runtime.block), thread, &mut TargetWords(&image), &words);
        assert!(matches!(captured, Captured::Section { words: 5, foreign: 0, .. }), "{captured:?}");
        let words = words.map(|word| word.load(Ordering::Relaxed));
        let frames = sections(&words).next().unwrap().frames().map(|frame| {
            let object = (frame.object, frame.cookie);
            let function = runtime.functions(&image, &[object]).remove(0).unwrap();
            let line = function.line_at(frame.position);
            (function.name, function.file, function.line, line, frame.flags)
        });
        let frame = |line, flags| ("größe".to_owned(), "of/a.py".to_owned(), 70, line, flags);
        // Before 3.11, native code calls each function.
        let expected = [frame(73, u8::from(minor < 11)), frame(71, 1)];
        assert_eq!(frames.collect::<Vec<_>>(), expected, "3.{minor}");
    }
}

#[test]
fn interpreters_without_threads_are_not_initialised_yet() {
    for minor in 8..=14 {
        let mut image = Image::of(minor, START);
        image.word(interpreters(minor), 0);
        assert!(locate(minor, &image).unwrap().is_none(), "3.{minor}");
    }
}

#[test]
fn other_structures_are_refused_by_name() {
    let refused = |minor, change: &dyn Fn(&mut Image)| {
        let mut image = Image::of(minor, START);
        change(&mut image);
        locate(minor, &image).unwrap_err().to_string()
    };
    for minor in 8..=14 {
        let other_state = |image: &mut Image| {
            image.word(STATE + 16, START);
        };
        let text = refused(minor, &other_state);
        assert!(text.starts_with(&format!("libpython: Python 3.{minor}.0 has")), "{text}");
        let other_type = |image: &mut Image| image.word(CODE_TYPE + 32, 424);
        assert!(refused(minor, &other_type).contains("other objects"), "3.{minor}");
        let other_value = |image: &mut Image| {
            image.word(THREAD + 0x318 + 16, 8);
            image.word(THREAD - 8, 8);
        };
        assert!(refused(minor, &other_value).contains("unknown place"), "3.{minor}");
    }
    for minor in [13, 14] {
        let free_threaded = |image: &mut Image| image.word(16, 1);
        assert!(refused(minor, &free_threaded).contains("free-threaded"));
        let other_version = |image: &mut Image| image.word(8, 0x030f_00f0);
        assert!(refused(minor, &other_version).contains("another version"));
    }
    for minor in [7, 15] {
        let exports = PythonExports::for_test(minor);
        let image = Image::of(8, START);
        let text = exports.locate(START, &image, RecordKind::Glibc).unwrap_err().to_string();
        assert!(text.contains(&format!("Python 3.{minor}.0 is not supported")), "{text}");
    }
}

/// One that stands still may have stopped half way through a change.
#[test]
fn frames_without_code_are_refused_if_the_thread_runs() {
    for minor in 8..=14 {
        let mut image = Image::of(minor, START);
        image.word(CODE + 8, START);
        assert!(locate(minor, &image).unwrap().is_none(), "3.{minor}");
        let running = Running { image, reads: Default::default(), frame_at: frame_at(minor) };
        let exports = PythonExports::for_test(minor);
        let refused = exports.locate(START, &running, RecordKind::Glibc).unwrap_err().to_string();
        assert!(refused.contains("other frames"), "{refused}");
    }
}

/// Memory in which the innermost frame is now here, now there.
struct Running {
    image: Image,
    reads: Cell<u64>,
    frame_at: u64,
}

impl TargetMemory for Running {
    fn read(&self, avma: u64, into: &mut [u8]) -> usize {
        let got = self.image.read(avma, into);
        if avma == START + self.frame_at && into.len() == 8 {
            self.reads.set(self.reads.get() + 1);
            let frame = START + NO_FRAME + self.reads.get() % 8 * 8;
            into.copy_from_slice(&frame.to_le_bytes());
        }
        got
    }
}

#[test]
fn objects_that_are_gone_say_why() {
    let check = |change: &dyn Fn(&mut Image), expected: Result<&str, Gone>| {
        for minor in 8..=14 {
            let mut image = Image::of(minor, START);
            let runtime = locate(minor, &image).unwrap().unwrap();
            let known = cookie_of(&runtime, &image);
            change(&mut image);
            let expected = expected.map(str::to_owned);
            assert_eq!(named(&runtime, &image, known), expected, "3.{minor}");
        }
    };
    check(&|_| {}, Ok("größe of/a.py:70"));
    check(&|it| it.word(CODE + 8, 7), Err(Gone::OtherType));
    check(&|it| it.bytes.truncate(CODE as usize + 100), Err(Gone::Unreadable));
    check(&|it| it.word(CODE, 0), Err(Gone::Freed));
    check(&|it| it.word(CODE, 0x7f00_1234_5670), Err(Gone::Freed));
    // The first line is a part of every cookie.
    let other_line = |it: &mut Image| {
        for at in [40, 68, 72] {
            it.put(CODE + at, &[71]);
        }
    };
    check(&other_line, Err(Gone::OtherCode));
    check(&|it| it.word(NAME, 0), Err(Gone::Name));
    check(&|it| it.word(NAME + 16, 1 << 40), Err(Gone::Name));
    check(&|it| it.put(NAME + 32, &[1 << 2]), Err(Gone::Name));
    check(&|it| it.put(NAME + 32, &[3 << 2 | 1 << 5]), Err(Gone::Name));
    let not_ascii = |it: &mut Image| {
        it.put(NAME + 32, &[1 << 2 | 1 << 5 | 1 << 6]);
        it.put(NAME + 40, &[0xff; 13]);
    };
    check(&not_ascii, Err(Gone::Name));
    // No 0 follows the characters.
    check(&|it| it.word(NAME + 16, 4), Err(Gone::Name));
    check(&|it| it.word(TABLE, 0), Err(Gone::LineTable));
    check(&|it| it.word(TABLE + 16, u64::MAX), Err(Gone::LineTable));
    check(&|it| it.word(TABLE + 16, 1000), Err(Gone::LineTable));
}

/// The corpus has the images of all versions. `UPDATE=1` writes it.
#[test]
fn damaged_memory_holds() {
    let is_update = std::env::var_os("UPDATE").is_some();
    let images = (8..=14u8).map(|minor| (format!("3.{minor}"), Image::of(minor, START).bytes));
    for (name, bytes) in images {
        let path = Path::new(CORPUS).join(name);
        if is_update {
            std::fs::create_dir_all(CORPUS).unwrap();
            std::fs::write(&path, &bytes).unwrap();
        }
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "{}", path.display());
    }
    for entry in std::fs::read_dir(CORPUS).unwrap() {
        let path = entry.unwrap().path();
        let pristine = std::fs::read(&path).unwrap();
        let mut state = 7u64;
        for change in 0..200 {
            let mut bytes = pristine.clone();
            for _ in 0..change.min(5) {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = ((state >> 33) as usize % bytes.len().max(8)) & !7;
                let wild = [0, 1, u64::MAX, START + (state >> 50) / 8 * 8, state];
                let word = wild[(state >> 20) as usize % wild.len()];
                bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
            let held = catch_unwind(|| fuzz_entry::runtime(&bytes));
            assert!(held.is_ok(), "{}, change {change}", path.display());
        }
    }
}
