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
    /// From a thread to its context, and to its thread pointer.
    pub(super) thread_context: u64,
    pub(super) thread_pointer: u64,
    /// From a context to its thread.
    pub(super) context_thread: u64,
    /// The largest number of an operator, which is its own index in the table of symbols.
    pub(super) operator_max: u64,
    /// From a body to the entries of its lines, the length of an entry, and the index of them.
    pub(super) lines: u64,
    pub(super) line_len: u64,
    pub(super) lines_index: u64,
}

/// Returns the structures of a minor version.
pub(super) fn structures(minor: (u32, u32)) -> Option<RubyStructures> {
    (minor == (3, 1)).then_some(V3_1)
}

const V3_1: RubyStructures = RubyStructures {
    layout: RubyLayout {
        context_kind: 0,
        context_offset: 0,
        context_module: 0,
        context_stack: 144,
        context_stack_len: 160,
        frame_len: 64,
        body_path: 64,
        body_name: 80,
        body_place: 88,
        body_lines_len: 136,
        body_compiled: 280,
        class_number: 32,
        reserved: [0; 3],
    },
    first_thread: 40,
    thread_context: 40,
    thread_pointer: 80,
    context_thread: 48,
    operator_max: 169,
    lines: 120,
    line_len: 12,
    lines_index: 144,
};
