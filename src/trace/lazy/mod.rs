//! The lazy reader: reads only the requested parts of a trace of any size.
//!
//! # Invariants
//! - Memory use is bounded: some megabytes of decoded frames and index pages, a summary per thread,
//!   and what the caller keeps.
//! - An index is used until it contradicts the data. Then the reader scans the data, makes a new
//!   index in memory, and adds a notice; that happens once.

mod all_objects;
mod cache;
mod call;
mod children;
mod fault;
mod losses;
mod objects;
mod open;
mod open_trace;
mod passed_once;
mod relabel;
mod samples;
mod shown_frames;
mod source;
mod summaries;
mod time_slices;
mod walk;
mod written_samples;

use std::collections::BTreeSet;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

pub use all_objects::Objects;
pub use call::{LazyCall, LazyNode};
use children::Wanted;
use fault::{LazyError, LazyResult};
use objects::StoredObjects;
use open_trace::OpenTrace;
use passed_once::PassedOnce;
pub use relabel::Relabel;
use relabel::Relabelled;
use samples::ThreadSampleReader;
pub use samples::Window;
use shown_frames::{LocationRoles, ShownFrames};
pub use summaries::ThreadSummary;
use written_samples::WrittenSamples;

use super::{
    BadRange, CallTrace, FileState, INTERPRETERS, LocationId, Loss, MappedModule, Metadata, Sample,
    TextId, ThreadId, TraceError, memory, process_title,
};

/// A trace that is read on request. Several traces can be open at a time.
///
/// ```
/// # use traceprof::trace::{LazyNode, LazyTrace, Location, Method, Sample, Thread};
/// # use traceprof::trace::{TraceWriter, WriterOptions};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("out.trace");
/// # let mut writer = TraceWriter::create(&path, WriterOptions::default())?;
/// # let method = writer.method(&Method { start_svma: 0x10, ..Method::named("main") })?;
/// # let location = writer.location(&Location { line: 3, ..Location::at(method, 0x14) })?;
/// # let thread = Thread { pid: 7, tid: 7, name: "demo".into(), ..Thread::default() };
/// # let thread = writer.thread(&thread)?;
/// # writer.sample(thread, &Sample { time_ns: 1_000, ..Sample::default() }, &[location])?;
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
    open_trace: Mutex<Arc<OpenTrace>>,
    notices: Mutex<Vec<String>>,
    context: TraceContext,
    /// The context without what is lost, if reading has found damage. Parts of the other one may be
    /// in use.
    rebuilt: OnceLock<TraceContext>,
    /// `None` if stacks have all their frames.
    roles: Option<LocationRoles>,
    /// `None` if objects are as they were written.
    relabelled: Option<Relabelled>,
}

/// What stays in memory of a trace.
#[derive(Debug, Default)]
struct TraceContext {
    metadata: Metadata,
    threads: Vec<ThreadSummary>,
}

impl TraceContext {
    fn read(open_trace: &OpenTrace) -> LazyResult<Self> {
        let metadata = StoredObjects::of(open_trace).metadata()?;
        let mut threads = ThreadSummary::read_all(open_trace)?;
        process_title::name_first_threads(threads.iter_mut().map(|it| &mut it.thread), &metadata);
        Ok(Self { metadata, threads })
    }
}

impl LazyTrace {
    /// Opens the data file at `path`, with the index beside it if that matches. Without a matching
    /// index, reads the complete file once.
    ///
    /// # Errors
    /// Those of [`load`](fn@super::load).
    pub fn open(path: &Path) -> Result<LazyTrace, TraceError> {
        let mut notices = Vec::new();
        let open_trace = open::open(path, &mut notices)?;
        let trace = LazyTrace {
            path: path.to_owned(),
            open_trace: Mutex::new(Arc::new(open_trace)),
            notices: Mutex::new(notices),
            context: TraceContext::default(),
            rebuilt: OnceLock::new(),
            roles: None,
            relabelled: None,
        };
        trace.with_context()
    }

    /// Leaves the frames of [`FrameKind::Interpreter`](super::FrameKind::Interpreter) out of all
    /// stacks from now on, as if they were not there. A stack of nothing else keeps its innermost
    /// frame. Calls are not changed; [`Self::is_left_out`] tells which ones those of such frames
    /// are.
    pub fn leave_out_interpreters(&mut self) {
        self.roles = Some(LocationRoles::default());
    }

    /// Calls `f` with the trace as if nothing were left out.
    pub fn with_all_frames<T>(&mut self, f: impl FnOnce(&Self) -> T) -> T {
        let roles = self.roles.take();
        let found = f(self);
        self.roles = roles;
        found
    }

    /// Returns whether frames are left out of stacks.
    pub fn leaves_frames_out(&self) -> bool {
        self.roles.is_some()
    }

    /// Returns whether the frames at a location are left out of stacks.
    pub fn is_left_out(&self, location: LocationId) -> Result<bool, TraceError> {
        match self.roles {
            Some(_) => self.read(|open_trace| self.shown_frames(open_trace).is_left_out(location)),
            None => Ok(false),
        }
    }

    fn shown_frames<'a>(&'a self, open_trace: &'a OpenTrace) -> ShownFrames<'a> {
        // Without the announcement no location needs to be looked at.
        let are_there = self.metadata().contains_key(INTERPRETERS) || open_trace.losses.any();
        let roles = self.roles.as_ref().filter(|_| are_there);
        ShownFrames::of(StoredObjects::of(open_trace), roles)
    }

    /// Reads metadata and threads, which stay in memory.
    fn with_context(mut self) -> Result<Self, TraceError> {
        self.context = self.read(TraceContext::read)?;
        self.rebuilt = OnceLock::new();
        Ok(self)
    }

    fn context(&self) -> &TraceContext {
        self.rebuilt.get().unwrap_or(&self.context)
    }

    /// Returns the last value of each key.
    pub fn metadata(&self) -> &Metadata {
        &self.context().metadata
    }

    /// Returns whether the recording was finished; otherwise it is still running or was killed.
    pub fn closed(&self) -> bool {
        self.open_trace().closed
    }

    /// Returns the state of the data file, as [`verify`](fn@super::verify) does, but only from what
    /// was read so far. Reading all samples in file order reads every frame.
    pub fn state(&self) -> FileState {
        self.open_trace().state()
    }

    /// Returns the union of the flags of all samples that are left of a damaged trace, whose
    /// metadata may be lost; 0 if nothing is lost.
    pub fn flags_left(&self) -> u32 {
        let open_trace = self.open_trace();
        if open_trace.losses.any() { open_trace.losses.flags } else { 0 }
    }

    /// Returns the path of the data file, as it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns notices for the user about the state of the files. Reading may add some.
    pub fn notices(&self) -> Vec<String> {
        locked(&self.notices).clone()
    }

    /// Returns the ranges of the data file that cannot be read. Reading may add some.
    pub fn bad(&self) -> Vec<BadRange> {
        self.open_trace().losses.bad.clone()
    }

    /// Returns what cannot be read. Reading may add some.
    pub fn losses(&self) -> Vec<Loss> {
        self.open_trace().losses.found.clone()
    }

    /// Returns all threads, by [`ThreadId`]. If reading finds damage, the samples that are lost do
    /// not count any more.
    pub fn threads(&self) -> &[ThreadSummary] {
        &self.context().threads
    }

    /// Returns the text with this id; `[lost]` if the file is damaged there.
    pub fn text(&self, id: TextId) -> Result<String, TraceError> {
        self.look_up(|objects| objects.string(id.0))
    }

    /// Returns the text for a tag's value. Returns `[lost]` also for an unknown id, since nothing
    /// guarantees that the values of tags refer to texts.
    pub fn tag_text(&self, id: TextId) -> Result<String, TraceError> {
        self.look_up(|objects| objects.string_if_there(id.0))
    }

    /// Returns the ids of a text; usually there is one or none. Searches all texts.
    pub fn find_text(&self, text: &str) -> Result<BTreeSet<TextId>, TraceError> {
        self.look_up(|objects| objects.find_text(text))
    }

    /// Returns the call trace with this 64-bit id, if it was written as an object of its own.
    /// Searches all such objects.
    pub fn call_trace(&self, trace_id: u64) -> Result<Option<CallTrace>, TraceError> {
        self.look_up(|objects| objects.call_trace(trace_id))
    }

    /// Returns all call traces that were written as objects.
    pub(super) fn call_traces(&self) -> Result<Vec<CallTrace>, TraceError> {
        self.look_up(|objects| objects.call_traces())
    }

    /// Returns consecutive times, first and last, each with as much data as the caches hold.
    pub(super) fn time_slices(&self) -> Result<Vec<(u64, u64)>, TraceError> {
        self.read(time_slices::of)
    }

    /// Returns the mappings of modules.
    pub fn mapped(&self) -> Result<Vec<MappedModule>, TraceError> {
        self.look_up(|objects| objects.mapped())
    }

    /// Calls `f` with the samples in a window and their stacks, root first: one thread after the
    /// other, each in the order of recording.
    pub fn for_each_sample(
        &self,
        window: &Window,
        f: &mut dyn FnMut(ThreadId, &Sample, &[LocationId]),
    ) -> Result<(), TraceError> {
        let times = (window.from_ns, window.to_ns);
        for ThreadSummary { id, .. } in self.threads() {
            if window.has_thread(*id) {
                let mut once = PassedOnce::default();
                self.read(|open_trace| {
                    once.again();
                    let mut shown = self.shown_frames(open_trace);
                    let mut pass = |sample: &Sample, stack: &[LocationId]| {
                        shown.pass(stack, |stack| {
                            if once.is_new(stack) {
                                f(*id, sample, stack);
                            }
                        });
                    };
                    ThreadSampleReader::of(open_trace, *id).between(times, &mut pass)?;
                    shown.end()
                })?;
                once.end()?;
            }
        }
        Ok(())
    }

    /// Calls `f` with the samples in a window in file order: each of a thread's two streams in the
    /// order of recording, and the threads interleaved. Cheaper than [`Self::for_each_sample`]
    /// where order does not matter.
    pub fn for_each_sample_as_written(
        &self,
        window: &Window,
        f: &mut dyn FnMut(ThreadId, &Sample, &[LocationId]),
    ) -> Result<(), TraceError> {
        // If damage is found in the middle, the samples passed before are in front of it.
        let mut once = PassedOnce::default();
        self.read(|open_trace| {
            once.again();
            let mut shown = self.shown_frames(open_trace);
            WrittenSamples::of(open_trace, window).for_each(&mut |thread, sample, stack| {
                shown.pass(stack, |stack| {
                    if once.is_new(stack) {
                        f(thread, sample, stack);
                    }
                });
            })?;
            shown.end()
        })?;
        once.end()
    }

    /// Calls `f` with the samples of a thread between two times, first those of its main stream,
    /// then those of its side stream. The arguments are whether it is the side stream, the number
    /// of the sample in its stream, including lost samples, and the sample.
    /// [`LazyCall::sample_numbers`] returns such numbers.
    pub fn for_each_sample_of(
        &self,
        thread: ThreadId,
        times_ns: RangeInclusive<u64>,
        f: &mut dyn FnMut(bool, u64, &Sample),
    ) -> Result<(), TraceError> {
        self.known(thread)?;
        // Each sample is passed once, even if the index turns out to be wrong in the middle.
        let mut given = 0u64;
        self.read(|open_trace| {
            let mut count = 0;
            ThreadSampleReader::of(open_trace, thread).by_stream(
                &times_ns,
                &mut |side, number, sample| {
                    count += 1;
                    if count > given {
                        given = count;
                        f(side, number, sample);
                    }
                },
            )
        })
    }

    /// Returns the last sample of a thread at or before a time, and its stack, root first.
    pub fn stack_at(
        &self,
        thread: ThreadId,
        time_ns: u64,
    ) -> Result<Option<(Sample, Vec<LocationId>)>, TraceError> {
        self.known(thread)?;
        self.read(|open_trace| {
            let found = ThreadSampleReader::of(open_trace, thread).stack_at(time_ns)?;
            let Some((sample, stack)) = found else { return Ok(None) };
            let stack = self.shown_frames(open_trace).of_stack(&stack)?.to_vec();
            Ok(Some((sample, stack)))
        })
    }

    /// Returns a thread as a call without a location, whose children are its roots: those of the
    /// main stream by time, then the calls of `[truncated]`.
    pub fn roots(&self, thread: ThreadId) -> Result<LazyCall, TraceError> {
        let summary = self.known(thread)?;
        let mut call = LazyCall::of_thread(thread);
        call.samples = summary.samples;
        call.first_ns = summary.first_ns.unwrap_or(0);
        call.last_ns = summary.last_ns.unwrap_or(0);
        let (count, unfinished) = self.read(|open_trace| open_trace.roots(thread))?;
        call.count = count;
        if unfinished {
            call.ending = call::CallEnding::Unfinished;
        }
        Ok(call)
    }

    /// Loads all children of a call.
    pub fn load_all(&self, call: &mut LazyCall) -> Result<(), TraceError> {
        self.load_range(call, 0..u32::MAX)
    }

    /// Loads some children of a call; numbers that do not exist are ignored.
    pub fn load_range(&self, call: &mut LazyCall, children: Range<u32>) -> Result<(), TraceError> {
        self.load(call, Wanted::children(children))
    }

    /// Loads one child of a call, if there is one with this number.
    pub fn load_child(&self, call: &mut LazyCall, child: u32) -> Result<(), TraceError> {
        self.load_range(call, child..child.saturating_add(1))
    }

    /// Loads everything in a call.
    pub fn load_deep(&self, call: &mut LazyCall) -> Result<(), TraceError> {
        let (children, levels, deep_nodes) = (0..u32::MAX, usize::MAX, usize::MAX);
        self.load(call, Wanted { children, levels, deep_nodes })
    }

    /// Loads some children of a call, and the complete content of the small ones, up to about
    /// `nodes` nodes. So printing them costs one pass, not one per call.
    pub fn load_small(
        &self,
        call: &mut LazyCall,
        children: Range<u32>,
        nodes: usize,
    ) -> Result<(), TraceError> {
        self.load(call, Wanted { children, levels: usize::MAX, deep_nodes: nodes })
    }

    /// Returns the number of children of a call; counts them if it is not known.
    pub fn count_children(&self, call: &mut LazyCall) -> Result<u32, TraceError> {
        if call.count.is_none() {
            self.load_range(call, u32::MAX..u32::MAX)?;
        }
        Ok(call.count.unwrap_or(0))
    }

    /// Reads the frames that were written since; returns whether there were any. Calls that were
    /// loaded before stay unchanged.
    pub fn refresh(&mut self) -> Result<bool, TraceError> {
        let before = self.open_trace();
        let Some(open_trace) = open::refreshed(&self.path, &before, &mut locked(&self.notices))?
        else {
            return Ok(false);
        };
        let bytes = [&before, &open_trace].map(|it| it.source.len().unwrap_or(0));
        memory::grown(bytes[1].saturating_sub(bytes[0]));
        *locked(&self.open_trace) = Arc::new(open_trace);
        self.relabelled.iter_mut().for_each(Relabelled::forget);
        self.context = self.read(TraceContext::read)?;
        self.rebuilt = OnceLock::new();
        Ok(true)
    }

    fn load(&self, call: &mut LazyCall, wanted: Wanted) -> Result<(), TraceError> {
        self.read(|open_trace| {
            let loaded = children::load(open_trace, call, wanted.clone());
            if matches!(loaded, Err(LazyError::Index(_))) {
                // Values from a wrong index are discarded.
                (call.count, call.marks) = (None, Vec::new());
                call.forget_all();
            }
            loaded
        })
    }

    fn known(&self, thread: ThreadId) -> Result<&ThreadSummary, TraceError> {
        let unknown = TraceError::UnknownId { kind: "thread", id: thread.0 };
        self.threads().get(thread.0 as usize).ok_or(unknown)
    }

    fn open_trace(&self) -> Arc<OpenTrace> {
        Arc::clone(&locked(&self.open_trace))
    }

    fn look_up<T>(
        &self,
        mut lookup: impl FnMut(StoredObjects<'_>) -> LazyResult<T>,
    ) -> Result<T, TraceError> {
        self.read(|open_trace| lookup(StoredObjects::of(open_trace)))
    }

    /// Runs `lookup`. If the index turns out to be wrong, runs it again with an index made from the
    /// data.
    fn read<T>(
        &self,
        mut lookup: impl FnMut(&OpenTrace) -> LazyResult<T>,
    ) -> Result<T, TraceError> {
        let open_trace = self.open_trace();
        let what = match lookup(&open_trace) {
            Ok(found) => return Ok(found),
            Err(LazyError::Trace(error)) => return Err(error),
            Err(LazyError::Index(what)) => what,
        };
        let corrupt = |what| TraceError::Corrupt { offset: 0, what };
        if open_trace.scanned {
            return Err(corrupt(what));
        }
        let rebuilt = open::rebuilt(&self.path, what, &mut locked(&self.notices))?;
        let rebuilt = Arc::new(rebuilt);
        *locked(&self.open_trace) = Arc::clone(&rebuilt);
        let all = |error| match error {
            LazyError::Trace(error) => error,
            LazyError::Index(what) => corrupt(what),
        };
        let context = TraceContext::read(&rebuilt).map_err(all)?;
        // Damage is found once.
        let _ = self.rebuilt.set(context);
        lookup(&rebuilt).map_err(all)
    }
}

/// Locks a mutex. Its value is consistent after every step, even if another thread panicked.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
