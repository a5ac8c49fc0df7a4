//! V8 in a live process.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use traceprof_abi::runtime::RuntimeBlock;
use traceprof_abi::runtime::v8::V8Layout;

use super::bytecode_sizes::BytecodeSizes;
use super::function::JsFunction;
use super::heap::HeapReader;
use super::layout::ObjectLayout;
use super::positions::{SourcePosition, at_or_before};
use super::script::{KnownLines, LineEnds, ScriptName, SourcePlace, lines, script_name};
use super::shared_info::SharedFacts;
use super::strings::text;
use crate::runtime::memory::TargetMemory;
use crate::runtime::pages::TargetPages;
use crate::runtime::{Gone, TargetWords, Witness, which_hold};
use crate::text::printable;

/// The name of a function without one, that of the code outside of all functions of a script, and
/// that of such code that `eval` runs.
const ANONYMOUS: &str = "(anonymous)";
const TOP_LEVEL: &str = "(top level)";
const EVALUATED: &str = "(eval)";
/// The number of the code outside of all functions.
const TOP_LEVEL_LITERAL: u32 = 0;
/// Maximum number of functions that evaluate each other.
const ORIGINS_MAX: u32 = 4;

/// V8 in a process.
#[derive(Debug, Clone)]
pub struct V8Machine {
    /// The program with its version and that of the engine, such as `Node.js 22.1.0 (V8 12.4)`.
    pub label: String,
    /// Whether the label has the version of the program.
    pub is_labelled: bool,
    /// The offsets for the handlers.
    pub layout: V8Layout,
    /// Whether code of the process has shown that the objects are as this version has them. There
    /// is no such code before the first function is optimized.
    pub is_proven: bool,
    pub(super) heap: ObjectLayout,
    pub(super) sizes: BytecodeSizes,
    /// The lengths of code that enters the interpreter.
    pub(super) trampolines: Vec<u64>,
    pub(super) lines: KnownLines,
}

impl V8Machine {
    /// Returns the block for the handlers.
    pub fn block(&self) -> RuntimeBlock {
        RuntimeBlock::of_v8(&self.layout)
    }

    /// Starts to read what is there now.
    pub fn reader<'m>(&'m self, memory: &'m dyn TargetMemory) -> V8Reader<'m> {
        V8Reader {
            machine: self,
            memory,
            pages: TargetPages::of(memory),
            functions: RefCell::default(),
            sources: RefCell::default(),
            stream_maps: RefCell::default(),
        }
    }
}

/// What is there at one time: memory that was read once is not read again.
pub struct V8Reader<'m> {
    pub(super) machine: &'m V8Machine,
    pub(super) memory: &'m dyn TargetMemory,
    pub(super) pages: TargetPages<'m>,
    /// The functions that were read, by the addresses of what they share.
    pub(super) functions: RefCell<HashMap<u64, Result<Arc<JsFunction>, Gone>>>,
    /// The lines of their scripts.
    pub(super) sources: RefCell<HashMap<u64, Arc<LineEnds>>>,
    /// Whether objects are maps of what is in front of instructions.
    pub(super) stream_maps: RefCell<HashMap<u64, bool>>,
}

impl V8Reader<'_> {
    pub(super) fn heap(&self) -> HeapReader<'_> {
        HeapReader { layout: &self.machine.heap, pages: &self.pages }
    }

    /// Reads what says that the same function is there: in what functions share, all but what the
    /// engine changes as it compiles the function, and the number of the script, of which there is
    /// only one in the engine's life.
    pub(super) fn shared_witness(&self, shared: u64, script: Option<u64>) -> Option<Witness> {
        let (pages, fields) = (&self.pages, self.machine.heap.shared);
        let mut witness = Witness::default();
        let mut add = |object: u64, offset: u64, len| {
            witness.add_bytes(pages, object.checked_add(offset)?, len)
        };
        for field in [0, fields.name, fields.script] {
            add(shared, field, 8)?;
        }
        add(shared, fields.literal, 4)?;
        if let Some(unique) = fields.unique {
            add(shared, unique, 4)?;
        }
        if let Some(script) = script {
            add(script, self.machine.heap.script.id, 8)?;
        }
        Some(witness)
    }

    /// Returns whether the bytes of a witness are still there.
    pub(super) fn holds(&self, witness: &Witness) -> bool {
        which_hold(&[witness], self.memory) == [true]
    }

    /// Reads the function of a frame, given by the address of what all functions from its source
    /// share and the cookie at the capture.
    pub fn function(&self, shared: u64, cookie: u32) -> Result<Arc<JsFunction>, Gone> {
        match self.cookie(shared)? {
            same if same == cookie => self.function_now(shared),
            _ => Err(Gone::OtherCode),
        }
    }

    /// Returns the cookie of what functions share.
    pub(super) fn cookie(&self, shared: u64) -> Result<u32, Gone> {
        let heap = self.heap();
        match heap.kind(shared) {
            Some(kind) if kind == heap.layout.types.shared => {}
            Some(_) => return Err(Gone::OtherType),
            // What describes an object that the collector has moved is where it is now.
            None if heap.word(shared, 0).is_some() => return Err(Gone::OtherType),
            None => return Err(Gone::Unreadable),
        }
        let words = &mut TargetWords(self.memory);
        self.machine.layout.cookie(shared, words).ok_or(Gone::Unreadable)
    }

    /// Reads the function that is at this address now.
    pub(super) fn function_now(&self, shared: u64) -> Result<Arc<JsFunction>, Gone> {
        if let Some(known) = self.functions.borrow().get(&shared) {
            return known.clone();
        }
        let found = self.read_function(shared).map(Arc::new);
        self.functions.borrow_mut().insert(shared, found.clone());
        found
    }

    fn read_function(&self, shared: u64) -> Result<JsFunction, Gone> {
        let heap = self.heap();
        let script = heap.script_of(shared);
        let witness = self.shared_witness(shared, script).ok_or(Gone::Unreadable)?;
        let cookie = self.cookie(shared)?;
        let facts = heap.shared_facts(shared).ok_or(Gone::OtherType)?;
        let (name, file) = self.name_and_file(&facts)?;
        let ends = self.lines_of(facts.script);
        let start = facts.start.map_or(SourcePlace::default(), |start| ends.place_at(start));
        let bytecodes = heap.bytecodes_of(shared);
        let positions = bytecodes.and_then(|it| heap.bytecode_positions(it));
        let header = heap.layout.bytecodes.data.saturating_sub(1) as u32;
        let positions = positions.unwrap_or_default().into_iter();
        let mut places: Vec<(u32, SourcePlace)> = positions
            .map(|(at, position)| (at.saturating_add(header), place_of(position, &ends)))
            .collect();
        places.dedup_by_key(|(_, place)| *place);
        if !self.holds(&witness) {
            return Err(Gone::Changing);
        }
        Ok(JsFunction {
            name,
            file,
            line: start.line,
            column: start.column,
            shared,
            cookie,
            places,
            is_builtin: facts.script.is_none(),
            bytecodes: bytecodes.unwrap_or(0),
            witness,
        })
    }

    /// Returns the lines of a script. Empty if they are unknown.
    fn lines_of(&self, script: Option<u64>) -> Arc<LineEnds> {
        let lines = script.and_then(|it| lines(&self.heap(), it, &self.machine.lines));
        lines.unwrap_or_default()
    }

    /// Returns the place of a position in the source of what functions share.
    pub(super) fn place_in(&self, shared: u64, position: SourcePosition) -> SourcePlace {
        let mut sources = self.sources.borrow_mut();
        let ends =
            sources.entry(shared).or_insert_with(|| self.lines_of(self.heap().script_of(shared)));
        place_of(position, ends)
    }

    fn name_and_file(&self, facts: &SharedFacts) -> Result<(String, String), Gone> {
        let heap = self.heap();
        let is_top_level = facts.script.is_some() && facts.literal == TOP_LEVEL_LITERAL;
        let given = [facts.name, facts.inferred].into_iter().filter(|word| *word != 0);
        let mut texts = Vec::new();
        for word in given {
            texts.push(text(&heap, word).ok_or(Gone::Name)?);
        }
        let script = facts.script.map(|it| script_name(&heap, it).ok_or(Gone::File)).transpose()?;
        let is_evaluated = matches!(script, Some(ScriptName::Evaluated(..)));
        let without = match (is_top_level, is_evaluated) {
            (true, true) => EVALUATED,
            (true, false) => TOP_LEVEL,
            (false, _) => ANONYMOUS,
        };
        let name = texts.into_iter().find(|text| !text.is_empty());
        let name = facts.initializer.map(str::to_owned).or(name);
        let file = script.map_or_else(String::new, |it| self.file_name(&it, ORIGINS_MAX));
        Ok((name.unwrap_or_else(|| without.to_owned()), printable(&file)))
    }

    /// Returns the name of a script as a file's. What a function evaluates has the place of that.
    fn file_name(&self, script: &ScriptName, origins_left: u32) -> String {
        let (shared, position) = match script {
            ScriptName::Given(name) => return name.clone(),
            ScriptName::Evaluated(shared, position) if origins_left > 0 => (*shared, *position),
            _ => return EVALUATED.to_owned(),
        };
        let heap = self.heap();
        let Some(facts) = heap.shared_facts(shared) else { return EVALUATED.to_owned() };
        let name = [facts.name, facts.inferred].into_iter().filter(|word| *word != 0);
        let name = name.filter_map(|word| text(&heap, word)).find(|name| !name.is_empty());
        let name = name.unwrap_or_else(|| ANONYMOUS.to_owned());
        let script = facts.script.and_then(|it| script_name(&heap, it)).unwrap_or(ScriptName::None);
        let file = self.file_name(&script, origins_left - 1);
        match self.evaluated_line(shared, facts.script, position) {
            0 => format!("eval at {name} ({file})"),
            line => format!("eval at {name} ({file}:{line})"),
        }
    }

    /// Returns the line from which a function evaluated a script, 0 if it is unknown.
    fn evaluated_line(&self, shared: u64, script: Option<u64>, position: i32) -> u32 {
        let ends = self.lines_of(script);
        if let Ok(offset) = u32::try_from(position) {
            return ends.line_at(offset);
        }
        // The offset of the bytecode, until the engine has needed the position.
        let positions = self.heap().bytecodes_of(shared);
        let positions = positions.and_then(|it| self.heap().bytecode_positions(it));
        let position = at_or_before(&positions.unwrap_or_default(), position.unsigned_abs());
        position.map_or(0, |it| place_of(it, &ends).line)
    }
}

fn place_of(position: SourcePosition, ends: &LineEnds) -> SourcePlace {
    position.offset().map_or(SourcePlace::default(), |offset| ends.place_at(offset))
}
