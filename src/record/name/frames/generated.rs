//! Locations of code that the target has generated.

use std::ops::Range;

use traceprof_abi::runtime::word::{FrameFunction, FrameInPlace};

use super::javascript::{JsLocations, JsPlace, PLACES_MAX, js_locations};
use super::{FrameNames, NamedStack};
use crate::record::batch::java::{gone_method, resolved_method};
use crate::record::name::addresses::write_locations;
use crate::record::name::javascript::shown::{ShownBuiltin, ShownFrame, in_builtin, in_generated};
use crate::record::name::managed::locations::ManagedLocation;
use crate::record::name::managed::mixed::NativeFrame;
use crate::record::name::outermost;
use crate::runtime::v8::{BuiltinRole, V8Machine};
use crate::runtime::{Gone, ManagedLanguage};
use crate::symbol::FoundCode;
use crate::trace::{FrameKind, LocationId, Module, ModuleId, TraceError, TraceSeries};

/// The source of names of generated code.
const GENERATED_SOURCE: &str = "the runtime that made the code";
/// The module of code that a Java machine has generated, and the source of its names.
const JAVA_MODULE: &str = "[Java]";
const JAVA_SOURCE: &str = "the memory of the Java machine";

/// The locations of an address in generated code, and the times at which they are valid.
pub(super) struct GeneratedLocations {
    version: u64,
    times_ns: Range<u64>,
    locations: Box<[LocationId]>,
    /// Whether the code is the outermost of its runtime's stacks.
    is_outermost: bool,
    /// Whether each has a name, if they count as frames of Java.
    java: Option<Result<(), Gone>>,
}

/// The location of a frame of an interpreter, and the times at which it is valid.
pub(super) struct InterpretedLocation {
    version: u64,
    times_ns: Range<u64>,
    location: ManagedLocation,
}

impl FrameNames {
    /// Adds the locations of an address outside all modules, with the runtime's names if there are
    /// any. `is_java` says whether it is in the heaps of code of a Java machine.
    pub(super) fn push_generated(
        &mut self,
        writer: &mut TraceSeries,
        (avma, time_ns): (u64, u64),
        is_java: bool,
        named: &mut NamedStack,
    ) -> Result<(), TraceError> {
        let version = self.version();
        let holds = |generated: &&GeneratedLocations| {
            generated.version == version && generated.times_ns.contains(&time_ns)
        };
        if self.generated.get(&avma).filter(holds).is_none() {
            let generated = self.generated_locations(writer, (avma, time_ns), is_java)?;
            self.generated.insert(avma, GeneratedLocations { version, ..generated });
        }
        if let Some(generated) = self.generated.get(&avma) {
            named.is_from_runtime_root |= named.locations.is_empty() && generated.is_outermost;
            named.locations.extend(&generated.locations);
            named.limit(&generated.times_ns);
            if let Some(java) = generated.java {
                let (language, gone) = (ManagedLanguage::Java, java.err());
                for id in &generated.locations {
                    named.count(ManagedLocation { language, id: Some(*id), gone });
                }
            }
        }
        Ok(())
    }

    fn generated_locations(
        &mut self,
        writer: &mut TraceSeries,
        (avma, time_ns): (u64, u64),
        is_java: bool,
    ) -> Result<GeneratedLocations, TraceError> {
        // The machine's memory says more than a map that it wrote.
        if self.java.find(avma, time_ns).is_some_and(|(code, _)| code.is_some())
            && let Some(generated) = self.java_locations(writer, avma, time_ns)?
        {
            return Ok(generated);
        }
        let FoundCode { resolved, times_ns } = self.jit.find(avma, time_ns);
        let module = match &resolved {
            Some(_) => {
                let module = Module { path: self.jit.source(), build_id: Vec::new() };
                let id = writer.module(&module)?;
                self.write_source(writer, id, GENERATED_SOURCE)?;
                id
            }
            None => {
                if let Some(generated) = self.java_locations(writer, avma, time_ns)? {
                    return Ok(generated);
                }
                if is_java {
                    // It was freed before it was read.
                    return self.gone_location(writer, (avma, times_ns), Gone::Freed);
                }
                self.module(writer, None)?
            }
        };
        let locations = write_locations(writer, module, None, avma, resolved.as_ref())?.into();
        let function = resolved.as_ref().and_then(|resolved| resolved.function.as_ref());
        let is_outermost = function.is_some_and(|function| outermost::is_first(&function.name));
        Ok(GeneratedLocations { version: 0, times_ns, locations, is_outermost, java: None })
    }

    /// Returns the location of an address in the heaps of a Java machine whose code is gone. It is
    /// most likely a method: a machine frees and replaces little else.
    fn gone_location(
        &mut self,
        writer: &mut TraceSeries,
        (avma, times_ns): (u64, Range<u64>),
        gone: Gone,
    ) -> Result<GeneratedLocations, TraceError> {
        let id = self.java_module(writer)?;
        let mut locations = write_locations(writer, id, None, avma, Some(&gone_method()))?;
        for location in &mut locations {
            *location = writer.location_as(*location, FrameKind::JavaCompiled, None)?;
        }
        let (locations, is_outermost, java) = (locations.into(), false, Some(Err(gone)));
        Ok(GeneratedLocations { version: 0, times_ns, locations, is_outermost, java })
    }

    /// Returns the trace's id of the code of a Java machine.
    fn java_module(&mut self, writer: &mut TraceSeries) -> Result<ModuleId, TraceError> {
        let id = writer.module(&Module { path: JAVA_MODULE.to_owned(), build_id: Vec::new() })?;
        self.write_source(writer, id, JAVA_SOURCE)?;
        Ok(id)
    }

    /// Returns the locations of an address in the code of a Java machine.
    fn java_locations(
        &mut self,
        writer: &mut TraceSeries,
        avma: u64,
        time_ns: u64,
    ) -> Result<Option<GeneratedLocations>, TraceError> {
        let Some((code, times_ns)) = self.java.find(avma, time_ns) else { return Ok(None) };
        let Some(code) = code else {
            return self.gone_location(writer, (avma, times_ns), Gone::Unproven).map(Some);
        };
        let (resolved, kind) = (code.resolved(avma), code.kind_at(avma));
        let java = code.is_method().then_some(Ok(()));
        let id = self.java_module(writer)?;
        let mut locations = write_locations(writer, id, None, avma, Some(&resolved))?;
        if kind != FrameKind::Native {
            let mut parent = None;
            for location in &mut locations {
                *location = writer.location_as(*location, kind, parent)?;
                parent = Some(*location);
            }
        }
        let (locations, is_outermost) = (locations.into(), false);
        Ok(Some(GeneratedLocations { version: 0, times_ns, locations, is_outermost, java }))
    }

    /// Adds the location of a frame of a Java machine's interpreter at a time.
    pub(super) fn push_interpreted(
        &mut self,
        writer: &mut TraceSeries,
        (frame, time_ns): (&FrameInPlace, u64),
        named: &mut NamedStack,
    ) -> Result<(), TraceError> {
        let version = self.version();
        let holds = |known: &&InterpretedLocation| {
            known.version == version && known.times_ns.contains(&time_ns)
        };
        if self.interpreted.get(frame).filter(holds).is_none() {
            let (location, times_ns) = self.interpreted_location(writer, frame, time_ns)?;
            let known = InterpretedLocation { version, times_ns, location };
            self.interpreted.insert(*frame, known);
        }
        if let Some(known) = self.interpreted.get(frame) {
            named.limit(&known.times_ns);
            named.locations.extend(known.location.id);
            named.count(known.location);
        }
        Ok(())
    }

    fn interpreted_location(
        &mut self,
        writer: &mut TraceSeries,
        frame: &FrameInPlace,
        time_ns: u64,
    ) -> Result<(ManagedLocation, Range<u64>), TraceError> {
        let (method, times_ns) = self.java.method(frame.object, time_ns);
        let method = method.unwrap_or(Err(Gone::Unproven));
        let gone = method.as_ref().err().copied();
        let resolved = resolved_method(method.as_deref().ok(), frame);
        let id = self.java_module(writer)?;
        // All positions of one line are one location.
        let locations = write_locations(writer, id, None, 0, Some(&resolved))?;
        let id = match locations.first() {
            Some(location) => {
                Some(writer.location_as(*location, FrameKind::JavaInterpreted, None)?)
            }
            None => None,
        };
        Ok((ManagedLocation { language: ManagedLanguage::Java, id, gone }, times_ns))
    }

    /// Adds the functions of a frame in code that V8 has generated. Returns whether it has some.
    pub(super) fn push_generated_javascript(
        &mut self,
        writer: &mut TraceSeries,
        (machine, frame, avma): (&V8Machine, &NativeFrame, u64),
        time_ns: u64,
        named: &mut NamedStack,
    ) -> Result<bool, TraceError> {
        let NativeFrame { function, is_young, .. } = *frame;
        let is_return = frame.is_return();
        let place = JsPlace::Generated { avma, is_return, function, is_young };
        let version = self.version();
        if !self.knows(&place, version, time_ns) {
            let shown = in_generated(&self.js, (frame, avma), time_ns);
            let shown = shown.unwrap_or(ShownFrame { functions: Vec::new(), times_ns: 0..0 });
            let functions = js_locations(writer, machine, &shown.functions)?;
            let times_ns = shown.times_ns;
            let known =
                JsLocations { version, times_ns, functions, is_carrier: false, is_inner: false };
            self.keep(place, known);
        }
        let Some(known) = self.js_locations.get(&place) else { return Ok(false) };
        if known.functions.is_empty() {
            return Ok(false);
        }
        named.limit(&known.times_ns);
        for location in &known.functions {
            named.locations.extend(location.id);
            named.count(*location);
        }
        Ok(true)
    }

    /// Adds to the locations of a builtin, which are those from `first` on, the function that has
    /// the frame.
    pub(super) fn add_to_builtin(
        &mut self,
        writer: &mut TraceSeries,
        (machine, role, function): (&V8Machine, BuiltinRole, Option<FrameFunction>),
        first: usize,
        named: &mut NamedStack,
    ) -> Result<(), TraceError> {
        let place = JsPlace::Builtin(role, function);
        let version = self.version();
        if !self.knows(&place, version, 0) {
            let ShownBuiltin { function, is_carrier, is_inner } =
                in_builtin(&self.js, role, function);
            let functions = js_locations(writer, machine, function.as_slice())?;
            let times_ns = 0..u64::MAX;
            let known = JsLocations { version, times_ns, functions, is_carrier, is_inner };
            self.keep(place, known);
        }
        let Some(known) = self.js_locations.get(&place) else { return Ok(()) };
        if known.is_carrier {
            let mut parent = None;
            for location in named.locations.iter_mut().skip(first) {
                *location = writer.location_as(*location, FrameKind::Interpreter, parent)?;
                parent = Some(*location);
            }
        }
        if known.functions.iter().any(|location| location.gone.is_some_and(Gone::is_transient)) {
            // A later read may find the function.
            named.limit(&known.times_ns);
        }
        let at = if known.is_inner { first } else { named.locations.len() };
        let ids: Vec<LocationId> = known.functions.iter().filter_map(|it| it.id).collect();
        for location in &known.functions {
            named.count(*location);
        }
        named.locations.splice(at..at, ids);
        Ok(())
    }

    fn keep(&mut self, place: JsPlace, known: JsLocations) {
        if self.js_locations.len() >= PLACES_MAX {
            self.js_locations.clear();
        }
        self.js_locations.insert(place, known);
    }

    fn knows(&self, place: &JsPlace, version: u64, time_ns: u64) -> bool {
        let known = self.js_locations.get(place);
        known.is_some_and(|it| it.version == version && it.times_ns.contains(&time_ns))
    }
}
