//! Samples relative to the one before them: what changed and what is not zero.

use super::Sample;
use super::checkpoint::Checkpoint;
use super::object::SampleFields;

/// The values of the last sample in the block that the next one is relative to. A block begins with
/// the default.
#[derive(Debug, Clone, Default)]
pub(super) struct Context {
    trace_id: u64,
    span: u64,
    root_span: u64,
    tags: [u32; 10],
}

impl Context {
    /// The fields of `sample`, `outer` calls of whose stack are not its own.
    pub(super) fn encode(
        &mut self,
        sample: &Sample,
        state: &Checkpoint,
        tick_ns: u64,
        outer: usize,
    ) -> SampleFields {
        let changed = |new: u64, old: u64| (new != old).then_some(new);
        let half = |word: u64| word as u32;
        let changed_half = |new: u32, old: u32| (new != old).then_some(new);
        let mut tags = [None; 10];
        for (place, tag) in tags.iter_mut().enumerate() {
            *tag = changed_half(sample.tags[place], self.tags[place]);
        }
        let fields = SampleFields {
            time: sample.time_ns.wrapping_sub(state.last_ns).wrapping_sub(tick_ns) as i64,
            slot: changed_half(half(sample.trace_id), half(self.trace_id)),
            epoch: changed_half(half(sample.trace_id >> 32), half(self.trace_id >> 32)),
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
        };
        self.remember(sample);
        fields
    }

    /// The sample that `fields` stand for; `None` if its time lies before the last one.
    pub(super) fn decode(
        &mut self,
        fields: &SampleFields,
        state: &Checkpoint,
        tick_ns: u64,
    ) -> Option<Sample> {
        let time_ns = state.last_ns.wrapping_add(tick_ns).wrapping_add(fields.time as u64);
        let slot = fields.slot.unwrap_or(self.trace_id as u32);
        let epoch = fields.epoch.unwrap_or((self.trace_id >> 32) as u32);
        let mut tags = self.tags;
        for (tag, new) in tags.iter_mut().zip(fields.tags.unwrap_or_default()) {
            *tag = new.unwrap_or(*tag);
        }
        let sample = Sample {
            time_ns,
            trace_id: u64::from(epoch) << 32 | u64::from(slot),
            weight: fields.weight.unwrap_or(1),
            end_reason: fields.end_reason.unwrap_or(0),
            flags: fields.flags.unwrap_or(0),
            state: fields.state.unwrap_or(0),
            syscall: fields.syscall,
            span: fields.span.unwrap_or(self.span),
            root_span: fields.root_span.unwrap_or(self.root_span),
            tags,
        };
        self.remember(&sample);
        (time_ns >= state.last_ns).then_some(sample)
    }

    fn remember(&mut self, sample: &Sample) {
        let Sample { trace_id, span, root_span, tags, .. } = *sample;
        *self = Self { trace_id, span, root_span, tags };
    }
}
