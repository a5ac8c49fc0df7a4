//! The Yama security module, which may forbid an attach that the kernel would permit.

use super::refusal::Refusal;
use crate::proc;

const CAP_SYS_PTRACE: u32 = 19;

/// Returns the value of `kernel.yama.ptrace_scope`, 0 without Yama.
pub fn yama_scope() -> u32 {
    proc::sysctl("kernel.yama.ptrace_scope").and_then(|scope| scope.try_into().ok()).unwrap_or(0)
}

/// Returns Yama's refusal of an attach by this process, if Yama forbids one that its user might
/// make otherwise.
pub(super) fn yama_refusal() -> Option<Refusal> {
    let own = proc::status(std::process::id() as i32).ok()?;
    let is_capable = own.cap_effective >> CAP_SYS_PTRACE & 1 == 1;
    match yama_scope() {
        scope @ 3.. => Some(Refusal::Yama { scope }),
        scope @ 1..=2 if !is_capable => Some(Refusal::Yama { scope }),
        _ => None,
    }
}
