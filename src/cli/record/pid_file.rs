//! The pid file of a recorder: it holds the process id while the recorder records.
//!
//! # Invariants
//! - The file is locked while it is ours: a second recorder is refused, even before the first has
//!   written its id.
//! - Nothing is written or removed through a symbolic link, and only the file that was written is
//!   removed.
//! - An existing file is replaced only if it is empty or the pid file of a process that is gone.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::{AccessFlags, faccessat};

use crate::cli::exit::{CommandFailure, ExitCode};
use crate::proc::{self, FileLock};
use crate::trace::{directory_of, index_path};

/// How often to open a file that somebody else keeps removing.
const TRIES: u32 = 8;
/// The longest pid file; a longer file is something else.
const LONGEST: u64 = 64;

/// A file with the recorder's process id. Dropping the value removes the file.
#[derive(Debug)]
pub(super) struct PidFile {
    path: PathBuf,
    file: File,
    /// The lock, where the file system has locks.
    _lock: Option<FileLock>,
}

impl PidFile {
    /// Writes the file. An existing file is replaced if the process that it names is gone.
    pub(super) fn write(path: &Path) -> Result<Self, CommandFailure> {
        let (file, lock) = open_ours(path).map_err(output)?;
        // Made before the write, so that a failure leaves no empty file behind.
        let ours = Self { path: path.to_owned(), file, _lock: lock };
        let context = || {
            let path = path.display();
            format!("writing the pid file {path}: make room there, or choose another --pidfile")
        };
        write_id(&ours.file).with_context(context).map_err(output)?;
        Ok(ours)
    }

    /// Checks that the file could be written, and writes nothing.
    pub(super) fn check(path: &Path) -> Result<(), CommandFailure> {
        let Some(file) = open(path, false).map_err(output)? else {
            let access = AccessFlags::W_OK | AccessFlags::X_OK;
            let may = faccessat(AT_FDCWD, directory_of(path), access, AtFlags::AT_EACCESS);
            return may.map_err(|error| output(not_opened(path, error.into())));
        };
        let lock = lock(&file, path).map_err(output)?;
        judge(&file, path).map_err(output)?;
        drop(lock);
        Ok(())
    }
}

/// Refuses a pid file with the name of the trace or its index.
pub(super) fn check_name(pidfile: &Path, output: &Path) -> Result<(), CommandFailure> {
    let name = place(pidfile);
    let names = [("trace", output.to_owned()), ("trace's index", index_path(output))];
    let Some((what, _)) = names.iter().find(|(_, path)| place(path) == name) else {
        return Ok(());
    };
    let shown = pidfile.display();
    let error = anyhow!(
        "--pidfile {shown} is the name of the {what}: give the pid file another one, such as \
         {}.pid",
        output.display()
    );
    Err(CommandFailure::new(ExitCode::Usage, error))
}

/// The path with its directory resolved, for comparisons.
fn place(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
    match (folder, path.file_name()) {
        (Some(folder), Some(name)) => folder.join(name),
        _ => path,
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // Another process may have removed or replaced the file.
        if is_at(&self.file, &self.path) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn output(error: anyhow::Error) -> CommandFailure {
    CommandFailure::new(ExitCode::Output, error)
}

/// Opens and locks the file, and checks that it may be replaced.
fn open_ours(path: &Path) -> anyhow::Result<(File, Option<FileLock>)> {
    for _ in 0..TRIES {
        let Some(file) = open(path, true)? else { continue };
        let lock = lock(&file, path)?;
        // Its owner may have removed it between the open and the lock.
        if is_at(&file, path) {
            judge(&file, path)?;
            return Ok((file, lock));
        }
    }
    Err(anyhow!(
        "{} is removed again and again by somebody else: choose another --pidfile",
        path.display()
    ))
}

/// Opens the file, not through a link. `None` if it does not exist and `create` is not set.
fn open(path: &Path, create: bool) -> anyhow::Result<Option<File>> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(create);
    // Opening a FIFO must not block.
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let shown = path.display();
    let file = match options.open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = directory_of(path);
            if folder.is_dir() {
                return Ok(None);
            }
            let folder = folder.display();
            return Err(anyhow!(
                "--pidfile: the directory {folder} does not exist: create it first"
            ));
        }
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
            return Err(anyhow!(
                "{shown} is a symbolic link, which others may change: give --pidfile the name of \
                 the file itself"
            ));
        }
        Err(error) => return Err(not_opened(path, error)),
    };
    let is_file = file.metadata().is_ok_and(|found| found.is_file());
    match is_file {
        true => Ok(Some(file)),
        false => Err(anyhow!("{shown} is not a file: choose another --pidfile")),
    }
}

fn not_opened(path: &Path, error: io::Error) -> anyhow::Error {
    let text = format!(
        "opening the pid file {}: choose another --pidfile, in a directory that you may write to",
        path.display()
    );
    anyhow::Error::new(error).context(text)
}

/// Locks the file for this process.
fn lock(file: &File, path: &Path) -> anyhow::Result<Option<FileLock>> {
    // The lock belongs to the open file description, not to the descriptor.
    let Ok(same) = file.try_clone() else { return Ok(None) };
    match FileLock::exclusive(same) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, error)) if error.kind() == io::ErrorKind::WouldBlock => {
            let who = named(file).map_or_else(String::new, |pid| format!(", process {pid}"));
            let path = path.display();
            Err(anyhow!(
                "{path} belongs to a recorder that is running{who}: choose another --pidfile"
            ))
        }
        // The file system has no locks: the content has to suffice.
        Err(_) => Ok(None),
    }
}

/// Refuses a file that somebody may still need.
fn judge(file: &File, path: &Path) -> anyhow::Result<()> {
    let path = path.display();
    if file.metadata().is_ok_and(|found| found.len() == 0) {
        // mktemp made it, or a recorder that was killed at once.
        return Ok(());
    }
    let Some(pid) = named(file) else {
        return Err(anyhow!("{path} is not a pid file: choose another --pidfile"));
    };
    match is_running(pid) {
        false => Ok(()),
        true => Err(anyhow!(
            "{path}: process {pid} is running: choose another --pidfile, or remove this one if it \
             does not belong to that process"
        )),
    }
}

/// Whether the process that wrote the file may be running. Our own id was written by an earlier
/// process, because this one has written nothing yet.
fn is_running(pid: i32) -> bool {
    if pid <= 0 || pid.cast_unsigned() == std::process::id() {
        return false;
    }
    match proc::status(pid) {
        // A zombie; other threads may outlive the first one.
        Ok(status) if proc::has_ended(status.state) => {
            proc::tasks(pid).is_ok_and(|tasks| tasks.len() > 1)
        }
        Ok(_) => true,
        Err(_) => Path::new(&format!("/proc/{pid}")).exists(),
    }
}

/// The process id in the file.
fn named(mut file: &File) -> Option<i32> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(LONGEST).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

fn write_id(mut file: &File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    // One write: a reader sees all of it or nothing.
    file.write_all(format!("{}\n", std::process::id()).as_bytes())
}

/// Whether the path still names this file.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |found: fs::Metadata| (found.dev(), found.ino());
    let there = fs::symlink_metadata(path).map(identity);
    there.is_ok_and(|there| file.metadata().map(identity).is_ok_and(|ours| ours == there))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn refusal(path: &Path) -> String {
        let failure = PidFile::write(path).unwrap_err();
        assert_eq!(failure.code, ExitCode::Output);
        // A dry run says the same.
        assert_eq!(PidFile::check(path).unwrap_err().message(), failure.message());
        failure.message()
    }

    fn text(path: &Path) -> String {
        fs::read_to_string(path).unwrap()
    }

    #[test]
    fn a_file_that_is_empty_or_of_the_dead_is_taken_and_goes_with_the_value() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pid");
        // A shell writes its own id before it executes the recorder.
        let own = format!("{}\n", std::process::id());
        for before in [None, Some(""), Some("2147483647\n"), Some(&own)] {
            if let Some(before) = before {
                fs::write(&path, before).unwrap();
            }
            PidFile::check(&path).unwrap();
            assert_eq!(path.exists(), before.is_some(), "a check makes no file");
            let ours = PidFile::write(&path).unwrap();
            assert_eq!(text(&path), format!("{}\n", std::process::id()));
            drop(ours);
            assert!(!path.exists(), "{before:?}");
        }
    }

    #[test]
    fn a_process_that_nobody_has_waited_for_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pid");
        let mut child = std::process::Command::new("/bin/cat");
        let mut child = child.stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pid = child.id() as i32;
        fs::write(&path, format!("{pid}\n")).unwrap();
        assert!(refusal(&path).contains("is running"));
        // It ends, and stays a zombie.
        drop(child.stdin.take());
        while !proc::has_ended(proc::status(pid).unwrap().state) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        PidFile::check(&path).unwrap();
        drop(PidFile::write(&path).unwrap());
        child.wait().unwrap();
    }

    #[test]
    fn a_name_of_the_trace_is_refused_however_it_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let (trace, link) = (dir.path().join("x.trace"), dir.path().join("link"));
        symlink(".", &link).unwrap();
        for (name, words) in [
            ("x.trace", "name of the trace:"),
            ("./x.trace", "name of the trace:"),
            ("link/x.trace", "name of the trace:"),
            ("x.trace.idx", "the trace's index"),
        ] {
            let failure = check_name(&dir.path().join(name), &trace).unwrap_err();
            assert_eq!(failure.code, ExitCode::Usage);
            assert!(failure.message().contains(words), "{name}: {}", failure.message());
        }
        assert!(check_name(&dir.path().join("x.pid"), &trace).is_ok());
        assert!(check_name(&dir.path().join("no/x.trace"), &trace).is_ok());
        assert!(check_name(Path::new("x.trace"), Path::new("x.trace")).is_err());
    }

    #[test]
    fn what_is_of_use_to_others_is_refused_and_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pid");
        for (before, words) in [("1\n", "process 1 is running"), ("precious", "not a pid file")] {
            fs::write(&path, before).unwrap();
            let message = refusal(&path);
            assert!(message.contains(words) && message.contains("another --pidfile"), "{message}");
            assert_eq!(text(&path), before);
        }
        let message = refusal(dir.path());
        assert!(message.contains("choose another --pidfile"), "{message}");
        assert!(refusal(&dir.path().join("no/pid")).contains("directory"));
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(refusal(&fifo).contains("not a file"));
    }

    #[test]
    fn nothing_is_written_through_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let (link, target) = (dir.path().join("link"), dir.path().join("target"));
        fs::write(&target, "").unwrap();
        symlink(&target, &link).unwrap();
        assert!(refusal(&link).contains("name of the file itself"));
        fs::remove_file(&target).unwrap();
        assert!(refusal(&link).contains("name of the file itself"));
        assert!(!target.exists());
    }

    #[test]
    fn of_two_that_begin_at_once_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pid");
        // The first recorder has the file, and has not written to it yet.
        let first = open_ours(&path).unwrap();
        assert!(refusal(&path).contains("a recorder that is running"));
        drop(first);
        let first = PidFile::write(&path).unwrap();
        let message = refusal(&path);
        assert!(message.contains(&format!("running, process {}", std::process::id())), "{message}");
        assert_eq!(text(&path), format!("{}\n", std::process::id()));
        drop(first);
    }

    #[test]
    fn what_another_put_there_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pid");
        let ours = PidFile::write(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "theirs").unwrap();
        drop(ours);
        assert_eq!(text(&path), "theirs");
        fs::remove_file(&path).unwrap();
        // Nothing is removed through a link to the recorder's own file either.
        let ours = PidFile::write(&path).unwrap();
        let moved = dir.path().join("moved");
        fs::rename(&path, &moved).unwrap();
        symlink(&moved, &path).unwrap();
        drop(ours);
        assert!(moved.exists() && path.symlink_metadata().is_ok());
    }
}
