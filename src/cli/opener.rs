//! What a desktop opens pages with: started, and left to itself.
//!
//! # Invariants
//! - Nobody waits for a browser: some openers are there for as long as it is.
//! - What goes wrong soon is told; it mostly does so at once.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};

use super::exit::{ExitCode, Failure};
use crate::view::escape::shell_quoted;

/// The command.
const OPENER: &str = "xdg-open";
/// How long it has for being done, or failing; then it is taken for one that stays.
const SETTLED: Duration = Duration::from_secs(2);
/// Between two looks at it.
const LOOK: Duration = Duration::from_millis(10);

/// Gives a page to the desktop.
///
/// # Errors
/// If there is no opener, or it fails before long: the page is written nevertheless.
pub(super) fn open(page: &Path) -> Result<(), Failure> {
    // A name that begins with a dash is no option.
    let page = std::path::absolute(page).unwrap_or_else(|_| page.to_owned());
    let advice = || {
        let page = shell_quoted(&page.display().to_string());
        format!("the page is written, but {OPENER} did not open it: give {page} to a browser")
    };
    let failure = |error| Failure::new(ExitCode::Failure, error);
    let mut opener = Command::new(OPENER);
    opener.arg(&page).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // An interrupt at the terminal is for us, not for a browser that was not there before.
    opener.process_group(0);
    let mut opener = opener.spawn().with_context(advice).map_err(failure)?;
    let deadline = Instant::now() + SETTLED;
    loop {
        match opener.try_wait().with_context(advice).map_err(failure)? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(failure(anyhow!("{} ({})", advice(), reason(status)))),
            // It goes on without us, and is the init process's child then.
            None if Instant::now() >= deadline => return Ok(()),
            None => std::thread::sleep(LOOK),
        }
    }
}

/// What an exit status of xdg-open means, as its manual page has it.
fn reason(status: ExitStatus) -> String {
    match status.code() {
        Some(3) => "a program that it needs is missing, such as a browser".to_owned(),
        Some(4) => "the browser failed, or there is no display".to_owned(),
        _ => status.to_string(),
    }
}
