//! Where the fields of the interpreter's structures are, by version.
//!
//! The numbers are those of PHP's headers on a 64-bit machine. Patch releases of a version share
//! them, because extensions are compiled for all of them.

use traceprof_abi::runtime::php::{ABSENT, PhpLayout};

/// The places of the interpreter's global variables, from the first one on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GlobalOffsets {
    /// The innermost frame.
    pub(super) current: u32,
    /// An address on the stack of the thread that runs PHP code.
    pub(super) bailout: u32,
    /// The position at which an exception was thrown, and the positions that stand for it behind.
    pub(super) thrown: Option<u32>,
}

/// Where a function has the definitions of the closures in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClosureOffsets {
    /// Their number, which has 32 bits.
    pub(super) count: u16,
    /// The address of the list of their addresses.
    pub(super) list: u16,
}

/// The structures of one version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PhpStructures {
    pub(super) globals: GlobalOffsets,
    pub(super) closures: ClosureOffsets,
    /// The layout for the handlers, with zeros for what differs between processes.
    pub(super) layout: PhpLayout,
}

/// Returns the structures of the version whose interface for extensions has this number.
pub(super) fn structures(interface: u32) -> Option<PhpStructures> {
    Some(match interface {
        20_210_902 => V8_1,
        20_220_829 => V8_2,
        20_230_831 => V8_3,
        20_240_924 => V8_4,
        _ => return None,
    })
}

const V8_2: PhpStructures = PhpStructures {
    globals: GlobalOffsets { current: 488, bailout: 416, thrown: Some(880) },
    closures: ClosureOffsets { count: 180, list: 192 },
    layout: PhpLayout {
        current: 0,
        bailout: 0,
        thrown: 0,
        handling: 0,
        loop_start: 0,
        loop_end: 0,
        code: 88,
        code_len: 80,
        file: 152,
        lines: 160,
        generator_frame: 56,
        generator_inner: 152,
        generator_placeholder: 184,
        has_registers: 0,
    },
};

/// What is not known of 8.1 and 8.3 is left out: how generators delegate, and where exceptions are.
const V8_1: PhpStructures = PhpStructures {
    globals: GlobalOffsets { thrown: None, ..V8_2.globals },
    closures: ClosureOffsets { count: 172, list: 184 },
    layout: PhpLayout {
        code: 72,
        code_len: 68,
        file: 144,
        lines: 152,
        generator_frame: ABSENT,
        ..V8_2.layout
    },
};

const V8_3: PhpStructures =
    PhpStructures { layout: PhpLayout { code: 80, code_len: 76, ..V8_1.layout }, ..V8_1 };

const V8_4: PhpStructures = PhpStructures {
    globals: GlobalOffsets { thrown: Some(952), ..V8_2.globals },
    closures: ClosureOffsets { count: 188, list: 200 },
    layout: PhpLayout { code: 104, code_len: 96, file: 168, lines: 176, ..V8_2.layout },
};
