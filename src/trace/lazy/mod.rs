//! The lazy reader: a trace of any size, of which only what is asked for is read.
//!
//! # Invariants
//! - Memory is bounded: some megabytes of decoded frames and index pages, a summary per thread, and
//!   what the caller keeps.
//! - An index is believed as long as it fits the data. Once it does not, the data is scanned and
//!   the index made anew in memory, with a notice; that happens once.

mod cache;
mod call;
mod children;
mod fault;
mod losses;
mod objects;
mod open;
mod reading;
mod samples;
mod source;
mod summaries;
mod walk;
mod written_samples;

use std::collections::BTreeSet;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use call::{LazyCall, LazyNode};
use children::Wanted;
use fault::{Fault, Found};
pub use objects::Objects;
use objects::StoredObjects;
use reading::Reading;
use samples::ThreadSamples;
pub use samples::Window;
pub use summaries::ThreadSummary;
use written_samples::WrittenSamples;

use super::meter::note_sample;
use super::{
    CallTrace, Location, LocationId, Loss, MappedModule, Metadata, Method, MethodId, Module,
    ModuleId, Sample, TextId, ThreadId, TraceError,
};

/// A trace that is read as far as it is looked at. Several can be open at a time.
///
/// ```
/// # use traceprof::trace::{LazyNode, LazyTrace, Location, Method, Sample, Thread};
/// # use traceprof::trace::{TraceWriter, WriterOptions};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("out.trace");
/// # let mut writer = TraceWriter::create(&path, WriterOptions::default())?;
/// # let method = writer.method(&Method { module: None, name: "main".into(), start_svma: 0x10 })?;
/// # let place = Location { method, svma: 0x14, file: None, line: 3, inline_parent: None };
/// # let place = writer.location(&place)?;
/// # let thread = Thread { pid: 7, tid: 7, name: "demo".into(), ..Thread::default() };
/// # let thread = writer.thread(&thread)?;
/// # writer.sample(thread, &Sample { time_ns: 1_000, ..Sample::default() }, &[place])?;
/// # writer.finish()?;
/// let trace = LazyTrace::open(&path)?;
/// let mut thread = trace.roots(trace.threads()[0].id)?;
/// trace.load_range(&mut thread, 0..1)?;
/// let Some(LazyNode::Call(root)) = thread.child(0) else { panic!("no call") };
/// let location = trace.location(root.location().ok_or("no location")?)?;
/// assert_eq!(trace.method(location.method)?.name, "main");
/// assert_eq!((root.samples(), root.child_count(), root.child(0).is_none()), (1, Some(1), true));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct LazyTrace {
    path: PathBuf,
    reading: Mutex<Arc<Reading>>,
    notices: Mutex<Vec<String>>,
    metadata: Metadata,
    threads: Vec<ThreadSummary>,
}

impl LazyTrace {
    /// Opens the data file at `path`, with the index beside it if there is one that fits. Without,
    /// the whole file is read once.
    ///
    /// # Errors
    /// As [`load`](fn@super::load).
    pub fn open(path: &Path) -> Result<LazyTrace, TraceError> {
        let mut notices = Vec::new();
        let reading = open::open(path, &mut notices)?;
        let trace = LazyTrace {
            path: path.to_owned(),
            reading: Mutex::new(Arc::new(reading)),
            notices: Mutex::new(notices),
            metadata: Metadata::new(),
            threads: Vec::new(),
        };
        trace.with_context()
    }

    /// Reads what is kept in memory: metadata and threads.
    fn with_context(mut self) -> Result<Self, TraceError> {
        (self.metadata, self.threads) = self.read(Self::context)?;
        Ok(self)
    }

    fn context(reading: &Reading) -> Found<(Metadata, Vec<ThreadSummary>)> {
        Ok((StoredObjects::of(reading).metadata()?, ThreadSummary::read_all(reading)?))
    }

    /// The last value of each key.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The recording was finished; otherwise it is still running or was killed.
    pub fn closed(&self) -> bool {
        self.reading().closed
    }

    /// The data file, as it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What a user should know of the files' state. Reading may add to it.
    pub fn notices(&self) -> Vec<String> {
        locked(&self.notices).clone()
    }

    /// What cannot be read. Reading may add to it.
    pub fn losses(&self) -> Vec<Loss> {
        self.reading().losses.found.clone()
    }

    /// All threads, by [`ThreadId`].
    pub fn threads(&self) -> &[ThreadSummary] {
        &self.threads
    }

    /// The module with this id.
    pub fn module(&self, id: ModuleId) -> Result<Module, TraceError> {
        self.look_up(|objects| objects.module(id))
    }

    /// The method with this id.
    pub fn method(&self, id: MethodId) -> Result<Method, TraceError> {
        self.look_up(|objects| objects.method(id))
    }

    /// The location with this id.
    pub fn location(&self, id: LocationId) -> Result<Location, TraceError> {
        self.look_up(|objects| objects.location(id))
    }

    /// The text with this id; `[lost]` if the file is damaged there.
    pub fn text(&self, id: TextId) -> Result<String, TraceError> {
        self.look_up(|objects| objects.string(id.0))
    }

    /// The text that a tag's value stands for; `[lost]` also if there is none: nothing makes sure
    /// that the values of tags lead anywhere.
    pub fn tag_text(&self, id: TextId) -> Result<String, TraceError> {
        self.look_up(|objects| objects.string_if_there(id.0))
    }

    /// The ids of a text; mostly there is one or none. Looks through all texts.
    pub fn find_text(&self, text: &str) -> Result<BTreeSet<TextId>, TraceError> {
        self.look_up(|objects| objects.find_text(text))
    }

    /// The call trace with this 64-bit id, if it was written as an object of its own. Looks through
    /// all that were.
    pub fn call_trace(&self, trace_id: u64) -> Result<Option<CallTrace>, TraceError> {
        self.look_up(|objects| objects.call_trace(trace_id))
    }

    /// Where modules were mapped.
    pub fn mapped(&self) -> Result<Vec<MappedModule>, TraceError> {
        self.look_up(|objects| objects.mapped())
    }

    /// All modules, methods and locations; what a damaged file has lost is called `[lost]`.
    pub fn load_objects(&self) -> Result<Objects, TraceError> {
        self.look_up(|objects| objects.all())
    }

    /// Calls `f` with the samples in a window and their stacks, root first: thread after thread,
    /// each in the order in which they were taken.
    pub fn for_each_sample(
        &self,
        window: &Window,
        f: &mut dyn FnMut(ThreadId, &Sample, &[LocationId]),
    ) -> Result<(), TraceError> {
        let times = (window.from_ns, window.to_ns);
        for ThreadSummary { id, .. } in &self.threads {
            if window.has_thread(*id) {
                // A sample is given once, even if the index turns out to be wrong in the middle.
                let mut given = 0u64;
                self.read(|reading| {
                    let mut number = 0;
                    ThreadSamples::of(reading, *id).between(times, &mut |sample, stack| {
                        number += 1;
                        if number > given {
                            given = number;
                            note_sample();
                            f(*id, sample, stack);
                        }
                    })
                })?;
            }
        }
        Ok(())
    }

    /// Calls `f` with the samples in a window as they lie in the file: of each of a thread's two
    /// streams in the order in which they were taken, those of threads mixed. Cheaper than
    /// [`Self::for_each_sample`] where order does not matter.
    pub fn for_each_sample_as_written(
        &self,
        window: &Window,
        f: &mut dyn FnMut(ThreadId, &Sample, &[LocationId]),
    ) -> Result<(), TraceError> {
        // A sample is given once, even if damage is met in the middle: what was given before lies
        // in front of it.
        let mut given = 0u64;
        self.read(|reading| {
            let mut number = 0;
            WrittenSamples::of(reading, window).for_each(&mut |thread, sample, stack| {
                number += 1;
                if number > given {
                    given = number;
                    note_sample();
                    f(thread, sample, stack);
                }
            })
        })
    }

    /// Calls `f` with the samples of a thread between two times, first those of its main stream,
    /// then those of its side stream: whether it is the side stream, and the number of the sample
    /// in its stream, lost ones included, which [`LazyCall::sample_numbers`] is about.
    pub fn for_each_sample_of(
        &self,
        thread: ThreadId,
        times_ns: RangeInclusive<u64>,
        f: &mut dyn FnMut(bool, u64, &Sample),
    ) -> Result<(), TraceError> {
        self.known(thread)?;
        // A sample is given once, even if the index turns out to be wrong in the middle.
        let mut given = 0u64;
        self.read(|reading| {
            let mut count = 0;
            ThreadSamples::of(reading, thread).by_stream(&times_ns, &mut |side, number, sample| {
                count += 1;
                if count > given {
                    given = count;
                    f(side, number, sample);
                }
            })
        })
    }

    /// The last sample of a thread at or before a time, and its stack, root first.
    pub fn stack_at(
        &self,
        thread: ThreadId,
        time_ns: u64,
    ) -> Result<Option<(Sample, Vec<LocationId>)>, TraceError> {
        self.known(thread)?;
        self.read(|reading| ThreadSamples::of(reading, thread).stack_at(time_ns))
    }

    /// A thread as a call without a location, whose children are its roots: those of the main
    /// stream in the order of their times, then the calls of `[truncated]`.
    pub fn roots(&self, thread: ThreadId) -> Result<LazyCall, TraceError> {
        let summary = self.known(thread)?;
        let mut call = LazyCall::of_thread(thread);
        call.samples = summary.samples;
        call.first_ns = summary.first_ns.unwrap_or(0);
        call.last_ns = summary.last_ns.unwrap_or(0);
        let (count, unfinished) = self.read(|reading| reading.roots(thread))?;
        call.count = count;
        if unfinished {
            call.ending = call::Ending::Unfinished;
        }
        Ok(call)
    }

    /// Loads all children of a call.
    pub fn load_all(&self, call: &mut LazyCall) -> Result<(), TraceError> {
        self.load_range(call, 0..u32::MAX)
    }

    /// Loads some children of a call; those that do not exist are left out.
    pub fn load_range(&self, call: &mut LazyCall, children: Range<u32>) -> Result<(), TraceError> {
        self.load(call, Wanted::children(children))
    }

    /// Loads one child of a call, if there is one with this number.
    pub fn load_child(&self, call: &mut LazyCall, child: u32) -> Result<(), TraceError> {
        self.load_range(call, child..child.saturating_add(1))
    }

    /// Loads all that is in a call.
    pub fn load_deep(&self, call: &mut LazyCall) -> Result<(), TraceError> {
        let (children, levels, deep_nodes) = (0..u32::MAX, usize::MAX, usize::MAX);
        self.load(call, Wanted { children, levels, deep_nodes })
    }

    /// Loads some children of a call, and all that is in those that are small, as long as there are
    /// less than so many nodes: what is printed next costs one pass then, not one per call.
    pub fn load_small(
        &self,
        call: &mut LazyCall,
        children: Range<u32>,
        nodes: usize,
    ) -> Result<(), TraceError> {
        self.load(call, Wanted { children, levels: usize::MAX, deep_nodes: nodes })
    }

    /// The number of children of a call, counted now if it is not known.
    pub fn count_children(&self, call: &mut LazyCall) -> Result<u32, TraceError> {
        if call.count.is_none() {
            self.load_range(call, u32::MAX..u32::MAX)?;
        }
        Ok(call.count.unwrap_or(0))
    }

    /// Takes in the frames that were written since; true if there were any. Calls that were loaded
    /// before stay as they are.
    pub fn refresh(&mut self) -> Result<bool, TraceError> {
        let before = self.reading();
        let Some(reading) = open::refreshed(&self.path, &before, &mut locked(&self.notices))?
        else {
            return Ok(false);
        };
        *locked(&self.reading) = Arc::new(reading);
        (self.metadata, self.threads) = self.read(Self::context)?;
        Ok(true)
    }

    fn load(&self, call: &mut LazyCall, wanted: Wanted) -> Result<(), TraceError> {
        self.read(|reading| {
            let loaded = children::load(reading, call, wanted.clone());
            if matches!(loaded, Err(Fault::Index(_))) {
                // What it learned from a wrong index is not kept.
                (call.count, call.marks) = (None, Vec::new());
                call.forget_all();
            }
            loaded
        })
    }

    fn known(&self, thread: ThreadId) -> Result<&ThreadSummary, TraceError> {
        let unknown = TraceError::UnknownId { kind: "thread", id: thread.0 };
        self.threads.get(thread.0 as usize).ok_or(unknown)
    }

    fn reading(&self) -> Arc<Reading> {
        Arc::clone(&locked(&self.reading))
    }

    fn look_up<T>(
        &self,
        mut look: impl FnMut(StoredObjects<'_>) -> Found<T>,
    ) -> Result<T, TraceError> {
        self.read(|reading| look(StoredObjects::of(reading)))
    }

    /// Reads something; if the index turns out to be wrong, once more with one made from the data.
    fn read<T>(&self, mut look: impl FnMut(&Reading) -> Found<T>) -> Result<T, TraceError> {
        let reading = self.reading();
        let what = match look(&reading) {
            Ok(found) => return Ok(found),
            Err(Fault::Trace(error)) => return Err(error),
            Err(Fault::Index(what)) => what,
        };
        let corrupt = |what| TraceError::Corrupt { offset: 0, what };
        if reading.scanned {
            return Err(corrupt(what));
        }
        let rebuilt = open::rebuilt(&self.path, what, &mut locked(&self.notices))?;
        let rebuilt = Arc::new(rebuilt);
        *locked(&self.reading) = Arc::clone(&rebuilt);
        match look(&rebuilt) {
            Ok(found) => Ok(found),
            Err(Fault::Trace(error)) => Err(error),
            Err(Fault::Index(what)) => Err(corrupt(what)),
        }
    }
}

/// What is behind a lock here is whole after every step, whatever panicked meanwhile.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
