//! What is left out between two lines of a timeline, in a line or two.

use std::io::{self, Write};

use super::names::duration;
use crate::view::rows::{counted, percent};

/// A run of children without a line of their own.
#[derive(Debug, Default)]
pub(super) struct Folded {
    /// Samples that are children themselves.
    own: u64,
    children: u64,
    /// Samples in these.
    samples: u64,
    gaps: u64,
    gaps_ns: u64,
    states: u64,
}

impl Folded {
    /// A sample.
    pub(super) fn sample(&mut self) {
        self.own += 1;
    }

    /// A child that is not shown, with so many samples.
    pub(super) fn call(&mut self, samples: u64) {
        self.children(1, samples);
    }

    /// Several of these.
    pub(super) fn children(&mut self, children: u32, samples: u64) {
        self.children += u64::from(children);
        self.samples = self.samples.saturating_add(samples);
    }

    /// A gap.
    pub(super) fn gap(&mut self, length_ns: u64) {
        self.gaps += 1;
        self.gaps_ns = self.gaps_ns.saturating_add(length_ns);
    }

    /// A change of the run state.
    pub(super) fn state(&mut self) {
        self.states += 1;
    }

    /// Writes what there is, and forgets it. `whole` is what shares are of.
    pub(super) fn write(&mut self, whole: u64, lead: &str, out: &mut dyn Write) -> io::Result<()> {
        let Self { own, children, samples, gaps, gaps_ns, states } = std::mem::take(self);
        if own > 0 {
            writeln!(out, "{lead}... <{} in self>", counted(own, "sample"))?;
        }
        if children > 0 {
            let share = match samples {
                0 => String::new(),
                _ => format!(": {}, {:.1} %", counted(samples, "sample"), percent(samples, whole)),
            };
            match children {
                1 => writeln!(out, "{lead}... <unloaded child>{share}")?,
                _ => writeln!(out, "{lead}... <{children} unloaded children>{share}")?,
            }
        }
        match gaps {
            0 => {}
            1 => writeln!(out, "{lead}... <gap {}>", duration(gaps_ns))?,
            _ => writeln!(out, "{lead}... <{gaps} gaps, {}>", duration(gaps_ns))?,
        }
        if states > 0 {
            writeln!(out, "{lead}... <{}>", counted(states, "state change"))?;
        }
        Ok(())
    }
}
