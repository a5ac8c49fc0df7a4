//! The fork server: a process that forks guardians for a recorder of several processes.
//!
//! A running recorder has threads, and descriptors that no guardian may keep open. New targets
//! still need guardians. So the recorder starts early a process that does nothing but fork. Its
//! guardians depend on it as little as on the recorder: they exit with the recorder, not with the
//! fork server.
//!
//! # Safety
//! The receiver owns the descriptors that come with a message.
//!
//! # Does not
//! - trace, or keep any descriptor open but its socket and the recorder's pidfd.
#![allow(unsafe_code, reason = "takes over descriptors that were sent")]

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, Shutdown, SockFlag, SockType,
    recv, recvmsg, send, sendmsg, shutdown, socketpair,
};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::descriptors::keep_only;
use super::fork::SingleThreaded;
use super::{Guardian, server};
use crate::fault::{self, Party};
use crate::inject::target::tracer::FORK_SERVER;
use crate::proc::{open_pidfd, wait_readable};

/// Longest wait for the fork of a guardian, on a machine without a free processor.
const FORK_MAX: Duration = Duration::from_secs(60);
/// Longest wait for the exit of the fork server.
const END_MAX: Duration = Duration::from_secs(10);

/// The recorder's handle of the fork server, usable from any thread. Dropping it ends the fork
/// server but none of the guardians.
#[derive(Debug)]
pub struct ForkServer {
    socket: OwnedFd,
    pidfd: OwnedFd,
    pid: i32,
}

impl ForkServer {
    /// Forks the fork server.
    ///
    /// # Errors
    /// Returns an error of the kernel, or if this process has more than one thread.
    pub fn start() -> io::Result<ForkServer> {
        Self::fork(SingleThreaded::check()?)
    }

    fn fork(alone: SingleThreaded) -> io::Result<ForkServer> {
        let (ours, theirs) = pair()?;
        let recorder_pid = std::process::id() as i32;
        let recorder = open_pidfd(recorder_pid)?;
        fault::set_party(Party::Recorder, recorder_pid);
        let pid = alone.fork(|| serve(&theirs, &recorder, recorder_pid))?;
        Ok(ForkServer { socket: ours, pidfd: open_pidfd(pid)?, pid })
    }

    /// Forks a guardian for one more target.
    ///
    /// # Errors
    /// Returns an error of the kernel, or if the fork server was killed.
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
                // SAFETY: the kernel has just created the descriptors for this message, and nothing
                // else knows them.
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

impl Drop for ForkServer {
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

/// Runs the fork server: forks on request until the recorder exits or needs no more guardians.
fn serve(socket: &OwnedFd, recorder: &OwnedFd, recorder_pid: i32) -> io::Result<()> {
    let _ = nix::unistd::setsid();
    nix::sys::signal::SigSet::all().thread_block()?;
    let (socket, recorder) = keep_only(socket.as_raw_fd(), recorder.as_raw_fd())?;
    let name = std::ffi::CString::new(FORK_SERVER)?;
    // SAFETY: reads the string.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    while await_request(&socket, &recorder) {
        // Reaps guardians that have exited: no other process can reap them.
        while matches!(
            waitpid(None, Some(WaitPidFlag::WNOHANG)),
            Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..))
        ) {}
        let (ours, theirs) = pair()?;
        let forked = SingleThreaded::check()
            .and_then(|alone| alone.fork(|| server::run(&theirs, &recorder, recorder_pid)));
        let Ok(child) = forked else {
            // A message without descriptors reports the failure. The recorder continues without
            // this target.
            send(socket.as_raw_fd(), &[0], MsgFlags::MSG_NOSIGNAL)?;
            continue;
        };
        let pidfd = open_pidfd(child)?;
        let descriptors = [ours.as_raw_fd(), pidfd.as_raw_fd()];
        let (bytes, rights) = (child.to_ne_bytes(), [ControlMessage::ScmRights(&descriptors)]);
        let parts = [IoSlice::new(&bytes)];
        sendmsg::<()>(socket.as_raw_fd(), &parts, &rights, MsgFlags::MSG_NOSIGNAL, None)?;
    }
    Ok(())
}

/// Waits for the next request. Returns `false` if no more requests will come.
fn await_request(socket: &OwnedFd, recorder: &OwnedFd) -> bool {
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
    fn guardians_come_one_by_one_and_outlive_the_fork_server() {
        // SAFETY: no other test takes a lock that a guardian needs but the allocator's.
        let alone = unsafe { SingleThreaded::assume() };
        let mut fork_server = ForkServer::fork(alone).unwrap();
        let guardians = [fork_server.guardian().unwrap(), fork_server.guardian().unwrap()];
        let pid = fork_server.pid;
        for guardian in &guardians {
            assert_eq!(proc::status(guardian.pid()).unwrap().parent, pid);
            let open = || proc::descriptors(guardian.pid()).unwrap().len();
            // The standard descriptors, its socket and the recorder's pidfd, and none of the other
            // guardian's.
            let deadline = Instant::now() + Duration::from_secs(20);
            while open() != 5 {
                assert!(Instant::now() < deadline, "{:?}", proc::descriptors(guardian.pid()));
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        drop(fork_server);
        assert!(proc::start_time(pid).is_err(), "the fork server still runs");
        let has_ended = |pid: i32| proc::status(pid).map_or(true, |it| proc::has_ended(it.state));
        assert!(guardians.iter().all(|it| !has_ended(it.pid())));
        let pids = guardians.each_ref().map(Guardian::pid);
        drop(guardians);
        assert!(pids.into_iter().all(has_ended));
    }
}
