//! Names of code that the target's runtime makes, as it tells them in files.
//!
//! # Invariants
//! - Nothing here waits for a file: those are the target's, and so may be the file system that they are
//!   on. A thread of its own reads them, which is waited for a moment, so that the names are there that
//!   samples need; who does not come back then is not waited for again.
//! - What was read stays known when the target is gone. Its folders are opened at once: they cannot be
//!   when it is gone.
//! - What a reader that comes back late tells of the last program is not taken for this one's.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::jvm::Writings;
use crate::symbol::{FoundCode, JitCode};

mod reader;

use self::reader::JitReader;

/// As long as this the reader is waited for: in this time it reads some hundred megabytes.
const PATIENCE: Duration = Duration::from_millis(500);

/// Dumps of one program. A runtime writes one, a fork of it another.
pub(super) const DUMPS_MAX: usize = 64;

/// A dump that the target has mapped to make it known.
#[derive(Debug)]
pub(super) struct DumpFile {
    /// The open file.
    pub(super) descriptor: OwnedFd,
    /// Its device and its inode number.
    pub(super) file: ((u32, u32), u64),
    /// Path as the target sees it.
    pub(super) path: String,
}

/// A mapping of this path says that there is a dump.
pub(super) fn is_dump(path: &OsStr) -> bool {
    let name = Path::new(path).file_name().and_then(OsStr::to_str).unwrap_or_default();
    let number = name.strip_prefix("jit-").and_then(|name| name.strip_suffix(".dump"));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|it| it.is_ascii_digit()))
}

/// What was told up to now.
#[derive(Debug, Default)]
struct Known {
    code: JitCode,
    /// What to call the module of such code: where its names came from.
    source: String,
    /// Another number whenever something else is known.
    version: u64,
    /// Which program of the process all this is of.
    program: u64,
}

/// The same, for two threads.
#[derive(Debug, Clone, Default)]
struct Shared(Arc<Mutex<Known>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Known> {
        // Code is added by and by: what there is is right.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds something to what is known of a program, or not.
    fn add(&self, program: u64, add: impl FnOnce(&mut JitCode)) {
        let mut known = self.lock();
        if known.program == program {
            let before = known.code.version();
            add(&mut known.code);
            known.version += u64::from(known.code.version() != before);
        }
    }

    /// Where the names of a program came from.
    fn set_source(&self, program: u64, source: String) {
        let mut known = self.lock();
        if known.program == program {
            known.source = source;
        }
    }

    /// Forgets all, since another program runs; its number.
    fn begin(&self) -> u64 {
        let mut known = self.lock();
        (known.code, known.version) = (JitCode::default(), known.version + 1);
        known.program += 1;
        known.program
    }
}

/// What the reader is asked to do.
struct Look {
    /// The program that runs.
    program: u64,
    dumps: Vec<Arc<DumpFile>>,
}

/// What is known of the target's own code.
pub(super) struct JitNames {
    known: Shared,
    writings: Arc<Writings>,
    looks: Sender<Look>,
    back: Receiver<()>,
    /// The reader has not come back from its last look.
    is_away: bool,
    /// As long as this it is still waited for then,
    patience: Duration,
    /// and this long when it is asked.
    longest: Duration,
    /// The program that runs.
    program: u64,
}

impl JitNames {
    /// Of the process `pid`, some of whose maps are written when `writings` says so.
    pub(super) fn start(pid: i32, writings: Arc<Writings>) -> io::Result<Self> {
        let known = Shared::default();
        let theirs = known.clone();
        let (mut reader, asked) = (None, Arc::clone(&writings));
        let mut names = Self::over(known, asked, move |look| {
            // The first look into its folders is one, too.
            let reader =
                reader.get_or_insert_with(|| JitReader::start(pid, &writings, theirs.clone()));
            reader.look(look.program, &look.dumps);
        })?;
        names.ask(&[]);
        Ok(names)
    }

    /// With such a reader.
    fn over(
        known: Shared,
        writings: Arc<Writings>,
        mut read: impl FnMut(Look) + Send + 'static,
    ) -> io::Result<Self> {
        let (looks, asked) = channel();
        let (done, back) = channel();
        let work = move || {
            while let Ok(look) = asked.recv() {
                read(look);
                if done.send(()).is_err() {
                    return;
                }
            }
        };
        // It ends when nobody asks any more, or with this process.
        std::thread::Builder::new().name("jit names".to_string()).spawn(work)?;
        let (patience, longest) = (PATIENCE, PATIENCE);
        let is_away = false;
        Ok(Self { known, writings, looks, back, is_away, patience, longest, program: 0 })
    }

    /// The same, whose reader is waited for whatever the machine has to do.
    #[cfg(test)]
    pub(super) fn patient(self) -> Self {
        let longest = Duration::from_secs(60);
        Self { patience: longest, longest, ..self }
    }

    /// Another program runs in the process: what was told of the last one is not of this.
    pub(super) fn begin(&mut self) {
        self.program = self.known.begin();
    }

    /// Reads what the runtime has told since the last call.
    pub(super) fn refresh(&mut self, dumps: &[Arc<DumpFile>]) {
        if self.is_back() {
            self.ask(dumps);
            self.is_back();
        }
    }

    /// The reader is waited for once for each look.
    fn is_back(&mut self) -> bool {
        self.is_away = self.is_away && self.back.recv_timeout(self.patience).is_err();
        self.patience = Duration::ZERO;
        !self.is_away
    }

    fn ask(&mut self, dumps: &[Arc<DumpFile>]) {
        // A reader that is gone does not come back either.
        let _ = self.looks.send(Look { program: self.program, dumps: dumps.to_vec() });
        (self.is_away, self.patience) = (true, self.longest);
    }

    /// The runtime tells of its code when it is asked to.
    pub(super) fn can_be_asked(&self) -> bool {
        self.writings.is_served()
    }

    /// Has the runtime tell of all code that there is; what answers the question says when that is to
    /// be read. False if nobody asks it, so that no answer comes.
    pub(super) fn ask_runtime(&self, question: u64) -> bool {
        self.writings.want(question)
    }

    /// What was at an address at a time.
    pub(super) fn find(&self, avma: u64, time_ns: u64) -> FoundCode {
        self.known.lock().code.find_at(avma, time_ns)
    }

    /// Another number whenever something else is known.
    pub(super) fn version(&self) -> u64 {
        self.known.lock().version
    }

    /// What to call the module of such code: where its names came from.
    pub(super) fn source(&self) -> String {
        self.known.lock().source.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::symbol::{CodeReader, PerfMap};

    #[test]
    fn who_reads_a_file_that_hangs_is_not_waited_for() {
        let (go, gate) = channel::<()>();
        let known = Shared::default();
        let theirs = known.clone();
        let mut names = JitNames::over(known, Arc::default(), move |look| {
            // Closed when it is let go.
            let _ = gate.recv();
            let map = if look.program > 0 { "1000 10 g\n" } else { "1000 10 f\n" };
            theirs.add(look.program, |code| PerfMap::default().feed(map.as_bytes(), code));
            theirs.set_source(look.program, format!("program {}", look.program));
        })
        .unwrap();
        let name = |names: &JitNames| {
            let found = names.find(0x1000, 1).resolved;
            found.and_then(|found| found.function).map_or(String::new(), |it| it.name)
        };
        let start = Instant::now();
        names.refresh(&[]);
        let first = start.elapsed();
        assert!(first >= PATIENCE && name(&names).is_empty());
        let start = Instant::now();
        (0..100).for_each(|_| names.refresh(&[]));
        assert!(start.elapsed() < first, "it is waited for once");
        names.begin();
        let version = names.version();
        drop(go);
        names.patience = Duration::from_secs(60);
        assert!(names.is_back());
        assert_eq!((name(&names).as_str(), names.version()), ("", version), "of the last program");
        assert_eq!(names.source(), "");
        names.refresh(&[]);
        assert!(!names.is_away && name(&names) == "g", "it has heard of the program");
        assert_ne!(names.version(), version);
        assert_eq!(names.source(), "program 1");
    }

    #[test]
    fn names_are_read_although_the_program_ends_before_they_are_wanted() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let map = std::path::PathBuf::from(format!("/tmp/perf-{}.map", child.id()));
        std::fs::write(&map, "1000 10 f\n").unwrap();
        let mut names = JitNames::start(child.id() as i32, Arc::default()).unwrap();
        crate::record::clock::wait_until("it never looks", || names.version() > 0);
        child.kill().and_then(|()| child.wait()).unwrap();
        std::fs::remove_file(&map).unwrap();
        names.refresh(&[]);
        assert!(names.find(0x1000, 1).resolved.is_some());
    }
}
