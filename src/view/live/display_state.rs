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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
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
    /// Whether idle threads are shown too, in wall clock time.
    pub idle: bool,
    /// The number of rows above the screen.
    pub scroll: usize,
    /// Whether the display is paused.
    pub paused: bool,
    /// Whether the help is shown instead of the table.
    pub help: bool,
    /// Whether the user asked to quit.
    pub over: bool,
}

impl DisplayState {
    /// Applies a key. `page` is the number of rows on the screen.
    pub fn press(&mut self, key: KeyPress, page: usize) {
        let kind = |kind| Self { kind, scroll: 0, help: false, ..*self };
        *self = match key {
            KeyPress::Char('q') | KeyPress::End => Self { over: true, ..*self },
            // Any key leaves the help.
            _ if self.help => Self { help: false, ..*self },
            KeyPress::Char('?' | 'h') => Self { help: true, ..*self },
            KeyPress::Char('f') => kind(RowKind::Function),
            KeyPress::Char('t') => kind(RowKind::Thread),
            KeyPress::Char('m') => kind(RowKind::Module),
            KeyPress::Char('l') => kind(RowKind::Line),
            KeyPress::Char('s') => {
                let order = if self.order == Order::Own { Order::Total } else { Order::Own };
                Self { order, scroll: 0, ..*self }
            }
            KeyPress::Char('c') => Self { since_start: !self.since_start, scroll: 0, ..*self },
            KeyPress::Char('w') if self.has_both_modes => {
                let mode = if self.mode == Mode::Cpu { Mode::Wall } else { Mode::Cpu };
                Self { mode, scroll: 0, ..*self }
            }
            KeyPress::Char('i') => Self { idle: !self.idle, scroll: 0, ..*self },
            KeyPress::Char('p' | ' ') => Self { paused: !self.paused, ..*self },
            KeyPress::Up => self.scrolled(|row| row.saturating_sub(1)),
            KeyPress::Down => self.scrolled(|row| row.saturating_add(1)),
            KeyPress::PageUp => self.scrolled(|row| row.saturating_sub(page)),
            KeyPress::PageDown => self.scrolled(|row| row.saturating_add(page)),
            KeyPress::First => self.scrolled(|_| 0),
            // The caller handles suspension.
            KeyPress::Suspend | KeyPress::Char(_) => *self,
        };
    }

    fn scrolled(&self, to: impl Fn(usize) -> usize) -> Self {
        Self { scroll: to(self.scroll), ..*self }
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
    fn the_mode_changes_only_where_both_are_recorded() {
        assert_eq!(pressed("w").mode, Mode::Cpu);
        let mut display = DisplayState { has_both_modes: true, ..DisplayState::default() };
        display.press(KeyPress::Char('w'), 1);
        assert_eq!(display.mode, Mode::Wall);
    }
}
