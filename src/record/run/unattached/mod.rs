//! Descendants of the recorded processes without an agent, sampled by the kernel from outside.
//!
//! A build starts thousands of processes that live for milliseconds. An attach to each would cost
//! more than they do, and would come too late. So the kernel samples each from its first program
//! on, and the recorder attaches to those that live on. Then the agent's samples count, which show
//! more: the functions of language runtimes, contexts, and what a thread waits for.
//!
//! # Invariants
//! - Of each process, either the agent's samples count or the kernel's, never both for one time.

mod exit_work;
mod process;
mod reader;
mod report;
mod thread;

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(crate) use self::reader::read;
pub(crate) use self::report::{EndedUnattached, ReaderReport};
use crate::proc::{self, Root};
use crate::record::contract::clock::monotonic_now_ns;
use crate::record::contract::options::Options;
use crate::record::contract::sampling::{KernelFrames, Setup};
use crate::record::source::kernel::{DescendantEvents, DescendantRecord, DescendantSetup};

/// How long what is known of a process is kept after it is of no use.
const KEPT: Duration = Duration::from_secs(10);
/// How long records wait for earlier ones, generously.
const SETTLED: Duration = Duration::from_millis(10);
/// The number of processes from which on such knowledge is dropped.
const KNOWN_MAX: usize = 4096;

/// What the threads of a recording know about processes without an agent.
#[derive(Default)]
pub(crate) struct Unattached {
    state: Mutex<UnattachedState>,
}

#[derive(Default)]
struct UnattachedState {
    /// The events on the processes to record.
    source: Option<DescendantEvents>,
    /// Whether some of these processes have events, and whether some could not get any.
    is_any: bool,
    has_failed: bool,
    /// The first of these processes, and its root directory.
    root: i32,
    root_directory: Option<Arc<Root>>,
    agents: Agents,
    /// Processes that the kernel samples, and when that was seen.
    seen: HashMap<i32, Instant>,
    /// All records from before this time have been handled.
    read_until: Option<Instant>,
    has_ended: bool,
}

/// The processes of the recording that have an agent.
#[derive(Debug, Clone, Default)]
struct Agents {
    /// When the samples of each count.
    times: HashMap<i32, AgentTimes>,
    /// Processes whose agent's samples are about to count, from a time that is not known yet.
    attaching: HashSet<i32>,
}

/// When the samples of an agent count, in CLOCK_MONOTONIC nanoseconds.
#[derive(Debug, Clone, Copy)]
struct AgentTimes {
    since_ns: u64,
    until_ns: u64,
}

impl Unattached {
    fn state(&self) -> MutexGuard<'_, UnattachedState> {
        // Each value is valid at any time.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the kernel sample the descendants of a process, from before they are started.
    pub(crate) fn cover(&self, pid: i32, options: &Options) -> io::Result<()> {
        let setup = Setup {
            period_ns: options.period_ns(),
            kernel: options.kernel,
            frames: KernelFrames::Unwanted,
            cookie: 0,
        };
        let mut state = self.state();
        // It is not sampled itself, not even if it executes another program.
        state.agents.times.insert(pid, AgentTimes { since_ns: 0, until_ns: u64::MAX });
        if state.source.is_none() {
            state.root = pid;
            let owner = proc::status(pid).map_or(0, |status| status.euid);
            state.root_directory = Root::open(pid, owner).ok().map(Arc::new);
        }
        let new = || DescendantEvents::new(DescendantSetup::of(pid, setup, options.kernel_stacks));
        let added = state.source.get_or_insert_with(new).add(pid);
        state.is_any |= added.is_ok();
        state.has_failed |= added.is_err();
        added
    }

    /// Returns whether the kernel samples the descendants of all processes.
    pub(crate) fn is_complete(&self) -> bool {
        let state = self.state();
        state.is_any && !state.has_failed
    }

    /// Notes that the samples of an agent count soon: those of the kernel wait until it is known
    /// from when on.
    pub(crate) fn attaching(&self, pid: i32) {
        self.state().agents.attaching.insert(pid);
    }

    /// Notes that the samples of an agent count from this time on.
    pub(crate) fn attached(&self, pid: i32, since_ns: u64) {
        let mut state = self.state();
        state.agents.attaching.remove(&pid);
        let times = AgentTimes { since_ns, until_ns: u64::MAX };
        // A process of the recording has an agent for good. Another one had the id of this one.
        let known = state.agents.times.entry(pid).or_insert(times);
        if known.until_ns != u64::MAX {
            *known = times;
        }
    }

    /// Notes that a process has no agent any more. `is_end`: because the recording ends.
    pub(crate) fn detached(&self, pid: i32, is_end: bool) {
        let now_ns = monotonic_now_ns();
        let mut state = self.state();
        state.agents.attaching.remove(&pid);
        // A process of the recording is not sampled, whatever it executes.
        let times = state.agents.times.get_mut(&pid).filter(|times| times.since_ns > 0);
        if let Some(times) = times.filter(|_| !is_end) {
            times.until_ns = now_ns;
        }
        let kept_ns = KEPT.as_nanos() as u64;
        state.agents.times.retain(|_, times| times.until_ns.saturating_add(kept_ns) > now_ns);
    }

    /// Returns whether the kernel samples a process.
    pub(crate) fn is_seen(&self, pid: i32) -> bool {
        self.state().seen.contains_key(&pid)
    }

    /// Returns whether the kernel has sampled a process, or would have, and forgets it.
    pub(crate) fn take_seen(&self, pid: i32) -> bool {
        self.state().seen.remove(&pid).is_some()
    }

    /// Returns whether all records from before this time have been handled.
    pub(crate) fn has_read_until(&self, time: Instant) -> bool {
        self.state().read_until.is_some_and(|until| until >= time)
    }

    /// Ends the reading of samples.
    pub(crate) fn end(&self) {
        self.state().has_ended = true;
    }

    /// Reads the records that have arrived, and returns how many were lost.
    fn drain(&self, is_last: bool, out: &mut Vec<DescendantRecord>) -> u64 {
        self.state().source.as_mut().map_or(0, |source| source.drain(is_last, out))
    }

    /// Returns the CPU time of all descendants in nanoseconds, if it can be read.
    fn cpu_ns(&self) -> Option<u64> {
        self.state().source.as_ref()?.cpu_ns()
    }

    /// Notes the processes that records from before a time are about, all of them.
    fn note_read(&self, pids: &[i32], until: Instant) {
        let (mut state, now) = (self.state(), Instant::now());
        // The latest records may wait for others.
        state.read_until = until.checked_sub(SETTLED);
        state.seen.extend(pids.iter().map(|pid| (*pid, now)));
        if state.seen.len() > KNOWN_MAX {
            state.seen.retain(|_, seen| seen.elapsed() < KEPT);
        }
    }

    /// Returns the processes with an agent.
    fn agents(&self) -> Agents {
        self.state().agents.clone()
    }
}

impl Agents {
    /// Returns whether the samples of a process's agent count at this time.
    fn hold(&self, pid: i32, time_ns: u64) -> bool {
        self.times.get(&pid).is_some_and(|times| times.hold(time_ns))
    }

    /// Returns from when on the samples of a process's agent count, if it has got one.
    fn since_ns(&self, pid: i32) -> Option<u64> {
        self.times.get(&pid).map(|times| times.since_ns).filter(|since_ns| *since_ns > 0)
    }

    /// Returns whether it will be known how many of the kernel's samples of a process count.
    fn is_about(&self, pid: i32) -> bool {
        self.attaching.contains(&pid) || self.since_ns(pid).is_some()
    }

    /// Returns whether some process has got one.
    fn has_any(&self) -> bool {
        self.times.values().any(|times| times.since_ns > 0)
    }
}

impl AgentTimes {
    fn hold(&self, time_ns: u64) -> bool {
        (self.since_ns..self.until_ns).contains(&time_ns)
    }
}
