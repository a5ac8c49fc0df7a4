//! The processor-specific part: registers, signal frames, instruction patterns, call classes.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(super) use x86_64::*;

#[cfg(not(target_arch = "x86_64"))]
compile_error!("traceprof attaches on x86_64 only");
