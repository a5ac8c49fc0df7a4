//! Contexts of a process without an agent, as text for the user.

use traceprof_abi::context::{ContextSources, origin};

use crate::proc::{self, Mapping};
use crate::record::batch::contexts::ThreadContext;
use crate::record::name::contexts::{ContextReader, Contexts, Otel};
use crate::record::target::modules::AddressMap;
use crate::trace::TagKind;

/// The span and tags that a thread works on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadWork {
    /// The id of its span, or 0.
    pub span: u64,
    /// The id of that span's root, or 0.
    pub root_span: u128,
    /// The names and values of its tags.
    pub tags: Vec<(String, String)>,
}

impl Contexts {
    /// Reads the contexts of a process that has no agent.
    pub(crate) fn of_process(pid: i32, mappings: &[Mapping], addresses: &AddressMap) -> Self {
        let inner_pid = proc::status(pid).map_or(0, |status| status.inner_tgid as u32);
        let outside = ContextReader { pid, inner_pid, ..ContextReader::default() };
        let mut contexts = Self { outside, otel: Otel::of(pid), ..Self::default() };
        // No handler reads these sources.
        contexts.refresh(mappings, addresses, &ContextSources::default());
        contexts
    }

    /// Returns a context as text; `None` for a thread that works on nothing.
    pub(crate) fn describe(&mut self, context: ThreadContext) -> Option<ThreadWork> {
        let ThreadContext { source, span, root_span, root_high, tags, task } = context;
        let task = self.outside.task_name(task);
        let task = task.map(|(tag, name)| (tag.to_owned(), name.to_string()));
        let mut tags = match source {
            origin::NONE if task.is_none() => return None,
            origin::NONE => Vec::new(),
            origin::RECORD => self.describe_attributes(tags[0]),
            table => self.describe_tags(table.wrapping_sub(origin::TABLE) as usize, tags),
        };
        // As in traces, a tag of the application's own with this name stays.
        tags.extend(task.filter(|(tag, _)| tags.iter().all(|(name, _)| name != tag)));
        let root_span = u128::from(root_high) << 64 | u128::from(root_span);
        Some(ThreadWork { span, root_span, tags })
    }

    fn describe_attributes(&mut self, number: u32) -> Vec<(String, String)> {
        let Some(bytes) = self.outside.sets.get(number) else { return Vec::new() };
        let (named, _) = self.otel.attributes(&bytes);
        named.into_iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    fn describe_tags(&mut self, table: usize, tags: [u32; 10]) -> Vec<(String, String)> {
        let pid = self.outside.pid;
        let Some(table) = self.tables.get_mut(table) else { return Vec::new() };
        let there = tags.into_iter().enumerate().filter(|(_, value)| *value != 0);
        let word = |(index, value)| {
            let key = table.key(pid, index)?;
            let value = match key.kind {
                TagKind::Number => u32::to_string(&value),
                TagKind::Text => table.text(pid, value)?.to_string(),
            };
            Some((key.name.to_string(), value))
        };
        there.filter_map(word).collect()
    }
}
