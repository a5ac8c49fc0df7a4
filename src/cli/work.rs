//! How far long work on a trace is, on the standard error, where that is a terminal.
//!
//! # Invariants
//! - Nothing is shown of what takes less than a second.
//! - The line is gone before anything else is written to a terminal.

use std::fs;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget};

use super::progress::style;
use crate::trace::meter::{self, Pass, Unit};
use crate::view::escape::escaped;

/// Work that is done before is not worth a line.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(100);

/// The work that is being done: a process has one terminal.
static CURRENT: Mutex<Option<Work>> = Mutex::new(None);

/// A line while it lives.
#[derive(Debug)]
struct Work {
    line: ProgressBar,
    /// What it does until this is dropped.
    thread: Option<(Sender<()>, JoinHandle<()>)>,
}

/// Begins to read the trace at `path`, to do what `doing` says.
pub(super) fn begin(doing: &'static str, path: &Path) {
    end();
    if !io::stderr().is_terminal() {
        return;
    }
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let name = escaped(&name).into_owned();
    // What cannot be looked at is told of by whoever opens it.
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
    // Without the thread the work is done all the same.
    let thread = std::thread::Builder::new().name("progress".to_owned()).spawn(show).ok();
    *current() = Some(Work { line, thread: thread.map(|thread| (sender, thread)) });
}

/// It is done, or what comes of it is about to be shown.
pub(super) fn end() {
    let work = current().take();
    drop(work);
}

/// Writes something else to the terminal.
pub(super) fn aside<T>(write: impl FnOnce() -> T) -> T {
    let line = current().as_ref().map(|work| work.line.clone());
    match line {
        Some(line) => line.suspend(write),
        None => write(),
    }
}

fn current() -> MutexGuard<'static, Option<Work>> {
    CURRENT.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Work {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.thread.take() {
            drop(end);
            // It has nothing to say.
            let _ = thread.join();
        }
    }
}

/// How far a pass over a trace is.
fn state(name: &str, pass: Pass) -> String {
    let Pass { doing, turn, unit, done, whole } = pass;
    let turn = if turn > 1 { format!(", pass {turn}") } else { String::new() };
    let (part, all) = match unit {
        Unit::Bytes => (HumanBytes(done).to_string(), HumanBytes(whole).to_string()),
        Unit::Samples => (done.to_string(), format!("{whole} samples")),
    };
    let how_far = match done.saturating_mul(100).checked_div(whole) {
        Some(percent @ ..=100) => format!("{percent} %, {part} of {all}"),
        // Of a part of the times, or of a damaged trace.
        _ => format!("{part}{}", if unit == Unit::Bytes { " read" } else { " samples" }),
    };
    format!("{doing} {name}{turn}: {how_far}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_tells_its_share_where_there_is_one() {
        let check = |(turn, unit, done, whole), expected: &str| {
            assert_eq!(state("x", Pass { doing: "reading", turn, unit, done, whole }), expected);
        };
        check((1, Unit::Bytes, 1 << 20, 4 << 20), "reading x: 25 %, 1.00 MiB of 4.00 MiB");
        check((1, Unit::Bytes, 5 << 20, 4 << 20), "reading x: 5.00 MiB read");
        check((1, Unit::Bytes, 0, 0), "reading x: 0 B read");
        check((2, Unit::Samples, 50, 200), "reading x, pass 2: 25 %, 50 of 200 samples");
        check((1, Unit::Samples, 50, 0), "reading x: 50 samples");
    }
}
