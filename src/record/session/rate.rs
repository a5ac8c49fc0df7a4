//! The rate at which the session samples: what that costs is looked at, and the rate changed for
//! it.
//!
//! # Invariants
//! - Of two families of events one is on at a time: the one before is off when the next is begun
//!   with, and is closed then.
//! - What is opened here is begun with only in the program that has the agent.

use std::io;
use std::time::Instant;

use traceprof_abi::sync::Ordering;

use crate::fault::{self, Point};
use crate::record::contract::clock::monotonic_now_ns;
use crate::record::session::{Attached, Clock, Event, Session};
use crate::record::source::kernel::SlowerFamily;
use crate::record::source::perf::{self, EventFamily, Events};
use crate::record::weigh::overhead::{Counted, Spent};

impl Session<'_> {
    /// In each turn, unless that takes too long: the kernel asks each thread, of which ten thousand
    /// take milliseconds. It has a hundredth of the time.
    pub(super) fn read_cpu_clock(&mut self) {
        if self.cpu_watch.is_due() {
            let start = Instant::now();
            self.cpu.advance();
            self.cpu_watch.spare(start.elapsed() * 5);
        }
    }

    /// Looks at the costs when it is time, and changes the rate if they call for it.
    pub(super) fn watch_overhead(&mut self) {
        // A program that is parked has not begun.
        if self.attached.is_parked || !self.overhead.is_due() {
            return;
        }
        self.cpu.advance();
        let counted = counted(&self.attached, &self.clock, (self.cpu.used_ns(), self.in_kernel()));
        let Some(family) = self.overhead.look(counted) else { return };
        match self.change_rate(family) {
            Ok(true) => {
                self.overhead.change(family, monotonic_now_ns());
                self.follow_rate(family.shift);
            }
            // Another program, which the loop is about to notice.
            Ok(false) => {}
            Err(error) => {
                let why = error.to_string();
                let text = format!("the rate cannot be changed for --max-overhead: {why}");
                self.overhead.refuse(&why);
                self.observer.event(Event::Notice(text));
            }
        }
    }

    fn in_kernel(&self) -> u64 {
        self.kernel.as_ref().map_or(0, |kernel| kernel.samples_seen)
    }

    /// What the costs came to in the end.
    pub(super) fn end_overhead(&mut self) -> Spent {
        let counted = counted(&self.attached, &self.clock, (self.cpu.used_ns(), self.in_kernel()));
        self.overhead.end(counted)
    }

    /// Tells those that compare hits with clocks how much one stands for.
    pub(super) fn follow_rate(&mut self, shift: u32) {
        self.balance.slow(shift);
        self.remainder.slow(shift);
        self.parents.slow(shift);
        if let Some(wall) = &mut self.wall {
            wall.slow(shift);
        }
    }

    /// Timers follow by themselves. For events others are opened; false if the program is gone that
    /// they were opened on.
    fn change_rate(&mut self, family: EventFamily) -> io::Result<bool> {
        let (pid, setup, control) = (self.pid, self.attached.setup, self.attached.data().control());
        let Some(before) = &self.events else {
            // Relaxed: a handler that sees it late follows late.
            control.rate_shift.store(family.shift, Ordering::Relaxed);
            return Ok(true);
        };
        let events = Events::open(pid, setup, family)?;
        let kernel = self.kernel.as_ref();
        let slower = kernel.map(|it| it.open_slower(pid, setup, family.shift)).transpose()?;
        fault::at(Point::RateOpened);
        // One that was opened in another program would kill it.
        if self.registry.is_program_gone() {
            return Ok(false);
        }
        before.disable();
        fault::at(Point::RateOff);
        let old = self.change_kernel(slower);
        // Relaxed, all: the events are enabled by system calls, and their handlers come after
        // those.
        for word in self.attached.data().events_retired() {
            word.store(0, Ordering::Relaxed);
        }
        control.event_family.store(family.number, Ordering::Relaxed);
        control.rate_shift.store(family.shift, Ordering::Relaxed);
        events.enable();
        if let Some(kernel) = &self.kernel {
            kernel.enable();
        }
        self.events = Some(events);
        perf::close_all(old);
        Ok(true)
    }

    /// The hits in the kernel that the buffers hold are the last of the family before, which is to
    /// be closed.
    fn change_kernel(&mut self, slower: Option<SlowerFamily>) -> Vec<std::os::fd::OwnedFd> {
        let (Some(kernel), Some(slower)) = (&mut self.kernel, slower) else { return Vec::new() };
        kernel.disable();
        kernel.change(slower)
    }
}

fn counted<'a>(
    attached: &Attached<'_>,
    clock: &'a Clock,
    (used_ns, in_kernel): (u64, u64),
) -> Counted<'a> {
    Counted { control: attached.data().control(), clock, used_ns, in_kernel }
}
