//! The walk up a stack. It finds the rule for each frame and lets the architecture's code apply the
//! rule.
//!
//! # Invariants
//! - At most `frames.len()` steps, each with a bounded number of loads.
//! - All reads go through [`Memory`]. [`Memory::load`] reads only within [`Memory::bounds`].
//!
//! # Does not
//! - know registers or instructions: those are in the architecture's file.

use super::code_heap::{CodeHeap, CodeTable, InterpreterLayout};
use super::rule::{Rule, op};
use super::tables::{Module, RBX_LOST, Range, Snapshot};
use super::{EndReason, RETURN_ADDRESS};
use crate::layout::{DEPTH_MAX, FRAME_WORDS_MAX};
use crate::runtime::lua::{LuaLayout, LuaStacks};
use crate::runtime::v8::V8Layout;
use crate::runtime::word::{FRAME_WORDS, FrameFunction, FrameInPlace, as_pc};
use crate::runtime::{self, RuntimeBlock, WordReader};
use crate::sync::{AtomicU64, Ordering};

/// Maximum number of searches for LuaJIT's frames in a walk. Other code that is not known may be
/// above code that LuaJIT has compiled.
const SEARCHES_MAX: u8 = 8;

/// The registers of an architecture from which the unwinding starts.
pub trait Machine {
    /// The architecture's frame type.
    type Frame: Climb;

    /// Returns the frame to which the registers belong.
    fn leaf(&self) -> Self::Frame;
}

/// A frame that the walk moves up the stack.
pub trait Climb {
    /// Returns the frame's program counter.
    fn pc(&self) -> u64;

    /// Returns the frame's stack pointer.
    fn sp(&self) -> u64;

    /// Whether the pc is the instruction at which the frame runs, and not a return address.
    fn is_exact(&self) -> bool;

    /// Moves to the caller. A frame that its pc does not name tells `lookup` what does.
    fn step(&mut self, lookup: &mut Lookup, memory: &mut impl Memory) -> Result<(), EndReason>;
}

/// What names a frame in place of its pc, or besides it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Identity {
    /// The return address that was in the frame before another one replaced it.
    Original(u64),
    /// A method that an interpreter runs, and the number of the runtime's block.
    Managed(u8, FrameInPlace),
    /// The function that the frame has in a slot.
    Function(FrameFunction),
}

/// The stack that is walked.
pub trait Memory {
    /// Loads eight bytes and never faults. The walk passes only multiples of 8 within the bounds.
    fn load(&mut self, avma: u64) -> Option<u64>;

    /// Computes the bounds anew from `sp`, after a signal frame or a stack switch. False if no
    /// stack is known at `sp`.
    fn rebound(&mut self, sp: u64) -> bool;

    /// Returns the stack's readable range [lo, hi).
    fn bounds(&self) -> (u64, u64);

    /// Loads eight bytes at any address and never faults: code, or a word in which code finds a
    /// jump's target or the end of another stack. The walk calls this only in code without unwind
    /// information and in code that changes stacks. `None` costs such a frame its caller and
    /// nothing else.
    fn load_code(&mut self, _avma: u64) -> Option<u64> {
        None
    }

    /// Loads the eight bytes at a multiple of 8 in the runtime's description of generated code that
    /// has a table, and never faults. It is within a heap of code. `None` costs such a frame its
    /// caller.
    fn load_description(&mut self, avma: u64) -> Option<u64> {
        self.load_code(avma)
    }

    /// Loads the eight bytes at a multiple of 8 in an object of a runtime, and never faults. `None`
    /// costs a frame its function.
    fn load_object(&mut self, _avma: u64) -> Option<u64> {
        None
    }

    /// Counts a frame of a runtime whose slot has no function that can be read.
    fn count_no_function(&mut self) {}
}

/// The objects of a runtime.
pub(super) struct Objects<'m, M>(pub(super) &'m mut M);

impl<M: Memory> WordReader for Objects<'_, M> {
    fn load(&mut self, avma: u64) -> Option<u64> {
        self.0.load_object(avma)
    }
}

/// The result of an unwinding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unwound {
    /// Number of frame words written.
    pub depth: usize,
    /// Why the unwinding ended.
    pub end: EndReason,
    /// The stack pointer in the innermost frame of the loop that
    /// [`loop_of`](crate::runtime::loop_of) tells, or 0 if there is none.
    pub loop_stack: u64,
    /// As [`CapturedThread`](crate::runtime::CapturedThread) says.
    pub lua: LuaStacks,
}

/// Returns the maximum number of words of a handler's walk. A frame of V8 takes up to three words,
/// and its functions need no section behind the walk.
pub fn walk_words_max(snapshot: &Snapshot) -> usize {
    let has_v8 = snapshot.runtimes().iter().any(|block| block.v8().is_some());
    if has_v8 { FRAME_WORDS_MAX } else { DEPTH_MAX }
}

/// Unwinds from `registers` and stores the frame words, leaf first. `frames.len()` is the maximum
/// depth.
pub fn unwind(
    snapshot: &Snapshot,
    registers: &impl Machine,
    memory: &mut impl Memory,
    frames: &[AtomicU64],
) -> Unwound {
    let mut frame = registers.leaf();
    let mut lookup = Lookup::new(snapshot);
    let (mut depth, mut loop_stack) = (0usize, 0);
    let mut sought = runtime::loop_of(snapshot.runtimes());
    let (luas, mut lua_stacks) = (LuaBuilds::of(snapshot), LuaStacks::default());
    while let Some(word) = frames.get(depth) {
        if sought.as_ref().is_some_and(|code| code.contains(&frame.pc())) {
            (loop_stack, sought) = (frame.sp(), None);
        }
        if luas.has(frame.pc()) {
            lua_stacks.note(frame.sp());
        }
        let mark = if frame.is_exact() { 0 } else { RETURN_ADDRESS };
        // Relaxed: the words are the caller's own until it publishes them.
        word.store(as_pc(frame.pc() & !RETURN_ADDRESS) | mark, Ordering::Relaxed);
        depth = depth.wrapping_add(1);
        let stepped = frame.step(&mut lookup, memory);
        // Generated code may be a part of the loop.
        sought = sought.filter(|_| lookup.is_in_module());
        match lookup.identity.take() {
            None => {}
            // Relaxed, all: as above.
            Some(Identity::Original(pc)) => {
                word.store(as_pc(pc & !RETURN_ADDRESS) | RETURN_ADDRESS, Ordering::Relaxed);
            }
            Some(Identity::Managed(runtime, managed)) => {
                let Some(next) = frames.get(depth) else { break };
                let [first, second] = managed.words(runtime);
                word.store(first, Ordering::Relaxed);
                next.store(second, Ordering::Relaxed);
                depth = depth.wrapping_add(1);
            }
            Some(Identity::Function(function)) => {
                let Some([first, second]) = frames.get(depth..).and_then(|it| it.first_chunk())
                else {
                    break;
                };
                let words = function.words();
                first.store(words[0], Ordering::Relaxed);
                second.store(words[1], Ordering::Relaxed);
                depth = depth.wrapping_add(FRAME_WORDS);
            }
        }
        if let Some(stack) = lookup.lua_stack.take() {
            lua_stacks.note(stack);
        }
        if let Err(end) = stepped {
            let is_complete = luas.first.is_some() && end == EndReason::Root;
            let lua = lua_stacks.found(is_complete, luas.others.is_empty());
            return Unwound { depth, end, loop_stack, lua };
        }
    }
    Unwound { depth, end: EndReason::Depth, loop_stack, lua: lua_stacks.found(false, true) }
}

/// The builds of LuaJIT that a process has: one, if any, in nearly all processes.
struct LuaBuilds<'s> {
    first: Option<&'s LuaLayout>,
    /// The blocks behind that of the first one, if there is another one.
    others: &'s [RuntimeBlock],
}

impl<'s> LuaBuilds<'s> {
    fn of(snapshot: &'s Snapshot<'s>) -> Self {
        let mut blocks = snapshot.runtimes().iter();
        let first = blocks.find_map(RuntimeBlock::lua);
        let has_another = blocks.as_slice().iter().any(|block| block.lua().is_some());
        Self { first, others: if has_another { blocks.as_slice() } else { &[] } }
    }

    #[inline]
    fn has(&self, avma: u64) -> bool {
        let is_in = |layout: &LuaLayout| layout.has_code(avma);
        self.first.is_some_and(is_in) || self.others.iter().filter_map(RuntimeBlock::lua).any(is_in)
    }
}

/// Loads one stack word at or above `floor` and below the upper bound.
#[inline]
pub(super) fn word(memory: &mut impl Memory, floor: u64, avma: u64) -> Result<u64, EndReason> {
    let (lo, hi) = memory.bounds();
    if avma < floor || avma < lo || avma & 7 != 0 || hi < 8 || avma > hi.wrapping_sub(8) {
        return Err(EndReason::Range);
    }
    memory.load(avma).ok_or(EndReason::Unreadable)
}

/// Rule lookups in one snapshot. Neighbouring frames often belong to one module, so the lookup
/// caches the last one.
#[derive(Debug)]
pub struct Lookup<'s> {
    snapshot: &'s Snapshot<'s>,
    range: Option<&'s Range>,
    code: Code<'s>,
    identity: Option<Identity>,
    /// The stack pointer in the frame of LuaJIT's interpreter below code that was left and that has
    /// used more of the stack.
    lua_stack: Option<u64>,
    /// Number of searches for such a frame that are left.
    searches_left: u8,
}

/// What describes the code of a range.
#[derive(Debug, Clone, Copy)]
enum Code<'s> {
    /// Anonymous code, of which nothing is known.
    Anonymous,
    /// A module's table.
    Module(Module<'s>),
    /// A heap of code.
    Heap(CodeHeap<'s>),
}

impl<'s> Code<'s> {
    fn of(snapshot: &Snapshot<'s>, range: &Range) -> Option<Self> {
        Some(match (range.heap, range.module) {
            (0, 0) => Self::Anonymous,
            (0, _) => Self::Module(snapshot.module(range)?),
            _ => Self::Heap(snapshot.heap(range)?),
        })
    }
}

/// Whether the table of an address is of the code that is there, and not of code that was there
/// before.
#[inline]
fn is_of_this_code(
    heap: &CodeHeap<'_>,
    avma: u64,
    table: &CodeTable<'_>,
    memory: &mut impl Memory,
) -> bool {
    let identity = table.identity();
    if identity.at == 0 {
        return true;
    }
    // What is before code of a heap is mapped, whatever the table says.
    let mut load = |at: u64| {
        let is_before = heap.span().low <= at & !7 && at < avma;
        if is_before { memory.load_description(at & !7) } else { None }
    };
    let is_used = identity.used().is_none_or(|at| {
        load(at).is_some_and(|word| word.wrapping_shr((at as u32 & 7) * 8) as u8 != 0)
    });
    is_used && load(identity.at).is_some_and(|word| identity.is_in(word))
}

impl<'s> Lookup<'s> {
    pub(super) fn new(snapshot: &'s Snapshot<'s>) -> Self {
        Self {
            snapshot,
            range: None,
            code: Code::Anonymous,
            identity: None,
            lua_stack: None,
            searches_left: SEARCHES_MAX,
        }
    }

    /// Names the frame that is about to be left.
    pub(super) fn identify(&mut self, identity: Identity) {
        self.identity = Some(identity);
    }

    /// Notes the frame of LuaJIT's interpreter below code that is about to be left and that has
    /// used more of the stack.
    pub(super) fn note_lua_stack(&mut self, stack: u64) {
        self.lua_stack = Some(stack);
    }

    /// Returns the rule at an address and where the caller's rbx is.
    #[inline]
    pub(super) fn rule(
        &mut self,
        avma: u64,
        memory: &mut impl Memory,
    ) -> Result<(Rule, i16), EndReason> {
        let range = match self.range {
            Some(range) if range.start <= avma && avma < range.end => range,
            _ => self.enter(avma)?,
        };
        Ok(match &self.code {
            Code::Module(module) => module.rule_and_rbx(avma.wrapping_sub(range.bias)),
            Code::Anonymous => (Rule::GAP_FP, RBX_LOST),
            Code::Heap(heap) => {
                let table = heap.table(avma).filter(|it| is_of_this_code(heap, avma, it, memory));
                // Code that is newer than the tables.
                (table.ok_or(EndReason::NoModule)?.rule(avma), RBX_LOST)
            }
        })
    }

    /// Returns the table of the generated code at an address, if the cached range contains it.
    #[inline]
    pub(super) fn generated(&self, avma: u64) -> Option<CodeTable<'s>> {
        match &self.code {
            Code::Heap(heap) => heap.table(avma),
            _ => None,
        }
    }

    /// Whether the address is in any heap of generated code.
    pub(super) fn is_in_heap(&self, avma: u64) -> bool {
        self.snapshot.range(avma).is_some_and(|range| self.snapshot.heap(range).is_some())
    }

    /// Whether the cached range is a module's.
    pub(super) fn is_in_module(&self) -> bool {
        matches!(self.code, Code::Module(_))
    }

    /// Returns how V8 keeps functions, if the process has it.
    pub(super) fn v8(&self) -> Option<&'s V8Layout> {
        self.snapshot.runtimes().iter().find_map(|block| block.v8())
    }

    /// Returns how LuaJIT keeps frames: each build that the process has.
    pub(super) fn luas(&self) -> impl Iterator<Item = &'s LuaLayout> + use<'s> {
        self.snapshot.runtimes().iter().filter_map(|block| block.lua())
    }

    /// Counts a search for a frame of LuaJIT, and returns whether a walk may search the stack once
    /// more.
    pub(super) fn count_search(&mut self) -> bool {
        let left = self.searches_left.checked_sub(1);
        self.searches_left = left.unwrap_or(0);
        left.is_some()
    }

    /// Returns where the interpreter of the cached range keeps what is read of its frames.
    pub(super) fn interpreter(&self) -> Option<InterpreterLayout> {
        match &self.code {
            Code::Heap(heap) => Some(heap.interpreter()),
            _ => None,
        }
    }

    /// Returns the rule at an address, if the cached range contains it.
    #[inline]
    pub(super) fn rule_in_range(&self, avma: u64) -> Option<Rule> {
        let range = self.range.filter(|range| range.start <= avma && avma < range.end)?;
        match &self.code {
            Code::Module(module) => Some(module.rule(avma.wrapping_sub(range.bias))),
            _ => None,
        }
    }

    /// Caches the range that contains an address.
    #[inline]
    fn enter(&mut self, avma: u64) -> Result<&'s Range, EndReason> {
        let range = self.snapshot.range(avma).ok_or(EndReason::NoModule)?;
        let code = Code::of(self.snapshot, range);
        (self.range, self.code) = (code.and(Some(range)), code.unwrap_or(Code::Anonymous));
        self.range.ok_or(EndReason::NoModule)
    }

    /// Whether the address is in a signal trampoline.
    pub(super) fn is_trampoline(&self, avma: u64) -> bool {
        self.op(avma) == Some(op::SIGNAL)
    }

    /// Whether the address is in code that has no unwind information and is assumed to keep frame
    /// pointers.
    pub(super) fn is_generated(&self, avma: u64) -> bool {
        self.op(avma) == Some(op::GAP_FP)
    }

    /// Returns the op at an address that is most likely not in the cached range.
    fn op(&self, avma: u64) -> Option<u8> {
        let range = self.snapshot.range(avma)?;
        Some(match Code::of(self.snapshot, range)? {
            Code::Module(module) => module.rule(avma.wrapping_sub(range.bias)).op,
            Code::Anonymous => op::GAP_FP,
            Code::Heap(heap) => heap.table(avma)?.rule(avma).op,
        })
    }

    /// Whether both addresses are in the same row of a module's table.
    pub(super) fn is_one_row(&self, one: u64, other: u64) -> bool {
        let row = |avma: u64| {
            let range = self.snapshot.range(avma)?;
            let row = self.snapshot.module(range)?.row(avma.wrapping_sub(range.bias))?;
            Some((range.module, range.bias, row))
        };
        row(one).is_some_and(|one| row(other) == Some(one))
    }

    /// Whether the address is in an executable range.
    pub(super) fn is_code(&self, avma: u64) -> bool {
        self.snapshot.range(avma).is_some()
    }
}
