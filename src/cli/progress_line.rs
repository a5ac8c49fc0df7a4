//! The progress line of long work on a trace, on the standard error of a terminal.
//!
//! # Invariants
//! - Work of less than a second has no line.
//! - The line is cleared before anything else is written to the terminal.

use std::fs;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::trace::meter::{self, Pass, PassUnit};
use crate::view::text::escape::escaped;

/// The time before the line appears.
const PATIENCE: Duration = Duration::from_secs(1);
/// The time between two updates.
const PAUSE: Duration = Duration::from_millis(100);

/// The line of the current work: a process has one terminal.
static CURRENT: Mutex<Option<ProgressLine>> = Mutex::new(None);

/// A progress line; dropping it clears the line.
#[derive(Debug)]
struct ProgressLine {
    line: ProgressBar,
    /// The thread that draws the line.
    thread: Option<(Sender<()>, JoinHandle<()>)>,
}

/// Starts the line of work on the trace at `path`; `doing` names the work.
pub(super) fn begin(doing: &'static str, path: &Path) {
    end();
    if !io::stderr().is_terminal() {
        return;
    }
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let name = escaped(&name).into_owned();
    // A file that cannot be read is reported by the code that opens it.
    meter::begin(doing, fs::metadata(path).map_or(0, |meta| meta.len()));
    let line = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
    line.set_style(style("{spinner} {wide_msg}"));
    let ((sender, ended), shown) = (channel(), line.clone());
    let show = move || {
        if ended.recv_timeout(PATIENCE) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        shown.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
        loop {
            shown.set_message(meter::current().map_or_else(String::new, |pass| state(&name, pass)));
            shown.tick();
            if ended.recv_timeout(PAUSE) != Err(RecvTimeoutError::Timeout) {
                return shown.finish_and_clear();
            }
        }
    };
    // If the thread does not start, the work goes on without a line.
    let thread = std::thread::Builder::new().name("progress".to_owned()).spawn(show).ok();
    *current() = Some(ProgressLine { line, thread: thread.map(|thread| (sender, thread)) });
}

/// Clears the line, at the end of the work or before its output.
pub(super) fn end() {
    let work = current().take();
    drop(work);
}

/// Clears the line while `write` writes to the terminal.
pub(super) fn aside<T>(write: impl FnOnce() -> T) -> T {
    let line = current().as_ref().map(|work| work.line.clone());
    match line {
        Some(line) => line.suspend(write),
        None => write(),
    }
}

fn current() -> MutexGuard<'static, Option<ProgressLine>> {
    CURRENT.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.thread.take() {
            drop(end);
            // The thread returns nothing.
            let _ = thread.join();
        }
    }
}

/// A style of progress lines.
pub(super) fn style(template: &str) -> ProgressStyle {
    // The templates are constants. For a wrong one, the default style shows as much.
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_spinner())
        .progress_chars("━╸ ")
}

/// The text of the line.
fn state(name: &str, pass: Pass) -> String {
    let Pass { doing, turn, unit, done, whole } = pass;
    let turn = if turn > 1 { format!(", pass {turn}") } else { String::new() };
    let (part, all) = match unit {
        PassUnit::Bytes => (HumanBytes(done).to_string(), HumanBytes(whole).to_string()),
        PassUnit::Samples => (done.to_string(), format!("{whole} samples")),
    };
    let how_far = match done.saturating_mul(100).checked_div(whole) {
        Some(percent @ ..=100) => format!("{percent} %, {part} of {all}"),
        // A part of the trace, or a damaged trace.
        _ => format!("{part}{}", if unit == PassUnit::Bytes { " read" } else { " samples" }),
    };
    format!("{doing} {name}{turn}: {how_far}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_shows_its_share_if_it_is_known() {
        let check = |(turn, unit, done, whole), expected: &str| {
            assert_eq!(state("x", Pass { doing: "reading", turn, unit, done, whole }), expected);
        };
        check((1, PassUnit::Bytes, 1 << 20, 4 << 20), "reading x: 25 %, 1.00 MiB of 4.00 MiB");
        check((1, PassUnit::Bytes, 5 << 20, 4 << 20), "reading x: 5.00 MiB read");
        check((1, PassUnit::Bytes, 0, 0), "reading x: 0 B read");
        check((2, PassUnit::Samples, 50, 200), "reading x, pass 2: 25 %, 50 of 200 samples");
        check((1, PassUnit::Samples, 50, 0), "reading x: 50 samples");
    }
}
