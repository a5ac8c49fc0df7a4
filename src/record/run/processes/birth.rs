//! The first moments of a child, in which it must not be attached to.
//!
//! # Invariants
//! - A child of `vfork` uses its parent's memory until it executes a program or ends: what would be
//!   attached to it would be in the parent.
//! - Nobody waits for long for a child that stays there: it is told of, and taken up when it has
//!   executed a program.

use std::time::{Duration, Instant};

use anyhow::anyhow;

use crate::proc;
use crate::record::contract::error::{RecordError, target_error};
use crate::record::contract::stop::Stop;
use crate::record::run::settled::is_settled;

/// As long as this a child is waited for that has not executed a program: what a shell starts does
/// so in a millisecond, and an attach before it would be in vain. A worker that is forked loses so
/// much.
const EXEC_SOON: Duration = Duration::from_millis(10);
/// Longest wait for an exec to be over: the program may lie on a slow disk.
const SETTLED_MAX: Duration = Duration::from_secs(5);
/// Longest wait of the others for one that is in its parent's memory.
const GUEST_MAX: Duration = Duration::from_secs(3);
/// How long one was in its parent's memory that never had its own.
const TO_THE_END: &str = "to the end";
/// Between two looks at it.
const LOOK: Duration = Duration::from_micros(500);
/// The same when nobody waits for it any more.
const LATE_LOOK: Duration = Duration::from_millis(20);

/// Waits until a child may be attached to. One that `is_new` is about to execute a program, maybe.
/// If the others are not to wait for it any more `late` is called with the reason, and how long it
/// took is told.
pub(super) fn wait(
    (pid, parent): (i32, i32),
    is_new: bool,
    stop: &Stop,
    late: impl FnOnce(String),
) -> Result<Option<Duration>, RecordError> {
    let born = Instant::now();
    let start_time = proc::start_time(pid).ok();
    // When it was seen to have memory of its own.
    let mut apart: Option<Instant> = None;
    let mut late = Some(late);
    loop {
        // An error of one that is gone.
        let own = proc::drawn_bytes(pid);
        // Another one may have its number.
        let is_there = start_time.is_some() && proc::start_time(pid).ok() == start_time;
        if stop.is_due() || !is_there {
            let until = if is_there { "until the recording ended" } else { TO_THE_END };
            return Err(left_out((pid, parent), late.is_none().then_some(until)));
        }
        let status = proc::status(pid).map_err(|error| target_error(pid, error))?;
        if proc::has_ended(status.state) && status.threads <= 1 {
            return Err(left_out((pid, parent), late.is_none().then_some(TO_THE_END)));
        }
        let is_forked = own.is_ok() && own.ok() == proc::drawn_bytes(parent).ok();
        let is_early = is_new && is_forked && born.elapsed() < EXEC_SOON;
        if is_in_memory_of(pid, parent) {
            if born.elapsed() >= GUEST_MAX
                && let Some(late) = late.take()
            {
                late(format!(
                    "is not recorded yet: it uses the memory of process {parent}, which has \
                     started \
                     it, and will be taken up when it has executed a program"
                ));
            }
        } else {
            let since = *apart.get_or_insert_with(Instant::now);
            let is_unsettled = !is_settled(pid) && since.elapsed() < SETTLED_MAX;
            if !is_early && !is_unsettled {
                return Ok(late.is_none().then(|| born.elapsed()));
            }
        }
        std::thread::sleep(if late.is_none() { LATE_LOOK } else { LOOK });
    }
}

/// It is gone, or the recording is over. One that was waited for so long is told of by its reason,
/// which was so `until` then.
fn left_out((pid, parent): (i32, i32), until: Option<&str>) -> RecordError {
    match until {
        Some(until) => RecordError::Other(anyhow!(
            "it used the memory of process {parent}, which has started it, {until}: what would be \
             attached to it would be in that one"
        )),
        None => RecordError::TargetGone(anyhow!("process {pid} is gone")),
    }
}

/// It uses its parent's memory. Where the kernel does not say, a parent that waits in the kernel
/// may wait for it.
fn is_in_memory_of(pid: i32, parent: i32) -> bool {
    proc::shares_memory(parent, pid).unwrap_or_else(|| {
        let state = |tid: &i32| proc::task_stat(parent, *tid).map_or('?', |stat| stat.state);
        proc::tasks(parent).is_ok_and(|tids| tids.iter().any(|tid| state(tid) == 'D'))
    })
}
