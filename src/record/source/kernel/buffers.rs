//! The size of the buffers for samples without a signal, and the number of their descriptors.

use std::io;

use crate::proc::{self, DescriptorUse, descriptor_limit};

/// Memory for all ring buffers together.
const RING_BUFFERS_LEN: usize = 64 << 20;
const RING_MAX: usize = 4 << 20;
const RING_MIN: usize = 256 << 10;
/// The maximum number of descriptors, one for each core of each thread at attach.
const DESCRIPTORS_MAX: usize = 32768;

/// Returns the number of stack bytes to copy with each sample: fewer at high rates.
pub(super) fn stack_len(period_ns: u64) -> u32 {
    if period_ns >= 2_000_000 { 32 << 10 } else { 16 << 10 }
}

/// Returns the bytes of each core's buffer, a power of two.
pub(super) fn ring_len(cores: usize) -> usize {
    1 << (RING_BUFFERS_LEN / cores.max(1)).clamp(RING_MIN, RING_MAX).ilog2()
}

/// Checks that one descriptor for each thread on each core is within the limit; some are open
/// already.
pub(super) fn check_descriptors(pid: i32, cores: usize, open: usize) -> io::Result<()> {
    let threads = proc::tasks(pid)?.len().max(1);
    let wanted = threads.saturating_mul(cores);
    if wanted.saturating_add(open) > DESCRIPTORS_MAX {
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    DescriptorUse::Events.check(wanted as u64).map_err(|_| {
        let (left, limit) = (DescriptorUse::Events.left(), descriptor_limit());
        io::Error::other(format!(
            "its events need {wanted} descriptors, and {left} are left of {limit} (see `ulimit \
             -Hn`)"
        ))
    })
}
