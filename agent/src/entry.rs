//! The entry that the injection calls as one step of its chain.
//!
//! # Safety
//! Installs a signal handler whose code is this image's.

use traceprof_abi::layout::{AgentError, AgentState, MAGIC, Operation, SAMPLING, SignalAction};
use traceprof_abi::segment::DataSegment;
use traceprof_abi::sync::Ordering;

use crate::sys::{self, KernelSigaction};

/// Carries out one [`Operation`]; returns 0 or a negated errno.
///
/// # Safety
/// `data` is the target's data segment; `handler` and `restorer` are this image's and stay mapped
/// until the disposition is changed back.
pub unsafe fn run(op: u64, data: DataSegment, handler: u64, restorer: u64) -> i64 {
    const EINVAL: i64 = -22;
    let control = data.control();
    // Relaxed throughout: the recorder wrote all of it before the chain was started, and reads the
    // results after the chain's end, which it learns from `state` (Release below).
    if control.magic.load(Ordering::Relaxed) != MAGIC
        || control.version.load(Ordering::Relaxed) != traceprof_abi::ABI_VERSION
    {
        control.error.store(AgentError::Version as u32, Ordering::Relaxed);
        return EINVAL;
    }
    if op != Operation::Install as u64 {
        return EINVAL;
    }
    let ours: KernelSigaction = [handler, sys::SA_FLAGS, restorer, u64::MAX];
    // SAFETY: see this function's contract.
    let result = unsafe { install(&control.signals[SAMPLING], &ours) };
    if result == 0 {
        // Release: tells the recorder that all of the above is done.
        control.state.store(AgentState::Installed as u32, Ordering::Release);
    } else {
        control.error.store(AgentError::SigactionFailed as u32, Ordering::Relaxed);
        control.error_detail.store(result.unsigned_abs() as u32, Ordering::Relaxed);
    }
    result
}

/// # Safety
/// As for [`run`].
unsafe fn install(action: &SignalAction, ours: &KernelSigaction) -> i64 {
    let signal = action.signal.load(Ordering::Relaxed) as i32;
    let mut old: KernelSigaction = [0; 4];
    let store = |to: &[traceprof_abi::sync::AtomicU64; 4], from: &KernelSigaction| {
        to.iter().zip(from).for_each(|(word, value)| word.store(*value, Ordering::Relaxed));
    };
    store(&action.our_action, ours);
    // The old action is stored by a query first, so that a hit between installing and storing (an
    // event of another profiler) is chained rightly.
    let result = sys::query_sigaction(signal, &mut old);
    if result != 0 {
        return result;
    }
    store(&action.old_action, &old);
    // SAFETY: promised by the caller.
    let result = unsafe { sys::sigaction(signal, ours, &mut old) };
    if result == 0 {
        store(&action.old_action, &old);
        action.installed.store(1, Ordering::Relaxed);
    }
    result
}
