//! The namespaces that a process shares with this one.

use std::io;
use std::os::unix::fs::MetadataExt;

/// A kind of namespace that matters to a recorder, or to its user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Namespace {
    /// Process ids.
    Pid,
    /// Mounts: the files that paths lead to.
    Mount,
    /// Users: the meaning of user ids.
    User,
    /// Network devices.
    Network,
    /// System V shared memory.
    Ipc,
}

impl Namespace {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Pid, Self::Mount, Self::User, Self::Network, Self::Ipc];

    /// Returns the name in `/proc/PID/ns`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pid => "pid",
            Self::Mount => "mnt",
            Self::User => "user",
            Self::Network => "net",
            Self::Ipc => "ipc",
        }
    }
}

/// Whether a process is in the same namespace of this kind as this process.
pub fn same_namespace(pid: i32, kind: Namespace) -> io::Result<bool> {
    let name = kind.name();
    let theirs = std::fs::metadata(format!("/proc/{pid}/ns/{name}"))?;
    let ours = std::fs::metadata(format!("/proc/self/ns/{name}"))?;
    Ok((theirs.dev(), theirs.ino()) == (ours.dev(), ours.ino()))
}

/// Whether `/proc` shows the pids of this process's namespace. It may be mounted for another one.
pub fn is_of_own_namespace() -> bool {
    let own = std::process::id().to_string();
    std::fs::read_link("/proc/self").is_ok_and(|link| link.as_os_str() == own.as_str())
}

/// Whether this process is in the initial user namespace, the only one whose capabilities apply to
/// the complete machine.
pub fn is_initial_user_namespace() -> bool {
    /// The kernel's fixed inode number of that namespace (`PROC_USER_INIT_INO`).
    const INITIAL: u64 = 0xefff_fffd;
    std::fs::metadata("/proc/self/ns/user").is_ok_and(|namespace| namespace.ino() == INITIAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_shares_all_namespaces_with_itself() {
        let own = std::process::id() as i32;
        for kind in Namespace::ALL {
            assert!(same_namespace(own, kind).unwrap(), "{kind:?}");
        }
        assert!(same_namespace(i32::MAX, Namespace::Pid).is_err());
    }
}
