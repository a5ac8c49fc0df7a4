//! Translates frame words into locations of the trace; each distinct address is symbolized once.
//!
//! # Invariants
//! - Nothing here waits for a symbolizer. An address whose name does not arrive in time is written
//!   without a name and counted.

mod generated;
mod javascript;
mod kernel;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::sync::Arc;

use traceprof_abi::runtime::word::{
    FrameInPlace, FrameWord, JAVA, frames, pcs, split, split_kernel,
};
use traceprof_abi::unwind::{EndReason, trace_end, trace_epoch};

use self::generated::{GeneratedLocations, InterpretedLocation};
use self::javascript::{JsLocations, JsPlace};
use self::kernel::KernelLocations;
use crate::record::batch::functions::NewFunctions;
use crate::record::batch::java::NewJava;
use crate::record::batch::javascript::NewJavaScript;
use crate::record::batch::kernel_functions::NewKernelFunctions;
use crate::record::batch::traces::Collection;
use crate::record::name::addresses::{ModuleAddress, by_module, locate, write_locations};
use crate::record::name::java::names::JavaNames;
use crate::record::name::javascript::names::JsNames;
use crate::record::name::jit::JitNames;
use crate::record::name::managed::count::ManagedCount;
use crate::record::name::managed::locations::{ManagedLocation, ManagedLocations};
use crate::record::name::managed::mixed::{
    CarrierRole, MixedFrame, NativeFrame, mixed_frames, native_frames,
};
use crate::record::name::progress;
use crate::record::name::symbolizers::{SymbolAnswer, SymbolQuery, SymbolizerPool, Symbolizers};
use crate::record::target::jit_dump::DumpFile;
use crate::record::target::modules::{AddressMap, LoadedModule};
use crate::symbol::Resolved;
use crate::trace::{
    FrameKind, LocationId, Module, ModuleId, SYMBOLS, TraceError, TraceSeries, Value,
};

/// The locations of a stack.
#[derive(Debug)]
pub(crate) struct NamedStack {
    /// The locations, root first.
    pub(crate) locations: Vec<LocationId>,
    /// The times in CLOCK_MONOTONIC nanoseconds at which the locations are valid.
    ///
    /// Locations in generated code are valid only until [`version`](FrameNames::version) changes.
    pub(crate) times_ns: Range<u64>,
    /// Whether any location is in generated code.
    pub(crate) has_own_code: bool,
    /// Whether the outermost frame is code that a runtime starts its stacks with.
    pub(crate) is_from_runtime_root: bool,
    /// The managed frames, if there are any.
    pub(crate) managed: Option<Box<ManagedCount>>,
    /// The innermost of them.
    innermost: Option<ManagedLocation>,
}

impl NamedStack {
    /// Adds a managed frame.
    fn count(&mut self, location: ManagedLocation) {
        self.managed.get_or_insert_default().count(location);
        self.innermost = location.id.map(|_| location).or(self.innermost);
    }

    /// Notes that a location in code of the target is valid at these times only.
    fn limit(&mut self, times_ns: &Range<u64>) {
        let (start, end) = (self.times_ns.start, self.times_ns.end);
        self.times_ns = start.max(times_ns.start)..end.min(times_ns.end);
        self.has_own_code = true;
    }

    /// Counts the sample itself, once all frames are there.
    fn counted(mut self) -> Self {
        if let (Some(count), Some(innermost)) = (&mut self.managed, self.innermost) {
            count.count_sample(innermost);
        }
        self
    }
}

/// Locations by address, over one recording.
pub(crate) struct FrameNames {
    symbolizers: Symbolizers,
    jit: JitNames,
    java: JavaNames,
    js: JsNames,
    modules: HashMap<Option<u32>, ModuleId>,
    /// The reported source of each module's names.
    sources: HashMap<ModuleId, String>,
    /// The locations of each address, outermost function first; `None` while the answer is pending.
    locations_by_address: HashMap<ModuleAddress, Option<Box<[LocationId]>>>,
    /// The locations of addresses outside all modules, which the target itself names.
    generated: HashMap<u64, GeneratedLocations>,
    /// The locations of methods that a Java machine interprets, by their positions.
    interpreted: HashMap<FrameInPlace, InterpretedLocation>,
    /// The locations of JavaScript functions, by what decides which ones a frame has.
    js_locations: HashMap<JsPlace, JsLocations>,
    /// The locations of the kernel's functions.
    kernel: KernelLocations,
    /// The numbers of requests without an answer.
    open: BTreeSet<u64>,
    /// The number of requests so far.
    asked: u64,
    /// The functions of runtimes.
    managed: ManagedLocations,
    /// Locations of functions that carry managed frames.
    carriers: HashSet<LocationId>,
    /// Locations of functions that do so below all managed frames.
    starts: HashSet<LocationId>,
    /// The number of addresses that were written before their names were known.
    pub(crate) unnamed: u64,
}

impl FrameNames {
    /// Starts to name addresses of the process `pid`.
    ///
    /// The threads of `pool` find the names, and `answer` passes the answers to the caller, who
    /// calls [`Self::learn`].
    pub(crate) fn start(
        pid: i32,
        pool: Arc<SymbolizerPool>,
        answer: impl Fn(SymbolAnswer) -> bool + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let jit = JitNames::start(pid)?;
        Ok(Self::of(Symbolizers::over(pool, answer), jit))
    }

    /// Makes a value with these sources of names, and no known names.
    pub(crate) fn of(symbolizers: Symbolizers, jit: JitNames) -> Self {
        Self {
            symbolizers,
            jit,
            java: JavaNames::default(),
            js: JsNames::default(),
            sources: HashMap::new(),
            modules: HashMap::new(),
            locations_by_address: HashMap::new(),
            generated: HashMap::new(),
            interpreted: HashMap::new(),
            js_locations: HashMap::new(),
            kernel: KernelLocations::default(),
            open: BTreeSet::new(),
            asked: 0,
            managed: ManagedLocations::default(),
            carriers: HashSet::new(),
            starts: HashSet::new(),
            unnamed: 0,
        }
    }

    /// Requests all unknown addresses of new traces, and returns the number of the last request.
    ///
    /// Once it is [answered](Self::is_answered), their names are known.
    pub(crate) fn ask(&mut self, addresses: &AddressMap, traces: &Collection) -> u64 {
        // Preserved traces were asked for when they were new; the mappings may have changed since.
        let new = traces.entries().iter().filter(|entry| !entry.preserved);
        let words = new.flat_map(|entry| {
            let epoch = trace_epoch(entry.flags);
            pcs(traces.frames_of(entry)).map(move |(_, word)| (word, epoch))
        });
        // No file has names for addresses outside all modules.
        let is_wanted = |address: &ModuleAddress| {
            address.0.is_some() && !self.locations_by_address.contains_key(address)
        };
        for wanted in by_module(words, addresses, is_wanted) {
            let index = wanted.module.as_ref().map(|module| module.index);
            self.locations_by_address
                .extend(wanted.svmas.iter().map(|svma| ((index, *svma), None)));
            self.ask_one(wanted);
        }
        if let Some(wanted) = self.kernel.unknown(traces) {
            self.ask_one(wanted);
        }
        self.asked
    }

    fn ask_one(&mut self, wanted: SymbolQuery) {
        self.asked += 1;
        progress::note_asked(wanted.svmas.len());
        self.open.insert(self.asked);
        self.symbolizers.ask(SymbolQuery { question: self.asked, ..wanted });
    }

    /// Returns whether all requests up to this one are answered.
    pub(crate) fn is_answered(&self, question: u64) -> bool {
        self.open.first().is_none_or(|first| *first > question)
    }

    /// Stores the names of an answer.
    pub(crate) fn learn(
        &mut self,
        writer: &mut TraceSeries,
        answer: &SymbolQuery,
    ) -> Result<(), TraceError> {
        self.open.remove(&answer.question);
        progress::note_named(answer.svmas.len());
        if answer.is_kernel {
            return self.kernel.learn(writer, answer);
        }
        let module = answer.module.as_deref();
        let id = self.module(writer, module)?;
        if let Some(source) = &answer.source {
            self.write_source(writer, id, source)?;
        }
        let index = module.map(|module| module.index);
        for (position, svma) in answer.svmas.iter().enumerate() {
            let mut resolved = answer.resolved.get(position);
            // The position in the loop of an interpreter says nothing, and changes all the time.
            let runtime = module.and_then(|module| module.runtime.as_ref());
            let start = runtime.and_then(|runtime| runtime.loop_start(*svma));
            let whole = start
                .and(resolved)
                .map(|it| Resolved { function: it.function.clone(), ..Resolved::default() });
            resolved = whole.as_ref().or(resolved);
            let at = start.unwrap_or(*svma);
            let locations = write_locations(writer, id, module, at, resolved)?;
            self.note_carriers(module, &locations, names(resolved));
            self.locations_by_address.insert((index, *svma), Some(locations.into()));
        }
        Ok(())
    }

    /// Writes the source of a module's names, which a better source may replace later.
    fn write_source(
        &mut self,
        writer: &mut TraceSeries,
        id: ModuleId,
        source: &str,
    ) -> Result<(), TraceError> {
        if self.sources.get(&id).is_none_or(|generated| generated != source) {
            self.sources.insert(id, source.to_owned());
            writer.set_metadata(&format!("{SYMBOLS}{}", id.0), Value::Text(source.to_owned()))?;
        }
        Ok(())
    }

    /// Returns the locations of a trace with these flags at a time; unknown addresses get no name.
    pub(crate) fn stack(
        &mut self,
        writer: &mut TraceSeries,
        addresses: &AddressMap,
        (words, flags): (&[u64], u32),
        time_ns: u64,
    ) -> Result<NamedStack, TraceError> {
        let (kernel, user) = split_kernel(words);
        let locations = Vec::with_capacity(words.len());
        let mut named = NamedStack {
            locations,
            times_ns: 0..u64::MAX,
            has_own_code: false,
            is_from_runtime_root: false,
            managed: None,
            innermost: None,
        };
        self.push_user(writer, addresses, (user, flags, time_ns), &mut named)?;
        self.unnamed += self.kernel.push(writer, kernel, &mut named.locations)?;
        Ok(named.counted())
    }

    /// Adds the locations of the frames in user mode.
    fn push_user(
        &mut self,
        writer: &mut TraceSeries,
        addresses: &AddressMap,
        (words, flags, time_ns): (&[u64], u32, u64),
        named: &mut NamedStack,
    ) -> Result<(), TraceError> {
        let (natives, managed) = split(words);
        let is_in_place = |frame| matches!(frame, FrameWord::InPlace { .. });
        if !managed.is_empty() || frames(natives).any(is_in_place) {
            return self.push_mixed(writer, addresses, (words, flags, time_ns), named);
        }
        for frame in native_frames(natives, addresses) {
            let at = (&frame, trace_epoch(flags), time_ns);
            self.push_native(writer, addresses, at, named)?;
        }
        Ok(())
    }

    /// Adds the locations of a native frame in an epoch at a time.
    fn push_native(
        &mut self,
        writer: &mut TraceSeries,
        addresses: &AddressMap,
        (frame, epoch, time_ns): (&NativeFrame, u16, u64),
        named: &mut NamedStack,
    ) -> Result<(), TraceError> {
        let (module, address) = locate(addresses, frame.word, epoch);
        let Some(module) = module else {
            if let Some(machine) = &addresses.v8 {
                let at = (&**machine, frame, address.1);
                if self.push_generated_javascript(writer, at, time_ns, named)? {
                    return Ok(());
                }
            }
            let is_java = addresses.java.as_ref().is_some_and(|java| java.may_have(address.1));
            return self.push_generated(writer, (address.1, time_ns), is_java, named);
        };
        let first = named.locations.len();
        if let Some(Some(known)) = self.locations_by_address.get(&address) {
            named.locations.extend(known);
        } else {
            self.unnamed += 1;
            let id = self.module(writer, Some(module))?;
            let locations = write_locations(writer, id, Some(module), address.1, None)?;
            self.note_carriers(Some(module), &locations, std::iter::once(None));
            named.locations.extend(&locations);
            self.locations_by_address.insert(address, Some(locations.into()));
        }
        match (&addresses.v8, module.builtin_at(address.1)) {
            (Some(machine), Some(role)) => {
                let builtin = (&**machine, role, frame.function);
                self.add_to_builtin(writer, builtin, first, named)
            }
            _ => Ok(()),
        }
    }

    /// Takes over the functions that a batch is the first to use.
    pub(crate) fn learn_functions(&mut self, new: &NewFunctions) {
        self.managed.learn(new);
    }

    /// Takes over the code of a Java machine that a batch is the first to use.
    pub(crate) fn learn_java(&mut self, new: &NewJava) {
        if new.is_fresh {
            self.interpreted.clear();
        }
        self.java.learn(new);
    }

    /// Takes over the functions of the kernel that a batch is the first to use.
    pub(crate) fn learn_kernel(
        &mut self,
        writer: &mut TraceSeries,
        new: &NewKernelFunctions,
    ) -> Result<(), TraceError> {
        self.kernel.learn_functions(writer, new)
    }

    /// Takes over the functions and the code of JavaScript that a batch is the first to use.
    pub(crate) fn learn_javascript(&mut self, new: &NewJavaScript) {
        if new.is_fresh {
            self.js_locations.clear();
        }
        self.js.learn(new);
    }

    /// Returns the trace's id of a module.
    pub(crate) fn module(
        &mut self,
        writer: &mut TraceSeries,
        module: Option<&LoadedModule>,
    ) -> Result<ModuleId, TraceError> {
        let index = module.map(|module| module.index);
        if let Some(id) = self.modules.get(&index) {
            return Ok(*id);
        }
        let id = writer.module(&match module {
            Some(module) => Module { path: module.path.clone(), build_id: module.build_id.clone() },
            None => Module { path: "[unknown]".to_string(), build_id: Vec::new() },
        })?;
        self.modules.insert(index, id);
        Ok(id)
    }

    /// Reads the names that a runtime has written since the last call, and dumps of its code.
    pub(crate) fn refresh(&mut self, dumps: &[Arc<DumpFile>]) {
        self.jit.refresh(dumps);
    }

    /// Starts another program in the process.
    pub(crate) fn start_program(&mut self) {
        self.jit.start_program();
        self.java.start_program();
        self.js.start_program();
        self.js_locations.clear();
        self.managed.start_program();
        self.generated.clear();
        self.interpreted.clear();
    }

    /// Returns a number that changes whenever a runtime names code.
    pub(crate) fn version(&self) -> u64 {
        self.jit.version() + self.java.version() + self.js.version()
    }
}

impl FrameNames {
    /// Adds the locations of a stack with managed frames.
    ///
    /// Native frames that only carry managed ones get another kind, so that views can hide them.
    fn push_mixed(
        &mut self,
        writer: &mut TraceSeries,
        addresses: &AddressMap,
        (frames, flags, time_ns): (&[u64], u32, u64),
        named: &mut NamedStack,
    ) -> Result<(), TraceError> {
        let is_complete = trace_end(flags) == EndReason::Root as u16;
        for frame in mixed_frames(frames, is_complete, addresses) {
            match frame {
                MixedFrame::Native(frame, role) => {
                    let before = named.locations.len();
                    let at = (&frame, trace_epoch(flags), time_ns);
                    self.push_native(writer, addresses, at, named)?;
                    self.mark_carriers(writer, &mut named.locations[before..], role)?;
                }
                MixedFrame::InPlace(JAVA, frame) => {
                    self.push_interpreted(writer, (&frame, time_ns), named)?;
                }
                MixedFrame::InPlace(..) => {}
                MixedFrame::Managed(number, frame) => {
                    let Some(runtime) = addresses.runtimes.get(usize::from(number)) else {
                        continue;
                    };
                    let location = self.managed.of(writer, runtime, (number, &frame))?;
                    named.locations.extend(location.id);
                    named.count(location);
                }
            }
        }
        Ok(())
    }

    /// Remembers which locations of a module only carry managed frames, by their names.
    fn note_carriers<'n>(
        &mut self,
        module: Option<&LoadedModule>,
        locations: &[LocationId],
        names: impl Iterator<Item = Option<&'n str>>,
    ) {
        for (location, name) in locations.iter().zip(names) {
            if CarrierRole::ByName.is_carrier(module, name) {
                self.carriers.insert(*location);
            } else if CarrierRole::Start.is_carrier(module, name) {
                self.starts.insert(*location);
            }
        }
    }

    /// Gives another kind to those locations of a native frame that only carry managed frames.
    fn mark_carriers(
        &self,
        writer: &mut TraceSeries,
        locations: &mut [LocationId],
        role: CarrierRole,
    ) -> Result<(), TraceError> {
        if role == CarrierRole::None {
            return Ok(());
        }
        let mut parent = None;
        let mut is_changed = false;
        for location in locations {
            let is_carrier = role == CarrierRole::Carrier
                || self.carriers.contains(location)
                || role == CarrierRole::Start && self.starts.contains(location);
            is_changed |= is_carrier;
            if is_changed {
                let kind = if is_carrier { FrameKind::Interpreter } else { FrameKind::Native };
                *location = writer.location_as(*location, kind, parent)?;
            }
            parent = Some(*location);
        }
        Ok(())
    }
}

/// Returns the names of the locations of one address: of the physical function, then of the
/// functions inlined into it.
fn names(resolved: Option<&Resolved>) -> impl Iterator<Item = Option<&str>> {
    let function = resolved.and_then(|it| it.function.as_ref()).map(|it| it.name.as_str());
    let inlined = resolved.map_or(&[][..], |it| &it.inlined);
    std::iter::once(function).chain(inlined.iter().map(|it| Some(it.name.as_str())))
}
