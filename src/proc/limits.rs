//! Limits of a process that matter to an agent.

use std::io;
use std::os::unix::fs::MetadataExt;

use super::Status;

/// Whether a process is dumpable, so that its own user may trace it. `None` for root's processes,
/// where this is not visible. The files of a process that is not dumpable belong to root.
pub fn is_dumpable(pid: i32, status: &Status) -> Option<bool> {
    let owner = std::fs::metadata(format!("/proc/{pid}/stat")).ok()?.uid();
    (status.euid != 0).then_some(owner == status.euid)
}

/// The soft limits of a process; `None` is unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResourceLimits {
    /// The limit of the address space in bytes (`ulimit -v` shows KiB).
    pub address_space: Option<u64>,
    /// The limit of locked memory in bytes (`ulimit -l` shows KiB).
    pub locked_memory: Option<u64>,
}

/// Reads the limits of a process.
pub fn limits(pid: i32) -> io::Result<ResourceLimits> {
    Ok(parse(&std::fs::read_to_string(format!("/proc/{pid}/limits"))?))
}

fn parse(text: &str) -> ResourceLimits {
    let soft = |name: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
        // The word "unlimited" is no number.
        rest.split_ascii_whitespace().next()?.parse().ok()
    };
    ResourceLimits {
        address_space: soft("Max address space"),
        locked_memory: soft("Max locked memory"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_limits_are_read_and_unlimited_is_none() {
        let text = "Limit                     Soft Limit           Hard Limit           Units\n\
                    Max locked memory         8388608              unlimited            bytes\n\
                    Max address space         unlimited            unlimited            bytes\n";
        let expected = ResourceLimits { address_space: None, locked_memory: Some(8_388_608) };
        assert_eq!(parse(text), expected);
        assert!(limits(std::process::id() as i32).is_ok());
    }
}
