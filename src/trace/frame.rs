//! Frames, the units of writing, checksums and compression.
//!
//! A frame is a header, three sections and a trailer. The sections are the directory of its blocks,
//! the block of thread-neutral objects, and the blocks of threads. Each section is compressed and
//! has a checksum by itself, so a reader takes only what it needs. The header states the file
//! (salt) and its own offset, so stale bytes of another file or another offset never pass for a
//! frame.
//!
//! # Invariants
//! - The checksums cover every byte of a frame but the trailer, which repeats what the header says.

use super::bytes::{Cursor, Malformed, ParseResult, put_u32, put_u32s, put_u64s};
use super::checkpoint::BlockEntry;
use super::codec::{Codec, SectionKind};
use super::pack;
use super::{FRAME_MAGIC, MAX_FRAME_BYTES, NO_THREAD};

/// The size of a frame's header in bytes.
pub(super) const HEADER_BYTES: usize = 104;
/// The size of a frame's trailer in bytes: the frame's length and its header's checksum again.
pub(super) const TRAILER_BYTES: usize = 8;
/// The largest stored section: zstd adds less than 1/128 to incompressible data.
const MAX_STORED_BYTES: u32 = (MAX_FRAME_BYTES + MAX_FRAME_BYTES / 128 + 1024) as u32;
/// The largest ratio of decoded to stored bytes of a section above [`RATIO_FREE_BYTES`].
const MAX_RATIO: u64 = 1024;
/// The decoded size up to which any ratio is allowed: equal samples compress without bound.
const RATIO_FREE_BYTES: u32 = 4 << 20;
/// The reason for a frame whose end is missing.
pub(super) const CUT: &str = "the last frame is truncated";
/// The flag of the frame that ends a complete file.
pub(super) const LAST: u8 = 1;

/// Returns the trailer of a frame: its length and its header's checksum again.
pub(super) fn trailer(header: &FrameHeader, encoded: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(TRAILER_BYTES);
    put_u32(&mut out, header.total_bytes() as u32);
    out.extend_from_slice(&encoded[HEADER_BYTES - 4..]);
    out
}

/// The sizes and the checksum of a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct StoredSection {
    /// The stored bytes.
    pub(super) stored: u32,
    /// The decoded bytes.
    pub(super) bytes: u32,
    /// The CRC-32 of the stored bytes.
    pub(super) crc: u32,
}

/// The header of a frame, without magic and checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub(super) salt: u64,
    pub(super) offset: u64,
    pub(super) previous: u64,
    pub(super) sequence: u32,
    pub(super) codec: Codec,
    pub(super) flags: u8,
    /// The sections in the order of [`SectionKind`], as in the file.
    pub(super) sections: [StoredSection; 3],
    pub(super) blocks: u32,
    pub(super) samples: u32,
    pub(super) first_ns: u64,
    pub(super) last_ns: u64,
}

impl FrameHeader {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES);
        put_u64s(&mut out, [FRAME_MAGIC, self.salt, self.offset, self.previous]);
        put_u32(&mut out, self.sequence);
        out.extend_from_slice(&[self.codec as u8, self.flags, 0, 0]);
        for StoredSection { stored, bytes, crc } in self.sections {
            put_u32s(&mut out, [stored, bytes, crc]);
        }
        put_u32s(&mut out, [self.blocks, self.samples]);
        put_u64s(&mut out, [self.first_ns, self.last_ns]);
        let crc = crc32fast::hash(&out);
        put_u32(&mut out, crc);
        out
    }

    /// Returns the header's checksum.
    pub(super) fn crc(&self) -> u32 {
        let encoded = self.encode();
        Cursor::new(&encoded[HEADER_BYTES - 4..]).u32().unwrap_or_default()
    }

    /// Decodes a header and checks everything that it says about itself.
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> ParseResult<Self> {
        let bad = |what| Err(Malformed { at: 0, what });
        let mut cursor = Cursor::new(bytes);
        if cursor.u64()? != FRAME_MAGIC {
            return bad("there is no frame");
        }
        let (covered, _) = bytes.split_at(HEADER_BYTES - 4);
        let crc = Cursor::new(&bytes[HEADER_BYTES - 4..]).u32()?;
        if crc32fast::hash(covered) != crc {
            return bad("the checksum of a frame's header is wrong");
        }
        let (salt, offset, previous) = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
        let sequence = cursor.u32()?;
        let codec = match cursor.u8()? {
            0 => Codec::Plain,
            1 => Codec::Zstd,
            2 => Codec::Columns,
            _ => return bad("a frame has an unknown codec"),
        };
        let flags = cursor.u8()?;
        cursor.u16()?;
        let mut sections = [StoredSection::default(); 3];
        for section in &mut sections {
            *section =
                StoredSection { stored: cursor.u32()?, bytes: cursor.u32()?, crc: cursor.u32()? };
            section.check()?;
        }
        let header = Self {
            salt,
            offset,
            previous,
            sequence,
            codec,
            flags,
            sections,
            blocks: cursor.u32()?,
            samples: cursor.u32()?,
            first_ns: cursor.u64()?,
            last_ns: cursor.u64()?,
        };
        let payload = u64::from(header.section(SectionKind::Neutral).bytes)
            + u64::from(header.section(SectionKind::Points).bytes);
        if payload > MAX_FRAME_BYTES as u64 { bad("a frame is too large") } else { Ok(header) }
    }

    /// Returns the sizes and the checksum of a section.
    pub(super) fn section(&self, part: SectionKind) -> StoredSection {
        self.sections[part as usize]
    }

    /// Returns the offset of a section in the file.
    pub(super) fn section_offset(&self, part: SectionKind) -> u64 {
        let before = self.sections[..part as usize].iter().map(|it| u64::from(it.stored));
        self.offset + HEADER_BYTES as u64 + before.sum::<u64>()
    }

    /// Returns the number of bytes of all stored sections.
    pub(super) fn body_bytes(&self) -> u64 {
        self.sections.iter().map(|section| u64::from(section.stored)).sum()
    }

    /// Returns the number of bytes of the complete frame.
    pub(super) fn total_bytes(&self) -> u64 {
        self.body_bytes() + (HEADER_BYTES + TRAILER_BYTES) as u64
    }

    /// Returns the number of bytes of the decoded payload: the neutral block, then the blocks of
    /// threads.
    pub(super) fn payload_bytes(&self) -> usize {
        self.section(SectionKind::Neutral).bytes as usize
            + self.section(SectionKind::Points).bytes as usize
    }

    /// Returns the number of bytes of all decoded sections.
    pub(super) fn decoded_bytes(&self) -> u64 {
        self.sections.iter().map(|section| u64::from(section.bytes)).sum()
    }

    /// Returns the position of a byte of the decoded payload: its offset in the file if nothing is
    /// compressed, else the frame's offset shifted left by 24 bits plus the offset in the payload.
    pub(super) fn position(&self, at: usize) -> u64 {
        let at = at as u64;
        match self.codec {
            Codec::Plain => self.section_offset(SectionKind::Neutral) + at,
            Codec::Zstd | Codec::Columns => (self.offset << 24).saturating_add(at),
        }
    }

    /// Returns why the frame with this header is damaged, if it is. `head` is the header as it is
    /// stored, `stored` are the bytes after it. All readers decide by this whether a frame counts.
    pub(super) fn damage(&self, head: &[u8; HEADER_BYTES], stored: &[u8]) -> Option<&'static str> {
        let sections = (stored.len() as u64 + HEADER_BYTES as u64 == self.total_bytes())
            .then(|| stored.split_at(stored.len() - TRAILER_BYTES));
        let Some((mut rest, end)) = sections else { return Some(CUT) };
        if end != trailer(self, head) {
            return Some("the trailer of a frame is wrong");
        }
        for section in &self.sections {
            let (stored, tail) = rest.split_at(section.stored as usize);
            rest = tail;
            if crc32fast::hash(stored) != section.crc {
                return Some("the checksum of a frame is wrong");
            }
        }
        None
    }

    /// Checks and decodes a section.
    pub(super) fn expand(&self, part: SectionKind, stored: &[u8]) -> ParseResult<Vec<u8>> {
        let section = self.section(part);
        if stored.len() != section.stored as usize || crc32fast::hash(stored) != section.crc {
            return Err(Malformed { at: 0, what: "the checksum of a frame is wrong" });
        }
        pack::unpack(self.codec.of(part), stored, section.bytes as usize)
    }

    /// Returns the blocks of a directory with their offsets in the payload. The blocks are
    /// contiguous.
    pub(super) fn blocks(&self, directory: &[u8]) -> ParseResult<Vec<(usize, BlockEntry)>> {
        let mut cursor = Cursor::new(directory);
        let mut blocks = Vec::new();
        let mut at = 0;
        for place in 0..self.blocks {
            let entry = BlockEntry::decode(&mut cursor)?;
            let neutral = self.section(SectionKind::Neutral).bytes;
            if (entry.stream == NO_THREAD) != (place == 0 && neutral > 0) {
                return cursor.fail("a block of thread-neutral objects is in the wrong position");
            }
            if entry.stream == NO_THREAD && entry.bytes != neutral {
                return cursor.fail("a block of thread-neutral objects does not fill its section");
            }
            let end = at + entry.bytes as usize;
            if end > self.payload_bytes() {
                return cursor.fail("a block extends beyond its frame");
            }
            blocks.push((at, entry));
            at = end;
        }
        if !cursor.is_at_end() {
            return cursor.fail("a directory has trailing bytes");
        }
        Ok(blocks)
    }
}

impl StoredSection {
    fn check(self) -> ParseResult<()> {
        let Self { stored, bytes, .. } = self;
        if stored > MAX_STORED_BYTES || bytes > MAX_FRAME_BYTES as u32 {
            return Err(Malformed { at: 0, what: "a frame is too large" });
        }
        let is_bomb = u64::from(bytes) > u64::from(stored) * MAX_RATIO && bytes > RATIO_FREE_BYTES;
        if is_bomb {
            return Err(Malformed {
                at: 0,
                what: "the compression ratio of a frame is impossibly high",
            });
        }
        Ok(())
    }
}

/// A frame that was read, verified and decoded.
#[derive(Debug, Clone)]
pub(super) struct Frame {
    pub(super) header: FrameHeader,
    pub(super) directory: Vec<u8>,
    /// The neutral block, then the blocks of threads.
    pub(super) payload: Vec<u8>,
}

impl Frame {
    /// Checks and decodes the body (all sections) of the frame with this header.
    pub(super) fn decode(header: FrameHeader, body: &[u8]) -> ParseResult<Self> {
        let short = Malformed { at: 0, what: "the body of a frame has the wrong length" };
        let mut rest = body;
        let mut next = |part| {
            let stored = header.section(part).stored as usize;
            let (section, tail) = rest.split_at_checked(stored).ok_or(short)?;
            rest = tail;
            header.expand(part, section)
        };
        let directory = next(SectionKind::Directory)?;
        let mut payload = next(SectionKind::Neutral)?;
        let points = next(SectionKind::Points)?;
        if payload.is_empty() {
            payload = points;
        } else {
            payload.extend_from_slice(&points);
        }
        Ok(Self { header, directory, payload })
    }

    /// Returns the blocks with their offsets in the payload. The blocks are contiguous.
    pub(super) fn blocks(&self) -> ParseResult<Vec<(usize, BlockEntry)>> {
        self.header.blocks(&self.directory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header() -> FrameHeader {
        FrameHeader {
            salt: 1,
            offset: 16,
            previous: 0,
            sequence: 0,
            codec: Codec::Zstd,
            flags: LAST,
            sections: [1, 4, 7].map(|n| StoredSection { stored: n, bytes: n + 1, crc: n + 2 }),
            blocks: 10,
            samples: 11,
            first_ns: 12,
            last_ns: 13,
        }
    }

    #[test]
    fn a_header_survives_and_no_flipped_bit_does() {
        let bytes: [u8; HEADER_BYTES] = header().encode().try_into().unwrap();
        assert_eq!(FrameHeader::decode(&bytes), Ok(header()));
        for bit in 0..HEADER_BYTES * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(FrameHeader::decode(&flipped).is_err(), "bit {bit}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_sections_never_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            split in 0usize..200,
            blocks in 0u32..20,
        ) {
            let split = split.min(bytes.len());
            let (directory, points) = bytes.split_at(split);
            let section = |stored: &[u8]| StoredSection {
                stored: stored.len() as u32,
                bytes: stored.len() as u32,
                crc: crc32fast::hash(stored),
            };
            for codec in [Codec::Plain, Codec::Zstd, Codec::Columns] {
                let sections = [section(directory), StoredSection::default(), section(points)];
                let header = FrameHeader { codec, sections, blocks, ..header() };
                if let Ok(frame) = Frame::decode(header, &bytes) {
                    let _ = frame.blocks();
                }
            }
        }
    }
}
