//! One execution of a program, so that nothing read of it is used in the next.

use crate::inject::stop::Stopped;
use crate::proc;

/// One execution of a program. A process keeps its pid and start time when it executes another
/// program, and without address randomization the code keeps its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::inject) enum Execution {
    /// The random bytes that the kernel gave the program (AT_RANDOM), and their address.
    Drawn(u64, [u8; 16]),
    /// The program has no such bytes that can be read.
    Nameless,
    /// The process was just executing a program, or ending.
    Unsettled,
}

impl Execution {
    /// The current execution. [`Execution::is_of`] confirms for a thread that is stopped later that
    /// what was read in between belongs to it.
    pub(in crate::inject) fn of(pid: i32) -> Execution {
        // A leader that left its threads behind has nothing to read.
        let others = std::iter::once_with(|| proc::tasks(pid).unwrap_or_default()).flatten();
        let known = std::iter::once(pid).chain(others).find_map(|tid| proc::drawn_bytes(tid).ok());
        match known {
            Some(Some((address, bytes))) => Execution::Drawn(address, bytes),
            Some(None) => Execution::Nameless,
            None => Execution::Unsettled,
        }
    }

    /// Whether the thread runs this execution, which it does as long as it is stopped.
    pub(in crate::inject) fn is_of(&self, stopped: &Stopped) -> bool {
        match self {
            Execution::Drawn(address, bytes) => stopped.holds(*address, bytes),
            Execution::Nameless => true,
            Execution::Unsettled => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_that_is_gone_has_no_settled_execution() {
        let own = std::process::id() as i32;
        assert!(matches!(Execution::of(own), Execution::Drawn(..)));
        assert_eq!(Execution::of(own), Execution::of(own));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id() as i32;
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while proc::task_stat(pid, pid).unwrap().state != 'Z' {
            assert!(std::time::Instant::now() < deadline, "it does not end");
            std::thread::yield_now();
        }
        assert_eq!(Execution::of(pid), Execution::Unsettled);
        child.wait().unwrap();
        assert_eq!(Execution::of(pid), Execution::Unsettled);
    }
}
