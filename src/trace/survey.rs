//! The thread-neutral objects of a frame, checked and listed without being built.

use super::bytes::{Cursor, Parsed, is_modified_utf8};
use super::index::tables::{NEUTRAL_KINDS, neutral_place};
use super::kind::Kind;
use super::{MAX_TEXT_BYTES, Metadata, NONE, metadata};

/// A thread-neutral object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ObjectRow {
    pub(super) kind: Kind,
    pub(super) id: u32,
    /// Offset in the payload.
    pub(super) at: u32,
    /// Equal for equal content; of a thread for equal ids and first time.
    pub(super) crc: u32,
    /// Of a STACK_NODE, its parent.
    pub(super) parent: u32,
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Survey {
    pub(super) objects: Vec<ObjectRow>,
    /// The largest id of each kind that something refers to, by place in [`NEUTRAL_KINDS`].
    pub(super) highest: [Option<u32>; NEUTRAL_KINDS.len()],
    pub(super) metadata: Metadata,
}

impl Survey {
    /// Notes that something refers to an object, or to none.
    pub(super) fn refer(&mut self, kind: Kind, id: u32) {
        if id != NONE {
            self.refer_always(kind, id);
        }
    }

    /// Notes that something refers to an object that it may not lack.
    pub(super) fn refer_always(&mut self, kind: Kind, id: u32) {
        if let Some(place) = neutral_place(kind) {
            self.highest[place] = self.highest[place].max(Some(id));
        }
    }

    /// Takes in an object whose kind was read. `at` is its offset in the payload; the bytes that
    /// `cursor` reads are `bytes`.
    pub(super) fn object(
        &mut self,
        kind: Kind,
        cursor: &mut Cursor<'_>,
        at: usize,
        bytes: &[u8],
    ) -> Parsed<()> {
        let start = cursor.at() - 1;
        let id = cursor.u32()?;
        let mut parent = NONE;
        let mut compared = None;
        match kind {
            Kind::String => {
                let len = cursor.u16()?;
                text(cursor, len.into())?;
            }
            Kind::LongString => {
                let len = cursor.u32()? as usize;
                if !(0x10000..=MAX_TEXT_BYTES).contains(&len) {
                    return cursor.fail("a LONG_STRING has a length that it may not have");
                }
                text(cursor, len)?;
            }
            Kind::Module => {
                self.refer_always(Kind::String, cursor.u32()?);
                let len = cursor.u16()?;
                cursor.take(len.into())?;
            }
            Kind::Method => {
                self.refer(Kind::Module, cursor.u32()?);
                cursor.u64()?;
                self.refer_always(Kind::String, cursor.u32()?);
            }
            Kind::Location => {
                self.refer_always(Kind::Method, cursor.u32()?);
                cursor.u64()?;
                self.refer(Kind::String, cursor.u32()?);
                cursor.u32()?;
                let inline_parent = cursor.u32()?;
                if inline_parent != NONE && inline_parent >= id {
                    return cursor.fail("a location is inlined into a later one");
                }
            }
            Kind::StackNode => {
                parent = cursor.u32()?;
                if parent != NONE && parent >= id {
                    return cursor.fail("a stack node lies under a later one");
                }
                self.refer_always(Kind::Location, cursor.u32()?);
            }
            Kind::CallTrace => {
                cursor.u64()?;
                self.refer(Kind::StackNode, cursor.u32()?);
                cursor.u16()?;
            }
            Kind::Thread => {
                cursor.take(8)?;
                // Id, thread, process; the name and the end may change.
                compared = Some(crc32fast::hash(&bytes[start + 1..cursor.at()]));
                self.refer_always(Kind::String, cursor.u32()?);
                cursor.take(16)?;
            }
            Kind::Mapping => {
                cursor.take(28)?;
                self.refer_always(Kind::Module, cursor.u32()?);
                cursor.u64()?;
            }
            _ => {
                let (key, value) = metadata::decode(cursor)?;
                self.metadata.insert(key, value);
                compared = Some(0);
            }
        }
        let crc = compared.unwrap_or_else(|| crc32fast::hash(&bytes[start..cursor.at()]));
        self.objects.push(ObjectRow { kind, id, at: at as u32, crc, parent });
        Ok(())
    }
}

/// Passes text.
fn text(cursor: &mut Cursor<'_>, len: usize) -> Parsed<()> {
    let at = cursor.at();
    let bytes = cursor.take(len)?;
    if is_modified_utf8(bytes) {
        return Ok(());
    }
    Err(super::bytes::Malformed { at, what: "a string is not modified UTF-8" })
}
