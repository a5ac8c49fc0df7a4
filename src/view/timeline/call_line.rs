//! The line of a call, and the indentation of a timeline.
//!
//! Invariant: on a terminal a name gets about half of a line, however deep its call is, because
//! deep calls differ only by their names.

use std::io::Write;

use unicode_width::UnicodeWidthStr;

use super::call_names::duration;
use super::thread_samples::SampleShare;
use super::{TimelineContext, ViewError};
use crate::trace::LazyCall;
use crate::view::recording::mode::Mode;
use crate::view::text::number::counted;
use crate::view::text::text_style::TextStyle;

/// Maximum indented depth. The target decides the depth, and lines of thousands of spaces are
/// useless. Deeper lines show the depth as a number.
const INDENT_MAX: usize = 128;
/// Columns of a terminal per indented level. Indentation takes at most a fifth of the width.
const COLUMNS_A_LEVEL: usize = 10;
/// Indentation of a continuation line.
const HANGING: &str = "    ";

/// The parts of a call's line.
struct CallLine<'a> {
    lead: String,
    /// The name with the module.
    name: &'a str,
    /// The name without the module.
    bare: &'a str,
    numbers: String,
    /// The source location, empty without `--verbose`.
    location: &'a str,
}

/// Writes the lines of calls and leaves.
pub(super) struct LineWriter<'a> {
    pub(super) shared: &'a TimelineContext<'a>,
}

impl LineWriter<'_> {
    /// Writes a call. It has a start if that differs from its caller's.
    pub(super) fn call(
        &self,
        (call, share): (&LazyCall, SampleShare),
        begin_ns: Option<u64>,
        depth: usize,
        out: &mut dyn Write,
    ) -> Result<(), ViewError> {
        let observed = match self.shared.filter.mode {
            Mode::Cpu => {
                format!("~{}", duration(share.span_ns.saturating_add(self.shared.period_ns)))
            }
            Mode::Wall => duration(share.weight.saturating_mul(1000)),
        };
        let known = call.location().map(|location| self.shared.names.of(location)).transpose()?;
        let (name, bare) =
            known.as_ref().map_or(("[unknown]", "[unknown]"), |it| (&it.name, &it.bare));
        let location = known
            .as_ref()
            .filter(|_| self.shared.options.verbose)
            .map_or("", |known| &known.location_text);
        let samples = counted(share.samples, "sample");
        let begin = match begin_ns {
            Some(ns) => {
                let since_ns = ns.saturating_sub(self.shared.base_ns);
                format!(" at {:.3} s", since_ns as f64 / 1e9)
            }
            None => String::new(),
        };
        let mut numbers = format!("{samples}, {observed}{begin}");
        for (is_so, mark) in [
            (call.begin_lost(), " <start lost>"),
            (call.end_lost(), " <end lost>"),
            (call.unfinished(), " <unfinished>"),
        ] {
            numbers.push_str(if is_so { mark } else { "" });
        }
        let line = CallLine { lead: self.indent(depth), name, bare, numbers, location };
        for line in line.lines(&self.shared.options.style) {
            writeln!(out, "{line}")?;
        }
        Ok(())
    }

    /// Returns the indentation of a line.
    pub(super) fn indent(&self, depth: usize) -> String {
        let most = match self.shared.options.style.width {
            Some(width) => (width / COLUMNS_A_LEVEL).min(INDENT_MAX),
            None => INDENT_MAX,
        };
        match depth <= most {
            true => "  ".repeat(depth),
            false => format!("{}[{depth}] ", "  ".repeat(most)),
        }
    }
}

impl CallLine<'_> {
    /// Returns the lines of the call.
    fn lines(&self, style: &TextStyle) -> Vec<String> {
        let Self { lead, name, bare, numbers, location } = self;
        let Some(width) = style.width else {
            return vec![format!("{lead}{name}: {numbers}{location}")];
        };
        let room = width.saturating_sub(lead.len() + 2 + numbers.width());
        let beside = match (name.width() <= room, bare.width() <= room || room >= width / 2) {
            (true, _) => Some((*name).into()),
            (false, true) => Some(style.cut(bare, room)),
            (false, false) => None,
        };
        let hanging = format!("{}{HANGING}", " ".repeat(lead.len()));
        let mut lines = match beside {
            Some(name) => vec![format!("{lead}{name}: {numbers}")],
            None => {
                let name = style.fit(bare, lead.len() + 1);
                vec![format!("{lead}{name}:"), format!("{hanging}{numbers}")]
            }
        };
        // The location starts with a space.
        let fits = lines.last().is_some_and(|last| last.width() + location.width() <= width);
        match lines.last_mut() {
            Some(last) if fits => last.push_str(location),
            _ => {
                let location = style.fit(location.trim_start(), hanging.len());
                lines.push(format!("{hanging}{location}"));
            }
        }
        lines
    }
}
