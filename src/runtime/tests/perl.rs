//! Perl in memory that was made by hand, and then damaged.

use traceprof_abi::context::RecordKind;
use traceprof_abi::runtime::word::{EMPTY, ENTRY, ManagedFrame, sections};
use traceprof_abi::runtime::{Captured, CapturedThread, FRAMES_MAX, WordReader, capture};
use traceprof_abi::sync::{AtomicU64, Ordering};

use crate::runtime::fuzz_entry::{self, START};
use crate::runtime::perl::PerlExports;
use crate::runtime::tests::made::{Image, damage};
use crate::runtime::{Gone, ManagedLanguage, Runtime, TargetWords};

/// Addresses relative to the start of the memory. The first variable is that of
/// [`PerlExports::for_test`]; the thread's variable is before its thread pointer.
const POINTER: u64 = 0x40;
const INTERPRETER: u64 = 0x1000;
const STACK: u64 = 0x2000;
const CONTEXTS: u64 = 0x2100;
const SUBS: [u64; 2] = [0x2800, 0x2900];
const PACKAGE: u64 = 0x2a00;
const FILES: [u64; 2] = [0x2b00, 0x2b23];
const NAMES: [u64; 3] = [0x2c00, 0x2c40, 0x2c80];
/// Slabs: of the program, a sub, a string, and a sub without a name.
const SLABS: [u64; 4] = [0x3000, 0x3200, 0x3400, 0x3600];
const END: u64 = 0x4000;

/// The address of the first or second operation in a slab.
fn operation(slab: usize, which: u64) -> u64 {
    SLABS[slab] + 0x30 + which * 0x60
}

impl Image {
    /// Makes the memory of a process: a program calls a sub, which runs a string, from which native
    /// code calls a sub without a name.
    fn of_perl() -> Self {
        let mut image = Self(vec![0; END as usize]);
        image.pointer(0, INTERPRETER);
        image.pointer(POINTER - 8, INTERPRETER);
        image.pointer(INTERPRETER + 8, operation(3, 1));
        image.pointer(INTERPRETER + 208, operation(3, 1));
        image.pointer(INTERPRETER + 224, STACK);
        image.pointer(INTERPRETER + 1816, operation(0, 0));
        image.pointer(INTERPRETER + 1824, operation(2, 0));
        image.make_contexts();
        for (slab, (line, file)) in [(10, 0), (20, 0), (1, 1), (30, 0)].into_iter().enumerate() {
            image.pointer(SLABS[slab] + 8, SLABS[slab]);
            for which in 0..2 {
                let at = operation(slab, which);
                image.word(at - 8, (which * 12) << 16);
                image.half(at + 32, 195 | 0x400);
                image.half(at + 36, line + which as u32);
                image.pointer(at + 48, FILES[file]);
            }
        }
        image.make_subs();
        image
    }

    fn make_contexts(&mut self) {
        self.pointer(STACK + 8, CONTEXTS);
        self.half(STACK + 32, 3);
        self.half(STACK + 36, 20);
        let contexts = [(2, 0, 0), (9, 0, SUBS[0]), (11 | 345 << 23, 1, 0), (9, 2, SUBS[1])];
        for (index, (first, caller, sub)) in contexts.into_iter().enumerate() {
            let at = CONTEXTS + index as u64 * 104;
            self.word(at, first);
            self.pointer(at + 16, operation(caller, 1));
            if index != 3 {
                self.pointer(at + 48, operation(caller, 1));
            }
            if sub != 0 {
                self.pointer(at + 72, sub);
            }
        }
    }

    fn make_subs(&mut self) {
        self.put(FILES[0], b"/srv/app/lib/Order/Line.pm\0");
        self.put(FILES[1], b"(eval 7)\0");
        for (at, (hash, name)) in
            NAMES.into_iter().zip([(7, &b"gr\xf6\xdfe"[..]), (8, b"__ANON__"), (9, b"Order::Line")])
        {
            self.word(at, hash | (name.len() as u64) << 32);
            self.put(at + 8, name);
        }
        self.value(PACKAGE, 12 | 0x0200_0000);
        self.pointer(PACKAGE + 0x10 + 32, NAMES[2]);
        for (index, sub) in SUBS.into_iter().enumerate() {
            let (body, glob) = (sub + 0x10, sub + 0x80);
            self.value(sub, 13);
            self.pointer(body + 40, operation([1, 3][index], 0));
            self.pointer(body + 56, glob);
            self.pointer(body + 64, FILES[0]);
            self.half(body + 96, 1);
            self.value(glob, 9);
            self.pointer(glob + 0x10 + 32, NAMES[index]);
            self.pointer(glob + 0x10 + 40, PACKAGE);
        }
    }

    /// Makes a value with its body behind it.
    fn value(&mut self, at: u64, flags: u32) {
        self.pointer(at, at + 0x10);
        self.half(at + 12, flags);
    }
}

fn locate(image: &Image) -> Runtime {
    PerlExports::for_test(36).locate(START, image, RecordKind::Glibc).unwrap().unwrap()
}

fn frames(runtime: &Runtime, image: &Image) -> Vec<ManagedFrame> {
    let words: [AtomicU64; 11] = Default::default();
    let thread = CapturedThread::of(START + POINTER);
    let captured = capture((0, &runtime.block), thread, &mut TargetWords(image), &words);
    assert!(matches!(captured, Captured::Section { foreign: 0, .. }), "{captured:?}");
    let words = words.map(|word| word.load(Ordering::Relaxed));
    sections(&words).next().unwrap().frames().collect()
}

/// Returns the names, files, first lines and lines of all frames.
fn named(image: &Image) -> Vec<(String, String, u32, u32)> {
    let runtime = locate(image);
    let frames = frames(&runtime, image).into_iter().filter(ManagedFrame::is_named);
    let named = frames.map(|frame| {
        let function = runtime.functions(image, &[(frame.object, frame.cookie)]).remove(0);
        let function = function.unwrap();
        let line = function.line_at(frame.position);
        (function.name, function.file, function.line, line)
    });
    named.collect()
}

#[test]
fn subs_and_other_code_are_named() {
    let image = Image::of_perl();
    let runtime = locate(&image);
    assert_eq!((runtime.label.as_str(), runtime.language), ("Perl 5.36.0", ManagedLanguage::Perl));
    let path = "/srv/app/lib/Order/Line.pm";
    let expected = [
        ("__ANON__", path, 30, 31),
        ("(eval)", "(eval 7)", 0, 2),
        ("Order::Line::größe", path, 20, 21),
        ("<main>", path, 0, 11),
    ];
    let expected =
        expected.map(|(name, file, first, line)| (name.to_owned(), file.to_owned(), first, line));
    assert_eq!(named(&image), expected);
    let flags: Vec<u8> = frames(&runtime, &image).iter().map(|frame| frame.flags).collect();
    assert_eq!(flags, [ENTRY, 0, 0, ENTRY]);
}

#[test]
fn frames_that_begin_or_end_are_left_out() {
    let check = |change: &dyn Fn(&mut Image), expected: &[(&str, u32)]| {
        let mut image = Image::of_perl();
        change(&mut image);
        let all = named(&image);
        let found: Vec<(&str, u32)> = all.iter().map(|it| (it.0.as_str(), it.3)).collect();
        assert_eq!(found, expected);
    };
    let outer = [("Order::Line::größe", 21), ("<main>", 11)];
    let below = [&[("(eval)", 2)], &outer[..]].concat();
    let leaf = CONTEXTS + 3 * 104;
    let caller = operation(2, 1);
    let unknown = [&[("(eval)", 0)], &outer[..]].concat();
    // The call has just begun, or is about to end.
    check(&|it| it.half(SUBS[1] + 0x10 + 96, 0), &unknown);
    check(
        &|it| {
            it.half(SUBS[1] + 0x10 + 96, 0);
            it.pointer(INTERPRETER + 208, caller);
        },
        &below,
    );
    check(&|it| it.pointer(INTERPRETER + 208, caller), &[&[("__ANON__", 0)], &below[..]].concat());
    check(&|it| it.word(leaf + 72, 0), &unknown);
    // Between two comparisons of a `sort`.
    check(
        &|it| {
            it.word(leaf, 9 | 0x10);
            it.word(INTERPRETER + 8, 0);
            it.pointer(INTERPRETER + 208, caller);
        },
        &below,
    );
    // A statement of other code, as while a death unwinds, and one of another file.
    check(
        &|it| it.pointer(INTERPRETER + 208, operation(0, 1)),
        &[&[("__ANON__", 0)], &below[..]].concat(),
    );
    check(
        &|it| it.pointer(operation(3, 1) + 48, FILES[1]),
        &[&[("__ANON__", 0)], &below[..]].concat(),
    );
    // A thread has no program.
    check(&|it| it.word(CONTEXTS, 11 | 0x40), &[&[("__ANON__", 31)], &below[..2]].concat());
}

#[test]
fn calls_of_parts_of_a_sub_have_no_frame() {
    for first in [9 | 0x80, 0x10] {
        let mut image = Image::of_perl();
        image.word(CONTEXTS + 3 * 104, first);
        image.pointer(INTERPRETER + 208, operation(2, 1));
        let frames = frames(&locate(&image), &image);
        assert_eq!((frames.len(), frames[0].flags), (4, EMPTY | ENTRY), "{first:x}");
    }
}

/// Counts the loads of a memory.
struct Counted<'a>(TargetWords<'a>, usize);

impl WordReader for Counted<'_> {
    fn load(&mut self, avma: u64) -> Option<u64> {
        self.1 += 1;
        self.0.load(avma)
    }
}

#[test]
fn subs_that_call_each_other_are_read_once() {
    let mut image = Image::of_perl();
    let (first, frames) = (END, FRAMES_MAX as u64 - 1);
    image.0.resize((END + (frames + 1) * 104) as usize, 0);
    image.pointer(INTERPRETER + 208, operation(1, 1));
    image.pointer(STACK + 8, first);
    image.half(STACK + 32, frames as u32);
    image.half(STACK + 36, frames as u32);
    image.word(first, 2);
    for index in 1..=frames {
        let (at, which) = (first + index * 104, (index & 1) as usize);
        image.word(at, 9);
        image.pointer(at + 16, operation([1, 3][which], 1 - which as u64));
        image.pointer(at + 48, operation([1, 3][which], 1));
        image.pointer(at + 72, SUBS[1 - which]);
    }
    let runtime = locate(&image);
    let words: Vec<AtomicU64> = (0..2 * FRAMES_MAX + 1).map(|_| AtomicU64::new(0)).collect();
    let mut memory = Counted(TargetWords(&image), 0);
    let thread = CapturedThread::of(START + POINTER);
    let captured = capture((0, &runtime.block), thread, &mut memory, &words);
    assert!(matches!(captured, Captured::Section { foreign: 0, .. }), "{captured:?}");
    let words: Vec<u64> = words.iter().map(|word| word.load(Ordering::Relaxed)).collect();
    let section = sections(&words).next().unwrap();
    let lines: Vec<u32> = section.frames().map(|frame| frame.position).collect();
    assert_eq!(lines.len(), FRAMES_MAX);
    assert_eq!(lines[..3], [21, 30, 21]);
    // A context has four words that matter.
    assert!(memory.1 < 5 * FRAMES_MAX, "{}", memory.1);
}

#[test]
fn subs_that_are_gone_say_why() {
    let check = |of: usize, change: &dyn Fn(&mut Image), expected: Result<&str, Gone>| {
        let mut image = Image::of_perl();
        let runtime = locate(&image);
        let frame = frames(&runtime, &image)[of];
        change(&mut image);
        let function = runtime.functions(&image, &[(frame.object, frame.cookie)]).remove(0);
        let name = function.map(|function| function.name + " " + &function.file);
        assert_eq!(name.as_deref().map_err(|gone| *gone), expected);
    };
    let known = "Order::Line::größe /srv/app/lib/Order/Line.pm";
    check(2, &|_| {}, Ok(known));
    check(2, &|it| it.0.truncate(SUBS[0] as usize), Err(Gone::Unreadable));
    check(2, &|it| it.half(SUBS[0] + 12, 9), Err(Gone::Replaced));
    check(2, &|it| it.word(NAMES[0], 6 | 5 << 32), Err(Gone::Replaced));
    check(2, &|it| it.word(NAMES[2], 6 | 11 << 32), Err(Gone::Replaced));
    check(2, &|it| it.put(FILES[0] + 20, b"X"), Err(Gone::Replaced));
    check(2, &|it| it.half(operation(1, 0) + 36, 22), Err(Gone::Replaced));
    // What other code was is known without its statement.
    check(1, &|it| it.put(FILES[1] + 6, b"8"), Ok("(eval) "));
    check(0, &|it| it.half(operation(3, 0) + 36, 22), Ok("__ANON__ "));
}

#[test]
fn other_builds_are_refused_by_name() {
    for minor in [8, 34, 38, 40] {
        let exports = PerlExports::for_test(minor);
        let refused = exports.locate(START, &Image::of_perl(), RecordKind::Glibc).unwrap_err();
        let expected = format!("libperl: Perl 5.{minor}.0 is not supported (releases of 5.36 are)");
        assert!(refused.to_string().starts_with(&expected), "{refused}");
    }
    // It starts.
    let mut image = Image::of_perl();
    image.word(0, 0);
    let exports = PerlExports::for_test(36);
    assert!(exports.locate(START, &image, RecordKind::Glibc).unwrap().is_none());
}

#[test]
fn damaged_memory_holds() {
    damage(&Image::of_perl(), 37, fuzz_entry::perl);
}
