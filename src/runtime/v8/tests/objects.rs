//! Objects that were made by hand, and then damaged.

use std::panic::catch_unwind;
use std::path::Path;

use super::image::{Image, Scope, Shared, small};
use crate::runtime::Gone;
use crate::runtime::fuzz_entry;
use crate::runtime::v8::for_test::layout;
use crate::runtime::v8::function::JsFunction;
use crate::runtime::v8::machine::V8Machine;
use crate::runtime::v8::strings::text;
use crate::runtime::v8::version::V8Version;
use crate::runtime::v8::{JsCode, JsTier};
use crate::text::LENGTH_MAX;

const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fuzz/corpus/v8");
/// A source text with a function in each of its lines 2 and 3.
const SOURCE: &str = "0123456789\n0123456789\r\n0123456789";

/// Returns the bytes of numbers of variable length.
fn unsigned(numbers: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in numbers {
        let mut rest = *number;
        while rest > 0x7f {
            bytes.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        bytes.push(rest as u8);
    }
    bytes
}

/// Returns a table with entries at these offsets for these positions.
fn positions(entries: &[(i64, i64)]) -> Vec<u8> {
    let mut last = (-1, 0);
    let mut numbers = Vec::new();
    for (offset, position) in entries {
        for difference in [offset - last.0, position - last.1] {
            numbers.push((difference << 1 ^ difference >> 63) as u64);
        }
        last = (*offset, *position);
    }
    unsigned(&numbers)
}

/// Returns the position of a character, in an inlining or in the function itself.
fn position(character: i64, inlining: Option<i64>) -> i64 {
    inlining.map_or(0, |index| index + 1) << 31 | (character + 1) << 1
}

/// The objects of a program: two functions, and code in which one is inlined into the other.
struct World {
    image: Image,
    machine: V8Machine,
    /// The addresses of what the functions share.
    shared: [u64; 2],
    script: u64,
    /// Baseline code of the second function, and optimized code of the first one.
    baseline: u64,
    optimized: u64,
}

impl World {
    fn of(machine: V8Machine) -> Self {
        let mut image = Image::of(&machine);
        let (source, file) = (image.text(SOURCE), image.text("file:///a%20b.js"));
        let script = image.script(file, source, 7);
        let [first, second] = ["outer", "größe"].map(|name| image.text(name));
        let scope = Scope { name: first, inferred: 0, start: 12, locals: 2 };
        let first = image.scope(&scope);
        let scope = Scope { name: second, inferred: 0, start: 24, locals: 80 };
        let second = image.scope(&scope);
        let table = positions(&[(0, position(12, None)), (3, position(24, None))]);
        let table = image.byte_array(&table);
        // Of two bytes, and with a prefix of one byte more.
        let bytecodes = image.bytecodes(&[7, 0, 0, 7, 0, 0, 7, 0], table);
        let none = Shared { name: first, script, literal: 3, data: 0 };
        let outer = image.shared(&none);
        let inner = image.shared(&Shared { name: second, literal: 4, data: bytecodes, ..none });
        let kinds = image.layout.kinds;
        let table = unsigned(&[4, 4, 4, 4]);
        let table = image.byte_array(&table);
        let baseline = image.code(kinds.baseline, &[0x90; 24], [bytecodes, table]);
        let optimized = compiled(&mut image, (outer, inner));
        let shared = [outer - 1, inner - 1];
        Self { image, machine, shared, script: script - 1, baseline, optimized }
    }

    fn all() -> impl Iterator<Item = Self> {
        V8Machine::for_test().into_iter().map(Self::of)
    }

    fn cookie(&self, index: usize) -> u32 {
        let words = &mut crate::runtime::TargetWords(&self.image);
        self.machine.layout.cookie(self.shared[index], words).unwrap()
    }

    fn function(&self, index: usize) -> Result<JsFunction, Gone> {
        let reader = self.machine.reader(&self.image);
        let function = reader.function(self.shared[index], self.cookie(index))?;
        Ok(JsFunction::clone(&function))
    }

    fn code(&self, avma: u64, index: usize) -> Result<JsCode, Gone> {
        let of = Some((self.shared[index], self.cookie(index)));
        self.machine.reader(&self.image).code_at(avma, of)
    }
}

/// Adds code with calls at 4 and 12. That at 12 is in a function that is inlined at the other one.
fn compiled(image: &mut Image, (outer, inner): (u64, u64)) -> u64 {
    let deopt = image.layout.deopt;
    let literals = image.array(&[inner]);
    let mut inlining = position(13, None).to_le_bytes().to_vec();
    inlining.extend([0; 8]);
    let inlining = image.byte_array(&inlining);
    let mut words = vec![0; deopt.exits as usize + 3];
    words[deopt.inlined_count as usize] = small(1);
    words[deopt.literals as usize] = literals;
    words[deopt.inlining as usize] = inlining;
    words[deopt.exits as usize] = small(28);
    words[deopt.shared as usize] = match deopt.is_wrapped {
        true => image.object(201, &[outer]),
        false => outer,
    };
    let data = image.array(&words);
    let table = positions(&[(4, position(13, None)), (12, position(25, Some(0)))]);
    let table = image.byte_array(&table);
    let mut code = vec![0x90; 32];
    for at in [4, 12] {
        code[at..at + 5].copy_from_slice(&[0xe8, 0, 0, 0, 0]);
    }
    let kind = image.layout.kinds.baseline + 2;
    image.code(kind, &code, [data, table])
}

#[test]
fn functions_have_their_names_files_and_lines() {
    for world in World::all() {
        let first = world.function(0).unwrap();
        assert_eq!((&*first.name, &*first.file, first.line), ("outer", "/a b.js", 2));
        assert_eq!(first.place_at(60).line, 0);
        let second = world.function(1).unwrap();
        assert_eq!((&*second.name, second.line), ("größe", 3));
        let header = world.machine.heap.bytecodes.data as u32 - 1;
        let lines = [header - 1, header, header + 2, header + 3].map(|at| second.place_at(at).line);
        assert_eq!(lines, [0, 2, 2, 3]);
    }
}

#[test]
fn names_are_what_the_engine_has() {
    let named = |change: &dyn Fn(&mut World) -> (u64, u32)| {
        let mut found = Vec::new();
        for mut world in World::all() {
            let (name, literal) = change(&mut world);
            let script = world.script + 1;
            let shared = Shared { name, script, literal, data: 0 };
            world.shared[0] = world.image.shared(&shared) - 1;
            found.push(world.function(0).map(|it| it.name));
        }
        found.dedup();
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    };
    let scope = |world: &mut World, name: u64, inferred: u64| {
        world.image.scope(&Scope { name, inferred, start: 0, locals: 0 })
    };
    let text = |name: &str| Ok(name.to_owned());
    assert_eq!(named(&|it| (it.image.text("plain"), 3)), text("plain"));
    assert_eq!(named(&|it| (scope(it, 0, 0), 3)), text("(anonymous)"));
    assert_eq!(named(&|it| (scope(it, 0, 0), 0)), text("(top level)"));
    assert_eq!(named(&|_| (0, 3)), text("(anonymous)"));
    let inferred = |it: &mut World| {
        let inferred = it.image.text("a.b.c");
        (scope(it, 0, inferred), 3)
    };
    assert_eq!(named(&inferred), text("a.b.c"));
    let both = |it: &mut World| {
        let [name, inferred] = ["c", "a.b.c"].map(|text| it.image.text(text));
        (scope(it, name, inferred), 3)
    };
    assert_eq!(named(&both), text("c"));
    let with_controls = |it: &mut World| (it.image.text("a\nb\u{1b}[31m世"), 3);
    assert_eq!(named(&with_controls), text("a?b?[31m世"));
    let long = |it: &mut World| (it.image.text(&"x".repeat(100_000)), 3);
    assert_eq!(named(&long).unwrap().len(), LENGTH_MAX);
    let many_variables = |it: &mut World| {
        let name = it.image.text("many");
        (it.image.scope(&Scope { name, inferred: 0, start: 0, locals: 1 << 17 }), 3)
    };
    assert_eq!(named(&many_variables), Err(Gone::OtherType));
}

#[test]
fn strings_of_every_shape_are_read() {
    let read = |make: &dyn Fn(&mut Image) -> u64| {
        let mut world = World::all().next().unwrap();
        let string = make(&mut world.image);
        let reader = world.machine.reader(&world.image);
        text(&reader.heap(), string)
    };
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(read(&|it| it.text("")), text(""));
    assert_eq!(read(&|it| it.external(b"outside", 0)), text("outside"));
    assert_eq!(read(&|it| it.external(b"outside", 16)), None);
    let parts = |it: &mut Image| {
        let [first, second] = ["get ", "größe世"].map(|part| it.text(part));
        let cons = it.cons((first, second), 10);
        let thin = it.thin(cons, 10);
        it.sliced(thin, 2, 7)
    };
    assert_eq!(read(&parts), text("t größe"));
    let second = |it: &mut Image| {
        let [first, second] = ["get ", "größe"].map(|part| it.text(part));
        let cons = it.cons((first, second), 9);
        it.sliced(cons, 4, 5)
    };
    assert_eq!(read(&second), text("größe"));
    // A slice of more than there is, and parts that do not add up.
    let too_long = |it: &mut Image| {
        let parent = it.text("abc");
        it.sliced(parent, 2, 2)
    };
    assert_eq!(read(&too_long), None);
    let own_part = |it: &mut Image| {
        let part = it.text("a");
        let string = it.cons((part, part), 1 << 20);
        it.put(string - 1 + 24, &[string]);
        string
    };
    assert_eq!(read(&own_part), None);
    let in_circles = |it: &mut Image| {
        let string = it.thin(0, 5);
        it.put(string - 1 + 16, &[string]);
        string
    };
    assert_eq!(read(&in_circles), None);
    assert_eq!(read(&|it| it.map(8)), None);
    assert_eq!(read(&|_| small(7)), None);
}

/// Names and lines of an address, outermost first.
fn at(code: &JsCode, avma: u64) -> Vec<(String, u32)> {
    let named = |it: &crate::runtime::v8::JsPosition<'_>| {
        (it.function.map_or_else(|_| String::new(), |it| it.name.clone()), it.place.line)
    };
    code.positions(avma).iter().map(named).collect()
}

#[test]
fn addresses_of_code_belong_to_functions_that_are_inlined() {
    for world in World::all() {
        let start = world.optimized;
        let code = world.code(start + 8, 0).unwrap();
        assert_eq!((code.tier, code.code.clone()), (JsTier::Optimized, start..start + 32));
        assert!(code.is_of(world.cookie(0)) && !code.is_of(world.cookie(1)));
        let outer = |line| ("outer".to_owned(), line);
        let both = vec![outer(2), ("größe".to_owned(), 3)];
        assert_eq!(at(&code, start + 8), [outer(2)]);
        assert_eq!(at(&code, start + 16), both);
        assert_eq!(at(&code, start + 4), [outer(2)]);
        assert_eq!(at(&code, start + 11), [outer(2)]);
        assert_eq!(at(&code, start + 12), both);
        // In front of the first position.
        assert_eq!(at(&code, start), [outer(0)]);
        // The way out of optimized code.
        assert_eq!(at(&code, start + 28), [outer(0)]);
        assert_eq!(at(&code, start + 32), [outer(0)]);
    }
}

#[test]
fn baseline_code_is_that_of_the_function_with_its_bytecodes() {
    for world in World::all() {
        let start = world.baseline;
        let code = world.code(start + 5, 1).unwrap();
        assert_eq!(code.tier, JsTier::Baseline);
        let inner = |line| vec![("größe".to_owned(), line)];
        assert_eq!(at(&code, start), inner(0));
        assert_eq!(at(&code, start + 4), inner(2));
        assert_eq!(at(&code, start + 9), inner(2));
        assert_eq!(at(&code, start + 12), inner(3));
        let other = world.code(start + 5, 0).unwrap();
        assert!(other.own.is_none() && other.positions(start + 5).is_empty());
    }
}

#[test]
fn objects_that_are_gone_say_why() {
    let check = |change: &dyn Fn(&mut World), expected: Gone| {
        for mut world in World::all() {
            let (shared, cookie) = (world.shared[0], world.cookie(0));
            change(&mut world);
            let found = world.machine.reader(&world.image).function(shared, cookie);
            assert_eq!(found.map(|it| it.name.clone()), Err(expected));
        }
    };
    check(&|it| it.image.bytes.clear(), Gone::Unreadable);
    let other = |it: &mut World| {
        let map = it.image.map(8);
        it.image.put(it.shared[0], &[map]);
    };
    check(&other, Gone::OtherType);
    // Where the collector has moved it.
    check(&|it| it.image.put(it.shared[0], &[it.shared[1]]), Gone::OtherType);
    let other_number = |it: &mut World| {
        let fields = it.machine.heap.shared;
        let at = (it.shared[0] + fields.unique.unwrap_or(fields.literal)) & !7;
        it.image.put(at, &[u64::MAX]);
    };
    check(&other_number, Gone::OtherCode);
    for world in World::all() {
        let code = |avma| world.code(avma, 0).map(|code| code.tier);
        assert_eq!(code(world.baseline + 24), Err(Gone::OtherType));
        assert_eq!(code(8 << 20), Err(Gone::Unreadable));
    }
}

#[test]
fn other_builds_are_refused() {
    let refused = |version, name, value| layout(version, &[(name, value)]).unwrap_err();
    for version in V8Version::SUPPORTED {
        assert!(layout(version, &[]).is_ok());
        assert!(refused(version, "SmiShiftSize", 0).contains("compressed"));
        assert!(refused(version, "off_fp_function", -24).contains("frames"));
        assert!(refused(version, "class_String__length__int32_t", 8).contains("String"));
        assert!(refused(version, "class_Script__line_ends__Object", 48).contains("Script"));
        assert!(refused(version, "CodeKindBaseline", 7).contains("kinds"));
        let index = "DeoptimizationDataInliningPositionsIndex";
        assert!(refused(version, index, 5).contains(index));
    }
    let other = V8Version { major: 14, minor: 1 };
    assert!(layout(other, &[]).unwrap_err().contains("not supported"));
}

/// The corpus has the objects of all versions. `UPDATE=1` writes it.
#[test]
fn damaged_objects_hold() {
    let is_update = std::env::var_os("UPDATE").is_some();
    for (version, world) in V8Version::SUPPORTED.iter().zip(World::all()) {
        let path = Path::new(CORPUS).join(format!("{}.{}", version.major, version.minor));
        if is_update {
            std::fs::create_dir_all(CORPUS).unwrap();
            std::fs::write(&path, &world.image.bytes).unwrap();
        }
        assert_eq!(std::fs::read(&path).unwrap(), world.image.bytes, "{}", path.display());
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
                let object = fuzz_entry::START + (state >> 50) / 8 * 8 + 1;
                let wild = [0, 1, u64::MAX, object, state >> 40 << 32, state];
                let word = wild[(state >> 20) as usize % wild.len()];
                bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
            let held = catch_unwind(|| fuzz_entry::v8(&bytes));
            assert!(held.is_ok(), "{}, change {change}", path.display());
        }
    }
}
