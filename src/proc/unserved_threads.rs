//! Threads that wait for a processor.

use super::{TaskClock, Turns, tasks};

/// Threads of a process that were ready to run at some moment, and have not run since.
#[derive(Debug)]
pub struct UnservedThreads(Vec<(TaskClock, Turns)>);

impl UnservedThreads {
    /// Returns all threads that are ready to run now.
    pub fn of(pid: i32) -> Self {
        let clocks = tasks(pid).unwrap_or_default().into_iter();
        let clocks = clocks.filter_map(|tid| TaskClock::open(pid, tid).ok());
        let ready = clocks.filter(is_ready);
        Self(ready.filter_map(|clock| clock.turns().ok().map(|turns| (clock, turns))).collect())
    }

    /// Whether one of these threads is still ready and has not run. A kernel that does not count
    /// shows none.
    pub fn remain(&mut self) -> bool {
        self.0.retain(|(clock, before)| {
            *before != Turns::default()
                && is_ready(clock)
                && clock.turns().is_ok_and(|turns| turns == *before)
        });
        !self.0.is_empty()
    }
}

fn is_ready(clock: &TaskClock) -> bool {
    clock.state().is_ok_and(|state| state == 'R')
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn thread_that_runs_or_sleeps_is_no_longer_unserved() {
        let mut command = std::process::Command::new("sh");
        let mut child = command.args(["-c", "while :; do :; done"]).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut unserved = UnservedThreads::of(child.id() as i32);
        while unserved.remain() {
            assert!(Instant::now() < deadline, "it gets no processor");
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!UnservedThreads::of(child.id() as i32).remain(), "it has exited");
    }
}
