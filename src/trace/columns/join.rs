//! From columns to objects.

use super::super::bytes::{Malformed, Parsed};
use super::{CALL, COLUMNS, FOOTER, GAP, OUTER_SITE, SAMPLE, SITE};
use super::{ENDS, SLACK, bytes_to, presence, shape, varint_bytes};

const BAD: Malformed = Malformed { at: 0, what: "columns do not fit together" };

/// The payload of `bytes` bytes that `columns` were split from. Each of them is followed by
/// [`SLACK`] zeros.
pub(in super::super) fn join(columns: &[Vec<u8>; COLUMNS], bytes: usize) -> Parsed<Vec<u8>> {
    join_steps(columns, bytes).ok_or(BAD)
}

fn join_steps(columns: &[Vec<u8>; COLUMNS], bytes: usize) -> Option<Vec<u8>> {
    let mut from = columns.each_ref().map(|bytes| Column { bytes, at: 0 });
    let mut to = Output { bytes: vec![0; bytes + SLACK], at: 0 };
    let mut presence = 0;
    while to.at < bytes {
        let shape = step(&mut from, &mut to, &mut presence)?;
        if shape & shape::END != 0 {
            break;
        }
    }
    // Who read into the zeros is behind the end now.
    let used_up = from.iter().all(|column| column.at + SLACK == column.bytes.len());
    let Output { bytes: mut payload, at } = to;
    payload.truncate(bytes);
    (used_up && at == bytes).then_some(payload)
}

/// Writes the objects of a step and gives its shape.
#[inline(always)]
fn step(from: &mut [Column<'_>; COLUMNS], to: &mut Output, before: &mut u64) -> Option<u8> {
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

/// A column and how far it was read.
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

    /// The next eight bytes.
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

/// What is being written, with [`SLACK`] bytes behind it.
struct Output {
    bytes: Vec<u8>,
    at: usize,
}

impl Output {
    /// Writes the lowest `len` bytes of a word, of 8. What is behind them is overwritten later.
    #[inline(always)]
    fn put(&mut self, word: u64, len: usize) -> Option<()> {
        *self.bytes.get_mut(self.at..)?.first_chunk_mut()? = word.to_le_bytes();
        self.at += len;
        Some(())
    }

    /// Writes a kind and copies a varint behind it.
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

    /// Does so if there is one, without a branch that could go wrong.
    #[inline(always)]
    fn object_if(&mut self, there: bool, kind: u8, from: &mut Column<'_>) -> Option<()> {
        let word = from.word()?;
        let len = varint_bytes(word);
        if !(1..8).contains(&len) {
            return if there { self.object(kind, from) } else { Some(()) };
        }
        from.at += len * usize::from(there);
        self.put(word << 8 | u64::from(kind), (len + 1) * usize::from(there))
    }

    /// Does so again and again: most of a payload. Two at a time, because where a varint lies
    /// depends on the length of the one before it, which takes longer than the copying. The last
    /// one is not told from a pair by a branch: nobody could predict it.
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
            // Both end within the eight bytes, so that the first has at most seven.
            let (first, both) = (bytes_to(ends), bytes_to(later_ends));
            let to: &mut [u8; 16] = self.bytes.get_mut(self.at..)?.first_chunk_mut()?;
            let (kind, behind) = (u64::from(kind), word >> (8 * first));
            to[..8].copy_from_slice(&(word << 8 | kind).to_le_bytes());
            to[first + 1..first + 9].copy_from_slice(&(behind << 8 | kind).to_le_bytes());
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
        // One of 9 or 10 bytes.
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
