//! The live table as lines: as many as a terminal has, or a whole table for a pipe.

use super::board::{Board, Shown};
use super::head::Head;
use super::look::Look;
use super::table::{Columns, Row, Table, heading};
use super::tally::Kind;
use crate::view::escape::escaped;
use crate::view::mode::Mode;

/// Room for names in a table that goes to a pipe.
const NAMES_MAX: usize = 80;
/// What the place of a row, such as its module, has of a line at most.
const PLACE_MAX: usize = 28;
/// A name has so much of a line at least, or its place is left out.
const NAME_MIN: usize = 14;
/// Lines around the rows: two above the headings, the headings, and the last one.
const AROUND: usize = 5;

/// The characters and lines of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Characters of a line.
    pub width: usize,
    /// Lines.
    pub height: usize,
}

impl Size {
    /// Rows of the table that have room.
    pub fn rows(self) -> usize {
        self.height.saturating_sub(AROUND).max(1)
    }
}

/// How a line stands out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Not at all.
    Plain,
    /// What the table is about.
    Head,
    /// Above a column.
    Heading,
    /// A row with a tenth of the time or more.
    Hot,
    /// Beside the matter.
    Dim,
}

/// A line of a terminal, without its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The text; never longer than the terminal is wide.
    pub text: String,
    /// How it stands out.
    pub style: Style,
}

/// All lines of a terminal of this size. The look's `scroll` is brought to where there are rows.
pub fn screen(board: &Board, head: &Head, look: &mut Look, size: Size) -> Vec<Line> {
    let mut lines = vec![
        Line { text: head.target(), style: Style::Head },
        Line { text: head.figures(), style: Style::Plain },
    ];
    if look.help {
        lines.extend(help(look).into_iter().map(|text| Line { text, style: Style::Plain }));
    } else {
        table(board, head, look, size, &mut lines);
    }
    lines.truncate(size.height.saturating_sub(1));
    lines.resize(size.height.saturating_sub(1), Line { text: String::new(), style: Style::Plain });
    lines.push(Line { text: foot(head, look), style: Style::Dim });
    for line in &mut lines {
        line.text = cut(&line.text, size.width);
    }
    lines
}

/// A whole table of at most `top` rows; what is left out is summed up.
pub fn plain(board: &Board, head: &Head, look: &Look, top: usize) -> String {
    let mut text = format!("{}\n{}\n", head.target(), head.figures());
    let Some(Shown { times, idle }) = board.shown(look) else { return text };
    let table = Table::new(&times, look, Columns::BOTH);
    let shown = table.rows.get(..top).unwrap_or(&table.rows);
    let names = shown.iter().map(|row| row.label.text.chars().count()).max().unwrap_or(0);
    let names = names.clamp(look.kind.name().len(), NAMES_MAX);
    let [above, columns] =
        heading(look, Columns::BOTH, idle.is_some(), head.interval.as_secs_f64());
    let title = titles(look, names);
    text.push_str(&format!("{above}\n{columns}  {}\n", title.trim_end()));
    for row in shown {
        // No name is cut here: a script may look for the whole of it.
        let label = format!("{:names$}  {}", row.label.text, row.label.place);
        text.push_str(&format!("{}  {}\n", table.numbers(row), label.trim_end()));
    }
    if shown.is_empty() {
        text.push_str(&format!("  {}\n", nothing(look, head)));
    }
    text.extend(table.rest(shown.len()).map(|rest| format!("{rest}\n")));
    text.extend(idle.map(|idle| format!("{}\n", idle.line("--idle shows them"))));
    text
}

fn table(board: &Board, head: &Head, look: &mut Look, size: Size, lines: &mut Vec<Line>) {
    let Some(Shown { times, idle }) = board.shown(look) else { return };
    let pairs = Columns::fitting(size.width, look);
    let table = Table::new(&times, look, pairs);
    let room = size.rows().saturating_sub(usize::from(idle.is_some())).max(1);
    look.scroll = look.scroll.min(table.rows.len().saturating_sub(room));
    // Where not all have room, the last line tells what the others come to.
    let from = table.rows.get(look.scroll..).unwrap_or_default();
    let number = if from.len() > room { room - 1 } else { from.len() };
    let shown = from.get(..number).unwrap_or_default();
    let place = shown.iter().map(|row| row.label.place.chars().count()).max().unwrap_or(0);
    let place = place.clamp(place_title(look).len(), PLACE_MAX);
    let room = size.width.saturating_sub(pairs.width() + 2);
    let place = if room < NAME_MIN + 2 + place { 0 } else { place };
    let names = if place == 0 { room } else { room - 2 - place }.max(NAME_MIN);
    let [above, columns] = heading(look, pairs, idle.is_some(), head.interval.as_secs_f64());
    lines.push(Line { text: above, style: Style::Dim });
    let title = match place {
        0 => format!("{columns}  {}", look.kind.name()),
        _ => format!("{columns}  {}", titles(look, names)),
    };
    let blank = " ".repeat(size.width.saturating_sub(title.chars().count()));
    lines.push(Line { text: format!("{title}{blank}"), style: Style::Heading });
    let hot = |row: &Row<'_>| {
        let (weight, whole) = match look.since_start {
            true => (row.all, times.all.all),
            false => (row.last, times.last.all),
        };
        weight.own > 0 && weight.own >= whole / 10
    };
    for row in shown {
        let name = cut_name(&row.label.text, names);
        let text =
            format!("{}  {name:names$}  {}", table.numbers(row), cut(&row.label.place, place));
        let style = if hot(row) { Style::Hot } else { Style::Plain };
        lines.push(Line { text: text.trim_end().to_owned(), style });
    }
    if shown.is_empty() {
        lines.push(Line { text: format!("  {}", nothing(look, head)), style: Style::Dim });
    }
    let rest = table.rest(look.scroll + number);
    let idle = idle.map(|idle| idle.line("i shows them"));
    lines.extend(rest.into_iter().chain(idle).map(|text| Line { text, style: Style::Dim }));
}

fn titles(look: &Look, names: usize) -> String {
    format!("{:names$}  {}", look.kind.name(), place_title(look))
}

fn place_title(look: &Look) -> &'static str {
    match look.kind {
        Kind::Function | Kind::Line => "module",
        Kind::Module => "path",
        Kind::Thread => "",
    }
}

fn nothing(look: &Look, head: &Head) -> &'static str {
    match (look.mode, head.cpu_percent) {
        (Mode::Cpu, Some(..1.0)) => {
            "no sample yet: the process uses no CPU time (--mode wall shows what it waits for)"
        }
        _ => "no sample yet",
    }
}

fn foot(head: &Head, look: &Look) -> String {
    let mut parts = Vec::new();
    parts.extend(look.paused.then(|| "PAUSED".to_owned()));
    parts.extend(head.notice.as_deref().map(|text| format!("note: {}", escaped(text))));
    if parts.is_empty() {
        let both = if look.has_both_modes { "  w cpu/wall" } else { "" };
        let idle = if look.mode == Mode::Wall { "  i idle" } else { "" };
        let keys = "q quit  ? help  ftml rows  s sort  c since start  p pause";
        parts.push(format!("{keys}{idle}{both}"));
    }
    parts.join("  ")
}

fn help(look: &Look) -> Vec<String> {
    let mode = if look.has_both_modes { "" } else { " (only with --mode cpu,wall)" };
    let mode = format!("  w          CPU time or all time{mode}");
    [
        "",
        "  self %     time in the function itself, of all samples of that time",
        "  total %    time in it and in all that it called",
        "",
        "  f t m l    a row for each function, thread, module, line",
        "  s          sort by self or by total",
        "  c          sort by the last interval or by the time since the start",
        &mode,
        "  i          of all time: show idle threads too, or leave them out",
        "  p, space   stop the table, and let it go on",
        "  arrows, PageUp, PageDown, Home    scroll",
        "  q, Ctrl-C  end: the process is left as it was",
        "  Ctrl-Z     back to the shell, until fg",
        "",
        "  any key goes back",
    ]
    .map(str::to_owned)
    .to_vec()
}

/// The same of a name; of one with a place it is the begin of the path that is left out: its end
/// tells the line.
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

/// At most so many characters; an ellipsis stands for the rest.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    if width == 0 { kept } else { format!("{kept}…") }
}
