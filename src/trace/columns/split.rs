//! From objects to columns.

use super::super::bytes::{Cursor, put_varint};
use super::super::object::Record;
use super::{CALL, COLUMNS, FOOTER, GAP, OUTER_SITE, SAMPLE, SITE};
use super::{presence, shape, varint_bytes};

/// A payload in columns.
#[derive(Debug, Default)]
pub(in super::super) struct Columns([Vec<u8>; COLUMNS]);

impl Columns {
    /// Puts the objects of `payload` into columns. False if it has any that are malformed or not to
    /// be expected in a block of a thread; then the columns are of no use.
    pub(in super::super) fn split(&mut self, payload: &[u8]) -> bool {
        self.0.iter_mut().for_each(Vec::clear);
        let mut source = Source { bytes: payload, at: 0 };
        let mut presence = 0;
        while source.at < payload.len() {
            if self.step(&mut source, &mut presence).is_none() {
                return false;
            }
        }
        true
    }

    /// The columns in their order.
    pub(in super::super) fn all(&self) -> &[Vec<u8>; COLUMNS] {
        &self.0
    }

    /// Takes in what leads to the next sample or to other objects.
    fn step(&mut self, source: &mut Source<'_>, presence: &mut u64) -> Option<()> {
        let start = source.at;
        let mut shape = 0;
        let Self([shapes, closed, opened, locations, times, slots, rest]) = self;
        if source.takes(FOOTER) {
            // A zero says that there is none.
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

/// A payload and how far it was taken in. What is not as it should be is `None`.
#[derive(Clone)]
struct Source<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Source<'_> {
    #[inline(always)]
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// Whether the next object is of this kind; goes on to its fields if so.
    #[inline(always)]
    fn takes(&mut self, kind: u8) -> bool {
        let is = self.peek() == Some(kind);
        self.at += usize::from(is);
        is
    }

    /// The next eight bytes, with zeros behind the end.
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

    /// Copies a varint as it is.
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
        // Written whole and cut: a copy of unknown length would cost more.
        let len = to.len();
        to.extend_from_slice(&word.to_le_bytes());
        to.truncate(len + bytes);
        self.at += bytes;
        Some(())
    }

    /// The value of a varint in its shortest form.
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

    /// Copies a sample's fields to `[times, slots, rest]` and gives its part of the step's shape.
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

    /// Copies the objects up to the next that belongs to a step, with their length in front. There
    /// are none if a step has no sample.
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

    /// Goes behind an object that belongs to no step.
    fn skip_other(&mut self) -> Option<()> {
        let mut cursor = Cursor::new(self.bytes.get(self.at..)?);
        let object = Record::decode(&mut cursor).ok()?;
        self.at += cursor.at();
        (!matches!(object, Record::Neutral(_))).then_some(())
    }
}
