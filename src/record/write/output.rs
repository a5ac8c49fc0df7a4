//! The output of a recording: the checks before it starts, and the creation of its files.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use anyhow::anyhow;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::sys::statvfs::statvfs;
use nix::unistd::{AccessFlags, faccessat};

use crate::record::contract::error::{RecordError, output_error};
use crate::record::contract::options::{Files, Options, Target};
use crate::record::contract::pattern::{Occasion, taken};
use crate::trace::{
    self, RingPlan, RotateAfter, SeriesPlan, TraceError, TraceSeries, TraceWriter, directory_of,
    index_path,
};

/// Checks the output as far as its name is known before the target.
pub(crate) fn check_early(options: &Options) -> Result<(), RecordError> {
    if !is_named_late(options) {
        return check(options);
    }
    // The directory is checked as far as it does not depend on the process id, so that a bad one is
    // refused before a program starts.
    let directory = directory_of(&options.output);
    let is_known = |path: &&Path| !path.to_string_lossy().contains("%p");
    match directory.ancestors().find(is_known) {
        Some(known) if known == directory => check_place(directory),
        // The first directory without %p must exist for those below it to exist.
        Some(known) => check_directory(if known == Path::new("") { Path::new(".") } else { known }),
        None => Ok(()),
    }
}

/// Returns the options with the output's name for this process, and checks that name.
pub(crate) fn named(options: &Options, pid: i32) -> Result<Cow<'_, Options>, RecordError> {
    if !is_named_late(options) {
        return Ok(Cow::Borrowed(options));
    }
    let options = options.clone().named(Some(pid));
    check(&options)?;
    Ok(Cow::Owned(options))
}

/// Whether the output's name depends on a process id that is not known yet: the id of a program to
/// start, or of a process to find by name.
pub(crate) fn is_named_late(options: &Options) -> bool {
    matches!(options.target, Target::Command(_) | Target::Name(_)) && options.pattern.has_pid()
}

/// Creates the files of the trace.
pub(crate) fn create(options: &Options, pid: i32) -> Result<TraceSeries, TraceError> {
    let (turn, keep) = match options.files {
        Files::One => return one(options),
        Files::Limited(bytes) => {
            let mut series = one(options)?;
            series.limit(bytes);
            return Ok(series);
        }
        Files::Ring { time, .. } => return ring(options, pid, time),
        Files::Parts { turn, keep } => (turn, keep),
    };
    let named = options.clone();
    let name = Box::new(move |number| named.part(number));
    TraceSeries::create(
        SeriesPlan { name, rotate_after: turn, keep, ring: None },
        options.writer.clone(),
    )
}

fn one(options: &Options) -> Result<TraceSeries, TraceError> {
    TraceWriter::create(&options.output, options.writer.clone()).map(TraceSeries::of_one)
}

/// Creates a ring. Each part has an eighth of the time, so the complete parts cover it.
fn ring(options: &Options, pid: i32, time: Duration) -> Result<TraceSeries, TraceError> {
    const PARTS: u32 = 8;
    /// The limit of parts; each save adds one.
    const PARTS_MAX: u32 = 1000;
    let directory = options.ring_directory();
    let created = match fs::create_dir(&directory) {
        // `check_ring` accepted the directory: --force replaces the parts of an earlier recording.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            if !options.writer.force {
                return Err(TraceError::Exists { path: directory });
            }
            clear(&directory)
        }
        other => other,
    };
    let failed = |source| TraceError::Io { path: directory.clone(), writing: true, source };
    created.map_err(failed)?;
    let parts = directory.clone();
    let name = Box::new(move |number| parts.join(format!("{number:06}.trace")));
    let (pattern, output) = (options.pattern.clone(), options.output.clone());
    let saved = pattern.clone().with_number();
    let plan = RingPlan {
        time,
        directory,
        save: Arc::new(move || saved.path(Occasion::now(Some(pid)))),
        last: Box::new(move || match pattern.has_number() {
            true => pattern.path(Occasion::now(Some(pid))),
            false => output.clone(),
        }),
    };
    let (turn, keep) = (RotateAfter::Age(time / PARTS), Some(PARTS_MAX));
    let plan = SeriesPlan { name, rotate_after: turn, keep, ring: Some(plan) };
    let created = TraceSeries::create(plan, options.writer.clone());
    created.inspect_err(|_| {
        // Removes the directory that was created above, unless it has files.
        let _ = fs::remove_dir(options.ring_directory());
    })
}

/// Removes the parts of a ring, but not through a symbolic link.
fn clear(directory: &Path) -> io::Result<()> {
    if !directory.symlink_metadata()?.is_dir() {
        return Err(io::Error::new(io::ErrorKind::NotADirectory, "it is not a ring's directory"));
    }
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if is_part(&path) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Whether a file has the name of a ring's part, or of its index.
fn is_part(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let number = name.strip_suffix(".idx").unwrap_or(&name).strip_suffix(".trace");
    number.is_some_and(|it| it.len() >= 6 && it.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Returns an existing part of another recording. Such a part would end this recording when its
/// number comes.
fn existing_part(options: &Options) -> Option<PathBuf> {
    const LOOKED_FOR: u32 = 9999;
    (1..=LOOKED_FOR).map(|number| options.part(number)).find(|path| taken(path))
}

/// Returns a warning if the file system has little free space.
pub(crate) fn notice(options: &Options) -> Option<String> {
    const LEAST: u64 = 64 << 20;
    let wanted = match options.files {
        Files::Limited(bytes) => bytes,
        _ => LEAST,
    };
    let directory = directory_of(&options.output);
    let found = statvfs(directory).ok()?;
    let free = found.blocks_available().saturating_mul(found.fragment_size());
    (free < wanted).then(|| {
        let (free, wanted) = (free as f64 / 1048576.0, wanted as f64 / 1048576.0);
        let path = directory.display();
        format!(
            "{free:.1} MiB are free in {path}, less than {wanted:.0} MiB; the recording ends when \
             the space runs out, and keeps what it has written"
        )
    })
}

/// Refuses existing files before the target is changed. The files are created after the attach, so
/// that a refused attach leaves nothing behind.
fn check(options: &Options) -> Result<(), RecordError> {
    if let (Files::Parts { .. }, false) = (options.files, options.writer.force)
        && let Some(path) = existing_part(options)
    {
        let path = path.display();
        return Err(RecordError::Output(anyhow!(
            "{path} exists, a part of another recording: choose another name, or replace its parts \
             with --force"
        )));
    }
    if let (Files::Ring { .. }, false) = (options.files, options.writer.force)
        && options.ring_directory().symlink_metadata().is_ok()
    {
        let path = options.ring_directory();
        let path = path.display();
        return Err(RecordError::Output(anyhow!(
            "{path} exists, with the parts of another recording: print them as traces, then remove \
             it, choose another name, or replace it with --force"
        )));
    }
    if matches!(options.files, Files::Ring { .. }) {
        check_ring(&options.ring_directory())?;
    }
    if options.output.is_dir() {
        return Err(output_error(TraceError::Directory { path: options.output.clone() }));
    }
    let exists = options.output.symlink_metadata().is_ok();
    if exists && !options.writer.force {
        return Err(output_error(TraceError::Exists { path: options.output.clone() }));
    }
    // If the check fails, opening the file for writing will report the error.
    if exists && trace::is_being_written(&options.output).unwrap_or(false) {
        return Err(output_error(TraceError::Busy { path: options.output.clone() }));
    }
    if exists && !options.output.symlink_metadata().is_ok_and(|found| found.is_file()) {
        return Err(output_error(TraceError::NotRegular { path: options.output.clone() }));
    }
    let pair = [options.output.clone(), index_path(&options.output)];
    let (there, missing): (Vec<_>, Vec<_>) =
        pair.iter().partition(|path| path.symlink_metadata().is_ok());
    for path in there {
        check_access(path, AccessFlags::W_OK)?;
    }
    // Existing files are overwritten in place, which needs no write access to the directory.
    let is_pair = matches!(options.files, Files::One | Files::Limited(_));
    match is_pair && missing.is_empty() {
        true => Ok(()),
        false => check_place(directory_of(&options.output)),
    }
}

/// Checks that the directory exists and that this user may create files in it.
fn check_place(directory: &Path) -> Result<(), RecordError> {
    check_directory(directory)?;
    check_access(directory, AccessFlags::W_OK | AccessFlags::X_OK)
}

fn check_directory(path: &Path) -> Result<(), RecordError> {
    if path.is_dir() {
        return Ok(());
    }
    let path = path.display();
    Err(RecordError::Output(anyhow!("{path} is not a directory: create it first")))
}

fn check_access(path: &Path, access: AccessFlags) -> Result<(), RecordError> {
    // The effective user writes the files, which may not be the real user.
    faccessat(AT_FDCWD, path, access, AtFlags::AT_EACCESS).map_err(|error| {
        let (path, reason) = (path.display(), error.desc());
        RecordError::Output(anyhow!(
            "{path} cannot be written: {reason}; choose an --output in a directory of your own"
        ))
    })
}

/// Checks that the directory is missing, or is a ring that no recorder writes to.
fn check_ring(directory: &Path) -> Result<(), RecordError> {
    let Ok(found) = directory.symlink_metadata() else { return Ok(()) };
    let path = directory.display();
    if !found.is_dir() {
        return Err(RecordError::Output(anyhow!(
            "{path} is not a directory, and the ring needs one for its parts: remove it, or choose \
             another --output"
        )));
    }
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|it| it.path());
    let mut parts =
        entries.filter(|path| is_part(path) && path.extension() != Some("idx".as_ref()));
    // If the check fails, the removal will report the error.
    match parts.find(|path| trace::is_being_written(path).unwrap_or(false)) {
        Some(path) => Err(output_error(TraceError::Busy { path })),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replacing_a_ring_removes_only_its_parts_and_not_through_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let ring = dir.path().join("x.trace.ring");
        assert!(check_ring(&ring).is_ok());
        fs::create_dir(&ring).unwrap();
        for name in ["000001.trace", "000001.trace.idx", "mine.trace", "1.trace", "notes.idx"] {
            fs::write(ring.join(name), "x").unwrap();
        }
        let link = dir.path().join("link.ring");
        std::os::unix::fs::symlink(&ring, &link).unwrap();
        assert!(check_ring(&link).unwrap_err().text().contains("not a directory"));
        assert!(clear(&link).is_err() && ring.join("000001.trace").exists());
        assert!(check_ring(&ring).is_ok());
        clear(&ring).unwrap();
        let mut left: Vec<_> =
            fs::read_dir(&ring).unwrap().map(|it| it.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["1.trace", "mine.trace", "notes.idx"]);
    }
}
