//! Index files with valid checksums and invalid cells, for tests.

use super::cell::{CELL_BYTES, RawCell};
use super::pages::{PAGE_BYTES, TAIL_BYTES};
use super::sorted::{self, TABLES_AT};
use crate::trace::kind::Kind;

/// Recomputes all checksums of an index whose bytes were edited. The form and the size must be
/// unchanged, and the seal of a sorted index must be in its place.
pub(in crate::trace) fn reseal(bytes: &mut Vec<u8>) {
    let form = bytes.get(TABLES_AT as usize).copied();
    if form == Some(Kind::Table as u8) {
        let seal_at = bytes.len() - TAIL_BYTES as usize;
        let end = RawCell::decode(&bytes[seal_at..]).start as usize;
        let checksums: Vec<_> = bytes[..end].chunks(PAGE_BYTES).map(crc32fast::hash).collect();
        bytes.truncate(end);
        bytes.extend_from_slice(&sorted::tail(end as u64, &checksums));
        return;
    }
    let mut at = TABLES_AT as usize;
    while bytes.get(at).copied() == Some(Kind::Group as u8) {
        let cells = RawCell::decode(&bytes[at..]).end;
        let size = cells.saturating_add(1).saturating_mul(CELL_BYTES as u64);
        let end = size.saturating_add(at as u64);
        if end > bytes.len() as u64 {
            break;
        }
        let group = &mut bytes[at..end as usize];
        group[1..5].fill(0);
        let crc = crc32fast::hash(group);
        group[1..5].copy_from_slice(&crc.to_be_bytes());
        at = end as usize;
    }
}

/// Returns the offsets of all cells of an index, starting with those of the identity.
pub(in crate::trace) fn cells(bytes: &[u8]) -> impl Iterator<Item = usize> + use<> {
    let cells = (bytes.len() - crate::trace::HEADER_BYTES) / CELL_BYTES;
    (0..cells).map(|n| crate::trace::HEADER_BYTES + n * CELL_BYTES)
}

/// Writes one field of the cell at `at`: 0 is the kind, 1 the id, 2 the start, 3 the end.
pub(in crate::trace) fn set(bytes: &mut [u8], at: usize, field: usize, value: u64) {
    let (from, to) = [(0, 1), (1, 5), (5, 13), (13, 21)][field];
    bytes[at + from..at + to].copy_from_slice(&value.to_be_bytes()[8 - (to - from)..]);
}
