//! PHP in memory that was made by hand, and then damaged.

use std::cell::Cell;

use traceprof_abi::runtime::php::TextHash;
use traceprof_abi::runtime::word::{ManagedFrame, sections};
use traceprof_abi::runtime::{Captured, CapturedThread, capture};
use traceprof_abi::sync::{AtomicU64, Ordering};

use crate::runtime::fuzz_entry::{self, START};
use crate::runtime::php::PhpExports;
use crate::runtime::tests::made::{Image, damage};
use crate::runtime::{Gone, ManagedLanguage, Runtime, TargetMemory, TargetWords};

/// The interfaces of the versions, each with the offsets of the code, of the number of its
/// instructions, of the file and of the lines in a function.
const VERSIONS: [(u32, [u64; 4]); 4] = [
    (20_210_902, [72, 68, 144, 152]),
    (20_220_829, [88, 80, 152, 160]),
    (20_230_831, [80, 76, 144, 152]),
    (20_240_924, [104, 96, 168, 176]),
];
/// Addresses relative to the start of the memory.
const CURRENT: u64 = 488;
const FRAMES: [u64; 3] = [0x800, 0x880, 0x900];
const METHOD: u64 = 0xa00;
const INTERNAL: u64 = 0xb00;
const MAIN: u64 = 0xc00;
const CODE: u64 = 0xd00;
const CLASS: u64 = 0xe00;
const NAMES: u64 = 0xf00;
const END: u64 = 0x1100;

impl Image {
    /// Makes the memory of a process of this version: a method that a function in C calls.
    fn of([code, code_len, file, lines]: [u64; 4]) -> Self {
        let mut image = Self(vec![0; END as usize]);
        image.pointer(CURRENT, FRAMES[0]);
        for (index, (frame, function)) in
            FRAMES.into_iter().zip([METHOD, INTERNAL, MAIN]).enumerate()
        {
            image.pointer(frame, CODE + 32 * index as u64);
            image.pointer(frame + 24, function);
            image.word(frame + 40, if function == INTERNAL { 0 } else { 1 << 17 });
            if let Some(previous) = FRAMES.get(index + 1) {
                image.pointer(frame + 48, *previous);
            }
        }
        for (function, kind) in [(METHOD, 2), (INTERNAL, 1), (MAIN, 2)] {
            image.word(function, kind);
            image.pointer(function + code, CODE);
            image.half(function + code_len, 3);
            image.pointer(function + file, NAMES + 0x80);
            image.half(function + lines, 7);
        }
        image.pointer(METHOD + 8, NAMES);
        image.pointer(METHOD + 16, CLASS);
        image.pointer(INTERNAL + 8, NAMES + 0x40);
        image.pointer(CLASS + 8, NAMES + 0xc0);
        image.text(NAMES, "größe", true);
        image.text(NAMES + 0x40, "array_map", true);
        image.text(NAMES + 0x80, "/srv/a.php", false);
        image.text(NAMES + 0xc0, "class@anonymous\0/srv/a.php:3$0", true);
        for index in 0..3 {
            image.half(CODE + index * 32 + 24, 10 + index as u32);
        }
        image
    }

    fn text(&mut self, at: u64, text: &str, is_hashed: bool) {
        let hash = text.bytes().fold(TextHash::EMPTY, TextHash::with).finish();
        self.word(at + 8, if is_hashed { hash } else { 0 });
        self.word(at + 16, text.len() as u64);
        self.put(at + 24, text.as_bytes());
    }
}

fn locate(interface: u32, image: &Image) -> Runtime {
    PhpExports::for_test(interface, false).locate(START, image).unwrap()
}

fn frames(runtime: &Runtime, image: &Image) -> Vec<ManagedFrame> {
    let words: [AtomicU64; 9] = Default::default();
    let thread = CapturedThread::of(START);
    let captured = capture((0, &runtime.block), thread, &mut TargetWords(image), &words);
    assert!(matches!(captured, Captured::Section { foreign: 0, .. }), "{captured:?}");
    let words = words.map(|word| word.load(Ordering::Relaxed));
    sections(&words).next().unwrap().frames().collect()
}

#[test]
fn functions_of_each_version_are_named() {
    for (interface, offsets) in VERSIONS {
        let image = Image::of(offsets);
        let runtime = locate(interface, &image);
        assert_eq!((runtime.label.as_str(), runtime.language), ("PHP 8", ManagedLanguage::Php));
        let named = frames(&runtime, &image).into_iter().map(|frame| {
            let function = runtime.functions(&image, &[(frame.object, frame.cookie)]).remove(0);
            let function = function.unwrap();
            let line = function.line_at(frame.position);
            (function.name, function.file, function.line, line)
        });
        let expected = [
            ("class@anonymous::größe", "/srv/a.php", 7, 10),
            ("array_map", "", 0, 0),
            ("{main}", "/srv/a.php", 7, 12),
        ];
        let expected = expected
            .map(|(name, file, first, line)| (name.to_owned(), file.to_owned(), first, line));
        assert_eq!(named.collect::<Vec<_>>(), expected, "{interface}");
    }
}

#[test]
fn functions_that_are_gone_say_why() {
    let (interface, offsets) = VERSIONS[1];
    let check = |change: &dyn Fn(&mut Image), expected: Result<&str, Gone>| {
        let mut image = Image::of(offsets);
        let runtime = locate(interface, &image);
        let frame = frames(&runtime, &image)[0];
        change(&mut image);
        let function = runtime.functions(&image, &[(frame.object, frame.cookie)]).remove(0);
        let name = function.map(|function| function.name);
        assert_eq!(name.as_deref().map_err(|gone| *gone), expected);
    };
    check(&|_| {}, Ok("class@anonymous::größe"));
    check(&|it| it.0.truncate(METHOD as usize), Err(Gone::Unreadable));
    check(&|it| it.word(METHOD, 0x7f00_1234_5678), Err(Gone::Replaced));
    check(&|it| it.text(NAMES, "other", true), Err(Gone::Replaced));
    check(&|it| it.half(METHOD + 160, 8), Err(Gone::Replaced));
    // Its bytes are not those of its hash.
    check(&|it| it.put(NAMES + 24, b"x"), Err(Gone::Name));
    check(&|it| it.word(NAMES + 16, 1 << 40), Err(Gone::Name));
    // The same function at the same place, whose file has its hash meanwhile.
    check(&|it| it.text(NAMES + 0x80, "/srv/a.php", true), Ok("class@anonymous::größe"));
}

#[test]
fn other_builds_are_refused_by_name() {
    for interface in [20_200_930, 20_250_925] {
        let exports = PhpExports::for_test(interface, false);
        let refused = exports.locate(START, &Image(Vec::new())).unwrap_err().to_string();
        assert!(
            refused.starts_with("libphp: PHP 8 is not supported (releases of 8.1"),
            "{refused}"
        );
    }
    let (interface, offsets) = VERSIONS[1];
    let mut image = Image::of(offsets);
    for function in [METHOD, INTERNAL, MAIN] {
        image.word(function, 9);
    }
    let exports = PhpExports::for_test(interface, false);
    assert!(exports.locate(START, &image).is_ok(), "it stands still");
    let running = Running { image, reads: Cell::new(0) };
    let refused = exports.locate(START, &running).unwrap_err();
    assert!(refused.to_string().contains("has other frames than its release"), "{refused}");
}

/// Memory in which the innermost frame is now here, now there.
struct Running {
    image: Image,
    reads: Cell<usize>,
}

impl TargetMemory for Running {
    fn read(&self, avma: u64, into: &mut [u8]) -> usize {
        let got = self.image.read(avma, into);
        if avma == START + CURRENT && into.len() == 8 {
            self.reads.set(self.reads.get() + 1);
            let frame = START + FRAMES[self.reads.get() / 2 % 3];
            into.copy_from_slice(&frame.to_le_bytes());
        }
        got
    }
}

#[test]
fn damaged_memory_holds() {
    for (interface, offsets) in VERSIONS {
        damage(&Image::of(offsets), interface, fuzz_entry::php);
    }
}
