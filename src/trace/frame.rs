//! Frames: the unit of writing, of checksums and of compression.
//!
//! A frame is a header, a directory of its blocks, a payload and a trailer. The header says which
//! file it belongs to (salt) and where in it (its own offset), so that old bytes of another file or
//! of another place never pass for a frame.
//!
//! # Invariants
//! - The checksums cover every byte of a frame but the trailer, which repeats what the header says.

use super::bytes::{Cursor, Malformed, Parsed, put_u32, put_u32s, put_u64, put_u64s};
use super::checkpoint::BlockEntry;
use super::{FRAME_MAGIC, MAX_FRAME_BYTES};

/// Bytes of a frame's header.
pub(super) const HEADER_BYTES: usize = 88;
/// Bytes of a frame's trailer: its length and its body's checksum once more.
pub(super) const TRAILER_BYTES: usize = 8;
/// Largest stored section: zstd adds less than 1/128 to what cannot be compressed.
const MAX_STORED_BYTES: u32 = (MAX_FRAME_BYTES + MAX_FRAME_BYTES / 128 + 1024) as u32;
/// Set in the flags of the frame that ends a complete file.
pub(super) const LAST: u8 = 1;

/// How the sections of a frame are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Codec {
    /// As they are.
    Plain = 0,
    /// As zstd frames.
    Zstd = 1,
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
    pub(super) directory_stored: u32,
    pub(super) directory_bytes: u32,
    pub(super) payload_stored: u32,
    pub(super) payload_bytes: u32,
    pub(super) blocks: u32,
    pub(super) samples: u32,
    pub(super) first_ns: u64,
    pub(super) last_ns: u64,
    pub(super) body_crc: u32,
}

impl FrameHeader {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES);
        put_u64s(&mut out, [FRAME_MAGIC, self.salt, self.offset, self.previous]);
        put_u32(&mut out, self.sequence);
        out.extend_from_slice(&[self.codec as u8, self.flags, 0, 0]);
        let words = [
            self.directory_stored,
            self.directory_bytes,
            self.payload_stored,
            self.payload_bytes,
            self.blocks,
            self.samples,
        ];
        put_u32s(&mut out, words);
        put_u64(&mut out, self.first_ns);
        put_u64(&mut out, self.last_ns);
        put_u32(&mut out, self.body_crc);
        let crc = crc32fast::hash(&out);
        put_u32(&mut out, crc);
        out
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
            _ => return bad("a frame has a codec that does not exist"),
        };
        let flags = cursor.u8()?;
        cursor.u16()?;
        let header = Self {
            salt,
            offset,
            previous,
            sequence,
            codec,
            flags,
            directory_stored: cursor.u32()?,
            directory_bytes: cursor.u32()?,
            payload_stored: cursor.u32()?,
            payload_bytes: cursor.u32()?,
            blocks: cursor.u32()?,
            samples: cursor.u32()?,
            first_ns: cursor.u64()?,
            last_ns: cursor.u64()?,
            body_crc: cursor.u32()?,
        };
        let too_large = header.directory_stored.max(header.payload_stored) > MAX_STORED_BYTES
            || header.directory_bytes.max(header.payload_bytes) > MAX_FRAME_BYTES as u32;
        if too_large { bad("a frame is too large") } else { Ok(header) }
    }

    /// Bytes of both stored sections.
    pub(super) fn body_bytes(&self) -> u64 {
        u64::from(self.directory_stored) + u64::from(self.payload_stored)
    }

    /// Bytes of the whole frame.
    pub(super) fn total_bytes(&self) -> u64 {
        self.body_bytes() + (HEADER_BYTES + TRAILER_BYTES) as u64
    }

    /// The position of a byte of the decoded payload: its offset in the file if nothing is
    /// compressed, else the frame's offset shifted by 24 bits plus the offset in the payload.
    pub(super) fn position(&self, at: usize) -> u64 {
        let at = at as u64;
        match self.codec {
            Codec::Plain => {
                self.offset + (HEADER_BYTES as u64) + u64::from(self.directory_stored) + at
            }
            Codec::Zstd => (self.offset << 24).saturating_add(at),
        }
    }
}

/// A frame that was read, verified and decoded.
#[derive(Debug, Clone)]
pub(super) struct Frame {
    pub(super) header: FrameHeader,
    pub(super) directory: Vec<u8>,
    pub(super) payload: Vec<u8>,
}

impl Frame {
    /// Checks and decodes the body (both sections) that belongs to `header`.
    pub(super) fn decode(header: FrameHeader, body: &[u8]) -> Parsed<Self> {
        let bad = |what| Err(Malformed { at: 0, what });
        if crc32fast::hash(body) != header.body_crc {
            return bad("the checksum of a frame is wrong");
        }
        let (directory, payload) = body.split_at(header.directory_stored as usize);
        Ok(Self {
            header,
            directory: expand(header.codec, directory, header.directory_bytes)?,
            payload: expand(header.codec, payload, header.payload_bytes)?,
        })
    }

    /// The blocks with their offsets in the payload. They lie back to back.
    pub(super) fn blocks(&self) -> Parsed<Vec<(usize, BlockEntry)>> {
        let mut cursor = Cursor::new(&self.directory);
        let mut blocks = Vec::new();
        let mut at = 0;
        for _ in 0..self.header.blocks {
            let entry = BlockEntry::decode(&mut cursor)?;
            let end = at + entry.bytes as usize;
            if end > self.payload.len() {
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

/// A stored section as it was.
fn expand(codec: Codec, stored: &[u8], bytes: u32) -> Parsed<Vec<u8>> {
    let bytes = bytes as usize;
    let bad = |what| Err(Malformed { at: 0, what });
    match codec {
        Codec::Plain if stored.len() == bytes => Ok(stored.to_vec()),
        Codec::Plain => bad("a plain section has two lengths"),
        Codec::Zstd => {
            // One byte more than it should be, so that a longer one is noticed.
            match zstd::bulk::decompress(stored, bytes + 1) {
                Ok(section) if section.len() == bytes => Ok(section),
                Ok(_) => bad("a compressed section has another length than its header says"),
                Err(_) => bad("a compressed section cannot be decompressed"),
            }
        }
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
            directory_stored: 2,
            directory_bytes: 3,
            payload_stored: 4,
            payload_bytes: 5,
            blocks: 6,
            samples: 7,
            first_ns: 8,
            last_ns: 9,
            body_crc: 10,
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
            for codec in [Codec::Plain, Codec::Zstd] {
                let header = FrameHeader {
                    codec,
                    directory_stored: split as u32,
                    directory_bytes: split as u32,
                    payload_stored: (bytes.len() - split) as u32,
                    payload_bytes: (bytes.len() - split) as u32,
                    blocks,
                    body_crc: crc32fast::hash(&bytes),
                    ..header()
                };
                if let Ok(frame) = Frame::decode(header, &bytes) {
                    let _ = frame.blocks();
                }
            }
        }
    }
}
