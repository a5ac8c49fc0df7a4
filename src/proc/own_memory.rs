//! The memory of this process.

use std::fs;

use nix::unistd::{SysconfVar, sysconf};

/// Returns the bytes of memory that this process holds for itself: heap and stacks, without pages
/// of files and without what is swapped out. `None` without /proc.
pub fn anonymous_bytes() -> Option<u64> {
    let page = sysconf(SysconfVar::PAGE_SIZE).ok().flatten()?;
    let text = fs::read_to_string("/proc/self/statm").ok()?;
    // The fields are: size, resident, shared.
    let mut fields = text.split_ascii_whitespace().skip(1).map(str::parse::<u64>);
    let (resident, shared) = (fields.next()?.ok()?, fields.next()?.ok()?);
    Some(resident.saturating_sub(shared).saturating_mul(u64::try_from(page).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_written_counts() {
        let before = anonymous_bytes().unwrap();
        let bytes = vec![1u8; 32 << 20];
        let after = anonymous_bytes().unwrap();
        assert!(after >= before + (30 << 20), "{before} {after}");
        drop(bytes);
    }
}
