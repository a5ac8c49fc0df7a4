//! Encodes samples relative to the previous one: fields that changed, and fields that are not zero.

use super::checkpoint::Checkpoint;
use super::object::SampleFields;
use super::stacks::{Stacks, epoch_of};
use super::{Sample, TextId};

/// The values of the last sample in the block that the next one is relative to. A block starts with
/// the default.
#[derive(Debug, Clone, Default)]
pub(super) struct Context {
    trace_id: u64,
    span: u64,
    root_span: u64,
    root_high: u64,
    tags: [u32; 10],
    /// The text's id plus 1, or 0, of the last sample with a system call.
    waits_on: u32,
    stacks: Stacks,
    /// The end of the gap between the last sample and the next one.
    gap_end_ns: Option<u64>,
}

impl Context {
    /// Records a gap before the next sample.
    pub(super) fn gap(&mut self, end_ns: u64) {
        self.gap_end_ns = Some(end_ns);
    }

    /// Returns the fields of `sample`. `outer` is the number of outer calls that are not its own.
    pub(super) fn encode(
        &mut self,
        sample: &Sample,
        state: &Checkpoint,
        tick_ns: u64,
        outer: usize,
    ) -> SampleFields {
        let changed = |new: u64, old: u64| (new != old).then_some(new);
        let changed_half = |new: u32, old: u32| (new != old).then_some(new);
        let mut tags = [None; 10];
        for (place, tag) in tags.iter_mut().enumerate() {
            *tag = changed_half(sample.tags[place], self.tags[place]);
        }
        let slot = self.encode_slot(sample.trace_id, state);
        let (epoch, before) = (epoch_of(sample.trace_id), epoch_of(self.trace_id));
        let fields = SampleFields {
            time: sample.time_ns.wrapping_sub(self.due_ns(state, tick_ns)) as i64,
            slot,
            epoch: changed_half(zigzag(epoch.wrapping_sub(before)), 0),
            weight: changed_half(sample.weight, 1),
            end_reason: (sample.end_reason != 0).then_some(sample.end_reason),
            flags: changed_half(sample.flags, 0),
            outer: changed_half(outer as u32, 0),
            state: (sample.state != 0).then_some(sample.state),
            syscall: sample.syscall,
            span: changed(sample.span, self.span),
            root_span: changed(sample.root_span, self.root_span),
            tags: tags.iter().any(Option::is_some).then_some(tags),
            main_before: None,
            waits_on: changed_half(text_number(sample), self.expected_text(sample.syscall)),
            root_high: changed(sample.root_high, self.root_high),
        };
        self.remember(sample);
        fields
    }

    /// Decodes the sample with these fields; returns `None` if its time is before that of the last
    /// one.
    pub(super) fn decode(
        &mut self,
        fields: &SampleFields,
        state: &Checkpoint,
        tick_ns: u64,
    ) -> Option<Sample> {
        let time_ns = self.due_ns(state, tick_ns).wrapping_add(fields.time as u64);
        let difference = fields.epoch.map_or(0, unzigzag);
        let epoch = epoch_of(self.trace_id).wrapping_add(difference);
        let trace_id = self.decode_slot(fields.slot, epoch, state);
        let mut tags = self.tags;
        for (tag, new) in tags.iter_mut().zip(fields.tags.unwrap_or_default()) {
            *tag = new.unwrap_or(*tag);
        }
        let text = fields.waits_on.unwrap_or(self.expected_text(fields.syscall));
        let sample = Sample {
            time_ns,
            trace_id,
            weight: fields.weight.unwrap_or(1),
            end_reason: fields.end_reason.unwrap_or(0),
            flags: fields.flags.unwrap_or(0),
            state: fields.state.unwrap_or(0),
            syscall: fields.syscall,
            waits_on: text.checked_sub(1).map(TextId),
            span: fields.span.unwrap_or(self.span),
            root_span: fields.root_span.unwrap_or(self.root_span),
            root_high: fields.root_high.unwrap_or(self.root_high),
            tags,
        };
        self.remember(&sample);
        (time_ns >= state.last_ns).then_some(sample)
    }

    /// Returns the base that the time of the next sample is relative to.
    fn due_ns(&mut self, state: &Checkpoint, tick_ns: u64) -> u64 {
        self.gap_end_ns.take().unwrap_or(state.last_ns.wrapping_add(tick_ns))
    }

    /// Returns the slot field of a sample with this call-trace id.
    fn encode_slot(&mut self, trace_id: u64, state: &Checkpoint) -> Option<u32> {
        let (epoch, slot) = (epoch_of(trace_id), trace_id as u32);
        if epoch == 0 {
            return (slot != 0).then_some(zigzag(slot));
        }
        let hash = self.stacks.hash(&state.locations);
        let is_expected = slot == self.stacks.expected(hash, epoch);
        let difference = slot.wrapping_sub(self.stacks.next(epoch));
        self.stacks.note(hash, trace_id);
        (!is_expected).then_some(zigzag(difference))
    }

    /// Returns the call-trace id for a slot field.
    fn decode_slot(&mut self, field: Option<u32>, epoch: u32, state: &Checkpoint) -> u64 {
        if epoch == 0 {
            return field.map_or(0, unzigzag).into();
        }
        let hash = self.stacks.hash(&state.locations);
        let slot = match field {
            None => self.stacks.expected(hash, epoch),
            Some(field) => self.stacks.next(epoch).wrapping_add(unzigzag(field)),
        };
        let trace_id = u64::from(epoch) << 32 | u64::from(slot);
        self.stacks.note(hash, trace_id);
        trace_id
    }

    /// Returns what a sample waits on if its field is absent: nothing outside of a system call.
    /// Between two waits on the same thing there may be running samples.
    fn expected_text(&self, syscall: Option<u32>) -> u32 {
        if syscall.is_some() { self.waits_on } else { 0 }
    }

    fn remember(&mut self, sample: &Sample) {
        let Sample { trace_id, span, root_span, root_high, tags, .. } = *sample;
        (self.trace_id, self.tags) = (trace_id, tags);
        (self.span, self.root_span, self.root_high) = (span, root_span, root_high);
        if sample.syscall.is_some() {
            self.waits_on = text_number(sample);
        }
    }
}

/// Returns the stored form of what a sample waits on. Ids are far from the limit.
fn text_number(sample: &Sample) -> u32 {
    sample.waits_on.map_or(0, |text| text.0.saturating_add(1))
}

/// Encodes a difference modulo 2^32 as a number that is small if the difference is.
fn zigzag(difference: u32) -> u32 {
    difference << 1 ^ (difference as i32 >> 31) as u32
}

fn unzigzag(number: u32) -> u32 {
    number >> 1 ^ (number & 1).wrapping_neg()
}
