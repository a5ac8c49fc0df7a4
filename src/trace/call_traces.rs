//! Call traces that can be looked up by their ids.
//!
//! # Invariants
//! - A node's parent has a smaller index, so stacks end; they are put together when they are asked
//!   for, since many deep ones share most of their frames.

use std::collections::HashMap;

use super::{CallTrace, LocationId, NONE};

/// The call traces of a trace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CallTraces {
    nodes: Vec<(u32, LocationId)>,
    /// Node and end reason, by id.
    traces: HashMap<u64, (u32, u16)>,
}

impl CallTraces {
    /// `nodes` are parents (before their children) and locations, `traces` ids, nodes and end
    /// reasons. `None` if one refers to what is not there.
    pub(super) fn new(
        nodes: Vec<(u32, LocationId)>,
        traces: impl IntoIterator<Item = (u64, u32, u16)>,
    ) -> Option<Self> {
        let mut of_ids = HashMap::new();
        for (trace_id, node, end_reason) in traces {
            if node != NONE && node as usize >= nodes.len() {
                return None;
            }
            of_ids.insert(trace_id, (node, end_reason));
        }
        Some(Self { nodes, traces: of_ids })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.traces.len()
    }

    /// True if the recording wrote none.
    pub fn is_empty(&self) -> bool {
        self.traces.is_empty()
    }

    /// All of them, in the order of their ids.
    pub(super) fn iter(&self) -> impl Iterator<Item = CallTrace> {
        let mut ids: Vec<u64> = self.traces.keys().copied().collect();
        ids.sort_unstable();
        ids.into_iter().filter_map(|id| self.get(id))
    }

    /// The call trace with this id.
    pub fn get(&self, trace_id: u64) -> Option<CallTrace> {
        let (mut node, end_reason) = *self.traces.get(&trace_id)?;
        let mut stack = Vec::new();
        while let Some((parent, location)) = self.nodes.get(node as usize) {
            stack.push(*location);
            node = *parent;
        }
        stack.reverse();
        Some(CallTrace { trace_id, stack, end_reason })
    }
}
