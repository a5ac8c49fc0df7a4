//! Where the fields of the interpreter's structures are, by version.
//!
//! The numbers are those of CPython's headers on a 64-bit machine, in builds without
//! `Py_TRACE_REFS`. Patch releases of a version share them. From 3.13 on, the interpreter publishes
//! most of them ([`super::published`]).

use traceprof_abi::runtime::python::{ABSENT, COOKIE_WORDS, Instruction, PythonLayout, TaskLayout};

use super::lines::LineFormat;
use super::lock::LockPlace;

/// The fields by which an interpreter's threads are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::runtime) struct ThreadOffsets {
    /// From the runtime's state to the first interpreter.
    pub(in crate::runtime) interpreters: u64,
    /// From an interpreter to the next one.
    pub(in crate::runtime) interpreter_next: u64,
    /// From an interpreter to the state of its first thread.
    pub(in crate::runtime) interpreter_threads: u64,
    /// From a thread's state to the next one.
    pub(in crate::runtime) state_next: u64,
    /// From a thread's state to its interpreter.
    pub(in crate::runtime) state_interpreter: u64,
    /// From a thread's state to the thread's `pthread_t`, which is its thread pointer.
    pub(in crate::runtime) state_pointer: u64,
    /// From a thread's state to the kernel's id of the thread, from 3.11 on.
    pub(in crate::runtime) state_tid: Option<u64>,
    /// From an interpreter to the pointer to its dictionary of modules, or 0 if it is unknown.
    pub(in crate::runtime) modules: u64,
    /// Where the interpreters' locks are.
    pub(in crate::runtime) lock: LockPlace,
}

impl ThreadOffsets {
    /// Returns a layout with what a handler needs to find the states of a thread. `runtime` is the
    /// address of the runtime's state.
    pub(super) fn in_layout(&self, runtime: u64, layout: PythonLayout) -> Option<PythonLayout> {
        let short = |offset: u64| u16::try_from(offset).ok();
        Some(PythonLayout {
            interpreters: runtime.wrapping_add(self.interpreters),
            interpreter_next: short(self.interpreter_next)?,
            interpreter_threads: short(self.interpreter_threads)?,
            state_next: short(self.state_next)?,
            state_pointer: short(self.state_pointer)?,
            ..layout
        })
    }
}

/// The fields of a code object that name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::runtime) struct CodeOffsets {
    /// The length of a code object without its instructions, as its type has it.
    pub(in crate::runtime) len: usize,
    /// The qualified name, or before 3.11 the name.
    pub(in crate::runtime) name: usize,
    pub(in crate::runtime) file: usize,
    pub(in crate::runtime) first_line: usize,
    pub(in crate::runtime) lines: usize,
}

/// Where a string has its characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::runtime) struct TextOffsets {
    /// From a string of ASCII characters to the first one.
    pub(in crate::runtime) ascii: usize,
    /// From another string to its first character.
    pub(in crate::runtime) other: usize,
}

/// The number in an object that counts the references to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::runtime) enum ReferenceCount {
    /// A word.
    Word,
    /// Half a word, before an overflow that is 0 in code objects and strings (3.14).
    Half,
}

/// How a dictionary keeps the number of places in its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::runtime) enum KeyTable {
    /// As a word.
    Sized,
    /// As logarithms of the number and of the table's size; a third byte is 0 if the entries have
    /// hashes (3.11 and later).
    Logarithmic,
}

/// Where an object of a class has its attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::runtime) enum InstanceDict {
    /// In a dictionary, whose pointer is at an offset that the class has.
    Pointer,
    /// In a dictionary or in values, each with a pointer in front of the object (3.11).
    Values,
    /// The same with one pointer, which is odd if it leads to values (3.12).
    Tagged,
    /// In a dictionary, or in values behind the object (3.13 and later).
    Inline,
}

/// The objects that have the names of threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::runtime) struct ObjectOffsets {
    pub(in crate::runtime) keys: KeyTable,
    pub(in crate::runtime) instance: InstanceDict,
    /// From a class to the keys of its objects' values.
    pub(in crate::runtime) cached_keys: u64,
    /// From the start of values to the first one.
    pub(in crate::runtime) values: u64,
    /// Whether numbers have a tag instead of a signed number of digits.
    pub(in crate::runtime) has_tagged_numbers: bool,
}

/// The structures of one version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::runtime) struct Structures {
    pub(in crate::runtime) threads: ThreadOffsets,
    /// The layout for the handlers, with zeros for what differs between processes.
    pub(in crate::runtime) layout: PythonLayout,
    pub(in crate::runtime) code: CodeOffsets,
    pub(in crate::runtime) text: TextOffsets,
    pub(in crate::runtime) objects: ObjectOffsets,
    pub(in crate::runtime) references: ReferenceCount,
    pub(in crate::runtime) lines: LineFormat,
    /// From the runtime's state to the key that holds the states of threads.
    pub(in crate::runtime) key: u32,
    /// From the runtime's state to the state of the thread that holds the lock. From 3.12 on, each
    /// thread tells for itself.
    pub(in crate::runtime) current_state: Option<u64>,
}

/// Returns the structures of a minor version.
pub(in crate::runtime) fn structures(minor: u8) -> Option<Structures> {
    Some(match minor {
        8 => V3_8,
        9 => V3_9,
        10 => V3_10,
        11 => V3_11,
        12 => V3_12,
        13 => V3_13,
        14 => V3_14,
        _ => return None,
    })
}

const NO_COOKIE: [u16; COOKIE_WORDS] = [ABSENT; COOKIE_WORDS];

const V3_8: Structures = Structures {
    threads: ThreadOffsets {
        interpreters: 32,
        interpreter_next: 0,
        interpreter_threads: 8,
        state_next: 8,
        state_interpreter: 16,
        state_pointer: 176,
        state_tid: None,
        modules: 56,
        lock: LockPlace::Runtime(0x480),
    },
    layout: PythonLayout {
        state_kind: 0,
        state_offset: 0,
        state_module: 0,
        key: 0,
        key_value: u64::MAX,
        current_state: 0,
        code_type: 0,
        code_mask: !0,
        interpreters: 0,
        task: TaskLayout::NONE,
        state_frame: 24,
        chain_frame: ABSENT,
        frame_previous: 24,
        frame_code: 32,
        frame_instruction: 104,
        instruction: Instruction::Bytes as u16,
        frame_entry: ABSENT,
        frame_owner: ABSENT,
        owner_shim: 0,
        is_each_entry: 1,
        code_start: 0,
        // No field is unique: names, constants, variables, file, name, line table; flags, first
        // line.
        cookie_words: [56, 64, 72, 104, 112, 120],
        cookie_halves: [36, 40, ABSENT],
        cookie_name: 112,
        // The threads' offsets follow from others.
        interpreter_next: 0,
        interpreter_threads: 0,
        state_next: 0,
        state_pointer: 0,
        state_call: ABSENT,
        call_previous: ABSENT,
        reserved: [0; 1],
    },
    code: CodeOffsets { len: 176, name: 112, file: 104, first_line: 40, lines: 120 },
    text: TextOffsets { ascii: 48, other: 72 },
    objects: ObjectOffsets {
        keys: KeyTable::Sized,
        instance: InstanceDict::Pointer,
        cached_keys: 0,
        values: 0,
        has_tagged_numbers: false,
    },
    references: ReferenceCount::Word,
    lines: LineFormat::Deltas,
    key: 1392,
    current_state: Some(0x558),
};

const V3_9: Structures = Structures {
    threads: ThreadOffsets { modules: 856, lock: LockPlace::Runtime(0x160), ..V3_8.threads },
    key: 584,
    current_state: Some(0x238),
    ..V3_8
};

const V3_10: Structures = Structures {
    layout: PythonLayout {
        frame_instruction: 96,
        instruction: Instruction::Units as u16,
        state_call: 48,
        call_previous: 8,
        ..V3_9.layout
    },
    lines: LineFormat::Ranges,
    ..V3_9
};

const V3_11: Structures = Structures {
    threads: ThreadOffsets {
        interpreters: 40,
        interpreter_threads: 16,
        state_pointer: 152,
        state_tid: Some(160),
        modules: 888,
        lock: LockPlace::Runtime(0x168),
        ..V3_10.threads
    },
    layout: PythonLayout {
        state_frame: 56,
        chain_frame: 8,
        frame_previous: 48,
        frame_code: 32,
        frame_instruction: 56,
        instruction: Instruction::Pointer as u16,
        frame_entry: 68,
        is_each_entry: 0,
        code_start: 184,
        // The word with the flags also counts calls, so only its own half is used.
        cookie_words: [24, 32, 112, 120, 128, 136],
        cookie_halves: [48, 72, ABSENT],
        cookie_name: 128,
        state_call: 56,
        call_previous: 16,
        ..V3_10.layout
    },
    code: CodeOffsets { len: 184, name: 128, file: 112, first_line: 72, lines: 136 },
    objects: ObjectOffsets {
        keys: KeyTable::Logarithmic,
        instance: InstanceDict::Values,
        cached_keys: 872,
        ..V3_10.objects
    },
    lines: LineFormat::Locations,
    key: 592,
    current_state: Some(0x240),
    ..V3_10
};

const V3_12: Structures = Structures {
    threads: ThreadOffsets {
        interpreter_threads: 72,
        state_pointer: 136,
        state_tid: Some(144),
        modules: 944,
        lock: LockPlace::Interpreter(0x180),
        ..V3_11.threads
    },
    layout: PythonLayout {
        chain_frame: 0,
        frame_previous: 8,
        frame_code: 0,
        frame_entry: ABSENT,
        frame_owner: 70,
        owner_shim: 3,
        code_start: 192,
        cookie_words: NO_COOKIE,
        // The version, which is unique, and the first line.
        cookie_halves: [92, 68, ABSENT],
        cookie_name: ABSENT,
        // A frame on the stack marks each call.
        state_call: ABSENT,
        call_previous: ABSENT,
        ..V3_11.layout
    },
    code: CodeOffsets { len: 192, first_line: 68, ..V3_11.code },
    text: TextOffsets { ascii: 40, other: 56 },
    objects: ObjectOffsets {
        instance: InstanceDict::Tagged,
        cached_keys: 880,
        has_tagged_numbers: true,
        ..V3_11.objects
    },
    key: 1544,
    current_state: None,
    ..V3_11
};

const V3_13: Structures = Structures {
    threads: ThreadOffsets {
        interpreters: 632,
        interpreter_next: 7264,
        interpreter_threads: 7344,
        state_pointer: 152,
        state_tid: Some(160),
        modules: 7656,
        lock: LockPlace::Interpreter(0x10),
        ..V3_12.threads
    },
    layout: PythonLayout { state_frame: 72, chain_frame: ABSENT, code_start: 200, ..V3_12.layout },
    code: CodeOffsets { len: 200, ..V3_12.code },
    objects: ObjectOffsets { instance: InstanceDict::Inline, values: 8, ..V3_12.objects },
    key: 2160,
    ..V3_12
};

const V3_14: Structures = Structures {
    layout: PythonLayout {
        // References to code objects carry tags.
        code_mask: !3,
        // As the module `_asyncio` has them in its section `.AsyncioDebug`.
        task: TaskLayout {
            number_type: 0,
            text_type: 0,
            state_task: 872,
            size: 168,
            name: 136,
            mark: 108,
        },
        frame_owner: 74,
        code_start: 208,
        ..V3_13.layout
    },
    code: CodeOffsets { len: 208, ..V3_13.code },
    references: ReferenceCount::Half,
    key: 2336,
    ..V3_13
};
