//! Splits objects into columns.

use super::super::bytes::{Cursor, put_varint};
use super::super::object::Record;
use super::{CALL, COLUMNS, FOOTER, GAP, OUTER_SITE, SAMPLE, SITE};
use super::{presence, shape, varint_bytes};

/// A payload in columns.
#[derive(Debug, Default)]
pub(in super::super) struct Columns([Vec<u8>; COLUMNS]);

impl Columns {
    /// Splits the objects of `payload` into columns. Returns false if an object is malformed or
    /// does not belong in a block of a thread; the columns are unusable then.
    pub(in super::super) fn split(&mut self, payload: &[u8]) -> bool {
        self.0.iter_mut().for_each(Vec::clear);
        let mut source = PayloadReader { bytes: payload, at: 0 };
        let mut presence = 0;
        while source.at < payload.len() {
            if self.step(&mut source, &mut presence).is_none() {
                return false;
            }
        }
        true
    }

    /// Returns the columns in their order.
    pub(in super::super) fn all(&self) -> &[Vec<u8>; COLUMNS] {
        &self.0
    }

    /// Splits the objects up to and including the next sample or other objects.
    fn step(&mut self, source: &mut PayloadReader<'_>, presence: &mut u64) -> Option<()> {
        let start = source.at;
        let mut shape = 0;
        let Self([shapes, closed, opened, locations, times, slots, rest]) = self;
        if source.takes(FOOTER) {
            // A zero means no footer.
            source.peek().filter(|first| *first != 0)?;
            source.copy(closed)?;
        } else {
            closed.push(0);
        }
        if source.takes(GAP) {
            shape |= shape::GAP;
            source.copy(rest)?;
            source.copy(rest)?;
        }
        if source.peek() == Some(OUTER_SITE) {
            shape |= shape::OUTER_SITES;
            put_varint(rest, source.clone().count_outer_sites()?);
            while source.takes(OUTER_SITE) {
                source.copy(rest)?;
                source.copy_location(locations)?;
            }
        }
        if source.takes(SITE) {
            shape |= shape::SITE;
            source.copy_location(locations)?;
        }
        let mut calls = 0;
        while source.takes(CALL) {
            source.copy_location(locations)?;
            calls += 1;
        }
        put_varint(opened, calls);
        shape |= if source.takes(SAMPLE) {
            source.copy_sample([times, slots, rest], presence)?
        } else if source.at == source.bytes.len() {
            shape::END
        } else {
            source.copy_others(rest)?;
            shape::OTHERS
        };
        shapes.push(shape);
        (source.at > start).then_some(())
    }
}

/// A payload and the read position in it. Reads return `None` for malformed bytes.
#[derive(Clone)]
struct PayloadReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl PayloadReader<'_> {
    #[inline(always)]
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// Returns whether the next object has this kind; if so, moves to its fields.
    #[inline(always)]
    fn takes(&mut self, kind: u8) -> bool {
        let is = self.peek() == Some(kind);
        self.at += usize::from(is);
        is
    }

    /// Returns the next eight bytes, with zeros after the end.
    #[inline(always)]
    fn word(&self) -> u64 {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        match rest.first_chunk() {
            Some(chunk) => u64::from_le_bytes(*chunk),
            None => {
                let mut chunk = [0; 8];
                chunk[..rest.len()].copy_from_slice(rest);
                u64::from_le_bytes(chunk)
            }
        }
    }

    /// Copies a varint unchanged.
    fn copy(&mut self, to: &mut Vec<u8>) -> Option<()> {
        let start = self.at;
        self.value()?;
        to.extend_from_slice(&self.bytes[start..self.at]);
        Some(())
    }

    /// Copies a varint of at most five bytes.
    #[inline(always)]
    fn copy_location(&mut self, to: &mut Vec<u8>) -> Option<()> {
        let word = self.word();
        let bytes = varint_bytes(word);
        if bytes == 0 || bytes > 5 || bytes > self.bytes.len() - self.at {
            return None;
        }
        // Written as eight bytes and then truncated: a copy of unknown length costs more.
        let len = to.len();
        to.extend_from_slice(&word.to_le_bytes());
        to.truncate(len + bytes);
        self.at += bytes;
        Some(())
    }

    /// Reads a varint in its shortest form.
    #[inline(always)]
    fn value(&mut self) -> Option<u64> {
        let first = self.peek()?;
        if first < 0x80 {
            self.at += 1;
            return Some(first.into());
        }
        let mut cursor = Cursor::new(self.bytes.get(self.at..)?);
        let value = cursor.varint().ok()?;
        self.at += cursor.at();
        Some(value)
    }

    fn count_outer_sites(mut self) -> Option<u64> {
        let mut sites = 0;
        while self.takes(OUTER_SITE) {
            self.value()?;
            self.value()?;
            sites += 1;
        }
        Some(sites)
    }

    /// Copies a sample's fields to `[times, slots, rest]` and returns its part of the step's shape.
    #[inline(always)]
    fn copy_sample(&mut self, to: [&mut Vec<u8>; 3], before: &mut u64) -> Option<u8> {
        let [times, slots, rest] = to;
        let word = self.value().filter(|word| word & !presence::ALL == 0)?;
        let mut shape = 0;
        if word != *before {
            shape = shape::PRESENCE;
            put_varint(rest, word);
            *before = word;
        }
        self.copy(times)?;
        if word & presence::SLOT != 0 {
            self.copy(slots)?;
        }
        for _ in 0..presence::before_tags(word) {
            self.copy(rest)?;
        }
        if word & presence::TAGS != 0 {
            let tags = self.clone().value()?.count_ones();
            for _ in 0..=tags {
                self.copy(rest)?;
            }
        }
        for _ in 0..presence::after_tags(word) {
            self.copy(rest)?;
        }
        Some(shape)
    }

    /// Copies the objects before the next object of a step, preceded by their length. A step
    /// without a sample may have no such objects.
    fn copy_others(&mut self, rest: &mut Vec<u8>) -> Option<()> {
        let start = self.at;
        while let Some(kind) = self.peek() {
            if (CALL..=GAP).contains(&kind) {
                break;
            }
            self.skip_other()?;
        }
        let others = self.bytes.get(start..self.at)?;
        put_varint(rest, others.len() as u64);
        rest.extend_from_slice(others);
        Some(())
    }

    /// Skips an object that belongs to no step.
    fn skip_other(&mut self) -> Option<()> {
        let mut cursor = Cursor::new(self.bytes.get(self.at..)?);
        let object = Record::decode(&mut cursor).ok()?;
        self.at += cursor.at();
        (!matches!(object, Record::Neutral(_))).then_some(())
    }
}
