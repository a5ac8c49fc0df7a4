//! The terminal while the table is on it.
//!
//! # Invariants
//! - What was on the screen, and how keys are treated, comes back on every way out: by the value's
//!   drop, before a panic's message by the hook, and before a second signal ends the process. More than
//!   one may happen; the later ones do nothing.
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
use crate::view::live::{Line, Size, Style};

/// The other screen, without a cursor and without lines that go on in the next one.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
/// Where a terminal does not know its size.
const USUAL: Size = Size { width: 80, height: 24 };

/// How keys were treated, while that is changed.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);
static HOOK: Once = Once::new();

/// The standard input and output, both of which are the terminal.
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

    /// Takes it over again from whoever had it meanwhile, such as the shell while this was stopped.
    pub(super) fn enter_again(&self) -> io::Result<()> {
        let before = saved().clone();
        before.map_or(Ok(()), take_over)
    }

    /// Its size now.
    pub(super) fn size(&self) -> Size {
        match terminal_size::terminal_size_of(io::stdout()) {
            Some((width, height)) if width.0 > 0 && height.0 > 0 => {
                Size { width: width.0.into(), height: height.0.into() }
            }
            _ => USUAL,
        }
    }

    /// Shows these lines, and nothing else.
    pub(super) fn draw(&self, lines: &[Line]) -> io::Result<()> {
        if saved().is_none() {
            // A panic elsewhere has given the terminal back.
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

/// Waits until the terminal may be taken over: who is in the background stops here, as long as there is
/// nothing yet that would wait for it.
pub(super) fn await_foreground() -> io::Result<()> {
    // What the kernel stops one for that is in the background, and does nothing else.
    Ok(tcsetattr(io::stdin(), SetArg::TCSANOW, &tcgetattr(io::stdin())?)?)
}

fn take_over(before: Termios) -> io::Result<()> {
    let mut raw = before;
    // Ctrl-C is a key here: a recording that is ended by it ends as with any other. So is Ctrl-Z.
    raw.local_flags -=
        LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG | LocalFlags::IEXTEN;
    raw.control_chars[SpecialCharacterIndices::VMIN as usize] = 1;
    raw.control_chars[SpecialCharacterIndices::VTIME as usize] = 0;
    tcsetattr(io::stdin(), SetArg::TCSANOW, &raw)?;
    write_all(ENTER.as_bytes())
}

/// Writes a byte there whenever the terminal has got another size.
pub(super) fn wake_by_size(pipe: UnixStream) -> io::Result<()> {
    signal_hook::low_level::pipe::register(signal_hook::consts::SIGWINCH, pipe).map(drop)
}

/// Sets the flag and writes a byte there whenever the process is continued.
pub(super) fn wake_when_continued(flag: Arc<AtomicBool>, pipe: UnixStream) -> io::Result<()> {
    // In this order: who is woken finds the flag.
    signal_hook::flag::register(signal_hook::consts::SIGCONT, flag)?;
    signal_hook::low_level::pipe::register(signal_hook::consts::SIGCONT, pipe).map(drop)
}

/// Gives the terminal back as it was.
fn leave() {
    if let Some(before) = saved().take() {
        // Nobody to tell if the terminal is gone.
        let _ = write_all(LEAVE.as_bytes());
        let _ = tcsetattr(io::stdin(), SetArg::TCSADRAIN, &before);
    }
}

/// The same in a signal handler, after which nothing runs: without waiting for a lock, nor for what is
/// still to be written.
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

/// All of a frame: drawn over the last one, so that nothing flickers; terminals that know of it hold
/// the picture until it is whole.
fn frame(lines: &[Line], width: usize, has_colors: bool) -> String {
    let mut out = String::from("\x1b[?2026h\x1b[H");
    for (number, line) in lines.iter().enumerate() {
        let style = match line.style {
            _ if !has_colors => "",
            Style::Plain => "",
            Style::Head | Style::Hot => "\x1b[1m",
            Style::Heading => "\x1b[7m",
            Style::Dim => "\x1b[2m",
        };
        let end = if style.is_empty() { "" } else { "\x1b[0m" };
        let next = if number + 1 < lines.len() { "\r\n" } else { "" };
        // Behind the last column there is nothing to clear, but the last character would be.
        let clear = if line.text.chars().count() < width { "\x1b[K" } else { "" };
        out.push_str(&format!("{style}{}{end}{clear}{next}", line.text));
    }
    out.push_str("\x1b[J\x1b[?2026l");
    out
}

/// Past the buffer of the standard output, which ends at each line.
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
        let line = |text: &str, style| Line { text: text.to_owned(), style };
        let lines = [line("a", Style::Head), line("b", Style::Plain)];
        assert_eq!(frame(&lines, 9, false), "\x1b[?2026h\x1b[Ha\x1b[K\r\nb\x1b[K\x1b[J\x1b[?2026l");
        assert!(frame(&lines, 9, true).contains("\x1b[1ma\x1b[0m\x1b[K\r\nb\x1b[K"));
        assert!(!frame(&lines, 1, false).contains("\x1b[K"));
    }
}
