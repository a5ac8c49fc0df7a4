//! The line of a call, and how far the lines of a timeline are indented.
//!
//! Invariant: on a terminal a name has about half of a line, however deep its call is: deep calls are
//! told apart by their names alone.

use std::io::Write;

use unicode_width::UnicodeWidthStr;

use super::names::duration;
use super::{Shared, ViewError, Walk};
use crate::trace::LazyCall;
use crate::view::look::Look;
use crate::view::mode::Mode;
use crate::view::rows::counted;

/// Deeper than this, lines are not indented further: the depth is the target's choice, and a line
/// of thousands of spaces is of no use. The depth is written instead.
const INDENT_MAX: usize = 128;
/// On a terminal, the columns for each level that is indented: a fifth of its width is all that they
/// take.
const COLUMNS_A_LEVEL: usize = 10;
/// Before what does not fit beside a name.
const HANGING: &str = "    ";

/// What a line says of a call.
struct Line<'a> {
    lead: String,
    /// With the module,
    name: &'a str,
    /// and without.
    bare: &'a str,
    numbers: String,
    /// Empty if it is not asked for.
    place: &'a str,
}

impl Walk<'_> {
    /// Writes a call.
    pub(super) fn call(
        &self,
        call: &LazyCall,
        depth: usize,
        out: &mut dyn Write,
    ) -> Result<(), ViewError> {
        if self.shared.options.json {
            return self.call_object(call, depth, out);
        }
        let share = self.share(call);
        let observed = match self.shared.filter.mode {
            Mode::Cpu => {
                format!("~{}", duration(share.span_ns.saturating_add(self.shared.period_ns)))
            }
            Mode::Wall => duration(share.weight.saturating_mul(1000)),
        };
        let known = call.location().map(|location| self.shared.names.of(location)).transpose()?;
        let (name, bare) =
            known.as_ref().map_or(("[unknown]", "[unknown]"), |it| (&it.name, &it.bare));
        let place =
            known.as_ref().filter(|_| self.shared.options.verbose).map_or("", |known| &known.place);
        let mut numbers = format!("{}, {observed}", counted(share.samples, "sample"));
        for (is_so, mark) in [
            (call.begin_lost(), " <begin lost>"),
            (call.end_lost(), " <end lost>"),
            (call.unfinished(), " <unfinished>"),
        ] {
            numbers.push_str(if is_so { mark } else { "" });
        }
        let line = Line { lead: self.shared.indent(depth), name, bare, numbers, place };
        for line in line.lines(&self.shared.options.look) {
            writeln!(out, "{line}")?;
        }
        Ok(())
    }
}

impl Line<'_> {
    /// It in as many lines as it takes.
    fn lines(&self, look: &Look) -> Vec<String> {
        let Self { lead, name, bare, numbers, place } = self;
        let Some(width) = look.width else {
            return vec![format!("{lead}{name}: {numbers}{place}")];
        };
        let room = width.saturating_sub(lead.len() + 2 + numbers.width());
        let beside = match (name.width() <= room, bare.width() <= room || room >= width / 2) {
            (true, _) => Some((*name).into()),
            (false, true) => Some(look.cut(bare, room)),
            (false, false) => None,
        };
        let hanging = format!("{}{HANGING}", " ".repeat(lead.len()));
        let mut lines = match beside {
            Some(name) => vec![format!("{lead}{name}: {numbers}")],
            None => {
                let name = look.fit(bare, lead.len() + 1);
                vec![format!("{lead}{name}:"), format!("{hanging}{numbers}")]
            }
        };
        // Words of its own follow it: it begins with a space.
        let fits = lines.last().is_some_and(|last| last.width() + place.width() <= width);
        match lines.last_mut() {
            Some(last) if fits => last.push_str(place),
            _ => {
                let place = look.fit(place.trim_start(), hanging.len());
                lines.push(format!("{hanging}{place}"));
            }
        }
        lines
    }
}

impl Shared<'_> {
    /// What is before a line.
    pub(super) fn indent(&self, depth: usize) -> String {
        let most = match self.options.look.width {
            Some(width) => (width / COLUMNS_A_LEVEL).min(INDENT_MAX),
            None => INDENT_MAX,
        };
        match depth <= most {
            true => "  ".repeat(depth),
            false => format!("{}[{depth}] ", "  ".repeat(most)),
        }
    }
}
