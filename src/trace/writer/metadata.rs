//! The metadata that is in no frame yet: if writing fails, the end of the file gets it.

use std::collections::VecDeque;

use crate::trace::intern::next_id;
use crate::trace::object::Neutral;
use crate::trace::{TraceError, Value};

/// The metadata in the order of setting.
#[derive(Debug, Default)]
pub(super) struct MetadataLog {
    /// The number of values that were set.
    count: u32,
    /// The values that may be in no frame yet, with their ids.
    unwritten: VecDeque<(u32, String, Value)>,
}

impl MetadataLog {
    /// Adds a value and returns it as an object. The first `written` values are in frames.
    pub(super) fn set(
        &mut self,
        key: &str,
        value: Value,
        written: u32,
    ) -> Result<Neutral, TraceError> {
        let id = next_id(self.count as usize)?;
        self.count += 1;
        while self.unwritten.front().is_some_and(|(id, ..)| *id < written) {
            self.unwritten.pop_front();
        }
        self.unwritten.push_back((id, key.into(), value.clone()));
        Ok(Neutral::Metadata { id, key: key.into(), value })
    }

    /// Takes the values that are in no frame, given that the first `written` values are.
    pub(super) fn take_unwritten(&mut self, written: u32) -> Vec<(String, Value)> {
        let unwritten = std::mem::take(&mut self.unwritten).into_iter();
        let unwritten = unwritten.filter(|(id, ..)| *id >= written);
        unwritten.map(|(_, key, value)| (key, value)).collect()
    }
}
