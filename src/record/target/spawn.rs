//! A command that the recorder starts and holds at its exec until sampling is on.
//!
//! # Safety
//! One closure runs between fork and exec, and makes system calls only.
//!
//! # Invariants
//! - The child waits on pipes whose other ends the recorder holds: if the recorder dies, the child
//!   continues by itself.
#![allow(unsafe_code, reason = "pre_exec")]

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::thread::JoinHandle;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::proc;

/// A child between fork and exec.
pub(crate) struct HeldChild {
    pid: i32,
    go: Option<File>,
    /// The thread that runs `Command::spawn`, which returns only after the exec.
    spawning: JoinHandle<io::Result<Child>>,
    /// The end that the parked program reads from, if the program is to be parked.
    parked: Option<OwnedFd>,
    release: File,
}

/// A child whose program is mapped.
pub(crate) struct StartedProgram {
    child: Child,
    /// Whether the program is parked before its first instruction until its release.
    parked: bool,
    /// The pipe that parks the program: a byte or its end releases it.
    release: Option<File>,
}

/// The reason why a program was not started.
#[derive(Debug)]
pub(crate) enum ExecError<E> {
    /// The exec failed.
    Spawn(io::Error),
    /// The wait for its exec failed.
    Wait(E),
}

impl HeldChild {
    /// Forks a child that does not exec before [`Self::exec`].
    ///
    /// The process `tracer` may trace the child even where only ancestors may. With `park`, the
    /// program gets a descriptor to park on.
    pub(crate) fn start(command: &[OsString], tracer: i32, park: bool) -> io::Result<Self> {
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
            // While the fork's copy of the other end is open, the child would never see the end of
            // the pipe.
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
        proc::with_original_limit(&mut child);
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

    /// Returns the child's process id.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns the number of the descriptor that the program parks on.
    pub(crate) fn hold_fd(&self) -> Option<i32> {
        self.parked.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Kills the child, which has not executed its program and that nothing traces.
    pub(crate) fn kill(self) {
        // Nothing reaps the child before the join, so the id is still its own.
        let _ = kill(Pid::from_raw(self.pid), Signal::SIGKILL);
        let spawned = self.spawning.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        if let Ok(mut child) = spawned {
            let _ = child.wait();
        }
    }

    /// Lets the child exec, then calls `wait`, which waits until the program is mapped.
    pub(crate) fn exec<E>(
        mut self,
        wait: impl FnOnce() -> Result<(), E>,
    ) -> Result<StartedProgram, ExecError<E>> {
        if let Some(mut go) = self.go.take() {
            // If the child has exited, the spawn's result shows it.
            let _ = go.write_all(&[1]);
        }
        let waited = wait();
        let spawned = self.spawning.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let mut child = spawned.map_err(ExecError::Spawn)?;
        if waited.is_err() && self.parked.is_some() {
            // It may have exited by itself. Its tracer is the first to wait for it.
            let _ = child.kill();
        }
        waited.map_err(ExecError::Wait)?;
        Ok(StartedProgram { child, parked: self.parked.is_some(), release: Some(self.release) })
    }
}

impl StartedProgram {
    /// Releases the parked program.
    pub(crate) fn release(&mut self) {
        if let Some(mut release) = self.release.take() {
            // A program that has exited needs no release.
            let _ = release.write_all(&[1]);
        }
    }

    /// Kills a parked program, even one that its tracer has not released.
    pub(crate) fn kill(&mut self) {
        if self.parked {
            // It may have exited by itself.
            let _ = self.child.kill();
        }
    }

    /// Releases the program, and returns its exit status if it has exited.
    pub(crate) fn exit_status(&mut self) -> io::Result<Option<ExitStatus>> {
        self.release();
        self.child.try_wait()
    }
}

impl Drop for StartedProgram {
    /// Kills a program that was never released and has not run its first instruction.
    ///
    /// Its recording failed, and it must not run unrecorded behind the user's back.
    fn drop(&mut self) {
        if self.release.is_some() && self.parked {
            // It may have exited by itself; nothing else reaps it.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Duplicates a descriptor so that it survives exec, with a number that programs do not expect.
fn inheritable(descriptor: OwnedFd) -> io::Result<OwnedFd> {
    use std::os::fd::FromRawFd;
    const LOWEST: u64 = 200;
    // A low limit may not reach that far.
    let lowest = LOWEST.min(proc::descriptor_limit() / 2) as i32;
    // SAFETY: the descriptor is open.
    let copy = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_DUPFD, lowest) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just returned it to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}
