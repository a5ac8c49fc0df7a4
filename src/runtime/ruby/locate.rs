//! Finds the interpreter in a live process.

use traceprof_abi::context::{RecordKind, TlsLocation};
use traceprof_abi::runtime::ruby::RubyLayout;
use traceprof_abi::runtime::word::{FRAME_WORDS, ManagedFrame, sections};
use traceprof_abi::runtime::{Captured, CapturedThread, RuntimeBlock, capture};
use traceprof_abi::sync::{AtomicU64, Ordering};

use super::classes::ClassNames;
use super::exports::{RubyExports, RubyPlaces};
use super::functions::RubyReader;
use super::objects::RubyMemory;
use super::offsets::RubyStructures;
use super::symbols::SymbolNames;
use crate::elf::resolve_tls;
use crate::runtime::foreign_frames::has_foreign_frames;
use crate::runtime::memory::{self, TargetMemory, TargetWords};
use crate::runtime::{Names, Runtime, Unsupported};

/// Offset in a context of its innermost frame.
const CURRENT: u64 = 16;

impl RubyExports {
    /// Finds the interpreter in a process: see [`crate::runtime::RuntimeExports::locate`].
    pub(in crate::runtime) fn locate(
        &self,
        bias: u64,
        memory: &dyn TargetMemory,
        vector: RecordKind,
    ) -> Result<Option<Runtime>, Unsupported> {
        let (places, known) = self.structures().map_err(|reason| self.file.refused(reason))?;
        let Some(thread) = FirstThread::of((places, bias), &known, memory) else {
            return Ok(None);
        };
        let Some(context) = thread.variable((places, bias), &known, memory, vector) else {
            // The thread that starts has a context before the variable has it.
            return Ok(None);
        };
        let TlsLocation { kind, offset, module } = context;
        let layout = RubyLayout {
            context_kind: kind as u64,
            context_offset: offset,
            context_module: module,
            ..known.layout
        };
        let block = RuntimeBlock::of_ruby(&layout);
        // Before it runs code, it may not have all that names need.
        if !thread.runs_code(&block, memory) {
            return Ok(None);
        }
        let of_thread = CapturedThread::of(thread.pointer);
        let current = || memory::word(memory, thread.context.wrapping_add(CURRENT));
        if has_foreign_frames((&block, of_thread), memory, current) {
            return Err(self.file.refused("has other frames than its release"));
        }
        let offsets = RubyStructures { layout, ..known };
        let Some(names) = names((places, bias), offsets, memory) else {
            return Err(self.file.refused("keeps its names elsewhere than its release"));
        };
        Ok(Some(self.file.runtime(bias, block, Names::Ruby(names))))
    }
}

/// Finds what reads the names of methods.
fn names(
    (places, bias): (&RubyPlaces, u64),
    offsets: RubyStructures,
    memory: &dyn TargetMemory,
) -> Option<RubyReader> {
    let objects = RubyMemory { memory, offsets: &offsets };
    let mut tables = places.symbols.iter().map(|svma| svma.wrapping_add(bias));
    let symbols = tables.find_map(|it| SymbolNames::at(it, objects))?;
    let object = memory::word(memory, places.object_class.wrapping_add(bias))?;
    let classes = ClassNames::of(object, &symbols, objects)?;
    Some(RubyReader { offsets, symbols, classes })
}

/// The first thread of the interpreter.
struct FirstThread {
    /// Its structure.
    avma: u64,
    /// Its thread pointer.
    pointer: u64,
    /// Its context.
    context: u64,
}

impl FirstThread {
    /// Returns the first thread, if the interpreter has one already.
    fn of(
        (places, bias): (&RubyPlaces, u64),
        known: &RubyStructures,
        memory: &dyn TargetMemory,
    ) -> Option<Self> {
        let field = |base: u64, at: u64| {
            memory::word(memory, base.wrapping_add(at)).filter(|word| *word != 0)
        };
        let first_of = |variable: &u64| {
            let machine = field(variable.wrapping_add(bias), 0)?;
            let avma = field(machine, known.first_thread)?;
            (field(avma, known.thread_machine)? == machine).then_some(avma)
        };
        let avma = places.machine.iter().find_map(first_of)?;
        let mut way = known.thread_pointer.iter();
        let pointer = way.try_fold(avma, |base, at| field(base, *at))?;
        Some(Self { avma, pointer, context: field(avma, known.thread_context)? })
    }

    /// Returns the location of the variable with a thread's context.
    fn variable(
        &self,
        (places, bias): (&RubyPlaces, u64),
        known: &RubyStructures,
        memory: &dyn TargetMemory,
        vector: RecordKind,
    ) -> Option<TlsLocation> {
        let load = |avma: u64| memory::word(memory, avma);
        let ways = places.context.iter();
        let mut locations = ways.filter_map(|way| resolve_tls(*way, bias, vector, load));
        locations.find(|location| {
            let variable = location.variable(self.pointer, load).ok().flatten();
            let context = variable.and_then(load).unwrap_or(0);
            let thread = load(context.wrapping_add(known.context_thread));
            context != 0 && thread == Some(self.avma)
        })
    }

    /// Whether the thread runs code of Ruby.
    fn runs_code(&self, block: &RuntimeBlock, memory: &dyn TargetMemory) -> bool {
        let words: [AtomicU64; 4 * FRAME_WORDS + 1] = std::array::from_fn(|_| AtomicU64::new(0));
        let thread = CapturedThread::of(self.pointer);
        let captured = capture((0, block), thread, &mut TargetWords(memory), &words);
        // Relaxed: no other thread has the words.
        let words = words.map(|word| word.load(Ordering::Relaxed));
        let has_frames = || {
            let mut frames = sections(&words).flat_map(|section| section.frames());
            frames.any(|frame| ManagedFrame::is_named(&frame))
        };
        matches!(captured, Captured::Section { .. }) && has_frames()
    }
}
