//! Names of threads in memory that is made by hand, for each version, and then damaged.

use std::collections::HashSet;

use super::*;
use crate::runtime::memory::read_made;
use crate::runtime::python::offsets::{InstanceDict, KeyTable, Structures, structures};
use crate::runtime::python::text::Texts;

const START: u64 = 0x10_0000;
const TEXT: u64 = START + 0x10;
const NUMBER: u64 = START + 0x20;
const DICT: u64 = START + 0x30;
const RUNTIME: u64 = START + 0x40;
const INTERPRETER: u64 = START + 0x1000;
const FIRST: u64 = START + 0x4000;
const TID: u32 = 4321;

struct Made {
    bytes: Vec<u8>,
    known: Structures,
    next: u64,
}

impl TargetMemory for Made {
    fn read(&self, avma: u64, into: &mut [u8]) -> usize {
        read_made((START, &self.bytes), avma, into)
    }
}

impl Made {
    fn put(&mut self, avma: u64, words: &[u64]) {
        for (index, word) in words.iter().enumerate() {
            let at = (avma - START) as usize + index * 8;
            self.bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
    }

    /// Makes an object of these words, with room for more.
    fn object(&mut self, words: &[u64]) -> u64 {
        let avma = self.next;
        self.next += (words.len() as u64 * 8 + 0x40).next_multiple_of(16);
        self.put(avma, words);
        avma
    }

    fn text(&mut self, text: &str) -> u64 {
        let state = 1 << 2 | 1 << 5 | 1 << 6;
        let avma = self.object(&[1, TEXT, text.len() as u64, 0, state, 0, 0, 0, 0, 0, 0, 0]);
        let at = (avma - START) as usize + self.known.text.ascii;
        self.bytes[at..at + text.len()].copy_from_slice(text.as_bytes());
        avma
    }

    fn number(&mut self, number: u32) -> u64 {
        let head = if self.known.objects.has_tagged_numbers { 1 << 3 } else { 1 };
        self.object(&[1, NUMBER, head, u64::from(number)])
    }

    /// Makes a table of keys, each with its hash, key and value.
    fn keys(&mut self, entries: &[[u64; 3]], has_hashes: bool) -> u64 {
        let count = entries.len() as u64;
        let mut words = match self.known.objects.keys {
            KeyTable::Sized => vec![1, 8, 0, 0, count, 0],
            KeyTable::Logarithmic => {
                vec![1, 0x0303 | u64::from(!has_hashes) << 16, 0, count, 0]
            }
        };
        let has_hashes = has_hashes || self.known.objects.keys == KeyTable::Sized;
        words.extend(entries.iter().flat_map(|it| &it[usize::from(!has_hashes)..]));
        self.object(&words)
    }

    fn dict(&mut self, entries: &[[u64; 3]], has_hashes: bool) -> u64 {
        let keys = self.keys(entries, has_hashes);
        self.object(&[1, DICT, entries.len() as u64, 0, keys, 0])
    }

    /// Makes an object of a class with these attributes. Its dictionary is used if `has_dict`.
    fn instance(&mut self, attributes: &[(&str, u64)], has_dict: bool) -> u64 {
        let named: Vec<[u64; 3]> =
            attributes.iter().map(|(name, value)| [7, self.text(name), *value]).collect();
        let (instance, values_at) = (self.known.objects.instance, self.known.objects.values);
        let cached = self.keys(&named, false);
        let kind = self.object(&[0; 120]);
        let flags = if instance == InstanceDict::Pointer { 0 } else { 1 << 4 };
        let flags = flags | if instance == InstanceDict::Inline { 1 << 2 } else { 0 };
        self.put(kind + 32, &[16]);
        self.put(kind + 168, &[flags]);
        self.put(kind + 288, &[16]);
        if self.known.objects.cached_keys > 0 {
            self.put(kind + self.known.objects.cached_keys, &[cached]);
        }
        let mut values = vec![1 << 24; (values_at / 8) as usize];
        values.extend(attributes.iter().map(|(_, value)| *value));
        let dict = self.dict(&named, false);
        let apart = self.object(&values);
        let whole = self.object(&[&[0, 0, 0, 0, 1, kind][..], &values].concat());
        let object = whole + 32;
        match instance {
            // A dictionary may have its values apart, too.
            InstanceDict::Pointer if has_dict => self.put(object + 16, &[dict]),
            InstanceDict::Pointer => {
                let split = self.object(&[1, DICT, 2, 0, cached, apart]);
                self.put(object + 16, &[split]);
            }
            _ if has_dict => self.put(object - 24, &[dict]),
            InstanceDict::Values => self.put(object - 32, &[apart]),
            InstanceDict::Tagged => self.put(object - 24, &[apart - 1]),
            InstanceDict::Inline => {}
        }
        object
    }

    /// Makes a process whose thread has a name, and whose object has the id `native`.
    fn of(minor: u8, has_dict: bool, native: u32) -> (Self, ThreadDirectory) {
        let known = structures(minor).unwrap();
        let mut made = Self { bytes: vec![0; 0x8000], known, next: FIRST };
        let block = made.object(&[0; 0x300 / 8]);
        made.put(block + 0x2d0, &[u64::from(TID)]);
        let (native, name) = (made.number(native), made.text("worker-3"));
        let other = made.text("other");
        let attributes = [("_target", other), ("_name", name), ("_native_id", native)];
        let thread = made.instance(&attributes, has_dict);
        let active = made.dict(&[[0, 0, 0], [block, native, thread]], true);
        let [key, other_key] = ["_active", "_limbo"].map(|name| made.text(name));
        let dict = made.dict(&[[1, other_key, other], [2, key, active]], false);
        let module = made.object(&[1, 0, dict]);
        let [key, other_key] = ["threading", "sys"].map(|name| made.text(name));
        let modules = made.dict(&[[1, other_key, other], [2, key, module]], false);
        let offsets = ThreadOffsets { interpreters: 0, modules: 0x80, ..known.threads };
        let offsets = ThreadOffsets { interpreter_next: 8, ..offsets };
        made.put(RUNTIME, &[INTERPRETER]);
        made.put(INTERPRETER + 0x80, &[modules]);
        let texts = Texts { offsets: known.text, references: known.references, kind: TEXT };
        let objects =
            PythonObjects { offsets: known.objects, texts, dict_type: DICT, number_type: NUMBER };
        (made, ThreadDirectory { offsets, runtime: RUNTIME, objects })
    }
}

fn read(made: &Made, directory: &ThreadDirectory, wanted: u32, first: u32) -> Vec<(u32, String)> {
    let tids = HashSet::from([wanted]);
    let wanted = WantedNames { tids: &tids, first };
    ThreadNameKeys::default().read(directory, made, wanted)
}

#[test]
fn names_of_each_version_are_found() {
    for minor in 8..=14 {
        for has_dict in [false, true] {
            let (made, directory) = Made::of(minor, has_dict, TID);
            let found = read(&made, &directory, TID, 1);
            assert_eq!(found, [(TID, "worker-3".to_owned())], "3.{minor} {has_dict}");
            assert!(read(&made, &directory, TID + 1, 1).is_empty(), "3.{minor}");
        }
    }
}

#[test]
fn an_object_of_another_thread_names_none_but_that_of_a_fork() {
    for minor in 8..=14 {
        let (made, directory) = Made::of(minor, false, TID - 1);
        assert!(read(&made, &directory, TID, 1).is_empty(), "3.{minor}");
        assert_eq!(read(&made, &directory, TID, TID).len(), 1, "3.{minor}: the only thread");
    }
}

#[test]
fn damaged_memory_holds() {
    let mut state = 11u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state >> 16
    };
    let mut named = 0;
    for round in 0..20_000 {
        let (mut made, directory) = Made::of(8 + (round % 7) as u8, round % 2 == 0, TID);
        for _ in 0..1 + round % 3 {
            let wild = [0, 1, u64::MAX, START + random() % 0x8000, random(), random() << 20];
            let word = wild[random() as usize % wild.len()];
            let area = made.next - FIRST;
            made.put(FIRST + random() % area / 8 * 8, &[word]);
        }
        let found = read(&made, &directory, TID, 1);
        named += found.len();
        assert!(found.iter().all(|(_, name)| !name.contains(char::is_control)));
    }
    assert!(named > 10_000, "{named}");
    // Interpreters, dictionaries and objects that lead to themselves.
    let (mut made, directory) = Made::of(12, false, TID);
    made.put(INTERPRETER + 8, &[INTERPRETER]);
    assert_eq!(read(&made, &directory, TID, 1).len(), INTERPRETERS_MAX);
}
