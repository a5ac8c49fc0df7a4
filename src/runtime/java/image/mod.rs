//! The memory of a process with a Java machine, made by hand: it describes itself, and has a heap
//! of code with a compiled method, the interpreter and a stub, and two threads.

mod description;
mod threads;

use std::collections::HashMap;

use self::description::{CONSTANTS, FIELDS, SIZES, STATICS, base_of, room_of};
pub(super) use self::threads::TIDS;
use self::threads::{Carrier, THREAD_OFFSET};
use super::exports::{JavaExports, TableSymbols};
use super::tables::Field;
use crate::elf::TlsAccess;

/// Addresses relative to the start of the memory: what the symbols of the tables name, and static
/// fields.
const SYMBOLS: u64 = 0;
const STATIC_WORDS: u64 = 0x100;
const ROOM: u64 = 0x300;
/// Numbers of words of an entry: of a field, and of a type or constant.
const FIELD_WORDS: u64 = 6;
const PAIR_WORDS: u64 = 2;
/// The heap of code: log2 of the size of a segment, and the numbers of segments of its blocks.
const SHIFT: u32 = 7;
const BLOCK_SEGMENTS: u64 = 8;
const BLOCK_LEN: u64 = BLOCK_SEGMENTS << SHIFT;
/// The size of the header of a block, and the place and length of the code in a blob.
const HEADER: u64 = 16;
const CODE: u64 = 400;
const CODE_LEN: u64 = 64;
/// Where the parts of the debug information are in a blob, or outside.
const METHODS: u64 = 480;
const SCOPES: u64 = 512;
const POSITIONS: u64 = 544;
const POSITIONS_LEN: u64 = 4 * 16;
/// The shift of references of four bytes, whose base is the start of the memory.
const NARROW_SHIFT: u32 = 3;

/// The memory.
pub(super) struct JavaImage {
    pub(super) bytes: Vec<u8>,
    /// The address of the compiled method's code, and that of its structure.
    pub(super) code: u64,
    pub(super) method: u64,
    /// The first thread, and the virtual thread that it carries.
    pub(super) carrier: Carrier,
    start: u64,
    version: u8,
    fields: HashMap<&'static str, Field>,
    statics: HashMap<&'static str, u64>,
}

/// Returns the exports of the file whose machine a [`JavaImage`] has.
pub(super) fn exports() -> JavaExports {
    JavaExports {
        path: "libjvm.so".to_owned(),
        fields: symbols(SYMBOLS),
        types: symbols(SYMBOLS + 64),
        ints: symbols(SYMBOLS + 96),
        longs: symbols(SYMBOLS + 128),
        threads: vec![TlsAccess::Offset(THREAD_OFFSET.wrapping_neg())],
    }
}

/// Returns the symbols of a table, which lie one behind the other.
fn symbols<const N: usize>(at: u64) -> TableSymbols<N> {
    let offsets = std::array::from_fn(|index| at + 16 + index as u64 * 8);
    TableSymbols { entries: at, stride: at + 8, offsets }
}

impl JavaImage {
    /// Makes the memory of a process with a machine of this version. It starts at an address.
    pub(super) fn of(version: u8, start: u64) -> Self {
        let mut image = Self {
            bytes: vec![0; ROOM as usize],
            code: 0,
            method: 0,
            carrier: Carrier::default(),
            start,
            version,
            fields: HashMap::new(),
            statics: HashMap::new(),
        };
        image.describe();
        image.options();
        image.method = image.methods();
        image.heap();
        image.threads();
        image.counters();
        image
    }

    fn has(&self, (first, last): (u8, u8)) -> bool {
        (first..=last).contains(&self.version)
    }

    fn put(&mut self, avma: u64, bytes: &[u8]) {
        self.bytes[(avma - self.start) as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn word(&mut self, avma: u64, value: u64) {
        self.put(avma, &value.to_le_bytes());
    }

    fn half(&mut self, avma: u64, value: u64) {
        self.put(avma, &(value as u32).to_le_bytes());
    }

    /// Returns the address of so many bytes that nothing else has.
    fn room(&mut self, len: u64) -> u64 {
        let at = self.bytes.len().next_multiple_of(8);
        self.bytes.resize(at + len as usize, 0);
        self.start + at as u64
    }

    fn words(&mut self, words: &[u64]) -> u64 {
        let at = self.room(words.len() as u64 * 8);
        for (index, word) in words.iter().enumerate() {
            self.word(at + index as u64 * 8, *word);
        }
        at
    }

    fn text(&mut self, text: &str) -> u64 {
        let at = self.room(text.len() as u64 + 1);
        self.put(at, text.as_bytes());
        at
    }

    /// Sets a field of a structure, if the version has it.
    fn set(&mut self, structure: u64, name: &str, value: u64) {
        if let Some(field) = self.fields.get(name).copied() {
            let len = (field.end() - field.at) as usize;
            self.put(structure + field.at, &value.to_le_bytes()[..len]);
        }
    }

    /// Sets a static field, if the version has it.
    fn set_static(&mut self, name: &str, value: u64) {
        if let Some(at) = self.statics.get(name).copied() {
            self.word(at, value);
        }
    }

    /// Writes the tables.
    fn describe(&mut self) {
        let mut ends: HashMap<&str, u64> = HashMap::new();
        let mut entries = Vec::new();
        for (name, kind, first, last) in FIELDS {
            if !self.has((*first, *last)) {
                continue;
            }
            let (structure, _) = name.rsplit_once("::").unwrap_or_default();
            let end = ends.entry(base_of(structure)).or_default();
            self.fields.insert(name, Field::new(*end, kind));
            entries.push((*name, *kind, [0, *end, 0]));
            *end += room_of(kind);
        }
        for (index, (name, kind, first, last)) in STATICS.iter().enumerate() {
            if self.has((*first, *last)) {
                let at = self.start + STATIC_WORDS + index as u64 * 8;
                self.statics.insert(name, at);
                entries.push((*name, *kind, [1, 0, at]));
            }
        }
        let mut words = Vec::new();
        for (name, kind, [is_static, offset, address]) in entries {
            let (structure, field) = name.rsplit_once("::").unwrap_or_default();
            let [structure, field, kind] = [structure, field, kind].map(|it| self.text(it));
            words.extend([structure, field, kind, is_static, offset, address]);
        }
        self.table(SYMBOLS, FIELD_WORDS, &words);
        for (symbols, pairs) in [(64, SIZES), (96, CONSTANTS), (128, &[])] {
            let words = pairs.iter().flat_map(|(name, value)| [self.text(name), *value]);
            let words: Vec<u64> = words.collect();
            self.table(SYMBOLS + symbols, PAIR_WORDS, &words);
        }
    }

    /// Writes a table whose entries have so many words, and what its symbols name.
    fn table(&mut self, symbols: u64, words_each: u64, words: &[u64]) {
        let end = vec![0; words_each as usize];
        let entries = self.words(&[words, &end].concat());
        let symbols = self.start + symbols;
        self.word(symbols, entries);
        self.word(symbols + 8, words_each * 8);
        for index in 0..words_each {
            self.word(symbols + 16 + index * 8, index * 8);
        }
    }

    /// Writes the version and the options.
    fn options(&mut self) {
        let version = u64::from(self.version);
        for name in ["JDK_Version::_current", "Abstract_VM_Version::_vm_major_version"] {
            self.set_static(name, version);
        }
        let release = self.text(&format!("{version}.0.1+1"));
        self.set_static("Abstract_VM_Version::_s_vm_release", release);
        let (on, mut flags) = (self.words(&[1]), Vec::new());
        for name in ["UseCompressedOops", "UseCompressedClassPointers", "UseSerialGC"] {
            flags.extend([self.text(name), on]);
        }
        let flags = self.words(&flags);
        for kind in ["Flag", "JVMFlag"] {
            self.set_static(&format!("{kind}::flags"), flags);
            self.set_static(&format!("{kind}::numFlags"), 3);
        }
        for structure in ["Universe", "CompressedOops", "CompressedKlassPointers"] {
            for field in ["", "_narrow_oop.", "_narrow_klass."] {
                // A name with both ends in a point and the name.
                let name = |part: &str| match field.strip_suffix('.') {
                    Some(field) => format!("{structure}::{field}._{part}"),
                    None => format!("{structure}::_{part}"),
                };
                self.set_static(&name("base"), self.start);
                self.set_static(&name("shift"), u64::from(NARROW_SHIFT));
            }
        }
    }

    fn narrow(&self, avma: u64) -> u64 {
        (avma - self.start) >> NARROW_SHIFT
    }

    fn symbol(&mut self, text: &str) -> u64 {
        let symbol = self.room(16 + text.len() as u64);
        self.set(symbol, "Symbol::_length", text.len() as u64);
        let body = self.fields.get("Symbol::_body").map_or(0, |field| field.at);
        self.put(symbol + body, text.as_bytes());
        symbol
    }

    /// Writes a class with fields, given by name, signature and offset. Its pool has these texts
    /// behind the names and signatures of the fields, which begin at slot 1.
    fn class(&mut self, name: &str, fields: &[(&str, &str, u64)], texts: &[&str]) -> u64 {
        let class = self.room(128);
        let all = fields.iter().flat_map(|(name, signature, _)| [*name, *signature]);
        let all: Vec<&str> = all.chain(texts.iter().copied()).collect();
        let pool = self.room(64 + 8 * (all.len() as u64 + 1));
        for (index, text) in all.iter().enumerate() {
            let symbol = self.symbol(text);
            self.word(pool + 72 + index as u64 * 8, symbol);
        }
        self.set(pool, "ConstantPool::_length", all.len() as u64 + 1);
        self.set(pool, "ConstantPool::_pool_holder", class);
        let name = self.symbol(name);
        self.set(class, "Klass::_name", name);
        self.set(class, "InstanceKlass::_constants", pool);
        let (mut shorts, mut numbers) = (Vec::new(), vec![fields.len() as u64, 0]);
        for (index, (_, _, offset)) in fields.iter().enumerate() {
            let slot = index as u64 * 2 + 1;
            shorts.extend([0, slot, slot + 1, 0, offset << 2 | 1, 0]);
            numbers.extend([slot, slot + 1, *offset, 0, 0]);
        }
        let array = self.room(64 + shorts.len() as u64 * 2);
        let numbers: Vec<u8> = numbers.iter().map(|it| self.number(*it)).collect();
        let shorts: Vec<u8> = shorts.iter().flat_map(|it| (*it as u16).to_le_bytes()).collect();
        let data = |name| self.fields.get(name).map_or(0, |field: &Field| field.at);
        let (kind, at) = match self.version {
            ..21 => (&shorts, data("Array<u2>::_data")),
            _ => (&numbers, data("Array<u1>::_data")),
        };
        self.put(array + at, kind);
        self.set(array, "Array<int>::_length", kind.len() as u64);
        self.set(class, "InstanceKlass::_fields", array);
        self.set(class, "InstanceKlass::_java_fields_count", fields.len() as u64);
        self.set(class, "InstanceKlass::_fieldinfo_stream", array);
        class
    }

    /// Returns the byte of a small number of variable length.
    fn number(&self, number: u64) -> u8 {
        number as u8 + u8::from(self.version > 17)
    }

    fn pool_of(&self, class: u64) -> u64 {
        let at = self.fields.get("InstanceKlass::_constants").map_or(0, |field| field.at);
        let at = (class + at - self.start) as usize;
        self.bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes)
    }

    /// Writes a class with two methods, and returns the address of the first one. The other one
    /// follows.
    fn methods(&mut self) -> u64 {
        let texts = ["größe", "inlined", "(I)I", "Hand.java"];
        let class = self.class("of/Hand", &[], &texts);
        let pool = self.pool_of(class);
        for structure in [("ConstantPool", pool), ("InstanceKlass", class)] {
            self.set(structure.1, &format!("{}::_source_file_name_index", structure.0), 4);
        }
        let first = self.room(128);
        for name in 1..=2 {
            let constant = self.room(128);
            let fields = [
                ("_constants", pool),
                ("_constMethod_size", 16),
                ("_flags", 1),
                ("_flags._flags", 1),
                ("_code_size", 16),
                ("_name_index", name),
                ("_signature_index", 3),
            ];
            for (field, value) in fields {
                self.set(constant, &format!("ConstMethod::{field}"), value);
            }
            // Line 5, and line 7 from the fourth bytecode on.
            self.put(constant + 64 + 16, &[5, 4 << 3 | 2, 0]);
            self.set(first + (name - 1) * 64, "Method::_constMethod", constant);
        }
        first
    }

    /// Writes a heap of code with three blobs.
    fn heap(&mut self) {
        let len = 3 * BLOCK_LEN;
        let at = self.bytes.len().next_multiple_of(1 << SHIFT);
        self.bytes.resize(at + len as usize, 0);
        let (low, heap) = (self.start + at as u64, self.room(256));
        let map: Vec<u8> = (0..3 * BLOCK_SEGMENTS).map(|it| (it % BLOCK_SEGMENTS) as u8).collect();
        let map_at = self.room(map.len() as u64);
        self.put(map_at, &map);
        let at = |name| self.fields.get(name).map_or(0, |field: &Field| field.at);
        let (memory, segment_map) =
            (heap + at("CodeHeap::_memory"), heap + at("CodeHeap::_segmap"));
        self.set(memory, "VirtualSpace::_low", low);
        self.set(memory, "VirtualSpace::_high", low + len);
        self.set(memory, "VirtualSpace::_high_boundary", low + len);
        self.set(segment_map, "VirtualSpace::_low", map_at);
        self.set(heap, "CodeHeap::_log2_segment_size", u64::from(SHIFT));
        self.set_static("CodeCache::_heap", heap);
        let (heaps, array) = (self.words(&[heap]), self.room(64));
        for name in ["GenericGrowableArray::_len", "GrowableArrayBase::_len"] {
            self.set(array, name, 1);
        }
        self.set(array, "GrowableArray<int>::_data", heaps);
        self.set_static("CodeCache::_heaps", array);
        let names = ["nmethod", "Interpreter", "StubRoutines (1)"];
        for (index, name) in names.iter().enumerate() {
            let block = low + index as u64 * BLOCK_LEN;
            self.set(block, "HeapBlock::Header::_length", BLOCK_SEGMENTS);
            self.set(block, "HeapBlock::Header::_used", 1);
            self.blob(block + HEADER, name);
        }
        self.code = low + HEADER + CODE;
        self.compiled(low + HEADER);
        self.interpreter(self.code + BLOCK_LEN);
        let stub = self.code + 2 * BLOCK_LEN;
        self.set_static("StubRoutines::_call_stub_entry", stub);
        self.set_static("StubRoutines::_call_stub_return_address", stub + 6);
    }

    /// Sets a place that a structure stores as a pointer, or as an offset.
    fn set_place(&mut self, structure: u64, [pointer, offset]: [&str; 2], avma: u64) {
        self.set(structure, pointer, avma);
        self.set(structure, offset, avma - structure);
    }

    fn blob(&mut self, blob: u64, name: &str) {
        let name = self.text(name);
        self.set(blob, "CodeBlob::_name", name);
        self.set(blob, "CodeBlob::_size", BLOCK_LEN - HEADER);
        let (code, end) = (blob + CODE, blob + CODE + CODE_LEN);
        self.set_place(blob, ["CodeBlob::_code_begin", "CodeBlob::_code_offset"], code);
        self.set_place(blob, ["CodeBlob::_code_end", "CodeBlob::_data_offset"], end);
        self.set(blob, "CodeBlob::_frame_size", 4);
        self.set(blob, "CodeBlob::_frame_complete_offset", 5);
        // A frame of four words: push rbp; sub rsp, 16; nop; add rsp, 16; pop rbp; ret
        let code = [0x55, 0x48, 0x83, 0xec, 0x10, 0x90, 0x48, 0x83, 0xc4, 0x10, 0x5d, 0xc3];
        self.put(blob + CODE, &code);
    }

    /// Writes what a compiled method has besides, into which another one is inlined.
    fn compiled(&mut self, blob: u64) {
        let code = blob + CODE;
        for name in ["nmethod::_method", "CompiledMethod::_method"] {
            self.set(blob, name, self.method);
        }
        self.set(blob, "nmethod::_compile_id", 77);
        self.set(blob, "nmethod::_comp_level", 4);
        self.set(blob, "nmethod::_entry_bci", u64::MAX);
        let deopt = ["CompiledMethod::_deopt_handler_begin", "nmethod::_deoptimize_offset"];
        self.set_place(blob, deopt, code + 40);
        let deopt = ["CompiledMethod::_deopt_mh_handler_begin", "nmethod::_deoptimize_mh_offset"];
        self.set_place(blob, deopt, code + 44);
        self.set(blob, "nmethod::_deopt_handler_offset", CODE + 40);
        self.set(blob, "nmethod::_deopt_mh_handler_offset", CODE + 44);
        self.set(blob, "nmethod::_stub_offset", CODE + 48);
        self.put(code + 48, &[0x48, 0xbb, 1, 2, 3, 4, 5, 6, 7, 8, 0xe9, 1, 2, 3, 4]);
        self.set(blob, "nmethod::_verified_entry_point", code);
        self.set(blob, "nmethod::_osr_entry_point", code);
        self.set(blob, "nmethod::_orig_pc_offset", 8);
        self.debug(blob);
    }

    fn debug(&mut self, blob: u64) {
        let [method, inlined] = [self.method, self.method + 64];
        let (methods, scopes, positions) = match self.version {
            25 => {
                let (data, mutable) = (self.room(POSITIONS_LEN + 16), self.room(64));
                self.set(blob, "nmethod::_immutable_data", data);
                self.set(blob, "nmethod::_immutable_data_size", POSITIONS_LEN + 16);
                self.set(blob, "nmethod::_scopes_data_offset", POSITIONS_LEN);
                self.set(blob, "nmethod::_scopes_pcs_offset", 0);
                self.set(blob, "CodeBlob::_mutable_data", mutable);
                self.set(blob, "CodeBlob::_mutable_data_size", 48);
                self.set(blob, "CodeBlob::_relocation_size", 32);
                (mutable + 32, data + POSITIONS_LEN, data)
            }
            _ => {
                let places = ["CompiledMethod::_scopes_data_begin", "nmethod::_scopes_data_offset"];
                self.set_place(blob, places, blob + SCOPES);
                self.set(blob, "nmethod::_metadata_offset", METHODS);
                self.set(blob, "nmethod::_scopes_pcs_offset", POSITIONS);
                self.set(blob, "nmethod::_dependencies_offset", POSITIONS + POSITIONS_LEN);
                (blob + METHODS, blob + SCOPES, blob + POSITIONS)
            }
        };
        self.word(methods, method);
        self.word(methods + 8, inlined);
        // The method at bytecode 4, and in it the inlined one at bytecode 0.
        let numbers = [0, 0, 1, 5, 1, 2, 1].map(|it| self.number(it));
        self.put(scopes, &numbers);
        for (index, (pc, scope)) in [(u64::MAX, 0), (5, 1), (10, 4), (60, 0)].iter().enumerate() {
            let position = positions + index as u64 * 16;
            self.set(position, "PcDesc::_pc_offset", *pc);
            self.set(position, "PcDesc::_scope_decode_offset", *scope);
        }
    }

    /// Makes the code of a blob the only part of the interpreter.
    fn interpreter(&mut self, code: u64) {
        let name = self.text("method entry point (kind = zerolocals)");
        let (queue, body) = (self.room(64), (code + 32).next_multiple_of(32));
        self.put(code, &[0; 16]);
        self.set(queue, "StubQueue::_stub_buffer", code);
        self.set(queue, "StubQueue::_queue_end", CODE_LEN);
        self.set(code, "InterpreterCodelet::_size", CODE_LEN);
        self.set(code, "InterpreterCodelet::_description", name);
        let end = (code + CODE_LEN - body) as usize;
        self.put(body, &[0x55, 0x48, 0x8b, 0xec, 0x5d, 0xc3][..end.min(6)]);
        self.set_static("AbstractInterpreter::_code", queue);
    }
}
