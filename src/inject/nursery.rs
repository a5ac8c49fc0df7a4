//! The nursery: a process that forks guardians for a recorder of several processes.
//!
//! A recorder that has begun has threads, and descriptors that no guardian may keep open; new targets
//! need guardians all the same. So a process is forked before, which does nothing but fork. What it
//! forks is as independent of it as of the recorder, and goes by the recorder's end, not by its own.
//!
//! # Safety
//! The child of the fork runs only this module and `guardian`, on the one thread that forked.
//!
//! # Does not
//! - trace, or hold any file but its socket and the recorder's pidfd.
#![allow(unsafe_code, reason = "forks, and takes over descriptors that were sent")]

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, Shutdown, SockFlag, SockType,
    recv, recvmsg, send, sendmsg, shutdown, socketpair,
};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

use super::apart::{keep_only, pidfd_open};
use super::guardian::{self, Guardian};
use super::message::wait_readable;
use crate::fault::{self, Party};

/// Its name as a process.
pub(super) const NURSERY: &str = "traceprof-nurse";
/// Longest wait for a guardian to be forked: a machine without a free processor takes its time.
const FORK_MAX: Duration = Duration::from_secs(60);
/// Longest wait for its own end.
const END_MAX: Duration = Duration::from_secs(10);

/// The recorder's handle; it may be used from any thread. Dropping it ends the nursery, and none of
/// the guardians.
#[derive(Debug)]
pub struct Nursery {
    socket: OwnedFd,
    pidfd: OwnedFd,
    pid: i32,
}

impl Nursery {
    /// Forks the nursery. The caller has no other threads yet.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn start() -> io::Result<Nursery> {
        let (ours, theirs) = pair()?;
        let recorder_pid = std::process::id() as i32;
        let recorder = pidfd_open(recorder_pid)?;
        fault::is(Party::Recorder, recorder_pid);
        // SAFETY: the child runs `serve` and leaves by `_exit`; the caller has no other threads
        // that could hold a lock.
        match unsafe { fork() }? {
            ForkResult::Child => {
                let serve = || serve(&theirs, &recorder, recorder_pid);
                let outcome = std::panic::catch_unwind(serve);
                // SAFETY: ends the process without the recorder's exit handlers.
                unsafe { libc::_exit(i32::from(outcome.is_err())) }
            }
            ForkResult::Parent { child } => {
                let pid = child.as_raw();
                Ok(Nursery { socket: ours, pidfd: pidfd_open(pid)?, pid })
            }
        }
    }

    /// A guardian for one target more.
    ///
    /// # Errors
    /// Those of the kernel; the nursery is gone, if it was killed.
    pub fn guardian(&mut self) -> io::Result<Guardian> {
        send(self.socket.as_raw_fd(), &[1], MsgFlags::MSG_NOSIGNAL)?;
        wait_readable(self.socket.as_fd(), Instant::now() + FORK_MAX)?;
        let mut bytes = [0; size_of::<i32>()];
        let mut space = nix::cmsg_space!([RawFd; 2]);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let (socket, flags) = (self.socket.as_raw_fd(), MsgFlags::MSG_CMSG_CLOEXEC);
        let message = recvmsg::<()>(socket, &mut parts, Some(&mut space), flags)?;
        let mut descriptors = Vec::new();
        for part in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(numbers) = part {
                // SAFETY: the kernel just made them for this message, and nobody else knows them.
                let own = |number: RawFd| unsafe { OwnedFd::from_raw_fd(number) };
                descriptors.extend(numbers.into_iter().map(own));
            }
        }
        let got = message.bytes;
        match <[OwnedFd; 2]>::try_from(descriptors) {
            Ok([socket, pidfd]) if got == bytes.len() => {
                Ok(Guardian::adopt(i32::from_ne_bytes(bytes), socket, pidfd))
            }
            _ => Err(io::Error::other("the process that forks guardians was killed")),
        }
    }
}

impl Drop for Nursery {
    fn drop(&mut self) {
        let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Both);
        if wait_readable(self.pidfd.as_fd(), Instant::now() + END_MAX).is_ok() {
            let _ = waitpid(Pid::from_raw(self.pid), None);
        }
    }
}

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (kind, flags) = (SockType::SeqPacket, SockFlag::SOCK_CLOEXEC);
    Ok(socketpair(AddressFamily::Unix, kind, None, flags)?)
}

/// The child's side: forks on request until the recorder is gone, or wants no more.
fn serve(socket: &OwnedFd, recorder: &OwnedFd, recorder_pid: i32) -> io::Result<()> {
    let _ = nix::unistd::setsid();
    nix::sys::signal::SigSet::all().thread_block()?;
    let (socket, recorder) = keep_only(socket.as_raw_fd(), recorder.as_raw_fd())?;
    let name = std::ffi::CString::new(NURSERY)?;
    // SAFETY: reads the string.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    while is_asked(&socket, &recorder) {
        // Those that have ended: nobody else can wait for them.
        while matches!(
            waitpid(None, Some(WaitPidFlag::WNOHANG)),
            Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..))
        ) {}
        let (ours, theirs) = pair()?;
        // SAFETY: as in `Nursery::start`; this process has one thread.
        let child = match unsafe { fork() } {
            Ok(ForkResult::Child) => {
                let enter = || guardian::enter(&theirs, &recorder, recorder_pid);
                let outcome = std::panic::catch_unwind(enter);
                // SAFETY: ends the process without exit handlers.
                unsafe { libc::_exit(i32::from(outcome.is_err())) }
            }
            Ok(ForkResult::Parent { child }) => child.as_raw(),
            Err(_) => {
                // A message without descriptors: the recorder can do without this target.
                send(socket.as_raw_fd(), &[0], MsgFlags::MSG_NOSIGNAL)?;
                continue;
            }
        };
        let pidfd = pidfd_open(child)?;
        let descriptors = [ours.as_raw_fd(), pidfd.as_raw_fd()];
        let (bytes, rights) = (child.to_ne_bytes(), [ControlMessage::ScmRights(&descriptors)]);
        let parts = [IoSlice::new(&bytes)];
        sendmsg::<()>(socket.as_raw_fd(), &parts, &rights, MsgFlags::MSG_NOSIGNAL, None)?;
    }
    Ok(())
}

/// Waits for the next request; false when there will be none.
fn is_asked(socket: &OwnedFd, recorder: &OwnedFd) -> bool {
    let mut fds = [
        PollFd::new(socket.as_fd(), PollFlags::POLLIN),
        PollFd::new(recorder.as_fd(), PollFlags::POLLIN),
    ];
    loop {
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) => break,
            Err(nix::errno::Errno::EINTR) => {}
            Err(_) => return false,
        }
    }
    let is_over = fds[1].any() == Some(true);
    !is_over && recv(socket.as_raw_fd(), &mut [0], MsgFlags::empty()).is_ok_and(|got| got > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc;

    #[test]
    fn guardians_come_one_by_one_and_outlive_the_nursery() {
        let mut nursery = Nursery::start().unwrap();
        let guardians = [nursery.guardian().unwrap(), nursery.guardian().unwrap()];
        let pid = nursery.pid;
        for guardian in &guardians {
            assert_eq!(proc::status(guardian.pid()).unwrap().parent, pid);
            let open = || proc::descriptors(guardian.pid()).unwrap().len();
            // The standard ones, its socket and the recorder's pidfd: none of the other's.
            let deadline = Instant::now() + Duration::from_secs(20);
            while open() != 5 {
                assert!(Instant::now() < deadline, "{:?}", proc::descriptors(guardian.pid()));
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        drop(nursery);
        assert!(proc::start_time(pid).is_err(), "it goes on");
        let has_ended = |pid: i32| proc::status(pid).map_or(true, |it| proc::has_ended(it.state));
        assert!(guardians.iter().all(|it| !has_ended(it.pid())));
        let pids = guardians.each_ref().map(Guardian::pid);
        drop(guardians);
        assert!(pids.into_iter().all(has_ended));
    }
}
