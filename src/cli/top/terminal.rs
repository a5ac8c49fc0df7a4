//! The terminal while it shows the table.
//!
//! # Invariants
//! - Screen and key mode are restored on every way out: by the drop, by the hook before a panic
//!   message, and before a second signal ends the process. Later restores do nothing.
//! - A frame is one write.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use nix::sys::termios::{
    LocalFlags, SetArg, SpecialCharacterIndices, Termios, tcgetattr, tcsetattr,
};
use nix::unistd::write;

use crate::record::before_exit;
use crate::view::live::{LineStyle, ScreenLine, ScreenSize};

/// Switches to the alternate screen, without cursor and line wrap.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
/// The size of a terminal that does not report one.
const USUAL: ScreenSize = ScreenSize { width: 80, height: 24 };

/// The terminal's settings before they were changed.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);
static HOOK: Once = Once::new();

/// The terminal, which is both standard input and output.
#[derive(Debug)]
pub(super) struct Terminal {
    has_colors: bool,
}

impl Terminal {
    /// Takes the terminal over.
    pub(super) fn enter(has_colors: bool) -> io::Result<Self> {
        HOOK.call_once(|| {
            before_exit(leave_at_once);
            let next = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                leave();
                next(info);
            }));
        });
        let before = tcgetattr(io::stdin())?;
        *saved() = Some(before.clone());
        let terminal = Self { has_colors };
        take_over(before)?;
        Ok(terminal)
    }

    /// Takes the terminal over again, after the shell had it.
    pub(super) fn enter_again(&self) -> io::Result<()> {
        let before = saved().clone();
        before.map_or(Ok(()), take_over)
    }

    /// Its size now.
    pub(super) fn size(&self) -> ScreenSize {
        match terminal_size::terminal_size_of(io::stdout()) {
            Some((width, height)) if width.0 > 0 && height.0 > 0 => {
                ScreenSize { width: width.0.into(), height: height.0.into() }
            }
            _ => USUAL,
        }
    }

    /// Draws these lines.
    pub(super) fn draw(&self, lines: &[ScreenLine]) -> io::Result<()> {
        if saved().is_none() {
            // A panic elsewhere has restored the terminal.
            return Ok(());
        }
        write_all(frame(lines, self.size().width, self.has_colors).as_bytes())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        leave();
    }
}

/// Waits until this process is in the foreground; a background process stops here.
pub(super) fn await_foreground() -> io::Result<()> {
    // The kernel stops a background process for this call, which changes nothing.
    Ok(tcsetattr(io::stdin(), SetArg::TCSANOW, &tcgetattr(io::stdin())?)?)
}

fn take_over(before: Termios) -> io::Result<()> {
    let mut raw = before;
    // Ctrl-C and Ctrl-Z are keys here, so that the recording ends in the usual way.
    raw.local_flags -=
        LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG | LocalFlags::IEXTEN;
    raw.control_chars[SpecialCharacterIndices::VMIN as usize] = 1;
    raw.control_chars[SpecialCharacterIndices::VTIME as usize] = 0;
    tcsetattr(io::stdin(), SetArg::TCSANOW, &raw)?;
    write_all(ENTER.as_bytes())
}

/// Writes a byte to the pipe at each change of the terminal's size.
pub(super) fn wake_by_size(pipe: UnixStream) -> io::Result<()> {
    signal_hook::low_level::pipe::register(signal_hook::consts::SIGWINCH, pipe).map(drop)
}

/// Sets the flag and writes a byte to the pipe when the process is continued.
pub(super) fn wake_when_continued(flag: Arc<AtomicBool>, pipe: UnixStream) -> io::Result<()> {
    // In this order, so that the woken thread finds the flag.
    signal_hook::flag::register(signal_hook::consts::SIGCONT, flag)?;
    signal_hook::low_level::pipe::register(signal_hook::consts::SIGCONT, pipe).map(drop)
}

/// Restores the terminal.
fn leave() {
    if let Some(before) = saved().take() {
        // Errors do not matter if the terminal is gone.
        let _ = write_all(LEAVE.as_bytes());
        let _ = tcsetattr(io::stdin(), SetArg::TCSADRAIN, &before);
    }
}

/// Restores the terminal in a signal handler, without waiting for a lock or for pending output.
fn leave_at_once() {
    let Ok(mut saved) = BEFORE.try_lock() else { return };
    if let Some(before) = saved.take() {
        let _ = write_all(LEAVE.as_bytes());
        let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &before);
    }
}

fn saved() -> MutexGuard<'static, Option<Termios>> {
    BEFORE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A frame, drawn over the last one without flicker. Terminals with synchronized output show it at
/// once.
fn frame(lines: &[ScreenLine], width: usize, has_colors: bool) -> String {
    let mut out = String::from("\x1b[?2026h\x1b[H");
    for (number, line) in lines.iter().enumerate() {
        let style = match line.style {
            _ if !has_colors => "",
            LineStyle::Plain => "",
            LineStyle::Head | LineStyle::Hot => "\x1b[1m",
            LineStyle::Heading => "\x1b[7m",
            LineStyle::Dim => "\x1b[2m",
        };
        let end = if style.is_empty() { "" } else { "\x1b[0m" };
        let next = if number + 1 < lines.len() { "\r\n" } else { "" };
        // A clear after the last column would erase the last character.
        let clear = if line.text.chars().count() < width { "\x1b[K" } else { "" };
        out.push_str(&format!("{style}{}{end}{clear}{next}", line.text));
    }
    out.push_str("\x1b[J\x1b[?2026l");
    out
}

/// Writes directly, past the line buffer of the standard output.
fn write_all(mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match write(io::stdout(), bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_has_no_colors_where_none_are_wanted_and_ends_without_a_new_line() {
        let line = |text: &str, style| ScreenLine { text: text.to_owned(), style };
        let lines = [line("a", LineStyle::Head), line("b", LineStyle::Plain)];
        assert_eq!(frame(&lines, 9, false), "\x1b[?2026h\x1b[Ha\x1b[K\r\nb\x1b[K\x1b[J\x1b[?2026l");
        assert!(frame(&lines, 9, true).contains("\x1b[1ma\x1b[0m\x1b[K\r\nb\x1b[K"));
        assert!(!frame(&lines, 1, false).contains("\x1b[K"));
    }
}
