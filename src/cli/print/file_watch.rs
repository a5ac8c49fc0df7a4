//! Waiting for a file to change.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use inotify::{Inotify, WatchMask};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Waits for changes of one file. Without inotify it waits for the time limit.
#[derive(Debug)]
pub(super) struct FileWatch {
    events: Option<Inotify>,
}

impl FileWatch {
    /// Watches the file at `path` from now on.
    pub(super) fn new(path: &Path) -> Self {
        Self { events: Self::events(path) }
    }

    fn events(path: &Path) -> Option<Inotify> {
        let events = Inotify::init().ok()?;
        let changes = WatchMask::MODIFY
            | WatchMask::CLOSE_WRITE
            | WatchMask::MOVE_SELF
            | WatchMask::DELETE_SELF;
        events.watches().add(path, changes).ok()?;
        Some(events)
    }

    /// Returns when the file changed since the last call, or after `limit`.
    pub(super) fn wait(&mut self, limit: Duration) {
        let Some(events) = &mut self.events else { return std::thread::sleep(limit) };
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
            match poll(&mut [PollFd::new(events.as_fd(), PollFlags::POLLIN)], timeout) {
                Ok(0) => return,
                // The reader finds out what changed.
                Ok(_) => return drop(events.read_events(&mut [0; 4096])),
                Err(nix::errno::Errno::EINTR) => {}
                Err(_) => return std::thread::sleep(left),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_change_ends_the_wait_and_is_forgotten() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let mut watch = FileWatch::new(file.path());
        file.write_all(b"x").unwrap();
        let started = Instant::now();
        watch.wait(Duration::from_secs(60));
        assert!(started.elapsed() < Duration::from_secs(30));
        let started = Instant::now();
        watch.wait(Duration::from_millis(50));
        // The system counts whole milliseconds.
        assert!(started.elapsed() >= Duration::from_millis(40), "reported twice");
    }

    #[test]
    fn without_notifications_time_passes() {
        let mut watch = FileWatch::new(Path::new("no/such/file"));
        let started = Instant::now();
        watch.wait(Duration::from_millis(20));
        assert!(started.elapsed() >= Duration::from_millis(20));
    }
}
