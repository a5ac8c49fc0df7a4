//! A command started by us and held at its exec until sampling is on.
//!
//! # Safety
//! One closure runs between fork and exec; it makes system calls only.
//!
//! # Invariants
//! - The child waits on pipes whose other ends are ours: if the recorder dies, it goes on by itself.
#![allow(unsafe_code, reason = "pre_exec")]

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::thread::JoinHandle;

/// A child between fork and exec.
pub(super) struct Held {
    pid: i32,
    go: Option<File>,
    /// `Command::spawn` returns only after the exec, so it runs on a thread of its own.
    spawning: JoinHandle<io::Result<Child>>,
    /// The end that the parked program reads from, if it is to be parked.
    parked: Option<OwnedFd>,
    release: File,
}

/// A child whose program is mapped.
pub(super) struct Started {
    child: Child,
    /// The program is parked before its first instruction until it is released.
    parked: bool,
    /// Keeps the parked program waiting; a byte or its end lets it go on.
    release: Option<File>,
}

/// Why a program was not started.
#[derive(Debug)]
pub(super) enum ExecError<E> {
    /// It could not be executed.
    Spawn(io::Error),
    /// Its exec could not be waited for.
    Wait(E),
}

impl Held {
    /// Forks. The child does not exec before [`Self::exec`]; `tracer` may trace it even where only
    /// ancestors may. With `park`, the program gets a descriptor to be parked on.
    pub(super) fn start(command: &[OsString], tracer: i32, park: bool) -> io::Result<Self> {
        let [program, arguments @ ..] = command else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let (born, tell) = io::pipe()?;
        let (wait, go) = io::pipe()?;
        let (parked, release) = io::pipe()?;
        let parked = if park { Some(inheritable(parked.into())?) } else { None };
        let mut child = Command::new(program);
        child.args(arguments);
        let (wait_fd, tell_fd, go_fd) = (wait.as_raw_fd(), tell.as_raw_fd(), go.as_raw_fd());
        let before_exec = move || {
            let pid = std::process::id().to_ne_bytes();
            let mut go = [0u8];
            // The fork's copy of the other end: with it the child would never see its end.
            // SAFETY: a descriptor of this process that nothing here uses.
            unsafe { libc::close(go_fd) };
            // SAFETY: only system calls on descriptors that the parent keeps open until now.
            unsafe {
                libc::prctl(libc::PR_SET_PTRACER, libc::c_ulong::from(tracer as u32), 0, 0, 0)
            };
            // SAFETY: as above; the buffer is four bytes.
            unsafe { libc::write(tell_fd, pid.as_ptr().cast(), pid.len()) };
            // SAFETY: as above; the buffer is one byte.
            unsafe { libc::read(wait_fd, go.as_mut_ptr().cast(), 1) };
            Ok(())
        };
        // SAFETY: the closure is async-signal-safe: it allocates nothing and takes no lock.
        unsafe { child.pre_exec(before_exec) };
        let spawning = std::thread::spawn(move || {
            let child = child.spawn();
            drop((wait, tell));
            child
        });
        let mut pid = [0u8; 4];
        let mut born = File::from(OwnedFd::from(born));
        if born.read_exact(&mut pid).is_err() {
            let failure = spawning.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            return Err(failure.err().unwrap_or_else(|| io::ErrorKind::Other.into()));
        }
        Ok(Self {
            pid: i32::from_ne_bytes(pid),
            go: Some(File::from(OwnedFd::from(go))),
            spawning,
            parked,
            release: File::from(OwnedFd::from(release)),
        })
    }

    /// The child's process id.
    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    /// The descriptor that the program is parked on, as the program has it.
    pub(super) fn hold_fd(&self) -> Option<i32> {
        self.parked.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Lets the child exec. `wait` is called when it may have reached the exec's stop.
    pub(super) fn exec<E>(
        mut self,
        wait: impl FnOnce() -> Result<(), E>,
    ) -> Result<Started, ExecError<E>> {
        if let Some(mut go) = self.go.take() {
            // A child that is gone shows in the spawn's result.
            let _ = go.write_all(&[1]);
        }
        let waited = wait();
        let spawned = self.spawning.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let child = spawned.map_err(ExecError::Spawn)?;
        waited.map_err(ExecError::Wait)?;
        Ok(Started { child, parked: self.parked.is_some(), release: Some(self.release) })
    }
}

impl Started {
    /// Lets the parked program go on.
    pub(super) fn release(&mut self) {
        if let Some(mut release) = self.release.take() {
            // A program that is gone needs no release.
            let _ = release.write_all(&[1]);
        }
    }

    /// Ends a program that is parked; whoever traces it need not have let it go.
    pub(super) fn kill(&mut self) {
        if self.parked {
            // It may have ended by itself.
            let _ = self.child.kill();
        }
    }

    /// Waits for the program's end.
    pub(super) fn wait(&mut self) -> io::Result<ExitStatus> {
        self.release();
        self.child.wait()
    }
}

impl Drop for Started {
    /// A program that was never let go has not run its first instruction: it ends with the
    /// recording that could not be had, instead of running unrecorded behind the user's back.
    fn drop(&mut self) {
        if self.release.is_some() && self.parked {
            // It may have ended by itself; nobody else waits for it.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A duplicate that is kept across exec, out of the way of the descriptors that programs expect.
fn inheritable(descriptor: OwnedFd) -> io::Result<OwnedFd> {
    use std::os::fd::FromRawFd;
    const LOWEST: i32 = 200;
    // SAFETY: the descriptor is open.
    let copy = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_DUPFD, LOWEST) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just returned it to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}
