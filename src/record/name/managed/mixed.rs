//! A stack of native and managed frames.

use traceprof_abi::runtime::word::{
    FrameFunction, FrameInPlace, FrameWord, ManagedFrame, SectionEnd, UNPROVEN, frames, sections,
    split,
};
use traceprof_abi::unwind::{RETURN_ADDRESS, lookup_avma};

use crate::record::name::managed::order::{PlacedFrame, interleave};
use crate::record::target::modules::{AddressMap, LoadedModule};

/// Whether a native frame only carries managed frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CarrierRole {
    /// The stack has no managed frames.
    None,
    /// Its functions decide, each by its name.
    ByName,
    /// It is below all managed frames: its functions decide, and those that start a thread only
    /// carry managed frames, too.
    Start,
    /// It only carries managed frames, whatever its functions are.
    Carrier,
}

/// The functions of the C library that start a program or a thread. A name that ends with `*`
/// stands for all names that begin so.
const STARTS: [&str; 6] =
    ["_start", "__libc_start_*", "clone*", "__clone*", "start_thread", "libc_start_main_*"];

impl CarrierRole {
    /// Returns whether a function in a frame of this role only carries managed frames. Its name is
    /// `None` if it has none.
    pub(crate) fn is_carrier(self, module: Option<&LoadedModule>, function: Option<&str>) -> bool {
        let is_by_name = || module.is_some_and(|module| module.is_carrier(function));
        match self {
            Self::None => false,
            Self::ByName => is_by_name(),
            Self::Start => is_by_name() || function.is_none_or(is_start),
            Self::Carrier => true,
        }
    }
}

/// Returns whether a function starts a program or a thread.
pub(crate) fn is_start(function: &str) -> bool {
    STARTS.iter().any(|start| match start.strip_suffix('*') {
        Some(prefix) => function.starts_with(prefix),
        None => function == *start,
    })
}

/// A frame of the native stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct NativeFrame {
    /// The frame word.
    pub(crate) word: u64,
    /// The function that a slot of the frame has.
    pub(crate) function: Option<FrameFunction>,
    /// Whether that may be the caller's, because the code has no frame yet or no longer.
    pub(crate) is_young: bool,
}

impl NativeFrame {
    /// Returns whether the frame has called another one.
    pub(crate) fn is_return(&self) -> bool {
        self.word & RETURN_ADDRESS != 0
    }
}

/// Returns the frames before the sections, root first, without frames in place.
pub(crate) fn native_frames(words: &[u64], addresses: &AddressMap) -> Vec<NativeFrame> {
    let natives: Vec<FrameWord> = frames(split(words).0).collect();
    let frame = |at: usize| native_frame(&natives, at, addresses);
    (0..natives.len()).rev().filter_map(frame).collect()
}

fn native_frame(natives: &[FrameWord], at: usize, addresses: &AddressMap) -> Option<NativeFrame> {
    let (word, function) = match *natives.get(at)? {
        FrameWord::Pc(word) => (word, None),
        FrameWord::WithFunction(word, function) => (word, Some(function)),
        FrameWord::InPlace { .. } => return None,
    };
    // A builtin without a frame may be called before its caller has one.
    let is_young = match natives {
        _ if at == 0 => true,
        [FrameWord::Pc(leaf), ..] if at == 1 => addresses.is_builtin(lookup_avma(*leaf)),
        _ => false,
    };
    Some(NativeFrame { word, function, is_young })
}

/// A frame of the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MixedFrame {
    /// A native frame, and whether it only carries managed frames.
    Native(NativeFrame, CarrierRole),
    /// A frame of the runtime with this number.
    Managed(u8, ManagedFrame),
    /// A frame in place of the runtime with this number.
    InPlace(u8, FrameInPlace),
}

/// Returns whether the thread has more frames of a runtime than there was room for. Those that may
/// be another thread's do not count.
pub(crate) fn is_cut(words: &[u64]) -> bool {
    sections(words).any(|section| {
        section.end == SectionEnd::Depth && section.frames().all(|it| it.flags & UNPROVEN == 0)
    })
}

/// Returns all frames of a stack, root first. `words` are its frame words, and `is_complete` tells
/// whether the native frames reach the thread's root.
pub(crate) fn mixed_frames(
    words: &[u64],
    is_complete: bool,
    addresses: &AddressMap,
) -> Vec<MixedFrame> {
    let natives: Vec<FrameWord> = frames(split(words).0).collect();
    let pc_of = |at: usize| match natives[at] {
        FrameWord::Pc(pc) | FrameWord::WithFunction(pc, _) => Some(lookup_avma(pc)),
        FrameWord::InPlace { .. } => None,
    };
    let loop_of = |at: usize| addresses.loop_at(pc_of(at)?);
    let placed = interleave((natives.len(), is_complete), loop_of, sections(words));
    let is_managed = |it: &PlacedFrame| matches!(it, PlacedFrame::Managed(..));
    let outermost = placed.iter().position(is_managed);
    let role = |at: usize, index: usize| {
        let is_start = outermost.is_some_and(|outermost| index < outermost) && is_complete;
        let is_trampoline = pc_of(at).is_some_and(|avma| addresses.is_trampoline(avma));
        match outermost {
            None => CarrierRole::None,
            Some(_) if loop_of(at).is_some() || is_trampoline => CarrierRole::Carrier,
            Some(_) if is_start => CarrierRole::Start,
            Some(_) => CarrierRole::ByName,
        }
    };
    let mixed = placed.into_iter().enumerate().filter_map(|(index, frame)| match frame {
        PlacedFrame::Managed(number, frame) => Some(MixedFrame::Managed(number, frame)),
        PlacedFrame::Native(at) => match natives[at] {
            FrameWord::InPlace { runtime, frame } => Some(MixedFrame::InPlace(runtime, frame)),
            FrameWord::Pc(_) | FrameWord::WithFunction(..) => {
                let frame = native_frame(&natives, at, addresses)?;
                Some(MixedFrame::Native(frame, role(at, index)))
            }
        },
    });
    mixed.collect()
}

#[cfg(test)]
mod tests {
    use traceprof_abi::runtime::word::header;

    use super::*;

    #[test]
    fn a_stack_is_cut_if_frames_of_its_own_are_missing() {
        let cut = |end, flags: &[u8]| {
            let mut words = vec![0x5000, header(0, end, flags.len())];
            for flags in flags {
                let (object, flags) = (0x7f00_0000_0010, *flags);
                words.extend(ManagedFrame { object, flags, position: 0, cookie: 1 }.words());
            }
            is_cut(&words)
        };
        assert!(cut(SectionEnd::Depth, &[0, 0]));
        assert!(!cut(SectionEnd::Root, &[0, 0]));
        assert!(!cut(SectionEnd::Depth, &[UNPROVEN, UNPROVEN]));
        assert!(!is_cut(&[0x5000]));
    }
}
