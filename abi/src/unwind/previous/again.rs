//! The walk that takes over from the one before.
//!
//! # Invariants
//! - What a step read is observed at [`Memory`]: no rule that is added can read anything unseen.

use core::ops::Range;

use super::super::tables::Snapshot;
use super::super::walk::{Lookup, Machine, Memory, Place, Resume, Unwound, unwind};
use super::super::{EndReason, RETURN_ADDRESS};
use super::{FRAMES, FROM_BITS, FROM_MAX, NOT_READ, Previous, SP_END, UNLINKED, head, sp_of};
use crate::layout::DEPTH_MAX;
use crate::sync::Ordering;

/// What a walk found, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Walked {
    /// Depth and end.
    pub unwound: Unwound,
    /// Where the frame words begin among those of [`Previous::frames`].
    pub(super) start: usize,
    /// Frames that were taken over.
    pub taken: usize,
    /// Why not more of them were.
    pub rest: Rest,
}

/// What became of the frames that were not taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// No frame was reached that is in the previous stack; or none above the last one taken over.
    Other,
    /// There is no previous stack: it was the first walk, or the tables have changed since.
    Unknown,
    /// A word that decided about the previous stack has changed since.
    Changed,
    /// This one is not kept, since the one before it is so shallow.
    Shallow,
    /// The stack that the walk ended on is another one, or ends elsewhere now.
    Moved,
}

/// The link of a frame that a step has led to. Where the step came from does not matter: none is
/// taken over but from a frame that has a link, too.
#[inline]
pub(super) fn link(place: Place, pc: u64, reads: &Reads) -> u64 {
    let Place { sp, fp } = place;
    if sp & 7 != 0 || sp >= SP_END {
        return 0;
    }
    let unlinked = sp >> 3 << FROM_BITS;
    let pc_read = (sp.wrapping_sub(8), pc);
    let from = match (reads.count, reads.first) {
        (1, [only, _]) if only == pc_read => NOT_READ,
        (2, [(at, value), last]) if last == pc_read && value == fp && at < sp => {
            // Both are multiples of 8.
            let from = (sp.wrapping_sub(at) >> 3).wrapping_add(NOT_READ);
            if from <= FROM_MAX { from } else { UNLINKED }
        }
        _ => UNLINKED,
    };
    unlinked | from
}

/// Reads of one step.
#[derive(Debug, Default)]
pub(super) struct Reads {
    /// How many there were; [`MANY`] if more is to be known of them than two loads.
    pub(super) count: u32,
    /// Address and value of the first and of the second, if there was one.
    pub(super) first: [(u64, u64); 2],
}

/// As a number of reads: more than can be kept.
pub(super) const MANY: u32 = 3;

/// Memory that notes what one step reads.
#[derive(Debug)]
pub(super) struct Observed<'m, M> {
    pub(super) memory: &'m mut M,
    pub(super) reads: Reads,
    /// The step has gone to another stack, or tried.
    pub(super) moved: bool,
}

impl<M: Memory> Memory for Observed<'_, M> {
    #[inline]
    fn load(&mut self, avma: u64) -> Option<u64> {
        let value = self.memory.load(avma);
        let place = self.reads.first.get_mut(self.reads.count as usize);
        match (value, place) {
            (Some(value), Some(place)) => {
                *place = (avma, value);
                self.reads.count = self.reads.count.wrapping_add(1);
            }
            _ => self.reads.count = MANY,
        }
        value
    }

    fn rebound(&mut self, sp: u64) -> bool {
        self.reads.count = MANY;
        self.moved = true;
        self.memory.rebound(sp)
    }

    fn bounds(&self) -> (u64, u64) {
        self.memory.bounds()
    }

    fn load_code(&mut self, avma: u64) -> Option<u64> {
        self.reads.count = MANY;
        self.memory.load_code(avma)
    }
}

/// Unwinds from `registers` as [`unwind`] does, to the same frames and the same end, and takes
/// over what it can of the thread's previous walk; keeps this one for the next.
pub fn unwind_on<R>(
    snapshot: &Snapshot,
    registers: &R,
    memory: &mut impl Memory,
    previous: Previous<'_>,
) -> Walked
where
    R: Machine<Frame: Resume>,
{
    let generation = snapshot.generation();
    // Relaxed here and below: the thread's own.
    let depth = &previous.head[head::DEPTH];
    if (1..previous.least).contains(&depth.load(Ordering::Relaxed)) {
        previous.forget();
        let frames = previous.frames.get(..DEPTH_MAX).unwrap_or(&[]);
        let unwound = unwind(snapshot, registers, memory, frames);
        depth.store(unwound.depth as u64, Ordering::Relaxed);
        return Walked { unwound, start: 0, taken: 0, rest: Rest::Shallow };
    }
    let known = previous.take(generation);
    let rest = if known.is_some() { Rest::Other } else { Rest::Unknown };
    let (old, old_hi) = known.unwrap_or((0..0, 0));
    let mut walk = Walk::new(previous, old, old_hi, rest);
    let mut frame = registers.leaf();
    let mut lookup = Lookup::new(snapshot);
    let end = walk.up(&mut frame, &mut lookup, memory);
    walk.settle();
    depth.store(walk.depth() as u64, Ordering::Relaxed);
    let first = walk.base.wrapping_add(walk.first);
    previous.keep(generation, first..walk.top, walk.hi);
    let unwound = Unwound { depth: walk.depth(), end };
    Walked { unwound, start: walk.base, taken: walk.taken, rest: walk.rest }
}

/// A walk under way. Its frames grow from the bottom of the room, those of the previous one lie at
/// the top; where they meet in the same rest, the new ones are moved to it.
pub(super) struct Walk<'a> {
    pub(super) previous: Previous<'a>,
    /// The new frames are from here ...
    pub(super) base: usize,
    /// ... to here.
    pub(super) top: usize,
    /// `top` may grow to here, at least; see [`Walk::make_room`].
    pub(super) limit: usize,
    /// Number of the first frame that is on the present stack.
    pub(super) first: usize,
    /// Upper bound of that stack. The step that ends the walk may have tried another one.
    pub(super) hi: u64,
    pub(super) taken: usize,
    /// Frames of the previous walk that may still be met.
    pub(super) old: Range<usize>,
    /// Upper bound of their stack.
    pub(super) old_hi: u64,
    /// sp of the first of them, if they are of the present stack; else none is as high.
    pub(super) old_sp: u64,
    pub(super) rest: Rest,
}

impl<'a> Walk<'a> {
    /// Of which nothing is found yet; it may meet these frames of a stack with this upper bound.
    pub(super) fn new(previous: Previous<'a>, old: Range<usize>, old_hi: u64, rest: Rest) -> Self {
        let (base, top, limit, first, taken) = (0, 0, 0, 0, 0);
        let (hi, old_sp) = (0, 0);
        Self { previous, base, top, limit, first, hi, taken, old, old_hi, old_sp, rest }
    }

    fn depth(&self) -> usize {
        self.top.wrapping_sub(self.base)
    }

    /// Goes up to the end. At most [`DEPTH_MAX`] steps: each adds a frame.
    fn up<F: Resume>(
        &mut self,
        frame: &mut F,
        lookup: &mut Lookup,
        memory: &mut impl Memory,
    ) -> EndReason {
        let mut memory = Observed { memory, reads: Reads::default(), moved: false };
        self.arrive(memory.bounds().1);
        while self.top < self.limit || self.make_room() {
            let mark = if frame.is_exact() { 0 } else { RETURN_ADDRESS };
            let word = (frame.pc() & !RETURN_ADDRESS) | mark;
            let (fp, link) = match frame.place() {
                Some(place) => (place.fp, link(place, frame.pc(), &memory.reads)),
                None => (0, 0),
            };
            if sp_of(link) >= self.old_sp && self.meets(word, fp, link) {
                self.take_over(link, memory.memory);
                let last = self.top.wrapping_sub(1);
                frame.enter(self.previous.pc(last), self.previous.place(last));
            } else {
                self.previous.write(self.top, word, fp, link);
                self.top = self.top.wrapping_add(1);
            }
            memory.reads.count = 0;
            if let Err(end) = frame.step(lookup, &mut memory) {
                return end;
            }
            if memory.moved {
                memory.moved = false;
                self.first = self.depth();
                self.arrive(memory.bounds().1);
            }
        }
        EndReason::Depth
    }

    /// The walk goes on on the stack with this upper bound.
    #[cold]
    fn arrive(&mut self, hi: u64) {
        self.hi = hi;
        let is_here = hi == self.old_hi && !self.old.is_empty();
        let old_sp = sp_of(self.previous.link(self.old.start));
        self.old_sp = if is_here { old_sp } else { u64::MAX };
        if hi != self.old_hi && !self.old.is_empty() && self.rest == Rest::Other {
            self.rest = Rest::Moved;
        }
    }

    /// The frame is one of the previous walk's; those below it are left behind.
    #[inline]
    pub(super) fn meets(&mut self, word: u64, fp: u64, link: u64) -> bool {
        let sp = sp_of(link);
        while self.old_sp < sp {
            self.old.start = self.old.start.wrapping_add(1);
            let is_left = self.old.is_empty();
            self.old_sp =
                if is_left { u64::MAX } else { sp_of(self.previous.link(self.old.start)) };
        }
        self.old_sp == sp && link != 0 && self.previous.holds(self.old.start, word, fp)
    }

    /// Sees to it that the next frame is not written over one that may still be met, or beyond the
    /// end. False if the stack is as deep as it may be.
    #[cold]
    fn make_room(&mut self) -> bool {
        let depth = self.depth();
        if depth >= DEPTH_MAX {
            return false;
        }
        if self.top == self.old.start && !self.old.is_empty() {
            (self.old, self.old_sp) = (0..0, u64::MAX);
        }
        if self.top >= FRAMES {
            self.previous.copy(self.base..self.top, 0);
            (self.base, self.top) = (0, depth);
        }
        let room = if self.old.is_empty() { FRAMES } else { self.old.start };
        self.limit = room.min(self.base.wrapping_add(DEPTH_MAX));
        true
    }

    /// Takes over the first of the old frames, which the last step has led to, and those that still
    /// follow it.
    fn take_over(&mut self, link: u64, memory: &mut impl Memory) {
        let from = self.old.start;
        // Another step may have led to it before.
        self.previous.relink(from, link);
        let room = DEPTH_MAX.wrapping_sub(self.depth());
        let most = from.saturating_add(room).min(self.old.end);
        let to = self.previous.unchanged(from..most, memory);
        // The first of them was reached by a step.
        self.taken = self.taken.wrapping_add(to.wrapping_sub(from).wrapping_sub(1));
        let depth = self.depth();
        if to == most {
            // Nothing is met beyond it: the new frames come to the old ones.
            let base = from.wrapping_sub(depth);
            self.previous.copy(self.base..self.top, base);
            (self.base, self.top, self.old) = (base, to, 0..0);
            self.old_sp = u64::MAX;
        } else {
            if self.previous.link(to) & FROM_MAX != UNLINKED {
                self.rest = Rest::Changed;
            }
            self.previous.copy(from..to, self.top);
            self.top = self.top.wrapping_add(to.wrapping_sub(from));
            self.old.start = to;
            self.old_sp = sp_of(self.previous.link(to));
        }
    }

    /// Moves the frames to the top of the room, unless some are there already.
    fn settle(&mut self) {
        if self.base == 0 {
            let base = FRAMES.wrapping_sub(self.depth());
            self.previous.copy(0..self.top, base);
            (self.base, self.top) = (base, FRAMES);
        }
    }
}
