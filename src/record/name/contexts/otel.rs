//! Thread context records of OpenTelemetry (OTEP 4947): finds the variables that point to them, and
//! the names of their attributes.
//!
//! Records of an application without a process context are read all the same, since the variable's
//! name implies the format. Their attributes have no names and are left out. If the process context
//! names an unknown version of the records, they are not read.
//!
//! # Does not
//! - read records: handlers do, and [`crate::record::name::contexts::ContextReader`] does for
//!   sleeping threads.

use std::collections::BTreeMap;
use std::sync::Arc;

use traceprof_abi::context::{ContextSources, RecordKind, SOURCES_RECORDS, TlsLocation};
use traceprof_abi::sync::Ordering;

use crate::elf::{TlsAccess, resolve_tls};
use crate::inject;
use crate::proc::{self, Mapping};
use crate::record::name::contexts::attributes;
use crate::record::name::contexts::process_context::{
    self, NoContext, ProcessContext, SCHEMA, is_process_context,
};
use crate::record::target::modules::AddressMap;
use crate::trace::{Metadata, Value};

/// The versions of records whose format is known.
const SCHEMAS: [&str; 2] = ["tls_v1", "tlsdesc_v1_dev"];
/// The prefix of the process's attributes in the metadata.
const PREFIX: &str = "otel.";
/// The largest number of the process's attributes that are kept.
const METADATA_MAX: usize = 64;

/// The loader's module number of the program itself.
const PROGRAM: u64 = 1;
/// The message on kernels where handlers cannot read the thread pointer.
const NO_HANDLERS: &str = "OpenTelemetry: only sleeping threads have contexts, since this kernel \
                           does not let programs read their thread pointer (Linux 5.9 does)";

/// The name and the value of an attribute.
pub(super) type NamedAttribute = (Arc<str>, Arc<str>);

/// The variables, process context and attribute names of a program.
#[derive(Debug, Default)]
pub(super) struct Otel {
    pid: i32,
    /// Whether handlers may read the thread pointer, once known.
    can_handlers_read: Option<bool>,
    locations: Vec<TlsLocation>,
    /// The address of the process context.
    context_avma: Option<u64>,
    context: ProcessContext,
    /// The names of attributes by their numbers.
    keys: Vec<Arc<str>>,
    has_new_attributes: bool,
    notices: Vec<String>,
}

impl Otel {
    /// Makes the state of a process, with nothing found yet.
    pub(super) fn of(pid: i32) -> Self {
        Self { pid, ..Self::default() }
    }

    /// Searches the mappings for variables and a process context, and publishes the variables to
    /// the handlers.
    pub(super) fn refresh(
        &mut self,
        mappings: &[Mapping],
        addresses: &AddressMap,
        sources: &ContextSources,
    ) {
        let can_handlers_read =
            *self.can_handlers_read.get_or_insert_with(proc::may_read_thread_pointer);
        // Release: pairs with the Acquire in the handler.
        sources.has_fsgsbase.store(u32::from(can_handlers_read), Ordering::Release);
        self.find_context(mappings);
        let (mut locations, mut left_out) = (self.find_locations(addresses), 0);
        if locations.len() > SOURCES_RECORDS {
            left_out = locations.len() - SOURCES_RECORDS;
            locations.truncate(SOURCES_RECORDS);
        }
        let is_readable = self.context.one(SCHEMA).is_none_or(|it| SCHEMAS.contains(&it));
        if !is_readable {
            locations.clear();
        }
        if locations == self.locations {
            return;
        }
        if !can_handlers_read && self.locations.is_empty() {
            self.notices.push(NO_HANDLERS.to_owned());
        }
        if left_out > 0 {
            self.notices.push(format!("OpenTelemetry: {left_out} more variables are not read"));
        }
        let all = locations.iter().copied().map(Some).chain(std::iter::repeat(None));
        for (index, (source, location)) in sources.records.iter().zip(all).enumerate() {
            if self.locations.get(index).copied() != location {
                source.set(location);
            }
        }
        // Release: pairs with the Acquire in the handler.
        sources.records_used.store(locations.len() as u32, Ordering::Release);
        self.locations = locations;
    }

    /// Returns the distinct locations of the variables of all modules.
    fn find_locations(&self, addresses: &AddressMap) -> Vec<TlsLocation> {
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
        // The program's own variable has a fixed distance, even for libraries that reach it by
        // module number.
        let is_own = |access: &TlsAccess| matches!(access, TlsAccess::Offset(_));
        let has_own = modules().any(|(exports, _)| exports.records.iter().any(is_own));
        let mut locations = Vec::new();
        for (exports, bias) in modules() {
            for access in &exports.records {
                let location = resolve_tls(*access, bias, vector, read);
                let is_new = |location: &TlsLocation| {
                    !(locations.contains(location) || has_own && location.module == PROGRAM)
                };
                locations.extend(location.filter(is_new));
            }
        }
        locations
    }

    fn find_context(&mut self, mappings: &[Mapping]) {
        let is_there = |at: u64| mappings.iter().any(|it| it.start == at && is_process_context(it));
        if self.context_avma.is_some_and(is_there) {
            return self.read_context();
        }
        self.context_avma = None;
        for mapping in mappings.iter().filter(|mapping| is_process_context(mapping)) {
            match self.read_at(mapping.start, 0) {
                Ok(()) | Err(NoContext::Changing) => {
                    self.context_avma = Some(mapping.start);
                    return;
                }
                Err(NoContext::Unusable) => {}
            }
        }
    }

    /// Reads the process context again if it has changed.
    fn read_context(&mut self) {
        let Some(at) = self.context_avma else { return };
        if self.read_at(at, self.context.published_at_ns) == Err(NoContext::Unusable) {
            self.context_avma = None;
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
        self.has_new_attributes = true;
        self.context = context;
        Ok(())
    }

    /// Returns the locations in use.
    pub(super) fn locations(&self) -> &[TlsLocation] {
        &self.locations
    }

    /// Returns names and values of a set of attributes, and the number of attributes without a
    /// name.
    ///
    /// The last value of each key counts, and the result is in the order of key numbers.
    pub(super) fn attributes(&mut self, bytes: &[u8]) -> (Vec<NamedAttribute>, u64) {
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

    /// Adds the process's attributes to the metadata if they are new.
    pub(super) fn write_new_attributes(&mut self, metadata: &mut Metadata) {
        if !std::mem::take(&mut self.has_new_attributes) {
            return;
        }
        for (key, value) in self.context.attributes.iter().take(METADATA_MAX) {
            if key.starts_with("threadlocal.") {
                continue;
            }
            let value = match value {
                process_context::ContextAttributeValue::One(text) => Value::Text(text.clone()),
                process_context::ContextAttributeValue::List(texts) => {
                    Value::List(texts.iter().cloned().map(Value::Text).collect())
                }
            };
            metadata.insert(format!("{PREFIX}{key}"), value);
        }
    }

    /// Returns new messages for the user.
    pub(super) fn notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }
}

#[cfg(test)]
mod tests {
    use super::process_context::ContextAttributeValue;
    use super::process_context::tests::published;
    use super::*;
    use crate::record::target::modules::LoadedModule;
    use crate::record::target::shm::own_data;
    use crate::symbol::ElfFile;

    /// This process in the place of the target.
    struct Fixture {
        otel: Otel,
        /// A process context at a fixed address.
        memory: &'static mut [u8],
        addresses: AddressMap,
    }

    impl Fixture {
        fn new(accesses: &[TlsAccess]) -> Self {
            let file = std::fs::File::open("/proc/self/exe").unwrap();
            let elf = ElfFile::new(file.into(), String::new(), Vec::new());
            let module = LoadedModule::for_test(1, "program", elf)
                .with_file(|file| file.exports.records = accesses.to_vec());
            Self {
                otel: Otel::of(std::process::id() as i32),
                memory: vec![0; 4096].leak(),
                addresses: AddressMap::of_one(module, 1 << 40),
            }
        }

        fn publish(&mut self, schema: &str, keys: &[&str], published_at_ns: u64) {
            let keys = keys.iter().map(|it| (*it).to_owned()).collect();
            let attributes = vec![
                ("service.name".to_owned(), ContextAttributeValue::One("shop".to_owned())),
                (SCHEMA.to_owned(), ContextAttributeValue::One(schema.to_owned())),
                (process_context::KEYS.to_owned(), ContextAttributeValue::List(keys)),
            ];
            let avma = self.memory.as_ptr() as u64;
            let bytes = published(avma, &attributes, published_at_ns);
            self.memory[..bytes.len()].copy_from_slice(&bytes);
        }

        /// Refreshes, and returns the number of variables in use.
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
        let location = |index: usize| sources.records[index].location().map(|it| it.offset as i64);
        assert_eq!([location(0), location(1), location(2)], [Some(-8), Some(-16), None]);
        assert_eq!(sources.has_fsgsbase.load(Ordering::Relaxed), 1);
        // A library reaches the same variable in the program's block.
        let words: &[u64; 2] = Box::leak(Box::new([PROGRAM, 0]));
        let by_number = TlsAccess::ModuleAndOffset { svma: words.as_ptr() as u64 };
        let own = offsets([8].into_iter());
        fixture.addresses = Fixture::new(&[own, vec![by_number]].concat()).addresses;
        assert_eq!((fixture.refresh(sources), location(0)), (1, Some(-8)));
        fixture.addresses = Fixture::new(&[by_number]).addresses;
        assert_eq!((fixture.refresh(sources), location(0)), (1, Some(0)), "without one of its own");
        let many = Fixture::new(&offsets((1..8).map(|at| at * 8)));
        fixture.addresses = many.addresses;
        assert_eq!(fixture.refresh(sources), SOURCES_RECORDS);
        assert_eq!(fixture.otel.notices().len(), 1);
        fixture.addresses = AddressMap::default();
        assert_eq!((fixture.refresh(sources), location(0)), (0, None), "gone");
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
    fn unknown_names_are_searched_at_once() {
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
        fixture.otel.write_new_attributes(&mut metadata);
        let shop = Value::Text("shop".to_owned());
        assert_eq!(metadata.into_iter().collect::<Vec<_>>(), [("otel.service.name".into(), shop)]);
        let mut metadata = Metadata::new();
        fixture.otel.write_new_attributes(&mut metadata);
        assert!(metadata.is_empty(), "already reported");
    }
}
