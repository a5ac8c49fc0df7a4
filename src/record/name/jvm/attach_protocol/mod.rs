//! The attach protocol of a Java virtual machine: a file, a signal, a socket.
//!
//! # Invariants
//! - SIGQUIT goes to the one thread of the JVM that handles it, never to the process. An exec ends
//!   that thread and its pending signals. The signal would kill a process without a handler.
//! - The socket is used only if it is the JVM's own: another process may have created a socket with
//!   this name.
//! - As far as possible, the JVM never mistakes the SIGQUIT for a user's, which makes it write all
//!   its stacks to its output. A stopped JVM gets no signal, and the file that explains the signal
//!   stays for a moment even at the end.
//! - No wait is longer than a few seconds, and waits are shorter once the end is requested.
//! - Only files that the recorder created, or the JVM on its request, are removed.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant, SystemTime};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::signal::Signal;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket, sockopt,
};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, geteuid, unlinkat};

use crate::proc::{self, Memory, Root, Status};
use crate::record::target::signals;

const FOLDER: &str = "/tmp";
/// The name of the HotSpot thread that runs its operations, the only thread that does not block
/// SIGQUIT.
const HANDLES_QUIT: &str = "VM Thread";
/// The request: version, command, its first argument, two empty arguments.
const REQUEST: &[u8] = b"1\0jcmd\0Compiler.perfmap\0\0\0";
/// The longest answer that is read, in bytes.
const ANSWER_MAX: u64 = 64 << 10;

/// How long to wait for a JVM.
#[derive(Debug, Clone, Copy)]
pub(super) struct AttachTimeouts {
    /// The timeout for the socket; a JVM that has not opened it by then will not.
    pub(super) socket: Duration,
    /// The timeout for the answer; a map of a hundred thousand methods takes less than a second.
    pub(super) answer: Duration,
    /// The timeout for either once the end is requested, since a map that is written later could
    /// not be removed.
    pub(super) last: Duration,
    /// The interval between checks.
    pub(super) step: Duration,
}

impl AttachTimeouts {
    pub(super) const DEFAULT: Self = Self {
        socket: Duration::from_secs(5),
        answer: Duration::from_secs(10),
        last: Duration::from_secs(2),
        step: Duration::from_millis(10),
    };
}

/// The identity of a file: its device and inode.
type FileId = (u64, u64);

/// A map that exists.
#[derive(Debug, Clone, Copy)]
pub(super) struct FoundMap {
    file: FileId,
    /// The time of its last change.
    modified: SystemTime,
}

/// The reason why a JVM has not written its map.
#[derive(Debug)]
pub(super) enum AskError {
    /// The JVM does not handle SIGQUIT: it may be starting, or be stopped.
    NotYet,
    /// The program has exited, or the end is requested.
    Over,
    /// The JVM refused, or its folder contains something unexpected.
    Refused(String),
    /// The JVM does not respond, or a call failed.
    Failed(io::Error),
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotYet => {
                f.write_str("it does not handle SIGQUIT (yet), is stopped, or is not HotSpot")
            }
            Self::Over => f.write_str("it has exited"),
            Self::Refused(why) => f.write_str(why),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl From<io::Error> for AskError {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Errno> for AskError {
    fn from(error: Errno) -> Self {
        Self::Failed(error.into())
    }
}

/// A running JVM.
pub(super) struct JavaVm {
    pid: i32,
    /// The process id in its own namespace.
    inner_pid: i32,
    /// The user and group of the process.
    owner: (u32, u32),
    /// The memory of the program, which distinguishes it from another program of the same process.
    memory: Memory,
    folder: OwnedFd,
    timeouts: AttachTimeouts,
}

impl JavaVm {
    /// Opens the JVM of a process.
    pub(super) fn of(pid: i32) -> io::Result<Self> {
        let memory = Memory::of(pid)?;
        let status = proc::status(pid)?;
        let folder = Root::open(pid, status.euid)?.directory(FOLDER.as_ref())?;
        let (inner_pid, owner) = (status.inner_tgid, (status.euid, status.egid));
        Ok(Self { pid, inner_pid, owner, memory, folder, timeouts: AttachTimeouts::DEFAULT })
    }

    /// Returns whether the JVM's program has exited, or the process has executed another one.
    pub(super) fn is_gone(&self) -> bool {
        self.memory.is_gone()
    }

    /// Returns the map that exists now.
    ///
    /// # Errors
    /// Fails if the file is not the JVM's own: the JVM would write to another file.
    pub(super) fn map(&self) -> Result<Option<FoundMap>, AskError> {
        let name = self.map_name();
        let Some(found) = self.status_of(&name)? else { return Ok(None) };
        if SFlag::S_IFMT.bits() & found.st_mode != SFlag::S_IFREG.bits() || !self.owns(&found) {
            return Err(AskError::Refused(format!(
                "{FOLDER}/{name} exists and is not its own file"
            )));
        }
        // No map is from before 1970.
        let (seconds, nanoseconds) = (found.st_mtime.max(0) as u64, found.st_mtime_nsec as u32);
        let modified = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds);
        Ok(Some(FoundMap { file: (found.st_dev, found.st_ino), modified }))
    }

    /// Removes the map if it is still this file; `asked` is the time of the last request.
    ///
    /// Once the JVM has exited, the next program may have overwritten the map.
    pub(super) fn remove_map(&self, map: FoundMap, asked: SystemTime) {
        if map.modified <= asked || !self.is_gone() {
            self.remove(&self.map_name(), map.file);
        }
    }

    /// Makes the JVM write the map, and returns how long that took.
    pub(super) fn ask(&self, is_ending: &dyn Fn() -> bool) -> Result<Duration, AskError> {
        self.map()?;
        let mut stream = match self.connect()? {
            Some(stream) => stream,
            None => self.open_socket(is_ending)?,
        };
        let start = Instant::now();
        stream.set_read_timeout(Some(self.timeouts.step))?;
        stream.set_write_timeout(Some(self.timeouts.answer))?;
        stream.write_all(REQUEST)?;
        let answer = self.answer(stream, is_ending)?;
        match answer.split_once('\n') {
            Some(("0", _)) => Ok(start.elapsed()),
            Some((_, why)) => {
                Err(AskError::Refused(why.lines().next().unwrap_or("refused").to_owned()))
            }
            None if is_ending() || self.is_gone() => Err(AskError::Over),
            None => Err(silent("the Java virtual machine did not answer")),
        }
    }

    fn answer(&self, stream: UnixStream, is_ending: &dyn Fn() -> bool) -> io::Result<String> {
        let mut deadline = Instant::now() + self.timeouts.answer;
        let mut stream = stream.take(ANSWER_MAX);
        let (mut answer, mut chunk) = (Vec::new(), [0; 4096]);
        while Instant::now() < deadline {
            match stream.read(&mut chunk) {
                Ok(0) => break,
                Ok(len) => answer.extend(&chunk[..len]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The JVM has exited.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break,
                Err(error) => return Err(error),
            }
            if is_ending() {
                deadline = deadline.min(Instant::now() + self.timeouts.last);
            }
        }
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    /// Connects to the JVM's socket; `None` if it does not listen yet.
    fn connect(&self) -> Result<Option<UnixStream>, AskError> {
        let name = format!(".java_pid{}", self.inner_pid);
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = match openat(&self.folder, name.as_str(), flags, Mode::empty()) {
            Err(Errno::ENOENT) => return Ok(None),
            file => file?,
        };
        let found = fstat(&file)?;
        let strange = |what| AskError::Refused(format!("{FOLDER}/{name} is {what}"));
        if SFlag::S_IFMT.bits() & found.st_mode != SFlag::S_IFSOCK.bits() || !self.owns(&found) {
            return Err(strange("not its own socket"));
        }
        // A connection that is never accepted would block forever.
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        // By the descriptor: another file may have the name by now.
        let address = UnixAddr::new(&proc::descriptor_path(&file))?;
        match connect(socket.as_raw_fd(), &address) {
            // An earlier process with the same id left the socket; a JVM replaces it.
            Err(Errno::ECONNREFUSED) => return Ok(None),
            result => result?,
        }
        let peer = getsockopt(&socket, sockopt::PeerCredentials)?;
        if peer.pid() != self.pid {
            return Err(strange("the socket of another process"));
        }
        let stream = UnixStream::from(socket);
        stream.set_nonblocking(false)?;
        Ok(Some(stream))
    }

    /// Makes the JVM open its socket.
    fn open_socket(&self, is_ending: &dyn Fn() -> bool) -> Result<UnixStream, AskError> {
        let words = proc::command_line(self.pid)?;
        let refuses = |word: &OsString| word == "-Xrs" || word == "-XX:+DisableAttachMechanism";
        if let Some(word) = words.iter().find(|word| refuses(word)) {
            let text = format!("it was started with {}", word.to_string_lossy());
            return Err(AskError::Refused(text));
        }
        let status = proc::status(self.pid)?;
        if !status.catches(Signal::SIGQUIT as i32) {
            return Err(AskError::NotYet);
        }
        let tid = self.quit_thread()?;
        let request = self.make_request()?;
        let woken = self.signal_and_wait(tid, is_ending);
        if let Some((name, file)) = request {
            self.remove(&name, file);
        }
        // The JVM must not start to write a map now: nobody would read it.
        if is_ending() { Err(AskError::Over) } else { woken }
    }

    /// Finds the thread that handles SIGQUIT.
    fn quit_thread(&self) -> Result<i32, AskError> {
        let handles = |tid: &i32| {
            let status = proc::task_status(self.pid, *tid);
            // The main thread has the id of the process, and still exists after an exec.
            *tid != self.pid && status.is_ok_and(|status| handles_quit(&status))
        };
        proc::tasks(self.pid)?.into_iter().find(handles).ok_or(AskError::NotYet)
    }

    /// Creates the file that explains the SIGQUIT, and returns its name and identity; `None` if
    /// another process is attaching at the same time.
    fn make_request(&self) -> Result<Option<(String, FileId)>, AskError> {
        let name = format!(".attach_pid{}", self.inner_pid);
        let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mode = Mode::from_bits_truncate(0o600);
        let file = match openat(&self.folder, name.as_str(), flags | OFlag::O_WRONLY, mode) {
            Err(Errno::EEXIST) => return Ok(None),
            file => file?,
        };
        let found = fstat(&file)?;
        let made = (found.st_dev, found.st_ino);
        if self.owner.0 != geteuid().as_raw() {
            // The JVM ignores files of other users, and would write all its stacks on the signal.
            let (user, group) = (Uid::from_raw(self.owner.0), Gid::from_raw(self.owner.1));
            if let Err(error) = fchown(&file, Some(user), Some(group)) {
                self.remove(&name, made);
                return Err(error.into());
            }
        }
        Ok(Some((name, made)))
    }

    fn signal_and_wait(
        &self,
        tid: i32,
        is_ending: &dyn Fn() -> bool,
    ) -> Result<UnixStream, AskError> {
        if is_ending() || self.is_gone() {
            return Err(AskError::Over);
        }
        signals::send(self.pid, tid, Signal::SIGQUIT as i32, 0)?;
        let sent = Instant::now();
        while !self.is_gone() {
            if let Some(stream) = self.connect()? {
                return Ok(stream);
            }
            let timeouts = if is_ending() { self.timeouts.last } else { self.timeouts.socket };
            if sent.elapsed() >= timeouts {
                return Err(silent("it did not open its socket"));
            }
            std::thread::sleep(self.timeouts.step);
        }
        Err(AskError::Over)
    }

    fn map_name(&self) -> String {
        format!("perf-{}.map", self.inner_pid)
    }

    fn owns(&self, found: &FileStat) -> bool {
        found.st_uid == self.owner.0 || found.st_uid == 0
    }

    fn status_of(&self, name: &str) -> Result<Option<FileStat>, AskError> {
        match fstatat(&self.folder, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Err(Errno::ENOENT) => Ok(None),
            found => Ok(Some(found?)),
        }
    }

    /// Removes a file if the name still leads to it.
    fn remove(&self, name: &str, file: FileId) {
        let is_same = |found: FileStat| (found.st_dev, found.st_ino) == file;
        if self.status_of(name).is_ok_and(|found| found.is_some_and(is_same)) {
            // The target may have removed the file meanwhile, or its folder.
            let _ = unlinkat(&self.folder, name, UnlinkatFlags::NoRemoveDir);
        }
    }
}

/// Returns whether a thread handles SIGQUIT now; a stopped thread would handle it only after the
/// wait for it has timed out.
fn handles_quit(thread: &Status) -> bool {
    let is_stopped = matches!(thread.state, 'T' | 't');
    thread.name == HANDLES_QUIT && !is_stopped && !thread.blocks(Signal::SIGQUIT as i32)
}

fn silent(text: &str) -> AskError {
    AskError::Failed(io::Error::new(io::ErrorKind::TimedOut, text.to_owned()))
}

#[cfg(test)]
mod tests;
