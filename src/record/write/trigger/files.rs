//! Files that ask for the ring to be saved when they appear or are written.
//!
//! # Invariants
//! - There is one watch for all processes of a recording: a user may have 128 instances of inotify
//!   only.
//! - What the kernel tells makes it quick, looks at the files make it sure: a network file system
//!   tells nothing of what other machines do, a symbolic link leads to another folder, and the
//!   folder may be replaced.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use inotify::{Event, EventMask, Inotify, WatchDescriptor, WatchMask};

use crate::record::write::trigger::LOOK;
use crate::trace::directory_of;

/// Readings of a turn; what is left of a storm is read in the next one.
const READS: usize = 64;
/// Bytes of a reading: at least a few events with long names.
const READ_BYTES: usize = 4096;
/// The file appears, or something is written to it.
const WRITTEN: EventMask = EventMask::CREATE.union(EventMask::MOVED_TO).union(EventMask::MODIFY);

/// What changes when a file does.
type FileState = (u64, u64, i64, i64, u64);

/// The files of all triggers.
#[derive(Debug)]
pub(super) struct Files {
    /// Where it can be had.
    events: Option<Inotify>,
    files: Vec<Watched>,
    /// The last look at them.
    last: Option<Instant>,
}

#[derive(Debug)]
struct Watched {
    path: PathBuf,
    /// Its folder is watched.
    folder: Option<WatchDescriptor>,
    state: Option<FileState>,
}

impl Files {
    /// Watches them from now on.
    pub(super) fn new(paths: Vec<PathBuf>) -> Self {
        let events = if paths.is_empty() { None } else { Inotify::init().ok() };
        Self::with(events, paths)
    }

    fn with(events: Option<Inotify>, paths: Vec<PathBuf>) -> Self {
        let watched = |path: PathBuf| {
            // First: what comes between the two is told of.
            let folder = events.as_ref().and_then(|events| watch(events, &path));
            Watched { folder, state: state_of(&path), path }
        };
        let files = paths.into_iter().map(watched).collect();
        Self { events, files, last: None }
    }

    /// The last one that was written since this was asked before. Cheap: it may be asked in every
    /// turn of a loop.
    pub(super) fn look(&mut self, now: Instant) -> Option<&Path> {
        let told = self.told();
        let is_late = self.last.is_none_or(|last| now.saturating_duration_since(last) >= LOOK);
        let seen = if is_late || told.is_overflow { self.seen(now) } else { None };
        told.file.or(seen).and_then(|place| self.files.get(place)).map(|file| file.path.as_path())
    }

    /// The same at the end: no later look will find what nobody tells of.
    pub(super) fn last_look(&mut self, now: Instant) -> Option<&Path> {
        self.last = None;
        self.look(now)
    }

    /// What the kernel tells. Nobody waits for it: the loop turns often enough, and in a busy
    /// folder it would have to turn all the time.
    fn told(&mut self) -> Told {
        let mut told = Told::default();
        let mut buffer = [0; READ_BYTES];
        for _ in 0..READS {
            let read = self.events.as_mut().map(|events| events.read_events(&mut buffer));
            let Some(Ok(events)) = read else { break };
            for event in events {
                told.is_overflow |= event.mask.contains(EventMask::Q_OVERFLOW);
                self.forget_folder(&event);
                for (place, file) in self.files.iter_mut().enumerate() {
                    if file.is_written(&event) {
                        told.file = Some(place);
                    }
                }
            }
        }
        told
    }

    /// A folder that was moved away or removed is none of ours any more.
    fn forget_folder(&mut self, event: &Event<&OsStr>) {
        if !event.mask.intersects(EventMask::MOVE_SELF | EventMask::IGNORED) {
            return;
        }
        let its = self.files.iter_mut().filter(|file| file.folder.as_ref() == Some(&event.wd));
        its.for_each(|file| file.folder = None);
        if let Some(events) = self.events.as_ref().filter(|_| event.name.is_none()) {
            // Gone already, if it was removed.
            let _ = events.watches().remove(event.wd.clone());
        }
    }

    /// What a look at them finds; it also watches folders that were not there before.
    fn seen(&mut self, now: Instant) -> Option<usize> {
        self.last = Some(now);
        let mut written = None;
        for (place, file) in self.files.iter_mut().enumerate() {
            file.folder = self.events.as_ref().and_then(|events| watch(events, &file.path));
            if file.is_changed() {
                written = Some(place);
            }
        }
        written
    }
}

#[derive(Debug, Default)]
struct Told {
    file: Option<usize>,
    /// Some of it was not told.
    is_overflow: bool,
}

impl Watched {
    fn is_written(&mut self, event: &Event<&OsStr>) -> bool {
        let is_its = self.folder.as_ref() == Some(&event.wd);
        let is_it = is_its && event.name == self.path.file_name();
        // In any case the state is taken down: the next look shall not find the same again.
        is_it && (self.is_changed() || event.mask.intersects(WRITTEN))
    }

    /// It is there, and in another state than when this was asked last.
    fn is_changed(&mut self) -> bool {
        let state = state_of(&self.path);
        let is_changed = state.is_some() && state != self.state;
        self.state = state;
        is_changed
    }
}

/// Has changes in a file's folder told of. For a folder that is watched it is the same watch.
fn watch(events: &Inotify, path: &Path) -> Option<WatchDescriptor> {
    let _: &OsStr = path.file_name()?;
    // A new time, as of touch, is no writing: then the state says whether it changed.
    let written = WatchMask::CREATE | WatchMask::MOVED_TO | WatchMask::MODIFY;
    let changes = written | WatchMask::ATTRIB | WatchMask::MOVE_SELF | WatchMask::ONLYDIR;
    events.watches().add(directory_of(path), changes).ok()
}

fn state_of(path: &Path) -> Option<FileState> {
    let meta = fs::metadata(path).ok()?;
    Some((meta.dev(), meta.ino(), meta.mtime(), meta.mtime_nsec(), meta.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that is not there yet, in a folder that is.
    fn place() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        (dir, path)
    }

    fn watched(path: &Path) -> Files {
        let files = Files::new(vec![path.to_owned()]);
        assert!(files.events.is_some(), "no inotify: what is to be tested is not there");
        files
    }

    #[test]
    fn the_kernel_tells_of_a_file_between_two_looks() {
        let (dir, path) = place();
        let mut files = watched(&path);
        let now = Instant::now();
        // Always at the time of the first look: no other one comes.
        let mut is_told = || files.look(now).is_some();
        assert!(!is_told());
        fs::write(&path, "a").unwrap();
        assert!(is_told() && !is_told());
        fs::write(&path, "b").unwrap();
        assert!(is_told());
        let times = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH);
        fs::File::options().append(true).open(&path).unwrap().set_times(times).unwrap();
        assert!(is_told(), "touched");
        fs::remove_file(&path).unwrap();
        fs::write(dir.path().join("other"), "").unwrap();
        assert!(!is_told(), "removed, and another one is there");
        fs::rename(dir.path().join("other"), &path).unwrap();
        assert!(is_told() && !is_told());
        // It is gone before anybody looks.
        fs::write(dir.path().join("x2"), "").unwrap();
        fs::rename(dir.path().join("x2"), &path).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(is_told());
    }

    #[test]
    fn what_was_told_of_is_not_found_again_by_the_next_look() {
        let (_dir, path) = place();
        let mut files = watched(&path);
        let now = Instant::now();
        assert!(files.look(now).is_none());
        fs::write(&path, "a").unwrap();
        assert!(files.look(now).is_some());
        assert!(files.look(now + LOOK).is_none());
    }

    #[test]
    fn without_inotify_looks_find_a_file() {
        let (_dir, path) = place();
        let mut files = Files::with(None, vec![path.clone()]);
        let now = Instant::now();
        let mut is_seen = |looks| files.look(now + LOOK * looks).is_some();
        assert!(!is_seen(0));
        fs::write(&path, "a").unwrap();
        assert!(!is_seen(0), "there is nobody to tell of it");
        assert!(is_seen(1) && !is_seen(2));
        fs::write(&path, "ab").unwrap();
        assert!(is_seen(3));
        fs::write(&path, "abc").unwrap();
        assert!(files.look(now + LOOK * 3).is_none());
        assert!(files.last_look(now + LOOK * 3).is_some(), "there is no later one");
        let mut is_seen = |looks| files.look(now + LOOK * looks).is_some();
        fs::remove_file(&path).unwrap();
        assert!(!is_seen(4));
    }

    #[test]
    fn what_a_link_leads_to_is_found_by_looks() {
        let (dir, path) = place();
        let elsewhere = tempfile::tempdir().unwrap();
        let real = elsewhere.path().join("real");
        fs::write(&real, "a").unwrap();
        std::os::unix::fs::symlink(&real, &path).unwrap();
        let mut files = watched(&path);
        let now = Instant::now();
        assert!(files.look(now).is_none());
        fs::write(&real, "ab").unwrap();
        assert!(files.look(now).is_none() && files.look(now + LOOK).is_some());
        drop(dir);
    }

    #[test]
    fn a_folder_that_comes_later_or_anew_is_watched_then() {
        let (dir, _) = place();
        let (folder, old) = (dir.path().join("folder"), dir.path().join("old"));
        let path = folder.join("x");
        let mut files = watched(&path);
        let now = Instant::now();
        assert!(files.look(now).is_none());
        for looks in [1, 2] {
            fs::create_dir(&folder).unwrap();
            assert!(files.look(now + LOOK * looks).is_none());
            fs::write(&path, "a").unwrap();
            assert!(files.look(now + LOOK * looks).is_some(), "told of, without another look");
            fs::rename(&folder, &old).unwrap();
            fs::write(old.join("x"), "ab").unwrap();
            assert!(files.look(now + LOOK * looks).is_none(), "that is another folder now");
            fs::remove_dir_all(&old).unwrap();
        }
        drop(dir);
    }
}
