//! The pid file of a recorder: its process id, for as long as it records.
//!
//! # Invariants
//! - The file is locked as long as it is ours: of two recorders one is refused, also where the first has
//!   not written its id yet.
//! - Nothing is written or removed through a symbolic link, and nothing is removed that is not the file
//!   that was written.
//! - What is there is replaced only if it is a pid file of nobody who runs, or empty.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, Flock, FlockArg};
use nix::unistd::{AccessFlags, faccessat};

use super::exit::{ExitCode, Failure};
use crate::proc;
use crate::trace::{directory_of, index_path};

/// How often a file is opened that somebody removes in between.
const TRIES: u32 = 8;
/// A pid file is a line; what is longer is something else.
const LONGEST: u64 = 64;

/// A file with the recorder's process id, which goes with the value.
#[derive(Debug)]
pub(super) struct PidFile {
    path: PathBuf,
    file: File,
    /// Where files can be locked.
    _lock: Option<Flock<File>>,
}

impl PidFile {
    /// Writes it. One that is there is replaced if the process that it names is gone.
    pub(super) fn write(path: &Path) -> Result<Self, Failure> {
        let (file, lock) = open_ours(path).map_err(output)?;
        // Before anything is written: a failure leaves no empty file behind.
        let ours = Self { path: path.to_owned(), file, _lock: lock };
        let context = || {
            let path = path.display();
            format!("writing the pid file {path}; make room there, or choose another --pidfile")
        };
        write_id(&ours.file).with_context(context).map_err(output)?;
        Ok(ours)
    }

    /// Whether it could be written; writes nothing.
    pub(super) fn check(path: &Path) -> Result<(), Failure> {
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

/// Refuses a pid file that is also what is recorded to: it would be replaced, and removed at the end.
pub(super) fn check_name(pidfile: &Path, output: &Path) -> Result<(), Failure> {
    let name = place(pidfile);
    let names = [("trace", output.to_owned()), ("trace's index", index_path(output))];
    let Some((what, _)) = names.iter().find(|(_, path)| place(path) == name) else {
        return Ok(());
    };
    let shown = pidfile.display();
    let error = anyhow!(
        "--pidfile {shown}: that is the name of the {what}: give the pid file another one, such as \
         {}.pid",
        output.display()
    );
    Err(Failure::new(ExitCode::Usage, error))
}

/// A name by which it can be compared: in its folder, wherever that really is.
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
        // Somebody may have removed it, or put another one there.
        if is_at(&self.file, &self.path) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn output(error: anyhow::Error) -> Failure {
    Failure::new(ExitCode::Output, error)
}

/// The file, locked and with nothing in it that anybody needs.
fn open_ours(path: &Path) -> anyhow::Result<(File, Option<Flock<File>>)> {
    for _ in 0..TRIES {
        let Some(file) = open(path, true)? else { continue };
        let lock = lock(&file, path)?;
        // Who had it before may have removed it between the two.
        if is_at(&file, path) {
            judge(&file, path)?;
            return Ok((file, lock));
        }
    }
    Err(anyhow!(
        "{}: somebody removes it again and again: choose another --pidfile",
        path.display()
    ))
}

/// Opens it, through no link; `None` if it is not there and not to be made.
fn open(path: &Path, create: bool) -> anyhow::Result<Option<File>> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(create);
    // A FIFO must not be waited for.
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
            return Err(anyhow!("--pidfile: {folder} is not a directory: create it first"));
        }
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
            return Err(anyhow!(
                "{shown} is a symbolic link, and others may lead it elsewhere: give --pidfile the \
                 name of the file itself"
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
        "opening the pid file {}; choose another --pidfile, in a directory that is there and that you \
         may write to",
        path.display()
    );
    anyhow::Error::new(error).context(text)
}

/// Takes it for this process; others that run have a lock of their own.
fn lock(file: &File, path: &Path) -> anyhow::Result<Option<Flock<File>>> {
    // A lock is of the open file, whichever descriptor it is asked for with.
    let Ok(same) = file.try_clone() else { return Ok(None) };
    match Flock::lock(same, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, Errno::EWOULDBLOCK)) => {
            let who = named(file).map_or_else(String::new, |pid| format!(", process {pid}"));
            let path = path.display();
            Err(anyhow!(
                "{path} is that of a recorder that is running{who}: choose another --pidfile"
            ))
        }
        // Where files cannot be locked, what is in it has to do.
        Err(_) => Ok(None),
    }
}

/// Refuses what is of use to somebody.
fn judge(file: &File, path: &Path) -> anyhow::Result<()> {
    let path = path.display();
    if file.metadata().is_ok_and(|found| found.len() == 0) {
        // As mktemp makes it, or a recorder that was killed at once.
        return Ok(());
    }
    let Some(pid) = named(file) else {
        return Err(anyhow!("{path} is not a pid file: choose another --pidfile"));
    };
    match is_running(pid) {
        false => Ok(()),
        true => Err(anyhow!(
            "{path}: process {pid} is running: choose another --pidfile, or remove this one if it is \
             not that process's any more"
        )),
    }
}

/// It may be the process that wrote it. Our own id is of one before, as ids are used again: this process
/// has written nothing yet.
fn is_running(pid: i32) -> bool {
    if pid <= 0 || pid.cast_unsigned() == std::process::id() {
        return false;
    }
    match proc::status(pid) {
        // Nobody has waited for it yet; other threads may outlive the first one.
        Ok(status) if proc::has_ended(status.state) => {
            proc::tasks(pid).is_ok_and(|tasks| tasks.len() > 1)
        }
        Ok(_) => true,
        Err(_) => Path::new(&format!("/proc/{pid}")).exists(),
    }
}

/// The process id in it.
fn named(mut file: &File) -> Option<i32> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(LONGEST).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

fn write_id(mut file: &File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    // In one piece: who reads it sees all of it or nothing.
    file.write_all(format!("{}\n", std::process::id()).as_bytes())
}

/// The name still leads to this file.
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
        // As a shell writes it that becomes the recorder.
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
            let told = refusal(&path);
            assert!(told.contains(words) && told.contains("another --pidfile"), "{told}");
            assert_eq!(text(&path), before);
        }
        let told = refusal(dir.path());
        assert!(told.contains("choose another --pidfile"), "{told}");
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
        // It has the file, and has not yet written to it.
        let first = open_ours(&path).unwrap();
        assert!(refusal(&path).contains("a recorder that is running"));
        drop(first);
        let first = PidFile::write(&path).unwrap();
        let told = refusal(&path);
        assert!(told.contains(&format!("running, process {}", std::process::id())), "{told}");
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
        // Nor through a link to what was ours.
        let ours = PidFile::write(&path).unwrap();
        let moved = dir.path().join("moved");
        fs::rename(&path, &moved).unwrap();
        symlink(&moved, &path).unwrap();
        drop(ours);
        assert!(moved.exists() && path.symlink_metadata().is_ok());
    }
}
