//! A [`Parser`] with the room that it needs, or without both.

use std::path::Path;
use std::sync::Arc;

use super::Resolved;
use super::outline::{Outline, Packed};
use super::parser::{NameSource, Parser};
use super::room::{Room, Taken};

/// A parser that unpacks sections as it needs them, and may.
pub(super) struct Roomy {
    parser: Parser,
    room: Arc<Room>,
    /// Bytes that it needs.
    len: u64,
    /// From the first address on that it is asked for; `None` inside if there was too little left.
    taken: Option<Option<Taken>>,
}

impl Roomy {
    /// Of the symbol tables of a file.
    pub(super) fn symbols(path: &Path, packed: Packed, room: &Arc<Room>) -> Box<Self> {
        Self::new(Parser::new(path.to_owned(), false), room, packed.other)
    }

    /// Of the debug information of a file, and its symbol tables.
    pub(super) fn debug_information(path: &Path, packed: Packed, room: &Arc<Room>) -> Box<Self> {
        let len = packed.debug.saturating_add(packed.other);
        Self::new(Parser::new(path.to_owned(), true), room, len)
    }

    fn new(parser: Parser, room: &Arc<Room>, len: u64) -> Box<Self> {
        Box::new(Self { parser, room: Arc::clone(room), len, taken: None })
    }
}

impl NameSource for Roomy {
    fn resolve(&mut self, outline: &Outline, svmas: &[u64]) -> Option<Vec<Option<Resolved>>> {
        self.taken.get_or_insert_with(|| self.room.take(self.len)).as_ref()?;
        self.parser.resolve(outline, svmas)
    }

    fn lack(&self) -> Option<String> {
        matches!(self.taken, Some(None)).then(|| self.room.lack())
    }
}
