//! The identity of one program execution, so that data read from it is not used in the next.

use crate::inject::error::InjectError;
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
    ///
    /// # Errors
    /// Fails if this process has no descriptor or no memory left to find it out.
    pub(in crate::inject) fn of(pid: i32) -> Result<ExecIdentity, InjectError> {
        // A leader that exited before its threads has no readable memory.
        let others = std::iter::once_with(|| proc::tasks(pid).unwrap_or_default()).flatten();
        let mut shortage = None;
        for tid in std::iter::once(pid).chain(others) {
            match proc::random_bytes(tid) {
                Ok(Some((address, bytes))) => return Ok(ExecIdentity::Random(address, bytes)),
                Ok(None) => return Ok(ExecIdentity::NoRandomBytes),
                Err(error) if proc::is_shortage(&error) => shortage = Some(error),
                Err(_) => {}
            }
        }
        match shortage {
            Some(error) => Err(InjectError::reading("/proc/PID/auxv", &error)),
            None => Ok(ExecIdentity::Unknown),
        }
    }

    /// Whether the process is still in this execution, and in the middle of no exec.
    ///
    /// # Errors
    /// Those of [`ExecIdentity::of`].
    pub(in crate::inject) fn is_current(&self, pid: i32) -> Result<bool, InjectError> {
        Ok(*self != ExecIdentity::Unknown && ExecIdentity::of(pid)? == *self)
    }

    /// Whether the thread runs this execution. The answer holds while the thread is stopped.
    pub(in crate::inject) fn is_of(&self, stopped: &Stopped) -> Result<bool, InjectError> {
        match self {
            ExecIdentity::Random(address, bytes) => stopped.holds(*address, bytes),
            ExecIdentity::NoRandomBytes => Ok(true),
            ExecIdentity::Unknown => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_that_has_exited_has_no_known_identity() {
        let own = std::process::id() as i32;
        assert!(matches!(ExecIdentity::of(own), Ok(ExecIdentity::Random(..))));
        assert_eq!(ExecIdentity::of(own), ExecIdentity::of(own));
        assert_eq!(ExecIdentity::of(own).unwrap().is_current(own), Ok(true));
        assert_eq!(ExecIdentity::NoRandomBytes.is_current(own), Ok(false));
        assert_eq!(ExecIdentity::Unknown.is_current(own), Ok(false));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id() as i32;
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while proc::task_stat(pid, pid).unwrap().state != 'Z' {
            assert!(std::time::Instant::now() < deadline, "the child does not exit");
            std::thread::yield_now();
        }
        assert_eq!(ExecIdentity::of(pid), Ok(ExecIdentity::Unknown));
        child.wait().unwrap();
        assert_eq!(ExecIdentity::of(pid), Ok(ExecIdentity::Unknown));
    }
}
