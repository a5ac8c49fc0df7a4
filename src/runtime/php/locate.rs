//! Finds the interpreter in a live process.

use std::ops::Range;
use std::thread;
use std::time::Duration;

use traceprof_abi::runtime::php::PhpLayout;
use traceprof_abi::runtime::word::{FRAME_WORDS, SectionEnd};
use traceprof_abi::runtime::{Captured, CapturedThread, RuntimeBlock, capture};
use traceprof_abi::sync::AtomicU64;

use super::exports::PhpExports;
use super::functions::PhpReader;
use crate::runtime::memory::{TargetMemory, TargetWords};
use crate::runtime::{ManagedLanguage, Names, Runtime, Unsupported};

/// Number of frames on which a layout is tried.
const FRAMES_CHECKED: usize = 16;
/// Number of times that frames are looked at before they are taken for foreign, and the time
/// between: the process runs meanwhile.
const ATTEMPTS: usize = 6;
const PAUSE: Duration = Duration::from_micros(500);

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
            names: Names::Php(PhpReader { layout }),
        })
    }

    fn refused(&self, reason: &str) -> Unsupported {
        let text =
            format!("{}: {} {reason}, so its functions have no names", self.path, self.version);
        Unsupported { text, may_be_starting: false }
    }
}

/// Whether the frames that are there are not as the layout says. False if there are none.
fn has_foreign_frames(layout: &PhpLayout, memory: &dyn TargetMemory) -> bool {
    let block = RuntimeBlock::of_php(layout);
    let words: [AtomicU64; FRAMES_CHECKED * FRAME_WORDS + 1] =
        std::array::from_fn(|_| AtomicU64::new(0));
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            thread::sleep(PAUSE);
        }
        let thread = CapturedThread::of(0);
        match capture((0, &block), thread, &mut TargetWords(memory), &words) {
            Captured::Section { words, foreign, end, .. } => {
                let wrong = foreign + usize::from(end == SectionEnd::Unreadable);
                if wrong <= words / FRAME_WORDS / 2 {
                    return false;
                }
            }
            Captured::Unreadable => {}
            Captured::Nothing | Captured::Refused => return false,
        }
    }
    true
}
