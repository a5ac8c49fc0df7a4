//! Reads perf maps and jitdump files, and follows them as they grow.
//!
//! # Invariants
//! - Files are opened in the target's own root, by the target's process id there, and only if the
//!   target owns them.

use std::fs::File;
use std::io;
use std::mem;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use inotify::{EventMask, Inotify, WatchDescriptor, WatchMask};

use crate::proc::{self, Root};
use crate::record::contract::clock::monotonic_now_ns;
use crate::record::name::jit::SharedCode;
use crate::record::target::jit_dump::{DUMPS_MAX, DumpFile};
use crate::symbol::{CodeReader, JitDump, PerfMap};

/// The only folder into which runtimes write their maps.
const FOLDER: &str = "/tmp";
/// The size of a read, in bytes.
const CHUNK: usize = 1 << 20;
/// The largest number of bytes of one file in one turn, about a tenth of a second's work.
const TURN_MAX: u64 = 64 << 20;
/// The number of bytes that tell whether a file was written again.
const TAIL: usize = 4 << 10;
/// The largest number of bytes that are read of one file in total, so that its cost is bounded.
const LEN_MAX: u64 = 4 << 30;

/// A file and its state at the last reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileVersion {
    /// Device and inode.
    file: (u64, u64),
    modified: SystemTime,
}

impl FileVersion {
    fn of(file: &File) -> Option<Self> {
        let found = file.metadata().ok()?;
        Some(Self { file: (found.dev(), found.ino()), modified: found.modified().ok()? })
    }
}

/// A file that is followed as it grows.
struct FollowedFile {
    file: File,
    version: FileVersion,
    offset: u64,
    /// The last bytes before the offset.
    tail: Vec<u8>,
    /// Whether everything has been read.
    is_at_end: bool,
    reader: Box<dyn CodeReader>,
}

impl FollowedFile {
    fn new(file: File, version: FileVersion, reader: Box<dyn CodeReader>) -> Self {
        Self { file, version, offset: 0, tail: Vec::new(), is_at_end: false, reader }
    }

    /// Reads new content, up to the limit of one turn.
    fn read(&mut self, program: u64, known: &SharedCode) {
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
            self.tail.extend_from_slice(&chunk[len.saturating_sub(TAIL)..len]);
            self.tail.drain(..self.tail.len().saturating_sub(TAIL));
        }
    }

    /// Returns whether the file no longer ends what was read as it did: it is being written again.
    fn is_rewritten(&self) -> bool {
        let mut now = vec![0; self.tail.len()];
        let start = self.offset - self.tail.len() as u64;
        self.file.read_exact_at(&mut now, start).is_err() || now != self.tail
    }
}

/// The reader of one process's files.
pub(super) struct JitReader {
    known: SharedCode,
    /// The number of the process's program that it reads.
    program: u64,
    root: Option<Root>,
    /// The start of the process by the clock of files; an older map belongs to another process with
    /// its id.
    began: Option<SystemTime>,
    /// The map's path as the target sees it.
    path: PathBuf,
    map: Option<FollowedFile>,
    /// The map of the previous program.
    stale: Option<FileVersion>,
    watch: MapWatch,
    /// Whether a map from before the watch must still be opened.
    is_new: bool,
    dumps: Vec<(Arc<DumpFile>, FollowedFile)>,
}

impl JitReader {
    /// Makes a reader for the process `pid`.
    pub(super) fn start(pid: i32, known: SharedCode) -> Self {
        let status = proc::status(pid).ok();
        let inner = status.as_ref().map_or(pid, |status| status.inner_tgid);
        let root = status.and_then(|status| Root::open(pid, status.euid).ok());
        Self { began: began(pid), ..Self::of(root, inner, known) }
    }

    /// Makes a reader for a process with this root, and with this id inside it.
    fn of(root: Option<Root>, inner: i32, known: SharedCode) -> Self {
        let watch = root.as_ref().map_or(MapWatch(None), MapWatch::start);
        Self {
            known,
            program: 0,
            root,
            began: None,
            path: PathBuf::from(format!("{FOLDER}/perf-{inner}.map")),
            map: None,
            stale: None,
            watch,
            is_new: true,
            dumps: Vec::new(),
        }
    }

    /// Starts another program in the process, and drops the files of the last program.
    fn start_program(&mut self, program: u64) {
        self.program = program;
        self.stale = self.map.take().map(|map| map.version).or(self.stale);
        self.is_new = true;
        self.dumps.clear();
    }

    /// Reads what a program's runtime has written since the last call.
    pub(super) fn read(&mut self, program: u64, dumps: &[Arc<DumpFile>]) {
        if program != self.program {
            self.start_program(program);
        }
        for dump in dumps {
            self.follow_dump(dump);
        }
        let mut seen = self.watch.take_events(&self.path);
        seen.appeared |= mem::take(&mut self.is_new);
        if seen.appeared || (self.map.is_none() && seen.changed) {
            self.open_map();
        }
        self.read_map(seen.changed);
        for (_, dump) in &mut self.dumps {
            dump.read(self.program, &self.known);
        }
        let source = match self.dumps.first() {
            Some((dump, _)) if self.map.is_none() => dump.path.clone(),
            _ => self.path.to_string_lossy().into_owned(),
        };
        self.known.set_source(self.program, source);
    }

    /// Opens the present map, unless it is open already or older than the program.
    fn open_map(&mut self) {
        let opened = self.root.as_ref().and_then(|root| root.read(&self.path).ok());
        let Some(file) = opened else { return };
        self.watch.follow(&file);
        let Some(version) = FileVersion::of(&file) else { return };
        let is_old = self.began.is_some_and(|began| version.modified < began);
        let is_open = self.map.as_ref().is_some_and(|map| map.version.file == version.file);
        if !is_old && !is_open && self.stale != Some(version) {
            self.map = Some(FollowedFile::new(file, version, Box::<PerfMap>::default()));
        }
    }

    fn read_map(&mut self, has_changed: bool) {
        let Some(map) = &mut self.map else { return };
        if has_changed || !map.is_at_end {
            if map.is_rewritten() {
                (map.offset, map.reader) = (0, Box::<PerfMap>::default());
                map.tail.clear();
            }
            map.read(self.program, &self.known);
        }
    }

    fn follow_dump(&mut self, dump: &Arc<DumpFile>) {
        let is_known = self.dumps.iter().any(|(known, _)| Arc::ptr_eq(known, dump));
        if is_known || self.dumps.len() >= DUMPS_MAX {
            return;
        }
        let Ok(file) = dump.descriptor.try_clone().map(File::from) else { return };
        if let Some(version) = FileVersion::of(&file) {
            let tail = FollowedFile::new(file, version, Box::<JitDump>::default());
            self.dumps.push((Arc::clone(dump), tail));
        }
    }
}

/// Returns a process's start by the clock of file times, a little early, since neither clock is
/// exact.
fn began(pid: i32) -> Option<SystemTime> {
    const LEEWAY: Duration = Duration::from_secs(1);
    let start_ns = proc::start_ns(proc::start_time(pid).ok()?);
    let age = Duration::from_nanos(monotonic_now_ns().saturating_sub(start_ns));
    SystemTime::now().checked_sub(age + LEEWAY)
}

/// The changes of the map since the last check.
#[derive(Clone, Copy)]
struct MapEvents {
    /// Whether a new map appeared.
    appeared: bool,
    /// Whether the map was written to.
    changed: bool,
}

impl MapEvents {
    /// Both changes, since they may have happened unwatched.
    const ALL: Self = Self { appeared: true, changed: true };
}

/// The watch on the folder, and on the map once it exists; `None` if no watch is available.
struct MapWatch(Option<(Inotify, WatchDescriptor)>);

impl MapWatch {
    fn start(root: &Root) -> Self {
        let start = || -> io::Result<_> {
            let folder = root.directory(FOLDER.as_ref())?;
            let inotify = Inotify::init()?;
            let events = WatchMask::CREATE | WatchMask::MOVED_TO;
            let folder = inotify.watches().add(proc::descriptor_path(&folder), events)?;
            Ok((inotify, folder))
        };
        Self(start().ok())
    }

    fn follow(&mut self, file: &File) {
        let path = proc::descriptor_path(file);
        let events = WatchMask::MODIFY;
        let add = |(inotify, _): &(Inotify, _)| inotify.watches().add(&path, events).is_ok();
        // Each user has a limited number of watches. Without a watch, the map is read each time.
        self.0 = self.0.take().filter(add);
    }

    fn take_events(&mut self, path: &Path) -> MapEvents {
        let Some((inotify, folder)) = &mut self.0 else { return MapEvents::ALL };
        let mut buffer = [0; 4096];
        let mut seen = MapEvents { appeared: false, changed: false };
        let mut is_lost = false;
        while let Ok(events) = inotify.read_events(&mut buffer) {
            for event in events {
                match event.name {
                    Some(name) => seen.appeared |= path.file_name() == Some(name),
                    None if event.mask.contains(EventMask::IGNORED) => {
                        is_lost |= event.wd == *folder;
                    }
                    None if event.mask.contains(EventMask::Q_OVERFLOW) => seen = MapEvents::ALL,
                    None => seen.changed = true,
                }
            }
        }
        if is_lost {
            (self.0, seen) = (None, MapEvents::ALL);
        }
        seen
    }
}

#[cfg(test)]
mod tests;
