//! Translates frame words into locations of the trace; each distinct address is symbolized once.
//!
//! # Invariants
//! - Nothing here waits for a symbolizer. An address whose name does not arrive in time is written
//!   without a name and counted.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use traceprof_abi::unwind::{lookup_avma, trace_epoch};

use crate::record::batch::traces::Collection;
use crate::record::name::jit::JitNames;
use crate::record::name::jvm::MapRequests;
use crate::record::name::progress;
use crate::record::name::symbolizers::{SymbolAnswer, SymbolQuery, SymbolizerPool, Symbolizers};
use crate::record::target::jit_dump::DumpFile;
use crate::record::target::modules::{AddressMap, LoadedModule};
use crate::symbol::{FoundCode, Resolved};
use crate::trace::{
    FrameKind, Location, LocationId, Method, Module, ModuleId, SYMBOLS, TraceError, TraceSeries,
    Value,
};

/// An address: the module's index (`None` outside all modules) and the SVMA in it.
pub(crate) type ModuleAddress = (Option<u32>, u64);

/// How long samples wait for names from a runtime.
///
/// The runtime may be stopped, or have answered so often that no requests go to it for a while.
const RUNTIME_TIMEOUT: Duration = Duration::from_secs(2);

/// The largest number of addresses that are remembered as requested.
const REQUESTED_MAX: usize = 1 << 16;

/// The source of names of generated code.
const GENERATED_SOURCE: &str = "the runtime that made the code";

/// The locations of an address in generated code, and the times at which they are valid.
struct GeneratedLocations {
    version: u64,
    times_ns: Range<u64>,
    locations: Box<[LocationId]>,
}

/// An open request to the runtime.
struct Awaited {
    question: u64,
    since: Instant,
    /// The number of addresses in the request.
    addresses: u64,
}

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
}

/// Locations by address, over one recording.
pub(crate) struct FrameNames {
    symbolizers: Symbolizers,
    jit: JitNames,
    modules: HashMap<Option<u32>, ModuleId>,
    /// The reported source of each module's names.
    sources: HashMap<ModuleId, String>,
    /// The locations of each address, outermost function first; `None` while the answer is pending.
    locations_by_address: HashMap<ModuleAddress, Option<Box<[LocationId]>>>,
    /// The locations of addresses outside all modules, which the target itself names.
    generated: HashMap<u64, GeneratedLocations>,
    /// Addresses without a name that the runtime was asked for.
    requested: HashSet<u64>,
    /// Open requests to the runtime, oldest first.
    awaited: VecDeque<Awaited>,
    /// The numbers of requests without an answer.
    open: BTreeSet<u64>,
    /// The number of requests so far.
    asked: u64,
    /// The number of addresses that were written before their names were known.
    pub(crate) unnamed: u64,
}

impl FrameNames {
    /// Starts to name addresses of the process `pid`, whose JVM may write maps on request.
    ///
    /// The threads of `pool` find the names, and `answer` passes the answers to the caller, who
    /// calls [`Self::learn`].
    pub(crate) fn start(
        pid: i32,
        map_requests: Arc<MapRequests>,
        pool: Arc<SymbolizerPool>,
        answer: impl Fn(SymbolAnswer) -> bool + Clone + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let theirs = answer.clone();
        map_requests.answer_by(move |question| {
            // The receiver may no longer exist.
            theirs(Ok(SymbolQuery { question, ..SymbolQuery::default() }));
        });
        let jit = JitNames::start(pid, map_requests)?;
        Ok(Self::of(Symbolizers::over(pool, answer), jit))
    }

    /// Makes a value with these sources of names, and no known names.
    pub(crate) fn of(symbolizers: Symbolizers, jit: JitNames) -> Self {
        Self {
            symbolizers,
            jit,
            sources: HashMap::new(),
            modules: HashMap::new(),
            locations_by_address: HashMap::new(),
            generated: HashMap::new(),
            requested: HashSet::new(),
            awaited: VecDeque::new(),
            open: BTreeSet::new(),
            asked: 0,
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
            traces.frames_of(entry).iter().map(move |word| (*word, epoch))
        });
        // No file has names for addresses outside all modules.
        let is_wanted = |address: &ModuleAddress| {
            address.0.is_some() && !self.locations_by_address.contains_key(address)
        };
        for wanted in by_module(words, addresses, is_wanted) {
            let index = wanted.module.as_ref().map(|module| module.index);
            self.locations_by_address
                .extend(wanted.svmas.iter().map(|svma| ((index, *svma), None)));
            self.asked += 1;
            progress::note_asked(wanted.svmas.len());
            self.open.insert(self.asked);
            self.symbolizers.ask(SymbolQuery { question: self.asked, ..wanted });
        }
        self.ask_runtime(addresses, traces);
        self.asked
    }

    /// Asks the runtime for names of code without a name.
    fn ask_runtime(&mut self, map: &AddressMap, traces: &Collection) {
        if !self.jit.can_be_asked() {
            return;
        }
        if self.requested.len() > REQUESTED_MAX {
            self.requested.clear();
        }
        let mut addresses = 0;
        for entry in traces.entries().iter().filter(|entry| !entry.preserved) {
            for word in traces.frames_of(entry) {
                let (module, (_, avma)) = locate(map, *word, trace_epoch(entry.flags));
                let is_wanted = module.is_none()
                    && self.jit.find(avma, u64::MAX - 1).resolved.is_none()
                    && self.requested.insert(avma);
                addresses += u64::from(is_wanted);
            }
        }
        if addresses > 0 && self.jit.ask_runtime(self.asked + 1) {
            self.asked += 1;
            self.open.insert(self.asked);
            let since = Instant::now();
            self.awaited.push_back(Awaited { question: self.asked, since, addresses });
        }
    }

    /// Returns when the oldest request to the runtime times out.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.awaited.front().map(|oldest| oldest.since + RUNTIME_TIMEOUT)
    }

    /// Drops requests to the runtime that have timed out.
    pub(crate) fn expire(&mut self, now: Instant) {
        while self.deadline().is_some_and(|deadline| now >= deadline)
            && let Some(late) = self.awaited.pop_front()
        {
            self.open.remove(&late.question);
            self.unnamed += late.addresses;
        }
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
        if answer.svmas.is_empty() {
            // The answer of the runtime: its names are read when a stack needs them.
            self.awaited.retain(|it| it.question != answer.question);
            return Ok(());
        }
        progress::note_named(answer.svmas.len());
        let module = answer.module.as_deref();
        let id = self.module(writer, module)?;
        if let Some(source) = &answer.source {
            self.write_source(writer, id, source)?;
        }
        let index = module.map(|module| module.index);
        for (position, svma) in answer.svmas.iter().enumerate() {
            let locations = write(writer, id, module, *svma, answer.resolved.get(position))?;
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

    /// Returns the locations of a trace at a time; unknown addresses get no name.
    pub(crate) fn stack(
        &mut self,
        writer: &mut TraceSeries,
        addresses: &AddressMap,
        (frames, epoch): (&[u64], u16),
        time_ns: u64,
    ) -> Result<NamedStack, TraceError> {
        let locations = Vec::with_capacity(frames.len());
        let mut named = NamedStack { locations, times_ns: 0..u64::MAX, has_own_code: false };
        for frame in frames.iter().rev() {
            let (module, address) = locate(addresses, *frame, epoch);
            let Some(module) = module else {
                self.push_generated(writer, (address.1, time_ns), &mut named)?;
                continue;
            };
            if let Some(Some(known)) = self.locations_by_address.get(&address) {
                named.locations.extend(known);
                continue;
            }
            self.unnamed += 1;
            let id = self.module(writer, Some(module))?;
            let locations = write(writer, id, Some(module), address.1, None)?;
            named.locations.extend(&locations);
            self.locations_by_address.insert(address, Some(locations.into()));
        }
        Ok(named)
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
        self.generated.clear();
        self.requested.clear();
    }

    /// Returns a number that changes whenever a runtime names code.
    pub(crate) fn version(&self) -> u64 {
        self.jit.version()
    }

    /// Adds the locations of an address outside all modules, with the runtime's names if there are
    /// any.
    fn push_generated(
        &mut self,
        writer: &mut TraceSeries,
        (avma, time_ns): (u64, u64),
        named: &mut NamedStack,
    ) -> Result<(), TraceError> {
        let version = self.jit.version();
        let holds = |generated: &&GeneratedLocations| {
            generated.version == version && generated.times_ns.contains(&time_ns)
        };
        if self.generated.get(&avma).filter(holds).is_none() {
            let FoundCode { resolved, times_ns } = self.jit.find(avma, time_ns);
            let module = match &resolved {
                Some(_) => {
                    let module = Module { path: self.jit.source(), build_id: Vec::new() };
                    let id = writer.module(&module)?;
                    self.write_source(writer, id, GENERATED_SOURCE)?;
                    id
                }
                None => self.module(writer, None)?,
            };
            let locations = write(writer, module, None, avma, resolved.as_ref())?.into();
            self.generated.insert(avma, GeneratedLocations { version, times_ns, locations });
        }
        if let Some(generated) = self.generated.get(&avma) {
            named.locations.extend(&generated.locations);
            let (start, end) = (named.times_ns.start, named.times_ns.end);
            named.times_ns = start.max(generated.times_ns.start)..end.min(generated.times_ns.end);
            named.has_own_code = true;
        }
        Ok(())
    }
}

/// Groups the wanted addresses of frame words and their epochs by module, each address once.
///
/// The groups are in the order of the modules' numbers.
pub(crate) fn by_module(
    words: impl Iterator<Item = (u64, u16)>,
    addresses: &AddressMap,
    is_wanted: impl Fn(&ModuleAddress) -> bool,
) -> Vec<SymbolQuery> {
    let mut wanted: BTreeMap<Option<u32>, SymbolQuery> = BTreeMap::new();
    for (word, epoch) in words {
        let (module, address) = locate(addresses, word, epoch);
        if is_wanted(&address) {
            let wanted = wanted.entry(address.0).or_default();
            wanted.module = module.cloned();
            wanted.svmas.push(address.1);
        }
    }
    wanted.into_values().map(SymbolQuery::deduplicated).collect()
}

/// Finds the module of a frame word in an epoch, and the address in that module.
pub(crate) fn locate(
    addresses: &AddressMap,
    frame: u64,
    epoch: u16,
) -> (Option<&Arc<LoadedModule>>, ModuleAddress) {
    let avma = lookup_avma(frame);
    match addresses.find_at(avma, epoch) {
        Some(range) => match &range.module {
            Some(module) => (Some(module), (Some(module.index), avma.wrapping_sub(range.bias))),
            None => (None, (None, avma)),
        },
        None => (None, (None, avma)),
    }
}

/// Writes the locations of one address: the physical function, then the functions inlined into it.
fn write(
    writer: &mut TraceSeries,
    module: ModuleId,
    loaded: Option<&LoadedModule>,
    svma: u64,
    resolved: Option<&Resolved>,
) -> Result<Vec<LocationId>, TraceError> {
    let function = resolved.and_then(|resolved| resolved.function.as_ref());
    let (name, start_svma) = match function {
        Some(function) => (function.name.clone(), function.start_svma),
        None => fallback(loaded, svma),
    };
    let method = Method { module: Some(module), name, start_svma, line: 0 };
    let method = writer.method(&method)?;
    let mut parent = writer.location(&Location {
        method,
        svma,
        file: resolved.and_then(|resolved| resolved.file.clone()),
        line: resolved.map_or(0, |resolved| resolved.line),
        inline_parent: None,
        kind: FrameKind::Native,
    })?;
    let mut locations = vec![parent];
    for inlined in resolved.map_or(&[][..], |resolved| &resolved.inlined) {
        let name = inlined.name.clone();
        let method = Method { module: Some(module), name, ..Method::default() };
        let method = writer.method(&method)?;
        parent = writer.location(&Location {
            method,
            svma,
            file: inlined.file.clone(),
            line: inlined.line,
            inline_parent: Some(parent),
            kind: FrameKind::Native,
        })?;
        locations.push(parent);
    }
    Ok(locations)
}

/// Returns the name of code without a symbol, and the start of its function.
///
/// The start comes from the unwind information and distinguishes functions.
pub(crate) fn fallback(module: Option<&LoadedModule>, svma: u64) -> (String, u64) {
    let Some(module) = module else { return ("[unknown]".to_string(), 0) };
    let file = Path::new(&module.path).file_name();
    let file = file.map_or_else(|| module.path.clone(), |name| name.to_string_lossy().into_owned());
    let start = module.function_start(svma).unwrap_or(svma);
    (format!("[{file}+{start:#x}]"), start)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::symbol::ElfFile;

    #[test]
    fn code_without_a_symbol_is_named_by_its_file_and_the_start_of_its_function() {
        let module = |path: &str| {
            let file = File::open("/proc/self/exe").unwrap();
            let elf = ElfFile::new(file.into(), path.to_owned(), Vec::new());
            let functions = [(0x1000, 0x20), (0x1020, 0x10), (0x2000, 8)];
            LoadedModule::for_test(0, path, elf).with_functions(&functions)
        };
        let library = module("/usr/lib/libx y.so.1");
        for (svma, start) in [
            (0xfff, 0xfff),
            (0x1000, 0x1000),
            (0x101f, 0x1000),
            (0x1020, 0x1020),
            (0x102f, 0x1020),
            (0x1030, 0x1030),
            (0x1fff, 0x1fff),
            (0x2007, 0x2000),
            (u64::MAX, u64::MAX),
        ] {
            let expected = (format!("[libx y.so.1+{start:#x}]"), start);
            assert_eq!(fallback(Some(&library), svma), expected, "{svma:#x}");
        }
        assert_eq!(fallback(Some(&module("[vdso]")), 0x1004).0, "[[vdso]+0x1000]");
        assert_eq!(fallback(Some(&module("/..")), 0x1004).0, "[/..+0x1000]");
        assert_eq!(fallback(None, 0x1004), ("[unknown]".to_owned(), 0));
    }
}
