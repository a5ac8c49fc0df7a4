//! The state of a thread in the scheduler.

/// The run state of a sample. Its number is what the format stores.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum RunState {
    /// Running on a processor.
    #[default]
    Running = 0,
    /// Ready to run, waiting for a processor.
    Runnable = 1,
    /// Sleeping until an event; a signal would wake it.
    Sleeping = 2,
    /// Sleeping in the kernel, mostly for a disk; no signal wakes it.
    Disk = 3,
    /// Stopped by job control or a debugger.
    Stopped = 4,
}

impl RunState {
    /// All states in the order of their numbers.
    pub const ALL: [Self; 5] =
        [Self::Running, Self::Runnable, Self::Sleeping, Self::Disk, Self::Stopped];

    /// Returns the state with this number, if there is one.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Returns the name in views and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Runnable => "runnable",
            Self::Sleeping => "sleeping",
            Self::Disk => "disk",
            Self::Stopped => "stopped",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_format() {
        for (number, state) in (0..).zip(RunState::ALL) {
            assert_eq!((state as u8, RunState::from_number(number)), (number, Some(state)));
        }
        assert_eq!(RunState::from_number(5), None);
    }
}
