//! The text for the nodes that are left out between two lines of a timeline.

use std::io::{self, Write};

use serde_json::{Map, Value as Json, json};

use super::call_names::duration;
use super::thread_samples::SampleShare;
use crate::view::recording::mode::Mode;
use crate::view::text::number::{counted, percent};
use crate::view::text::text_style::{Ink, TextStyle};

/// Consecutive children without a line of their own.
#[derive(Debug, Default)]
pub(super) struct FoldedChildren {
    /// The kinds of nodes, in the order of their first occurrence.
    kinds: Vec<FoldedKind>,
    /// The number of samples that are direct children.
    own: u64,
    /// The weight of these samples.
    own_weight: u64,
    /// Wall clock time of these samples in microseconds.
    own_us: u64,
    children: u64,
    /// The number of samples in these children.
    samples: u64,
    /// The weight of the samples in these children.
    weight: u64,
    gaps: u64,
    gaps_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FoldedKind {
    Own,
    Children,
    Gaps,
}

impl FoldedChildren {
    /// Adds a sample with this weight and this wall clock time in microseconds.
    pub(super) fn sample(&mut self, weight: u32, us: u64) {
        self.note(FoldedKind::Own);
        self.own += 1;
        self.own_weight = self.own_weight.saturating_add(u64::from(weight));
        self.own_us = self.own_us.saturating_add(us);
    }

    /// Adds hidden children with these samples.
    pub(super) fn children(&mut self, children: u32, share: SampleShare) {
        self.note(FoldedKind::Children);
        self.children += u64::from(children);
        self.samples = self.samples.saturating_add(share.samples);
        self.weight = self.weight.saturating_add(share.weight);
    }

    /// Adds a gap.
    pub(super) fn gap(&mut self, length_ns: u64) {
        self.note(FoldedKind::Gaps);
        self.gaps += 1;
        self.gaps_ns = self.gaps_ns.saturating_add(length_ns);
    }

    fn note(&mut self, kind: FoldedKind) {
        if !self.kinds.contains(&kind) {
            self.kinds.push(kind);
        }
    }

    /// Writes the folded nodes and clears them. `whole` is the weight that shares refer to.
    pub(super) fn write(
        &mut self,
        whole: u64,
        lead: &str,
        (style, out): (&TextStyle, &mut dyn Write),
    ) -> io::Result<()> {
        let folded = std::mem::take(self);
        for kind in &folded.kinds {
            let text = match kind {
                FoldedKind::Own if folded.own_us == 0 => {
                    format!("<{} in self>", counted(folded.own, "sample"))
                }
                FoldedKind::Own => {
                    let time = duration(folded.own_us.saturating_mul(1000));
                    format!("<{} in self, {time}>", counted(folded.own, "sample"))
                }
                FoldedKind::Children => folded.children_text(whole),
                FoldedKind::Gaps if folded.gaps == 1 => {
                    format!("<gap {}>", duration(folded.gaps_ns))
                }
                FoldedKind::Gaps => format!("<{} gaps, {}>", folded.gaps, duration(folded.gaps_ns)),
            };
            writeln!(out, "{lead}{}", style.paint(Some(Ink::Faint), &format!("... {text}")))?;
        }
        Ok(())
    }

    /// Takes the folded nodes as objects, each with its kind and its numbers.
    ///
    /// Gaps have their own objects, so they are left out. `whole` is the weight that percentages
    /// refer to.
    pub(super) fn take_objects(&mut self, whole: u64, mode: Mode) -> Vec<Map<String, Json>> {
        let folded = std::mem::take(self);
        let us = |weight: u64| (mode == Mode::Wall).then_some(weight);
        let object = |kind: &FoldedKind| match kind {
            FoldedKind::Own => {
                vec![
                    ("kind", json!("self")),
                    ("samples", json!(folded.own)),
                    ("weight", json!(folded.own_weight)),
                    ("wall_us", json!(us(folded.own_weight))),
                ]
            }
            FoldedKind::Children => vec![
                ("kind", json!("others")),
                ("number", json!(folded.children)),
                ("samples", json!(folded.samples)),
                ("weight", json!(folded.weight)),
                ("wall_us", json!(us(folded.weight))),
                ("percent", json!(percent(folded.weight, whole))),
            ],
            FoldedKind::Gaps => Vec::new(),
        };
        let objects = folded.kinds.iter().map(object).filter(|it| !it.is_empty());
        let named = |(key, value): (&str, Json)| (key.to_owned(), value);
        objects.map(|fields| fields.into_iter().map(named).collect()).collect()
    }

    fn children_text(&self, whole: u64) -> String {
        let Self { children, samples, weight, .. } = *self;
        let share = match samples {
            0 => String::new(),
            _ => format!(": {}, {:.1} %", counted(samples, "sample"), percent(weight, whole)),
        };
        match children {
            1 => format!("<1 call left out>{share}"),
            _ => format!("<{children} calls left out>{share}"),
        }
    }
}
