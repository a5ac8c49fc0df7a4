//! The live table as lines of a terminal, or as a complete table for a pipe.

use super::display_state::DisplayState;
use super::live_counts::{LiveCounts, ShownCounts};
use super::row_weights::RowKind;
use super::status::LiveStatus;
use super::table::{LiveColumns, LiveRow, LiveTable, heading};
use crate::view::recording::mode::Mode;
use crate::view::text::escape::escaped;

/// Maximum width of names in a table that goes to a pipe.
const NAMES_MAX: usize = 80;
/// Maximum width of the location of a row, such as its module.
const QUALIFIER_MAX: usize = 28;
/// Minimum width of a name. If less is left, the location is omitted.
const NAME_MIN: usize = 14;
/// Number of lines around the rows: two above the headings, the headings, and the last one.
const AROUND: usize = 5;

/// The size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScreenSize {
    /// Characters per line.
    pub width: usize,
    /// Number of lines.
    pub height: usize,
}

impl ScreenSize {
    /// Returns the number of rows that fit.
    pub fn rows(self) -> usize {
        self.height.saturating_sub(AROUND).max(1)
    }
}

/// The style of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineStyle {
    /// Plain text.
    Plain,
    /// The line about the target.
    Head,
    /// A column heading.
    Heading,
    /// A row with a tenth of the time or more.
    Hot,
    /// Secondary text.
    Dim,
}

/// A line of a terminal, without its line feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScreenLine {
    /// The text, at most as long as the terminal is wide.
    pub text: String,
    /// The style.
    pub style: LineStyle,
}

/// Returns all lines of a terminal of this size. Limits the scroll position to the existing rows.
pub fn screen(
    counts: &LiveCounts,
    status: &LiveStatus,
    display: &mut DisplayState,
    size: ScreenSize,
) -> Vec<ScreenLine> {
    let mut lines = vec![
        ScreenLine { text: status.target(), style: LineStyle::Head },
        ScreenLine { text: status.figures_with_history(), style: LineStyle::Plain },
    ];
    if display.help {
        lines.extend(
            help(display).into_iter().map(|text| ScreenLine { text, style: LineStyle::Plain }),
        );
    } else {
        table(counts, status, display, size, &mut lines);
    }
    lines.truncate(size.height.saturating_sub(1));
    lines.resize(
        size.height.saturating_sub(1),
        ScreenLine { text: String::new(), style: LineStyle::Plain },
    );
    lines.push(ScreenLine { text: foot(status, display), style: LineStyle::Dim });
    for line in &mut lines {
        line.text = cut(&line.text, size.width);
    }
    lines
}

/// Returns a complete table of at most `top` rows and the sum of the others.
pub fn plain(
    counts: &LiveCounts,
    status: &LiveStatus,
    display: &DisplayState,
    top: usize,
) -> String {
    let mut text = format!("{}\n{}\n", status.target(), status.figures());
    let Some(ShownCounts { times, idle }) = counts.shown(display) else { return text };
    let table = LiveTable::new(&times, display, LiveColumns::BOTH);
    let shown = table.rows.get(..top).unwrap_or(&table.rows);
    let names = shown.iter().map(|row| row.label.text.chars().count()).max().unwrap_or(0);
    let names = names.clamp(display.kind.name().len(), NAMES_MAX);
    let [above, columns] =
        heading(display, LiveColumns::BOTH, idle.is_some(), status.interval.as_secs_f64());
    let title = titles(display, names);
    text.push_str(&format!("{above}\n{columns}  {}\n", title.trim_end()));
    for row in shown {
        // Names are not truncated here: a script may search for the complete name.
        let label = format!("{:names$}  {}", row.label.text, row.label.qualifier);
        text.push_str(&format!("{}  {}\n", table.numbers(row), label.trim_end()));
    }
    if shown.is_empty() {
        text.push_str(&format!("  {}\n", nothing(display, status)));
    }
    text.extend(table.rest(shown.len()).map(|rest| format!("{rest}\n")));
    text.extend(idle.map(|idle| format!("{}\n", idle.line("--idle shows them"))));
    text
}

fn table(
    counts: &LiveCounts,
    status: &LiveStatus,
    display: &mut DisplayState,
    size: ScreenSize,
    lines: &mut Vec<ScreenLine>,
) {
    let Some(ShownCounts { times, idle }) = counts.shown(display) else { return };
    let pairs = LiveColumns::fitting(size.width, display);
    let table = LiveTable::new(&times, display, pairs);
    let room = size.rows().saturating_sub(usize::from(idle.is_some())).max(1);
    display.scroll = display.scroll.min(table.rows.len().saturating_sub(room));
    // If not all rows fit, the last line shows the sum of the others.
    let from = table.rows.get(display.scroll..).unwrap_or_default();
    let number = if from.len() > room { room - 1 } else { from.len() };
    let shown = from.get(..number).unwrap_or_default();
    let qualifiers = shown.iter().map(|row| row.label.qualifier.chars().count()).max().unwrap_or(0);
    let qualifiers = qualifiers.clamp(qualifier_title(display).len(), QUALIFIER_MAX);
    let room = size.width.saturating_sub(pairs.width() + 2);
    let qualifiers = if room < NAME_MIN + 2 + qualifiers { 0 } else { qualifiers };
    let names = if qualifiers == 0 { room } else { room - 2 - qualifiers }.max(NAME_MIN);
    let [above, columns] = heading(display, pairs, idle.is_some(), status.interval.as_secs_f64());
    lines.push(ScreenLine { text: above, style: LineStyle::Dim });
    let title = match qualifiers {
        0 => format!("{columns}  {}", display.kind.name()),
        _ => format!("{columns}  {}", titles(display, names)),
    };
    let blank = " ".repeat(size.width.saturating_sub(title.chars().count()));
    lines.push(ScreenLine { text: format!("{title}{blank}"), style: LineStyle::Heading });
    let hot = |row: &LiveRow<'_>| {
        let (weight, whole) = match display.since_start {
            true => (row.all, times.all.all),
            false => (row.last, times.last.all),
        };
        weight.own > 0 && weight.own >= whole / 10
    };
    for row in shown {
        let name = cut_name(&row.label.text, names);
        let text = format!(
            "{}  {name:names$}  {}",
            table.numbers(row),
            cut(&row.label.qualifier, qualifiers)
        );
        let style = if hot(row) { LineStyle::Hot } else { LineStyle::Plain };
        lines.push(ScreenLine { text: text.trim_end().to_owned(), style });
    }
    if shown.is_empty() {
        lines.push(ScreenLine {
            text: format!("  {}", nothing(display, status)),
            style: LineStyle::Dim,
        });
    }
    let rest = table.rest(display.scroll + number);
    let idle = idle.map(|idle| idle.line("i shows them"));
    lines.extend(
        rest.into_iter().chain(idle).map(|text| ScreenLine { text, style: LineStyle::Dim }),
    );
}

fn titles(display: &DisplayState, names: usize) -> String {
    format!("{:names$}  {}", display.kind.name(), qualifier_title(display))
}

fn qualifier_title(display: &DisplayState) -> &'static str {
    match display.kind {
        RowKind::Function | RowKind::Line => "module",
        RowKind::Module => "path",
        RowKind::Thread | RowKind::Process => "",
    }
}

fn nothing(display: &DisplayState, status: &LiveStatus) -> &'static str {
    match (display.mode, status.cpu_percent) {
        _ if !display.filter.is_empty() => "no row matches the filter",
        (Mode::Cpu, Some(..1.0)) => {
            "no sample yet: the process uses no CPU time (--mode wall shows what it waits for)"
        }
        _ => "no sample yet",
    }
}

fn foot(status: &LiveStatus, display: &DisplayState) -> String {
    let mut parts = Vec::new();
    if display.typing {
        return format!("filter: {}_   Enter keeps it  Esc clears it", display.filter);
    }
    parts.extend(display.paused.then(|| "PAUSED".to_owned()));
    parts.extend(status.notice.as_deref().map(|text| format!("note: {}", escaped(text))));
    let filter = &display.filter;
    parts.extend((!filter.is_empty()).then(|| format!("filter: {filter} (Esc clears it)")));
    if parts.is_empty() {
        let both = if display.has_both_modes { "  w cpu/wall" } else { "" };
        let idle = if display.mode == Mode::Wall { "  i idle" } else { "" };
        let process = if display.has_several { "P" } else { "" };
        let keys = format!("q quit  ? help  ftml{process} rows  s sort  c since start");
        parts.push(format!("{keys}{both}{idle}  / filter  S save  p pause"));
    }
    parts.join("  ")
}

fn help(display: &DisplayState) -> Vec<String> {
    let mode = if display.has_both_modes { "" } else { " (only with --mode cpu,wall)" };
    let mode = format!("  w          CPU time or all time{mode}");
    [
        "",
        "  self %     time in the function itself, as a share of all samples",
        "  total %    time in the function and all its callees",
        "",
        "  f t m l P  a row for each function, thread, module, line, process",
        "  s          sort by self or by total",
        "  c          sort by the last interval or by the time since the start",
        &mode,
        "  i          with all time: show or hide idle threads",
        "  /          show only rows with a text: Enter keeps it, Escape clears it",
        "  S          save the last minute as a trace in the current directory",
        "  p, space   pause or resume the table",
        "  arrows, PageUp, PageDown, Home    scroll",
        "  q, Ctrl-C  quit; the process goes on as before",
        "  Ctrl-Z     back to the shell, until fg",
        "",
        "  any key goes back",
    ]
    .map(str::to_owned)
    .to_vec()
}

/// Truncates a name to `width`. A name with a source location loses the start of the path, because
/// its end has the line number.
fn cut_name(text: &str, width: usize) -> String {
    let Some((name, path)) = text.rsplit_once(" at ") else { return cut(text, width) };
    let length = text.chars().count();
    let name_width = name.chars().count();
    if length <= width || name_width + 12 > width {
        return cut(text, width);
    }
    let left = width - name_width - " at …".chars().count();
    let skipped = path.chars().count().saturating_sub(left);
    let end: String = path.chars().skip(skipped).collect();
    format!("{name} at …{end}")
}

/// Truncates a text to `width` characters. An ellipsis replaces the remainder.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    if width == 0 { kept } else { format!("{kept}…") }
}
