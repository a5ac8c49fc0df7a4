//! Reads perf maps and dumps, as they grow.
//!
//! # Invariants
//! - Files are opened in the target's own root, by its process id in there, and only if they are its
//!   own.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};

use super::{DumpFile, Shared};
use crate::proc::{self, Root};
use crate::record::clock::monotonic_now_ns;
use crate::record::jvm::Writings;
use crate::symbol::{CodeReader, JitDump, PerfMap};

/// Where runtimes write their maps: they know no other place.
const FOLDER: &str = "/tmp";
/// Bytes that are read at once.
const CHUNK: usize = 1 << 20;
/// Bytes of one file that are read in one turn: a tenth of a second's work,
const TURN_MAX: u64 = 64 << 20;
/// and in all, so that it costs no time without end.
const LEN_MAX: u64 = 4 << 30;

/// A file, and what it was like when it was read last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    /// Device and inode.
    file: (u64, u64),
    modified: SystemTime,
}

impl Version {
    fn of(file: &File) -> Option<Self> {
        let found = file.metadata().ok()?;
        Some(Self { file: (found.dev(), found.ino()), modified: found.modified().ok()? })
    }
}

/// A file that is followed.
struct Tail {
    file: File,
    version: Version,
    offset: u64,
    /// All that there was has been read.
    is_at_end: bool,
    reader: Box<dyn CodeReader>,
}

impl Tail {
    fn new(file: File, version: Version, reader: Box<dyn CodeReader>) -> Self {
        Self { file, version, offset: 0, is_at_end: false, reader }
    }

    /// Reads what is new, as much of it as one turn may take.
    fn read(&mut self, program: u64, known: &Shared) {
        let Ok(found) = self.file.metadata() else { return };
        self.version.modified = found.modified().unwrap_or(self.version.modified);
        let until = self.offset.saturating_add(TURN_MAX).min(LEN_MAX).min(found.len());
        self.is_at_end = until == LEN_MAX || until == found.len();
        let mut chunk = vec![0; CHUNK.min(until.saturating_sub(self.offset) as usize)];
        while self.offset < until {
            let Ok(len @ 1..) = self.file.read_at(&mut chunk, self.offset) else {
                self.is_at_end = true;
                return;
            };
            known.add(program, |code| self.reader.feed(&chunk[..len], code));
            self.offset += len as u64;
        }
    }

    /// It is shorter than what was read: it is being written anew.
    fn is_cut(&self) -> bool {
        self.file.metadata().is_ok_and(|found| found.len() < self.offset)
    }
}

/// Reads the files of one process.
pub(super) struct JitReader {
    known: Shared,
    /// Which program of the process it reads of.
    program: u64,
    root: Option<Root>,
    /// When the process began, by the clock of files: a map that is older is of another process that had
    /// its number.
    began: Option<SystemTime>,
    /// The map's name as the target sees it.
    path: PathBuf,
    map: Option<Tail>,
    /// The map of the program before.
    stale: Option<Version>,
    /// How often the map is written by one who is asked to, and how often it was when it was read.
    writings: (Arc<Writings>, u64),
    watch: Watch,
    /// What was there before the watch is not looked at yet.
    is_new: bool,
    dumps: Vec<(Arc<DumpFile>, Tail)>,
}

impl JitReader {
    /// Of the process `pid`, some of whose maps are written again and again.
    pub(super) fn start(pid: i32, writings: &Arc<Writings>, known: Shared) -> Self {
        let status = proc::status(pid).ok();
        let inner = status.as_ref().map_or(pid, |status| status.inner_tgid);
        let root = status.and_then(|status| Root::open(pid, status.euid).ok());
        Self { began: began(pid), ..Self::of(root, inner, writings, known) }
    }

    /// Of a process that calls itself `inner` in its own root.
    fn of(root: Option<Root>, inner: i32, writings: &Arc<Writings>, known: Shared) -> Self {
        let watch = root.as_ref().map_or(Watch(None), Watch::start);
        Self {
            known,
            program: 0,
            root,
            began: None,
            path: PathBuf::from(format!("{FOLDER}/perf-{inner}.map")),
            map: None,
            stale: None,
            writings: (Arc::clone(writings), 0),
            watch,
            is_new: true,
            dumps: Vec::new(),
        }
    }

    /// Another program runs in the process: what was told of the last one is not of this.
    fn begin(&mut self, program: u64) {
        self.program = program;
        self.stale = self.map.take().map(|map| map.version).or(self.stale);
        self.is_new = true;
        self.dumps.clear();
    }

    /// Reads what the runtime of a program has told since the last call.
    pub(super) fn look(&mut self, program: u64, dumps: &[Arc<DumpFile>]) {
        if program != self.program {
            self.begin(program);
        }
        for dump in dumps {
            self.follow_dump(dump);
        }
        let mut seen = self.watch.look(&self.path);
        seen.appeared |= self.is_new;
        let (writings, read) = (Arc::clone(&self.writings.0), self.writings.1);
        if let Some(written) = writings.hold() {
            self.is_new = false;
            if *written != read {
                // Whatever it was when it was read last, it is another one now.
                (self.map, self.writings.1) = (None, *written);
            }
            if seen.appeared || (self.map.is_none() && (seen.changed || *written != read)) {
                self.open_map();
            }
            self.read_map(seen.changed);
            writings.note_read(*written);
        }
        for (_, dump) in &mut self.dumps {
            dump.read(self.program, &self.known);
        }
        let source = match self.dumps.first() {
            Some((dump, _)) if self.map.is_none() => dump.path.clone(),
            _ => self.path.to_string_lossy().into_owned(),
        };
        self.known.set_source(self.program, source);
    }

    /// Opens the map that is there, unless it is the one that is open.
    fn open_map(&mut self) {
        let opened = self.root.as_ref().and_then(|root| root.read(&self.path).ok());
        let Some(file) = opened else { return };
        self.watch.follow(&file);
        let Some(version) = Version::of(&file) else { return };
        let is_old = self.began.is_some_and(|began| version.modified < began);
        let is_open = self.map.as_ref().is_some_and(|map| map.version.file == version.file);
        if !is_old && !is_open && self.stale != Some(version) {
            self.map = Some(Tail::new(file, version, Box::<PerfMap>::default()));
        }
    }

    fn read_map(&mut self, has_changed: bool) {
        let Some(map) = &mut self.map else { return };
        if has_changed || !map.is_at_end {
            if map.is_cut() {
                (map.offset, map.reader) = (0, Box::<PerfMap>::default());
            }
            map.read(self.program, &self.known);
        }
    }

    fn follow_dump(&mut self, dump: &Arc<DumpFile>) {
        let is_known = self.dumps.iter().any(|(known, _)| Arc::ptr_eq(known, dump));
        if is_known || self.dumps.len() >= super::DUMPS_MAX {
            return;
        }
        let Ok(file) = dump.descriptor.try_clone().map(File::from) else { return };
        if let Some(version) = Version::of(&file) {
            let tail = Tail::new(file, version, Box::<JitDump>::default());
            self.dumps.push((Arc::clone(dump), tail));
        }
    }
}

/// When a process began, by the clock of files; a little early, as neither clock is exact.
fn began(pid: i32) -> Option<SystemTime> {
    const LEEWAY: Duration = Duration::from_secs(1);
    let start_ns = proc::start_ns(proc::start_time(pid).ok()?);
    let age = Duration::from_nanos(monotonic_now_ns().saturating_sub(start_ns));
    SystemTime::now().checked_sub(age + LEEWAY)
}

/// What was seen since the last look.
#[derive(Clone, Copy)]
struct Seen {
    /// There is a map, or another one.
    appeared: bool,
    /// It was written to.
    changed: bool,
}

impl Seen {
    /// What is not watched may have happened.
    const ALL: Self = Self { appeared: true, changed: true };
}

/// The watch over the folder, and over the map once it is there; `None` where that cannot be had.
struct Watch(Option<(Inotify, WatchDescriptor)>);

impl Watch {
    fn start(root: &Root) -> Self {
        let start = || -> io::Result<_> {
            let folder = root.directory(FOLDER.as_ref())?;
            let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
            let events = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO;
            let folder = inotify.add_watch(&proc::descriptor_path(&folder), events)?;
            Ok((inotify, folder))
        };
        Self(start().ok())
    }

    fn follow(&mut self, file: &File) {
        let path = proc::descriptor_path(file);
        let events = AddWatchFlags::IN_MODIFY;
        let add = |(inotify, _): &(Inotify, _)| inotify.add_watch(&path, events).is_ok();
        // There are so many watches for each user: without one the map is looked at each time.
        self.0 = self.0.take().filter(add);
    }

    fn look(&mut self, path: &Path) -> Seen {
        let Some((inotify, folder)) = &self.0 else { return Seen::ALL };
        let mut seen = Seen { appeared: false, changed: false };
        let mut is_lost = false;
        while let Ok(events) = inotify.read_events() {
            for event in events {
                match event.name {
                    Some(name) => seen.appeared |= path.file_name() == Some(&name),
                    None if event.mask.contains(AddWatchFlags::IN_IGNORED) => {
                        is_lost |= event.wd == *folder;
                    }
                    None if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) => seen = Seen::ALL,
                    None => seen.changed = true,
                }
            }
        }
        if is_lost {
            (self.0, seen) = (None, Seen::ALL);
        }
        seen
    }
}

#[cfg(test)]
mod tests;
