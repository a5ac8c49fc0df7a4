//! The unwind tables of the code that a Java machine generates.
//!
//! A handler needs a table for each piece of code, and the machine generates and frees code all the
//! time. So the maps of its heaps are read every few milliseconds while they change, and less often
//! while they do not.
//!
//! # Invariants
//! - The readings take at most a tenth of the time.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use traceprof_abi::runtime::word::JAVA;
use traceprof_abi::unwind::code_heap::{CodeRows, HeapSpan};

use crate::proc::ProcessMemory;
use crate::runtime::TargetMemory;
use crate::runtime::java::{CodeChanges, CodeScan, JavaMachine, ScanDepth};
use crate::unwind::{CodeHeapRef, TableWriter, TablesFull};

/// The pause after a reading of the maps that found something new.
const PAUSE_LEAST: Duration = Duration::from_millis(10);
/// The longest pause.
const PAUSE_MOST: Duration = Duration::from_millis(80);
/// The pause between two readings of all descriptions. They find other code in a block of the same
/// size.
const DEEP_PAUSE: Duration = Duration::from_secs(4);
/// A reading may take one part in this many of the time, and one of all descriptions one in
/// [`DEEP_SHARE`].
const SHARE: u32 = 10;
const DEEP_SHARE: u32 = 100;

/// The message about generated code for which the tables have no room.
const FULL: &str = "the tables segment is full: later code of the Java machine has no unwind table";

/// The tables of the code of the machine, if there is one.
#[derive(Debug, Default)]
pub(super) struct FollowedJavaCode(Option<JavaCodeTables>);

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
        let added = JavaCodeTables::of(machine, &ProcessMemory::of(pid), tables);
        notices.extend(added.is_err().then(|| FULL.to_owned()));
        self.0 = added.ok();
    }

    /// Publishes tables of code that is new, if that is due or `is_urgent`. A machine with other
    /// heaps than those that were added is forgotten, so that it is found again.
    pub(super) fn follow(
        &mut self,
        is_urgent: bool,
        (pid, known): (i32, &mut Option<Arc<JavaMachine>>),
        tables: &mut TableWriter<'_>,
        notices: &mut Vec<String>,
    ) {
        let Some(code) = self.0.as_mut().filter(|code| is_urgent || code.is_due()) else {
            return;
        };
        match code.follow(&ProcessMemory::of(pid), tables) {
            Ok(CodeFollowed::Whole) => {}
            // It was found while it started.
            Ok(CodeFollowed::OtherHeaps) => *known = None,
            Err(_) => {
                // What the tables have stays.
                notices.push(FULL.to_owned());
                self.0 = None;
            }
        }
    }

    /// Removes the heaps: the process runs another program.
    pub(super) fn clear(&mut self, tables: &mut TableWriter<'_>) {
        self.0 = None;
        tables.remove_code_heaps();
    }

    /// Makes the next reading one of all descriptions.
    pub(super) fn hasten_deep(&mut self) {
        if let Some(code) = &mut self.0 {
            code.hasten_deep();
        }
    }
}

/// The code of a machine, as far as it has tables.
#[derive(Debug)]
struct JavaCodeTables {
    machine: Arc<JavaMachine>,
    spans: Vec<HeapSpan>,
    heaps: Vec<(Range<u64>, CodeHeapRef)>,
    scan: CodeScan,
    pause: Duration,
    due: Instant,
    deep_due: Instant,
}

/// What a reading found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CodeFollowed {
    /// The tables have all code of the machine.
    Whole,
    /// The machine has other heaps than before.
    OtherHeaps,
}

impl JavaCodeTables {
    /// Adds the heaps of a machine, with tables of all code that they have now.
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
        let (scan, now) = (CodeScan::default(), Instant::now());
        let (pause, due, deep_due) = (PAUSE_LEAST, now, now + DEEP_PAUSE);
        let mut code = Self { machine, spans, heaps, scan, pause, due, deep_due };
        code.follow(memory, tables)?;
        Ok(code)
    }

    /// Whether the next reading is due.
    fn is_due(&self) -> bool {
        Instant::now() >= self.due
    }

    /// Makes the next reading one of all descriptions.
    fn hasten_deep(&mut self) {
        self.deep_due = self.deep_due.min(self.due);
    }

    /// Reads what the machine has now, and publishes the tables of what is new.
    fn follow(
        &mut self,
        memory: &dyn TargetMemory,
        tables: &mut TableWriter<'_>,
    ) -> Result<CodeFollowed, TablesFull> {
        let began = Instant::now();
        let is_deep = began >= self.deep_due;
        let depth = if is_deep { ScanDepth::Blocks } else { ScanDepth::Maps };
        let changes = self.scan.scan(&self.machine, memory, depth);
        self.publish(&changes, tables)?;
        self.pause = if changes.has_news { PAUSE_LEAST } else { (self.pause * 2).min(PAUSE_MOST) };
        let (now, took) = (Instant::now(), began.elapsed());
        self.due = now + self.pause.max(took * SHARE);
        if is_deep {
            self.deep_due = now + DEEP_PAUSE.max(took * DEEP_SHARE);
        }
        let is_whole = self.machine.heap_spans(memory) == self.spans;
        Ok(if is_whole { CodeFollowed::Whole } else { CodeFollowed::OtherHeaps })
    }

    fn publish(
        &self,
        changes: &CodeChanges,
        tables: &mut TableWriter<'_>,
    ) -> Result<(), TablesFull> {
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
            let rows = CodeRows { start: code.start, length: code.length, rows: &code.rows };
            if let Some(heap) = heap_of(&code.block) {
                tables.set_code(heap, &code.block, &rows)?;
            }
        }
        Ok(())
    }
}
