//! Idle threads: threads that only wait for work. A server has hundreds of them.
//!
//! A thread is idle if it sleeps below one function of its own, by whatever way: the kernel resumes
//! a sleep that a signal has interrupted as another call, `restart_syscall`.
//!
//! # Invariants
//! - A thread that may wait for another thread is never idle, because its tree shows the cause.
//! - If all threads would be idle, none is: the program may hang.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use crate::trace::{FrameKind, LocationId, MethodId, RunState};
use crate::view::profile::call_tree::StackStep;
use crate::view::profile::processes::Processes;
use crate::view::profile::thread_profile::{Profile, ThreadProfile};
use crate::view::recording::mode::Mode;
use crate::view::recording::waits::{Wait, call_name};
use crate::view::text::escape::escaped;
use crate::view::text::number::{counted, percent, wall_seconds};
use crate::view::text::text_style::TextStyle;

/// Maximum percentage of its time that an idle thread runs or is runnable.
const BUSY_PERCENT: f64 = 1.0;
/// Minimum percentage of its time that an idle thread sleeps at one stack.
const ASLEEP_PERCENT: f64 = 99.0;
/// The number of innermost functions that are searched for a lock.
const INNERMOST: usize = 8;
/// Maximum number of groups of idle threads that are listed.
const LISTED_MAX: usize = 12;

/// The call with which the kernel resumes an interrupted sleep.
const RESUMED: &str = "restart_syscall";
/// Maximum number of processes that are named for a location.
const PROCESSES_NAMED: usize = 3;

/// Idle threads that wait at the same location.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct IdleGroup {
    threads: u64,
    us: u64,
    /// The titles of their processes, if there are several.
    processes: BTreeSet<String>,
}

impl IdleGroup {
    fn add(&mut self, thread: &ThreadProfile, processes: &Processes) {
        self.threads += 1;
        self.us = self.us.saturating_add(thread.count.weight);
        if processes.are_several() {
            self.processes.insert(processes.title(thread.thread.pid.into()));
        }
    }

    fn text(&self) -> String {
        let mut text = format!("{}, {} s", counted(self.threads, "thread"), wall_seconds(self.us));
        let named: Vec<&str> =
            self.processes.iter().take(PROCESSES_NAMED).map(String::as_str).collect();
        if !named.is_empty() {
            text.push_str(&format!(", of {}", named.join(", ")));
        }
        match self.processes.len().saturating_sub(named.len()) {
            0 => text,
            more => format!("{text} and {more} more"),
        }
    }
}

/// Returns whether each thread is idle, by its index in the profile.
pub(in crate::view) fn idle_threads(profile: &Profile) -> Vec<bool> {
    if profile.mode != Mode::Wall || profile.narrow {
        return vec![false; profile.threads.len()];
    }
    let idle = asleep_threads(profile);
    let mut all = profile.threads.iter().zip(&idle);
    // In a recording of many servers most may be idle, but not all of them.
    let is_alive = all.any(|(thread, idle)| thread.count.samples > 0 && !*idle);
    if is_alive { idle } else { vec![false; profile.threads.len()] }
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
    (style, out): (&TextStyle, &mut dyn Write),
) -> io::Result<()> {
    if threads.is_empty() {
        return Ok(());
    }
    let processes = Processes::of(profile);
    let mut groups: BTreeMap<String, IdleGroup> = BTreeMap::new();
    let mut us = 0u64;
    for thread in threads {
        us = us.saturating_add(thread.count.weight);
        let Some(at) = asleep_at(profile, thread) else { continue };
        groups.entry(describe(profile, thread, at)).or_default().add(thread, &processes);
    }
    let number = counted(threads.len() as u64, "idle thread");
    let (share, time) = (percent(us, all), wall_seconds(us));
    writeln!(out, "\n{number}: {share:.1} % of all, {time} s (--idle shows their trees)")?;
    let mut groups: Vec<(String, IdleGroup)> = groups.into_iter().collect();
    groups.sort_by_key(|(_, group)| Reverse((group.us, group.threads)));
    let mut line = |text: String| {
        for (number, line) in style.wrapped(&text, 8).into_iter().enumerate() {
            writeln!(out, "{}{line}", if number == 0 { "    " } else { "        " })?;
        }
        io::Result::Ok(())
    };
    for (text, group) in groups.iter().take(LISTED_MAX) {
        line(format!("{text}: {}", group.text()))?;
    }
    let mut rest = IdleGroup::default();
    for (_, group) in groups.get(LISTED_MAX..).unwrap_or_default() {
        rest.threads += group.threads;
        rest.us = rest.us.saturating_add(group.us);
    }
    if rest.threads > 0 {
        line(format!("elsewhere: {}", rest.text()))?;
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
    let mut places: BTreeMap<Option<MethodId>, IdlePlace> = BTreeMap::new();
    for (at, call) in thread.tree.calls().iter().enumerate() {
        let wait = wait_at(profile, thread, at).filter(|_| call.own.weight > 0);
        if wait.is_some_and(|wait| wait.state == RunState::Sleeping as u8) {
            let caller = caller_of_library(profile, thread, at);
            places.entry(caller).or_default().add(call.own.weight, at);
        }
    }
    let place = places.into_values().max_by_key(|place| place.weight)?;
    let is_enough = percent(place.weight, all) >= ASLEEP_PERCENT;
    // A lock that it waits for less than it may run does not matter.
    let matters = |weight: u64| percent(weight, all) >= BUSY_PERCENT;
    let mut calls = place.calls.iter().filter(|(weight, _)| matters(*weight));
    if !is_enough || calls.any(|(_, at)| waits_for_lock(profile, thread, *at)) {
        return None;
    }
    let is_resumed = |at: usize| {
        wait_at(profile, thread, at)
            .and_then(|wait| wait.syscall)
            .is_some_and(|number| call_name(number) == RESUMED)
    };
    // The call that sleeps, not the one that resumes it.
    let shown = place.calls.iter().max_by_key(|(weight, at)| (!is_resumed(*at), *weight));
    shown.map(|(_, at)| *at)
}

/// The calls in which a thread sleeps below one function.
#[derive(Debug, Default)]
struct IdlePlace {
    weight: u64,
    /// The weight and the index of each call.
    calls: Vec<(u64, usize)>,
}

impl IdlePlace {
    fn add(&mut self, weight: u64, at: usize) {
        self.weight = self.weight.saturating_add(weight);
        self.calls.push((weight, at));
    }
}

/// Returns whether one of the innermost functions, or the system call, takes a lock.
fn waits_for_lock(profile: &Profile, thread: &ThreadProfile, at: usize) -> bool {
    let of_file = wait_at(profile, thread, at)
        .and_then(|wait| wait.syscall)
        .is_some_and(|number| call_name(number) == "flock");
    let innermost = functions(profile, thread, at).take(INNERMOST);
    let mut names = innermost.filter_map(|id| profile.method(id));
    of_file || names.any(|method| takes_lock(&method.name))
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

/// Returns the functions of the stack that ends in a call, innermost first. The kernel's functions
/// are left out: what a thread waits for is seen at those that called them.
fn functions<'a>(
    profile: &'a Profile,
    thread: &'a ThreadProfile,
    at: usize,
) -> impl Iterator<Item = MethodId> {
    let calls = thread.tree.calls();
    let callers = std::iter::successors(calls.get(at), move |call| {
        // The thread is its own caller.
        (call.caller() != 0).then(|| calls.get(call.caller())).flatten()
    });
    callers.filter_map(move |call| match call.step {
        StackStep::Frame(location) if is_kernel(profile, location) => None,
        StackStep::Frame(location) => profile.method_of(location),
        _ => None,
    })
}

fn is_kernel(profile: &Profile, location: LocationId) -> bool {
    let location = profile.locations.get(location.0 as usize);
    location.is_some_and(|location| location.kind == FrameKind::Kernel)
}

/// Returns the function that called the C library for what the innermost step of a stack does.
fn caller_of_library(profile: &Profile, thread: &ThreadProfile, at: usize) -> Option<MethodId> {
    let own = |id: &MethodId| {
        let module = profile.method(*id).and_then(|method| profile.module_name(method));
        !module.is_some_and(is_c_library)
    };
    let all = || functions(profile, thread, at);
    all().find(own).or_else(|| all().next())
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
    let caller = caller_of_library(profile, thread, at).and_then(|id| profile.method(id));
    match caller {
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
