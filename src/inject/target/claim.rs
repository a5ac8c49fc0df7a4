//! The claim on a target: a lock that admits one recorder at a time.
//!
//! Two agents in one process would each save the other's handler as the action to restore. The last
//! one to leave would restore a handler that no longer exists. So the guardian locks `maps` in the
//! process's directory in `/proc`. That file belongs to exactly this process, and not to a later
//! process with the same pid. The lock ends with the guardian, and only after its restore.
//!
//! The kernel lets a user open `maps` only where it lets him look into the process, which every
//! recorder must. Everybody may open the directory itself and most other files in it: a lock there
//! would let any user keep root away from a process. (The `maps` of a process whose first thread
//! has exited is open to everybody, because that thread has no memory.)
//!
//! Another mount of `/proc`, as a container has, has another file. [`residue::remove`] refuses an
//! agent that a recorder behind such a mount uses.
//!
//! [`residue::remove`]: crate::inject::restore::residue::remove

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use super::identity;
use super::tracer::{FORK_SERVER, GUARDIAN};
use crate::inject::error::InjectError;
use crate::inject::refusal::Refusal;
use crate::proc::{self, FileLock};

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
    _lock: FileLock,
}

impl Claim {
    /// Claims a process. Returns a refusal while another guardian holds the claim.
    pub(in crate::inject) fn on(pid: i32, start_time: u64) -> Result<Claim, InjectError> {
        let mut maps =
            File::open(format!("/proc/{pid}/maps")).map_err(|error| match error.kind() {
                ErrorKind::PermissionDenied => InjectError::NotPermitted,
                _ => InjectError::reading("/proc/PID/maps", &error),
            })?;
        // Checks that the opened file belongs to the intended process.
        identity::check(pid, start_time)?;
        let since = Instant::now();
        let mut was_released = false;
        loop {
            maps = match FileLock::exclusive(maps) {
                Ok(lock) => return Ok(Claim { _lock: lock }),
                Err((maps, error)) if error.kind() == ErrorKind::WouldBlock => maps,
                Err((_, error)) => return Err(InjectError::system("flock", &error)),
            };
            if since.elapsed() >= PATIENCE {
                // The lock that was refused may be released by now.
                if !was_released && holder_of(&maps).is_none() {
                    was_released = true;
                    continue;
                }
                let refusal = owner_of_claim(&maps);
                let orphan = match refusal {
                    Refusal::BeingRestored { guardian } => Some(guardian),
                    _ => None,
                };
                // No recorder is left to continue it.
                if let Some((guardian, pidfd)) =
                    orphan.and_then(|pid| Some((pid, proc::open_pidfd(pid).ok()?)))
                {
                    proc::continue_stopped(guardian, pidfd.as_fd());
                }
                if orphan.is_none() || since.elapsed() >= ORPHAN_PATIENCE {
                    return Err(refusal.into());
                }
            }
            std::thread::sleep(RETRY);
        }
    }
}

/// Returns the refusal that names the owner of the claim on a target.
fn owner_of_claim(maps: &File) -> Refusal {
    let Some(holder) = holder_of(maps) else {
        return Refusal::AlreadyRecorded { recorder: None };
    };
    // The process that took the lock may have exited and left it to another one. A third one may
    // have its pid now.
    let Ok(proc::Status { name, .. }) = proc::status(holder) else {
        return Refusal::Locked { holder: None };
    };
    if has_lock(holder, maps) == Some(false) {
        return Refusal::Locked { holder: None };
    }
    if !is_traceprof(holder, &name) {
        return Refusal::Locked { holder: Some((holder, name)) };
    }
    match recorder_of(holder) {
        None => Refusal::BeingRestored { guardian: holder },
        recorder => Refusal::AlreadyRecorded { recorder },
    }
}

/// Returns the process that locked a file, from proc_locks(5). `None` if it belongs to another pid
/// namespace.
fn holder_of(file: &File) -> Option<i32> {
    let inode = inode_of(file)?;
    let locks = fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| holder_in(line, &inode))
}

/// Returns the end of the word for this file in a line of proc_locks(5).
fn inode_of(file: &File) -> Option<String> {
    Some(format!(":{}", file.metadata().ok()?.ino()))
}

/// Returns the pid in a line of proc_locks(5) about a lock on this inode.
fn holder_in(line: &str, inode: &str) -> Option<i32> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let is_it = fields.get(1) == Some(&"FLOCK") && fields.get(5)?.ends_with(inode);
    fields.get(4).filter(|_| is_it)?.parse().ok()
}

/// Whether a process has a locked description of this file open. `None` if that cannot be read.
fn has_lock(pid: i32, file: &File) -> Option<bool> {
    let inode = inode_of(file)?;
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo")).ok()? {
        // A descriptor may be closed meanwhile.
        let Ok(about) = fs::read_to_string(entry.ok()?.path()) else { continue };
        let mut locks = about.lines().filter_map(|line| line.strip_prefix("lock:"));
        if locks.any(|lock| holder_in(lock, &inode).is_some()) {
            return Some(true);
        }
    }
    Some(false)
}

/// Whether a holder is a guardian, or a recorder that restores in place of its guardian. The answer
/// chooses the words of a refusal only, since any program can take a guardian's name.
fn is_traceprof(holder: i32, name: &str) -> bool {
    let is_same_program = || {
        let own = proc::executable(std::process::id() as i32).ok();
        own.is_some() && own == proc::executable(holder).ok()
    };
    name == GUARDIAN || is_same_program()
}

/// Returns the recorder that forked a guardian, directly or through its fork server. `None` if the
/// recorder has exited. The process that inherits its children runs another program.
fn recorder_of(guardian: i32) -> Option<i32> {
    let mut parent = proc::status(guardian).ok()?.parent;
    let forked_by = proc::status(parent).ok()?;
    if forked_by.name == FORK_SERVER {
        parent = forked_by.parent;
    }
    // Every user may read a command line, but not the path of another user's program. A guardian is
    // forked without an execve, so it has the command line of its recorder.
    let of = |pid| proc::command_line(pid).ok().filter(|words| !words.is_empty());
    (of(parent)? == of(guardian)?).then_some(parent)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !is_so() {
            assert!(Instant::now() < deadline, "timed out waiting: {what}");
            std::thread::sleep(RETRY);
        }
    }

    #[test]
    fn holder_of_a_claim_is_found() {
        let own = std::process::id() as i32;
        let maps = File::open(format!("/proc/{own}/maps")).unwrap();
        let holder = || holder_of(&maps);
        assert_eq!(holder(), None);
        let claim = Claim::on(own, proc::start_time(own).unwrap()).unwrap();
        assert_eq!(holder(), Some(own));
        assert!(matches!(owner_of_claim(&maps), Refusal::BeingRestored { .. }));
        assert_eq!(has_lock(own, &maps), Some(true));
        let mut other = Command::new("sleep").arg("60").spawn().unwrap();
        // Until it has executed the program, it has this process's descriptors.
        let has_none = || has_lock(other.id() as i32, &maps) == Some(false);
        wait_until("it has not locked the file", has_none);
        other.kill().unwrap();
        other.wait().unwrap();
        drop(claim);
        assert_eq!(holder(), None);
    }

    #[test]
    fn foreign_holder_of_the_lock_is_named() {
        let mut target = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = target.id() as i32;
        let path = format!("/proc/{pid}/maps");
        let mut holder =
            Command::new("flock").args(["--no-fork", &path, "sleep", "60"]).spawn().unwrap();
        let maps = File::open(&path).unwrap();
        wait_until("it takes the lock", || holder_of(&maps).is_some());
        let refused = Claim::on(pid, proc::start_time(pid).unwrap()).unwrap_err();
        let text = refused.to_string();
        assert!(text.starts_with(&format!("sleep (pid {}) holds", holder.id())), "{text}");
        for child in [&mut holder, &mut target] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn recorder_is_the_parent_that_runs_the_same_program() {
        let mut child = Command::new("sleep").arg("9").spawn().unwrap();
        assert_eq!(recorder_of(child.id() as i32), None);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
