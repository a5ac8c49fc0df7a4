//! Interleaves the managed frames of a stack with its native frames.
//!
//! Each native frame of an interpreter's loop runs a segment of managed frames: an entry frame,
//! which native code called, and the frames that it called without leaving the loop.
//!
//! Frames are counted from the root. The innermost frame of the loop may have no segment: the
//! handler may interrupt the loop before it has linked its first frame, or after it has unlinked
//! its last one. Counted from the leaf, the complete stack would then be shifted by one. (Measured
//! in 46 of 6,804 stacks of nine versions of Python; there was no other mismatch.)
//!
//! Since 3.12, Python frees what a frame used after it has unlinked the frame. The frame of the
//! loop then has a segment without frames ([`EMPTY`]). Perl calls parts of a sub so, such as the
//! block of a `sort`, which may call others.
//!
//! Before 3.12, the innermost frames may be missing if code of several interpreters runs on the
//! thread. Such a section says so ([`SectionEnd::Outer`]), and is counted from the root.
//!
//! Frames that may be those of another thread ([`UNPROVEN`]) are left out if the complete native
//! stack has fewer frames of the loop than there are segments.
//!
//! A library that switches stacks (greenlet) begins a list of its own: the outermost frames of the
//! loop then have no segments. More frames of the loop than segments, other than at the leaf, are
//! counted from the leaf.

use traceprof_abi::runtime::RUNTIMES_MAX;
use traceprof_abi::runtime::word::{EMPTY, ENTRY, ManagedFrame, Section, SectionEnd, UNPROVEN};

/// The number of innermost native frames, one of which is the loop's while it links a frame.
const LEAF_FRAMES: usize = 2;

/// A frame of the complete stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlacedFrame {
    /// The native frame at this position, counted from the leaf.
    Native(usize),
    /// A frame of the runtime with this number.
    Managed(u8, ManagedFrame),
}

/// The frames of one runtime, in segments.
struct ManagedSegments {
    runtime: u8,
    /// The managed frames, leaf first.
    frames: Vec<ManagedFrame>,
    /// Whether the segments are counted from the root.
    is_from_root: bool,
    /// Whether segments may be missing at the leaf.
    is_outer: bool,
}

impl ManagedSegments {
    fn of(section: &Section<'_>, is_native_complete: bool) -> Self {
        let is_outer = section.end == SectionEnd::Outer;
        let is_from_root = is_native_complete && (is_outer || section.end == SectionEnd::Root);
        let frames = section.frames().collect();
        Self { runtime: section.runtime, frames, is_from_root, is_outer }
    }

    /// Returns the number of segments; an incomplete one at the root counts.
    fn count(&self) -> usize {
        let entries = self.frames.iter().filter(|frame| frame.flags & ENTRY != 0).count();
        let is_cut = self.frames.last().is_some_and(|frame| frame.flags & ENTRY == 0);
        entries + usize::from(is_cut)
    }

    /// Leaves out frames of which the native frames, with this number of the loop's, do not prove
    /// that they are the thread's.
    fn drop_unproven(&mut self, loops: usize, is_native_complete: bool) {
        let is_unproven = |frame: &ManagedFrame| frame.flags & UNPROVEN != 0;
        if !self.frames.iter().any(is_unproven) {
            return;
        }
        if !is_native_complete || loops < self.count() {
            self.frames.retain(|frame| !is_unproven(frame));
        }
    }

    /// Removes the outermost segment, and calls `place` with its frames, root first.
    fn take(&mut self, mut place: impl FnMut(u8, ManagedFrame)) {
        let Some(first) = self.frames.pop() else { return };
        if first.flags & EMPTY == 0 {
            place(self.runtime, first);
        }
        while let Some(frame) = self.frames.pop_if(|frame| frame.flags & ENTRY == 0) {
            place(self.runtime, frame);
        }
    }
}

/// Returns all frames, root first.
///
/// `natives` is the number of native frames, and `is_complete` whether they reach the thread's
/// root. `loop_of` returns the runtime in whose loop the native frame at a position is, counted
/// from the leaf.
pub(crate) fn interleave<'s>(
    (natives, is_complete): (usize, bool),
    loop_of: impl Fn(usize) -> Option<u8>,
    sections: impl Iterator<Item = Section<'s>>,
) -> Vec<PlacedFrame> {
    let mut segments: Vec<ManagedSegments> = sections
        .take(RUNTIMES_MAX)
        .map(|section| ManagedSegments::of(&section, is_complete))
        .collect();
    let all = segments.iter().map(|it| it.frames.len()).sum::<usize>() + natives;
    let mut placed = Vec::with_capacity(all);
    // Loop frames of each runtime that are still to come, which decides the alignment at the leaf.
    let mut loops: Vec<usize> = segments
        .iter()
        .map(|it| (0..natives).filter(|at| loop_of(*at) == Some(it.runtime)).count())
        .collect();
    for (it, loops) in segments.iter_mut().zip(&loops) {
        it.drop_unproven(*loops, is_complete);
        let innermost = (0..natives.min(LEAF_FRAMES)).any(|at| loop_of(at) == Some(it.runtime));
        it.is_from_root &= it.is_outer || *loops <= it.count() + usize::from(innermost);
    }
    for (it, loops) in segments.iter_mut().zip(&loops).filter(|(it, _)| !it.is_from_root) {
        // The outermost segments have no native frames, because these were cut.
        for _ in *loops..it.count() {
            it.take(|runtime, frame| placed.push(PlacedFrame::Managed(runtime, frame)));
        }
    }
    for at in (0..natives).rev() {
        placed.push(PlacedFrame::Native(at));
        let Some(number) = loop_of(at) else { continue };
        let Some(which) = segments.iter().position(|it| it.runtime == number) else { continue };
        let (it, left) = (&mut segments[which], &mut loops[which]);
        // Counted from the leaf, a cut section has no segment for the outermost frames of the loop.
        if it.is_from_root || *left <= it.count() {
            it.take(|runtime, frame| placed.push(PlacedFrame::Managed(runtime, frame)));
        }
        *left -= 1;
    }
    // The native frames of these were not recognised; they are the innermost ones.
    for it in &mut segments {
        while !it.frames.is_empty() {
            it.take(|runtime, frame| placed.push(PlacedFrame::Managed(runtime, frame)));
        }
    }
    placed
}

#[cfg(test)]
mod tests {
    use traceprof_abi::runtime::word::{header, sections};

    use super::*;

    /// Returns a stack, root first, as text. `natives` has a character for each native frame, leaf
    /// first: the number of a runtime in whose loop it is, or a letter. In `managed`, leaf first,
    /// an entry is in upper case, `-` is one without a frame, and a frame that may be another
    /// thread's follows `?`; of these the last is an entry.
    fn placed(natives: &str, is_complete: bool, managed: &[(&str, SectionEnd)]) -> String {
        let mut words = Vec::new();
        for (runtime, (frames, end)) in managed.iter().enumerate() {
            let names = frames.bytes().enumerate().filter(|(_, name)| *name != b'?');
            words.push(header(runtime, *end, names.clone().count()));
            let last = frames.rfind('?').map(|at| at + 1);
            words.extend(names.flat_map(|(at, name)| {
                let is_unproven = at > 0 && frames.as_bytes()[at - 1] == b'?';
                let flags = match name {
                    b'-' => ENTRY | EMPTY,
                    _ if is_unproven && Some(at) == last => ENTRY | UNPROVEN,
                    _ if is_unproven => UNPROVEN,
                    _ if name.is_ascii_uppercase() => ENTRY,
                    _ => 0,
                };
                ManagedFrame { object: u64::from(name), flags, position: 0, cookie: 0 }.words()
            }));
        }
        let at = |at: usize| natives.as_bytes()[at];
        let loop_of = |place: usize| at(place).is_ascii_digit().then(|| at(place) - b'0');
        let frames = interleave((natives.len(), is_complete), loop_of, sections(&words));
        let name = |frame: PlacedFrame| match frame {
            PlacedFrame::Native(place) => char::from(at(place)),
            PlacedFrame::Managed(_, frame) => char::from(frame.object as u8),
        };
        frames.into_iter().map(name).collect()
    }

    use SectionEnd::{Depth, Outer, Root};

    #[test]
    fn each_frame_of_the_loop_is_followed_by_its_segment() {
        assert_eq!(placed("x0yz", true, &[("baC", Root)]), "zy0Cabx");
        assert_eq!(placed("x0k0yz", true, &[("bAcD", Root)]), "zy0Dck0Abx");
        assert_eq!(placed("xyz", true, &[]), "zyx");
        assert_eq!(placed("", true, &[]), "");
    }

    #[test]
    fn a_leaf_in_the_loop_before_its_frame_is_linked_shifts_nothing() {
        assert_eq!(placed("0k0z", true, &[("aB", Root)]), "z0Bak0");
        assert_eq!(placed("0z", true, &[]), "z0");
    }

    #[test]
    fn outer_frames_of_the_loop_may_belong_to_another_list() {
        assert_eq!(placed("xy0k0z", true, &[("aB", Root)]), "z0k0Bayx");
        assert_eq!(placed("0k0q0z", true, &[("aB", Root)]), "z0q0k0Ba");
    }

    #[test]
    fn cut_stacks_are_aligned_at_the_leaf() {
        assert_eq!(placed("x0k", false, &[("aBcD", Root)]), "Dck0Bax");
        assert_eq!(placed("x0k0yz", true, &[("aBc", Depth)]), "zy0ck0Bax");
        assert_eq!(placed("x0k0y0z", true, &[("aBc", Depth)]), "z0y0ck0Bax");
        assert_eq!(placed("x", false, &[("aB", Root)]), "Bax", "no frame of the loop");
    }

    #[test]
    fn calls_whose_frame_has_ended_take_their_place() {
        // The call that has ended is `-`, in the middle and as the innermost one.
        assert_eq!(placed("x0k0q0z", true, &[("aB-D", Root)]), "z0Dq0k0Bax");
        assert_eq!(placed("xyyy0q0z", true, &[("-D", Root)]), "z0Dq0yyyx");
        // Others are called from it.
        assert_eq!(placed("xk0q0z", true, &[("ab-D", Root)]), "z0Dq0bakx");
    }

    #[test]
    fn innermost_frames_may_be_missing() {
        assert_eq!(placed("xyy0k0z", true, &[("aB", Outer)]), "z0Bak0yyx");
        assert_eq!(placed("xyy0k0z", true, &[("aB", Root)]), "z0k0Bayyx", "of another list");
    }

    #[test]
    fn frames_of_other_threads_are_left_out() {
        let both = [("?b?aC", Root)];
        assert_eq!(placed("x0k0yz", true, &both), "zy0Ck0abx", "as many as of the loop");
        assert_eq!(placed("xk0yz", true, &both), "zy0Ckx", "another thread's");
        assert_eq!(placed("x0k0yz", false, &both), "zy0k0Cx", "unknown");
    }

    #[test]
    fn frames_without_a_loop_are_the_innermost_ones() {
        assert_eq!(placed("xyz", true, &[("aBcD", Root)]), "zyxDcBa");
        assert_eq!(placed("x0z", true, &[("aBcD", Root)]), "z0DcxBa");
    }

    #[test]
    fn runtimes_have_segments_of_their_own() {
        assert_eq!(placed("x1y0z", true, &[("aB", Root), ("cD", Root)]), "z0Bay1Dcx");
        assert_eq!(placed("x1y0z", true, &[("aB", Root)]), "z0Bay1x");
    }
}
