//! What is left out between two lines of a timeline, in a line or two.

use std::io::{self, Write};

use super::names::duration;
use crate::view::rows::{counted, percent};

/// A run of children without a line of their own.
#[derive(Debug, Default)]
pub(super) struct Folded {
    /// What there is, in the order in which it first came.
    kinds: Vec<Kind>,
    /// Samples that are children themselves.
    own: u64,
    children: u64,
    /// Samples in these.
    samples: u64,
    gaps: u64,
    gaps_ns: u64,
    states: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Own,
    Children,
    Gaps,
    States,
}

impl Folded {
    /// A sample.
    pub(super) fn sample(&mut self) {
        self.note(Kind::Own);
        self.own += 1;
    }

    /// A child that is not shown, with so many samples.
    pub(super) fn call(&mut self, samples: u64) {
        self.children(1, samples);
    }

    /// Several of these.
    pub(super) fn children(&mut self, children: u32, samples: u64) {
        self.note(Kind::Children);
        self.children += u64::from(children);
        self.samples = self.samples.saturating_add(samples);
    }

    /// A gap.
    pub(super) fn gap(&mut self, length_ns: u64) {
        self.note(Kind::Gaps);
        self.gaps += 1;
        self.gaps_ns = self.gaps_ns.saturating_add(length_ns);
    }

    /// A change of the run state.
    pub(super) fn state(&mut self) {
        self.note(Kind::States);
        self.states += 1;
    }

    fn note(&mut self, kind: Kind) {
        if !self.kinds.contains(&kind) {
            self.kinds.push(kind);
        }
    }

    /// Writes what there is, and forgets it. `whole` is what shares are of.
    pub(super) fn write(&mut self, whole: u64, lead: &str, out: &mut dyn Write) -> io::Result<()> {
        let folded = std::mem::take(self);
        for kind in &folded.kinds {
            let text = match kind {
                Kind::Own => format!("<{} in self>", counted(folded.own, "sample")),
                Kind::Children => folded.children_text(whole),
                Kind::Gaps if folded.gaps == 1 => format!("<gap {}>", duration(folded.gaps_ns)),
                Kind::Gaps => format!("<{} gaps, {}>", folded.gaps, duration(folded.gaps_ns)),
                Kind::States => format!("<{}>", counted(folded.states, "state change")),
            };
            writeln!(out, "{lead}... {text}")?;
        }
        Ok(())
    }

    fn children_text(&self, whole: u64) -> String {
        let Self { children, samples, .. } = *self;
        let share = match samples {
            0 => String::new(),
            _ => format!(": {}, {:.1} %", counted(samples, "sample"), percent(samples, whole)),
        };
        match children {
            1 => format!("<unloaded child>{share}"),
            _ => format!("<{children} unloaded children>{share}"),
        }
    }
}
