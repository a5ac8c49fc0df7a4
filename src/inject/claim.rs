//! The claim on a target: one recorder at a time.
//!
//! Two agents in one process would each save the other's handler as the action to put back, and
//! whichever leaves last would put back a handler that is gone. So the guardian locks the
//! process's directory in `/proc`, which belongs to exactly this process and not to a later one
//! with its pid. The lock ends with the guardian, however that ends, and only after its cure.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};

use super::error::InjectError;
use super::identity;
use super::nursery::NURSERY;
use super::refusal::Refusal;
use crate::proc;

/// How long somebody else's claim is waited for: the guardian of a recorder that was killed a moment
/// ago does not know it yet, or is in the middle of its attach.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a guardian whose recorder is gone is waited for: it cures.
const ORPHAN_PATIENCE: Duration = Duration::from_secs(30);
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
        let since = Instant::now();
        loop {
            directory = match Flock::lock(directory, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(Claim { _lock: lock }),
                Err((directory, nix::errno::Errno::EWOULDBLOCK)) => directory,
                Err((_, errno)) => return Err(InjectError::system("flock", &errno.into())),
            };
            if since.elapsed() >= PATIENCE {
                let refusal = who_has(&directory);
                let is_orphan = matches!(refusal, Refusal::BeingCured { .. });
                if !is_orphan || since.elapsed() >= ORPHAN_PATIENCE {
                    return Err(refusal.into());
                }
            }
            std::thread::sleep(RETRY);
        }
    }
}

/// Names who has the claim on a target.
fn who_has(directory: &File) -> Refusal {
    let Some(guardian) = guardian_of(directory) else {
        return Refusal::AlreadyRecorded { recorder: None };
    };
    match recorder_of(guardian) {
        None => Refusal::BeingCured { guardian },
        recorder => Refusal::AlreadyRecorded { recorder },
    }
}

/// The process that has a directory locked: proc_locks(5). `None` if it cannot be seen from here.
fn guardian_of(directory: &File) -> Option<i32> {
    let inode = format!(":{}", directory.metadata().ok()?.ino());
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let holder = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let is_it = fields.get(1) == Some(&"FLOCK") && fields.get(5)?.ends_with(&inode);
        fields.get(4).filter(|_| is_it)?.parse().ok()
    };
    locks.lines().filter_map(holder).find(|pid| proc::status(*pid).is_ok())
}

/// The recorder that forked a guardian, itself or by its nursery; `None` if it is gone. Whoever inherits
/// its children runs another program.
fn recorder_of(guardian: i32) -> Option<i32> {
    let mut parent = proc::status(guardian).ok()?.parent;
    let forked_by = proc::status(parent).ok()?;
    if forked_by.name == NURSERY {
        parent = forked_by.parent;
    }
    let of = |pid| proc::executable(pid).ok();
    (of(parent)? == of(guardian)?).then_some(parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holder_of_a_claim_is_found() {
        let own = std::process::id() as i32;
        let directory = File::open(format!("/proc/{own}")).unwrap();
        assert_eq!(guardian_of(&directory), None);
        let claim = Claim::on(own, proc::start_time(own).unwrap()).unwrap();
        assert_eq!(guardian_of(&directory), Some(own));
        drop(claim);
        assert_eq!(guardian_of(&directory), None);
    }

    #[test]
    fn recorder_is_the_parent_that_runs_the_same_program() {
        let mut child = std::process::Command::new("sleep").arg("9").spawn().unwrap();
        assert_eq!(recorder_of(child.id() as i32), None);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
