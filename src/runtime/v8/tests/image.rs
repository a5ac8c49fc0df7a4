//! The heap of an engine, made by hand.

use crate::runtime::TargetMemory;
use crate::runtime::fuzz_entry::START;
use crate::runtime::memory::read_made;
use crate::runtime::v8::layout::{CodeStart, ObjectLayout};
use crate::runtime::v8::machine::V8Machine;

/// Instance types of strings.
pub(super) const ONE_BYTE: u16 = 8;
const TWO_BYTE: u16 = 0;
const CONS: u16 = 1;
const EXTERNAL: u16 = 2;
const SLICED: u16 = 3;
const THIN: u16 = 5;
/// Those of what has no instance type of its own here.
const OTHER: u16 = 200;

/// Objects at addresses from [`START`] on. References to them are tagged.
pub(super) struct Image {
    pub(super) bytes: Vec<u8>,
    pub(super) layout: ObjectLayout,
    maps: Vec<(u16, u64)>,
}

/// A function as its scope describes it.
pub(super) struct Scope {
    pub(super) name: u64,
    pub(super) inferred: u64,
    pub(super) start: u32,
    pub(super) locals: u32,
}

/// What functions share.
pub(super) struct Shared {
    /// A name or a scope.
    pub(super) name: u64,
    pub(super) script: u64,
    pub(super) literal: u32,
    pub(super) data: u64,
}

pub(super) fn small(number: u32) -> u64 {
    u64::from(number) << 32
}

impl TargetMemory for Image {
    fn read(&self, avma: u64, into: &mut [u8]) -> usize {
        read_made((START, &self.bytes), avma, into)
    }
}

impl Image {
    pub(super) fn of(machine: &V8Machine) -> Self {
        let mut image = Self { bytes: vec![0; 64], layout: machine.heap.clone(), maps: Vec::new() };
        // The map of maps is its own.
        let map = image.raw(&[0; 5]);
        image.maps.push((image.layout.types.map, map));
        let kind = u64::from(image.layout.types.map) << 32;
        image.put(map - 1, &[map, kind]);
        image
    }

    /// Adds words, and returns a reference to them.
    fn raw(&mut self, words: &[u64]) -> u64 {
        let at = START + self.bytes.len() as u64;
        self.bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        at + 1
    }

    /// Adds bytes, and returns their address.
    pub(super) fn data(&mut self, bytes: &[u8]) -> u64 {
        let at = START + self.bytes.len() as u64;
        self.bytes.extend(bytes);
        let padded = self.bytes.len().next_multiple_of(8);
        self.bytes.resize(padded, 0);
        at
    }

    /// Replaces words at an address.
    pub(super) fn put(&mut self, avma: u64, words: &[u64]) {
        let at = (avma - START) as usize;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.bytes[at..at + bytes.len()].copy_from_slice(&bytes);
    }

    fn put_half(&mut self, avma: u64, half: u32) {
        let at = (avma - START) as usize;
        self.bytes[at..at + 4].copy_from_slice(&half.to_le_bytes());
    }

    pub(super) fn map(&mut self, kind: u16) -> u64 {
        if let Some((_, map)) = self.maps.iter().find(|(known, _)| *known == kind) {
            return *map;
        }
        let maps = self.maps[0].1;
        let map = self.raw(&[maps, u64::from(kind) << 32, 0, 0, 0]);
        self.maps.push((kind, map));
        map
    }

    /// Adds an object with these words behind its map.
    pub(super) fn object(&mut self, kind: u16, words: &[u64]) -> u64 {
        let map = self.map(kind);
        self.raw(&[&[map], words].concat())
    }

    pub(super) fn text(&mut self, text: &str) -> u64 {
        let units: Vec<u16> = text.encode_utf16().collect();
        let is_narrow = units.iter().all(|unit| *unit < 256);
        let (kind, bytes): (u16, Vec<u8>) = match is_narrow {
            true => (ONE_BYTE, units.iter().map(|unit| *unit as u8).collect()),
            false => (TWO_BYTE, units.iter().flat_map(|unit| unit.to_le_bytes()).collect()),
        };
        let string = self.object(kind, &[(units.len() as u64) << 32]);
        self.data(&bytes);
        string
    }

    fn string(&mut self, kind: u16, len: u32, words: [u64; 2]) -> u64 {
        self.object(kind, &[u64::from(len) << 32, words[0], words[1]])
    }

    pub(super) fn cons(&mut self, (first, second): (u64, u64), len: u32) -> u64 {
        self.string(CONS | ONE_BYTE, len, [first, second])
    }

    pub(super) fn sliced(&mut self, parent: u64, from: u32, len: u32) -> u64 {
        self.string(SLICED | ONE_BYTE, len, [parent, small(from)])
    }

    pub(super) fn thin(&mut self, actual: u64, len: u32) -> u64 {
        self.string(THIN | ONE_BYTE, len, [actual, 0])
    }

    pub(super) fn external(&mut self, bytes: &[u8], more: u16) -> u64 {
        let data = self.data(bytes);
        self.string(EXTERNAL | ONE_BYTE | more, bytes.len() as u32, [0, data])
    }

    /// Adds an array of words.
    pub(super) fn array(&mut self, words: &[u64]) -> u64 {
        self.object(OTHER, &[&[small(words.len() as u32)], words].concat())
    }

    /// Adds an array of bytes.
    pub(super) fn byte_array(&mut self, bytes: &[u8]) -> u64 {
        let array = self.object(OTHER, &[small(bytes.len() as u32)]);
        self.data(bytes);
        array
    }

    pub(super) fn script(&mut self, name: u64, source: u64, id: u32) -> u64 {
        let mut words = [0; 16];
        let fields = self.layout.script;
        let mut set = |offset: u64, word: u64| words[offset as usize / 8 - 1] = word;
        set(fields.source, source);
        set(fields.name, name);
        set(fields.id, small(id));
        let kind = self.layout.types.script;
        self.object(kind, &words)
    }

    pub(super) fn scope(&mut self, scope: &Scope) -> u64 {
        let name = u64::from(scope.name != 0) << 12;
        let inferred = u64::from(scope.inferred != 0) << 14;
        let mut words = vec![(name | inferred) << 32, 0, small(scope.locals)];
        let bounds = [small(scope.start), small(scope.start + 10)];
        let is_fixed = self.layout.scope.positions.is_some();
        if is_fixed {
            words.extend(bounds);
        }
        let names = if scope.locals < 75 { scope.locals } else { 1 };
        words.extend((0..names + scope.locals).map(small));
        if scope.name != 0 {
            words.extend([scope.name, 0]);
        }
        if scope.inferred != 0 {
            words.push(scope.inferred);
        }
        if !is_fixed {
            words.extend(bounds);
        }
        let kind = self.layout.types.scope_info;
        self.object(kind, &words)
    }

    pub(super) fn shared(&mut self, shared: &Shared) -> u64 {
        let (kind, fields) = (self.layout.types.shared, self.layout.shared);
        let object = self.object(kind, &[0; 9]);
        let at = object - 1;
        self.put(at + fields.data, &[shared.data]);
        self.put(at + fields.name, &[shared.name]);
        self.put(at + fields.script, &[shared.script]);
        self.put_half(at + fields.literal, shared.literal);
        if let Some(unique) = fields.unique {
            self.put_half(at + unique, (at >> 3) as u32);
        }
        object
    }

    pub(super) fn bytecodes(&mut self, bytecodes: &[u8], positions: u64) -> u64 {
        let (kind, fields) = (self.layout.types.bytecodes, self.layout.bytecodes);
        let object = self.object(kind, &[small(bytecodes.len() as u32)]);
        let head = self.data(&vec![0; fields.data as usize - 16]);
        assert_eq!(head, object - 1 + 16);
        self.bytes.truncate((object - 1 + fields.data - START) as usize);
        self.data(bytecodes);
        self.put(object - 1 + fields.positions, &[positions]);
        object
    }

    /// Adds code of this kind, and returns the address of its first instruction.
    pub(super) fn code(&mut self, kind: u32, code: &[u8], [deopt, positions]: [u64; 2]) -> u64 {
        let (types, fields) = (self.layout.types.clone(), self.layout.code);
        let is_one = types.stream == types.code;
        let object = self.object(types.code, &[0; 15]);
        let start = match fields.start {
            CodeStart::Inside(offset) => {
                assert!(is_one && offset == 128);
                self.data(code)
            }
            CodeStart::Field(offset) => {
                self.object(types.stream, &[object, 0, 0]);
                let start = self.data(code);
                self.put(object - 1 + offset, &[start]);
                start
            }
        };
        let at = object - 1;
        self.put(at + fields.deopt, &[deopt]);
        self.put(at + fields.positions, &[positions]);
        self.put_half(at + fields.size, code.len() as u32);
        self.put_half(at + fields.flags, kind);
        start
    }
}
