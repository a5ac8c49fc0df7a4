//! The line of a leaf: a sample, a gap, the exit of a thread.

use std::io::Write;

use traceprof_abi::storage::log::flags::CARRIED;

use super::ViewError;
use super::call_line::LineWriter;
use super::call_names::duration;
use crate::trace::{LazyNode, Sample};
use crate::view::recording::context::ContextKey;
use crate::view::recording::lock::{holds_lock, lock_name};
use crate::view::recording::mode::is_wall;
use crate::view::recording::waits::doing;
use crate::view::text::number::counted;
use crate::view::text::text_style::Ink;

impl LineWriter<'_> {
    /// Writes the line of a leaf.
    pub(super) fn leaf(
        &self,
        leaf: &LazyNode,
        depth: usize,
        out: &mut dyn Write,
    ) -> Result<(), ViewError> {
        let lead = self.indent(depth);
        let at = |time_ns: u64| {
            format!("{:.6} s", time_ns.saturating_sub(self.shared.base_ns) as f64 / 1e9)
        };
        let text = match leaf {
            // The walk handles calls itself.
            LazyNode::Call(_) => return Ok(()),
            LazyNode::Sample(sample) => {
                let text = format!("sample at {}: {}", at(sample.time_ns), self.describe(sample)?);
                // Numbers and names of states must not be truncated.
                let mut lead = lead;
                for line in self.shared.options.style.wrapped(&text, lead.len()) {
                    writeln!(out, "{lead}{line}")?;
                    lead = " ".repeat(lead.len());
                }
                return Ok(());
            }
            LazyNode::Gap { from_ns, to_ns } => {
                format!("gap {}", duration(to_ns.saturating_sub(*from_ns)))
            }
            LazyNode::ThreadStart { time_ns } => format!("thread started at {}", at(*time_ns)),
            LazyNode::ThreadExit { time_ns } => format!("thread exited at {}", at(*time_ns)),
            LazyNode::Lost { from_ns, to_ns, samples } => lost(*from_ns, *to_ns, *samples),
        };
        let text = format!("... <{text}>");
        Ok(writeln!(out, "{lead}{}", self.shared.options.style.paint(Some(Ink::Faint), &text))?)
    }

    /// Returns a description of a sample, without its time.
    fn describe(&self, sample: &Sample) -> Result<String, ViewError> {
        let on = sample.waits_on.map(|id| self.shared.trace.text(id)).transpose()?;
        let state = doing(sample.state, sample.syscall, on.as_deref());
        let mut text = if is_wall(sample) {
            format!("{} {state}", duration(u64::from(sample.weight).saturating_mul(1000)))
        } else {
            format!("weight {}, {state}", sample.weight)
        };
        if holds_lock(sample) {
            text.push_str(&format!(", holding {}", lock_name()));
        }
        if sample.trace_id != 0 {
            text.push_str(&format!(", trace {:#x}", sample.trace_id));
        }
        let context = ContextKey::of(sample).in_words(&self.shared.tags)?.to_string();
        if !context.is_empty() {
            let inferred = if sample.flags & CARRIED != 0 { " (as before and after)" } else { "" };
            text.push_str(&format!(", {context}{inferred}"));
        }
        Ok(text)
    }
}

/// Returns the microseconds that a sample stands for, or 0 for CPU time.
pub(super) fn time_us(sample: &Sample) -> u64 {
    if is_wall(sample) { u64::from(sample.weight) } else { 0 }
}

fn lost(from_ns: u64, to_ns: u64, samples: Option<u64>) -> String {
    let samples = match samples {
        Some(samples) => counted(samples, "sample"),
        None => "samples".to_owned(),
    };
    let length = match to_ns.checked_sub(from_ns) {
        Some(length_ns) if to_ns != u64::MAX => duration(length_ns),
        _ => "up to the end".to_owned(),
    };
    format!("lost {samples}, {length}")
}
