//! Files that trigger a save of the ring when they appear or are written.
//!
//! # Invariants
//! - All processes of a recording share one inotify instance: a user may have only 128.
//! - Inotify makes the trigger fast, and scans of the files make it reliable. Inotify does not
//!   report writes by other machines on a network file system, or to the target of a symbolic link
//!   in another folder. The folder may also be replaced.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use inotify::{Event, EventMask, Inotify, WatchDescriptor, WatchMask};

use crate::record::write::trigger::CHECK_INTERVAL;
use crate::trace::directory_of;

/// The number of reads per turn of the loop. The next turn reads the remainder of a burst.
const READS: usize = 64;
/// The buffer size of a read, in bytes: room for at least a few events with long names.
const READ_BYTES: usize = 4096;
/// The events for a file that appears or is written.
const WRITTEN: EventMask = EventMask::CREATE.union(EventMask::MOVED_TO).union(EventMask::MODIFY);

/// Device, inode, modification time (seconds and nanoseconds) and length of a file.
type FileStamp = (u64, u64, i64, i64, u64);

/// The files of all triggers.
#[derive(Debug)]
pub(super) struct TriggerFiles {
    /// The inotify instance, if the kernel granted one.
    events: Option<Inotify>,
    files: Vec<WatchedFile>,
    /// The time of the last scan.
    last: Option<Instant>,
}

#[derive(Debug)]
struct WatchedFile {
    path: PathBuf,
    /// The watch on its folder.
    folder: Option<WatchDescriptor>,
    state: Option<FileStamp>,
}

impl TriggerFiles {
    /// Watches these files from now on.
    pub(super) fn new(paths: Vec<PathBuf>) -> Self {
        let events = if paths.is_empty() { None } else { Inotify::init().ok() };
        Self::with(events, paths)
    }

    fn with(events: Option<Inotify>, paths: Vec<PathBuf>) -> Self {
        let watched = |path: PathBuf| {
            // The watch comes first: inotify then reports changes between the two.
            let folder = events.as_ref().and_then(|events| watch(events, &path));
            WatchedFile { folder, state: state_of(&path), path }
        };
        let files = paths.into_iter().map(watched).collect();
        Self { events, files, last: None }
    }

    /// Returns the last file that was written since the previous call. This is cheap enough for
    /// every turn of a loop.
    pub(super) fn poll(&mut self, now: Instant) -> Option<&Path> {
        let report = self.read_events();
        let is_late =
            self.last.is_none_or(|last| now.saturating_duration_since(last) >= CHECK_INTERVAL);
        let seen = if is_late || report.is_overflow { self.scan(now) } else { None };
        report.file.or(seen).and_then(|index| self.files.get(index)).map(|file| file.path.as_path())
    }

    /// Polls at the end, with a scan in any case: no later scan will find unreported writes.
    pub(super) fn final_poll(&mut self, now: Instant) -> Option<&Path> {
        self.last = None;
        self.poll(now)
    }

    /// Reads the pending inotify events. The loop does not wait for events: it turns often enough,
    /// and a busy folder would wake it all the time.
    fn read_events(&mut self) -> InotifyReport {
        let mut report = InotifyReport::default();
        let mut buffer = [0; READ_BYTES];
        for _ in 0..READS {
            let read = self.events.as_mut().map(|events| events.read_events(&mut buffer));
            let Some(Ok(events)) = read else { break };
            for event in events {
                report.is_overflow |= event.mask.contains(EventMask::Q_OVERFLOW);
                self.forget_folder(&event);
                for (index, file) in self.files.iter_mut().enumerate() {
                    if file.is_written(&event) {
                        report.file = Some(index);
                    }
                }
            }
        }
        report
    }

    /// Drops the watch on a folder that was moved or removed.
    fn forget_folder(&mut self, event: &Event<&OsStr>) {
        if !event.mask.intersects(EventMask::MOVE_SELF | EventMask::IGNORED) {
            return;
        }
        let its = self.files.iter_mut().filter(|file| file.folder.as_ref() == Some(&event.wd));
        its.for_each(|file| file.folder = None);
        if let Some(events) = self.events.as_ref().filter(|_| event.name.is_none()) {
            // The kernel has dropped the watch already if the folder was removed.
            let _ = events.watches().remove(event.wd.clone());
        }
    }

    /// Scans the files for changes. Also watches folders that did not exist before.
    fn scan(&mut self, now: Instant) -> Option<usize> {
        self.last = Some(now);
        let mut written = None;
        for (index, file) in self.files.iter_mut().enumerate() {
            file.folder = self.events.as_ref().and_then(|events| watch(events, &file.path));
            if file.is_changed() {
                written = Some(index);
            }
        }
        written
    }
}

#[derive(Debug, Default)]
struct InotifyReport {
    file: Option<usize>,
    /// Whether the event queue overflowed.
    is_overflow: bool,
}

impl WatchedFile {
    fn is_written(&mut self, event: &Event<&OsStr>) -> bool {
        let is_its = self.folder.as_ref() == Some(&event.wd);
        let is_it = is_its && event.name == self.path.file_name();
        // `is_changed` always stores the state, so that the next scan does not find the same write.
        is_it && (self.is_changed() || event.mask.intersects(WRITTEN))
    }

    /// Whether the file exists and its state differs from the previous call.
    fn is_changed(&mut self) -> bool {
        let state = state_of(&self.path);
        let is_changed = state.is_some() && state != self.state;
        self.state = state;
        is_changed
    }
}

/// Watches a file's folder for changes. A folder that is watched already returns the same watch.
fn watch(events: &Inotify, path: &Path) -> Option<WatchDescriptor> {
    let _: &OsStr = path.file_name()?;
    // ATTRIB covers touch, which writes nothing; the file's state decides about a change.
    let written = WatchMask::CREATE | WatchMask::MOVED_TO | WatchMask::MODIFY;
    let changes = written | WatchMask::ATTRIB | WatchMask::MOVE_SELF | WatchMask::ONLYDIR;
    events.watches().add(directory_of(path), changes).ok()
}

fn state_of(path: &Path) -> Option<FileStamp> {
    let meta = fs::metadata(path).ok()?;
    Some((meta.dev(), meta.ino(), meta.mtime(), meta.mtime_nsec(), meta.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the path of a file that does not exist yet, in a folder that does.
    fn new_path() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        (dir, path)
    }

    fn watched(path: &Path) -> TriggerFiles {
        let files = TriggerFiles::new(vec![path.to_owned()]);
        assert!(files.events.is_some(), "no inotify instance, which this test needs");
        files
    }

    #[test]
    fn inotify_reports_a_file_between_two_scans() {
        let (dir, path) = new_path();
        let mut files = watched(&path);
        let now = Instant::now();
        // All polls have the time of the first scan, so there is no other scan.
        let mut is_reported = || files.poll(now).is_some();
        assert!(!is_reported());
        fs::write(&path, "a").unwrap();
        assert!(is_reported() && !is_reported());
        fs::write(&path, "b").unwrap();
        assert!(is_reported());
        let times = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH);
        fs::File::options().append(true).open(&path).unwrap().set_times(times).unwrap();
        assert!(is_reported(), "touched");
        fs::remove_file(&path).unwrap();
        fs::write(dir.path().join("other"), "").unwrap();
        assert!(!is_reported(), "removed, and there is another file");
        fs::rename(dir.path().join("other"), &path).unwrap();
        assert!(is_reported() && !is_reported());
        // The file is removed before the next poll.
        fs::write(dir.path().join("x2"), "").unwrap();
        fs::rename(dir.path().join("x2"), &path).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(is_reported());
    }

    #[test]
    fn a_reported_write_is_not_found_again_by_the_next_scan() {
        let (_dir, path) = new_path();
        let mut files = watched(&path);
        let now = Instant::now();
        assert!(files.poll(now).is_none());
        fs::write(&path, "a").unwrap();
        assert!(files.poll(now).is_some());
        assert!(files.poll(now + CHECK_INTERVAL).is_none());
    }

    #[test]
    fn without_inotify_scans_find_a_file() {
        let (_dir, path) = new_path();
        let mut files = TriggerFiles::with(None, vec![path.clone()]);
        let now = Instant::now();
        let mut is_seen = |checks| files.poll(now + CHECK_INTERVAL * checks).is_some();
        assert!(!is_seen(0));
        fs::write(&path, "a").unwrap();
        assert!(!is_seen(0), "there is no inotify to report it");
        assert!(is_seen(1) && !is_seen(2));
        fs::write(&path, "ab").unwrap();
        assert!(is_seen(3));
        fs::write(&path, "abc").unwrap();
        assert!(files.poll(now + CHECK_INTERVAL * 3).is_none());
        assert!(files.final_poll(now + CHECK_INTERVAL * 3).is_some(), "there is no later scan");
        let mut is_seen = |checks| files.poll(now + CHECK_INTERVAL * checks).is_some();
        fs::remove_file(&path).unwrap();
        assert!(!is_seen(4));
    }

    #[test]
    fn scans_find_writes_to_the_target_of_a_link() {
        let (dir, path) = new_path();
        let elsewhere = tempfile::tempdir().unwrap();
        let real = elsewhere.path().join("real");
        fs::write(&real, "a").unwrap();
        std::os::unix::fs::symlink(&real, &path).unwrap();
        let mut files = watched(&path);
        let now = Instant::now();
        assert!(files.poll(now).is_none());
        fs::write(&real, "ab").unwrap();
        assert!(files.poll(now).is_none() && files.poll(now + CHECK_INTERVAL).is_some());
        drop(dir);
    }

    #[test]
    fn a_new_or_replaced_folder_is_watched() {
        let (dir, _) = new_path();
        let (folder, old) = (dir.path().join("folder"), dir.path().join("old"));
        let path = folder.join("x");
        let mut files = watched(&path);
        let now = Instant::now();
        assert!(files.poll(now).is_none());
        for checks in [1, 2] {
            fs::create_dir(&folder).unwrap();
            assert!(files.poll(now + CHECK_INTERVAL * checks).is_none());
            fs::write(&path, "a").unwrap();
            assert!(
                files.poll(now + CHECK_INTERVAL * checks).is_some(),
                "reported without another scan"
            );
            fs::rename(&folder, &old).unwrap();
            fs::write(old.join("x"), "ab").unwrap();
            assert!(
                files.poll(now + CHECK_INTERVAL * checks).is_none(),
                "that is another folder now"
            );
            fs::remove_dir_all(&old).unwrap();
        }
        drop(dir);
    }
}
