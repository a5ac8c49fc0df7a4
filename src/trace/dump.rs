//! The objects of a data file, one by one in file order.

use std::path::Path;

use super::bytes::Cursor;
use super::frame::{Frame, FrameHeader};
use super::frames::Frames;
use super::object::{Neutral, Record, SampleFields, TracePoint};
use super::{FrameKind, NO_THREAD, NONE, SIDE, TraceError, Value};

/// An object of a data file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// The position: the offset in the file if the file is not compressed, else the offset of the
    /// frame shifted left by 24 bits plus the offset in the decoded frame.
    pub offset: u64,
    /// The name of the kind; `FRAME` for a frame's header, `UNKNOWN` for a kind of a later version.
    pub kind: &'static str,
    /// The fields by name, in the order on disk.
    pub fields: Vec<(&'static str, FieldValue)>,
}

/// The value of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldValue {
    /// An unsigned number.
    Unsigned(u64),
    /// A signed number.
    Signed(i64),
    /// Text as it was recorded, with control characters not escaped.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A list of values.
    List(Vec<FieldValue>),
}

impl From<u64> for FieldValue {
    fn from(value: u64) -> Self {
        Self::Unsigned(value)
    }
}

impl From<u32> for FieldValue {
    fn from(value: u32) -> Self {
        Self::Unsigned(value.into())
    }
}

/// Iterates over the objects of the data file at `path`, in file order. Like
/// [`load`](fn@super::load), it ignores what follows the last complete frame. An error in a frame
/// is the last item.
pub fn dump_objects(
    path: &Path,
) -> Result<impl Iterator<Item = Result<Object, TraceError>>, TraceError> {
    let mut frames = Frames::open(path)?;
    let mut dumped: Option<DumpedFrame> = None;
    let mut ended = false;
    Ok(std::iter::from_fn(move || {
        if ended {
            return None;
        }
        if let Some(object) = dumped.as_mut().and_then(DumpedFrame::next) {
            ended = object.is_err();
            return Some(object);
        }
        let frame = match frames.next_frame() {
            Ok(Some(frame)) => frame,
            Ok(None) => return None,
            Err(error) => {
                ended = true;
                return Some(Err(error));
            }
        };
        let object = of_header(&frame.header);
        dumped = Some(DumpedFrame { frame, at: 0 });
        Some(Ok(object))
    }))
}

/// A frame and the offset of its next object in the payload.
struct DumpedFrame {
    frame: Frame,
    at: usize,
}

impl DumpedFrame {
    fn next(&mut self) -> Option<Result<Object, TraceError>> {
        let Frame { header, payload, .. } = &self.frame;
        let mut cursor = Cursor::new(payload);
        cursor.skip_to(self.at);
        if cursor.is_at_end() {
            return None;
        }
        Some(match Record::decode(&mut cursor) {
            Ok(record) => {
                let offset = header.position(self.at);
                self.at = cursor.at();
                let (kind, fields) = describe(&record);
                Ok(Object { offset, kind, fields })
            }
            Err(bad) => {
                Err(TraceError::Corrupt { offset: header.position(bad.at), what: bad.what })
            }
        })
    }
}

fn of_header(header: &FrameHeader) -> Object {
    let fields = vec![
        ("sequence", header.sequence.into()),
        ("offset", header.offset.into()),
        ("bytes", header.total_bytes().into()),
        ("payload_bytes", (header.payload_bytes() as u64).into()),
        ("blocks", header.blocks.into()),
        ("samples", header.samples.into()),
        ("first_ns", header.first_ns.into()),
        ("last_ns", header.last_ns.into()),
    ];
    Object { offset: header.position(0), kind: "FRAME", fields }
}

type Fields = Vec<(&'static str, FieldValue)>;

fn describe(record: &Record) -> (&'static str, Fields) {
    match record {
        Record::Neutral(object) => (object.kind().name(), neutral(object)),
        Record::Point(point) => (point.kind().name(), trace_point(point)),
        Record::BlockStart { stream: NO_THREAD } => ("BLOCK_START", Vec::new()),
        Record::BlockStart { stream } => {
            let thread = ("thread", (*stream & !SIDE).into());
            ("BLOCK_START", vec![thread, ("side", u64::from(stream & SIDE != 0).into())])
        }
        Record::BlockEnd => ("BLOCK_END", Vec::new()),
        Record::Eof { samples, threads, objects } => {
            let counts = [("threads", *threads), ("objects", *objects)];
            let counts = counts.map(|(name, count)| (name, count.into()));
            ("EOF", [("samples", (*samples).into())].into_iter().chain(counts).collect())
        }
        Record::Unknown { kind, bytes } => {
            let bytes = ("bytes", (*bytes as u64).into());
            ("UNKNOWN", vec![("kind", u64::from(*kind).into()), bytes])
        }
    }
}

fn neutral(object: &Neutral) -> Fields {
    let mut fields = vec![("id", object.id().into())];
    let rest: Fields = match object {
        Neutral::String { text, .. } => vec![("text", FieldValue::Text(text.clone()))],
        Neutral::Module { path, build_id, .. } => {
            vec![("path", (*path).into()), ("build_id", FieldValue::Bytes(build_id.clone()))]
        }
        Neutral::Method { module, start_svma, name, line, column, .. } => {
            let mut fields = vec![
                ("module", optional(*module)),
                ("start_svma", (*start_svma).into()),
                ("name", (*name).into()),
            ];
            fields.extend((*line != 0).then(|| ("first_line", (*line).into())));
            fields.extend((*column != 0).then(|| ("column", (*column).into())));
            fields
        }
        Neutral::Location {
            method, svma, file, line, column, inline_parent, frame_kind, ..
        } => {
            let mut fields = vec![
                ("method", (*method).into()),
                ("svma", (*svma).into()),
                ("file", optional(*file)),
                ("line", (*line).into()),
                ("inline_parent", optional(*inline_parent)),
            ];
            fields.extend((*frame_kind != 0).then(|| ("frame_kind", frame_kind_of(*frame_kind))));
            fields.extend((*column != 0).then(|| ("column", (*column).into())));
            fields
        }
        Neutral::StackNode { parent, location, .. } => {
            vec![("parent", optional(*parent)), ("location", (*location).into())]
        }
        Neutral::CallTrace { trace_id, node, end_reason, .. } => vec![
            ("trace_id", (*trace_id).into()),
            ("node", optional(*node)),
            ("end_reason", u64::from(*end_reason).into()),
        ],
        Neutral::Thread { tid, pid, name, first_seen, ended, runtime_name, .. } => {
            let ended = if *ended == u64::MAX { FieldValue::Signed(-1) } else { (*ended).into() };
            let mut fields = vec![
                ("tid", (*tid).into()),
                ("pid", (*pid).into()),
                ("name", (*name).into()),
                ("first_seen_ns", (*first_seen).into()),
                ("ended_ns", ended),
            ];
            fields.extend(runtime_name.checked_sub(1).map(|id| ("runtime_name", id.into())));
            fields
        }
        Neutral::Mapping { pid, start, end, file_offset, module, seen, .. } => vec![
            ("pid", (*pid).into()),
            ("start", (*start).into()),
            ("end", (*end).into()),
            ("file_offset", (*file_offset).into()),
            ("module", (*module).into()),
            ("first_seen_ns", (*seen).into()),
        ],
        Neutral::Metadata { key, value, .. } => {
            vec![("key", FieldValue::Text(key.clone())), ("value", metadata_value(value))]
        }
    };
    fields.extend(rest);
    fields
}

/// Returns the name of a kind of frames, or the number of one of a later version.
fn frame_kind_of(number: u32) -> FieldValue {
    let kind = FrameKind::from_number(number);
    if kind as u32 == number { FieldValue::Text(kind.name().to_owned()) } else { number.into() }
}

/// Returns an id, or -1 for none.
fn optional(id: u32) -> FieldValue {
    if id == NONE { FieldValue::Signed(-1) } else { id.into() }
}

/// Converts a value. The recursion is at most [`super::metadata::MAX_NESTING`] deep.
fn metadata_value(value: &Value) -> FieldValue {
    match value {
        Value::Unsigned(number) => FieldValue::Unsigned(*number),
        Value::Text(text) => FieldValue::Text(text.clone()),
        Value::List(values) => FieldValue::List(values.iter().map(metadata_value).collect()),
    }
}

fn trace_point(point: &TracePoint) -> Fields {
    match point {
        TracePoint::Call { location } | TracePoint::Site { location } => {
            vec![("location", (*location).into())]
        }
        TracePoint::Footer { run, unfinished } => {
            vec![("run", (*run).into()), ("unfinished", u64::from(*unfinished).into())]
        }
        TracePoint::OuterSite { up, location } => {
            vec![("up", (*up).into()), ("location", (*location).into())]
        }
        TracePoint::Sample(fields) => sample(fields),
        TracePoint::Gap { before, length } => {
            vec![("before", FieldValue::Signed(*before)), ("length_ns", (*length).into())]
        }
        TracePoint::ThreadStart { time_ns } | TracePoint::ThreadExit { time_ns } => {
            vec![("time_ns", (*time_ns).into())]
        }
    }
}

fn sample(sample: &SampleFields) -> Fields {
    let mut fields = vec![("time", FieldValue::Signed(sample.time))];
    for (name, number) in sample.named() {
        fields.extend(number.map(|number| (name, number.into())));
    }
    if let Some(tags) = &sample.tags {
        let tags = tags.iter().map(|tag| tag.map_or(FieldValue::Signed(-1), FieldValue::from));
        fields.push(("tags", FieldValue::List(tags.collect())));
    }
    fields.extend(sample.main_before.map(|count| ("main_before", count.into())));
    let text = sample.waits_on.map(|number| optional(number.checked_sub(1).unwrap_or(NONE)));
    fields.extend(text.map(|text| ("waits_on", text)));
    fields.extend(sample.root_high.map(|half| ("root_high", half.into())));
    fields
}
