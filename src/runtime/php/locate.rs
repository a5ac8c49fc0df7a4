//! Finds the interpreter in a live process.

use std::ops::Range;
use std::thread;
use std::time::Duration;

use traceprof_abi::runtime::php::PhpLayout;
use traceprof_abi::runtime::word::{FOREIGN, FRAME_WORDS, SectionEnd, sections};
use traceprof_abi::runtime::{Captured, CapturedThread, RuntimeBlock, capture};
use traceprof_abi::sync::{AtomicU64, Ordering};

use super::exports::PhpExports;
use super::functions::PhpReader;
use crate::runtime::memory::{self, TargetMemory, TargetWords};
use crate::runtime::{ManagedLanguage, Names, Runtime, Unsupported};

/// Number of frames on which a layout is tried.
const FRAMES_CHECKED: usize = 16;
/// Number of times that frames are looked at before they are taken for foreign, and the time
/// between: the process runs meanwhile.
const ATTEMPTS: usize = 8;
const PAUSE: Duration = Duration::from_micros(500);
/// The number of different innermost frames that must be foreign.
const STATES_MIN: usize = 3;

impl PhpExports {
    /// Finds the interpreter in a process: see [`crate::runtime::RuntimeExports::locate`].
    pub(in crate::runtime) fn locate(
        &self,
        bias: u64,
        memory: &dyn TargetMemory,
    ) -> Result<Runtime, Unsupported> {
        let (globals, known) = self.structures().map_err(|reason| self.refused(reason))?;
        let global = |at: u32| globals.wrapping_add(bias).wrapping_add(u64::from(at));
        let range =
            |range: &Range<u64>| range.start.wrapping_add(bias)..range.end.wrapping_add(bias);
        let loops: Vec<Range<u64>> = self.loops.iter().map(range).collect();
        let body = loops.first().cloned().unwrap_or_default();
        let layout = PhpLayout {
            current: global(known.globals.current),
            bailout: global(known.globals.bailout),
            thrown: known.globals.thrown.map_or(0, global),
            handling: known.globals.thrown.map_or(0, |at| global(at + 8)),
            loop_start: body.start,
            loop_end: body.end,
            has_registers: u16::from(self.has_registers),
            ..known.layout
        };
        if has_foreign_frames(&layout, memory) {
            return Err(self.refused("has other frames than its release"));
        }
        Ok(Runtime {
            block: RuntimeBlock::of_php(&layout),
            label: self.version.to_string(),
            language: ManagedLanguage::Php,
            loops,
            code: range(&self.code),
            locks: Vec::new(),
            names: Names::Php(PhpReader::new(layout, known.closures)),
        })
    }

    fn refused(&self, reason: &str) -> Unsupported {
        let text =
            format!("{}: {} {reason}, so its functions have no names", self.path, self.version);
        Unsupported { text, may_be_starting: false }
    }
}

/// Whether the frames that are there are not as the layout says. False if there are none, or too
/// few different ones: those of a process that stands still may be half changed.
fn has_foreign_frames(layout: &PhpLayout, memory: &dyn TargetMemory) -> bool {
    let mut seen: Vec<u64> = Vec::new();
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            thread::sleep(PAUSE);
        }
        let Some(current) = memory::word(memory, layout.current) else { return false };
        if current == 0 || !has_now_foreign_frames(layout, memory) {
            return false;
        }
        if !seen.contains(&current) {
            seen.push(current);
        }
    }
    seen.len() >= STATES_MIN
}

fn has_now_foreign_frames(layout: &PhpLayout, memory: &dyn TargetMemory) -> bool {
    let block = RuntimeBlock::of_php(layout);
    let words: [AtomicU64; FRAMES_CHECKED * FRAME_WORDS + 1] =
        std::array::from_fn(|_| AtomicU64::new(0));
    let thread = CapturedThread::of(0);
    match capture((0, &block), thread, &mut TargetWords(memory), &words) {
        Captured::Section { words: count, end, .. } => {
            // Relaxed: no other thread has the words.
            let words = words.map(|word| word.load(Ordering::Relaxed));
            let frames = sections(words.get(..count).unwrap_or_default());
            // Those without an object stand for callers that are not linked.
            let frames = frames.flat_map(|it| it.frames()).filter(|frame| frame.object != 0);
            let (foreign, known): (Vec<_>, Vec<_>) =
                frames.partition(|frame| frame.flags & FOREIGN != 0);
            foreign.len() + usize::from(end == SectionEnd::Unreadable) > known.len()
        }
        Captured::Unreadable => true,
        Captured::Nothing | Captured::Refused => false,
    }
}
