//! Opens a page in the desktop's browser.
//!
//! # Invariants
//! - The command does not wait for the browser, although some openers run as long as it does.
//! - An early failure is reported; most failures are early.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};

use super::exit::{CommandFailure, ExitCode};
use crate::view::text::escape::shell_quoted;

/// The command.
const OPENER: &str = "xdg-open";
/// How long the opener may take to end or fail; one that runs longer has opened the page.
const SETTLED: Duration = Duration::from_secs(2);
/// The time between two checks of the opener.
const CHECK: Duration = Duration::from_millis(10);

/// Opens a page in the browser.
///
/// # Errors
/// If there is no opener, or it fails early. The page is written anyway.
pub(super) fn open(page: &Path) -> Result<(), CommandFailure> {
    // An absolute path, so that a leading dash is no option.
    let page = std::path::absolute(page).unwrap_or_else(|_| page.to_owned());
    let advice = || {
        let page = shell_quoted(&page.display().to_string());
        format!("{OPENER} did not open the page, which is written: open {page} in a browser")
    };
    let failure = |error| CommandFailure::new(ExitCode::Failure, error);
    let mut opener = Command::new(OPENER);
    opener.arg(&page).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // Ctrl-C at the terminal is for us, not for the browser.
    opener.process_group(0);
    let mut opener = opener.spawn().with_context(advice).map_err(failure)?;
    let deadline = Instant::now() + SETTLED;
    loop {
        match opener.try_wait().with_context(advice).map_err(failure)? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(failure(anyhow!("{} ({})", advice(), reason(status)))),
            // It runs on without us.
            None if Instant::now() >= deadline => return Ok(()),
            None => std::thread::sleep(CHECK),
        }
    }
}

/// What an exit status of xdg-open means, according to its manual page.
fn reason(status: ExitStatus) -> String {
    match status.code() {
        Some(3) => "a program that it needs is missing, such as a browser".to_owned(),
        Some(4) => "the browser failed, or there is no display".to_owned(),
        _ => status.to_string(),
    }
}
