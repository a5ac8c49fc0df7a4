//! Trace points in columns: the same bytes in an order that compresses better.
//!
//! In a payload, adjacent objects have unrelated fields. Columns put equal fields next to each
//! other, and kinds need no bytes: the objects form steps, each from one sample to the next, and a
//! few counts describe a step. Joining restores the exact bytes, so other readers never see
//! columns.
//!
//! # Invariants
//! - [`Columns::split`] refuses what [`join()`] would not restore exactly.
//! - [`join()`] returns exactly the requested number of bytes and allocates no more.

mod decode;
mod encode;
#[cfg(test)]
mod tests;

pub(super) use decode::join;
pub(super) use encode::Columns;

use super::kind::Kind;

/// The number of columns: shapes, closed calls, opened calls, locations, times, slots, rest.
pub(super) const COLUMNS: usize = 7;
/// The columns have at most this many times the bytes of their payload, plus [`COLUMNS`]: a
/// TRACEPOINT_SAMPLE of 3 bytes and a BLOCK_END of 1 byte take 9.
pub(super) const GROWTH: usize = 4;
/// The number of zeros after a column, so that eight bytes can be read at each position in it.
pub(super) const SLACK: usize = 16;

/// The bits of a step's shape.
mod shape {
    /// The step has a TRACEPOINT_SITE.
    pub(super) const SITE: u8 = 1;
    /// The step has a TRACEPOINT_GAP.
    pub(super) const GAP: u8 = 2;
    /// The step has TRACEPOINT_OUTER_SITEs.
    pub(super) const OUTER_SITES: u8 = 4;
    /// Its sample has other fields than the previous sample.
    pub(super) const PRESENCE: u8 = 8;
    /// The step ends with other objects, not with a sample.
    pub(super) const OTHERS: u8 = 16;
    /// The step ends with the payload.
    pub(super) const END: u8 = 32;
}

/// The bits of a sample's presence word that matter here.
mod presence {
    pub(super) const SLOT: u64 = 1;
    /// The only field with more than one varint.
    pub(super) const TAGS: u64 = 1 << 10;
    /// All bits, including those of reserved fields.
    pub(super) const ALL: u64 = (1 << 32) - 1;

    /// Returns the number of varints before the tags, without the slot.
    pub(super) fn before_tags(word: u64) -> u32 {
        (word & (TAGS - 1) & !SLOT).count_ones()
    }

    /// Returns the number of varints after the tags.
    pub(super) fn after_tags(word: u64) -> u32 {
        (word & ALL & !(TAGS | (TAGS - 1))).count_ones()
    }
}

const CALL: u8 = Kind::Call as u8;
const FOOTER: u8 = Kind::Footer as u8;
const SITE: u8 = Kind::Site as u8;
const OUTER_SITE: u8 = Kind::OuterSite as u8;
const SAMPLE: u8 = Kind::Sample as u8;
const GAP: u8 = Kind::Gap as u8;

/// The bits that are clear in the last byte of a varint, for eight bytes.
const ENDS: u64 = 0x8080_8080_8080_8080;

/// Returns the number of bytes up to the lowest set bit of `ends`, which has at least one.
#[inline(always)]
fn bytes_to(ends: u64) -> usize {
    ends.trailing_zeros() as usize / 8 + 1
}

/// Returns the length of a varint of at most eight bytes, or 0 for a longer one. `word` has the
/// next eight bytes, the first in the lowest bits.
#[inline(always)]
fn varint_bytes(word: u64) -> usize {
    let ends = !word & ENDS;
    if ends == 0 { 0 } else { bytes_to(ends) }
}
