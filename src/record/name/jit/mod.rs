//! Names of code that the target's runtime generates, from files that the runtime writes.
//!
//! # Invariants
//! - No wait for a file is unbounded: the files belong to the target, and their file system may as
//!   well. A separate thread reads them. Each request waits a moment for the thread to find the
//!   names that samples need. If the thread does not return, the request is not waited for again.
//! - Names that were read stay known after the target has exited. The target's folders are opened
//!   at the start, since they cannot be opened later.
//! - Names that a late reader finds for an earlier program are not used for the current program.

use crate::record::target::jit_dump::DumpFile;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::symbol::{FoundCode, JitCode};

mod reader;

use self::reader::JitReader;

/// How long a request waits for the reader, which reads some hundred megabytes in this time.
const READER_TIMEOUT: Duration = Duration::from_millis(500);

/// The code that is known so far.
#[derive(Debug, Default)]
struct KnownCode {
    code: JitCode,
    /// The name of the module of such code: the file with its names.
    source: String,
    /// A number that changes whenever the known code does.
    version: u64,
    /// The number of the process's program that the code belongs to.
    program: u64,
}

/// The known code, shared by two threads.
#[derive(Debug, Clone, Default)]
struct SharedCode(Arc<Mutex<KnownCode>>);

impl SharedCode {
    fn lock(&self) -> MutexGuard<'_, KnownCode> {
        // Code is added piece by piece, and each intermediate state is valid.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds to the known code of a program, unless another program runs by now.
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
    requests: Sender<ReadRequest>,
    back: Receiver<()>,
    /// Whether the reader has not finished its last request yet.
    is_away: bool,
    /// How long to wait for the reader then.
    timeout: Duration,
    /// The timeout of a new request.
    full_timeout: Duration,
    /// The current program.
    program: u64,
}

impl JitNames {
    /// Starts the reader for a process.
    pub(crate) fn start(pid: i32) -> io::Result<Self> {
        let known = SharedCode::default();
        let shared = known.clone();
        let mut reader = None;
        let mut names = Self::over(known, move |request| {
            // The target's folders are opened in the thread, since that may hang as well.
            let reader = reader.get_or_insert_with(|| JitReader::start(pid, shared.clone()));
            reader.read(request.program, &request.dumps);
        })?;
        names.ask(&[]);
        Ok(names)
    }

    /// Makes the names of a process of which none are read.
    pub(crate) fn unread() -> Self {
        let ((requests, _), (_, back)) = (channel(), channel());
        let (known, zero) = (SharedCode::default(), Duration::ZERO);
        // A reader that is away is not asked.
        Self { known, requests, back, is_away: true, timeout: zero, full_timeout: zero, program: 0 }
    }

    /// Starts a thread with this reader.
    fn over(
        known: SharedCode,
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
        // The thread exits when the channel of requests closes, or with this process.
        std::thread::Builder::new().name("jit names".to_string()).spawn(work)?;
        let (timeout, full_timeout) = (READER_TIMEOUT, READER_TIMEOUT);
        let is_away = false;
        Ok(Self { known, requests, back, is_away, timeout, full_timeout, program: 0 })
    }

    /// Sets a long timeout, for busy machines.
    #[cfg(test)]
    pub(crate) fn patient(self) -> Self {
        let full_timeout = Duration::from_secs(60);
        Self { timeout: full_timeout, full_timeout, ..self }
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

    /// Returns whether the reader has finished its request; waits for it once per request.
    fn is_back(&mut self) -> bool {
        self.is_away = self.is_away && self.back.recv_timeout(self.timeout).is_err();
        self.timeout = Duration::ZERO;
        !self.is_away
    }

    fn ask(&mut self, dumps: &[Arc<DumpFile>]) {
        // If the reader has exited, it does not answer either.
        let _ = self.requests.send(ReadRequest { program: self.program, dumps: dumps.to_vec() });
        (self.is_away, self.timeout) = (true, self.full_timeout);
    }

    /// Finds the code at an address at a time.
    pub(crate) fn find(&self, avma: u64, time_ns: u64) -> FoundCode {
        self.known.lock().code.find_at(avma, time_ns)
    }

    /// Returns a number that changes whenever the known code does.
    pub(crate) fn version(&self) -> u64 {
        self.known.lock().version
    }

    /// Returns the name of the module of such code: the file with its names.
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
    fn a_hanging_reader_is_waited_for_only_once() {
        let (go, gate) = channel::<()>();
        let known = SharedCode::default();
        let shared = known.clone();
        let mut names = JitNames::over(known, move |request| {
            // Blocks until the test closes the channel.
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
        assert!(first >= READER_TIMEOUT && name(&names).is_empty());
        let start = Instant::now();
        (0..100).for_each(|_| names.refresh(&[]));
        assert!(start.elapsed() < first, "only the first call waits");
        names.start_program();
        let version = names.version();
        drop(go);
        names.timeout = Duration::from_secs(60);
        assert!(names.is_back());
        assert_eq!(
            (name(&names).as_str(), names.version()),
            ("", version),
            "names of the last program"
        );
        assert_eq!(names.source(), "");
        names.refresh(&[]);
        assert!(!names.is_away && name(&names) == "g", "the names of this program");
        assert_ne!(names.version(), version);
        assert_eq!(names.source(), "program 1");
    }

    #[test]
    fn names_are_read_even_if_the_program_exits_before_samples_need_them() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let map = std::path::PathBuf::from(format!("/tmp/perf-{}.map", child.id()));
        std::fs::write(&map, "1000 10 f\n").unwrap();
        let mut names = JitNames::start(child.id() as i32).unwrap();
        wait_until("the map is not read", || names.version() > 0);
        child.kill().and_then(|()| child.wait()).unwrap();
        std::fs::remove_file(&map).unwrap();
        names.refresh(&[]);
        assert!(names.find(0x1000, 1).resolved.is_some());
    }
}
