//! Code that took the place of other code: samples from the time between its mapping and the moment
//! when the recorder heard of it.
//!
//! The handler cannot know yet that its tables are those of a file that is gone, so it steps on with
//! them. The kernel tells the time of each mapping, so those samples are known afterwards.
//!
//! # Invariants
//! - A frame is named by what was mapped at the time of its sample. What was found with the tables of
//!   another file is not kept.
//! - What was told is held against every change that was found in its time: a mapping can be read
//!   before the report of it, and the report before the mapping.
//!
//! # Does not
//! - tell files apart that took turns between two readings of the mappings.

use std::ops::Range;

use traceprof_abi::storage::log::Sample;
use traceprof_abi::unwind::{EndReason, lookup_avma, trace_epoch, trace_flags};

use super::batch::Batch;
use super::collections::Distinct;
use super::modules::{AddressMap, is_before};

/// Remaps that samples are held against, at most; the same of reports and of changes.
const KNOWN_MAX: usize = 64;
/// As long as this after a remap samples of before it may come: a second is the longest that they wait
/// for their batch, but for threads that were stopped inside the handler.
const KNOWN_NS: u64 = 10_000_000_000;
/// A mapping is there before the kernel writes the time of its report.
const REPORT_NS: u64 = 1_000_000;

/// An executable mapping that the kernel told of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mapped {
    /// CLOCK_MONOTONIC nanoseconds.
    pub(super) time_ns: u64,
    /// Its addresses.
    pub(super) range: Range<u64>,
    /// It is no file's.
    pub(super) is_anonymous: bool,
}

/// Two readings of the mappings that found another epoch: when the first began and the second ended,
/// and the epochs that they found.
#[derive(Debug, Clone, Copy)]
struct Change {
    time_ns: (u64, u64),
    epochs: (u16, u16),
}

/// A report of code that began another epoch.
#[derive(Debug)]
struct Remap {
    time_ns: u64,
    range: Range<u64>,
    /// The epochs before and after it.
    epochs: (u16, u16),
}

/// The remaps of one program.
#[derive(Debug, Default)]
pub(super) struct Remaps {
    /// What was told, in its order.
    told: Vec<Mapped>,
    changes: Vec<Change>,
    /// Reports and changes that belong together, by their times.
    known: Vec<Remap>,
    /// When the last reading of the mappings began.
    read_ns: u64,
    /// What was told after that has to be looked at.
    is_pending: bool,
    traces: Distinct,
    /// Samples whose stack was put right.
    pub(super) corrected: u64,
}

impl Remaps {
    /// The mappings were read before, and that began then.
    pub(super) fn since(read_ns: u64) -> Self {
        Self { read_ns, ..Self::default() }
    }

    /// The kernel told of code. What a runtime makes, and makes again, where no file's code is known
    /// changes nothing that tables are made of: samples in code that is not known tell of it.
    pub(super) fn hear(&mut self, told: &mut Vec<Mapped>, addresses: &AddressMap) {
        for mapped in told.drain(..) {
            if mapped.is_anonymous && !addresses.has_tables(&mapped.range) {
                continue;
            }
            self.is_pending |= mapped.time_ns.saturating_add(REPORT_NS) >= self.read_ns;
            self.told.push(mapped);
        }
        self.told.drain(..self.told.len().saturating_sub(KNOWN_MAX));
    }

    /// The mappings are to be read.
    pub(super) fn is_pending(&self) -> bool {
        self.is_pending
    }

    /// The mappings have been read in this time: the epoch was the first before, and is the second.
    pub(super) fn settle(&mut self, (began_ns, ended_ns): (u64, u64), epochs: (u16, u16)) {
        if epochs.0 != epochs.1 {
            self.changes.push(Change { time_ns: (self.read_ns, ended_ns), epochs });
        }
        self.read_ns = began_ns;
        // What came while they were being read may be in them or not.
        self.is_pending = self.told.iter().any(|mapped| mapped.time_ns >= began_ns);
        let is_late = |time_ns: u64| time_ns.saturating_add(KNOWN_NS) > ended_ns;
        self.told.retain(|mapped| is_late(mapped.time_ns));
        self.changes.retain(|change| is_late(change.time_ns.1));
        self.changes.drain(..self.changes.len().saturating_sub(KNOWN_MAX));
        self.match_up();
    }

    /// Finds the change that each report belongs to.
    fn match_up(&mut self) {
        self.known.clear();
        for Change { time_ns, epochs } in &self.changes {
            let time = time_ns.0..=time_ns.1.saturating_add(REPORT_NS);
            let of_it = self.told.iter().filter(|mapped| time.contains(&mapped.time_ns));
            self.known.extend(of_it.map(|mapped| Remap {
                time_ns: mapped.time_ns,
                range: mapped.range.clone(),
                epochs: *epochs,
            }));
        }
        self.known.sort_by_key(|remap| remap.time_ns);
        self.known.drain(..self.known.len().saturating_sub(KNOWN_MAX));
    }

    /// Gives samples the epoch of their time, and takes from their stacks what was found with the
    /// tables of another one. `instance` gives the upper half of the new traces' ids, if there are any.
    pub(super) fn correct(
        &mut self,
        batch: &mut Batch,
        addresses: &AddressMap,
        instance: impl FnOnce() -> Option<u32>,
    ) {
        self.match_up();
        if self.known.is_empty() {
            return;
        }
        batch.traces.seal();
        let mut wrong: Vec<(usize, u32)> = Vec::new();
        for (index, sample) in batch.samples.iter().enumerate() {
            let Some(entry) = batch.traces.get(sample.trace_id) else { continue };
            let frames = batch.traces.frames_of(entry);
            let unwound = (sample.time, trace_epoch(entry.flags));
            if let Some((kept, epoch)) = self.misread(unwound, frames, addresses) {
                let flags = trace_flags(EndReason::NoModule, epoch);
                let number = self.traces.number(&frames[..kept], flags);
                self.traces.weigh(number, u64::from(sample.weight));
                wrong.push((index, number));
            }
        }
        if !wrong.is_empty()
            && let Some(instance) = instance()
        {
            let upper = u64::from(instance) << 32;
            self.corrected += wrong.len() as u64;
            for (index, number) in wrong {
                let sample: &mut Sample = &mut batch.samples[index];
                batch.traces.lighten(sample.trace_id, u64::from(sample.weight));
                sample.trace_id = upper | u64::from(number);
                sample.reason = EndReason::NoModule as u16;
            }
            let traces = self.traces.traces();
            for entry in traces.entries() {
                batch.traces.copy(traces, entry.with_id(upper | entry.id));
            }
            batch.traces.seal();
        }
        self.traces.clear();
    }

    /// How many frames are right of a stack that was unwound at a time in an epoch, and the epoch of
    /// that time, if it is another one and another file was there.
    fn misread(
        &self,
        (time_ns, epoch): (u64, u16),
        frames: &[u64],
        addresses: &AddressMap,
    ) -> Option<(usize, u16)> {
        let mut found: Option<(usize, u16)> = None;
        for remap in &self.known {
            let is_after = time_ns >= remap.time_ns;
            let (before, after) = remap.epochs;
            if is_after != is_before(epoch, after) {
                // Unwound with the tables of its time.
                continue;
            }
            let is_other = |frame: &u64| {
                let avma = lookup_avma(*frame);
                remap.range.contains(&avma)
                    && addresses.module_at(avma, before) != addresses.module_at(avma, after)
            };
            let Some(first) = frames.iter().position(is_other) else { continue };
            // The first of those that came after it, or the last of those before it.
            let right = match (is_after, found) {
                (false, Some((_, epoch))) => epoch,
                (false, None) => before,
                (true, _) => after,
            };
            let kept = found.map_or(first + 1, |(kept, _)| kept.min(first + 1));
            found = Some((kept, right));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use traceprof_abi::unwind::{RETURN_ADDRESS, trace_end};

    use super::*;
    use crate::record::collections::TraceEntry;
    use crate::record::modules::address_map::tests::{Turns, swapped};

    const MS: u64 = 1_000_000;

    /// A program in which files took turns at three places. In the first two another one came in epoch
    /// 1, in the third one in epoch 2.
    const TURNS: Turns = [(0x1000, 1), (0x2000, 1), (0x3000, 2)];

    fn mapped(time_ms: u64, place: u64) -> Mapped {
        Mapped { time_ns: time_ms * MS, range: place..place + 0x1000, is_anonymous: false }
    }

    /// Read every ten milliseconds; what was told before each of the readings.
    fn read(told: &[&[Mapped]], epochs: &[u16]) -> Remaps {
        let mut remaps = Remaps::default();
        let mut last = 0;
        for (turn, (told, epoch)) in (1..).zip(told.iter().zip(epochs)) {
            remaps.hear(&mut told.to_vec(), &swapped(&TURNS));
            remaps.settle((turn * 10 * MS, (turn * 10 + 1) * MS), (last, *epoch));
            last = *epoch;
        }
        remaps
    }

    fn misread(remaps: &Remaps, time_ms: u64, epoch: u16, frames: &[u64]) -> Option<(usize, u16)> {
        remaps.misread((time_ms * MS, epoch), frames, &swapped(&TURNS))
    }

    #[test]
    fn a_stack_keeps_what_its_own_time_had() {
        let remaps = read(&[&[mapped(5, 0x1000)]], &[1]);
        let stack = [0x9000, 0x1234, 0x9100];
        assert_eq!(misread(&remaps, 4, 0, &stack), None, "before it, with the tables of before");
        assert_eq!(misread(&remaps, 6, 1, &stack), None, "after it, with those of after");
        assert_eq!(
            misread(&remaps, 6, 0, &stack),
            Some((2, 1)),
            "the new file, stepped as the old"
        );
        assert_eq!(misread(&remaps, 4, 1, &stack), Some((2, 0)), "the old one, stepped as the new");
        assert_eq!(misread(&remaps, 6, 0, &[0x9000]), None, "elsewhere");
        let call = 0x1000 | RETURN_ADDRESS;
        assert_eq!(misread(&remaps, 6, 0, &[call]), None, "the call is before the range");
        assert_eq!(misread(&remaps, 6, 0, &[call + 1]), Some((1, 1)));
    }

    #[test]
    fn of_several_remaps_the_innermost_frame_counts() {
        let remaps =
            read(&[&[mapped(5, 0x1000), mapped(6, 0x2000)], &[mapped(15, 0x3000)]], &[1, 2]);
        assert_eq!(misread(&remaps, 7, 0, &[0x9000, 0x2000, 0x9000, 0x1000]), Some((2, 1)));
        assert_eq!(misread(&remaps, 7, 0, &[0x9000, 0x1000, 0x9000, 0x2000]), Some((2, 1)));
        assert_eq!(misread(&remaps, 16, 0, &[0x9000, 0x3000, 0x1000]), Some((2, 2)));
        assert_eq!(misread(&remaps, 16, 0, &[0x9000, 0x1000, 0x3000]), Some((2, 2)));
        assert_eq!(misread(&remaps, 4, 2, &[0x9000, 0x3000, 0x1000]), Some((2, 0)));
        assert_eq!(misread(&remaps, 12, 2, &[0x9000, 0x3000, 0x1000]), Some((2, 1)));
    }

    #[test]
    fn a_report_belongs_to_its_change_whichever_comes_first() {
        let stack = [0x1234];
        let wrong = |remaps: &Remaps| misread(remaps, 6, 0, &stack);
        // The mapping was read before the report of it.
        let late = read(&[&[], &[mapped(5, 0x1000)]], &[1, 1]);
        assert_eq!(wrong(&late), Some((1, 1)));
        assert!(!late.is_pending());
        // The report was written when the reading had ended.
        let later =
            read(&[&[], &[Mapped { time_ns: 11 * MS + MS / 2, ..mapped(0, 0x1000) }]], &[1, 1]);
        assert_eq!(misread(&later, 11, 1, &stack), Some((1, 0)));
        // It came while the mappings were read, which had the old one still.
        let mut early = read(&[&[mapped(10, 0x1000)]], &[0]);
        assert!(early.is_pending(), "another look is due");
        early.settle((12 * MS, 13 * MS), (0, 1));
        assert_eq!(misread(&early, 11, 0, &stack), Some((1, 1)));
        assert!(!early.is_pending());
        // One of another time is of no change.
        assert_eq!(wrong(&read(&[&[mapped(5, 0x1000)], &[]], &[0, 1])), None);
        // Ten seconds later it is forgotten.
        let mut old = read(&[&[mapped(5, 0x1000)]], &[1]);
        old.settle((20_000 * MS, 20_001 * MS), (1, 1));
        assert_eq!((wrong(&old), old.told.len()), (None, 0));
    }

    #[test]
    fn what_a_runtime_makes_is_looked_at_where_a_file_was_only() {
        let anonymous = |place| Mapped { is_anonymous: true, ..mapped(5, place) };
        let mut remaps = Remaps::default();
        remaps.hear(&mut vec![anonymous(0x8000)], &swapped(&TURNS));
        assert!(!remaps.is_pending());
        remaps.hear(&mut vec![anonymous(0x2000)], &swapped(&TURNS));
        assert!(remaps.is_pending());
    }

    #[test]
    fn corrected_samples_have_stacks_of_their_own_and_count_once() {
        let mut remaps = read(&[&[mapped(5, 0x1000)]], &[1]);
        let mut batch = Batch::default();
        let flags = trace_flags(EndReason::Root, 0);
        batch.traces.push(TraceEntry::new(9, flags, 5), [0x9000, 0x1234, 0x9100].into_iter());
        let sample = |time_ms: u64, weight| Sample {
            trace_id: 9,
            time: time_ms * MS,
            weight,
            ..Sample::default()
        };
        batch.samples.extend([sample(4, 2), sample(6, 3)]);
        remaps.correct(&mut batch, &swapped(&TURNS), || Some(7));
        let ids = [batch.samples[0].trace_id, batch.samples[1].trace_id];
        assert_eq!(ids, [9, 7 << 32]);
        let stack = |id| {
            let entry = batch.traces.get(id).unwrap();
            (batch.traces.frames_of(entry).to_vec(), entry.weight, trace_epoch(entry.flags))
        };
        assert_eq!(stack(9), (vec![0x9000, 0x1234, 0x9100], 2, 0));
        assert_eq!(stack(7 << 32), (vec![0x9000, 0x1234], 3, 1));
        let entry = batch.traces.get(7 << 32).unwrap();
        assert_eq!(trace_end(entry.flags), EndReason::NoModule as u16);
        assert_eq!((batch.samples[1].reason, remaps.corrected), (EndReason::NoModule as u16, 1));
    }
}
