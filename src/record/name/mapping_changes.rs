//! Corrects samples that were taken after new code replaced other code, and before the recorder
//! read the new mapping.
//!
//! The handler cannot know yet that its tables describe a file that is no longer mapped, so it
//! unwinds with them. The kernel reports the time of each mapping, which identifies those samples
//! later.
//!
//! # Invariants
//! - The mapping at the time of a sample names its frames. Frames that were found with the tables
//!   of another file are dropped.
//! - Every report is compared with every change around its time, since the recorder may read a
//!   mapping before its report, or the report before the mapping.
//!
//! # Does not
//! - distinguish files that replaced each other between two readings of the mappings.

use crate::record::batch::mapped::Mapped;
use std::ops::Range;

use traceprof_abi::runtime::word::{pcs, split};
use traceprof_abi::storage::log::Sample;
use traceprof_abi::unwind::{EndReason, lookup_avma, trace_epoch, trace_flags};

use crate::record::batch::Batch;
use crate::record::batch::traces::Distinct;
use crate::record::target::modules::{AddressMap, is_before};

/// The largest number of remaps that samples are compared with, and of stored reports and changes.
const KNOWN_MAX: usize = 64;
/// How long after a remap earlier samples may arrive, in nanoseconds.
///
/// A sample waits at most a second for its batch, unless its thread was stopped inside the handler.
const KNOWN_NS: u64 = 10_000_000_000;
/// How late the time in a mapping's report may be, in nanoseconds: the mapping exists before the
/// kernel writes the time.
const REPORT_NS: u64 = 1_000_000;

/// A change of the epoch between two readings of the mappings.
#[derive(Debug, Clone, Copy)]
struct EpochChange {
    /// The start of the first reading and the end of the second.
    time_ns: (u64, u64),
    /// The epochs that the two readings found.
    epochs: (u16, u16),
}

/// A reported mapping that started another epoch.
#[derive(Debug)]
struct Remap {
    time_ns: u64,
    range: Range<u64>,
    /// The epochs before and after the mapping.
    epochs: (u16, u16),
}

/// The remaps of one program.
#[derive(Debug, Default)]
pub(crate) struct MappingChanges {
    /// The reports in order of time.
    reports: Vec<Mapped>,
    changes: Vec<EpochChange>,
    /// The reports that match a change, in order of time.
    known: Vec<Remap>,
    /// The start of the last reading of the mappings, in CLOCK_MONOTONIC nanoseconds.
    read_ns: u64,
    /// Whether a later report requires another reading.
    is_pending: bool,
    traces: Distinct,
    /// The number of samples whose stack was corrected.
    pub(crate) corrected: u64,
}

impl MappingChanges {
    /// Makes an empty value after a reading of the mappings that started at this time.
    pub(crate) fn since(read_ns: u64) -> Self {
        Self { read_ns, ..Self::default() }
    }

    /// Adds the kernel's reports.
    ///
    /// Reports of generated code count only if it replaces a file's code. Otherwise it changes
    /// nothing that tables describe, and samples in unknown code reveal it.
    pub(crate) fn add_reports(&mut self, reports: &mut Vec<Mapped>, addresses: &AddressMap) {
        for mapped in reports.drain(..) {
            if mapped.is_anonymous && !addresses.has_tables(&mapped.range) {
                continue;
            }
            self.is_pending |= mapped.time_ns.saturating_add(REPORT_NS) >= self.read_ns;
            self.reports.push(mapped);
        }
        self.reports.drain(..self.reports.len().saturating_sub(KNOWN_MAX));
    }

    /// Returns whether the mappings must be read.
    pub(crate) fn is_pending(&self) -> bool {
        self.is_pending
    }

    /// Notes a reading of the mappings: its start and end, and the epochs before and after it.
    pub(crate) fn note_reading(&mut self, (began_ns, ended_ns): (u64, u64), epochs: (u16, u16)) {
        if epochs.0 != epochs.1 {
            self.changes.push(EpochChange { time_ns: (self.read_ns, ended_ns), epochs });
        }
        self.read_ns = began_ns;
        // The reading may or may not contain mappings that were reported during it.
        self.is_pending = self.reports.iter().any(|mapped| mapped.time_ns >= began_ns);
        let is_late = |time_ns: u64| time_ns.saturating_add(KNOWN_NS) > ended_ns;
        self.reports.retain(|mapped| is_late(mapped.time_ns));
        self.changes.retain(|change| is_late(change.time_ns.1));
        self.changes.drain(..self.changes.len().saturating_sub(KNOWN_MAX));
        self.match_up();
    }

    /// Matches the reports with the changes.
    fn match_up(&mut self) {
        self.known.clear();
        for EpochChange { time_ns, epochs } in &self.changes {
            let time = time_ns.0..=time_ns.1.saturating_add(REPORT_NS);
            let of_it = self.reports.iter().filter(|mapped| time.contains(&mapped.time_ns));
            self.known.extend(of_it.map(|mapped| Remap {
                time_ns: mapped.time_ns,
                range: mapped.range.clone(),
                epochs: *epochs,
            }));
        }
        self.known.sort_by_key(|remap| remap.time_ns);
        self.known.drain(..self.known.len().saturating_sub(KNOWN_MAX));
    }

    /// Gives each sample the epoch of its time, and removes frames that were found with the tables
    /// of another epoch.
    ///
    /// `instance` returns the upper half of the new traces' ids, if ids are left.
    pub(crate) fn correct(
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
            let (frames, sections) = split(batch.traces.frames_of(entry));
            let unwound = (sample.time, trace_epoch(entry.flags));
            if let Some((kept, epoch)) = self.misread(unwound, frames, addresses) {
                let flags = trace_flags(EndReason::NoModule, epoch);
                let number = self.traces.number(&[&frames[..kept], sections].concat(), flags);
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

    /// Returns how many frame words of a stack are right, and the right epoch.
    ///
    /// It returns `None` unless another epoch was valid at the time of the stack, and another file
    /// was mapped then.
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
                // The handler used the tables of the sample's time.
                continue;
            }
            let is_other = |frame: u64| {
                let avma = lookup_avma(frame);
                remap.range.contains(&avma)
                    && addresses.module_at(avma, before) != addresses.module_at(avma, after)
            };
            let other = pcs(frames).find(|(_, frame)| is_other(*frame));
            let Some((first, _)) = other else { continue };
            // The epoch before the first remap after the sample, or after the last remap before it.
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
    use crate::record::batch::traces::TraceEntry;
    use crate::record::target::modules::address_map::tests::{FileSwaps, swapped};

    const MS: u64 = 1_000_000;

    /// A program in which files replaced each other at three addresses: at two in epoch 1, at one
    /// in epoch 2.
    const SWAPS: FileSwaps = [(0x1000, 1), (0x2000, 1), (0x3000, 2)];

    fn mapped(time_ms: u64, place: u64) -> Mapped {
        Mapped { time_ns: time_ms * MS, range: place..place + 0x1000, is_anonymous: false }
    }

    /// Reads the mappings every ten milliseconds, with these reports before each reading.
    fn read(reports: &[&[Mapped]], epochs: &[u16]) -> MappingChanges {
        let mut mapping_changes = MappingChanges::default();
        let mut last = 0;
        for (turn, (reports, epoch)) in (1..).zip(reports.iter().zip(epochs)) {
            mapping_changes.add_reports(&mut reports.to_vec(), &swapped(&SWAPS));
            mapping_changes.note_reading((turn * 10 * MS, (turn * 10 + 1) * MS), (last, *epoch));
            last = *epoch;
        }
        mapping_changes
    }

    fn misread(
        mapping_changes: &MappingChanges,
        time_ms: u64,
        epoch: u16,
        frames: &[u64],
    ) -> Option<(usize, u16)> {
        mapping_changes.misread((time_ms * MS, epoch), frames, &swapped(&SWAPS))
    }

    #[test]
    fn a_stack_keeps_the_frames_of_its_own_time() {
        let mapping_changes = read(&[&[mapped(5, 0x1000)]], &[1]);
        let stack = [0x9000, 0x1234, 0x9100];
        assert_eq!(
            misread(&mapping_changes, 4, 0, &stack),
            None,
            "before the remap, with the tables from before"
        );
        assert_eq!(
            misread(&mapping_changes, 6, 1, &stack),
            None,
            "after the remap, with the tables from after"
        );
        assert_eq!(
            misread(&mapping_changes, 6, 0, &stack),
            Some((2, 1)),
            "the new file, unwound as the old one"
        );
        assert_eq!(
            misread(&mapping_changes, 4, 1, &stack),
            Some((2, 0)),
            "the old file, unwound as the new one"
        );
        assert_eq!(misread(&mapping_changes, 6, 0, &[0x9000]), None, "elsewhere");
        let call = 0x1000 | RETURN_ADDRESS;
        assert_eq!(misread(&mapping_changes, 6, 0, &[call]), None, "the call is before the range");
        assert_eq!(misread(&mapping_changes, 6, 0, &[call + 1]), Some((1, 1)));
    }

    #[test]
    fn of_several_remaps_the_innermost_frame_counts() {
        let mapping_changes =
            read(&[&[mapped(5, 0x1000), mapped(6, 0x2000)], &[mapped(15, 0x3000)]], &[1, 2]);
        assert_eq!(
            misread(&mapping_changes, 7, 0, &[0x9000, 0x2000, 0x9000, 0x1000]),
            Some((2, 1))
        );
        assert_eq!(
            misread(&mapping_changes, 7, 0, &[0x9000, 0x1000, 0x9000, 0x2000]),
            Some((2, 1))
        );
        assert_eq!(misread(&mapping_changes, 16, 0, &[0x9000, 0x3000, 0x1000]), Some((2, 2)));
        assert_eq!(misread(&mapping_changes, 16, 0, &[0x9000, 0x1000, 0x3000]), Some((2, 2)));
        assert_eq!(misread(&mapping_changes, 4, 2, &[0x9000, 0x3000, 0x1000]), Some((2, 0)));
        assert_eq!(misread(&mapping_changes, 12, 2, &[0x9000, 0x3000, 0x1000]), Some((2, 1)));
    }

    #[test]
    fn a_report_belongs_to_its_change_whichever_comes_first() {
        let stack = [0x1234];
        let wrong = |mapping_changes: &MappingChanges| misread(mapping_changes, 6, 0, &stack);
        // The mapping was read before its report.
        let late = read(&[&[], &[mapped(5, 0x1000)]], &[1, 1]);
        assert_eq!(wrong(&late), Some((1, 1)));
        assert!(!late.is_pending());
        // The report was written when the reading had ended.
        let later =
            read(&[&[], &[Mapped { time_ns: 11 * MS + MS / 2, ..mapped(0, 0x1000) }]], &[1, 1]);
        assert_eq!(misread(&later, 11, 1, &stack), Some((1, 0)));
        // The report came during a reading that still found the old mapping.
        let mut early = read(&[&[mapped(10, 0x1000)]], &[0]);
        assert!(early.is_pending(), "another reading is due");
        early.note_reading((12 * MS, 13 * MS), (0, 1));
        assert_eq!(misread(&early, 11, 0, &stack), Some((1, 1)));
        assert!(!early.is_pending());
        // A report at another time matches no change.
        assert_eq!(wrong(&read(&[&[mapped(5, 0x1000)], &[]], &[0, 1])), None);
        // The report is dropped ten seconds later.
        let mut old = read(&[&[mapped(5, 0x1000)]], &[1]);
        old.note_reading((20_000 * MS, 20_001 * MS), (1, 1));
        assert_eq!((wrong(&old), old.reports.len()), (None, 0));
    }

    #[test]
    fn generated_code_counts_only_in_place_of_a_file() {
        let anonymous = |place| Mapped { is_anonymous: true, ..mapped(5, place) };
        let mut mapping_changes = MappingChanges::default();
        mapping_changes.add_reports(&mut vec![anonymous(0x8000)], &swapped(&SWAPS));
        assert!(!mapping_changes.is_pending());
        mapping_changes.add_reports(&mut vec![anonymous(0x2000)], &swapped(&SWAPS));
        assert!(mapping_changes.is_pending());
    }

    #[test]
    fn corrected_samples_have_their_own_stacks_and_count_once() {
        let mut mapping_changes = read(&[&[mapped(5, 0x1000)]], &[1]);
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
        mapping_changes.correct(&mut batch, &swapped(&SWAPS), || Some(7));
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
        assert_eq!(
            (batch.samples[1].reason, mapping_changes.corrected),
            (EndReason::NoModule as u16, 1)
        );
    }
}
