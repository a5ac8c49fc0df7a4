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

/// The code of a machine, as far as it has tables.
#[derive(Debug)]
pub(super) struct JavaCodeTables {
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
pub(super) enum CodeFollowed {
    /// The tables have all code of the machine.
    Whole,
    /// The machine has other heaps than before.
    OtherHeaps,
}

impl JavaCodeTables {
    /// Adds the heaps of a machine, with tables of all code that they have now.
    pub(super) fn of(
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
    pub(super) fn is_due(&self) -> bool {
        Instant::now() >= self.due
    }

    /// Makes the next reading one of all descriptions.
    pub(super) fn hasten_deep(&mut self) {
        self.deep_due = self.deep_due.min(self.due);
    }

    /// Reads what the machine has now, and publishes the tables of what is new.
    pub(super) fn follow(
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
