//! Thread context records of OpenTelemetry (OTEP 4947): which variables point to them, and what their
//! attributes are called.
//!
//! An application that publishes records without a process context is read all the same: the name of the
//! variable says what the records are like. Then attributes have no names, and are not told. One that
//! names another version is not read.
//!
//! # Does not
//! - read records: the handlers do, and [`super::Outside`] of threads that sleep.

use std::collections::BTreeMap;
use std::sync::Arc;

use traceprof_abi::context::{ContextSources, RecordKind, SOURCES_RECORDS, Way};
use traceprof_abi::sync::Ordering;

use super::attributes;
use super::process_context::{self, NoContext, ProcessContext, SCHEMA, is_process_context};
use super::variable::resolve;
use crate::elf::TlsAccess;
use crate::inject;
use crate::proc::{self, Mapping};
use crate::record::modules::AddressMap;
use crate::trace::{Metadata, Value};

/// What records are like by versions that say the same.
const SCHEMAS: [&str; 2] = ["tls_v1", "tlsdesc_v1_dev"];
/// What the attributes of the process are called in the metadata.
const PREFIX: &str = "otel.";
/// Attributes of the process that are kept.
const METADATA_MAX: usize = 64;

/// The number of the program itself among the modules.
const PROGRAM: u64 = 1;
/// Said where that is so.
const NO_HANDLERS: &str = "OpenTelemetry: only threads that sleep have contexts, as this kernel does \
                           not let programs read their thread pointer (Linux 5.9 does)";

/// Name and value of an attribute.
pub(super) type Named = (Arc<str>, Arc<str>);

/// What is known of the records of a program.
#[derive(Debug, Default)]
pub(super) struct Otel {
    pid: i32,
    ways: Vec<Way>,
    /// Where a process context is.
    place: Option<u64>,
    context: ProcessContext,
    /// Names of attributes by their numbers.
    keys: Vec<Arc<str>>,
    has_news: bool,
    notices: Vec<String>,
}

impl Otel {
    /// Of the process.
    pub(super) fn of(pid: i32) -> Self {
        Self { pid, ..Self::default() }
    }

    /// Looks at what is mapped, and tells the handlers where to read.
    pub(super) fn refresh(
        &mut self,
        mappings: &[Mapping],
        addresses: &AddressMap,
        sources: &ContextSources,
    ) {
        self.look_for_context(mappings);
        let (mut ways, mut left_out) = (self.find_ways(addresses), 0);
        if ways.len() > SOURCES_RECORDS {
            left_out = ways.len() - SOURCES_RECORDS;
            ways.truncate(SOURCES_RECORDS);
        }
        let is_readable = self.context.one(SCHEMA).is_none_or(|it| SCHEMAS.contains(&it));
        if !is_readable {
            ways.clear();
        }
        if ways == self.ways {
            return;
        }
        let can_handlers = proc::may_read_thread_pointer();
        if !can_handlers && self.ways.is_empty() {
            self.notices.push(NO_HANDLERS.to_owned());
        }
        if left_out > 0 {
            self.notices.push(format!("OpenTelemetry: {left_out} more variables are not read"));
        }
        let all = ways.iter().copied().map(Some).chain(std::iter::repeat(None));
        for (place, (source, way)) in sources.records.iter().zip(all).enumerate() {
            if self.ways.get(place).copied() != way {
                source.set(way);
            }
        }
        // Relaxed: published by the number below.
        sources.has_fsgsbase.store(u32::from(can_handlers), Ordering::Relaxed);
        // Release: pairs with the Acquire in the handler.
        sources.records_used.store(ways.len() as u32, Ordering::Release);
        self.ways = ways;
    }

    /// The ways to the variables of all modules, each once.
    fn find_ways(&self, addresses: &AddressMap) -> Vec<Way> {
        let modules = || {
            let ranges = addresses.ranges.iter();
            ranges.filter_map(|range| Some((&range.module.as_ref()?.exports, range.bias)))
        };
        let is_of_musl = modules().any(|(exports, _)| exports.is_of_musl);
        let vector = if is_of_musl { RecordKind::Musl } else { RecordKind::Glibc };
        let read = |avma| {
            let mut word = [0; 8];
            let got = inject::read_part(self.pid, avma, &mut word);
            (got == word.len()).then(|| u64::from_le_bytes(word))
        };
        // The program's own variable has a fixed distance, also for libraries that reach it by the number of
        // its module.
        let is_own = |access: &TlsAccess| matches!(access, TlsAccess::Offset(_));
        let has_own = modules().any(|(exports, _)| exports.records.iter().any(is_own));
        let mut ways = Vec::new();
        for (exports, bias) in modules() {
            for access in &exports.records {
                let way = resolve(*access, bias, vector, read);
                let is_new = |way: &Way| !(ways.contains(way) || has_own && way.module == PROGRAM);
                ways.extend(way.filter(is_new));
            }
        }
        ways
    }

    fn look_for_context(&mut self, mappings: &[Mapping]) {
        let is_there = |at: u64| mappings.iter().any(|it| it.start == at && is_process_context(it));
        if self.place.is_some_and(is_there) {
            return self.read_context();
        }
        self.place = None;
        for mapping in mappings.iter().filter(|mapping| is_process_context(mapping)) {
            match self.read_at(mapping.start, 0) {
                Ok(()) | Err(NoContext::Changing) => {
                    self.place = Some(mapping.start);
                    return;
                }
                Err(NoContext::Unusable) => {}
            }
        }
    }

    /// Reads the process context again if it has changed.
    fn read_context(&mut self) {
        let Some(at) = self.place else { return };
        if self.read_at(at, self.context.published_at_ns) == Err(NoContext::Unusable) {
            self.place = None;
        }
    }

    fn read_at(&mut self, avma: u64, known_ns: u64) -> Result<(), NoContext> {
        let pid = self.pid;
        let read = |avma, into: &mut [u8]| inject::read_part(pid, avma, into);
        let Some(context) = process_context::read(avma, known_ns, read)? else { return Ok(()) };
        let version = context.one(SCHEMA).map(str::to_owned);
        if version.as_deref() != self.context.one(SCHEMA)
            && let Some(other) = version.filter(|it| !SCHEMAS.contains(&it.as_str()))
        {
            let other: String = other.chars().filter(|it| !it.is_control()).take(80).collect();
            self.notices.push(format!("OpenTelemetry: thread contexts of {other:?} are not read"));
        }
        self.keys = context.keys().iter().map(|key| Arc::from(key.as_str())).collect();
        self.has_news = true;
        self.context = context;
        Ok(())
    }

    /// The ways that are read.
    pub(super) fn ways(&self) -> &[Way] {
        &self.ways
    }

    /// Names and values of a set of attributes, the last of each name, in the order of their numbers; and
    /// how many there are without a name.
    pub(super) fn attributes(&mut self, bytes: &[u8]) -> (Vec<Named>, u64) {
        let last: BTreeMap<u8, &[u8]> = attributes::entries(bytes).collect();
        if last.keys().any(|key| usize::from(*key) >= self.keys.len()) {
            self.read_context();
        }
        let mut named = Vec::with_capacity(last.len());
        let mut unknown = 0;
        for (key, value) in last {
            match self.keys.get(usize::from(key)).filter(|name| !name.is_empty()) {
                Some(name) => named.push((Arc::clone(name), String::from_utf8_lossy(value).into())),
                None => unknown += 1,
            }
        }
        (named, unknown)
    }

    /// What the process tells of itself, if that is new.
    pub(super) fn tell(&mut self, metadata: &mut Metadata) {
        if !std::mem::take(&mut self.has_news) {
            return;
        }
        for (key, value) in self.context.attributes.iter().take(METADATA_MAX) {
            if key.starts_with("threadlocal.") {
                continue;
            }
            let value = match value {
                process_context::AttributeValue::One(text) => Value::Text(text.clone()),
                process_context::AttributeValue::List(texts) => {
                    Value::List(texts.iter().cloned().map(Value::Text).collect())
                }
            };
            metadata.insert(format!("{PREFIX}{key}"), value);
        }
    }

    /// What is to be said.
    pub(super) fn notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }
}

#[cfg(test)]
mod tests {
    use super::process_context::AttributeValue;
    use super::process_context::tests::published;
    use super::*;
    use crate::record::modules::LoadedModule;
    use crate::record::shm::own_data;
    use crate::symbol::ElfFile;

    /// This process, as if it were the target.
    struct Fixture {
        otel: Otel,
        /// A process context, at an address that does not move.
        memory: &'static mut [u8],
        addresses: AddressMap,
    }

    impl Fixture {
        fn new(accesses: &[TlsAccess]) -> Self {
            let file = std::fs::File::open("/proc/self/exe").unwrap();
            let elf = ElfFile::new(file.into(), String::new(), Vec::new());
            let mut module = LoadedModule::for_test(1, "program", elf);
            module.exports.records = accesses.to_vec();
            Self {
                otel: Otel::of(std::process::id() as i32),
                memory: vec![0; 4096].leak(),
                addresses: AddressMap::of_one(module, 1 << 40),
            }
        }

        fn publish(&mut self, schema: &str, keys: &[&str], published_at_ns: u64) {
            let keys = keys.iter().map(|it| (*it).to_owned()).collect();
            let attributes = vec![
                ("service.name".to_owned(), AttributeValue::One("shop".to_owned())),
                (SCHEMA.to_owned(), AttributeValue::One(schema.to_owned())),
                (process_context::KEYS.to_owned(), AttributeValue::List(keys)),
            ];
            let avma = self.memory.as_ptr() as u64;
            let bytes = published(avma, &attributes, published_at_ns);
            self.memory[..bytes.len()].copy_from_slice(&bytes);
        }

        /// How many variables are read.
        fn refresh(&mut self, sources: &ContextSources) -> usize {
            let start = self.memory.as_ptr() as u64;
            let mapping = Mapping::writable(start, start + 4096, "/memfd:OTEL_CTX");
            self.otel.refresh(&[mapping], &self.addresses, sources);
            sources.records_used.load(Ordering::Relaxed) as usize
        }
    }

    fn offsets(distances: impl Iterator<Item = u64>) -> Vec<TlsAccess> {
        distances.map(|distance| TlsAccess::Offset(distance.wrapping_neg())).collect()
    }

    #[test]
    fn variables_are_read_once_each_and_no_more_than_there_is_room_for() {
        let data = own_data();
        let sources = data.context_sources();
        let mut fixture = Fixture::new(&offsets([8, 16, 8].into_iter()));
        assert_eq!(fixture.refresh(sources), 2, "without a process context, too");
        let way = |place: usize| sources.records[place].way().map(|way| way.offset as i64);
        assert_eq!([way(0), way(1), way(2)], [Some(-8), Some(-16), None]);
        assert_eq!(sources.has_fsgsbase.load(Ordering::Relaxed), 1);
        // A library reaches the same variable in the program's block.
        let words: &[u64; 2] = Box::leak(Box::new([PROGRAM, 0]));
        let by_number = TlsAccess::ModuleAndOffset { svma: words.as_ptr() as u64 };
        let own = offsets([8].into_iter());
        fixture.addresses = Fixture::new(&[own, vec![by_number]].concat()).addresses;
        assert_eq!((fixture.refresh(sources), way(0)), (1, Some(-8)));
        fixture.addresses = Fixture::new(&[by_number]).addresses;
        assert_eq!((fixture.refresh(sources), way(0)), (1, Some(0)), "without one of its own");
        let many = Fixture::new(&offsets((1..8).map(|at| at * 8)));
        fixture.addresses = many.addresses;
        assert_eq!(fixture.refresh(sources), SOURCES_RECORDS);
        assert_eq!(fixture.otel.notices().len(), 1);
        fixture.addresses = AddressMap::default();
        assert_eq!((fixture.refresh(sources), way(0)), (0, None), "gone");
    }

    #[test]
    fn records_of_an_unknown_version_are_not_read() {
        let data = own_data();
        let sources = data.context_sources();
        let mut fixture = Fixture::new(&offsets([8].into_iter()));
        fixture.publish("go_pprof_labels_v1", &[], 1);
        assert_eq!((fixture.refresh(sources), fixture.refresh(sources)), (0, 0));
        let notices = fixture.otel.notices();
        assert!(notices.len() == 1 && notices[0].contains("go_pprof_labels_v1"), "{notices:?}");
        fixture.publish("tls_v1", &[], 2);
        assert_eq!((fixture.refresh(sources), fixture.otel.notices()), (1, vec![]));
    }

    #[test]
    fn names_that_are_not_known_are_looked_for_at_once() {
        let data = own_data();
        let mut fixture = Fixture::new(&[]);
        fixture.publish("tls_v1", &["http_route"], 1);
        fixture.refresh(data.context_sources());
        let named = |fixture: &mut Fixture| {
            let (named, unnamed) = fixture.otel.attributes(b"\x00\x02/a\x01\x01b\x00\x02/c");
            (named.iter().map(|(name, value)| format!("{name}={value}")).collect(), unnamed)
        };
        let first: (Vec<String>, u64) = named(&mut fixture);
        assert_eq!(first, (vec!["http_route=/c".to_owned()], 1), "the last value counts");
        fixture.publish("tls_v1", &["http_route", "user"], 2);
        assert_eq!(named(&mut fixture).0, ["http_route=/c", "user=b"]);
        let mut metadata = Metadata::new();
        fixture.otel.tell(&mut metadata);
        let shop = Value::Text("shop".to_owned());
        assert_eq!(metadata.into_iter().collect::<Vec<_>>(), [("otel.service.name".into(), shop)]);
        let mut metadata = Metadata::new();
        fixture.otel.tell(&mut metadata);
        assert!(metadata.is_empty(), "it was told");
    }
}
