//! Call traces by id.
//!
//! # Invariants
//! - A node's parent has a smaller index, so stacks end.
//! - A stack is built on request, since many deep stacks share most of their frames.

use std::collections::HashMap;

use super::{CallTrace, LocationId, NONE};

/// The call traces of a loaded trace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CallTraces {
    nodes: Vec<(u32, LocationId)>,
    /// The node and the end reason of each call trace, by its id.
    traces: HashMap<u64, (u32, u16)>,
}

impl CallTraces {
    /// Creates the table. `nodes` has the parent and the location of each node, parents first;
    /// `traces` has ids, nodes and end reasons. Returns `None` if a call trace refers to a missing
    /// node.
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

    /// Returns the number of call traces.
    pub fn len(&self) -> usize {
        self.traces.len()
    }

    /// Returns whether the recording wrote no call traces.
    pub fn is_empty(&self) -> bool {
        self.traces.is_empty()
    }

    /// Iterates over all call traces by id.
    pub fn iter(&self) -> impl Iterator<Item = CallTrace> {
        let mut ids: Vec<u64> = self.traces.keys().copied().collect();
        ids.sort_unstable();
        ids.into_iter().filter_map(|id| self.get(id))
    }

    /// Returns the call trace with this id.
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
