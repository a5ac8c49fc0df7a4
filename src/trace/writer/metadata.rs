//! The metadata that was set, as long as it is in no frame: the end of a file that fails has it
//! too.

use std::collections::VecDeque;

use crate::trace::object::Neutral;
use crate::trace::tables::next_id;
use crate::trace::{TraceError, Value};

/// Metadata in the order in which it was set.
#[derive(Debug, Default)]
pub(super) struct MetadataLog {
    /// How many values were set.
    count: u32,
    /// Those that may be in no frame yet, with their ids.
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

    /// Takes out what is in no frame, given that the first `written` values are.
    pub(super) fn take_unwritten(&mut self, written: u32) -> Vec<(String, Value)> {
        let unwritten = std::mem::take(&mut self.unwritten).into_iter();
        let unwritten = unwritten.filter(|(id, ..)| *id >= written);
        unwritten.map(|(_, key, value)| (key, value)).collect()
    }
}
