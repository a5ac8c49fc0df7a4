//! The objects of a trace as the API passes them.

use std::collections::BTreeMap;

use super::FrameKind;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);
    };
}
id!(
    /// Dense id of a [`Module`].
    ModuleId
);
id!(
    /// Dense id of a [`Method`].
    MethodId
);
id!(
    /// Dense id of a [`Location`].
    LocationId
);
id!(
    /// Dense id of a [`Thread`]; never the kernel's thread id, which is reused.
    ThreadId
);
id!(
    /// Dense id of a text.
    TextId
);

/// An ELF file or another source of code.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Module {
    /// The path as the target sees it; `[vdso]`, or `[jit]` for code without a file. For functions
    /// without native code, the file of source that they are in.
    pub path: String,
    /// The GNU build id, empty if there is none.
    pub build_id: Vec<u8>,
}

/// A function.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Method {
    /// The module that contains it, if known.
    pub module: Option<ModuleId>,
    /// The demangled name; `[module+0x1234]` if there is no symbol.
    pub name: String,
    /// The start of the function as an SVMA (address in the file), 0 if unknown.
    pub start_svma: u64,
    /// The line at which the function begins in its file, 0 if unknown.
    pub line: u32,
    /// The column at which it begins there, from 1 on in code units of UTF-16; 0 if unknown.
    pub column: u32,
}

impl Method {
    /// Returns a method of which nothing but the name is known.
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// Whether the method has a name, and not a text in its place: `[unknown]`, or with a runtime,
    /// `[CPython 3.11: function gone]`.
    pub fn is_named(&self) -> bool {
        let text = self.name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        text.is_none_or(|text| text != "unknown" && !text.contains(": "))
    }
}

/// A location in a function: a physical frame's address, or an inlined call at one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Location {
    /// The function.
    pub method: MethodId,
    /// The SVMA of the instruction; for a caller, of the call. 0 in code without a native address.
    pub svma: u64,
    /// The source file, if known.
    pub file: Option<String>,
    /// The line, 0 if unknown.
    pub line: u32,
    /// The column, as that of a method.
    pub column: u32,
    /// For an inlined call: the location that it is inlined into. In a stack (root first), that
    /// location is directly before this one.
    pub inline_parent: Option<LocationId>,
    /// The kind of the frames at this location. It distinguishes locations: one address may be
    /// native code in one stack, and carry the frames of a language in another.
    pub kind: FrameKind,
}

impl Location {
    /// Returns a location in native code of which nothing but the address is known.
    pub const fn at(method: MethodId, svma: u64) -> Self {
        let (file, inline_parent) = (None, None);
        let (line, column) = (0, 0);
        Self { method, svma, file, line, column, inline_parent, kind: FrameKind::Native }
    }
}

/// A thread of a target.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Thread {
    /// The process id as the recorder sees it.
    pub pid: u32,
    /// The kernel thread id as the recorder sees it.
    pub tid: u32,
    /// The name (comm) when last seen.
    pub name: String,
    /// The name that the program has given it in its language's runtime, if there is one. The
    /// kernel has a name of its own, of at most 15 bytes.
    pub runtime_name: Option<String>,
    /// The time when it was first seen, in CLOCK_MONOTONIC nanoseconds; 0 if unknown.
    pub first_seen_ns: u64,
    /// The time when its exit was seen, if it was.
    pub ended_ns: Option<u64>,
}

impl Thread {
    /// Returns the name for the user: that in the language's runtime if there is one.
    pub fn shown_name(&self) -> &str {
        self.runtime_name.as_deref().unwrap_or(&self.name)
    }
}

/// A call trace that can be looked up by its id.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CallTrace {
    /// The storage's 64-bit id.
    pub trace_id: u64,
    /// The stack, root first, with inlined calls expanded.
    pub stack: Vec<LocationId>,
    /// Why the unwinding ended ([`traceprof_abi::unwind::EndReason`] as a number).
    pub end_reason: u16,
}

/// A range of a target's addresses at which a module was mapped.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MappedModule {
    /// The process id.
    pub pid: u32,
    /// The first AVMA.
    pub start: u64,
    /// One past the last AVMA.
    pub end: u64,
    /// The offset in the file.
    pub file_offset: u64,
    /// The module.
    pub module: ModuleId,
    /// The time when it was first seen, in CLOCK_MONOTONIC nanoseconds.
    pub first_seen_ns: u64,
}

/// A sample. The default has weight 1 and everything else 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// The time in CLOCK_MONOTONIC nanoseconds.
    pub time_ns: u64,
    /// The storage's 64-bit call-trace id (epoch << 32 | number within the epoch); 1 is a dropped
    /// trace.
    pub trace_id: u64,
    /// The weight in sampling periods; in microseconds if
    /// [`traceprof_abi::storage::log::flags::WALL`] is set.
    pub weight: u32,
    /// Why the unwinding ended ([`traceprof_abi::unwind::EndReason`] as a number).
    pub end_reason: u16,
    /// The flags as in [`traceprof_abi::storage::log::flags`].
    pub flags: u32,
    /// The [`RunState`](super::RunState) as a number.
    pub state: u8,
    /// The system call that the thread was in, if known.
    pub syscall: Option<u32>,
    /// What the system call waits on, if known: `pipe`, `socket tcp 127.0.0.1:6379`, a path.
    pub waits_on: Option<TextId>,
    /// The span id, or 0.
    pub span: u64,
    /// The root span id, or 0.
    pub root_span: u64,
    /// The upper half of a 128-bit root id (a trace id of W3C Trace Context), or 0.
    pub root_high: u64,
    /// The custom tags, 0 for none: numbers, or ids of texts plus 1. The metadata key `tags`
    /// describes them: a list, in the order of the tags, of lists of a name and `number` or `text`.
    pub tags: [u32; 10],
}

impl Default for Sample {
    fn default() -> Self {
        Self {
            time_ns: 0,
            trace_id: 0,
            weight: 1,
            end_reason: 0,
            flags: 0,
            state: 0,
            syscall: None,
            waits_on: None,
            span: 0,
            root_span: 0,
            root_high: 0,
            tags: [0; 10],
        }
    }
}

/// A value in the metadata.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// An unsigned number.
    Unsigned(u64),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Value>),
}

/// Metadata by key, such as `engine`, `period_ns`, `command_line`, `start_realtime_ns`.
pub type Metadata = BTreeMap<String, Value>;
