//! Where the fields of the interpreter's structures are, by version.
//!
//! The numbers are those of Ruby's headers on a 64-bit machine.

use traceprof_abi::runtime::ruby::RubyLayout;

/// The structures of one version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RubyStructures {
    /// The layout for the handlers, with zeros for what differs between processes.
    pub(super) layout: RubyLayout,
    /// From the machine to its first thread.
    pub(super) first_thread: u64,
    /// From a thread to the machine, and to its context.
    pub(super) thread_machine: u64,
    pub(super) thread_context: u64,
    /// From a thread to its thread pointer, from one structure to the next.
    pub(super) thread_pointer: &'static [u64],
    /// From a context to its thread.
    pub(super) context_thread: u64,
    /// The largest number of an operator, which is its own index in the table of symbols.
    pub(super) operator_max: u64,
    /// The bits behind a body's first line in its word.
    pub(super) first_line_shift: u32,
    /// The bits with the number of elements in an array's flags.
    pub(super) elements_mask: u64,
    /// From a class to a word, and the bit in it that its name is for good. Only where classes have
    /// their names in themselves.
    pub(super) class_is_named: (u64, u64),
    /// From a body to the entries of its lines, the length of an entry, and the index of them.
    pub(super) lines: u64,
    pub(super) line_len: u64,
    pub(super) lines_index: u64,
}

/// Returns the structures of a minor version.
pub(super) fn structures(minor: (u32, u32)) -> Option<RubyStructures> {
    match minor {
        (3, 1) => Some(V3_1),
        (3, 3) => Some(V3_3),
        _ => None,
    }
}

const V3_1: RubyStructures = RubyStructures {
    layout: RubyLayout {
        context_kind: 0,
        context_offset: 0,
        context_module: 0,
        context_stack: 144,
        context_stack_len: 160,
        frame_len: 64,
        frame_compiled: 0,
        body_path: 64,
        body_name: 80,
        body_place: 88,
        body_place_words: 4,
        body_lines_len: 136,
        body_compiled: 280,
        class_number: 32,
        class_name: 0,
        class_object: 0,
        text_start: 16,
        reserved: [0; 2],
    },
    first_thread: 40,
    thread_machine: 32,
    thread_context: 40,
    thread_pointer: &[80],
    context_thread: 48,
    operator_max: 169,
    first_line_shift: 1,
    elements_mask: 0x3,
    class_is_named: (0, 0),
    lines: 120,
    line_len: 12,
    lines_index: 144,
};

const V3_3: RubyStructures = RubyStructures {
    layout: RubyLayout {
        context_stack: 152,
        context_stack_len: 168,
        frame_len: 56,
        frame_compiled: 48,
        body_path: 64,
        body_name: 80,
        body_place: 88,
        body_place_words: 3,
        body_lines_len: 128,
        body_compiled: 288,
        class_number: 0,
        class_name: 152,
        class_object: 128,
        text_start: 24,
        ..V3_1.layout
    },
    thread_context: 48,
    thread_pointer: &[40, 16],
    first_line_shift: 0,
    elements_mask: 0x7f,
    class_is_named: (144, 1 << 40),
    lines: 112,
    lines_index: 136,
    ..V3_1
};
