//! Names of compiled Java methods, asked of the virtual machine itself through its attach protocol.
//!
//! The machine writes them into a perf map when it is told `Compiler.perfmap`, which JDK 17 and later
//! know. It opens the socket that it is told by after a SIGQUIT, if it finds a file of a certain name
//! in its folder for temporary files. So a signal, a file for a moment and a map are left in the
//! target's world: it is done only when asked for, and what was not there before is removed.
//!
//! A thread does the asking. A machine that runs already is asked before anything is changed in it,
//! one that a program loads later as soon as it is seen. Whenever samples have code that no map has
//! told of yet it is asked again, and those samples wait for the answer: compilers replace what they
//! have made after a part of a second, and a map tells only of what is there.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::modules::{AddressMap, AddressRange};
use crate::proc::{self, Mapping};

mod asking;
mod machine;
mod writings;

use self::asking::{Asking, Ends};
use self::machine::Machine;
pub(super) use self::writings::Writings;

/// The library that is the virtual machine.
const LIBRARY: &str = "libjvm.so";
/// Between two looks at it.
const LOOK: Duration = Duration::from_millis(50);
/// As long as this the first map is waited for before the attach.
const FIRST_WAIT: Duration = Duration::from_secs(3);
/// As long as this names are still asked for when the last samples are there.
const LAST_NAMES: Duration = Duration::from_secs(2);
/// As long as this a question is waited for at the end: longer than its own waits then.
const LAST_WAIT: Duration = Duration::from_secs(5);

/// The machines that a target is, one after the other.
pub(super) struct JvmNames {
    pid: i32,
    /// They may be asked.
    is_wanted: bool,
    /// The user knows of the one that there is.
    is_told: bool,
    asker: Option<Asker>,
    writings: Arc<Writings>,
}

impl JvmNames {
    /// Of the process `pid`: none is known yet.
    pub(super) fn new(pid: i32, is_wanted: bool) -> Self {
        Self { pid, is_wanted, is_told: false, asker: None, writings: Arc::default() }
    }

    /// How often maps were written because of it.
    pub(super) fn writings(&self) -> Arc<Writings> {
        Arc::clone(&self.writings)
    }

    /// Asks a machine that runs already and waits for its map, for seconds at most. Nothing of ours is
    /// in it yet, so nothing is lost when this process ends meanwhile.
    pub(super) fn ask_first(&mut self, is_over: impl Fn() -> bool) -> Option<String> {
        let mappings = if self.is_wanted { proc::mappings(self.pid) } else { return None };
        let is_machine = |mapping: &Mapping| is_library(&mapping.path);
        if !mappings.is_ok_and(|mappings| mappings.iter().any(is_machine)) {
            // What cannot be read is told of by the attach.
            return None;
        }
        let notice = self.begin();
        let deadline = Instant::now() + FIRST_WAIT;
        let is_waiting = || self.asker.as_ref().is_some_and(|asker| !asker.has_word());
        while is_waiting() && !is_over() && Instant::now() < deadline {
            std::thread::sleep(LOOK / 5);
        }
        notice
    }

    /// Looks for a machine in what is mapped; what is to be said of it.
    pub(super) fn look(&mut self, addresses: &AddressMap) -> Option<String> {
        let is_machine = |range: &AddressRange| {
            range.module.as_ref().is_some_and(|module| is_library(OsStr::new(&module.path)))
        };
        let is_new = !self.is_told && addresses.ranges.iter().any(is_machine);
        is_new.then(|| self.begin()).flatten()
    }

    /// A machine is asked.
    pub(super) fn is_asking(&self) -> bool {
        self.asker.is_some()
    }

    /// What the machine has said since, if that is to be told.
    pub(super) fn news(&mut self) -> Option<String> {
        Some(without_names(&self.asker.as_ref()?.failures.try_recv().ok()?))
    }

    /// The last samples are there: names that they want are asked for at once, and for a moment only.
    pub(super) fn hurry(&self) {
        if let Some(asker) = &self.asker {
            asker.last_words.get_or_init(|| Instant::now() + LAST_NAMES);
        }
    }

    /// Asks no more, since the program is gone or the recording is over; what is to be said of that.
    pub(super) fn end(&mut self) -> Option<String> {
        self.is_told = false;
        let mut asker = self.asker.take()?;
        asker.end();
        Some(without_names(&asker.failures.try_recv().ok()?))
    }

    fn begin(&mut self) -> Option<String> {
        self.is_told = true;
        let keeps = frame_pointers(self.pid);
        if !self.is_wanted {
            let stacks = if keeps { "" } else { "; whole stacks need -XX:+PreserveFramePointer" };
            let text = "a Java virtual machine: names of compiled methods need --jvm-names";
            return Some(format!("{text}{stacks}"));
        }
        match Asker::start(self.pid, Arc::clone(&self.writings)) {
            Ok(asker) => self.asker = Some(asker),
            Err(error) => return Some(without_names(&error.to_string())),
        }
        let text = "a Java virtual machine without -XX:+PreserveFramePointer: stacks through compiled \
                    methods end there";
        (!keeps).then(|| text.to_owned())
    }
}

fn without_names(why: &str) -> String {
    format!("no names from the Java virtual machine: {why}")
}

fn is_library(path: &OsStr) -> bool {
    Path::new(path).file_name() == Some(OsStr::new(LIBRARY))
}

/// By its command line; options may come by other ways, too.
fn frame_pointers(pid: i32) -> bool {
    let words = proc::command_line(pid).unwrap_or_default();
    words.iter().rev().find_map(|word| match word.to_str()? {
        "-XX:+PreserveFramePointer" => Some(true),
        "-XX:-PreserveFramePointer" => Some(false),
        _ => None,
    }) == Some(true)
}

/// The thread that asks one machine now and then.
struct Asker {
    is_ending: Arc<AtomicBool>,
    /// Until when it is asked, once the last samples are there.
    last_words: Arc<OnceLock<Instant>>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// There is a first map, or there will be none.
    has_word: Arc<AtomicBool>,
    failures: Receiver<String>,
}

impl Asker {
    fn start(pid: i32, writings: Arc<Writings>) -> io::Result<Self> {
        let machine = Machine::of(pid)?;
        let is_ending = Arc::new(AtomicBool::new(false));
        let last_words = Arc::new(OnceLock::<Instant>::new());
        let has_word = Arc::new(AtomicBool::new(false));
        let (stop, stopped) = channel();
        let (tell, failures) = channel();
        let (ending, last) = (Arc::clone(&is_ending), Arc::clone(&last_words));
        let word = Arc::clone(&has_word);
        let work = move || {
            let is_late = || last.get().is_some_and(|last| Instant::now() >= *last);
            // Relaxed, both: looked at until they are seen.
            let is_ending = || ending.load(Ordering::Relaxed) || is_late();
            let is_hurried = || last.get().is_some();
            let ends = Ends { is_ending: &is_ending, is_hurried: &is_hurried, stopped };
            let asking = Asking::new(machine, &writings, ends);
            // Nobody may want to know any more.
            let tell = |text| drop(tell.send(text));
            asking.run(|| word.store(true, Ordering::Relaxed), tell);
        };
        let thread = std::thread::Builder::new().name("jvm names".to_string()).spawn(work)?;
        let (stop, thread) = (Some(stop), Some(thread));
        Ok(Self { is_ending, last_words, stop, thread, has_word, failures })
    }

    fn has_word(&self) -> bool {
        // Relaxed: the map itself is read under its lock.
        self.has_word.load(Ordering::Relaxed)
    }
}

impl Asker {
    /// Waits for the end of the thread, but for one that a file system of the target's does not let go:
    /// that ends with this process.
    fn end(&mut self) {
        // Relaxed: looked at until it is seen.
        self.is_ending.store(true, Ordering::Relaxed);
        self.stop = None;
        let deadline = Instant::now() + LAST_WAIT;
        while self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
            && Instant::now() < deadline
        {
            std::thread::sleep(LOOK / 10);
        }
        self.thread = None;
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        self.end();
    }
}
