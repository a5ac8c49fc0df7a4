//! The contents of sections, compressed or not.

use std::borrow::Cow;
use std::io::{self, Read};

use object::elf::{ELFCOMPRESS_ZLIB, ELFCOMPRESS_ZSTD, SHT_NOBITS};
use object::read::elf::{CompressionHeader, SectionHeader};
use object::{CompressedData, CompressionFormat};

use super::{Elf, LE};

impl<'a> Elf<'a> {
    /// Returns the address and the unpacked contents of a section by name. `None` if no section has
    /// the name, or if the contents exceed `len_max` bytes.
    pub fn contents(&self, name: &str, len_max: u64) -> Option<(u64, Cow<'a, [u8]>)> {
        let (_, header) = self.sections?.section_by_name(LE, name.as_bytes())?;
        if header.sh_type(LE) == SHT_NOBITS {
            return None;
        }
        let svma = header.sh_addr(LE);
        let Some((packed, at, len)) = header.compression(LE, self.bytes).ok()? else {
            let data = header.data(LE, self.bytes).ok()?;
            return (data.len() as u64 <= len_max).then_some((svma, Cow::Borrowed(data)));
        };
        let format = match packed.ch_type(LE) {
            ELFCOMPRESS_ZLIB => CompressionFormat::Zlib,
            ELFCOMPRESS_ZSTD => CompressionFormat::Zstandard,
            _ => return None,
        };
        let at = usize::try_from(at).ok()?;
        let data = self.bytes.get(at..at.checked_add(usize::try_from(len).ok()?)?)?;
        let uncompressed_size = packed.ch_size(LE);
        Some((svma, unpack(CompressedData { format, data, uncompressed_size }, len_max)?))
    }
}

/// Returns the unpacked contents of a section. `None` if they exceed `len_max` bytes, or differ
/// from the stated length.
pub fn unpack<'a>(packed: CompressedData<'a>, len_max: u64) -> Option<Cow<'a, [u8]>> {
    let CompressedData { format, data, uncompressed_size: len } = packed;
    match format {
        _ if len > len_max => None,
        CompressionFormat::None => Some(Cow::Borrowed(data)),
        CompressionFormat::Zlib => read(flate2::read::ZlibDecoder::new(data), len),
        CompressionFormat::Zstandard => read(zstd::Decoder::with_buffer(data).ok()?, len),
        _ => None,
    }
}

fn read<'a>(decoder: impl Read, len: u64) -> Option<Cow<'a, [u8]>> {
    let mut unpacked = Vec::new();
    unpacked.try_reserve_exact(usize::try_from(len).ok()?).ok()?;
    // One more byte shows that the contents are longer than stated.
    let mut decoder = decoder.take(len.saturating_add(1));
    let read: io::Result<usize> = decoder.read_to_end(&mut unpacked);
    (read.ok()? as u64 == len).then_some(Cow::Owned(unpacked))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn contents_of_another_length_than_stated_are_not_unpacked() {
        let text = [b'a'; 5000];
        let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        zlib.write_all(&text).unwrap();
        let zlib = (CompressionFormat::Zlib, zlib.finish().unwrap());
        let zstd = (CompressionFormat::Zstandard, zstd::encode_all(&text[..], 1).unwrap());
        for (format, data) in [zlib, zstd] {
            let unpack = |data, uncompressed_size, len_max| {
                unpack(CompressedData { format, data, uncompressed_size }, len_max)
            };
            assert_eq!(unpack(&data[..], 5000, 5000).as_deref(), Some(&text[..]));
            assert_eq!(unpack(&data[..], 5000, 4999), None, "longer than the limit");
            assert_eq!(unpack(&data[..], 5001, 9000), None, "shorter than stated");
            assert_eq!(unpack(&data[..], 4999, 9000), None, "longer than stated");
            assert_eq!(unpack(&data[..data.len() / 2], 5000, 9000), None, "cut off");
            assert_eq!(unpack(b"no such thing", 5000, 9000), None);
        }
    }
}
