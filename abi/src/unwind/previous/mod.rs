//! A thread's previous stack, and the walk that takes over what is unchanged of it.
//!
//! A step is a function of the frame that it leaves, of the tables, and of the stack words that it
//! reads. So a frame is kept with what was read on the way to it: the return address, which is
//! below its sp, and where its frame pointer comes from. A walk that reaches a frame of the
//! previous one, with the same tables, goes on as that did for as long as these words hold what
//! they held: they are read again, and no rule is looked up.
//!
//! # Invariants
//! - What is kept of a step is what it did read, observed at [`Memory`], not what a rule says. A
//!   step that read anything else, another stack or code is never taken over, nor is one from or to
//!   a frame of which more is known than pc, sp and frame pointer.
//! - The step that ends a walk is always taken.
//! - While a walk writes, nothing is kept: a walk that is left in the middle leaves nothing behind.
//! - Whatever the words hold, the walk ends within its bounds: the other side may scribble over
//!   them.
//!
//! - Frames are met on the last stack of the previous walk alone, and while it ends where it did:
//!   what a step may read depends on that end.
//!
//! # Does not
//! - ask whose stack it was: where frame, tables and words are the same, so is the rest;
//! - share anything: the words are their thread's own, and one walk uses them at a time.

mod again;
#[cfg(test)]
mod program;
#[cfg(test)]
mod tests;

use core::ops::Range;
use core::sync::atomic::compiler_fence;

use super::RETURN_ADDRESS;
use super::walk::{Memory, Place};
use crate::layout::DEPTH_MAX;
use crate::sync::{AtomicU64, Ordering};

pub use again::{Rest, Walked, unwind_on};

/// Words that are kept of a thread's previous stack, two cache lines of which are the head.
pub const WORDS: usize = 4096;
/// Words of the head.
const HEAD: usize = 16;
/// Frames that there is room for. Beyond the deepest stack these are the frames by which a stack
/// may grow from one walk to the next with its rest staying in place.
const FRAMES: usize = (WORDS - HEAD) / 3;
const _: () = assert!(HEAD + 3 * FRAMES == WORDS && FRAMES > DEPTH_MAX + 256);

/// The least depth at which stacks are kept. A step that is kept takes a third more instructions
/// than another, one that is taken over a sixth. Below this depth a walk gains nothing unless more
/// than half of its frames are taken over; usual ones have some 60 % of theirs in common with the
/// sample before.
const DEPTH_LEAST: u64 = 8;

/// Words of the head.
mod head {
    /// Generation of the snapshot that the stack was unwound with, or 0 if none is kept.
    pub(super) const GENERATION: usize = 0;
    /// Upper bound of the last stack that the walk was on.
    pub(super) const HI: usize = 1;
    /// First frame of the walk that is on that stack.
    pub(super) const FIRST: usize = 2;
    /// One past the last frame.
    pub(super) const END: usize = 3;
    /// Depth of the previous walk, or 0 if there was none.
    pub(super) const DEPTH: usize = 4;
}

/// Bits of a link that say where the frame pointer was read from.
const FROM_BITS: u32 = 11;
/// Such bits: the step to the frame cannot be taken over.
const UNLINKED: u64 = 0;
/// Such bits: the frame pointer was not read. Greater ones are its distance below sp, in words, and
/// this.
const NOT_READ: u64 = 1;
/// Greatest value of these bits.
const FROM_MAX: u64 = (1 << FROM_BITS) - 1;
/// One past the greatest sp that a link has room for.
const SP_END: u64 = 1 << (64 - FROM_BITS + 3);

/// A thread's previous stack.
#[derive(Debug, Clone, Copy)]
pub struct Previous<'a> {
    head: &'a [AtomicU64; HEAD],
    /// Frame words, as [`super::unwind`] stores them.
    frames: &'a [AtomicU64; FRAMES],
    /// The frames' frame pointers.
    fps: &'a [AtomicU64; FRAMES],
    /// The frames' stack pointers, which are multiples of 8, shifted up by [`FROM_BITS`] - 3, and
    /// where the frame pointer was read. 0 for a frame of which more is known.
    links: &'a [AtomicU64; FRAMES],
    /// A stack is not kept if the one before it was less deep.
    least: u64,
}

impl<'a> Previous<'a> {
    /// Takes the [`WORDS`] words of a thread. Zeroes are no stack.
    pub fn new(words: &'a [AtomicU64]) -> Option<Self> {
        let (head, rest) = words.split_first_chunk()?;
        let (frames, rest) = rest.split_first_chunk()?;
        let (fps, rest) = rest.split_first_chunk()?;
        Some(Self { head, frames, fps, links: rest.first_chunk()?, least: DEPTH_LEAST })
    }

    /// The same, where stacks are kept however shallow they are: for tests.
    pub fn of_any_depth(self) -> Self {
        Self { least: 0, ..self }
    }

    /// The frame words of a walk, leaf first.
    pub fn frames(self, walked: &Walked) -> &'a [AtomicU64] {
        let end = walked.start.wrapping_add(walked.unwound.depth);
        self.frames.get(walked.start..end).unwrap_or(&[])
    }

    /// Forgets the stack.
    pub fn forget(self) {
        // Relaxed: the thread's own.
        self.head[head::GENERATION].store(0, Ordering::Relaxed);
    }

    /// The frames on the last stack of the previous walk and that stack's upper bound, if the
    /// tables are still those; and forgets them.
    fn take(self, generation: u64) -> Option<(Range<usize>, u64)> {
        // Relaxed on all: the thread's own.
        let load = |number: usize| self.head[number].load(Ordering::Relaxed);
        let is_known = load(head::GENERATION) == generation && generation != 0;
        let frames = load(head::FIRST) as usize..(load(head::END) as usize).min(FRAMES);
        self.forget();
        // The compiler alone could move what is written from now on in front of this.
        compiler_fence(Ordering::SeqCst);
        is_known.then_some((frames, load(head::HI)))
    }

    fn keep(self, generation: u64, frames: Range<usize>, hi: u64) {
        // Relaxed on all: the thread's own.
        let store = |number: usize, word: u64| self.head[number].store(word, Ordering::Relaxed);
        store(head::FIRST, frames.start as u64);
        store(head::END, frames.end as u64);
        store(head::HI, hi);
        compiler_fence(Ordering::SeqCst);
        store(head::GENERATION, generation);
    }

    #[inline]
    fn link(self, at: usize) -> u64 {
        // Relaxed here and below: the thread's own.
        self.links.get(at).map_or(0, |link| link.load(Ordering::Relaxed))
    }

    #[inline]
    fn pc(self, at: usize) -> u64 {
        let word = self.frames.get(at).map_or(0, |word| word.load(Ordering::Relaxed));
        word & !RETURN_ADDRESS
    }

    #[inline]
    fn place(self, at: usize) -> Place {
        let fp = self.fps.get(at).map_or(0, |fp| fp.load(Ordering::Relaxed));
        Place { sp: sp_of(self.link(at)), fp }
    }

    #[inline]
    fn write(self, at: usize, word: u64, fp: u64, link: u64) {
        let places = (self.frames.get(at), self.fps.get(at), self.links.get(at));
        if let (Some(frame), Some(frame_pointer), Some(place)) = places {
            frame.store(word, Ordering::Relaxed);
            frame_pointer.store(fp, Ordering::Relaxed);
            place.store(link, Ordering::Relaxed);
        }
    }

    fn relink(self, at: usize, link: u64) {
        if let Some(word) = self.links.get(at) {
            word.store(link, Ordering::Relaxed);
        }
    }

    /// Copies frames; `to` may lie within `from`.
    fn copy(self, from: Range<usize>, to: usize) {
        for words in [self.frames, self.fps, self.links] {
            copy(words, from.clone(), to);
        }
    }

    /// The frame has this word and frame pointer.
    #[inline]
    fn holds(self, at: usize, word: u64, fp: u64) -> bool {
        let is = |words: &[AtomicU64; FRAMES], value: u64| {
            words.get(at).is_some_and(|word| word.load(Ordering::Relaxed) == value)
        };
        is(self.frames, word) && is(self.fps, fp)
    }

    /// One past the last frame that still follows the first: up to there, every word that was read
    /// holds what it held.
    #[inline]
    fn unchanged(self, frames: Range<usize>, memory: &mut impl Memory) -> usize {
        let mut at = frames.start.wrapping_add(1);
        let (lo, hi) = memory.bounds();
        let mut floor = sp_of(self.link(frames.start));
        let of = |words: &'a [AtomicU64; FRAMES]| words.get(at..frames.end).unwrap_or(&[]);
        let words = of(self.frames).iter().zip(of(self.fps)).zip(of(self.links));
        if floor < lo || hi < 8 {
            return at;
        }
        for ((frame, fp), link) in words {
            // Relaxed on all: the thread's own.
            let link = link.load(Ordering::Relaxed);
            let sp = sp_of(link);
            // As a step reads from a frame that is not exact: nothing below its sp.
            let mut holds = |avma: u64, value: u64| {
                let is_within = floor <= avma && avma <= hi.wrapping_sub(8);
                is_within && memory.load(avma) == Some(value)
            };
            let is_same = match link & FROM_MAX {
                UNLINKED => false,
                NOT_READ => true,
                from => {
                    let distance = from.wrapping_sub(NOT_READ) << 3;
                    holds(sp.wrapping_sub(distance), fp.load(Ordering::Relaxed))
                }
            };
            let pc = frame.load(Ordering::Relaxed) & !RETURN_ADDRESS;
            if !is_same || !holds(sp.wrapping_sub(8), pc) {
                return at;
            }
            floor = sp;
            at = at.wrapping_add(1);
        }
        at
    }
}

/// Copies words to `to`, which may lie within `from`.
fn copy(words: &[AtomicU64], from: Range<usize>, to: usize) {
    let put = |(source, target): (&AtomicU64, &AtomicU64)| {
        // Relaxed on both: the thread's own.
        target.store(source.load(Ordering::Relaxed), Ordering::Relaxed);
    };
    let count = from.len();
    if let Some((low, high)) = words.split_at_checked(to)
        && let Some(source) = low.get(from.clone())
    {
        return source.iter().zip(high).for_each(put);
    }
    let [source, target] = [from.start, to].map(|start| words.get(start..).unwrap_or(&[]));
    let pairs = source.iter().zip(target).take(count);
    if to < from.start { pairs.for_each(put) } else { pairs.rev().for_each(put) }
}

#[inline]
fn sp_of(link: u64) -> u64 {
    link >> FROM_BITS << 3
}
