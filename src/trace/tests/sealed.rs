//! Frames whose checksums are right and whose contents are not, with the index of the sound trace.

use super::crash::small_trace;
use super::scan::scan_bytes;
use super::*;
use crate::trace::frame::TRAILER_BYTES;
use crate::trace::frames::Frames;

/// The distance between the flipped bits. It is odd, so that all bits of bytes take part.
const BITS_APART: usize = 31;

/// Returns the file with a flipped bit in the stored sections of a frame, and the checksums that
/// this frame has then. `None` after the last bit.
fn flipped(data: &[u8], frame: usize, bit: usize) -> Option<Vec<u8>> {
    let mut frames = Frames::new(data, Path::new("data")).unwrap();
    let mut stored = frames.next_stored().unwrap().unwrap();
    for _ in 0..frame {
        stored = frames.next_stored().unwrap().unwrap();
    }
    let (mut header, mut body) = (stored.header, stored.body);
    *body.get_mut(bit / 8)? ^= 1 << (bit % 8);
    let mut rest = &body[..];
    for section in &mut header.sections {
        let (bytes, tail) = rest.split_at(section.stored as usize);
        (section.crc, rest) = (crc32fast::hash(bytes), tail);
    }
    let encoded = header.encode();
    let sealed = [&encoded[..], &body, &frame::trailer(&header, &encoded)].concat();
    assert_eq!(sealed.len() - frame::HEADER_BYTES - TRAILER_BYTES, body.len());
    let mut file = data.to_vec();
    let at = header.offset as usize;
    file[at..at + sealed.len()].copy_from_slice(&sealed);
    Some(file)
}

/// Reads everything as a view does. Returns the number of samples.
fn read(path: &Path) -> Result<u64, TraceError> {
    let trace = LazyTrace::open(path)?;
    let mut samples = 0;
    trace.for_each_sample_as_written(&Window::default(), &mut |_, _, _| samples += 1)?;
    trace.load_objects()?;
    Ok(samples)
}

/// Whether a reader that has no use for an object, or for the mark at the start of a block, need not
/// notice the error.
fn is_about_an_object(error: &TraceError) -> bool {
    let text = error.to_string();
    ["object", "inlined", "block does not begin", "varint"].iter().any(|word| text.contains(word))
}

/// Regression test of issue 21: with an index, `print` showed what `verify` called corrupt.
#[test]
fn streams_that_a_scan_refuses_are_not_shown_with_an_index() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.trace");
    let (data, index, ends) = small_trace(Compression::None);
    let (mut refused, mut shown) = (0, Vec::new());
    for journal in [false, true] {
        // Without its cells, the index is that of a recording that has just begun.
        let index = if journal { &index[..HEADER_BYTES] } else { &index[..] };
        for frame in 0..=ends.len() {
            let bits = (0..).step_by(BITS_APART);
            for (bit, file) in bits.map_while(|bit| Some((bit, flipped(&data, frame, bit)?))) {
                std::fs::write(&path, &file).unwrap();
                std::fs::write(index_path(&path), index).unwrap();
                let case = format!("journal {journal}, frame {frame}, bit {bit}");
                match (scan_bytes(&file, false), read(&path)) {
                    (Ok(scan), read) => assert_eq!(read.unwrap(), scan.samples, "{case}"),
                    (Err(_), Err(_)) => refused += 1,
                    // Objects are checked when they are used, not where they are.
                    (Err(error), Ok(_)) if journal && is_about_an_object(&error) => {}
                    (Err(error), Ok(_)) => shown.push(format!("{case}: {error}")),
                }
            }
        }
    }
    assert!(refused > 100, "{refused}");
    assert!(shown.is_empty(), "{} shown, {refused} refused: {shown:#?}", shown.len());
}
