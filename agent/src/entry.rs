//! The entry that the injection calls as one step of its chain.
//!
//! # Safety
//! Installs a signal handler whose code is this image's.

use traceprof_abi::layout::{AgentError, AgentState, MAGIC};
use traceprof_abi::segment::DataSegment;
use traceprof_abi::sync::Ordering;

use crate::sys::{self, KernelSigaction};

/// Install the handler, sampling stays off.
pub const OP_INSTALL: u64 = 1;
/// Swallow signals from now on.
pub const OP_STOP: u64 = 2;

/// Carries out one operation; returns 0 or a negated errno.
///
/// # Safety
/// `data` is the target's data segment; `handler` and `restorer` are this image's and stay mapped
/// until the disposition is changed back.
pub unsafe fn run(op: u64, data: DataSegment, handler: u64, restorer: u64) -> i64 {
    const EINVAL: i64 = -22;
    let control = data.control();
    // Relaxed throughout: the recorder wrote all of it before the chain was started, and reads the
    // results after the chain's end, which it learns from `state` (Release below).
    let set = |state: AgentState| control.state.store(state as u32, Ordering::Release);
    if control.magic.load(Ordering::Relaxed) != MAGIC
        || control.version.load(Ordering::Relaxed) != traceprof_abi::ABI_VERSION
    {
        control.error.store(AgentError::Version as u32, Ordering::Relaxed);
        return EINVAL;
    }
    match op {
        OP_INSTALL => {
            let ours: KernelSigaction = [handler, sys::SA_FLAGS, restorer, u64::MAX];
            let mut old: KernelSigaction = [0; 4];
            let signal = control.signal.load(Ordering::Relaxed) as i32;
            // The old action is stored by a query first, so that a hit between installing and
            // storing (an event of another profiler) is chained rightly.
            // SAFETY: see this function's contract.
            let result = unsafe { install(signal, &ours, &mut old, control) };
            if result == 0 {
                set(AgentState::Installed);
            } else {
                control.error.store(AgentError::SigactionFailed as u32, Ordering::Relaxed);
                control.error_detail.store(result.unsigned_abs() as u32, Ordering::Relaxed);
            }
            result
        }
        OP_STOP => {
            set(AgentState::Stopped);
            0
        }
        _ => EINVAL,
    }
}

/// # Safety
/// As for [`run`].
unsafe fn install(
    signal: i32,
    ours: &KernelSigaction,
    old: &mut KernelSigaction,
    control: &traceprof_abi::layout::ControlBlock,
) -> i64 {
    for (word, value) in control.our_action.iter().zip(ours) {
        word.store(*value, Ordering::Relaxed);
    }
    let result = sys::query_sigaction(signal, old);
    if result != 0 {
        return result;
    }
    for (word, value) in control.old_action.iter().zip(&*old) {
        word.store(*value, Ordering::Relaxed);
    }
    // SAFETY: promised by the caller.
    let result = unsafe { sys::sigaction(signal, ours, old) };
    if result == 0 {
        for (word, value) in control.old_action.iter().zip(&*old) {
            word.store(*value, Ordering::Relaxed);
        }
    }
    result
}
