//! Frames: the unit of writing, of checksums and of compression.
//!
//! A frame is a header, three sections and a trailer. The sections are the directory of its blocks,
//! the block of thread-neutral objects, and the blocks of threads; each is compressed and has its
//! checksum for itself, so that a reader takes what it needs. The header says which file it belongs
//! to (salt) and where in it (its own offset), so that old bytes of another file or of another
//! place never pass for a frame.
//!
//! # Invariants
//! - The checksums cover every byte of a frame but the trailer, which repeats what the header says.

use super::bytes::{Cursor, Malformed, Parsed, put_u32, put_u32s, put_u64s};
use super::checkpoint::BlockEntry;
use super::codec::{Codec, Part};
use super::pack;
use super::{FRAME_MAGIC, MAX_FRAME_BYTES, NO_THREAD};

/// Bytes of a frame's header.
pub(super) const HEADER_BYTES: usize = 104;
/// Bytes of a frame's trailer: its length and its header's checksum once more.
pub(super) const TRAILER_BYTES: usize = 8;
/// Largest stored section: zstd adds less than 1/128 to what cannot be compressed.
const MAX_STORED_BYTES: u32 = (MAX_FRAME_BYTES + MAX_FRAME_BYTES / 128 + 1024) as u32;
/// How many times larger than stored a section may be,
const MAX_RATIO: u64 = 1024;
/// unless it is smaller than this: equal samples compress without end.
const RATIO_FREE_BYTES: u32 = 4 << 20;
/// Set in the flags of the frame that ends a complete file.
pub(super) const LAST: u8 = 1;

/// Sizes and checksum of a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Section {
    /// Bytes in the file.
    pub(super) stored: u32,
    /// Bytes when decoded.
    pub(super) bytes: u32,
    /// CRC-32 of the stored bytes.
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
    /// In the order of [`Part`], as in the file.
    pub(super) sections: [Section; 3],
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
        for Section { stored, bytes, crc } in self.sections {
            put_u32s(&mut out, [stored, bytes, crc]);
        }
        put_u32s(&mut out, [self.blocks, self.samples]);
        put_u64s(&mut out, [self.first_ns, self.last_ns]);
        let crc = crc32fast::hash(&out);
        put_u32(&mut out, crc);
        out
    }

    /// Its checksum.
    pub(super) fn crc(&self) -> u32 {
        let encoded = self.encode();
        Cursor::new(&encoded[HEADER_BYTES - 4..]).u32().unwrap_or_default()
    }

    /// Reads a header and checks all that it says about itself.
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Parsed<Self> {
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
            _ => return bad("a frame has a codec that does not exist"),
        };
        let flags = cursor.u8()?;
        cursor.u16()?;
        let mut sections = [Section::default(); 3];
        for section in &mut sections {
            *section = Section { stored: cursor.u32()?, bytes: cursor.u32()?, crc: cursor.u32()? };
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
        let payload = u64::from(header.section(Part::Neutral).bytes)
            + u64::from(header.section(Part::Points).bytes);
        if payload > MAX_FRAME_BYTES as u64 { bad("a frame is too large") } else { Ok(header) }
    }

    /// A section's sizes.
    pub(super) fn section(&self, part: Part) -> Section {
        self.sections[part as usize]
    }

    /// Where a section lies in the file: its offset.
    pub(super) fn section_offset(&self, part: Part) -> u64 {
        let before = self.sections[..part as usize].iter().map(|it| u64::from(it.stored));
        self.offset + HEADER_BYTES as u64 + before.sum::<u64>()
    }

    /// Bytes of all stored sections.
    pub(super) fn body_bytes(&self) -> u64 {
        self.sections.iter().map(|section| u64::from(section.stored)).sum()
    }

    /// Bytes of the whole frame.
    pub(super) fn total_bytes(&self) -> u64 {
        self.body_bytes() + (HEADER_BYTES + TRAILER_BYTES) as u64
    }

    /// Bytes of the decoded payload: the neutral block and the blocks of threads behind it.
    pub(super) fn payload_bytes(&self) -> usize {
        self.section(Part::Neutral).bytes as usize + self.section(Part::Points).bytes as usize
    }

    /// The position of a byte of the decoded payload: its offset in the file if nothing is
    /// compressed, else the frame's offset shifted by 24 bits plus the offset in the payload.
    pub(super) fn position(&self, at: usize) -> u64 {
        let at = at as u64;
        match self.codec {
            Codec::Plain => self.section_offset(Part::Neutral) + at,
            Codec::Zstd | Codec::Columns => (self.offset << 24).saturating_add(at),
        }
    }

    /// Checks and decodes a section.
    pub(super) fn expand(&self, part: Part, stored: &[u8]) -> Parsed<Vec<u8>> {
        let section = self.section(part);
        if stored.len() != section.stored as usize || crc32fast::hash(stored) != section.crc {
            return Err(Malformed { at: 0, what: "the checksum of a frame is wrong" });
        }
        pack::unpack(self.codec.of(part), stored, section.bytes as usize)
    }

    /// The blocks of a directory with their offsets in the payload. They lie back to back.
    pub(super) fn blocks(&self, directory: &[u8]) -> Parsed<Vec<(usize, BlockEntry)>> {
        let mut cursor = Cursor::new(directory);
        let mut blocks = Vec::new();
        let mut at = 0;
        for place in 0..self.blocks {
            let entry = BlockEntry::decode(&mut cursor)?;
            let neutral = self.section(Part::Neutral).bytes;
            if (entry.stream == NO_THREAD) != (place == 0 && neutral > 0) {
                return cursor.fail("a block of thread-neutral objects lies at the wrong place");
            }
            if entry.stream == NO_THREAD && entry.bytes != neutral {
                return cursor.fail("a block has another size than its section");
            }
            let end = at + entry.bytes as usize;
            if end > self.payload_bytes() {
                return cursor.fail("a block reaches beyond its frame");
            }
            blocks.push((at, entry));
            at = end;
        }
        if !cursor.is_at_end() {
            return cursor.fail("a directory has bytes left over");
        }
        Ok(blocks)
    }
}

impl Section {
    fn check(self) -> Parsed<()> {
        let Self { stored, bytes, .. } = self;
        if stored > MAX_STORED_BYTES || bytes > MAX_FRAME_BYTES as u32 {
            return Err(Malformed { at: 0, what: "a frame is too large" });
        }
        let is_bomb = u64::from(bytes) > u64::from(stored) * MAX_RATIO && bytes > RATIO_FREE_BYTES;
        if is_bomb {
            return Err(Malformed { at: 0, what: "a frame is compressed beyond reason" });
        }
        Ok(())
    }
}

/// A frame that was read, verified and decoded.
#[derive(Debug, Clone)]
pub(super) struct Frame {
    pub(super) header: FrameHeader,
    pub(super) directory: Vec<u8>,
    /// The neutral block and the blocks of threads behind it.
    pub(super) payload: Vec<u8>,
}

impl Frame {
    /// Checks and decodes the body (all sections) that belongs to `header`.
    pub(super) fn decode(header: FrameHeader, body: &[u8]) -> Parsed<Self> {
        let short = Malformed { at: 0, what: "the body of a frame has another length" };
        let mut rest = body;
        let mut next = |part| {
            let stored = header.section(part).stored as usize;
            let (section, behind) = rest.split_at_checked(stored).ok_or(short)?;
            rest = behind;
            header.expand(part, section)
        };
        let directory = next(Part::Directory)?;
        let mut payload = next(Part::Neutral)?;
        let points = next(Part::Points)?;
        if payload.is_empty() {
            payload = points;
        } else {
            payload.extend_from_slice(&points);
        }
        Ok(Self { header, directory, payload })
    }

    /// The blocks with their offsets in the payload. They lie back to back.
    pub(super) fn blocks(&self) -> Parsed<Vec<(usize, BlockEntry)>> {
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
            sections: [1, 4, 7].map(|n| Section { stored: n, bytes: n + 1, crc: n + 2 }),
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
            let section = |stored: &[u8]| Section {
                stored: stored.len() as u32,
                bytes: stored.len() as u32,
                crc: crc32fast::hash(stored),
            };
            for codec in [Codec::Plain, Codec::Zstd, Codec::Columns] {
                let sections = [section(directory), Section::default(), section(points)];
                let header = FrameHeader { codec, sections, blocks, ..header() };
                if let Ok(frame) = Frame::decode(header, &bytes) {
                    let _ = frame.blocks();
                }
            }
        }
    }
}
