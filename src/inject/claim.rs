//! The claim on a target: one recorder at a time.
//!
//! Two agents in one process would each save the other's handler as the action to put back, and
//! whichever leaves last would put back a handler that is gone. So the guardian locks the
//! process's directory in `/proc`, which belongs to exactly this process and not to a later one
//! with its pid. The lock ends with the guardian, however that ends, and only after its cure.

use std::fs::File;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};

use super::error::{InjectError, Refusal};
use super::identity;

/// How long the guardian of a recorder that was just killed may take for its cure.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pause between attempts.
const RETRY: Duration = Duration::from_millis(20);

/// A target claimed, until it is dropped.
#[derive(Debug)]
pub(super) struct Claim {
    _lock: Flock<File>,
}

impl Claim {
    /// Claims a process; refused while another guardian has it.
    pub(super) fn on(pid: i32, start_time: u64) -> Result<Claim, InjectError> {
        let path = format!("/proc/{pid}");
        let mut directory = File::open(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => InjectError::Gone,
            _ => InjectError::system("opening /proc/PID", &error),
        })?;
        // The directory that was opened is that of the process that was meant.
        identity::check(pid, start_time)?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            directory = match Flock::lock(directory, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(Claim { _lock: lock }),
                Err((directory, nix::errno::Errno::EWOULDBLOCK)) => directory,
                Err((_, errno)) => return Err(InjectError::system("flock", &errno.into())),
            };
            if Instant::now() >= deadline {
                return Err(Refusal::AlreadyRecorded.into());
            }
            std::thread::sleep(RETRY);
        }
    }
}
