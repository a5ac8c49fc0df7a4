//! The identity of one program execution, so that data read from it is not used in the next.

use crate::inject::stop::Stopped;
use crate::proc;

/// The identity of one program execution. A process keeps its pid and start time when it executes
/// another program, and without address randomization the code keeps its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::inject) enum ExecIdentity {
    /// The random bytes that the kernel gave the program (AT_RANDOM), and their address.
    Random(u64, [u8; 16]),
    /// The program has no such bytes that are readable.
    NoRandomBytes,
    /// The process was in the middle of an exec or of its exit.
    Unknown,
}

impl ExecIdentity {
    /// Returns the identity of the current execution. [`ExecIdentity::is_of`] later confirms, for a
    /// stopped thread, that everything read in between belongs to this execution.
    pub(in crate::inject) fn of(pid: i32) -> ExecIdentity {
        // A leader that exited before its threads has no readable memory.
        let others = std::iter::once_with(|| proc::tasks(pid).unwrap_or_default()).flatten();
        let known = std::iter::once(pid).chain(others).find_map(|tid| proc::random_bytes(tid).ok());
        match known {
            Some(Some((address, bytes))) => ExecIdentity::Random(address, bytes),
            Some(None) => ExecIdentity::NoRandomBytes,
            None => ExecIdentity::Unknown,
        }
    }

    /// Whether the thread runs this execution. The answer holds while the thread is stopped.
    pub(in crate::inject) fn is_of(&self, stopped: &Stopped) -> bool {
        match self {
            ExecIdentity::Random(address, bytes) => stopped.holds(*address, bytes),
            ExecIdentity::NoRandomBytes => true,
            ExecIdentity::Unknown => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_that_has_exited_has_no_known_identity() {
        let own = std::process::id() as i32;
        assert!(matches!(ExecIdentity::of(own), ExecIdentity::Random(..)));
        assert_eq!(ExecIdentity::of(own), ExecIdentity::of(own));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id() as i32;
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while proc::task_stat(pid, pid).unwrap().state != 'Z' {
            assert!(std::time::Instant::now() < deadline, "the child does not exit");
            std::thread::yield_now();
        }
        assert_eq!(ExecIdentity::of(pid), ExecIdentity::Unknown);
        child.wait().unwrap();
        assert_eq!(ExecIdentity::of(pid), ExecIdentity::Unknown);
    }
}
