//! Names functions.
//!
//! # Invariants
//! - A function is returned only if it had the cookie of the capture before and after its strings
//!   were read. The cookie is made of the hashes of these strings, and their bytes have the hashes.
//!   One that is gone has the name of another with this cookie, if that was read so.

use traceprof_abi::runtime::php::{
    CLASS_NAME, FUNCTION_CLASS, FUNCTION_KIND, FUNCTION_NAME, FunctionKind, PhpLayout,
    cookie_in_class,
};

use super::declared::{FunctionTable, SomeFunctions};
use super::known::{FunctionInClass, KnownFunctions};
use super::offsets::ClosureOffsets;
use super::text;
use crate::runtime::function::{PositionKind, read_unchanged};
use crate::runtime::memory::{self, TargetMemory, TargetWords};
use crate::runtime::{Function, Gone};

/// What a file has outside of functions, as in PHP's own stack traces.
const MAIN: &str = "{main}";
/// The code of a string.
const EVAL: &str = "{eval}";

/// The largest number of closures of one function.
const CLOSURES_MAX: u32 = 256;
/// How many functions without a frame are read for the frames of one batch: some 20 ms. The next
/// batch goes on.
const ROOM: u32 = 128;

/// Reads the functions of one interpreter.
#[derive(Debug, Clone)]
pub(in crate::runtime) struct PhpReader {
    layout: PhpLayout,
    closures: ClosureOffsets,
    known: KnownFunctions,
}

impl PhpReader {
    pub(super) fn new(layout: PhpLayout, closures: ClosureOffsets) -> Self {
        Self { layout, closures, known: KnownFunctions::default() }
    }

    /// Reads functions, each by its address and its cookie at the capture.
    pub(in crate::runtime) fn functions(
        &self,
        memory: &dyn TargetMemory,
        frames: &[(u64, u32)],
    ) -> Vec<Result<Function, Gone>> {
        let read = frames.iter().map(|(object, captured)| {
            let place = FunctionInClass { function: *object, owner: *object };
            let found = self.function(memory, place, *captured);
            if let Ok(function) = &found {
                self.note(memory, place, (*captured, function));
            }
            found
        });
        let read: Vec<Result<Function, Gone>> = read.collect();
        let mut room = ROOM;
        self.learn_closures(memory, &mut room);
        // A closure may be gone before the function that makes it was read.
        let is_unknown = |(found, captured): (&Result<Function, Gone>, u32)| {
            found.is_err() && self.known.get(captured).is_none()
        };
        let cookies = frames.iter().map(|(_, captured)| *captured);
        if read.iter().zip(cookies).any(is_unknown) {
            self.learn_declared(memory, &mut room);
            self.learn_closures(memory, &mut room);
        }
        let with_known = read.into_iter().zip(frames).map(|(found, (_, captured))| {
            found.or_else(|gone| self.known.get(*captured).ok_or(gone))
        });
        with_known.collect()
    }

    /// Reads a function that had this cookie when it was captured.
    fn function(
        &self,
        memory: &dyn TargetMemory,
        place: FunctionInClass,
        captured: u32,
    ) -> Result<Function, Gone> {
        let cookie = || {
            let is_there = place.function != 0 && memory::word(memory, place.function).is_some();
            if is_there { Ok(self.cookie(memory, place)) } else { Err(Gone::Unreadable) }
        };
        read_unchanged(captured, cookie, || self.read(memory, place))
    }

    /// Remembers the functions that the program has declared since the last call, and the methods
    /// of classes, as far as there is room.
    fn learn_declared(&self, memory: &dyn TargetMemory, room: &mut u32) {
        if let Some(table) = FunctionTable::of_functions(memory, self.layout.bailout) {
            let learned = self.learn_table(memory, (table, self.known.declared()), room);
            self.known.set_declared(learned.next);
        }
        while *room > 0
            && let Some((class, from)) = self.known.take_class()
        {
            let table = FunctionTable::of_class(class);
            let learned = self.learn_table(memory, (table, from), room);
            if !learned.is_end {
                self.known.return_class(class, learned.next);
            }
        }
    }

    fn learn_table(
        &self,
        memory: &dyn TargetMemory,
        (table, from): (FunctionTable, u32),
        room: &mut u32,
    ) -> SomeFunctions {
        let some = table.functions(memory, from, *room);
        *room = room.saturating_sub(1 + some.functions.len() as u32);
        for function in &some.functions {
            let kind = memory::word(memory, *function).and_then(FunctionKind::of);
            if kind == Some(FunctionKind::User) {
                self.learn(memory, FunctionInClass { function: *function, owner: *function });
            }
        }
        some
    }

    /// Remembers the closures that are made in known functions, as far as there is room. A closure
    /// has a copy of its function, with the class of the function that makes it, and goes with the
    /// copy.
    fn learn_closures(&self, memory: &dyn TargetMemory, room: &mut u32) {
        while *room > 0
            && let Some(place) = self.known.take_place()
        {
            let closures = self.closures_in(memory, place.function);
            *room = room.saturating_sub(1 + closures.len() as u32);
            for closure in closures {
                self.learn(memory, FunctionInClass { function: closure, ..place });
            }
        }
    }

    /// Reads and remembers a function.
    fn learn(&self, memory: &dyn TargetMemory, place: FunctionInClass) {
        let Some(cookie) = self.cookie(memory, place) else { return };
        if let Ok(function) = self.function(memory, place, cookie) {
            self.note(memory, place, (cookie, &function));
        }
    }

    /// Remembers a function that was read, and that more is to be read of it.
    fn note(
        &self,
        memory: &dyn TargetMemory,
        place: FunctionInClass,
        (captured, function): (u32, &Function),
    ) {
        if !self.known.add(captured, function) || function.file.is_empty() {
            return;
        }
        let class = memory::word(memory, place.owner.wrapping_add(FUNCTION_CLASS.into()));
        class.filter(|class| *class != 0).into_iter().for_each(|it| self.known.add_class(it));
        self.known.add_place(place);
    }

    /// Returns the addresses of the closures in a function.
    fn closures_in(&self, memory: &dyn TargetMemory, function: u64) -> Vec<u64> {
        let word = |at: u64| memory::word(memory, at);
        let count = word(function.wrapping_add(self.closures.count.into())).map(|it| it as u32);
        let list = word(function.wrapping_add(self.closures.list.into()));
        let (Some(count), Some(list)) = (count.filter(|it| *it <= CLOSURES_MAX), list) else {
            return Vec::new();
        };
        (0..u64::from(count)).map_while(|at| word(list.wrapping_add(8 * at))).collect()
    }

    fn cookie(&self, memory: &dyn TargetMemory, place: FunctionInClass) -> Option<u32> {
        let both = (place.function, place.owner);
        cookie_in_class(&self.layout, both, &mut TargetWords(memory))
    }

    fn read(
        &self,
        memory: &dyn TargetMemory,
        FunctionInClass { function: object, owner }: FunctionInClass,
    ) -> Result<Function, Gone> {
        let word = |base: u64, at: u64| {
            memory::word(memory, base.wrapping_add(at)).ok_or(Gone::Unreadable)
        };
        let kind = FunctionKind::of(word(object, FUNCTION_KIND)?).ok_or(Gone::OtherType)?;
        let name = match (word(object, FUNCTION_NAME.into())?, kind) {
            (0, FunctionKind::Eval) => EVAL.to_owned(),
            (0, _) => MAIN.to_owned(),
            (name, _) => text::read(memory, name).ok_or(Gone::Name)?,
        };
        let name = match word(owner, FUNCTION_CLASS.into())? {
            0 => name,
            class => {
                let class = word(class, CLASS_NAME.into())?;
                let class = text::read(memory, class).ok_or(Gone::Name)?;
                format!("{class}::{name}")
            }
        };
        let (mut file, mut line) = (String::new(), 0);
        if kind != FunctionKind::Internal {
            let avma = word(object, self.layout.file.into())?;
            file = text::read(memory, avma).ok_or(Gone::File)?;
            line = word(object, self.layout.lines.into())? as u32;
        }
        Ok(Function { name, file, line, is_pseudo: false, lines: PositionKind::Positions })
    }
}
