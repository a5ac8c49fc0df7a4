//! Waiting for a file to change.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

/// Waits for changes of one file; a system that refuses notifications is asked by and by instead.
#[derive(Debug)]
pub(super) struct Watch {
    events: Option<Inotify>,
}

impl Watch {
    /// Watches the file at `path` from now on.
    pub(super) fn new(path: &Path) -> Self {
        Self { events: Self::events(path) }
    }

    fn events(path: &Path) -> Option<Inotify> {
        let events = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).ok()?;
        let changes = AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_DELETE_SELF;
        events.add_watch(path, changes).ok()?;
        Some(events)
    }

    /// Returns when the file changed since the last call, or after `limit`.
    pub(super) fn wait(&self, limit: Duration) {
        let Some(events) = &self.events else { return std::thread::sleep(limit) };
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
            match poll(&mut [PollFd::new(events.as_fd(), PollFlags::POLLIN)], timeout) {
                Ok(0) => return,
                // Which change it was does not matter: the reader looks for itself.
                Ok(_) => return drop(events.read_events()),
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
        let watch = Watch::new(file.path());
        file.write_all(b"x").unwrap();
        let started = Instant::now();
        watch.wait(Duration::from_secs(60));
        assert!(started.elapsed() < Duration::from_secs(30));
        let started = Instant::now();
        watch.wait(Duration::from_millis(50));
        // The system counts in whole milliseconds.
        assert!(started.elapsed() >= Duration::from_millis(40), "told twice");
    }

    #[test]
    fn without_notifications_time_passes() {
        let watch = Watch::new(Path::new("no/such/file"));
        let started = Instant::now();
        watch.wait(Duration::from_millis(20));
        assert!(started.elapsed() >= Duration::from_millis(20));
    }
}
