//! Profiles of OpenTelemetry, for its collectors, after OTLP 1.10 (`v1development`, alpha).
//!
//! The message is an export request, so a collector accepts the file unchanged. It is built from
//! the pprof profile, because both formats have the same tables.
//!
//! # Invariants
//! - The values of each profile add up to the values of the samples. There is one profile for time
//!   and one for samples.
//! - Each process has its own resource with its samples below. The tables are shared.
//! - Index 0 of each table is empty, as the format requires: index 0 means no value.

mod resource;

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::Hash;
use std::io::{self, Write};

use opentelemetry_proto::tonic::common::v1::any_value::Value as Word;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope};
use opentelemetry_proto::tonic::profiles::v1development as otlp;
use prost::Message;

use super::pprof::{self, TAG_PREFIX, proto};
use super::{ExportOptions, Profile};
use crate::trace::{FrameKind, Language};
use crate::view::recording::recording_info::RecordingInfo;

/// Names of labels that the semantic conventions of OpenTelemetry define.
const CONVENTIONS: [(&str, &str); 2] = [("thread", "thread.name"), ("tid", "thread.id")];
const BUILD_ID: &str = "process.executable.build_id.gnu";
/// The attribute with the kind of a frame.
const FRAME_TYPE: &str = "profile.frame.type";

/// Returns the attribute that replaces a label. A tag with the same name gets another attribute.
fn attribute_key(label: &str) -> Cow<'_, str> {
    match CONVENTIONS.iter().find(|(own, name)| *own == label || *name == label) {
        Some((own, name)) if *own == label => (*name).into(),
        Some(_) => format!("{TAG_PREFIX}{label}").into(),
        None => label.into(),
    }
}

/// Writes all stacks.
pub(super) fn write(
    profile: &Profile,
    options: &ExportOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    let (made, kinds) = pprof::make(profile, options);
    out.write_all(&OtlpBuilder::new(&made, &kinds).finish(profile).encode_to_vec())
}

/// A table of distinct values in the order of their first use, after the empty value.
struct InternTable<T> {
    indices: HashMap<T, i32>,
}

impl<T: Hash + Eq + Clone> InternTable<T> {
    fn new(empty: T) -> Self {
        Self { indices: HashMap::from([(empty, 0)]) }
    }

    fn index(&mut self, of: T) -> i32 {
        let next = index(self.indices.len());
        *self.indices.entry(of).or_insert(next)
    }

    fn finish(self) -> Vec<T> {
        let mut all: Vec<_> = self.indices.into_iter().collect();
        all.sort_by_key(|(_, index)| *index);
        all.into_iter().map(|(it, _)| it).collect()
    }
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum OtlpValue {
    Nothing,
    Text(String),
    Number(i64),
}

/// The samples of a process.
#[derive(Default)]
struct OfProcess {
    /// The stack, attributes and link of each sample.
    indices: Vec<(i32, Vec<i32>, i32)>,
    /// The two values of each sample: samples and time.
    values: Vec<[i64; 2]>,
}

/// Builds the message from a pprof profile.
struct OtlpBuilder<'a> {
    made: &'a proto::Profile,
    /// The kind of each location's code, if it is known.
    kinds: &'a [Option<FrameKind>],
    strings: Vec<String>,
    string_indices: HashMap<String, i32>,
    stacks: InternTable<Vec<i32>>,
    links: InternTable<(Vec<u8>, Vec<u8>)>,
    attributes: InternTable<(i32, OtlpValue)>,
}

impl<'a> OtlpBuilder<'a> {
    fn new(made: &'a proto::Profile, kinds: &'a [Option<FrameKind>]) -> Self {
        let strings = made.string_table.clone();
        let indices = strings.iter().enumerate();
        let string_indices = indices.map(|(at, text)| (text.clone(), index(at))).collect();
        let stacks = InternTable::new(Vec::new());
        let links = InternTable::new((Vec::new(), Vec::new()));
        let attributes = InternTable::new((0, OtlpValue::Nothing));
        Self { made, kinds, strings, string_indices, stacks, links, attributes }
    }

    fn finish(mut self, profile: &Profile) -> otlp::ProfilesData {
        let mut processes: Vec<(i64, OfProcess)> = Vec::new();
        for sample in &self.made.sample {
            let pid = self.label(sample, "pid").map_or(0, |label| label.number);
            let known = processes.iter().position(|(of, _)| *of == pid);
            let at = known.unwrap_or_else(|| {
                processes.push((pid, OfProcess::default()));
                processes.len() - 1
            });
            let indices = self.indices(sample);
            if let (Some((_, process)), [count, time]) = (processes.get_mut(at), &sample.value[..])
            {
                process.indices.push(indices);
                process.values.push([*count, *time]);
            }
        }
        let resource_profiles = processes
            .iter()
            .map(|(pid, process)| otlp::ResourceProfiles {
                resource: Some(resource::of_process(*pid, profile)),
                scope_profiles: vec![otlp::ScopeProfiles {
                    scope: Some(scope(&profile.recording)),
                    profiles: self.profiles(process),
                    ..otlp::ScopeProfiles::default()
                }],
                ..otlp::ResourceProfiles::default()
            })
            .collect();
        otlp::ProfilesData { resource_profiles, dictionary: Some(self.dictionary()) }
    }

    fn label(&self, sample: &'a proto::Sample, key: &str) -> Option<&'a proto::Label> {
        sample.label.iter().find(|label| self.text(label.key) == key)
    }

    fn text(&self, at: i64) -> &'a str {
        usize::try_from(at).ok().and_then(|at| self.made.string_table.get(at)).map_or("", |it| it)
    }

    /// Returns the indices of the stack, the attributes and the link of a sample.
    fn indices(&mut self, sample: &'a proto::Sample) -> (i32, Vec<i32>, i32) {
        let stack = sample.location_id.iter().map(|id| index(*id as usize)).collect();
        let stack = self.stacks.index(stack);
        let mut ids = [None; 2];
        let linked = ["trace_id", "span_id"];
        for (id, key) in ids.iter_mut().zip(linked) {
            *id = self.label(sample, key).and_then(|label| bytes(self.text(label.text)));
        }
        // A link needs both ids. A single id is an attribute.
        let link = match ids {
            [Some((trace, 16)), Some((span, 8))] => {
                self.links.index((trace[..16].to_vec(), span[..8].to_vec()))
            }
            _ => 0,
        };
        let mut attributes = Vec::with_capacity(sample.label.len());
        for label in &sample.label {
            let key = self.text(label.key);
            // The resource already names the process.
            if key == "pid" || key == pprof::PROCESS || (link != 0 && linked.contains(&key)) {
                continue;
            }
            let value = match label.text {
                0 => OtlpValue::Number(label.number),
                text => OtlpValue::Text(self.text(text).to_owned()),
            };
            attributes.push(self.attribute(&attribute_key(key), value));
        }
        (stack, attributes, link)
    }

    fn attribute(&mut self, key: &str, value: OtlpValue) -> i32 {
        let key = self.string(key);
        self.attributes.index((key, value))
    }

    fn string(&mut self, text: &str) -> i32 {
        if let Some(index) = self.string_indices.get(text) {
            return *index;
        }
        let at = index(self.strings.len());
        self.strings.push(text.to_owned());
        self.string_indices.insert(text.to_owned(), at);
        at
    }

    /// Returns the profiles of a process, time first: tools show the first profile by default.
    fn profiles(&self, process: &OfProcess) -> Vec<otlp::Profile> {
        let types = self.made.sample_type.iter().enumerate().rev();
        types.map(|(value, kind)| self.profile(process, value, kind)).collect()
    }

    fn profile(&self, process: &OfProcess, value: usize, kind: &proto::ValueType) -> otlp::Profile {
        let samples = process.indices.iter().zip(&process.values);
        let samples = samples.map(|((stack_index, attributes, link_index), values)| otlp::Sample {
            stack_index: *stack_index,
            attribute_indices: attributes.clone(),
            link_index: *link_index,
            values: values.get(value).copied().into_iter().collect(),
            timestamps_unix_nano: Vec::new(),
        });
        otlp::Profile {
            sample_type: Some(value_type(kind)),
            samples: samples.collect(),
            time_unix_nano: unsigned(self.made.time_nanos),
            duration_nano: unsigned(self.made.duration_nanos),
            period_type: self.made.period_type.as_ref().map(value_type),
            period: self.made.period,
            ..otlp::Profile::default()
        }
    }

    fn dictionary(mut self) -> otlp::ProfilesDictionary {
        let made = self.made;
        let mut mapping_table = vec![otlp::Mapping::default()];
        for mapping in &made.mapping {
            let build_id = self.text(mapping.build_id);
            let attribute = (!build_id.is_empty())
                .then(|| self.attribute(BUILD_ID, OtlpValue::Text(build_id.to_owned())));
            mapping_table.push(otlp::Mapping {
                memory_start: mapping.memory_start,
                memory_limit: mapping.memory_limit,
                file_offset: 0,
                filename_strindex: string_index(mapping.filename),
                attribute_indices: attribute.into_iter().collect(),
            });
        }
        let kinds = self.kinds.iter().chain(std::iter::repeat(&None));
        let locations: Vec<otlp::Location> = made
            .location
            .iter()
            .zip(kinds)
            .map(|(of, kind)| {
                let frame_type = kind.and_then(frame_type).map(str::to_owned);
                let attribute =
                    frame_type.map(|name| self.attribute(FRAME_TYPE, OtlpValue::Text(name)));
                location(of, attribute)
            })
            .collect();
        let stacks = self.stacks.finish();
        let links = self.links.finish().into_iter();
        let attributes = self.attributes.finish().into_iter();
        otlp::ProfilesDictionary {
            mapping_table,
            location_table: after_empty(locations.into_iter()),
            function_table: after_empty(made.function.iter().map(function)),
            link_table: links.map(|(trace_id, span_id)| otlp::Link { trace_id, span_id }).collect(),
            string_table: self.strings,
            attribute_table: attributes.map(attribute).collect(),
            stack_table: stacks
                .into_iter()
                .map(|location_indices| otlp::Stack { location_indices })
                .collect(),
        }
    }
}

/// Returns the value of the attribute for a kind of frame, if the semantic conventions have one.
fn frame_type(kind: FrameKind) -> Option<&'static str> {
    match kind.language() {
        Language::Native => Some("native"),
        Language::Kernel => Some("kernel"),
        Language::Python => Some("cpython"),
        Language::Java => Some("jvm"),
        Language::JavaScript => Some("v8js"),
        Language::Php => Some("php"),
        Language::Ruby => Some("ruby"),
        Language::Perl => Some("perl"),
        Language::Lua => Some("luajit"),
        Language::Other => None,
    }
}

/// Converts a location. The indices of pprof's tables start at 1, too.
fn location(of: &proto::Location, attribute: Option<i32>) -> otlp::Location {
    let line = |line: &proto::Line| otlp::Line {
        function_index: index(line.function_id as usize),
        line: line.line,
        column: 0,
    };
    otlp::Location {
        mapping_index: index(of.mapping_id as usize),
        address: of.address,
        lines: of.line.iter().map(line).collect(),
        attribute_indices: attribute.into_iter().collect(),
    }
}

fn function(of: &proto::Function) -> otlp::Function {
    otlp::Function {
        name_strindex: string_index(of.name),
        system_name_strindex: string_index(of.system_name),
        filename_strindex: string_index(of.filename),
        start_line: of.start_line,
    }
}

fn attribute((key_strindex, value): (i32, OtlpValue)) -> otlp::KeyValueAndUnit {
    let value = match value {
        OtlpValue::Nothing => None,
        OtlpValue::Text(text) => Some(Word::StringValue(text)),
        OtlpValue::Number(number) => Some(Word::IntValue(number)),
    };
    let value = value.map(|value| AnyValue { value: Some(value) });
    otlp::KeyValueAndUnit { key_strindex, value, unit_strindex: 0 }
}

fn value_type(of: &proto::ValueType) -> otlp::ValueType {
    let (type_strindex, unit_strindex) = (string_index(of.kind), string_index(of.unit));
    otlp::ValueType { type_strindex, unit_strindex }
}

fn scope(recording: &RecordingInfo) -> InstrumentationScope {
    let version = recording.text("traceprof_version").unwrap_or_default().to_owned();
    InstrumentationScope { name: "traceprof".to_owned(), version, ..Default::default() }
}

/// Parses an id of at most 32 hexadecimal digits into its bytes and their number.
fn bytes(digits: &str) -> Option<([u8; 16], usize)> {
    let mut bytes = [0; 16];
    let length = digits.len() / 2;
    for (at, byte) in bytes.iter_mut().enumerate().take(length) {
        *byte = u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    (length <= 16).then_some((bytes, length))
}

fn after_empty<T: Default>(all: impl Iterator<Item = T>) -> Vec<T> {
    [T::default()].into_iter().chain(all).collect()
}

/// Converts an index into a table. Returns 0 if it exceeds the format's range, which memory does
/// not allow.
fn index(at: usize) -> i32 {
    i32::try_from(at).unwrap_or(0)
}

fn string_index(at: i64) -> i32 {
    i32::try_from(at).unwrap_or(0)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
