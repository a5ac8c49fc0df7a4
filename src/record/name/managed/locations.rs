//! The locations of managed frames in the trace.

use std::collections::HashMap;
use std::sync::Arc;

use traceprof_abi::runtime::word::{FOREIGN, ManagedFrame};

use crate::record::batch::functions::{FunctionKey, NewFunctions, ReadFunction};
use crate::runtime::{Function, Gone, ManagedLanguage, Runtime};
use crate::trace::{FrameKind, Location, LocationId, Method, Module, TraceError, TraceSeries};

/// The location of a managed frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ManagedLocation {
    /// The language of the frame.
    pub(crate) language: ManagedLanguage,
    /// The location; `None` for a frame that is not part of the program.
    pub(crate) id: Option<LocationId>,
    /// Why it has no name.
    pub(crate) gone: Option<Gone>,
}

/// The functions of one program, and the locations in them.
#[derive(Debug, Default)]
pub(crate) struct ManagedLocations {
    functions: HashMap<FunctionKey, ReadFunction>,
    locations: HashMap<(FunctionKey, u32), ManagedLocation>,
}

impl ManagedLocations {
    /// Takes over the functions that a batch is the first to use.
    pub(crate) fn learn(&mut self, new: &NewFunctions) {
        if new.is_fresh {
            self.start_program();
        }
        self.functions.extend(new.read.iter().cloned());
    }

    /// Forgets everything: the process runs another program.
    pub(crate) fn start_program(&mut self) {
        self.functions.clear();
        self.locations.clear();
    }

    /// Returns the location of a frame of this runtime.
    pub(crate) fn of(
        &mut self,
        writer: &mut TraceSeries,
        runtime: &Runtime,
        (number, frame): (u8, &ManagedFrame),
    ) -> Result<ManagedLocation, TraceError> {
        let key = FunctionKey::of(number, frame);
        if let Some(known) = self.locations.get(&(key, frame.position)) {
            return Ok(*known);
        }
        let read = self.functions.get(&key).cloned();
        let is_foreign = frame.flags & FOREIGN != 0;
        let foreign = if frame.object == 0 { Gone::Unlinked } else { Gone::OtherType };
        let read = read.filter(|_| !is_foreign).unwrap_or(Err(foreign));
        let gone = read.as_ref().err().copied();
        let id = match read {
            Ok(function) if function.is_pseudo => None,
            Ok(function) => Some(named(writer, runtime, &function, frame.position)?),
            Err(_) => Some(unnamed(writer, runtime)?),
        };
        let location = ManagedLocation { language: runtime.language, id, gone };
        // A later read may find the function.
        if !gone.is_some_and(Gone::is_transient) {
            self.locations.insert((key, frame.position), location);
        }
        Ok(location)
    }
}

/// What takes the place of a module for functions that a runtime has written in another language.
const INTERNAL: &str = "[internal]";

/// Returns the kind of the frames of a language.
pub(crate) fn kind_of(language: ManagedLanguage) -> FrameKind {
    match language {
        ManagedLanguage::Python => FrameKind::Python,
        ManagedLanguage::Java => FrameKind::JavaInterpreted,
        ManagedLanguage::JavaScript => FrameKind::JavaScript,
        ManagedLanguage::Php => FrameKind::Php,
        ManagedLanguage::Ruby => FrameKind::Ruby,
        ManagedLanguage::Perl => FrameKind::Perl,
        ManagedLanguage::Lua => FrameKind::Lua,
    }
}

fn named(
    writer: &mut TraceSeries,
    runtime: &Runtime,
    function: &Arc<Function>,
    position: u32,
) -> Result<LocationId, TraceError> {
    // The file takes the place of a module: functions of one name in two files are two functions.
    let file = function.source_file();
    let path = file.unwrap_or(INTERNAL).to_owned();
    let module = writer.module(&Module { path, build_id: Vec::new() })?;
    let method = writer.method(&Method {
        module: Some(module),
        line: function.line,
        ..Method::named(&function.name)
    })?;
    writer.location(&Location {
        file: file.map(str::to_owned),
        line: function.line_at(position),
        kind: kind_of(runtime.language),
        ..Location::at(method, 0)
    })
}

/// Returns what stands for the name of a function that could not be read.
pub(crate) fn gone_name(runtime: &Runtime) -> String {
    format!("[{}: function gone]", runtime.label)
}

/// Returns the location of all frames of a runtime whose function could not be read.
fn unnamed(writer: &mut TraceSeries, runtime: &Runtime) -> Result<LocationId, TraceError> {
    let module = writer.module(&Module { path: "[unknown]".to_owned(), build_id: Vec::new() })?;
    let name = gone_name(runtime);
    let method = writer.method(&Method { module: Some(module), name, ..Method::default() })?;
    writer.location(&Location { kind: kind_of(runtime.language), ..Location::at(method, 0) })
}
