//! The unwind tables of the code that a Java machine generates.
//!
//! A handler needs a table for each piece of code, and the machine generates and frees code all the
//! time. So the descriptions of its heaps are read every few milliseconds while they change, and
//! less often while they do not. The maps of the heaps are read if the descriptions have changed.
//!
//! A freed block may have other code of the same size at once, with the same map. Handlers find out
//! by the number of each compilation: the block has no table for them then. The recorder looks at
//! the numbers in the blocks to which such a stack may refer, and at the machine's lists of free
//! blocks. At times it looks at all numbers, if the machine has allocated or freed blocks: that
//! takes milliseconds.
//!
//! # Invariants
//! - The readings after the first one take at most a fifth of the time, a hundredth while nothing
//!   changes, and half of it while handlers meet code without a table.
//! - New code is noted at once, and followed when a stack has it, or ahead of that in a part of the
//!   time.

mod left_out;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use traceprof_abi::runtime::word::JAVA;
use traceprof_abi::unwind::code_heap::{CodeRows, HeapSpan};

use self::left_out::LeftOut;
use crate::proc::{ProcessMemory, thread_time};
use crate::record::target::modules::Modules;
use crate::runtime::TargetMemory;
use crate::runtime::java::{
    CodeBlob, CodeChanges, CodeScan, JavaMachine, ScanBudget, ScanDepth, ScannedCode, UnloadCount,
};
use crate::unwind::{CodeHeapRef, TableWriter, TablesFull};

/// The pause after a reading of the maps that found something new.
const PAUSE_LEAST: Duration = Duration::from_millis(10);
/// The longest pause.
const PAUSE_MOST: Duration = Duration::from_millis(80);
/// The pause between two readings of the seals of all blocks, which find other code in a block of
/// the same size. It grows while they find none: handlers see that code is not the one of a table,
/// and the recorder reads its seal at once. The last one is for a machine that has not
/// allocated or freed any block.
const SEALS_PAUSE: Duration = Duration::from_millis(20);
const SEALS_PAUSE_MOST: Duration = Duration::from_millis(160);
const DEEP_PAUSE: Duration = Duration::from_secs(4);
/// A reading may take one part in this many of the time, one after handlers met unknown code, one
/// that finds nothing, and one of all seals.
const SHARE: u32 = 4;
const URGENT_SHARE: u32 = 1;
const IDLE_SHARE: u32 = 100;
const SEALS_SHARE: u32 = 200;

/// How many times as long the work takes without optimisation. A build for tests is to find as much
/// code as the other one.
const SLOWNESS: u32 = if cfg!(debug_assertions) { 20 } else { 1 };

/// How much one reading does while the program is sampled.
const BUDGET: ScanBudget = ScanBudget {
    blocks: 1 << 15,
    instructions: 1 << 19,
    time: Duration::from_millis(20 * SLOWNESS as u64),
    ahead: Duration::from_micros(500 * SLOWNESS as u64),
};
/// How much the first reading does. It is before the first sample.
const FIRST_BUDGET: ScanBudget = ScanBudget {
    blocks: 1 << 18,
    instructions: 1 << 24,
    time: Duration::from_secs(3),
    ahead: Duration::from_secs(3),
};

/// Number of times that a machine may have other heaps before that must wait, and for how long at
/// first and at most.
const OTHERS_FREE: u32 = 8;
const OTHERS_PAUSE: Duration = Duration::from_secs(1);
const OTHERS_PAUSE_MOST: Duration = Duration::from_secs(60);

/// The message about generated code for which the tables have no room.
const FULL: &str = "the tables segment is full: some code of the Java machine has no unwind table, \
                    so stacks end there";
/// The message about heaps that cannot be read.
const NO_HEAPS: &str = "the heaps of code of the Java machine are larger than any known one, or \
                        overlap, so stacks end in its code";
/// The message about a machine without counters.
const NO_COUNTERS: &str = "the Java machine does not count the classes that it unloads \
                           (-XX:-UsePerfData): a method that is interpreted has no name in its \
                           first tenth of a second";
/// The message about blocks beyond the limit.
const MANY: &str = "the Java machine has more pieces of code than any known one: some have no \
                    unwind table, so stacks end there";

/// The tables of the code of the machine, if there is one.
#[derive(Debug, Default)]
pub(super) struct FollowedJavaCode {
    code: Option<JavaCodeTables>,
    /// How often the machine had other heaps, and from when on it may again.
    others: u32,
    others_due: Option<Instant>,
    /// The messages that were given.
    noted: Vec<&'static str>,
}

impl FollowedJavaCode {
    /// Adds the heaps of a machine that was found in this process.
    pub(super) fn add(
        &mut self,
        machine: Arc<JavaMachine>,
        pid: i32,
        tables: &mut TableWriter<'_>,
        notices: &mut Vec<String>,
    ) {
        tables.remove_code_heaps();
        let memory = ProcessMemory::of(pid);
        let counts = UnloadCount::of(&machine, &memory).is_some();
        self.note((!counts).then_some(NO_COUNTERS), notices);
        let added = JavaCodeTables::of(machine, &memory, tables);
        let message = match &added {
            Err(_) => Some(FULL),
            Ok(code) if code.spans.is_empty() => Some(NO_HEAPS),
            Ok(code) => code.message(),
        };
        self.note(message, notices);
        self.code = added.ok();
    }

    /// Publishes tables of code that is new, if that is due, first of that at the demanded
    /// addresses. A machine with other heaps than those that were added is forgotten, so that it is
    /// found again.
    pub(super) fn follow(
        &mut self,
        demanded: impl Iterator<Item = u64>,
        (pid, known): (i32, &mut Option<Arc<JavaMachine>>),
        tables: &mut TableWriter<'_>,
        notices: &mut Vec<String>,
    ) {
        let now = Instant::now();
        let Some(code) = &mut self.code else { return };
        let is_urgent = code.demand(demanded);
        if !code.is_due(is_urgent, now) {
            return;
        }
        let followed = code.follow(is_urgent, BUDGET, &ProcessMemory::of(pid), tables);
        let message = code.message();
        if followed == CodeFollowed::OtherHeaps && self.may_have_others(now) {
            // It was found while it started.
            *known = None;
        }
        self.note(message, notices);
    }

    /// Publishes tables of all code that the machine has now.
    pub(super) fn follow_all(&mut self, pid: i32, tables: &mut TableWriter<'_>) {
        if let Some(code) = &mut self.code {
            code.follow(true, FIRST_BUDGET, &ProcessMemory::of(pid), tables);
        }
    }

    /// Whether the machine may be found again now, with other heaps.
    fn may_have_others(&mut self, now: Instant) -> bool {
        if self.others_due.is_some_and(|due| now < due) {
            return false;
        }
        self.others = self.others.saturating_add(1);
        let more = self.others.saturating_sub(OTHERS_FREE);
        let pause = OTHERS_PAUSE.saturating_mul(1 << more.min(16)).min(OTHERS_PAUSE_MOST);
        self.others_due = (more > 0).then_some(now + pause);
        true
    }

    /// Gives each message once.
    fn note(&mut self, message: Option<&'static str>, notices: &mut Vec<String>) {
        if let Some(message) = message.filter(|message| !self.noted.contains(message)) {
            self.noted.push(message);
            notices.push(message.to_owned());
        }
    }

    /// Removes the heaps: the process runs another program.
    pub(super) fn clear(&mut self, tables: &mut TableWriter<'_>) {
        *self = Self::default();
        tables.remove_code_heaps();
    }

    /// Returns when the next reading is due, if there is a machine.
    pub(super) fn due(&self) -> Option<Instant> {
        self.code.as_ref().map(|code| code.due)
    }

    /// Makes the next reading one of all seals.
    pub(super) fn hasten_deep(&mut self) {
        if let Some(code) = &mut self.code {
            code.hasten_deep();
        }
    }
}

impl Modules<'_> {
    /// Publishes tables of all code that a Java machine has generated, and does not search one.
    pub(crate) fn follow_all_code(&mut self) {
        self.java_code.follow_all(self.pid, &mut self.tables);
    }

    /// Returns when generated code is to be read again, if there is any.
    pub(crate) fn code_due(&self) -> Option<Instant> {
        self.java_code.due()
    }

    /// Returns since when a Java machine is known to have this blob of code. `None` if that is not
    /// known.
    pub(crate) fn code_since(&self, blob: &CodeBlob) -> Option<u64> {
        self.java_code.code.as_ref()?.scan.since_of(blob)
    }

    /// Whether the code that is at an address was there at this time, in CLOCK_MONOTONIC
    /// nanoseconds, as far as a Java machine may have replaced it. `is_new`: a handler had no table
    /// of it then.
    pub(crate) fn had_code(&self, avma: u64, time_ns: u64, is_new: bool) -> bool {
        self.java_code.code.as_ref().is_none_or(|code| {
            let is_generated = code.heaps.iter().any(|(span, _)| span.contains(&avma));
            !is_generated || code.scan.was_there(avma, time_ns, is_new)
        })
    }
}

/// The code of a machine, as far as it has tables.
#[derive(Debug)]
struct JavaCodeTables {
    machine: Arc<JavaMachine>,
    spans: Vec<HeapSpan>,
    heaps: Vec<(Range<u64>, CodeHeapRef)>,
    scan: CodeScan,
    /// Code that had no room.
    left_out: LeftOut,
    /// Whether the machine has more blocks than are followed.
    has_more: bool,
    pause: Duration,
    due: Instant,
    urgent_due: Instant,
    /// When seals are read if blocks were allocated or freed, and when in any case.
    seals_due: Instant,
    seals_pause: Duration,
    deep_due: Instant,
    has_moved: bool,
}

/// What a reading found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CodeFollowed {
    /// The machine has the heaps that were added.
    SameHeaps,
    /// The machine has other heaps than before.
    OtherHeaps,
}

impl JavaCodeTables {
    /// Adds the heaps of a machine, with tables of the code that they have now.
    fn of(
        machine: Arc<JavaMachine>,
        memory: &dyn TargetMemory,
        tables: &mut TableWriter<'_>,
    ) -> Result<Self, TablesFull> {
        let spans = machine.heap_spans(memory);
        let mut heaps = Vec::new();
        for span in &spans {
            let heap = tables.add_code_heap(*span, machine.interpreter_layout(JAVA))?;
            heaps.push((span.low..span.high, heap));
        }
        let now = Instant::now();
        let mut code = Self {
            machine,
            spans,
            heaps,
            scan: CodeScan::default(),
            left_out: LeftOut::default(),
            has_more: false,
            pause: PAUSE_LEAST,
            due: now,
            urgent_due: now,
            seals_due: now,
            seals_pause: SEALS_PAUSE,
            deep_due: now + DEEP_PAUSE,
            has_moved: false,
        };
        code.follow(false, FIRST_BUDGET, memory, tables);
        // The first reading is not beside samples and takes long. Code that came meanwhile must not
        // wait ten times as long.
        let now = Instant::now();
        (code.due, code.urgent_due, code.seals_due) = (now, now, now);
        Ok(code)
    }

    /// Makes the next reading one that first follows the code at these addresses. Returns whether
    /// there is any.
    fn demand(&mut self, avmas: impl Iterator<Item = u64>) -> bool {
        let mut avmas: Vec<u64> =
            avmas.filter(|avma| self.heaps.iter().any(|(span, _)| span.contains(avma))).collect();
        avmas.sort_unstable();
        avmas.dedup();
        let has_any = !avmas.is_empty();
        self.scan.demand(avmas);
        has_any
    }

    /// Whether the next reading is due.
    fn is_due(&self, is_urgent: bool, now: Instant) -> bool {
        now >= if is_urgent { self.urgent_due } else { self.due }
    }

    /// Makes the next reading one of all seals.
    fn hasten_deep(&mut self) {
        self.seals_due = self.seals_due.min(self.due);
        self.has_moved = true;
    }

    /// Returns what the user should know about code without a table.
    fn message(&self) -> Option<&'static str> {
        if self.left_out.has_any() {
            return Some(FULL);
        }
        self.has_more.then_some(MANY)
    }

    fn depth(&self, now: Instant) -> ScanDepth {
        if now >= self.deep_due {
            ScanDepth::Blocks
        } else if self.has_moved && now >= self.seals_due {
            ScanDepth::Seals
        } else {
            ScanDepth::Maps
        }
    }

    /// Reads what the machine has now, and publishes the tables of what is new.
    fn follow(
        &mut self,
        is_urgent: bool,
        budget: ScanBudget,
        memory: &dyn TargetMemory,
        tables: &mut TableWriter<'_>,
    ) -> CodeFollowed {
        let (began, began_time) = (Instant::now(), thread_time());
        let depth = self.depth(began);
        self.left_out.retry(began, &mut self.scan);
        let changes = self.scan.scan(&self.machine, memory, depth, budget);
        self.publish(&changes, tables);
        self.has_more = changes.left_out > 0;
        self.has_moved = changes.has_moved && depth == ScanDepth::Maps;
        self.pause = if changes.has_news { PAUSE_LEAST } else { (self.pause * 2).min(PAUSE_MOST) };
        let (now, took) = (Instant::now(), thread_time().saturating_sub(began_time) / SLOWNESS);
        let share = if changes.has_news { SHARE } else { IDLE_SHARE };
        self.due = now + self.pause.max(took * share);
        if is_urgent {
            // The others do not put it off: stacks wait for what it finds, and end without.
            self.urgent_due = now + took * URGENT_SHARE;
        }
        if depth != ScanDepth::Maps {
            let longer = (self.seals_pause * 2).min(SEALS_PAUSE_MOST);
            self.seals_pause = if changes.others > 0 { SEALS_PAUSE } else { longer };
            self.seals_due = now + self.seals_pause.max(took * SEALS_SHARE);
        }
        if depth == ScanDepth::Blocks {
            self.deep_due = now + DEEP_PAUSE.max(took * IDLE_SHARE);
        }
        // A process that ends has none.
        let are_same = changes.spans.is_empty() || changes.spans == self.spans;
        if are_same { CodeFollowed::SameHeaps } else { CodeFollowed::OtherHeaps }
    }

    fn publish(&mut self, changes: &CodeChanges, tables: &mut TableWriter<'_>) {
        let heap_of = |block: &Range<u64>| {
            let found = self.heaps.iter().find(|(span, _)| span.contains(&block.start));
            found.map(|(_, heap)| *heap)
        };
        for block in &changes.removed {
            if let Some(heap) = heap_of(block) {
                tables.remove_code(heap, block);
            }
        }
        for code in &changes.added {
            let ScannedCode { start, length, identity, .. } = *code;
            let rows = CodeRows { start, length, identity, rows: &code.rows };
            let placed = heap_of(&code.block).map(|heap| tables.set_code(heap, &code.block, &rows));
            match placed {
                // The block has no table now: that of earlier code is gone.
                Some(Err(_)) => self.left_out.add(code.block.start),
                Some(Ok(())) => self.left_out.remove(code.block.start),
                None => {}
            }
        }
    }
}
