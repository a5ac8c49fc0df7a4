//! Locations of JavaScript functions.

use std::ops::Range;

use traceprof_abi::runtime::word::FrameFunction;

use crate::record::name::javascript::shown::ShownJs;
use crate::record::name::managed::locations::ManagedLocation;
use crate::runtime::ManagedLanguage;
use crate::runtime::v8::{BuiltinRole, SourcePlace, V8Machine};
use crate::trace::{Location, LocationId, Method, Module, TraceError, TraceSeries};

/// The largest number of places whose locations are known at once.
pub(super) const PLACES_MAX: usize = 1 << 18;

/// What decides which functions a frame has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum JsPlace {
    /// A frame in generated code, at this address (AVMA), and whether it has called.
    Generated { avma: u64, is_return: bool, function: Option<FrameFunction>, is_young: bool },
    /// A frame in a builtin of this role.
    Builtin(BuiltinRole, Option<FrameFunction>),
}

/// The locations of a frame, and the times at which they are valid.
#[derive(Debug, Clone)]
pub(super) struct JsLocations {
    pub(super) version: u64,
    pub(super) times_ns: Range<u64>,
    pub(super) functions: Box<[ManagedLocation]>,
    /// Whether the frame's own code only carries the function.
    pub(super) is_carrier: bool,
    /// Whether the frame's own code is inner to the function.
    pub(super) is_inner: bool,
}

/// Writes the locations of functions, of which later ones may be inlined into earlier ones.
pub(super) fn js_locations(
    writer: &mut TraceSeries,
    machine: &V8Machine,
    shown: &[ShownJs],
) -> Result<Box<[ManagedLocation]>, TraceError> {
    let mut locations = Vec::with_capacity(shown.len());
    let mut parent = None;
    for function in shown {
        let inline_parent = parent.filter(|_| function.is_inlined);
        let id = location(writer, machine, function, inline_parent)?;
        parent = Some(id);
        let gone = function.function.as_ref().err().copied();
        let language = ManagedLanguage::JavaScript;
        locations.push(ManagedLocation { language, id: Some(id), gone });
    }
    Ok(locations.into())
}

fn location(
    writer: &mut TraceSeries,
    machine: &V8Machine,
    shown: &ShownJs,
    inline_parent: Option<LocationId>,
) -> Result<LocationId, TraceError> {
    let function = shown.function.as_deref().ok();
    let file = function.map(|it| it.file.clone()).filter(|file| !file.is_empty());
    // The file takes the place of a module: functions of one name in two files are two functions.
    let path = file.clone().unwrap_or_else(|| "[JavaScript]".to_owned());
    let module = writer.module(&Module { path, build_id: Vec::new() })?;
    let method = writer.method(&Method {
        module: Some(module),
        name: shown.name(machine),
        start_svma: 0,
        line: function.map_or(0, |it| it.line),
        column: function.map_or(0, |it| it.column),
    })?;
    let (SourcePlace { line, column }, kind) = (shown.place, shown.kind);
    writer.location(&Location { method, svma: 0, file, line, column, inline_parent, kind })
}
