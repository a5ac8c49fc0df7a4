//! The top of a stack, as the kernel copied it with a sample.

use traceprof_abi::unwind::{EndReason, Memory, Registers, Snapshot};

use crate::inject;
use crate::record::source::kernel::sample_record::InterruptedThread;

/// The copied top of a stack.
pub(super) struct CopiedStack<'r> {
    snapshot: &'r Snapshot<'r>,
    /// The process, whose code is read where unwinding needs it.
    pid: i32,
    sp: u64,
    bytes: &'r [u8],
    bounds: (u64, u64),
    /// Whether the last requested word is above the copy, or on a stack that was not copied.
    is_short: bool,
}

impl<'r> CopiedStack<'r> {
    pub(super) fn new(snapshot: &'r Snapshot<'r>, interrupted: &InterruptedThread<'r>) -> Self {
        let &InterruptedThread { pid, registers: Registers { sp, .. }, stack: bytes, .. } =
            interrupted;
        let mut memory = Self { snapshot, pid, sp, bytes, bounds: (sp, sp), is_short: false };
        memory.bound(sp);
        memory
    }

    /// Returns the real reason why unwinding ended: where a word is missing, the stack may
    /// continue.
    ///
    /// A rule that cannot be applied, or code that no table covers, ends unwinding whatever was
    /// copied.
    pub(super) fn end(&self, end: EndReason) -> EndReason {
        match end {
            EndReason::Unreadable | EndReason::Gap | EndReason::Range if self.is_short => {
                EndReason::Copied
            }
            end => end,
        }
    }

    fn bound(&mut self, sp: u64) {
        let copied = (self.sp, self.sp.saturating_add(self.bytes.len() as u64));
        // Nothing below sp is copied.
        self.bounds = self.snapshot.writable(sp).map_or(copied, |(lo, hi)| (lo.max(self.sp), hi));
    }
}

impl Memory for CopiedStack<'_> {
    fn load(&mut self, avma: u64) -> Option<u64> {
        let offset = avma.checked_sub(self.sp).and_then(|offset| usize::try_from(offset).ok());
        let word = offset.and_then(|offset| self.bytes.get(offset..)?.first_chunk());
        self.is_short = word.is_none() && avma >= self.sp;
        word.map(|word| u64::from_ne_bytes(*word))
    }

    fn rebound(&mut self, sp: u64) -> bool {
        self.bound(sp);
        let is_copied = self.load(sp & !7).is_some();
        // The code that a signal handler interrupted may run on a stack below the handler's.
        self.is_short |= !is_copied && self.snapshot.writable(sp).is_some();
        is_copied
    }

    fn bounds(&self) -> (u64, u64) {
        self.bounds
    }

    fn load_code(&mut self, avma: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        let got = inject::read_part(self.pid, avma, &mut bytes);
        (got == bytes.len()).then(|| u64::from_ne_bytes(bytes))
    }
}
