//! Where a recording goes: what can be said of it before there is one.

use std::borrow::Cow;
use std::path::Path;

use anyhow::anyhow;

use super::pattern::Occasion;
use super::{Options, RecordError, Target, output_error};
use crate::trace::{self, TraceError};

/// Checks a name that is known before the target is.
pub(super) fn check_early(options: &Options) -> Result<(), RecordError> {
    if is_named_late(options) { Ok(()) } else { check(options) }
}

/// The options with the name of the output for the process, which may have just been started.
pub(super) fn named(options: &Options, pid: i32) -> Result<Cow<'_, Options>, RecordError> {
    if !is_named_late(options) {
        return Ok(Cow::Borrowed(options));
    }
    let output = options.pattern.path(Occasion::now(Some(pid)));
    let options = Options { output, ..options.clone() };
    check(&options)?;
    Ok(Cow::Owned(options))
}

/// The id of a program is known when it is started, that of one with a name when it is found.
pub(super) fn is_named_late(options: &Options) -> bool {
    matches!(options.target, Target::Command(_) | Target::Name(_)) && options.pattern.has_pid()
}

/// Existing files are refused before the target is touched; they are created after the attach, so
/// that a refused attach leaves nothing behind.
fn check(options: &Options) -> Result<(), RecordError> {
    let exists = options.output.symlink_metadata().is_ok();
    if exists && !options.writer.force {
        let path = options.output.display();
        return Err(RecordError::Output(anyhow!(
            "{path} exists already: choose another --output, or replace it with --force"
        )));
    }
    // What cannot even be asked is an error when it is opened for writing.
    if exists && trace::is_being_written(&options.output).unwrap_or(false) {
        return Err(output_error(TraceError::Busy { path: options.output.clone() }));
    }
    let directory = options.output.parent().filter(|path| !path.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    if !directory.is_dir() {
        let path = directory.display();
        return Err(RecordError::Output(anyhow!("{path} is not a directory: create it first")));
    }
    Ok(())
}
