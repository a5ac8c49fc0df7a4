//! System V segments that a killed recorder left without a user.
//!
//! # Safety
//! The system calls take numbers, or fill in one structure that this module owns.
#![allow(unsafe_code, reason = "removes shared memory segments")]

use traceprof_abi::layout;

use crate::proc;

/// Returns the time in seconds, on the clock that the kernel uses for segments.
pub(super) fn now() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// Removes the segments without a key that `creator` created since `started` and that no process
/// has attached.
///
/// Without this, a recorder that is killed between the creation of a segment and its mark for
/// removal would leave the segment until the next boot.
pub(super) fn remove_orphans(creator: i32, started: u64) {
    for segment in made_by(creator) {
        if segment.attached == 0 && segment.changed >= started as i64 {
            // SAFETY: takes numbers only.
            unsafe { libc::shmctl(segment.id, libc::IPC_RMID, std::ptr::null_mut()) };
        }
    }
}

/// Removes unused segments with our size and mode whose creator has exited and that no other
/// process attached. Their recorder and its guardian were both killed before the recorder could
/// mark them for removal.
pub(super) fn remove_abandoned() {
    const MODE: i64 = 700;
    const LENGTHS: [u64; 3] = [layout::CODE_LEN, layout::TABLES_LEN, layout::DATA_LEN];
    for segment in listed() {
        let looks_like_ours =
            segment.mode == MODE && LENGTHS.iter().any(|len| *len as i64 == segment.len);
        let was_used = segment.attached != 0 || ![0, segment.creator].contains(&segment.last);
        // The creator of a segment from another pid namespace has no pid here.
        let maker = i32::try_from(segment.creator).unwrap_or(0);
        let is_abandoned = maker > 0 && proc::start_time(maker).is_err();
        if looks_like_ours && !was_used && is_abandoned {
            // SAFETY: takes numbers only. The kernel refuses it for another user's segment.
            unsafe { libc::shmctl(segment.id, libc::IPC_RMID, std::ptr::null_mut()) };
        }
    }
}

/// A System V segment without a key.
struct ListedSegment {
    id: i32,
    /// The permissions; their octal digits are read as decimal.
    mode: i64,
    len: i64,
    creator: i64,
    /// The last process that attached or detached the segment, 0 for none.
    last: i64,
    attached: i64,
    /// The time when the segment was created or changed its owner, in seconds.
    changed: i64,
}

/// Returns the segments without a key that one process created.
fn made_by(creator: i32) -> Vec<ListedSegment> {
    listed().into_iter().filter(|segment| segment.creator == i64::from(creator)).collect()
}

fn listed() -> Vec<ListedSegment> {
    let text = std::fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    let parse = |line: &str| {
        let fields: Vec<i64> =
            line.split_whitespace().map(|field| field.parse().unwrap_or(-1)).collect();
        // key, id, mode, size, creator, last user, attached, four owners, three times
        let [key, id, mode, len, creator, last, attached, _, _, _, _, _, _, changed, ..] =
            fields[..]
        else {
            return None;
        };
        let id = id as i32;
        (key == 0).then_some(ListedSegment { id, mode, len, creator, last, attached, changed })
    };
    text.lines().skip(1).filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use nix::sys::wait::waitpid;
    use nix::unistd::{ForkResult, fork};

    use super::*;

    #[test]
    fn only_unattached_segments_of_the_recorder_are_removed() {
        // SAFETY: the child makes system calls only.
        let child = match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                for _ in 0..2 {
                    // SAFETY: takes numbers only.
                    unsafe { libc::shmget(libc::IPC_PRIVATE, 4096, libc::IPC_CREAT | 0o700) };
                }
                // SAFETY: ends the child without the handlers of the test.
                unsafe { libc::_exit(0) }
            }
            ForkResult::Parent { child } => child,
        };
        waitpid(child, None).unwrap();
        let ids = || made_by(child.as_raw()).iter().map(|it| it.id).collect::<Vec<_>>();
        let [_, attached] = ids()[..] else { panic!("not two") };
        // SAFETY: no address is asked for.
        let base = unsafe { libc::shmat(attached, std::ptr::null(), 0) };
        remove_orphans(child.as_raw() + 1, 0);
        remove_orphans(child.as_raw(), now() + 100);
        assert_eq!(ids().len(), 2);
        remove_orphans(child.as_raw(), now() - 100);
        assert_eq!(ids(), [attached]);
        // SAFETY: attached above, and nothing refers to it.
        unsafe { libc::shmdt(base) };
        // A child that another test forks has the segment attached, too, until it calls exec.
        let is_removed = || {
            remove_orphans(child.as_raw(), now() - 100);
            ids().is_empty()
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        while !is_removed() {
            assert!(Instant::now() < deadline, "it is still there");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
