//! The state of the live table that keys change.

use std::str::FromStr;

use super::keys::KeyPress;
use super::row_weights::RowKind;
use crate::view::recording::mode::Mode;

/// The order of the rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Order {
    /// By the time in a function itself.
    #[default]
    Own,
    /// By the time in a function and its callees.
    Total,
}

impl FromStr for Order {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "self" => Ok(Self::Own),
            "total" => Ok(Self::Total),
            _ => Err("expected self or total".to_owned()),
        }
    }
}

/// The state of the live table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DisplayState {
    /// The kind of the rows.
    pub kind: RowKind,
    /// The order of the rows.
    pub order: Order,
    /// Whether rows are sorted by the time since the start instead of the last interval.
    pub since_start: bool,
    /// The shown time: CPU time or wall clock time.
    pub mode: Mode,
    /// Whether both modes are recorded.
    pub has_both_modes: bool,
    /// Whether several processes are recorded.
    pub has_several: bool,
    /// Whether idle threads are shown too, in wall clock time.
    pub idle: bool,
    /// The text that a row must contain, in any case of letters; empty for all rows.
    pub filter: String,
    /// Whether keys go into the filter.
    pub typing: bool,
    /// The number of rows above the screen.
    pub scroll: usize,
    /// Whether the display is paused.
    pub paused: bool,
    /// Whether the help is shown instead of the table.
    pub help: bool,
    /// Whether the user asked to save the last minute.
    pub save: bool,
    /// Whether the user asked to quit.
    pub over: bool,
}

impl DisplayState {
    /// Applies a key. `page` is the number of rows on the screen.
    pub fn press(&mut self, key: KeyPress, page: usize) {
        match key {
            KeyPress::End => self.over = true,
            _ if self.typing => self.type_key(key),
            KeyPress::Char('q') => self.over = true,
            // Any key leaves the help.
            _ if self.help => self.help = false,
            KeyPress::Char('?' | 'h') => self.help = true,
            KeyPress::Char('f') => self.show(RowKind::Function),
            KeyPress::Char('t') => self.show(RowKind::Thread),
            KeyPress::Char('m') => self.show(RowKind::Module),
            KeyPress::Char('l') => self.show(RowKind::Line),
            KeyPress::Char('P') => self.show(RowKind::Process),
            KeyPress::Char('s') => {
                self.order = if self.order == Order::Own { Order::Total } else { Order::Own };
                self.scroll = 0;
            }
            KeyPress::Char('c') => {
                self.since_start = !self.since_start;
                self.scroll = 0;
            }
            KeyPress::Char('w') if self.has_both_modes => {
                self.mode = if self.mode == Mode::Cpu { Mode::Wall } else { Mode::Cpu };
                self.scroll = 0;
            }
            KeyPress::Char('i') => {
                self.idle = !self.idle;
                self.scroll = 0;
            }
            KeyPress::Char('/') => self.typing = true,
            KeyPress::Escape => self.filter.clear(),
            KeyPress::Char('S') => self.save = true,
            KeyPress::Char('p' | ' ') => self.paused = !self.paused,
            KeyPress::Up => self.scroll = self.scroll.saturating_sub(1),
            KeyPress::Down => self.scroll = self.scroll.saturating_add(1),
            KeyPress::PageUp => self.scroll = self.scroll.saturating_sub(page),
            KeyPress::PageDown => self.scroll = self.scroll.saturating_add(page),
            KeyPress::First => self.scroll = 0,
            // The caller handles suspension.
            KeyPress::Suspend | KeyPress::Enter | KeyPress::Backspace | KeyPress::Char(_) => {}
        }
    }

    fn show(&mut self, kind: RowKind) {
        (self.kind, self.scroll) = (kind, 0);
    }

    /// Applies a key to the filter.
    fn type_key(&mut self, key: KeyPress) {
        match key {
            KeyPress::Char(character) => self.filter.push(character),
            KeyPress::Backspace => drop(self.filter.pop()),
            KeyPress::Enter => self.typing = false,
            KeyPress::Escape => {
                self.typing = false;
                self.filter.clear();
            }
            _ => return,
        }
        self.scroll = 0;
    }

    /// Returns whether a row with these texts is shown.
    pub(super) fn admits(&self, name: &str, qualifier: &str) -> bool {
        let wanted = self.filter.to_lowercase();
        let has = |text: &str| text.to_lowercase().contains(&wanted);
        wanted.is_empty() || has(name) || has(qualifier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pressed(text: &str) -> DisplayState {
        let mut display = DisplayState::default();
        for key in super::super::keys(text.as_bytes()) {
            display.press(key, 10);
        }
        display
    }

    #[test]
    fn each_key_does_what_the_help_says() {
        assert_eq!(pressed("t").kind, RowKind::Thread);
        assert_eq!(pressed("tlmf").kind, RowKind::Function);
        assert_eq!(pressed("P").kind, RowKind::Process);
        assert_eq!((pressed("s").order, pressed("ss").order), (Order::Total, Order::Own));
        assert!(pressed("c").since_start && !pressed("cc").since_start);
        assert!(pressed("i").idle && !pressed("ii").idle);
        assert!(pressed("p").paused && !pressed("p ").paused);
        assert!(pressed("q").over && pressed("\x03").over && !pressed("x").over);
        assert_eq!(pressed("\x1b[B\x1b[B\x1b[A").scroll, 1);
        assert_eq!(pressed("\x1b[6~\x1b[6~\x1b[5~\x1b[B").scroll, 11);
        assert_eq!(pressed("\x1b[6~s").scroll, 0);
    }

    #[test]
    fn any_key_leaves_the_help_and_does_nothing_else() {
        assert!(pressed("?").help);
        assert_eq!(pressed("?t"), DisplayState::default());
        assert!(pressed("?q").over);
    }

    #[test]
    fn what_is_typed_after_a_slash_filters_and_does_nothing_else() {
        let typed = pressed("/qsP ");
        assert_eq!((typed.filter.as_str(), typed.typing), ("qsP ", true));
        assert_eq!(DisplayState { filter: String::new(), typing: false, ..typed }, pressed(""));
        assert_eq!(pressed("/ab\x7fc\rt").filter, "ac");
        assert_eq!(pressed("/ab\rt").kind, RowKind::Thread);
        assert_eq!(pressed("/ab\x1b").filter, "");
        assert_eq!(pressed("/ab\r\x1b"), DisplayState::default());
        assert!(pressed("/a\x03").over && pressed("S").save && !pressed("/S").save);
        let filter = pressed("/Demo");
        assert!(filter.admits("main", "/usr/bin/demo") && filter.admits("DEMO", ""));
        assert!(!filter.admits("main", "libc") && pressed("").admits("", ""));
    }

    #[test]
    fn the_mode_changes_only_where_both_are_recorded() {
        assert_eq!(pressed("w").mode, Mode::Cpu);
        let mut display = DisplayState { has_both_modes: true, ..DisplayState::default() };
        display.press(KeyPress::Char('w'), 1);
        assert_eq!(display.mode, Mode::Wall);
    }
}
