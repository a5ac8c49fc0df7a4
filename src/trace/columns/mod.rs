//! Trace points in columns: another order of the same bytes, which compresses better.
//!
//! In a payload objects alternate whose fields have nothing in common. In columns like lies beside
//! like, and kinds need no bytes: objects form steps, each what leads from one sample to the next,
//! and a step is told by a few counts. Joining gives back the very bytes, so that whoever reads
//! objects never sees columns.
//!
//! # Invariants
//! - [`Columns::split`] refuses what [`join()`] would not give back exactly.
//! - [`join()`] gives exactly as many bytes as it is told, and allocates for no other.

mod join;
mod split;
#[cfg(test)]
mod tests;

pub(super) use join::join;
pub(super) use split::Columns;

use super::kind::Kind;

/// Number of columns: shapes, calls closed, calls opened, locations, times, slots, the rest.
pub(super) const COLUMNS: usize = 7;
/// Columns have at most so many times the bytes of their payload, and [`COLUMNS`] more: a
/// TRACEPOINT_SAMPLE of 3 and a BLOCK_END of 1 take 9.
pub(super) const GROWTH: usize = 4;
/// Zeros behind a column, so that eight bytes can be read at each place in it.
pub(super) const SLACK: usize = 16;

/// Bits of a step's shape.
mod shape {
    /// It has a TRACEPOINT_SITE.
    pub(super) const SITE: u8 = 1;
    /// It has a TRACEPOINT_GAP.
    pub(super) const GAP: u8 = 2;
    /// It has TRACEPOINT_OUTER_SITEs.
    pub(super) const OUTER_SITES: u8 = 4;
    /// Its sample has other fields than the one before.
    pub(super) const PRESENCE: u8 = 8;
    /// It ends with other objects, not with a sample.
    pub(super) const OTHERS: u8 = 16;
    /// It ends with the payload.
    pub(super) const END: u8 = 32;
}

/// Bits of a sample's presence word that matter here.
mod presence {
    pub(super) const SLOT: u64 = 1;
    /// The field that is more than one varint.
    pub(super) const TAGS: u64 = 1 << 10;
    /// Reserved fields included.
    pub(super) const ALL: u64 = (1 << 32) - 1;

    /// Varints in front of the tags, without the slot.
    pub(super) fn before_tags(word: u64) -> u32 {
        (word & (TAGS - 1) & !SLOT).count_ones()
    }

    /// Varints behind the tags.
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

/// The bits that are clear in the last byte of a varint, in eight bytes.
const ENDS: u64 = 0x8080_8080_8080_8080;

/// Bytes up to the lowest one of `ends` that is set, which is there.
#[inline(always)]
fn bytes_to(ends: u64) -> usize {
    ends.trailing_zeros() as usize / 8 + 1
}

/// Bytes of a varint of at most eight bytes; its first eight are given, the first of them lowest. 0
/// if it is longer.
#[inline(always)]
fn varint_bytes(word: u64) -> usize {
    let ends = !word & ENDS;
    if ends == 0 { 0 } else { bytes_to(ends) }
}
