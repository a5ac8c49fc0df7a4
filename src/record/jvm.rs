//! Names of compiled Java methods, asked of the virtual machine itself through its attach protocol.
//!
//! The machine writes them into a perf map when it is told `Compiler.perfmap`, which JDK 17 and later
//! know. It opens the socket that it is told by after a SIGQUIT, if it finds a file of a certain name
//! in its folder for temporary files. So a signal, a file for a moment and a map are left in the
//! target's world: it is done only when asked for, and what was not there before is removed.
//!
//! A thread does the asking. A machine that runs already is asked before anything is changed in it,
//! one that a program loads later as soon as it is seen.

use std::cell::Cell;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use super::modules::{AddressMap, AddressRange};
use crate::proc::{self, Mapping};

mod machine;

use self::machine::{AskError, Machine};

/// The library that is the virtual machine.
const LIBRARY: &str = "libjvm.so";
/// Between two questions: what is compiled meanwhile has no name until the next.
const PERIOD: Duration = Duration::from_secs(1);
/// So long the machine may take for its first answers: methods are compiled early.
const GRACE: Duration = Duration::from_secs(1);
/// After that, answers take no more than this part of its time.
const SHARE: u32 = 20;
/// A machine that is starting does not handle SIGQUIT yet.
const STARTING: Duration = Duration::from_secs(10);
/// Between two looks at it.
const LOOK: Duration = Duration::from_millis(50);
/// As long as this the first map is waited for before the attach.
const FIRST_WAIT: Duration = Duration::from_secs(3);
/// As long as this a question is waited for at the end: longer than its own waits then.
const LAST_WAIT: Duration = Duration::from_secs(5);
/// So many questions without an answer, one after the other, and no more is asked.
const SILENT_MAX: u32 = 3;

/// How often a map was written by one who was asked to. Locked while it is being written: what is there
/// then is neither the old nor the new map.
#[derive(Debug, Default)]
pub(super) struct Writings(Mutex<u64>);

impl Writings {
    /// The map stays as it is as long as this is held; `None` if it is being written.
    pub(super) fn hold(&self) -> Option<MutexGuard<'_, u64>> {
        match self.0.try_lock() {
            Ok(count) => Some(count),
            // A number is never half changed.
            Err(TryLockError::Poisoned(count)) => Some(count.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Has it written. Whoever reads it meanwhile is waited for, unless it is over before.
    pub(super) fn write<T>(
        &self,
        is_over: &dyn Fn() -> bool,
        write: impl FnOnce() -> T,
    ) -> Option<T> {
        loop {
            if let Some(mut count) = self.hold() {
                // Something may have been written in any case.
                *count += 1;
                return Some(write());
            }
            if is_over() {
                return None;
            }
            std::thread::sleep(LOOK / 5);
        }
    }
}

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

    /// What the machine has said since, if that is to be told.
    pub(super) fn news(&mut self) -> Option<String> {
        Some(without_names(&self.asker.as_ref()?.failures.try_recv().ok()?))
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
        let has_word = Arc::new(AtomicBool::new(false));
        let (stop, stopped) = channel();
        let (tell, failures) = channel();
        let (ending, word) = (Arc::clone(&is_ending), Arc::clone(&has_word));
        let work = move || {
            // Relaxed, both: looked at until they are seen.
            let is_ending = || ending.load(Ordering::Relaxed);
            let asked = Cell::new(SystemTime::UNIX_EPOCH);
            let asking =
                Asking { machine, writings: &writings, is_ending: &is_ending, stopped, asked };
            // Nobody may want to know any more.
            let tell = |text| drop(tell.send(text));
            asking.run(|| word.store(true, Ordering::Relaxed), tell);
        };
        let thread = std::thread::Builder::new().name("jvm names".to_string()).spawn(work)?;
        Ok(Self { is_ending, stop: Some(stop), thread: Some(thread), has_word, failures })
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

/// What the thread does.
struct Asking<'a> {
    machine: Machine,
    writings: &'a Writings,
    is_ending: &'a dyn Fn() -> bool,
    stopped: Receiver<()>,
    /// When the last question was over.
    asked: Cell<SystemTime>,
}

impl Asking<'_> {
    /// Asks until the end; what was not there before is gone then.
    fn run(self, has_word: impl Fn(), tell: impl Fn(String)) {
        let kept = self.machine.map();
        let error = match &kept {
            Ok(_) => self.ask_on(&has_word).map(|error| error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        error.map(tell);
        has_word();
        if let (Ok(None), Ok(Some(map))) = (kept, self.machine.map()) {
            self.machine.remove_map(map, self.asked.get());
        }
    }

    /// Asks until the end; why there is no map then, or why there will be no more.
    fn ask_on(&self, has_word: &dyn Fn()) -> Option<AskError> {
        let (mut has_map, mut silent, mut spent) = (false, 0, Duration::ZERO);
        let begun = Instant::now();
        loop {
            let ask = || {
                let outcome = self.machine.ask(self.is_ending);
                self.asked.set(SystemTime::now());
                outcome
            };
            let outcome = self.writings.write(self.is_ending, ask).unwrap_or(Err(AskError::Over));
            let (pause, error) = match outcome {
                Ok(took) => {
                    (has_map, silent) = (true, 0);
                    has_word();
                    spent += took;
                    let share = spent.saturating_sub(GRACE) * SHARE;
                    (PERIOD.max(share.saturating_sub(begun.elapsed())), None)
                }
                Err(AskError::NotYet) if !has_map && begun.elapsed() < STARTING => {
                    (LOOK, Some(AskError::NotYet))
                }
                Err(AskError::Failed(error)) if has_map && silent < SILENT_MAX => {
                    silent += 1;
                    (PERIOD, Some(AskError::Failed(error)))
                }
                Err(error) => (Duration::ZERO, Some(error)),
            };
            let is_final = pause.is_zero()
                || self.stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout)
                || self.machine.is_gone();
            if is_final {
                // What went wrong at the end of one that has told its names is the end.
                let is_over = has_map && (self.machine.is_gone() || (self.is_ending)());
                return error.filter(|_| !is_over);
            }
        }
    }
}
