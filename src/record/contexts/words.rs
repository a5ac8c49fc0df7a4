//! Contexts for a look at a process without an agent: in words, for people.

use traceprof_abi::context::{ContextSources, origin};

use super::super::modules::AddressMap;
use super::{Contexts, Otel, Outside, ThreadContext};
use crate::proc::{self, Mapping};
use crate::trace::TagKind;

/// What a thread works on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Work {
    /// The id of its span, or 0.
    pub span: u64,
    /// The id of the root of that, or 0.
    pub root_span: u128,
    /// Names and values.
    pub tags: Vec<(String, String)>,
}

impl Contexts {
    /// What is told of in a process that has no agent.
    pub(in crate::record) fn of_process(
        pid: i32,
        mappings: &[Mapping],
        addresses: &AddressMap,
    ) -> Self {
        let inner_pid = proc::status(pid).map_or(0, |status| status.inner_tgid as u32);
        let outside = Outside { pid, inner_pid, ..Outside::default() };
        let mut contexts = Self { outside, otel: Otel::of(pid), ..Self::default() };
        // Nobody but the caller is told where they are.
        contexts.refresh(mappings, addresses, &ContextSources::default());
        contexts
    }

    /// A context in words; `None` of a thread that works on nothing.
    pub(in crate::record) fn in_words(&mut self, context: ThreadContext) -> Option<Work> {
        let ThreadContext { source, span, root_span, root_high, tags } = context;
        let tags = match source {
            origin::NONE => return None,
            origin::RECORD => self.attributes_in_words(tags[0]),
            table => self.tags_in_words(table.wrapping_sub(origin::TABLE) as usize, tags),
        };
        let root_span = u128::from(root_high) << 64 | u128::from(root_span);
        Some(Work { span, root_span, tags })
    }

    fn attributes_in_words(&mut self, number: u32) -> Vec<(String, String)> {
        let Some(bytes) = self.outside.sets.get(number) else { return Vec::new() };
        let (named, _) = self.otel.attributes(&bytes);
        named.into_iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    fn tags_in_words(&mut self, table: usize, tags: [u32; 10]) -> Vec<(String, String)> {
        let pid = self.outside.pid;
        let Some(table) = self.tables.get_mut(table) else { return Vec::new() };
        let there = tags.into_iter().enumerate().filter(|(_, value)| *value != 0);
        let word = |(place, value)| {
            let key = table.key(pid, place)?;
            let value = match key.kind {
                TagKind::Number => u32::to_string(&value),
                TagKind::Text => table.text(pid, value)?.to_string(),
            };
            Some((key.name.to_string(), value))
        };
        there.filter_map(word).collect()
    }
}
