//! Checks and lists the thread-neutral objects of a frame without building them.

use super::addition;
use super::bytes::{Cursor, ParseResult, is_modified_utf8};
use super::index::tables::{NEUTRAL_KINDS, neutral_kind_index};
use super::kind::Kind;
use super::{Metadata, NONE, metadata};

/// A thread-neutral object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ObjectRow {
    pub(super) kind: Kind,
    pub(super) id: u32,
    /// The offset in the payload.
    pub(super) at: u32,
    /// A checksum that is equal for equal content; for a thread, it covers only its ids.
    pub(super) crc: u32,
    /// The parent of a STACK_NODE.
    pub(super) parent: u32,
}

/// The objects that were found.
#[derive(Debug, Default)]
pub(super) struct Survey {
    pub(super) objects: Vec<ObjectRow>,
    /// The largest id of each kind that something refers to, in the order of [`NEUTRAL_KINDS`].
    pub(super) highest: [Option<u32>; NEUTRAL_KINDS.len()],
    pub(super) metadata: Metadata,
}

impl Survey {
    /// Records a reference to an object, or to none.
    pub(super) fn refer(&mut self, kind: Kind, id: u32) {
        if id != NONE {
            self.refer_always(kind, id);
        }
    }

    /// Records a mandatory reference to an object.
    pub(super) fn refer_always(&mut self, kind: Kind, id: u32) {
        if let Some(place) = neutral_kind_index(kind) {
            self.highest[place] = self.highest[place].max(Some(id));
        }
    }

    /// Checks and adds an object whose kind was read. `at` is its offset in the payload; `bytes`
    /// are the bytes that `cursor` reads.
    pub(super) fn object(
        &mut self,
        kind: Kind,
        cursor: &mut Cursor<'_>,
        at: usize,
        bytes: &[u8],
    ) -> ParseResult<()> {
        let start = cursor.at() - 1;
        let id = cursor.u32()?;
        let mut parent = NONE;
        let mut compared = None;
        let mut added = None;
        match kind {
            Kind::String => {
                let len = cursor.u16()?;
                text(cursor, len.into())?;
            }
            Kind::LongString => {
                let len = cursor.long_text_len()?;
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
                added = Some(additions(cursor, addition::FIRST_LINE)?);
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
                added = Some(additions(cursor, addition::FRAME_KIND)?);
            }
            Kind::StackNode => {
                parent = cursor.u32()?;
                if parent != NONE && parent >= id {
                    return cursor.fail("a stack node is the child of a later one");
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
                // The id, thread id and process id; the name and the end may change.
                compared = Some(crc32fast::hash(&bytes[start + 1..cursor.at()]));
                self.refer_always(Kind::String, cursor.u32()?);
                cursor.take(16)?;
                self.refer(Kind::String, addition::read_id(cursor, addition::RUNTIME_NAME)?);
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
        let (end, added) = added.unwrap_or((cursor.at(), [0, 0]));
        let crc = compared.unwrap_or_else(|| crc_of(&bytes[start..end], added));
        self.objects.push(ObjectRow { kind, id, at: at as u32, crc, parent });
        Ok(())
    }
}

/// Reads what may follow an object: an addition of this kind, and a column. Returns the end of the
/// object, and the numbers.
fn additions(cursor: &mut Cursor<'_>, kind: u8) -> ParseResult<(usize, [u32; 2])> {
    let end = cursor.at();
    Ok((end, [addition::read(cursor, kind)?, addition::read(cursor, addition::COLUMN)?]))
}

/// Returns the checksum of an object and the numbers that were added to it.
fn crc_of(object: &[u8], added: [u32; 2]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(object);
    if added != [0, 0] {
        added.iter().for_each(|number| crc.update(&number.to_be_bytes()));
    }
    crc.finalize()
}

/// Skips and checks text.
fn text(cursor: &mut Cursor<'_>, len: usize) -> ParseResult<()> {
    let at = cursor.at();
    let bytes = cursor.take(len)?;
    if is_modified_utf8(bytes) {
        return Ok(());
    }
    Err(super::bytes::Malformed { at, what: "a string is not modified UTF-8" })
}
