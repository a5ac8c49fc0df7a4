//! Names of code that the target's runtime generates, from files that the runtime writes.
//!
//! # Invariants
//! - Nothing here waits for a file without limit: the files are the target's, and their file system
//!   may be too. A thread of its own reads them. It gets a moment to find the names that samples
//!   need, and if it does not return it is not waited for again.
//! - Names that were read stay known when the target is gone. Its folders are opened at once, since
//!   they cannot be opened later.
//! - Names that a late reader brings from the last program are not used for the current one.

use crate::record::target::jit_dump::DumpFile;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::record::name::jvm::MapRequests;
use crate::symbol::{FoundCode, JitCode};

mod reader;

use self::reader::JitReader;

/// How long to wait for the reader, which reads some hundred megabytes in this time.
const PATIENCE: Duration = Duration::from_millis(500);

/// The code that is known so far.
#[derive(Debug, Default)]
struct KnownCode {
    code: JitCode,
    /// The name of the module of such code: the file that its names came from.
    source: String,
    /// A number that changes with the known code.
    version: u64,
    /// The number of the process's program that all this belongs to.
    program: u64,
}

/// The known code, shared by two threads.
#[derive(Debug, Clone, Default)]
struct SharedCode(Arc<Mutex<KnownCode>>);

impl SharedCode {
    fn lock(&self) -> MutexGuard<'_, KnownCode> {
        // Code is added piece by piece, and each state is valid.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds to the known code of a program, unless another one runs by now.
    fn add(&self, program: u64, add: impl FnOnce(&mut JitCode)) {
        let mut known = self.lock();
        if known.program == program {
            let before = known.code.version();
            add(&mut known.code);
            known.version += u64::from(known.code.version() != before);
        }
    }

    /// Sets the source of a program's names.
    fn set_source(&self, program: u64, source: String) {
        let mut known = self.lock();
        if known.program == program {
            known.source = source;
        }
    }

    /// Forgets everything for the next program, and returns its number.
    fn start_program(&self) -> u64 {
        let mut known = self.lock();
        (known.code, known.version) = (JitCode::default(), known.version + 1);
        known.program += 1;
        known.program
    }
}

/// A request to the reader.
struct ReadRequest {
    /// The current program.
    program: u64,
    dumps: Vec<Arc<DumpFile>>,
}

/// The names of the target's generated code.
pub(crate) struct JitNames {
    known: SharedCode,
    map_requests: Arc<MapRequests>,
    requests: Sender<ReadRequest>,
    back: Receiver<()>,
    /// Whether the reader has not yet returned from its last request.
    is_away: bool,
    /// How long to wait for it in that case.
    patience: Duration,
    /// How long to wait after a new request.
    longest: Duration,
    /// The current program.
    program: u64,
}

impl JitNames {
    /// Starts the reader for a process; a Java machine writes its maps on request through
    /// `map_requests`.
    pub(crate) fn start(pid: i32, map_requests: Arc<MapRequests>) -> io::Result<Self> {
        let known = SharedCode::default();
        let shared = known.clone();
        let (mut reader, asked) = (None, Arc::clone(&map_requests));
        let mut names = Self::over(known, asked, move |request| {
            // Opening the target's folders may hang as well.
            let reader =
                reader.get_or_insert_with(|| JitReader::start(pid, &map_requests, shared.clone()));
            reader.read(request.program, &request.dumps);
        })?;
        names.ask(&[]);
        Ok(names)
    }

    /// Uses this reader.
    fn over(
        known: SharedCode,
        map_requests: Arc<MapRequests>,
        mut read: impl FnMut(ReadRequest) + Send + 'static,
    ) -> io::Result<Self> {
        let (requests, asked) = channel();
        let (done, back) = channel();
        let work = move || {
            while let Ok(request) = asked.recv() {
                read(request);
                if done.send(()).is_err() {
                    return;
                }
            }
        };
        // It ends when no requests come any more, or with this process.
        std::thread::Builder::new().name("jit names".to_string()).spawn(work)?;
        let (patience, longest) = (PATIENCE, PATIENCE);
        let is_away = false;
        Ok(Self { known, map_requests, requests, back, is_away, patience, longest, program: 0 })
    }

    /// Waits for the reader however busy the machine is.
    #[cfg(test)]
    pub(crate) fn patient(self) -> Self {
        let longest = Duration::from_secs(60);
        Self { patience: longest, longest, ..self }
    }

    /// Starts another program in the process and forgets the last one's names.
    pub(crate) fn start_program(&mut self) {
        self.program = self.known.start_program();
    }

    /// Reads what the runtime has written since the last call.
    pub(crate) fn refresh(&mut self, dumps: &[Arc<DumpFile>]) {
        if self.is_back() {
            self.ask(dumps);
            self.is_back();
        }
    }

    /// Waits for the reader once per request, and checks whether it has returned.
    fn is_back(&mut self) -> bool {
        self.is_away = self.is_away && self.back.recv_timeout(self.patience).is_err();
        self.patience = Duration::ZERO;
        !self.is_away
    }

    fn ask(&mut self, dumps: &[Arc<DumpFile>]) {
        // A reader that is gone does not return either.
        let _ = self.requests.send(ReadRequest { program: self.program, dumps: dumps.to_vec() });
        (self.is_away, self.patience) = (true, self.longest);
    }

    /// Checks whether the runtime names its code on request.
    pub(crate) fn can_be_asked(&self) -> bool {
        self.map_requests.is_served()
    }

    /// Requests the names of all present code; an answer says when to read them.
    ///
    /// Returns false if no thread passes requests on, so that no answer comes.
    pub(crate) fn ask_runtime(&self, question: u64) -> bool {
        self.map_requests.want(question)
    }

    /// Finds the code at an address at a time.
    pub(crate) fn find(&self, avma: u64, time_ns: u64) -> FoundCode {
        self.known.lock().code.find_at(avma, time_ns)
    }

    /// Returns a number that changes with the known code.
    pub(crate) fn version(&self) -> u64 {
        self.known.lock().version
    }

    /// Returns the name of the module of such code: the file that its names came from.
    pub(crate) fn source(&self) -> String {
        self.known.lock().source.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::record::contract::clock::wait_until;
    use crate::symbol::{CodeReader, PerfMap};

    #[test]
    fn a_reader_that_hangs_is_not_waited_for() {
        let (go, gate) = channel::<()>();
        let known = SharedCode::default();
        let shared = known.clone();
        let mut names = JitNames::over(known, Arc::default(), move |request| {
            // Closed when the reader may go on.
            let _ = gate.recv();
            let map = if request.program > 0 { "1000 10 g\n" } else { "1000 10 f\n" };
            shared.add(request.program, |code| PerfMap::default().feed(map.as_bytes(), code));
            shared.set_source(request.program, format!("program {}", request.program));
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
        names.start_program();
        let version = names.version();
        drop(go);
        names.patience = Duration::from_secs(60);
        assert!(names.is_back());
        assert_eq!((name(&names).as_str(), names.version()), ("", version), "of the last program");
        assert_eq!(names.source(), "");
        names.refresh(&[]);
        assert!(!names.is_away && name(&names) == "g", "it knows the program");
        assert_ne!(names.version(), version);
        assert_eq!(names.source(), "program 1");
    }

    #[test]
    fn names_are_read_although_the_program_ends_before_they_are_wanted() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let map = std::path::PathBuf::from(format!("/tmp/perf-{}.map", child.id()));
        std::fs::write(&map, "1000 10 f\n").unwrap();
        let mut names = JitNames::start(child.id() as i32, Arc::default()).unwrap();
        wait_until("it never looks", || names.version() > 0);
        child.kill().and_then(|()| child.wait()).unwrap();
        std::fs::remove_file(&map).unwrap();
        names.refresh(&[]);
        assert!(names.find(0x1000, 1).resolved.is_some());
    }
}
