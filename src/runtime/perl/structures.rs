//! Where the fields of the interpreter's structures are, by version.
//!
//! The numbers are those of Perl's headers on a 64-bit machine.

use traceprof_abi::runtime::perl::PerlLayout;

/// The structures of one version and build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PerlStructures {
    /// The layout for the handlers, with zeros for what differs between processes.
    pub(super) layout: PerlLayout,
    /// The length of an interpreter, which the build exports.
    pub(super) interpreter_len: u16,
}

/// Returns the structures of a minor version, as built with threads.
pub(super) fn structures(minor: u8) -> Option<PerlStructures> {
    (minor == 36).then_some(V5_36)
}

const V5_36: PerlStructures = PerlStructures {
    layout: PerlLayout {
        context_kind: 0,
        context_offset: 0,
        context_module: 0,
        operation: 8,
        statement: 208,
        stack: 224,
        program: 1816,
        evaluated: 1824,
        statement_type: 195,
        string_type: 345,
        compiling: 1936,
    },
    interpreter_len: 3768,
};
