//! The instructions of a seccomp filter, as the kernel returns them to a tracer.

use serde::{Deserialize, Serialize};

/// The longest program that the kernel accepts.
pub(super) const LEN_MAX: usize = 4096;

/// One instruction: `struct sock_filter`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(in crate::inject) struct FilterInstruction {
    pub(in crate::inject) code: u16,
    pub(in crate::inject) jump_true: u8,
    pub(in crate::inject) jump_false: u8,
    pub(in crate::inject) operand: u32,
}
