//! What the end-to-end tests share: targets, the command under test, and the state of a process
//! seen from outside.
#![allow(unsafe_code, reason = "two system calls that no crate in use wraps")]
#![allow(dead_code, reason = "each test file uses a part")]

mod browser;
mod control_group;
mod folded;
mod host;
mod jail;
mod java;
mod lua;
pub(crate) mod lua_callers;
pub(crate) mod maker;
pub(crate) mod managed_frames;
mod node;
mod page;
mod peak;
mod php;
mod program;
mod python;
mod recorder;
mod ruby;
pub(crate) mod served;
mod snapshot;
mod target;
mod team;
mod tmux;

pub(crate) use browser::{BROWSER, Browser};
pub(crate) use control_group::ControlGroup;
pub(crate) use folded::Folded;
pub(crate) use host::{
    Random, child_named, cpu_clock, is_long_run, is_root, no_skip_allowed, recording_obstacle,
    seed, tick, timers, unprivileged_obstacle,
};
pub(crate) use jail::{
    ERRNO, KILL, traced, with_descriptors, without, without_argument, without_perf,
};
pub(crate) use java::Java;
pub(crate) use lua::LuaJit;
pub(crate) use maker::Maker;
pub(crate) use node::Node;
pub(crate) use page::{Page, PageSample};
pub(crate) use peak::{peak_kib, peak_of};
pub(crate) use php::Php;
pub(crate) use program::{
    cpp_program, go_program, go_program_by, go_program_of, has_command, java_agent, java_classes,
    java_classes_of, newest_go, program, program_for_everyone, rust_program_with_context,
    rust_variant, scratch_dir, script, tool, variant,
};
pub(crate) use python::{Build, Minor, Python, pythons, some_pythons};
pub(crate) use recorder::{
    Outcome, Recorder, Trace, as_nobody, as_user, is_unoptimised, number_in, periods_of, record,
    record_and_end, record_command, record_cpu, record_cpu_and_end, traceprof,
};
pub(crate) use ruby::Ruby;
pub(crate) use snapshot::Snapshot;
pub(crate) use target::Target;
pub(crate) use team::record_team;
pub(crate) use tmux::Tmux;

use std::io::Write;
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

/// The code with which every target exits by itself.
pub(crate) const OWN_EXIT_CODE: i32 = 17;

/// Ends the test with a visible line, or fails it where skips are not allowed.
macro_rules! skip {
    ($($reason:tt)*) => {{
        $crate::common::announce_skip(&format!($($reason)*));
        return;
    }};
}
pub(crate) use skip;

/// Skips the calling test on a host that permits no recording.
macro_rules! needs_recording {
    () => {
        if let Some(obstacle) = $crate::common::recording_obstacle() {
            $crate::common::skip!("{obstacle}");
        }
    };
}
pub(crate) use needs_recording;

/// Skips the calling test if the command was built without fault points, at which a process can be
/// made to die.
macro_rules! needs_fault_points {
    () => {
        if !traceprof::fault::IS_ARMED {
            $crate::common::skip!("fault points: a build without debug assertions has none");
        }
    };
}
pub(crate) use needs_fault_points;

pub(crate) fn announce_skip(reason: &str) {
    // Written directly to stderr, because the harness hides the output of passing tests.
    let _ = writeln!(std::io::stderr(), "SKIP: {reason}");
    assert!(!no_skip_allowed(reason), "a skip where skips are not allowed: {reason}");
}

static MACHINE: RwLock<()> = RwLock::new(());

/// Takes the machine exclusively, for tests that compare times or check system-wide lists.
pub(crate) fn alone() -> RwLockWriteGuard<'static, ()> {
    assert_group(&["alone", "exclusive"]);
    MACHINE.write().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Shares the machine with all tests that are not [`alone`].
pub(crate) fn together() -> RwLockReadGuard<'static, ()> {
    assert_group(&["recordings", "alone", "exclusive"]);
    MACHINE.read().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Where each test is its own process, the test runner keeps the groups apart. Checks that this
/// test is in an expected group.
fn assert_group(expected: &[&str]) {
    if let Ok(group) = std::env::var("NEXTEST_TEST_GROUP") {
        let is_expected = expected.contains(&group.as_str());
        assert!(is_expected, "in group {group}, not in {expected:?}: .config/nextest.toml");
    }
}

/// Polls until `condition` holds. Returns false after `limit`.
pub(crate) fn wait_until(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
