//! Messages between the recorder and its guardian, over a socket that preserves message boundaries.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::sys::socket::{MsgFlags, recv, send};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest message; a plan takes less than a kilobyte.
const MESSAGE_MAX: usize = 16 << 10;

/// Sends a message.
pub(super) fn write_message(socket: BorrowedFd<'_>, message: &impl Serialize) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    send(socket.as_raw_fd(), &bytes, MsgFlags::MSG_NOSIGNAL)?;
    Ok(())
}

/// Receives a message. Returns `None` at the end of the connection.
pub(super) fn read_message<T: DeserializeOwned>(socket: BorrowedFd<'_>) -> io::Result<Option<T>> {
    let mut bytes = vec![0; MESSAGE_MAX];
    let got = loop {
        match recv(socket.as_raw_fd(), &mut bytes, MsgFlags::empty()) {
            Ok(got) => break got,
            Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    };
    if got == 0 {
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&bytes[..got])?))
}
