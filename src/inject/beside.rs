//! What the cure holds beside its worker: threads that have stopped, those that no stop reaches, and
//! other processes in the same memory.
//!
//! A thread that sleeps in the kernel for what no signal ends (state D) does not stop. Once it was asked
//! to, it cannot run its program any more without stopping first: the kernel looks at the request on its
//! way out. So one that is seen, after it was asked, to sleep in a call from its own code is as good as
//! stopped for whoever must only know it outside of the agent. The end of the tracing thread lets it go.
//!
//! Calls that make or replace a process are another matter, as what they make is not held. The parent of
//! a `vfork` sleeps until its child executes or ends. The child uses the same memory, and has a table of
//! actions of its own, copied from the parent's: it names our handlers, and a signal that the child gets
//! after the cure would have it run code that is not there any more. So the child is stopped as a thread
//! is, and its actions are put back, too. Where it is not found, or does not stop, nothing is taken back
//! now, and all is tried again: it will execute.
//!
//! A signal that the process ignores is dropped as it is sent, unless who is asked about it is traced:
//! the leader for one that is sent to the process, and the thread that has the child for SIGCHLD. It then
//! wakes any thread of the process, and ends a call with EINTR that nothing should end. We put that right
//! in threads that we trace, and in no others. So these few are stopped when all others are, and are the
//! first to be let go.
//!
//! # Safety
//! One system call, which takes numbers.
#![allow(unsafe_code, reason = "kcmp")]

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::arch::Interrupted;
use super::error::InjectError;
use super::ptrace::{self, Tracee};
use super::stop::{self, NotStopped, Stopped};
use super::threads;
use crate::proc::{self, Activity, Mapping};

/// Longest wait for a child of `vfork` to stop, while all others are held.
const GUEST_MAX: Duration = Duration::from_millis(50);
/// A thread that has not stopped by then is looked at.
const ASLEEP_AFTER: Duration = Duration::from_micros(300);
/// So much later for each that was asked to stop with it, and may have its processor.
const LATER_EACH: Duration = Duration::from_micros(4);
/// The longest time that is spent on putting right what has stopped meanwhile.
const LATE_MAX: Duration = Duration::from_millis(5);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Beside {
    /// Threads that have stopped.
    pub(super) stopped: Vec<Stopped>,
    /// Threads that were asked to stop, and sleep where no stop reaches them.
    asleep: Vec<Tracee>,
    /// Stopped processes that use the same memory.
    pub(super) guests: Vec<Stopped>,
    /// What was seen of threads before they were stopped.
    seen: HashMap<i32, Seen>,
}

/// What a thread is like, as far as it matters to the others, or to whoever is to be led.
#[derive(Debug, Clone, Copy)]
struct Seen {
    /// Its being traced has the kernel send what is ignored.
    is_asked_for_others: bool,
    /// It is under no seccomp filter.
    is_free: bool,
}

/// Where a thread sleeps.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sleep {
    /// The address after its call, or of the instruction that waits for its memory.
    pub(super) pc: u64,
    /// Its stack pointer.
    pub(super) sp: u64,
    /// Its system call and the arguments.
    call: Option<(u64, [u64; 6])>,
}

/// Who is in the memory of a sleeping thread besides its process.
enum Guests {
    These(Vec<i32>),
    Unknown,
}

/// Where a thread sleeps that was asked to stop, the first of so many, and has not; `None` if it has,
/// or runs.
pub(super) fn sleep_of(pid: i32, tracee: &Tracee, left: usize) -> Option<Sleep> {
    let others = u32::try_from(left).unwrap_or(u32::MAX);
    let mut limit = None;
    while !tracee.has_stopped() {
        let deadline = *limit.get_or_insert_with(|| {
            Instant::now() + ASLEEP_AFTER + LATER_EACH.saturating_mul(others)
        });
        if Instant::now() < deadline {
            ptrace::await_children(left, deadline);
            continue;
        }
        let tid = tracee.tid();
        if proc::task_stat(pid, tid).ok()?.state != 'D' {
            return None;
        }
        return match proc::task_activity(pid, tid).ok()? {
            Activity::Syscall { number, args, sp, pc } => {
                Some(Sleep { pc, sp, call: Some((number, args)) })
            }
            Activity::Blocked { sp, pc } => Some(Sleep { pc, sp, call: None }),
            Activity::Running => None,
        };
    }
    None
}

impl Beside {
    /// All the threads of the process that are held.
    pub(super) fn tids(&self) -> impl Iterator<Item = i32> {
        self.stopped.iter().map(Stopped::tid).chain(self.asleep.iter().map(Tracee::tid))
    }

    /// Holds a thread that was found asleep outside of the agent, with the processes that it waits for.
    /// `false` if there may be others than can be held.
    pub(super) fn hold_asleep(&mut self, pid: i32, tracee: Tracee, sleep: Sleep) -> bool {
        let Guests::These(guests) = guests(pid, tracee.tid(), sleep) else { return false };
        for guest in guests {
            // One that has just executed is not in this memory any more, and its parent wakes up.
            match stop::stop(guest, GUEST_MAX, GUEST_MAX) {
                Ok(stopped) if shares_memory(pid, guest) == Some(true) => self.guests.push(stopped),
                _ => return false,
            }
        }
        self.asleep.push(tracee);
        true
    }

    /// Puts threads that are to be stopped into the order for it. Takes some microseconds for each that
    /// it sees for the first time.
    pub(super) fn order(&mut self, pid: i32, tids: &mut [i32]) {
        tids.sort_by_cached_key(|&tid| {
            let look = || Seen {
                is_asked_for_others: tid == pid || threads::has_ignored_children(pid, tid),
                is_free: threads::is_free(pid, tid),
            };
            self.seen.entry(tid).or_insert_with(look).is_asked_for_others
        });
    }

    /// It is to be let go before the others.
    pub(super) fn goes_first(&self, tid: i32) -> bool {
        self.seen.get(&tid).is_some_and(|seen| seen.is_asked_for_others)
    }

    /// A thread whose stack takes the frames, so that no bare call is needed; of these one that runs,
    /// rather than one in a call: a signal that comes while it is led has its handler run before the
    /// call is issued again, which a program with a `pause` outside of the mask does not expect. And
    /// rather one that is not to be let go first: it is held the longest. Before all of them one that is
    /// under no seccomp filter: others may be under some that were installed after the attach, which
    /// nobody has judged.
    pub(super) fn choose(&self, mappings: &[Mapping]) -> Option<usize> {
        let is_good = |thread: &Stopped| threads::stack_top(thread, mappings).is_some();
        let is_running = |thread: &Stopped| thread.interrupted == Interrupted::User;
        let stays = |thread: &Stopped| !self.goes_first(thread.tid());
        let is_free =
            |thread: &Stopped| self.seen.get(&thread.tid()).is_some_and(|seen| seen.is_free);
        let first = |wanted: &dyn Fn(&Stopped) -> bool| self.stopped.iter().position(wanted);
        // A look at the stack costs a system call, and most threads are asleep.
        let best = |may: &dyn Fn(&Stopped) -> bool| {
            first(&|it| may(it) && is_running(it) && stays(it) && is_good(it))
                .or_else(|| first(&|it| may(it) && is_running(it) && is_good(it)))
                .or_else(|| first(&|it| may(it) && is_good(it)))
        };
        best(&is_free)
            .or_else(|| best(&|_| true))
            .or_else(|| (!self.stopped.is_empty()).then_some(0))
    }

    /// One of them has a hit that waits for it, or may have.
    pub(super) fn owes_hit(&self, pid: i32, signal: i32) -> bool {
        let waits = |tracee: &Tracee| {
            proc::task_status(pid, tracee.tid())
                .map_or(true, |status| status.pending >> (signal - 1) & 1 == 1)
        };
        let has_hit = |thread: &Stopped| thread.has_noted_hit(signal);
        self.stopped.iter().any(has_hit) || self.asleep.iter().any(waits)
    }

    /// Lets all of them go.
    pub(super) fn release(mut self) -> Result<(), InjectError> {
        let mut first = Ok(());
        // Last those whose calls would be ended: one that got its child only now is not among them.
        let mut turns: [Vec<Stopped>; 3] = Default::default();
        for thread in std::mem::take(&mut self.stopped) {
            let is_early = self.goes_first(thread.tid());
            let turn = if is_early { 0 } else { 1 + usize::from(thread.is_in_broken_call()) };
            turns[turn].push(thread);
        }
        for thread in turns.into_iter().flatten().chain(self.guests) {
            match thread.release() {
                Ok(_) => {}
                Err(error) if error.is_gone() => {}
                Err(error) => first = first.and(Err(error)),
            }
        }
        for tracee in self.asleep {
            if tracee.has_stopped() {
                // Its call is put right; if that fails, the end of the tracing thread lets it go.
                let now = Instant::now();
                let _: Result<Stopped, NotStopped> =
                    Stopped::collect(tracee, now, now + LATE_MAX, now + LATE_MAX);
            }
        }
        first
    }
}

fn guests(pid: i32, tid: i32, sleep: Sleep) -> Guests {
    let Some((number, args)) = sleep.call else { return Guests::These(Vec::new()) };
    let flags = match number as i64 {
        libc::SYS_vfork => Some((libc::CLONE_VFORK | libc::CLONE_VM) as u64),
        libc::SYS_clone => Some(args[0]),
        libc::SYS_clone3 => {
            let mut bytes = [0; size_of::<u64>()];
            let got = ptrace::read_part(tid, args[0], &mut bytes);
            (got == bytes.len()).then(|| u64::from_ne_bytes(bytes))
        }
        libc::SYS_fork | libc::SYS_execve | libc::SYS_execveat => None,
        _ => return Guests::These(Vec::new()),
    };
    // Before there is a child it may yet make one, and what that is cannot be told.
    let is = |flag: i32| flags.is_some_and(|flags| flags & flag as u64 != 0);
    if !is(libc::CLONE_VFORK) || !is(libc::CLONE_VM) || is(libc::CLONE_THREAD) {
        return Guests::Unknown;
    }
    let Ok(mut children) = proc::children(pid, tid) else { return Guests::Unknown };
    let mut is_known = true;
    children.retain(|child| {
        let shares = shares_memory(pid, *child);
        let has_ended =
            || proc::task_stat(*child, *child).map_or(true, |it| proc::has_ended(it.state));
        is_known &= shares.is_some() || has_ended();
        shares == Some(true)
    });
    if is_known && !children.is_empty() { Guests::These(children) } else { Guests::Unknown }
}

/// Whether two processes use the same memory; `None` if the kernel does not say.
pub fn shares_memory(pid: i32, other: i32) -> Option<bool> {
    const KCMP_VM: i32 = 1;
    // SAFETY: takes numbers only.
    match unsafe { libc::syscall(libc::SYS_kcmp, pid, other, KCMP_VM, 0, 0) } {
        -1 => None,
        order => Some(order == 0),
    }
}
