//! Joins columns into objects.

use super::super::bytes::{Malformed, ParseResult};
use super::{CALL, COLUMNS, FOOTER, GAP, OUTER_SITE, SAMPLE, SITE};
use super::{ENDS, SLACK, bytes_to, presence, shape, varint_bytes};

const BAD: Malformed = Malformed { at: 0, what: "the columns are inconsistent" };

/// Rebuilds the payload of `bytes` bytes from its columns. Each column is followed by [`SLACK`]
/// zeros.
pub(in super::super) fn join(columns: &[Vec<u8>; COLUMNS], bytes: usize) -> ParseResult<Vec<u8>> {
    join_steps(columns, bytes).ok_or(BAD)
}

fn join_steps(columns: &[Vec<u8>; COLUMNS], bytes: usize) -> Option<Vec<u8>> {
    let mut from = columns.each_ref().map(|bytes| Column { bytes, at: 0 });
    let mut to = PayloadBuffer { bytes: vec![0; bytes + SLACK], at: 0 };
    let mut presence = 0;
    while to.at < bytes {
        let shape = step(&mut from, &mut to, &mut presence)?;
        if shape & shape::END != 0 {
            break;
        }
    }
    // A column that was read into the zeros is past its end now.
    let used_up = from.iter().all(|column| column.at + SLACK == column.bytes.len());
    let PayloadBuffer { bytes: mut payload, at } = to;
    payload.truncate(bytes);
    (used_up && at == bytes).then_some(payload)
}

/// Writes the objects of a step and returns its shape.
#[inline(always)]
fn step(from: &mut [Column<'_>; COLUMNS], to: &mut PayloadBuffer, before: &mut u64) -> Option<u8> {
    let [shapes, closed, opened, locations, times, slots, rest] = from;
    let shape = shapes.byte()?;
    if closed.peek()? == 0 {
        closed.at += 1;
    } else {
        to.object(FOOTER, closed)?;
    }
    if shape & shape::GAP != 0 {
        to.object(GAP, rest)?;
        to.varint(rest)?;
    }
    if shape & shape::OUTER_SITES != 0 {
        for _ in 0..rest.value()? {
            to.object(OUTER_SITE, rest)?;
            to.varint(locations)?;
        }
    }
    to.object_if(shape & shape::SITE != 0, SITE, locations)?;
    to.objects(CALL, locations, opened.value()?)?;
    if shape & (shape::OTHERS | shape::END) == 0 {
        if shape & shape::PRESENCE != 0 {
            *before = rest.value()?;
        }
        to.sample(*before, [times, slots, rest])?;
    } else if shape & shape::OTHERS != 0 {
        let len = usize::try_from(rest.value()?).ok()?;
        to.copy(rest.take(len)?)?;
    }
    Some(shape)
}

/// A column and the read position in it.
struct Column<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Column<'a> {
    #[inline(always)]
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    #[inline(always)]
    fn byte(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    /// Returns the next eight bytes.
    #[inline(always)]
    fn word(&self) -> Option<u64> {
        self.bytes.get(self.at..)?.first_chunk().map(|chunk| u64::from_le_bytes(*chunk))
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(len)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    #[inline(always)]
    fn value(&mut self) -> Option<u64> {
        let first = self.byte()?;
        if first < 0x80 {
            return Some(first.into());
        }
        let mut value = u64::from(first & 0x7f);
        for shift in (7..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }
}

/// The payload that is being written, with [`SLACK`] spare bytes at its end.
struct PayloadBuffer {
    bytes: Vec<u8>,
    at: usize,
}

impl PayloadBuffer {
    /// Writes the lowest `len` bytes of a word. The next write overwrites the rest of its eight
    /// bytes.
    #[inline(always)]
    fn put(&mut self, word: u64, len: usize) -> Option<()> {
        *self.bytes.get_mut(self.at..)?.first_chunk_mut()? = word.to_le_bytes();
        self.at += len;
        Some(())
    }

    /// Writes a kind and copies the varint that follows it.
    #[inline(always)]
    fn object(&mut self, kind: u8, from: &mut Column<'_>) -> Option<()> {
        let word = from.word()?;
        let len = varint_bytes(word);
        if (1..8).contains(&len) {
            from.at += len;
            return self.put(word << 8 | u64::from(kind), len + 1);
        }
        self.put(kind.into(), 1)?;
        self.varint(from)
    }

    /// Writes a kind and a varint if `is_present` is set, without a branch that could be
    /// mispredicted.
    #[inline(always)]
    fn object_if(&mut self, is_present: bool, kind: u8, from: &mut Column<'_>) -> Option<()> {
        let word = from.word()?;
        let len = varint_bytes(word);
        if !(1..8).contains(&len) {
            return if is_present { self.object(kind, from) } else { Some(()) };
        }
        from.at += len * usize::from(is_present);
        self.put(word << 8 | u64::from(kind), (len + 1) * usize::from(is_present))
    }

    /// Writes `count` kinds, each with a varint; this is most of a payload. It writes two objects
    /// at a time: the position of a varint depends on the length of the previous one, which takes
    /// longer to find than to copy. It does not branch on a single last object, since the branch
    /// would be unpredictable.
    #[inline(always)]
    fn objects(&mut self, kind: u8, from: &mut Column<'_>, count: u64) -> Option<()> {
        let mut left = count;
        while left > 0 {
            let word = from.word()?;
            let ends = !word & ENDS;
            let later_ends = ends & ends.wrapping_sub(1);
            if later_ends == 0 {
                self.object(kind, from)?;
                left -= 1;
                continue;
            }
            // Both end within the eight bytes, so the first has at most seven.
            let (first, both) = (bytes_to(ends), bytes_to(later_ends));
            let to: &mut [u8; 16] = self.bytes.get_mut(self.at..)?.first_chunk_mut()?;
            let (kind, second) = (u64::from(kind), word >> (8 * first));
            to[..8].copy_from_slice(&(word << 8 | kind).to_le_bytes());
            to[first + 1..first + 9].copy_from_slice(&(second << 8 | kind).to_le_bytes());
            let (read, written) = if left == 1 { (first, first + 1) } else { (both, both + 2) };
            from.at += read;
            self.at += written;
            left = left.saturating_sub(2);
        }
        Some(())
    }

    /// Copies a varint.
    #[inline(always)]
    fn varint(&mut self, from: &mut Column<'_>) -> Option<()> {
        let word = from.word()?;
        let len = varint_bytes(word);
        if len > 0 {
            from.at += len;
            return self.put(word, len);
        }
        // A varint of 9 or 10 bytes.
        let rest = from.bytes.get(from.at + 8..)?;
        let len = 9 + usize::from(*rest.first()? >= 0x80);
        self.copy(from.take(len)?)
    }

    fn copy(&mut self, bytes: &[u8]) -> Option<()> {
        let end = self.at.checked_add(bytes.len())?;
        self.bytes.get_mut(self.at..end)?.copy_from_slice(bytes);
        self.at = end;
        Some(())
    }

    /// Writes a sample with its fields from `[times, slots, rest]`.
    #[inline(always)]
    fn sample(&mut self, presence: u64, from: [&mut Column<'_>; 3]) -> Option<()> {
        let [times, slots, rest] = from;
        if presence < 0x80 {
            self.put(presence << 8 | u64::from(SAMPLE), 2)?;
        } else {
            self.put(SAMPLE.into(), 1)?;
            self.put_value(presence)?;
        }
        self.varint(times)?;
        if presence & presence::SLOT != 0 {
            self.varint(slots)?;
        }
        if presence & !presence::SLOT == 0 {
            return Some(());
        }
        for _ in 0..presence::before_tags(presence) {
            self.varint(rest)?;
        }
        if presence & presence::TAGS != 0 {
            let mask = Column { ..*rest }.value()?;
            for _ in 0..=mask.count_ones() {
                self.varint(rest)?;
            }
        }
        for _ in 0..presence::after_tags(presence) {
            self.varint(rest)?;
        }
        Some(())
    }

    #[inline(always)]
    fn put_value(&mut self, mut value: u64) -> Option<()> {
        while value >= 0x80 {
            self.put(value & 0x7f | 0x80, 1)?;
            value >>= 7;
        }
        self.put(value, 1)
    }
}
