//! The claim on a target: a lock that admits one recorder at a time.
//!
//! Two agents in one process would each save the other's handler as the action to restore. The last
//! one to leave would restore a handler that no longer exists. So the guardian locks the process's
//! directory in `/proc`. That directory belongs to exactly this process, and not to a later process
//! with the same pid. The lock ends with the guardian, and only after its restore.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};

use super::identity;
use super::tracer::FORK_SERVER;
use crate::inject::error::InjectError;
use crate::inject::refusal::Refusal;
use crate::proc;

/// How long to wait for another guardian's claim. The guardian of a recorder that was killed a
/// moment ago may not have noticed that yet, or may be in the middle of its attach.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long to wait for a guardian whose recorder has exited, while it restores the target.
const ORPHAN_PATIENCE: Duration = Duration::from_secs(30);
/// Pause between attempts.
const RETRY: Duration = Duration::from_millis(20);

/// A claim on a target; dropping it releases the claim.
#[derive(Debug)]
pub(in crate::inject) struct Claim {
    _lock: Flock<File>,
}

impl Claim {
    /// Claims a process. Returns a refusal while another guardian holds the claim.
    pub(in crate::inject) fn on(pid: i32, start_time: u64) -> Result<Claim, InjectError> {
        let path = format!("/proc/{pid}");
        let mut directory = File::open(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => InjectError::Gone,
            _ => InjectError::system("opening /proc/PID", &error),
        })?;
        // Checks that the opened directory belongs to the intended process.
        identity::check(pid, start_time)?;
        let since = Instant::now();
        loop {
            directory = match Flock::lock(directory, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(Claim { _lock: lock }),
                Err((directory, nix::errno::Errno::EWOULDBLOCK)) => directory,
                Err((_, errno)) => return Err(InjectError::system("flock", &errno.into())),
            };
            if since.elapsed() >= PATIENCE {
                let refusal = owner_of_claim(&directory);
                let is_orphan = matches!(refusal, Refusal::BeingRestored { .. });
                if !is_orphan || since.elapsed() >= ORPHAN_PATIENCE {
                    return Err(refusal.into());
                }
            }
            std::thread::sleep(RETRY);
        }
    }
}

/// Returns the refusal that names the owner of the claim on a target.
fn owner_of_claim(directory: &File) -> Refusal {
    let Some(guardian) = guardian_of(directory) else {
        return Refusal::AlreadyRecorded { recorder: None };
    };
    match recorder_of(guardian) {
        None => Refusal::BeingRestored { guardian },
        recorder => Refusal::AlreadyRecorded { recorder },
    }
}

/// Returns the process that has a directory locked, from proc_locks(5). `None` if that process is
/// not visible here.
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

/// Returns the recorder that forked a guardian, directly or through its fork server. `None` if the
/// recorder has exited. The process that inherits its children runs another program.
fn recorder_of(guardian: i32) -> Option<i32> {
    let mut parent = proc::status(guardian).ok()?.parent;
    let forked_by = proc::status(parent).ok()?;
    if forked_by.name == FORK_SERVER {
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
