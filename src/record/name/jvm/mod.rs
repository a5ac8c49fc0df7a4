//! Names of compiled Java methods, requested from the JVM through its attach protocol.
//!
//! The JVM writes the names into a perf map on the command `Compiler.perfmap`, which JDK 17 and
//! later know. It opens the socket for that command after a SIGQUIT, if it finds a file with a
//! certain name in its folder for temporary files. So the environment of the target sees a signal,
//! a short-lived file and a map. This happens only on the user's request, and files that did not
//! exist before are removed.
//!
//! A thread sends the requests. A JVM that already runs gets the first request before the recorder
//! changes anything in it. A JVM that a program loads later gets it as soon as the recorder sees
//! the library. Whenever samples are in code that no map has named yet, the thread sends another
//! request, and those samples wait for the answer: compilers replace their code within a fraction
//! of a second, and a map names only the present code.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::proc::{self, Mapping};
use crate::record::target::modules::{AddressMap, AddressRange};

mod attach_protocol;
mod map_poller;
mod map_requests;

use self::attach_protocol::JavaVm;
use self::map_poller::{MapPoller, PollerEnd};
pub(crate) use self::map_requests::MapRequests;

/// The file name of the library that contains the JVM.
const LIBRARY: &str = "libjvm.so";
/// What stands for the version of a machine.
const MACHINE: &str = "a Java virtual machine";
/// The interval of checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// How long the attach waits for the first map.
const FIRST_WAIT: Duration = Duration::from_secs(3);
/// How long after its file was seen a JVM may still start.
const STARTING: Duration = Duration::from_secs(2);
/// How long names are still requested after the last samples have arrived.
const LAST_NAMES: Duration = Duration::from_secs(2);
/// How long the end of a recording waits for an open request: longer than the request itself waits
/// then.
const LAST_WAIT: Duration = Duration::from_secs(5);

/// The JVMs that a target runs, one after the other.
pub(crate) struct JvmNames {
    pid: i32,
    /// Whether the user allows requests to the JVM.
    is_wanted: bool,
    /// Whether the current JVM was reported to the user.
    is_reported: bool,
    /// When the file of a JVM was first seen.
    first_seen: Option<Instant>,
    poller_thread: Option<PollerThread>,
    map_requests: Arc<MapRequests>,
}

impl JvmNames {
    /// Makes the value for a process in which no JVM is known yet.
    pub(crate) fn new(pid: i32, is_wanted: bool) -> Self {
        Self {
            pid,
            is_wanted,
            is_reported: false,
            first_seen: None,
            poller_thread: None,
            map_requests: Arc::default(),
        }
    }

    /// Returns the requests for maps.
    pub(crate) fn map_requests(&self) -> Arc<MapRequests> {
        Arc::clone(&self.map_requests)
    }

    /// Requests the map of a JVM that already runs, and waits for it for a few seconds at most.
    ///
    /// The agent is not injected yet, so nothing needs to be restored if the recorder dies
    /// meanwhile.
    pub(crate) fn ask_first(&mut self, is_over: impl Fn() -> bool) -> Option<String> {
        let mappings = if self.is_wanted { proc::mappings(self.pid) } else { return None };
        let is_jvm = |mapping: &Mapping| is_library(&mapping.path);
        if !mappings.is_ok_and(|mappings| mappings.iter().any(is_jvm)) {
            // If the mappings cannot be read, the attach reports that.
            return None;
        }
        let notice = self.start(false);
        let deadline = Instant::now() + FIRST_WAIT;
        let is_waiting = || {
            self.poller_thread
                .as_ref()
                .is_some_and(|poller_thread| !poller_thread.has_first_answer())
        };
        while is_waiting() && !is_over() && Instant::now() < deadline {
            std::thread::sleep(CHECK_INTERVAL / 5);
        }
        notice
    }

    /// Searches the mappings for a new JVM, and returns a message about it.
    pub(crate) fn check(&mut self, addresses: &AddressMap) -> Option<String> {
        let is_jvm = |range: &AddressRange| {
            range.module.as_ref().is_some_and(|module| is_library(OsStr::new(&module.path)))
        };
        let is_new = !self.is_reported && addresses.ranges.iter().any(is_jvm);
        // A machine that starts is found a moment after its file is there.
        let is_known = addresses.java.is_some();
        let is_starting = is_new && {
            let seen = self.first_seen.get_or_insert_with(Instant::now);
            !is_known && !self.is_wanted && seen.elapsed() < STARTING
        };
        (is_new && !is_starting).then(|| self.start(is_known)).flatten()
    }

    /// Returns whether requests go to a JVM.
    pub(crate) fn is_asking(&self) -> bool {
        self.poller_thread.is_some()
    }

    /// Returns a new message about the JVM, if there is one.
    pub(crate) fn news(&mut self) -> Option<String> {
        Some(without_names(&self.poller_thread.as_ref()?.failures.try_recv().ok()?))
    }

    /// Makes the poller serve the requests of the last samples at once, for a limited time.
    pub(crate) fn hurry(&self) {
        if let Some(poller_thread) = &self.poller_thread {
            poller_thread.last_deadline.get_or_init(|| Instant::now() + LAST_NAMES);
        }
    }

    /// Ends the requests, and returns a message about them if there is one.
    pub(crate) fn end(&mut self) -> Option<String> {
        self.is_reported = false;
        self.first_seen = None;
        let mut poller_thread = self.poller_thread.take()?;
        poller_thread.end();
        Some(without_names(&poller_thread.failures.try_recv().ok()?))
    }

    /// Starts the requests if they are wanted. `is_known` says that stacks and names of methods
    /// come from the machine's memory.
    fn start(&mut self, is_known: bool) -> Option<String> {
        self.is_reported = true;
        let keeps = is_known || frame_pointers(self.pid);
        if !self.is_wanted {
            let missing = [
                (!is_known).then_some("names of compiled methods need --jvm-names"),
                (!keeps).then_some("complete stacks need -XX:+PreserveFramePointer"),
            ];
            let missing: Vec<&str> = missing.into_iter().flatten().collect();
            return (!missing.is_empty()).then(|| format!("{MACHINE}: {}", missing.join("; ")));
        }
        match PollerThread::start(self.pid, Arc::clone(&self.map_requests)) {
            Ok(poller_thread) => self.poller_thread = Some(poller_thread),
            Err(error) => return Some(without_names(&error.to_string())),
        }
        let text = "a Java virtual machine without -XX:+PreserveFramePointer: stacks through \
                    compiled methods end there";
        (!keeps).then(|| text.to_owned())
    }
}

fn without_names(why: &str) -> String {
    format!("no names from the Java virtual machine: {why}")
}

fn is_library(path: &OsStr) -> bool {
    Path::new(path).file_name() == Some(OsStr::new(LIBRARY))
}

/// Returns whether the command line tells the JVM to keep frame pointers; options from other
/// sources are not seen.
fn frame_pointers(pid: i32) -> bool {
    let words = proc::command_line(pid).unwrap_or_default();
    words.iter().rev().find_map(|word| match word.to_str()? {
        "-XX:+PreserveFramePointer" => Some(true),
        "-XX:-PreserveFramePointer" => Some(false),
        _ => None,
    }) == Some(true)
}

/// The thread that requests the maps of one JVM.
struct PollerThread {
    is_ending: Arc<AtomicBool>,
    /// The deadline of requests once the last samples have arrived.
    last_deadline: Arc<OnceLock<Instant>>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Whether the first map has been written, or is known not to come.
    has_first_answer: Arc<AtomicBool>,
    failures: Receiver<String>,
}

impl PollerThread {
    fn start(pid: i32, map_requests: Arc<MapRequests>) -> io::Result<Self> {
        let jvm = JavaVm::of(pid)?;
        let is_ending = Arc::new(AtomicBool::new(false));
        let last_deadline = Arc::new(OnceLock::<Instant>::new());
        let has_first_answer = Arc::new(AtomicBool::new(false));
        let (stop, stopped) = channel();
        let (tell, failures) = channel();
        let (ending, last) = (Arc::clone(&is_ending), Arc::clone(&last_deadline));
        let word = Arc::clone(&has_first_answer);
        let work = move || {
            let is_late = || last.get().is_some_and(|last| Instant::now() >= *last);
            // Relaxed, both: polled until they are seen.
            let is_ending = || ending.load(Ordering::Relaxed) || is_late();
            let is_hurried = || last.get().is_some();
            let ends = PollerEnd { is_ending: &is_ending, is_hurried: &is_hurried, stopped };
            let poller = MapPoller::new(jvm, &map_requests, ends);
            // The receiver may no longer exist.
            let tell = |text| drop(tell.send(text));
            poller.run(|| word.store(true, Ordering::Relaxed), tell);
        };
        let thread = std::thread::Builder::new().name("jvm names".to_string()).spawn(work)?;
        let (stop, thread) = (Some(stop), Some(thread));
        Ok(Self { is_ending, last_deadline, stop, thread, has_first_answer, failures })
    }

    fn has_first_answer(&self) -> bool {
        // Relaxed: the map itself is read under its lock.
        self.has_first_answer.load(Ordering::Relaxed)
    }
}

impl PollerThread {
    /// Waits a limited time for the thread to exit.
    ///
    /// A thread that hangs in a file system of the target exits with this process.
    fn end(&mut self) {
        // Relaxed: polled until it is seen.
        self.is_ending.store(true, Ordering::Relaxed);
        self.stop = None;
        let deadline = Instant::now() + LAST_WAIT;
        while self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
            && Instant::now() < deadline
        {
            std::thread::sleep(CHECK_INTERVAL / 10);
        }
        self.thread = None;
    }
}

impl Drop for PollerThread {
    fn drop(&mut self) {
        self.end();
    }
}
