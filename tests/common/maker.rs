//! Synthetic traces, made from stacks that are written as text.

use traceprof::trace::{
    FrameKind, Location, LocationId, Method, Module, ModuleId, Sample, TagKey, TagKind, Thread,
    ThreadId, TraceWriter, Value, WriterOptions,
};

use traceprof_abi::storage::log::flags::WALL;

use super::Trace;

/// Stop reason of an unwind that reached the root.
pub(crate) const ROOT: u16 = 0;
/// Stop reason of an unwind at code without unwind information.
pub(crate) const GAP: u16 = 1;
/// A span, which is its own root span.
pub(crate) const SPAN: u64 = 0x00f0_67aa_0ba9_02b7;
pub(crate) const SPAN_ROOT: u128 = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736;
/// Begin of these recordings.
pub(crate) const BEGIN_NS: u64 = 1_000_000_000;

/// Writes a trace.
pub(crate) struct Maker {
    trace: Trace,
    pub(crate) writer: TraceWriter,
    module: ModuleId,
    libc: ModuleId,
}

impl Maker {
    pub(crate) fn new() -> Self {
        let trace = Trace::new();
        let options = WriterOptions { salt: Some(7), ..WriterOptions::default() };
        let mut writer = TraceWriter::create(&trace.path(), options).expect("a trace");
        for (key, value) in [
            ("period_ns", Value::Unsigned(1_000_000)),
            ("start_monotonic_ns", Value::Unsigned(BEGIN_NS)),
            ("engine", Value::Text("perf".to_owned())),
        ] {
            writer.set_metadata(key, value).expect("metadata");
        }
        let [module, libc] = ["/usr/bin/demo", "/usr/lib/libc.so.6"].map(|path| {
            let module = Module { path: path.to_owned(), build_id: Vec::new() };
            writer.module(&module).expect("a module")
        });
        Self { trace, writer, module, libc }
    }

    pub(crate) fn trace(&self) -> &Trace {
        &self.trace
    }

    pub(crate) fn thread(&mut self, tid: u32, name: &str) -> ThreadId {
        self.thread_of(100, tid, name)
    }

    /// Adds a thread of one of several processes.
    pub(crate) fn thread_of(&mut self, pid: u32, tid: u32, name: &str) -> ThreadId {
        let thread = Thread { pid, tid, name: name.to_owned(), ..Thread::default() };
        self.writer.thread(&thread).expect("a thread")
    }

    /// Returns the location of `name`, `name:line` or `name@libc`. With `~KIND` behind it, it is of
    /// this kind of frames: `f:12~python` is line 12 of a function that begins at line 10 of its
    /// file.
    pub(crate) fn location(&mut self, place: &str) -> LocationId {
        let Some((place, kind)) = place.split_once('~') else {
            return self.location_of(place, FrameKind::Native);
        };
        let kind = FrameKind::ALL.iter().find(|it| it.name() == kind).expect("a kind of frames");
        if !kind.language().is_managed() {
            return self.location_of(place, *kind);
        }
        let (name, line) = place.split_once(':').expect("a line");
        let line: u32 = line.parse().expect("a line");
        let path = format!("/srv/app.{}", kind.language().name());
        let module = Module { path: path.clone(), build_id: Vec::new() };
        let module = Some(self.writer.module(&module).expect("a module"));
        let method = Method { module, line: line / 10 * 10, ..Method::named(name) };
        let method = self.writer.method(&method).expect("a method");
        let file = Some(path);
        let location = Location { file, line, kind: *kind, ..Location::at(method, 0) };
        self.writer.location(&location).expect("a location")
    }

    fn location_of(&mut self, place: &str, kind: FrameKind) -> LocationId {
        let (place, module) = match place.strip_suffix("@libc") {
            Some(name) => (name, self.libc),
            None => (place, self.module),
        };
        let (name, line) = match place.rsplit_once(':') {
            Some((name, line)) => (name, line.parse().expect("a line")),
            None => (place, 0),
        };
        let start_svma = 0x1000 + 0x100 * name.bytes().map(u64::from).sum::<u64>();
        let method =
            Method { module: Some(module), name: name.to_owned(), start_svma, ..Method::default() };
        let method = self.writer.method(&method).expect("a method");
        let file = (line > 0).then(|| "src/demo.c".to_owned());
        let svma = start_svma + 4 + u64::from(line);
        let location = Location { file, line, kind, ..Location::at(method, svma) };
        self.writer.location(&location).expect("a location")
    }

    /// Adds a sample `ms` milliseconds after the begin.
    pub(crate) fn sample(&mut self, thread: ThreadId, ms: u64, stack: &str) {
        self.sample_ending(thread, ms, stack, ROOT);
    }

    pub(crate) fn sample_ending(
        &mut self,
        thread: ThreadId,
        ms: u64,
        stack: &str,
        end_reason: u16,
    ) {
        let time_ns = BEGIN_NS + ms * 1_000_000;
        let sample = Sample { time_ns, trace_id: 1 << 32 | 5, end_reason, ..Sample::default() };
        self.full_sample(thread, &sample, stack);
    }

    pub(crate) fn full_sample(&mut self, thread: ThreadId, sample: &Sample, stack: &str) {
        let stack: Vec<LocationId> =
            stack.split_whitespace().map(|place| self.location(place)).collect();
        self.writer.sample(thread, sample, &stack).expect("a sample");
    }

    /// Returns the stack of `main` with a function inlined into it.
    pub(crate) fn inlined_stack(&mut self) -> [LocationId; 2] {
        let main = self.location("main:10");
        let method = Method::named("inlined_part");
        let method = self.writer.method(&method).expect("a method");
        let file = Some("src/part.h".to_owned());
        let inlined =
            Location { file, line: 7, inline_parent: Some(main), ..Location::at(method, 0) };
        [main, self.writer.location(&inlined).expect("a location")]
    }

    /// Adds a sample of three periods with the inlined stack, 21 ms after the begin.
    pub(crate) fn inlined_sample(&mut self, thread: ThreadId) {
        let stack = self.inlined_stack();
        let sample = Sample { time_ns: BEGIN_NS + 21_000_000, weight: 3, ..Sample::default() };
        self.writer.sample(thread, &sample, &stack).expect("a sample");
    }

    /// Adds a thread with 20 periods in the span [`SPAN`]. Its tags are `route`, a text that must
    /// be escaped, and `number`.
    pub(crate) fn thread_with_tags(&mut self, number: &str) -> ThreadId {
        let key = |name: &str, kind| TagKey { name: name.to_owned(), kind };
        let keys = [key("route", TagKind::Text), key(number, TagKind::Number)];
        let (name, value) = TagKey::metadata(&keys);
        self.writer.set_metadata(name, value).expect("metadata");
        let route = self.writer.text("/check\u{1b}out").expect("a text").0 + 1;
        let thread = self.thread(100, "front");
        for ms in 0..10 {
            let sample = Sample {
                time_ns: BEGIN_NS + ms * 1_000_000,
                weight: 2,
                span: SPAN,
                root_span: SPAN_ROOT as u64,
                root_high: (SPAN_ROOT >> 64) as u64,
                tags: [route, 503, 0, 0, 0, 0, 0, 0, 0, 0],
                ..Sample::default()
            };
            self.full_sample(thread, &sample, "_start main:10 serve:20");
        }
        thread
    }

    /// Adds 300 ms of a thread that waits for a lock.
    pub(crate) fn wait_sample(&mut self, thread: ThreadId) {
        let (time_ns, weight) = (BEGIN_NS + 300_000_000, 300_000);
        let waits = Sample { flags: WALL, state: 2, syscall: Some(202), ..Sample::default() };
        self.full_sample(thread, &Sample { time_ns, weight, ..waits }, "main wait");
    }

    /// Flushes everything so far, so that readers see it.
    pub(crate) fn flush(&mut self) {
        self.writer.flush().expect("written");
    }

    /// Returns the complete trace.
    pub(crate) fn finish(self) -> Trace {
        self.writer.finish().expect("the end");
        self.trace
    }

    /// Returns the trace as a recorder leaves it that is killed at this moment.
    pub(crate) fn abandon(self) -> Trace {
        self.trace
    }
}
