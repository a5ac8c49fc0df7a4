//! System V segments that a killed recorder left without a user, and what identifies them.
//!
//! # Safety
//! The system calls take numbers, or fill in one structure that this module owns.
#![allow(unsafe_code, reason = "creates and removes shared memory segments")]

use std::io;

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use traceprof_abi::layout::MAGIC;

/// The number of keys that a process tries: its threads may create segments at the same time.
const ATTEMPTS: u32 = 8;

/// Returns the time in seconds, on the clock that the kernel uses for segments.
pub(super) fn now() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// Creates a segment that can be told from those of other programs, and returns its id. `mode` has
/// the permissions and the flags of shmget(2).
///
/// The kernel stores the key with the segment in the same step. Contents could not identify the
/// segment of a recorder that is killed before it writes any. The removal of the segment takes the
/// key away, also while the segment is still attached.
pub(crate) fn create(len: usize, mode: i32) -> io::Result<i32> {
    let creator = std::process::id();
    // Others may have taken the keys. Then the segment has none: if it is left behind, it stays.
    let keys = (0..ATTEMPTS).map(|attempt| key(creator, attempt)).chain([libc::IPC_PRIVATE]);
    for key in keys {
        // SAFETY: takes numbers only.
        let id = unsafe { libc::shmget(key, len, libc::IPC_CREAT | libc::IPC_EXCL | mode) };
        if id >= 0 {
            return Ok(id);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::AlreadyExists {
            return Err(error);
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Returns one of the keys that a process gives to its segments.
fn key(creator: u32, attempt: u32) -> i32 {
    let seed = MAGIC ^ u64::from(creator) << 8 ^ u64::from(attempt);
    // The lowest bit keeps it from being IPC_PRIVATE.
    (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as i32 | 1
}

/// Removes the segments that a recorder left since `started`.
///
/// Without this, a recorder that is killed between the creation of a segment and its mark for
/// removal would leave the segment until the next boot.
pub(super) fn remove_orphans(creator: i32, started: u64) {
    let is_of_recorder = |segment: &ListedSegment| {
        segment.creator == i64::from(creator) && segment.changed >= started as i64
    };
    for segment in listed().iter().filter(|it| it.is_left_behind() && is_of_recorder(it)) {
        segment.remove();
    }
}

/// Removes the segments that recorders left whose guardian was killed, too.
pub(super) fn remove_abandoned() {
    // A creator that may not be signalled exists.
    let has_ended = |segment: &ListedSegment| {
        i32::try_from(segment.creator)
            .is_ok_and(|creator| kill(Pid::from_raw(creator), None) == Err(Errno::ESRCH))
    };
    for segment in listed().iter().filter(|it| it.is_left_behind() && has_ended(it)) {
        segment.remove();
    }
}

/// Returns how often each of two segments is attached, by all processes of all pid namespaces.
pub(super) fn attachments(ids: [i32; 2]) -> Option<[i64; 2]> {
    let all = listed();
    let count = |id: i32| all.iter().find(|it| it.id == id).map(|it| it.attached);
    Some([count(ids[0])?, count(ids[1])?])
}

/// Returns the process that created a segment, if it is in this pid namespace.
pub(super) fn creator(id: i32) -> Option<i32> {
    let creator = listed().into_iter().find(|it| it.id == id)?.creator;
    i32::try_from(creator).ok().filter(|&pid| pid > 0)
}

/// A System V segment, as the kernel lists it.
struct ListedSegment {
    key: i64,
    id: i32,
    /// The process that created the segment, 0 if it is not in this pid namespace.
    creator: i64,
    /// The last process that attached or detached the segment, 0 for none.
    last: i64,
    attached: i64,
    /// The time when the segment was created or changed its owner, in seconds.
    changed: i64,
    /// The bytes of the segment that exist, in memory or in the swap space.
    existing: i64,
}

impl ListedSegment {
    /// Whether a recorder or guardian created the segment, did not get to its removal, and no
    /// process has used it. Nobody loses data by its removal, since it has none.
    fn is_left_behind(&self) -> bool {
        self.is_ours()
            && self.attached == 0
            && [0, self.creator].contains(&self.last)
            && self.existing == 0
    }

    /// Whether the segment has a key that [`create`] gave it in its creator. The creator's pid is
    /// another one in an outer pid namespace, from where segments are left alone.
    fn is_ours(&self) -> bool {
        let creator = u32::try_from(self.creator).unwrap_or(0);
        (0..ATTEMPTS).any(|attempt| i64::from(key(creator, attempt)) == self.key)
    }

    fn remove(&self) {
        // SAFETY: takes numbers only. The kernel refuses it for another user's segment.
        unsafe { libc::shmctl(self.id, libc::IPC_RMID, std::ptr::null_mut()) };
    }
}

fn listed() -> Vec<ListedSegment> {
    let text = std::fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    let parse = |line: &str| {
        let fields: Vec<i64> =
            line.split_whitespace().map(|field| field.parse().unwrap_or(-1)).collect();
        // key, id, mode, size, creator, last user, attached, four owners, three times, two sizes
        let [key, id, _, _, creator, last, attached, _, _, _, _, _, _, changed, memory, swap, ..] =
            fields[..]
        else {
            return None;
        };
        let existing = memory.saturating_add(swap);
        Some(ListedSegment { key, id: id as i32, creator, last, attached, changed, existing })
    };
    text.lines().skip(1).filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use nix::sys::wait::waitpid;
    use nix::unistd::{ForkResult, fork};
    use traceprof_abi::layout;

    use super::*;

    const LEN: usize = layout::CODE_LEN as usize;

    /// Returns the ids of the segments that one process created.
    fn made_by(creator: Pid) -> Vec<i32> {
        let creator = i64::from(creator.as_raw());
        listed().iter().filter(|it| it.creator == creator).map(|it| it.id).collect()
    }

    /// Runs system calls in a child, and returns its pid after its exit.
    fn in_child(run: impl FnOnce()) -> Pid {
        // SAFETY: the child makes system calls only.
        let child = match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                run();
                // SAFETY: ends the child without the handlers of the test.
                unsafe { libc::_exit(0) }
            }
            ForkResult::Parent { child } => child,
        };
        waitpid(child, None).unwrap();
        child
    }

    /// Makes a segment as another program does, with the length and the mode of ours.
    fn create_foreign() -> i32 {
        // SAFETY: takes numbers only.
        unsafe { libc::shmget(libc::IPC_PRIVATE, LEN, libc::IPC_CREAT | 0o700) }
    }

    /// Writes the first byte of a segment.
    fn write_to(id: i32) {
        // SAFETY: no address is asked for.
        let base = unsafe { libc::shmat(id, std::ptr::null(), 0) };
        // SAFETY: attached above, and longer than a byte.
        unsafe { base.cast::<u8>().write_volatile(1) };
        // SAFETY: attached above, and nothing refers to it.
        unsafe { libc::shmdt(base) };
    }

    fn remove(id: i32) {
        // SAFETY: takes numbers only.
        unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
    }

    /// Checks which of the segments that a process of user nobody left are still there after a
    /// removal. Users other than root are that user themselves.
    fn check(make: fn() -> i32, remains: bool) {
        let child = in_child(|| {
            let _ = nix::unistd::setuid(nix::unistd::Uid::from_raw(65534));
            make();
        });
        let [id] = made_by(child)[..] else { panic!("not one") };
        remove_abandoned();
        let is_there = listed().iter().any(|it| it.id == id);
        remove(id);
        assert_eq!(is_there, remains);
    }

    #[test]
    fn segment_of_another_program_is_left_alone() {
        check(create_foreign, true);
        let full = || {
            let id = create_foreign();
            write_to(id);
            id
        };
        check(full, true);
    }

    #[test]
    fn segment_of_a_killed_recorder_is_removed_unless_it_was_written() {
        check(|| create(LEN, 0o700).unwrap_or(-1), false);
        let full = || {
            let id = create(LEN, 0o700).unwrap_or(-1);
            write_to(id);
            id
        };
        check(full, true);
    }

    #[test]
    fn segment_is_created_although_others_have_its_keys() {
        let own = std::process::id();
        let taken: Vec<i32> = (0..ATTEMPTS)
            // SAFETY: takes numbers only.
            .map(|attempt| unsafe { libc::shmget(key(own, attempt), 1, libc::IPC_CREAT | 0o600) })
            .collect();
        let created = create(LEN, 0o700);
        let again = create(LEN, 0o700);
        let all = taken.into_iter().chain(created.iter().copied()).chain(again.iter().copied());
        all.for_each(remove);
        assert_ne!(created.unwrap(), again.unwrap());
    }

    #[test]
    fn only_unattached_segments_of_the_recorder_are_removed() {
        let child = in_child(|| {
            for _ in 0..2 {
                let _ = create(4096, 0o700);
            }
        });
        let ids = || made_by(child);
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
        // Another process has used it.
        remove_orphans(child.as_raw(), now() - 100);
        assert_eq!(ids(), [attached]);
        remove(attached);
    }
}
