//! Idle threads: threads that only wait for work. A server has hundreds of them.
//!
//! # Invariants
//! - A thread that may wait for another thread is never idle, because its tree shows the cause.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use crate::trace::{FrameKind, LocationId, Method, RunState};
use crate::view::profile::call_tree::StackStep;
use crate::view::profile::thread_profile::{Profile, ThreadProfile};
use crate::view::recording::mode::Mode;
use crate::view::recording::waits::{Wait, call_name};
use crate::view::text::escape::escaped;
use crate::view::text::number::{counted, percent, wall_seconds};

/// Maximum percentage of its time that an idle thread runs or is runnable.
const BUSY_PERCENT: f64 = 1.0;
/// Minimum percentage of its time that an idle thread sleeps at one stack.
const ASLEEP_PERCENT: f64 = 99.0;
/// The number of innermost functions that are searched for a lock.
const INNERMOST: usize = 8;
/// Maximum number of groups of idle threads that are listed.
const LISTED_MAX: usize = 12;

/// Idle threads that wait at the same location.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct IdleGroup {
    threads: u64,
    us: u64,
}

/// Returns whether each thread is idle, by its index in the profile.
///
/// If all threads of a process would be idle, none is: the process may hang.
pub(in crate::view) fn idle_threads(profile: &Profile) -> Vec<bool> {
    if profile.mode != Mode::Wall || profile.narrow {
        return vec![false; profile.threads.len()];
    }
    let idle = asleep_threads(profile);
    let awake = profile.threads.iter().zip(&idle);
    let awake = awake.filter(|(thread, idle)| thread.count.samples > 0 && !**idle);
    let alive: BTreeSet<u32> = awake.map(|(thread, _)| thread.thread.pid).collect();
    let threads = profile.threads.iter().zip(idle);
    threads.map(|(thread, idle)| idle && alive.contains(&thread.thread.pid)).collect()
}

/// Returns whether each thread only waits for work, by its index, whatever the other threads do.
pub(in crate::view) fn asleep_threads(profile: &Profile) -> Vec<bool> {
    let threads = profile.threads.iter();
    threads.map(|thread| asleep_at(profile, thread).is_some()).collect()
}

/// Writes the sum of the idle threads. `all` is the weight of all threads.
pub(in crate::view) fn write(
    profile: &Profile,
    threads: &[&ThreadProfile],
    all: u64,
    out: &mut dyn Write,
) -> io::Result<()> {
    if threads.is_empty() {
        return Ok(());
    }
    let mut groups: BTreeMap<String, IdleGroup> = BTreeMap::new();
    let mut us = 0u64;
    for thread in threads {
        us = us.saturating_add(thread.count.weight);
        let Some(at) = asleep_at(profile, thread) else { continue };
        let group = groups.entry(describe(profile, thread, at)).or_default();
        group.threads += 1;
        group.us = group.us.saturating_add(thread.count.weight);
    }
    let number = counted(threads.len() as u64, "idle thread");
    let (share, time) = (percent(us, all), wall_seconds(us));
    writeln!(out, "\n{number}: {share:.1} % of all, {time} s (--idle shows their trees)")?;
    let mut groups: Vec<(String, IdleGroup)> = groups.into_iter().collect();
    groups.sort_by_key(|(_, group)| Reverse((group.us, group.threads)));
    for (text, group) in groups.iter().take(LISTED_MAX) {
        let number = counted(group.threads, "thread");
        writeln!(out, "    {text}: {number}, {} s", wall_seconds(group.us))?;
    }
    let rest = groups.get(LISTED_MAX..).unwrap_or_default();
    if !rest.is_empty() {
        let threads: u64 = rest.iter().map(|(_, group)| group.threads).sum();
        let us = rest.iter().fold(0u64, |sum, (_, group)| sum.saturating_add(group.us));
        let number = counted(threads, "thread");
        writeln!(out, "    elsewhere: {number}, {} s", wall_seconds(us))?;
    }
    Ok(())
}

/// Returns the call in which an idle thread sleeps, or `None` if it is not idle.
fn asleep_at(profile: &Profile, thread: &ThreadProfile) -> Option<usize> {
    let states = &thread.states;
    let all = states.total();
    let busy = states.of(RunState::Running).saturating_add(states.of(RunState::Runnable));
    let held = states.of(RunState::Disk).saturating_add(states.of(RunState::Stopped));
    if all == 0 || held > 0 || percent(busy, all) >= BUSY_PERCENT {
        return None;
    }
    let calls = thread.tree.calls();
    let (at, call) = calls.iter().enumerate().max_by_key(|(_, call)| call.own.weight)?;
    let asleep =
        wait_at(profile, thread, at).is_some_and(|it| it.state == RunState::Sleeping as u8);
    let enough = percent(call.own.weight, all) >= ASLEEP_PERCENT;
    (asleep && enough && !waits_for_lock(profile, thread, at)).then_some(at)
}

/// Returns whether one of the innermost functions, or the system call, takes a lock.
fn waits_for_lock(profile: &Profile, thread: &ThreadProfile, at: usize) -> bool {
    let of_file = wait_at(profile, thread, at)
        .and_then(|wait| wait.syscall)
        .is_some_and(|number| call_name(number) == "flock");
    let innermost = functions(profile, thread, at).take(INNERMOST);
    of_file || innermost.flatten().any(|method| takes_lock(&method.name))
}

/// Returns whether a function waits for a lock, in one of the common libraries.
fn takes_lock(name: &str) -> bool {
    const BEGINS: [&str; 7] = [
        "lll_lock_wait",
        "lll_mutex",
        "pthread_mutex_lock",
        "pthread_mutex_timedlock",
        "pthread_mutex_clocklock",
        "pthread_rwlock_",
        "pthread_spin_lock",
    ];
    const HOLDS: [&str; 6] = [
        "RwLock",
        "sync.(*Mutex)",
        "sync.(*RWMutex)",
        "ObjectMonitor::enter",
        // The locks of interpreters.
        "take_gil",
        "gvl_acquire",
    ];
    let plain = name.trim_start_matches('_');
    let of_class = ["Mutex", "mutex", "MutEx"].iter().any(|class| {
        let after = name.rsplit_once(class).map(|(_, after)| after.to_ascii_lowercase());
        after.is_some_and(|after| after.contains("lock") && !after.contains("unlock"))
    });
    BEGINS.iter().any(|begin| plain.starts_with(begin))
        || HOLDS.iter().any(|part| name.contains(part))
        || of_class
}

/// Returns the functions of the stack that ends in a call, innermost first. Other steps are `None`.
/// The kernel's functions are left out: what a thread waits for is seen at those that called them.
fn functions<'a>(
    profile: &'a Profile,
    thread: &'a ThreadProfile,
    at: usize,
) -> impl Iterator<Item = Option<&'a Method>> {
    let calls = thread.tree.calls();
    let callers = std::iter::successors(calls.get(at), move |call| {
        // The thread is its own caller.
        (call.caller() != 0).then(|| calls.get(call.caller())).flatten()
    });
    callers.filter_map(move |call| match call.step {
        StackStep::Frame(location) if is_kernel(profile, location) => None,
        StackStep::Frame(location) => Some(method_of(profile, location)),
        _ => None,
    })
}

fn is_kernel(profile: &Profile, location: LocationId) -> bool {
    let location = profile.locations.get(location.0 as usize);
    location.is_some_and(|location| location.kind == FrameKind::Kernel)
}

fn method_of(profile: &Profile, location: LocationId) -> Option<&Method> {
    profile.method_of(location).and_then(|id| profile.method(id))
}

fn wait_at(profile: &Profile, thread: &ThreadProfile, at: usize) -> Option<Wait> {
    match thread.tree.calls().get(at)?.step {
        StackStep::Wait(wait) => profile.waits.get(wait),
        _ => None,
    }
}

/// Returns the system call that a thread waits in, and the function that called the C library for
/// it.
fn describe(profile: &Profile, thread: &ThreadProfile, at: usize) -> String {
    let call = wait_at(profile, thread, at).and_then(|wait| wait.syscall).map(call_name);
    let call = call.map_or_else(|| "asleep".to_owned(), |name| format!("in {name}"));
    let own = |method: &&Method| !profile.module_name(method).is_some_and(is_c_library);
    let known = || functions(profile, thread, at).flatten();
    match known().find(own).or_else(|| known().next()) {
        Some(method) => format!("{call} below {}", escaped(&method.name)),
        None => call,
    }
}

/// Returns whether a module is the C library or a part of it.
fn is_c_library(name: &str) -> bool {
    const BEGINS: [&str; 8] =
        ["libc.so", "libc-", "libpthread", "librt", "ld-linux", "ld-musl", "libc.musl", "[vdso]"];
    BEGINS.iter().any(|begin| name.starts_with(begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_that_take_locks_are_known() {
        for name in [
            "__lll_lock_wait",
            "pthread_mutex_lock",
            "___pthread_mutex_lock",
            "__pthread_rwlock_wrlock_full64",
            "std::sys::sync::mutex::futex::Mutex::lock_contended",
            "parking_lot::raw_mutex::RawMutex::lock_slow",
            "lock_api::rwlock::RwLock<R,T>::read",
            "std::mutex::lock()",
            "absl::Mutex::Lock()",
            "sync.(*Mutex).lockSlow",
            "ObjectMonitor::enter(JavaThread*)",
            "take_gil",
        ] {
            assert!(takes_lock(name), "{name}");
        }
        for name in [
            "pthread_cond_wait",
            "__futex_abstimed_wait_common",
            "epoll_wait",
            "sem_wait",
            "worker_main",
            "block_on",
            "std::mutex::unlock()",
            "pthread_mutex_unlock",
        ] {
            assert!(!takes_lock(name), "{name}");
        }
    }

    #[test]
    fn the_c_library_has_many_names() {
        for name in ["libc.so.6", "libc-2.31.so", "libpthread.so.0", "ld-musl-x86_64.so.1"] {
            assert!(is_c_library(name), "{name}");
        }
        for name in ["demo", "libcrypto.so.3", "libcurl.so.4", "libc++.so.1"] {
            assert!(!is_c_library(name), "{name}");
        }
    }
}
