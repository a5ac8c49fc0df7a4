//! From frame words to the trace's locations: each distinct address is symbolized once.
//!
//! # Invariants
//! - Nothing here waits for a symbolizer. Whoever cannot wait for an answer has the address written
//!   without a name, and counted.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use traceprof_abi::unwind::{lookup_avma, trace_epoch};

use super::collections::Collection;
use super::jit::{DumpFile, JitNames};
use super::jvm::Writings;
use super::modules::{AddressMap, LoadedModule};
use super::naming;
use super::symbolizers::{Answer, Pool, Symbolizers, Wanted};
use crate::symbol::{FoundCode, Resolved};
use crate::trace::{
    Location, LocationId, Method, Module, ModuleId, SYMBOLS, TraceError, TraceSeries, Value,
};

/// An address: the module's index (`None` outside all modules) and the SVMA in it.
pub(super) type Place = (Option<u32>, u64);

/// As long as this samples wait for names that a runtime is asked for: it may be stopped, or have
/// answered so often that it is left alone for a while.
const RUNTIME_PATIENCE: Duration = Duration::from_secs(2);

/// Addresses that are remembered as asked for.
const SOUGHT_MAX: usize = 1 << 16;

/// Where the names of such code come from.
const TOLD: &str = "the runtime that made the code";

/// The locations of an address of code that the target has made, and for which times.
struct Told {
    version: u64,
    times_ns: Range<u64>,
    locations: Box<[LocationId]>,
}

/// A question to the runtime.
struct Awaited {
    question: u64,
    since: Instant,
    /// Of so many addresses.
    addresses: u64,
}

/// The locations of a stack.
#[derive(Debug)]
pub(super) struct Named {
    /// Root first.
    pub(super) locations: Vec<LocationId>,
    /// For which times, CLOCK_MONOTONIC nanoseconds. As long as nothing else is [told](Names::version),
    /// if code is among it that the target has made.
    pub(super) times_ns: Range<u64>,
    /// There is.
    pub(super) has_own_code: bool,
}

/// Locations by address, over one recording.
pub(super) struct Names {
    symbolizers: Symbolizers,
    jit: JitNames,
    modules: HashMap<Option<u32>, ModuleId>,
    /// What was told of where the modules' names come from.
    sources: HashMap<ModuleId, String>,
    /// Outermost function first; `None` as long as the address is only asked for.
    places: HashMap<Place, Option<Box<[LocationId]>>>,
    /// Those outside of all modules, of which the target itself tells.
    told: HashMap<u64, Told>,
    /// Those that the runtime was asked for: some code has no name.
    sought: HashSet<u64>,
    /// Questions to the runtime, oldest first.
    awaited: VecDeque<Awaited>,
    /// Questions without an answer.
    open: BTreeSet<u64>,
    /// How many questions there were.
    asked: u64,
    /// Addresses that were written before their names were known.
    pub(super) unnamed: u64,
}

impl Names {
    /// Those of the process `pid`, some of which a Java machine writes when it is asked to. None are
    /// known yet. The threads of `pool` find them; `answer` takes answers to where [`Self::learn`] is called
    /// with them.
    pub(super) fn start(
        pid: i32,
        writings: Arc<Writings>,
        pool: Arc<Pool>,
        answer: impl Fn(Answer) -> bool + Clone + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let theirs = answer.clone();
        writings.answer_by(move |question| {
            // Nobody may wait for it any more.
            theirs(Ok(Wanted { question, ..Wanted::default() }));
        });
        let jit = JitNames::start(pid, writings)?;
        Ok(Self::of(Symbolizers::over(pool, answer), jit))
    }

    /// None are known yet, and these find them.
    pub(super) fn of(symbolizers: Symbolizers, jit: JitNames) -> Self {
        Self {
            symbolizers,
            jit,
            sources: HashMap::new(),
            modules: HashMap::new(),
            places: HashMap::new(),
            told: HashMap::new(),
            sought: HashSet::new(),
            awaited: VecDeque::new(),
            open: BTreeSet::new(),
            asked: 0,
            unnamed: 0,
        }
    }

    /// Asks for the addresses of all new traces that are not known. When what was asked up to now is
    /// [answered](Self::is_answered), their names are known.
    pub(super) fn ask(&mut self, addresses: &AddressMap, traces: &Collection) -> u64 {
        // A preserved trace was new once, and what is mapped may have changed since.
        let new = traces.entries().iter().filter(|entry| !entry.preserved);
        let words = new.flat_map(|entry| {
            let epoch = trace_epoch(entry.flags);
            traces.frames_of(entry).iter().map(move |word| (*word, epoch))
        });
        // Of what is outside of all modules no file tells.
        let is_wanted = |place: &Place| place.0.is_some() && !self.places.contains_key(place);
        for wanted in by_module(words, addresses, is_wanted) {
            let index = wanted.module.as_ref().map(|module| module.index);
            self.places.extend(wanted.svmas.iter().map(|svma| ((index, *svma), None)));
            self.asked += 1;
            naming::note_asked(wanted.svmas.len());
            self.open.insert(self.asked);
            self.symbolizers.ask(Wanted { question: self.asked, ..wanted });
        }
        self.ask_runtime(addresses, traces);
        self.asked
    }

    /// Asks the runtime for code that it has not told of.
    fn ask_runtime(&mut self, map: &AddressMap, traces: &Collection) {
        if !self.jit.can_be_asked() {
            return;
        }
        if self.sought.len() > SOUGHT_MAX {
            self.sought.clear();
        }
        let mut addresses = 0;
        for entry in traces.entries().iter().filter(|entry| !entry.preserved) {
            for word in traces.frames_of(entry) {
                let (module, (_, avma)) = locate(map, *word, trace_epoch(entry.flags));
                let is_wanted = module.is_none()
                    && self.jit.find(avma, u64::MAX - 1).resolved.is_none()
                    && self.sought.insert(avma);
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

    /// When the oldest question to the runtime is waited for no more.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.awaited.front().map(|oldest| oldest.since + RUNTIME_PATIENCE)
    }

    /// Waits no more for what the runtime was asked too long ago.
    pub(super) fn expire(&mut self, now: Instant) {
        while self.deadline().is_some_and(|deadline| now >= deadline)
            && let Some(late) = self.awaited.pop_front()
        {
            self.open.remove(&late.question);
            self.unnamed += late.addresses;
        }
    }

    /// All questions up to this one are answered.
    pub(super) fn is_answered(&self, question: u64) -> bool {
        self.open.first().is_none_or(|first| *first > question)
    }

    /// Takes an answer in.
    pub(super) fn learn(
        &mut self,
        writer: &mut TraceSeries,
        answer: &Wanted,
    ) -> Result<(), TraceError> {
        self.open.remove(&answer.question);
        if answer.svmas.is_empty() {
            // The runtime's: its names are read when they are needed.
            self.awaited.retain(|it| it.question != answer.question);
            return Ok(());
        }
        naming::note_named(answer.svmas.len());
        let module = answer.module.as_deref();
        let id = self.module(writer, module)?;
        if let Some(source) = &answer.source {
            self.tell_source(writer, id, source)?;
        }
        let index = module.map(|module| module.index);
        for (position, svma) in answer.svmas.iter().enumerate() {
            let locations = write(writer, id, module, *svma, answer.resolved.get(position))?;
            self.places.insert((index, *svma), Some(locations.into()));
        }
        Ok(())
    }

    /// Writes where a module's names come from. What is missing may be found out later.
    fn tell_source(
        &mut self,
        writer: &mut TraceSeries,
        id: ModuleId,
        source: &str,
    ) -> Result<(), TraceError> {
        if self.sources.get(&id).is_none_or(|told| told != source) {
            self.sources.insert(id, source.to_owned());
            writer.set_metadata(&format!("{SYMBOLS}{}", id.0), Value::Text(source.to_owned()))?;
        }
        Ok(())
    }

    /// The locations of a trace at a time. Addresses that are not known get no name.
    pub(super) fn stack(
        &mut self,
        writer: &mut TraceSeries,
        addresses: &AddressMap,
        (frames, epoch): (&[u64], u16),
        time_ns: u64,
    ) -> Result<Named, TraceError> {
        let locations = Vec::with_capacity(frames.len());
        let mut named = Named { locations, times_ns: 0..u64::MAX, has_own_code: false };
        for frame in frames.iter().rev() {
            let (module, place) = locate(addresses, *frame, epoch);
            let Some(module) = module else {
                self.push_told(writer, (place.1, time_ns), &mut named)?;
                continue;
            };
            if let Some(Some(known)) = self.places.get(&place) {
                named.locations.extend(known);
                continue;
            }
            self.unnamed += 1;
            let id = self.module(writer, Some(module))?;
            let locations = write(writer, id, Some(module), place.1, None)?;
            named.locations.extend(&locations);
            self.places.insert(place, Some(locations.into()));
        }
        Ok(named)
    }

    /// The trace's id of a module.
    pub(super) fn module(
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

    /// Hears of names that a runtime has told since, and of dumps of its code.
    pub(super) fn refresh(&mut self, dumps: &[Arc<DumpFile>]) {
        self.jit.refresh(dumps);
    }

    /// Another program runs in the process.
    pub(super) fn begin_program(&mut self) {
        self.jit.begin();
        self.told.clear();
        self.sought.clear();
    }

    /// Another number whenever a runtime has told something else.
    pub(super) fn version(&self) -> u64 {
        self.jit.version()
    }

    /// Of an address outside of all modules the runtime may know something.
    fn push_told(
        &mut self,
        writer: &mut TraceSeries,
        (avma, time_ns): (u64, u64),
        named: &mut Named,
    ) -> Result<(), TraceError> {
        let version = self.jit.version();
        let holds = |told: &&Told| told.version == version && told.times_ns.contains(&time_ns);
        if self.told.get(&avma).filter(holds).is_none() {
            let FoundCode { resolved, times_ns } = self.jit.find(avma, time_ns);
            let module = match &resolved {
                Some(_) => {
                    let module = Module { path: self.jit.source(), build_id: Vec::new() };
                    let id = writer.module(&module)?;
                    self.tell_source(writer, id, TOLD)?;
                    id
                }
                None => self.module(writer, None)?,
            };
            let locations = write(writer, module, None, avma, resolved.as_ref())?.into();
            self.told.insert(avma, Told { version, times_ns, locations });
        }
        if let Some(told) = self.told.get(&avma) {
            named.locations.extend(&told.locations);
            let (start, end) = (named.times_ns.start, named.times_ns.end);
            named.times_ns = start.max(told.times_ns.start)..end.min(told.times_ns.end);
            named.has_own_code = true;
        }
        Ok(())
    }
}

/// The addresses of frame words of their epochs, each once, that are wanted; by module, in the order of
/// their numbers.
pub(super) fn by_module(
    words: impl Iterator<Item = (u64, u16)>,
    addresses: &AddressMap,
    is_wanted: impl Fn(&Place) -> bool,
) -> Vec<Wanted> {
    let mut wanted: BTreeMap<Option<u32>, Wanted> = BTreeMap::new();
    for (word, epoch) in words {
        let (module, place) = locate(addresses, word, epoch);
        if is_wanted(&place) {
            let wanted = wanted.entry(place.0).or_default();
            wanted.module = module.cloned();
            wanted.svmas.push(place.1);
        }
    }
    wanted.into_values().map(Wanted::each_once).collect()
}

/// Where a frame word of an epoch is.
pub(super) fn locate(
    addresses: &AddressMap,
    frame: u64,
    epoch: u16,
) -> (Option<&Arc<LoadedModule>>, Place) {
    let avma = lookup_avma(frame);
    match addresses.find_at(avma, epoch) {
        Some(range) => match &range.module {
            Some(module) => (Some(module), (Some(module.index), avma.wrapping_sub(range.bias))),
            None => (None, (None, avma)),
        },
        None => (None, (None, avma)),
    }
}

/// Writes the locations of one address: the physical function, then what is inlined into it.
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
    let method = writer.method(&Method { module: Some(module), name, start_svma })?;
    let mut parent = writer.location(&Location {
        method,
        svma,
        file: resolved.and_then(|resolved| resolved.file.clone()),
        line: resolved.map_or(0, |resolved| resolved.line),
        inline_parent: None,
    })?;
    let mut locations = vec![parent];
    for inlined in resolved.map_or(&[][..], |resolved| &resolved.inlined) {
        let name = inlined.name.clone();
        let method = writer.method(&Method { module: Some(module), name, start_svma: 0 })?;
        parent = writer.location(&Location {
            method,
            svma,
            file: inlined.file.clone(),
            line: inlined.line,
            inline_parent: Some(parent),
        })?;
        locations.push(parent);
    }
    Ok(locations)
}

/// Without a symbol, the function's start from the unwind information still tells functions apart.
pub(super) fn fallback(module: Option<&LoadedModule>, svma: u64) -> (String, u64) {
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
    fn what_has_no_name_is_called_by_its_file_and_its_functions_start() {
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
