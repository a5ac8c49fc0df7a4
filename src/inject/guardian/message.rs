//! Messages between the recorder and its guardian, over a socket that preserves message boundaries.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest message; a plan takes less than a kilobyte.
const MESSAGE_MAX: usize = 16 << 10;

/// Longest time for which a message is tried again while the kernel has no memory for it.
const SHORTAGE_MAX: Duration = Duration::from_secs(5);
/// Pause between two attempts.
const RETRY: Duration = Duration::from_millis(5);

/// Sends a message.
pub(super) fn write_message(socket: BorrowedFd<'_>, message: &impl Serialize) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    through_shortage(|| send(socket.as_raw_fd(), &bytes, MsgFlags::MSG_NOSIGNAL))?;
    Ok(())
}

/// Tries again while the kernel has no memory: a message that is lost would cost the restore of the
/// target.
fn through_shortage(mut attempt: impl FnMut() -> Result<usize, Errno>) -> io::Result<usize> {
    let since = Instant::now();
    loop {
        match attempt() {
            Ok(bytes) => return Ok(bytes),
            Err(Errno::EINTR) => {}
            Err(Errno::ENOMEM | Errno::ENOBUFS) if since.elapsed() < SHORTAGE_MAX => {
                std::thread::sleep(RETRY);
            }
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Receives a message. Returns `None` at the end of the connection.
pub(super) fn read_message<T: DeserializeOwned>(socket: BorrowedFd<'_>) -> io::Result<Option<T>> {
    let mut bytes = vec![0; MESSAGE_MAX];
    let got = through_shortage(|| recv(socket.as_raw_fd(), &mut bytes, MsgFlags::empty()))?;
    if got == 0 {
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&bytes[..got])?))
}
