//! The objects as they are stored in a block: a kind byte, then the fields.
//!
//! Thread-neutral objects have fixed-width big-endian fields, since they are read by position.
//! Trace points have varints, since they are the bulk of a file.

use super::Value;
use super::addition;
use super::bytes::{
    Cursor, ParseResult, put_signed, put_u16, put_u32, put_u32s, put_u64, put_u64s, put_varint,
    to_modified_utf8,
};
use super::kind::{FIRST_SIZED, Kind};
use super::metadata;

/// A thread-neutral object whose references are still ids.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Neutral {
    String {
        id: u32,
        text: String,
    },
    Module {
        id: u32,
        path: u32,
        build_id: Vec<u8>,
    },
    Method {
        id: u32,
        module: u32,
        start_svma: u64,
        name: u32,
        line: u32,
        column: u32,
    },
    Location {
        id: u32,
        method: u32,
        svma: u64,
        file: u32,
        line: u32,
        column: u32,
        inline_parent: u32,
        /// The number of a [`FrameKind`](super::FrameKind), or of one of a later version.
        frame_kind: u32,
    },
    StackNode {
        id: u32,
        parent: u32,
        location: u32,
    },
    CallTrace {
        id: u32,
        trace_id: u64,
        node: u32,
        end_reason: u16,
    },
    Thread {
        id: u32,
        tid: u32,
        pid: u32,
        name: u32,
        first_seen: u64,
        ended: u64,
        /// The id of a text plus 1; 0 for none.
        runtime_name: u32,
    },
    Mapping {
        id: u32,
        pid: u32,
        start: u64,
        end: u64,
        file_offset: u64,
        module: u32,
        seen: u64,
    },
    Metadata {
        id: u32,
        key: String,
        value: Value,
    },
}

/// A trace point as it is encoded: relative to the state of its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TracePoint {
    Call { location: u32 },
    Footer { run: u32, unfinished: bool },
    Site { location: u32 },
    OuterSite { up: u32, location: u32 },
    Sample(SampleFields),
    Gap { before: i64, length: u64 },
    ThreadStart { time_ns: u64 },
    ThreadExit { time_ns: u64 },
}

/// The fields of a sample. `None` means "as before" or "zero"; see the format's specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct SampleFields {
    pub(super) time: i64,
    pub(super) slot: Option<u32>,
    pub(super) epoch: Option<u32>,
    pub(super) weight: Option<u32>,
    pub(super) end_reason: Option<u16>,
    pub(super) flags: Option<u32>,
    pub(super) outer: Option<u32>,
    pub(super) state: Option<u8>,
    pub(super) syscall: Option<u32>,
    pub(super) span: Option<u64>,
    pub(super) root_span: Option<u64>,
    pub(super) tags: Option<[Option<u32>; 10]>,
    pub(super) main_before: Option<u64>,
    /// The id of a text plus 1; 0 for none.
    pub(super) waits_on: Option<u32>,
    pub(super) root_high: Option<u64>,
}

/// Any object of a data file.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Record {
    Neutral(Neutral),
    Point(TracePoint),
    BlockStart { stream: u32 },
    BlockEnd,
    Eof { samples: u64, threads: u32, objects: u32 },
    Unknown { kind: u8, bytes: usize },
}

impl Neutral {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::String { text, .. } if is_long(text) => Kind::LongString,
            Self::String { .. } => Kind::String,
            Self::Module { .. } => Kind::Module,
            Self::Method { .. } => Kind::Method,
            Self::Location { .. } => Kind::Location,
            Self::StackNode { .. } => Kind::StackNode,
            Self::CallTrace { .. } => Kind::CallTrace,
            Self::Thread { .. } => Kind::Thread,
            Self::Mapping { .. } => Kind::Mapping,
            Self::Metadata { .. } => Kind::Metadata,
        }
    }

    pub(super) fn id(&self) -> u32 {
        match self {
            Self::String { id, .. }
            | Self::Module { id, .. }
            | Self::Method { id, .. }
            | Self::Location { id, .. }
            | Self::StackNode { id, .. }
            | Self::CallTrace { id, .. }
            | Self::Thread { id, .. }
            | Self::Mapping { id, .. }
            | Self::Metadata { id, .. } => *id,
        }
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.kind() as u8);
        put_u32(out, self.id());
        match self {
            Self::String { text, .. } => {
                let bytes = to_modified_utf8(text);
                match u16::try_from(bytes.len()) {
                    Ok(len) => put_u16(out, len),
                    Err(_) => put_u32(out, bytes.len() as u32),
                }
                out.extend_from_slice(&bytes);
            }
            Self::Module { path, build_id, .. } => {
                put_u32(out, *path);
                put_u16(out, build_id.len() as u16);
                out.extend_from_slice(build_id);
            }
            Self::Method { module, start_svma, name, line, column, .. } => {
                put_u32(out, *module);
                put_u64(out, *start_svma);
                put_u32(out, *name);
                addition::put(out, addition::FIRST_LINE, *line);
                addition::put(out, addition::COLUMN, *column);
            }
            Self::Location {
                method, svma, file, line, column, inline_parent, frame_kind, ..
            } => {
                put_u32(out, *method);
                put_u64(out, *svma);
                put_u32s(out, [*file, *line, *inline_parent]);
                addition::put(out, addition::FRAME_KIND, *frame_kind);
                addition::put(out, addition::COLUMN, *column);
            }
            Self::StackNode { parent, location, .. } => put_u32s(out, [*parent, *location]),
            Self::CallTrace { trace_id, node, end_reason, .. } => {
                put_u64(out, *trace_id);
                put_u32(out, *node);
                put_u16(out, *end_reason);
            }
            Self::Thread { tid, pid, name, first_seen, ended, runtime_name, .. } => {
                put_u32s(out, [*tid, *pid, *name]);
                put_u64s(out, [*first_seen, *ended]);
                addition::put(out, addition::RUNTIME_NAME, *runtime_name);
            }
            Self::Mapping { pid, start, end, file_offset, module, seen, .. } => {
                put_u32(out, *pid);
                put_u64s(out, [*start, *end, *file_offset]);
                put_u32(out, *module);
                put_u64(out, *seen);
            }
            Self::Metadata { key, value, .. } => metadata::encode(out, key, value),
        }
    }

    fn decode(kind: Kind, cursor: &mut Cursor<'_>) -> ParseResult<Option<Self>> {
        let id = match kind as u8 {
            1..16 => cursor.u32()?,
            _ => return Ok(None),
        };
        Ok(Some(match kind {
            Kind::String => {
                let len = cursor.u16()?;
                Self::String { id, text: cursor.text(usize::from(len))? }
            }
            Kind::LongString => {
                let len = cursor.long_text_len()?;
                Self::String { id, text: cursor.text(len)? }
            }
            Kind::Module => {
                let path = cursor.u32()?;
                let len = cursor.u16()?;
                Self::Module { id, path, build_id: cursor.take(usize::from(len))?.to_vec() }
            }
            Kind::Method => Self::Method {
                id,
                module: cursor.u32()?,
                start_svma: cursor.u64()?,
                name: cursor.u32()?,
                line: addition::read(cursor, addition::FIRST_LINE)?,
                column: addition::read(cursor, addition::COLUMN)?,
            },
            Kind::Location => Self::Location {
                id,
                method: cursor.u32()?,
                svma: cursor.u64()?,
                file: cursor.u32()?,
                line: cursor.u32()?,
                inline_parent: cursor.u32()?,
                frame_kind: addition::read(cursor, addition::FRAME_KIND)?,
                column: addition::read(cursor, addition::COLUMN)?,
            },
            Kind::StackNode => {
                Self::StackNode { id, parent: cursor.u32()?, location: cursor.u32()? }
            }
            Kind::CallTrace => Self::CallTrace {
                id,
                trace_id: cursor.u64()?,
                node: cursor.u32()?,
                end_reason: cursor.u16()?,
            },
            Kind::Thread => Self::Thread {
                id,
                tid: cursor.u32()?,
                pid: cursor.u32()?,
                name: cursor.u32()?,
                first_seen: cursor.u64()?,
                ended: cursor.u64()?,
                runtime_name: addition::read(cursor, addition::RUNTIME_NAME)?,
            },
            Kind::Mapping => Self::Mapping {
                id,
                pid: cursor.u32()?,
                start: cursor.u64()?,
                end: cursor.u64()?,
                file_offset: cursor.u64()?,
                module: cursor.u32()?,
                seen: cursor.u64()?,
            },
            _ => {
                let (key, value) = metadata::decode(cursor)?;
                Self::Metadata { id, key, value }
            }
        }))
    }
}

fn is_long(text: &str) -> bool {
    // Modified UTF-8 is at most 6/4 times (for U+0000 twice) as long as UTF-8.
    text.len() > 0x7fff && to_modified_utf8(text).len() > 0xffff
}

impl TracePoint {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Call { .. } => Kind::Call,
            Self::Footer { .. } => Kind::Footer,
            Self::Site { .. } => Kind::Site,
            Self::OuterSite { .. } => Kind::OuterSite,
            Self::Sample(_) => Kind::Sample,
            Self::Gap { .. } => Kind::Gap,
            Self::ThreadStart { .. } => Kind::ThreadStart,
            Self::ThreadExit { .. } => Kind::ThreadExit,
        }
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.kind() as u8);
        match self {
            Self::Call { location } | Self::Site { location } => {
                put_varint(out, (*location).into())
            }
            Self::Footer { run, unfinished } => {
                put_varint(out, u64::from(*run) << 1 | u64::from(*unfinished));
            }
            Self::OuterSite { up, location } => {
                put_varint(out, (*up).into());
                put_varint(out, (*location).into());
            }
            Self::Sample(fields) => fields.encode(out),
            Self::Gap { before, length } => {
                put_signed(out, *before);
                put_varint(out, *length);
            }
            Self::ThreadStart { time_ns } | Self::ThreadExit { time_ns } => {
                put_varint(out, *time_ns);
            }
        }
    }

    fn decode(kind: Kind, cursor: &mut Cursor<'_>) -> ParseResult<Option<Self>> {
        Ok(Some(match kind {
            Kind::Call => Self::Call { location: cursor.varint32()? },
            Kind::Site => Self::Site { location: cursor.varint32()? },
            Kind::OuterSite => {
                Self::OuterSite { up: cursor.varint32()?, location: cursor.varint32()? }
            }
            Kind::Footer => {
                let word = cursor.varint()?;
                let Ok(run) = u32::try_from(word >> 1) else {
                    return cursor.fail("a footer closes too many calls");
                };
                Self::Footer { run, unfinished: word & 1 == 1 }
            }
            Kind::Sample => Self::Sample(SampleFields::decode(cursor)?),
            Kind::Gap => Self::Gap { before: cursor.signed()?, length: cursor.varint()? },
            Kind::ThreadStart => Self::ThreadStart { time_ns: cursor.varint()? },
            Kind::ThreadExit => Self::ThreadExit { time_ns: cursor.varint()? },
            _ => return Ok(None),
        }))
    }
}

/// The bits of a sample's presence word, in the order of the fields that they announce.
pub(super) mod bit {
    pub(in crate::trace) const SLOT: u64 = 1;
    pub(in crate::trace) const EPOCH: u64 = 1 << 1;
    pub(in crate::trace) const WEIGHT: u64 = 1 << 2;
    pub(in crate::trace) const END_REASON: u64 = 1 << 3;
    pub(in crate::trace) const FLAGS: u64 = 1 << 4;
    pub(in crate::trace) const OUTER: u64 = 1 << 5;
    pub(in crate::trace) const STATE: u64 = 1 << 6;
    pub(in crate::trace) const SYSCALL: u64 = 1 << 7;
    pub(in crate::trace) const SPAN: u64 = 1 << 8;
    pub(in crate::trace) const ROOT_SPAN: u64 = 1 << 9;
    pub(in crate::trace) const TAGS: u64 = 1 << 10;
    pub(in crate::trace) const MAIN_BEFORE: u64 = 1 << 11;
    pub(in crate::trace) const WAITS_ON: u64 = 1 << 12;
    pub(in crate::trace) const ROOT_HIGH: u64 = 1 << 13;
    /// The first bit of fields of later versions; each is one varint after the known fields.
    pub(in crate::trace) const LATER: u32 = 14;
    pub(in crate::trace) const ALL: u64 = (1 << 32) - 1;
}

impl SampleFields {
    /// Returns the optional numbers by name, in the order of their bits and on disk.
    pub(super) fn named(&self) -> [(&'static str, Option<u64>); 10] {
        [
            ("slot", self.slot.map(u64::from)),
            ("epoch", self.epoch.map(u64::from)),
            ("weight", self.weight.map(u64::from)),
            ("end_reason", self.end_reason.map(u64::from)),
            ("flags", self.flags.map(u64::from)),
            ("outer", self.outer.map(u64::from)),
            ("state", self.state.map(u64::from)),
            ("syscall", self.syscall.map(u64::from)),
            ("span", self.span),
            ("root_span", self.root_span),
        ]
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let numbers = self.named().map(|(_, number)| number);
        let mut present = 0;
        for (place, number) in numbers.iter().enumerate() {
            present |= u64::from(number.is_some()) << place;
        }
        present |= if self.tags.is_some() { bit::TAGS } else { 0 };
        present |= if self.main_before.is_some() { bit::MAIN_BEFORE } else { 0 };
        present |= if self.waits_on.is_some() { bit::WAITS_ON } else { 0 };
        present |= if self.root_high.is_some() { bit::ROOT_HIGH } else { 0 };
        put_varint(out, present);
        put_signed(out, self.time);
        for number in numbers.iter().flatten() {
            put_varint(out, *number);
        }
        if let Some(tags) = &self.tags {
            let mask = tags.iter().rev().fold(0, |mask, tag| mask << 1 | u64::from(tag.is_some()));
            put_varint(out, mask);
            tags.iter().flatten().for_each(|tag| put_varint(out, (*tag).into()));
        }
        let last = [self.main_before, self.waits_on.map(u64::from), self.root_high];
        for number in last.into_iter().flatten() {
            put_varint(out, number);
        }
    }

    fn decode(cursor: &mut Cursor<'_>) -> ParseResult<Self> {
        let present = cursor.varint()?;
        if present & !bit::ALL != 0 {
            return cursor.fail("a sample has invalid field bits");
        }
        let mut fields = Self { time: cursor.signed()?, ..Self::default() };
        let has = |bit| present & bit != 0;
        fields.slot = has(bit::SLOT).then(|| cursor.varint32()).transpose()?;
        fields.epoch = has(bit::EPOCH).then(|| cursor.varint32()).transpose()?;
        fields.weight = has(bit::WEIGHT).then(|| cursor.varint32()).transpose()?;
        fields.end_reason = has(bit::END_REASON).then(|| narrow(cursor)).transpose()?;
        fields.flags = has(bit::FLAGS).then(|| cursor.varint32()).transpose()?;
        fields.outer = has(bit::OUTER).then(|| cursor.varint32()).transpose()?;
        fields.state = has(bit::STATE).then(|| narrow(cursor)).transpose()?;
        fields.syscall = has(bit::SYSCALL).then(|| cursor.varint32()).transpose()?;
        fields.span = has(bit::SPAN).then(|| cursor.varint()).transpose()?;
        fields.root_span = has(bit::ROOT_SPAN).then(|| cursor.varint()).transpose()?;
        fields.tags = has(bit::TAGS).then(|| decode_tags(cursor)).transpose()?;
        fields.main_before = has(bit::MAIN_BEFORE).then(|| cursor.varint()).transpose()?;
        fields.waits_on = has(bit::WAITS_ON).then(|| cursor.varint32()).transpose()?;
        fields.root_high = has(bit::ROOT_HIGH).then(|| cursor.varint()).transpose()?;
        for _ in 0..(present >> bit::LATER).count_ones() {
            cursor.varint()?;
        }
        Ok(fields)
    }
}

/// Reads a varint that must fit a narrower type.
fn narrow<T: TryFrom<u64>>(cursor: &mut Cursor<'_>) -> ParseResult<T> {
    match T::try_from(cursor.varint()?) {
        Ok(value) => Ok(value),
        Err(_) => cursor.fail("a field of a sample is out of range"),
    }
}

fn decode_tags(cursor: &mut Cursor<'_>) -> ParseResult<[Option<u32>; 10]> {
    let mask = cursor.varint()?;
    let mut tags = [None; 10];
    if mask >> tags.len() != 0 {
        return cursor.fail("a sample has more than ten tags");
    }
    for (place, tag) in tags.iter_mut().enumerate() {
        if mask >> place & 1 == 1 {
            *tag = Some(cursor.varint32()?);
        }
    }
    Ok(tags)
}

impl Record {
    /// Reads an object. Consumes at least its kind byte.
    pub(super) fn decode(cursor: &mut Cursor<'_>) -> ParseResult<Self> {
        let number = cursor.u8()?;
        if number >= FIRST_SIZED {
            if let Err(what) = addition::refuse_stray(number) {
                return cursor.fail(what);
            }
            let len = cursor.varint32()? as usize;
            cursor.take(len)?;
            return Ok(Self::Unknown { kind: number, bytes: len });
        }
        let Some(kind) = Kind::from_number(number) else {
            return cursor.fail("an object has an unknown kind");
        };
        if let Some(neutral) = Neutral::decode(kind, cursor)? {
            return Ok(Self::Neutral(neutral));
        }
        if let Some(point) = TracePoint::decode(kind, cursor)? {
            return Ok(Self::Point(point));
        }
        Ok(match kind {
            Kind::BlockStart => Self::BlockStart { stream: cursor.u32()? },
            Kind::BlockEnd => Self::BlockEnd,
            Kind::Eof => {
                Self::Eof { samples: cursor.u64()?, threads: cursor.u32()?, objects: cursor.u32()? }
            }
            _ => return cursor.fail("an object of the index is in the data"),
        })
    }
}
