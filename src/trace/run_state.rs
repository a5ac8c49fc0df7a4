//! What a thread does by the scheduler's account.

/// The run state of a sample. Its number is what the format stores.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum RunState {
    /// It runs on a processor.
    #[default]
    Running = 0,
    /// It could run, and waits for a processor.
    Runnable = 1,
    /// It sleeps until something happens; a signal would wake it.
    Sleeping = 2,
    /// It sleeps in the kernel, mostly for a disk, and no signal wakes it.
    Disk = 3,
    /// Job control or a debugger has stopped it.
    Stopped = 4,
}

impl RunState {
    /// All states in the order of their numbers.
    pub const ALL: [Self; 5] =
        [Self::Running, Self::Runnable, Self::Sleeping, Self::Disk, Self::Stopped];

    /// The state with this number, if there is one.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Its name in views and on the command line.
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
