//! Consecutive times of a trace, each with as much data as the reader's caches hold.
//!
//! Reading all threads of one slice, then all of the next, decodes each frame once or twice,
//! however many threads have blocks in it. Reading one thread after the other decodes it once for
//! each.

use super::fault::LazyResult;
use super::open_trace::OpenTrace;
use crate::trace::codec::SectionKind;

/// The decoded bytes of a slice: half of the cache for payloads.
const SLICE_BYTES: u64 = 4 << 20;

/// The times and the size of a frame's samples.
struct FrameTimes {
    first_ns: u64,
    last_ns: u64,
    bytes: u64,
}

/// Returns the first and the last time of each slice. Each time is in one slice.
pub(super) fn of(trace: &OpenTrace) -> LazyResult<Vec<(u64, u64)>> {
    let mut frames = Vec::new();
    for number in 0..trace.index.frame_count() {
        let header = trace.source.header(trace.index.frame(number)?.offset)?;
        if header.samples > 0 {
            let bytes = header.section(SectionKind::Points).bytes.into();
            let (first_ns, last_ns) = (header.first_ns, header.last_ns);
            frames.push(FrameTimes { first_ns, last_ns, bytes });
        }
    }
    Ok(slices(&frames))
}

fn slices(frames: &[FrameTimes]) -> Vec<(u64, u64)> {
    // The time of the first sample in a frame and all later ones.
    let mut earliest = vec![u64::MAX; frames.len() + 1];
    for (place, frame) in frames.iter().enumerate().rev() {
        earliest[place] = earliest[place + 1].min(frame.first_ns);
    }
    let (mut slices, mut from_ns, mut last_ns, mut bytes) = (Vec::new(), 0, 0, 0u64);
    let mut begin_ns = earliest[0];
    for (frame, later_ns) in frames.iter().zip(&earliest[1..]) {
        last_ns = frame.last_ns.max(last_ns);
        bytes = bytes.saturating_add(frame.bytes);
        // If the later frames have the same times, as of a trace that was collected, a slice would
        // need all of them.
        if bytes >= SLICE_BYTES && *later_ns > begin_ns && last_ns < u64::MAX {
            slices.push((from_ns, last_ns));
            (from_ns, begin_ns, bytes) = (last_ns + 1, last_ns + 1, 0);
        }
    }
    slices.push((from_ns, u64::MAX));
    slices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cover_all_times_once_and_follow_the_data() {
        let check = |frames: &[(u64, u64)], expected: &[(u64, u64)]| {
            let bytes = SLICE_BYTES / 2;
            let frames =
                frames.iter().map(|&(first_ns, last_ns)| FrameTimes { first_ns, last_ns, bytes });
            assert_eq!(slices(&frames.collect::<Vec<_>>()), expected);
        };
        check(&[], &[(0, u64::MAX)]);
        check(&[(10, 20)], &[(0, u64::MAX)]);
        let all = u64::MAX;
        check(&[(10, 20), (21, 30), (31, 40), (41, 50)], &[(0, 30), (31, 50), (51, all)]);
        // Frames that overlap a little.
        check(&[(10, 20), (18, 30), (29, 40), (39, 50)], &[(0, 30), (31, 50), (51, all)]);
        // One thread after the other.
        check(&[(10, 50), (10, 50), (11, 50), (10, 50)], &[(0, 50), (51, all)]);
        check(&[(10, 20), (10, 20), (10, 20), (30, 40)], &[(0, 20), (21, all)]);
        check(&[(10, all), (11, all), (12, all)], &[(0, all)]);
    }
}
