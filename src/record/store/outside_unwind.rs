//! Unwinds, in the recorder, stacks that a handler could not unwind to their root.
//!
//! A sample with such a stack comes with the registers and a slice of the stack. The recorder
//! unwinds them with the mappings that are known by now.
//!
//! # Invariants
//! - A stack only gets better: a new stack replaces the handler's if it reaches the root or is
//!   longer, or ends where the handler's did because the slice does.
//! - No stack memory beyond the slice is used: the thread has run on since.
//! - A stack ends at a frame in code that may have come after the sample, in place of the code that
//!   ran. What was known of that code is gone.

use traceprof_abi::layout::FRAME_WORDS_MAX;
use traceprof_abi::runtime::word::{
    FRAME_WORDS, FrameFunction, FrameWord, frames, indexed_frames, is_kernel, pcs, split,
    whole_frames,
};
use traceprof_abi::storage::slice::Slice;
use traceprof_abi::unwind::{
    EndReason, RBP, RSP, Registers, Snapshot, lookup_avma, trace_epoch, trace_flags, walk_words_max,
};

use crate::inject;
use crate::record::batch::Batch;
use crate::record::batch::traces::Distinct;
use crate::unwind::{RemoteStack, RemoteUnwinder, StackCopy};

/// Returns whether the code that is at an address was there at a time, in CLOCK_MONOTONIC
/// nanoseconds. The last argument is whether a handler had no table of it then.
pub(crate) type HadCode<'a> = &'a dyn Fn(u64, u64, bool) -> bool;

/// A sample with another stack: its index in the batch, the number of the stack, and its end.
type Replaced = (usize, u32, u16);

/// Unwinds the slices of batches.
#[derive(Debug, Default)]
pub(crate) struct OutsideUnwinder {
    unwinder: RemoteUnwinder,
    traces: Distinct,
    /// The number of stacks that were replaced.
    pub(crate) unwound: u64,
}

impl OutsideUnwinder {
    /// Replaces the stacks of samples that came with a slice and were unwound with other mappings
    /// than those of the snapshot.
    ///
    /// The samples must be in the order in which they were collected, and have their times; their
    /// slices are dropped. `pid` is the process, if its code can be read. `instance` returns the
    /// upper half of the new traces' ids, and is called only if there are new traces.
    pub(crate) fn unwind_slices(
        &mut self,
        batch: &mut Batch,
        pid: Option<i32>,
        (snapshot, had_code): (&Snapshot<'_>, HadCode<'_>),
        instance: impl FnOnce() -> Option<u32>,
    ) {
        let mut better: Vec<Replaced> = Vec::new();
        for (index, slice, bytes) in batch.slices.of_samples() {
            let Some(sample) = batch.samples.get(index) else { continue };
            let known = batch.traces.get(sample.trace_id);
            let (known, sections) = split(known.map_or(&[], |it| batch.traces.frames_of(it)));
            if slice.generation == snapshot.generation() && !has_table_now(known, snapshot) {
                continue;
            }
            let mut stack = self.unwind(slice, bytes, pid, snapshot);
            stack.frames = with_functions(known, &stack.frames);
            // The code that the handler had no table of, if it ended there.
            let ended = sample.reason == EndReason::NoModule as u16;
            let new =
                known.len().checked_sub(1).filter(|_| ended && stack.frames.starts_with(known));
            let proven = proven_words(&stack.frames, new, |avma, is_new| {
                had_code(avma, sample.time, is_new)
            });
            if let Some(words) = proven {
                stack.frames.truncate(words);
                stack.end = EndReason::NoModule;
            }
            let is_better = stack.end == EndReason::Root || stack.frames.len() > known.len();
            // The same frames, whose code is known by now.
            let is_cut = stack.end == EndReason::Copied && stack.frames.len() == known.len();
            if (is_better || is_cut) && stack.frames.len() + sections.len() <= FRAME_WORDS_MAX {
                stack.frames.extend(sections);
                let flags = trace_flags(stack.end, snapshot.epoch());
                let number = self.traces.number(&stack.frames, flags);
                self.traces.weigh(number, u64::from(sample.weight));
                better.push((index, number, stack.end as u16));
            }
        }
        self.unwound += self.replace(batch, better, instance);
        batch.slices.clear();
    }

    /// Ends the stacks of samples from this index on where they are in code that may have come
    /// after the sample. They were unwound a moment after they were taken.
    pub(crate) fn end_unproven(
        &mut self,
        batch: &mut Batch,
        from: usize,
        had_code: HadCode<'_>,
        instance: impl FnOnce() -> Option<u32>,
    ) {
        if batch.samples.len() == from {
            return;
        }
        batch.traces.seal();
        let mut ended: Vec<Replaced> = Vec::new();
        for (index, sample) in batch.samples.iter().enumerate().skip(from) {
            let Some(known) = batch.traces.get(sample.trace_id) else { continue };
            let (stack, sections) = split(batch.traces.frames_of(known));
            let had_code = |avma, is_new| had_code(avma, sample.time, is_new);
            let Some(words) = proven_words(stack, None, had_code) else { continue };
            if words == stack.len() && sample.reason != EndReason::Root as u16 {
                continue;
            }
            let stack = [&stack[..words], sections].concat();
            let flags = trace_flags(EndReason::NoModule, trace_epoch(known.flags));
            let number = self.traces.number(&stack, flags);
            self.traces.weigh(number, u64::from(sample.weight));
            ended.push((index, number, EndReason::NoModule as u16));
        }
        self.replace(batch, ended, instance);
    }

    /// Gives samples their new stacks, and returns how many have one. Without more ids, the
    /// recording ends, and the former stacks stay.
    fn replace(
        &mut self,
        batch: &mut Batch,
        replaced: Vec<Replaced>,
        instance: impl FnOnce() -> Option<u32>,
    ) -> u64 {
        let mut count = 0;
        if !replaced.is_empty()
            && let Some(instance) = instance()
        {
            let upper = u64::from(instance) << 32;
            count = replaced.len() as u64;
            for (sample, number, reason) in replaced {
                let sample = &mut batch.samples[sample];
                batch.traces.lighten(sample.trace_id, u64::from(sample.weight));
                (sample.trace_id, sample.reason) = (upper | u64::from(number), reason);
            }
            let traces = self.traces.traces();
            for entry in traces.entries() {
                batch.traces.copy(traces, entry.with_id(upper | entry.id));
            }
        }
        self.traces.clear();
        count
    }

    fn unwind(
        &mut self,
        slice: &Slice,
        bytes: &[u8],
        pid: Option<i32>,
        snapshot: &Snapshot<'_>,
    ) -> RemoteStack {
        let gpr = slice.registers;
        let registers = Registers { pc: slice.pc, sp: gpr[RSP], fp: gpr[RBP], gpr };
        let copy = StackCopy { avma: slice.start, bytes };
        // Reads code, and memory beyond the slice.
        let mut read =
            |avma, into: &mut [u8]| pid.map_or(0, |pid| inject::read_part(pid, avma, into));
        let mut stack = self.unwinder.unwind(snapshot, &registers, copy, &mut read);
        if let Some(late) = stack.late {
            stack.frames.truncate(late);
            stack.end = EndReason::Copied;
        }
        let words_max = walk_words_max(snapshot);
        if stack.frames.len() > words_max {
            // As deep as a handler's stacks: the tables have no room for more.
            let whole = whole_frames(&stack.frames[..words_max]).len();
            stack.frames.truncate(whole);
            stack.end = EndReason::Depth;
        }
        stack
    }
}

/// Returns the number of words up to the first frame in code that may have come after the sample.
/// `None` if there is no such frame. `new` is the word of which the handler had no table.
fn proven_words(
    words: &[u64],
    new: Option<usize>,
    had_code: impl Fn(u64, bool) -> bool,
) -> Option<usize> {
    let mut count = 0;
    for frame in frames(words) {
        match frame {
            FrameWord::Pc(word) if is_kernel(word) => count += 1,
            FrameWord::Pc(word) | FrameWord::WithFunction(word, _) => {
                count += 1;
                if !had_code(lookup_avma(word), new == Some(count - 1)) {
                    return Some(count);
                }
                let has_function = matches!(frame, FrameWord::WithFunction(..));
                count += if has_function { FRAME_WORDS } else { 0 };
            }
            FrameWord::InPlace { .. } => count += FRAME_WORDS,
        }
    }
    None
}

/// Returns the words of a stack with the functions that a handler read of the frames that both
/// have. The thread has run on since.
pub(crate) fn with_functions(known: &[u64], unwound: &[u64]) -> Vec<u64> {
    let mut words = Vec::with_capacity(unwound.len());
    let mut knowns = frames(known);
    let mut ends = indexed_frames(unwound).skip(1).map(|(index, _)| index);
    let mut is_same = true;
    for (index, frame) in indexed_frames(unwound) {
        let end = ends.next().unwrap_or(unwound.len());
        words.extend(unwound.get(index..end).unwrap_or_default());
        match (frame, knowns.next()) {
            (FrameWord::Pc(pc), Some(FrameWord::WithFunction(same, function)))
                if is_same && pc == same =>
            {
                words.extend(function.words());
            }
            (FrameWord::WithFunction(pc, none), Some(FrameWord::WithFunction(same, function)))
                if is_same && pc == same && none == FrameFunction::UNREADABLE =>
            {
                words.truncate(words.len() - FRAME_WORDS);
                words.extend(function.words());
            }
            (frame, known) => is_same &= known.is_some_and(|known| pc_of(known) == pc_of(frame)),
        }
    }
    words
}

fn pc_of(frame: FrameWord) -> Option<u64> {
    match frame {
        FrameWord::Pc(pc) | FrameWord::WithFunction(pc, _) => Some(pc),
        FrameWord::InPlace { .. } => None,
    }
}

/// Returns whether a stack ends in generated code that has a table now. Its tables change while the
/// mappings stay.
fn has_table_now(words: &[u64], snapshot: &Snapshot<'_>) -> bool {
    let has_table = |(_, pc)| {
        let avma = lookup_avma(pc);
        snapshot.heap(snapshot.range(avma)?)?.table(avma)
    };
    pcs(words).last().and_then(has_table).is_some()
}

#[cfg(test)]
mod tests {
    use traceprof_abi::layout;
    use traceprof_abi::unwind::RETURN_ADDRESS;

    use super::*;
    use traceprof_abi::storage::log::Sample;
    use traceprof_abi::sync::AtomicU64;

    use crate::record::batch::traces::TraceEntry;
    use crate::record::target::shm::{Use, own_segment};
    use crate::unwind::{ExecRange, TableWriter};

    const CODE: u64 = 0x1000_0000;
    const STACK: u64 = 0x7000_0000_0000;
    const POSITION: usize = 5;

    /// Makes a stack of two standard frames in code without a file; the frame pointer of the outer
    /// frame is zero.
    fn slice() -> (Slice, Vec<AtomicU64>) {
        let words = [0, CODE + 0x200, 0, 0].map(AtomicU64::new);
        let mut slice =
            Slice { sample: POSITION, generation: 1, pc: CODE + 0x100, ..Slice::default() };
        (slice.start, slice.count) = (STACK, words.len());
        (slice.registers[RSP], slice.registers[RBP]) = (STACK, STACK);
        (slice, words.into())
    }

    const TIME: u64 = 1000;

    /// Unwinds the slice for the sample at a position of the log, after the code has become known
    /// or not; returns the sample's frames and end reason, and the number of replaced stacks. The
    /// code at each address is proven from a time on.
    fn followed(
        position: usize,
        becomes_known: bool,
        since: impl Fn(u64, bool) -> u64,
    ) -> (Vec<u64>, u16, u64) {
        let tables = own_segment(Use::Tables, layout::TABLES_LEN);
        let mut writer = TableWriter::new(tables.words());
        let code = ExecRange { start: CODE, end: CODE + 0x1000, bias: 0, module: None };
        writer.publish(&[code], &[(STACK, STACK + 4096)]).unwrap();
        if becomes_known {
            writer.publish(&[code], &[(STACK, STACK + 4096)]).unwrap();
        }
        let mut batch = Batch::default();
        batch
            .traces
            .push(TraceEntry::new(9, EndReason::NoModule as u32, 1), [CODE + 0x100].into_iter());
        let (slice, words) = slice();
        let own = batch.slices.take([(slice, &words[..])].into_iter());
        batch.slices.note_sample(&own, position, 0);
        let reason = EndReason::NoModule as u16;
        let sample = Sample { trace_id: 9, time: TIME, reason, weight: 1, ..Sample::default() };
        batch.samples.push(sample);
        assert!(batch.slices.bytes() >= words.len() * 8 && batch.bytes() > batch.slices.bytes());
        assert_eq!(batch.slices.has_unknown_code(&batch.samples), position == POSITION);
        let tables = tables.as_tables();
        let mut unwinder = OutsideUnwinder::default();
        let had_code = |avma, time_ns, is_new| since(avma, is_new) <= time_ns;
        let snapshot = tables.snapshot().unwrap();
        unwinder.unwind_slices(&mut batch, None, (&snapshot, &had_code), || Some(3));
        batch.traces.seal();
        let weights: Vec<u64> = batch.traces.entries().iter().map(|entry| entry.weight).collect();
        assert_eq!(weights.iter().sum::<u64>(), 1, "counted once: {weights:?}");
        assert!(batch.slices.of_samples().next().is_none());
        let sample = &batch.samples[0];
        let entry = batch.traces.get(sample.trace_id).unwrap();
        (batch.traces.frames_of(entry).to_vec(), sample.reason, unwinder.unwound)
    }

    #[test]
    fn a_stack_in_code_that_became_known_is_unwound_to_its_end() {
        let frames = vec![CODE + 0x100, (CODE + 0x200) | RETURN_ADDRESS];
        assert_eq!(followed(POSITION, true, |_, _| 0), (frames, EndReason::Unproven as u16, 1));
    }

    #[test]
    fn a_stack_without_new_mappings_or_a_slice_stays() {
        let same = (vec![CODE + 0x100], EndReason::NoModule as u16, 0);
        assert_eq!(
            followed(POSITION, false, |_, _| 0),
            same,
            "the mappings are those of the handler"
        );
        assert_eq!(followed(POSITION + 1, true, |_, _| 0), same, "the slice is of another sample");
    }

    #[test]
    fn a_stack_ends_in_code_that_came_after_the_sample() {
        let same = (vec![CODE + 0x100], EndReason::NoModule as u16, 0);
        let came_late = |place: u64| move |avma, _| if avma == place { TIME + 1 } else { 0 };
        assert_eq!(followed(POSITION, true, came_late(CODE + 0x100)), same, "the innermost frame");
        let frames = vec![CODE + 0x100, (CODE + 0x200) | RETURN_ADDRESS];
        let caller = lookup_avma(frames[1]);
        let end = EndReason::NoModule as u16;
        let cut = (frames.clone(), end, 1);
        assert_eq!(followed(POSITION, true, came_late(caller)), cut, "its caller");
        // The handler ended at the innermost frame, because it had no table of that code.
        let unless_new = |_, is_new| if is_new { 0 } else { TIME + 1 };
        assert_eq!(followed(POSITION, true, unless_new), cut, "only its caller");
    }

    #[test]
    fn stacks_of_the_kernel_end_in_code_that_came_after_them() {
        let frames = [CODE + 0x100, (CODE + 0x200) | RETURN_ADDRESS, 0x5000 | RETURN_ADDRESS];
        let mut batch = Batch::default();
        batch.traces.push(TraceEntry::new(9, EndReason::Root as u32, 2), frames.into_iter());
        for time in [TIME, TIME + 1] {
            let sample = Sample { trace_id: 9, time, weight: 1, ..Sample::default() };
            batch.samples.push(sample);
        }
        let caller = lookup_avma(frames[1]);
        let had_code = |avma, time_ns, _| avma != caller || time_ns > TIME;
        OutsideUnwinder::default().end_unproven(&mut batch, 0, &had_code, || Some(3));
        batch.traces.seal();
        let of = |sample: &Sample| {
            let entry = batch.traces.get(sample.trace_id).unwrap();
            (batch.traces.frames_of(entry).to_vec(), sample.reason, entry.weight)
        };
        let found: Vec<_> = batch.samples.iter().map(of).collect();
        let cut = (frames[..2].to_vec(), EndReason::NoModule as u16, 1);
        assert_eq!(found, [cut, (frames.to_vec(), EndReason::Root as u16, 1)]);
    }
}
