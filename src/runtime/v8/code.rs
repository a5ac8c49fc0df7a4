//! Compiled code: the functions that it was compiled from, and which of them an address belongs to.
//!
//! # Invariants
//! - What is returned was read while the same code was there.
//! - Each inlining is in one with a smaller index, so each chain of callers ends.
//! - Optimized code has the positions of all instructions, because Node.js asks for them. Another
//!   program may have those of calls only.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use super::code_finder::{CodeObject, find_code};
use super::function::JsFunction;
use super::heap::{small, weak_object};
use super::machine::V8Reader;
use super::positions::{SourcePosition, at_or_before, baseline_bytecodes, source_positions};
use super::script::SourcePlace;
use crate::runtime::{Gone, Witness};

/// Maximum number of functions in one piece of code.
const FUNCTIONS_MAX: usize = 1 << 12;
/// Maximum number of inlinings in one piece of code.
const INLININGS_MAX: usize = 1 << 14;
/// Number of bytes of an inlining: a position of eight bytes, and the index of a function.
const INLINING_LEN: usize = 16;
/// Maximum number of words of an array in the data for deoptimization.
const WORDS_MAX: usize = 1 << 20;
/// The kinds of copies of the engine's own functions, and of code for regular expressions, in every
/// version.
const BUILTIN: u32 = 2;
const REGEXP: u32 = 3;
/// Where an object that only refers to another one has it.
const WRAPPED: u64 = 8;
/// Maximum number of functions that are inlined into each other at one place.
const DEPTH_MAX: usize = 128;

/// A function of code, or why it could not be read.
type ReadFunction = Result<Arc<JsFunction>, Gone>;

/// What compiled or runs a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JsTier {
    /// The interpreter.
    Interpreted,
    /// The compiler that translates bytecodes one by one (Sparkplug).
    Baseline,
    /// The compiler between (Maglev).
    Mid,
    /// The optimizing compiler (TurboFan).
    Optimized,
    /// Nobody knows.
    Unknown,
}

/// A function, and a place in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JsPosition<'c> {
    /// The function, or why it could not be read.
    pub function: Result<&'c Arc<JsFunction>, Gone>,
    /// The place.
    pub place: SourcePlace,
}

/// A position in a function, and the position of its caller if it is inlined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ChainLink {
    /// The index among the functions.
    function: usize,
    place: SourcePlace,
    caller: Option<usize>,
}

/// Compiled code with all functions that are inlined into it. Addresses in it need no further read
/// of the target.
#[derive(Debug, Clone)]
pub struct JsCode {
    /// The instructions (AVMAs).
    pub code: Range<u64>,
    /// What compiled it.
    pub tier: JsTier,
    /// The function that was compiled. `None` if it could not be read, or baseline code is not that
    /// of the function that was asked for.
    pub function: Option<Arc<JsFunction>>,
    /// The address and the cookie of what functions from its source share.
    pub(super) own: Option<(u64, u32)>,
    /// Offsets in the code, and the innermost link from each on.
    positions: Vec<(u32, Option<usize>)>,
    links: Vec<ChainLink>,
    /// The functions: first the one that was compiled.
    functions: Vec<ReadFunction>,
    /// The offset of the code that leaves optimized code.
    exits: u32,
    witness: Witness,
}

impl JsCode {
    /// Returns whether the code was compiled from the function with this cookie.
    pub fn is_of(&self, cookie: u32) -> bool {
        self.own.is_some_and(|(_, own)| own == cookie)
    }

    /// Returns the functions that an address belongs to, outermost first. Empty if the function
    /// that was compiled is unknown.
    ///
    /// The address of a return is one byte before it.
    pub fn positions(&self, avma: u64) -> Vec<JsPosition<'_>> {
        if self.functions.is_empty() {
            return Vec::new();
        }
        let offset = avma.checked_sub(self.code.start).and_then(|it| u32::try_from(it).ok());
        let offset = offset.filter(|it| self.code.contains(&avma) && *it < self.exits);
        let innermost = offset.and_then(|offset| at_or_before(&self.positions, offset).flatten());
        let chain = self.chain(innermost);
        let own = JsPosition { function: self.function_at(0), place: SourcePlace::default() };
        if chain.is_empty() { vec![own] } else { chain }
    }

    /// Returns a link and those that it is inlined into, outermost first.
    fn chain(&self, innermost: Option<usize>) -> Vec<JsPosition<'_>> {
        let mut chain = Vec::new();
        let mut next = innermost;
        while let Some(link) = next.and_then(|index| self.links.get(index)) {
            chain.push(JsPosition { function: self.function_at(link.function), place: link.place });
            next = link.caller;
        }
        chain.reverse();
        chain
    }

    fn function_at(&self, index: usize) -> Result<&Arc<JsFunction>, Gone> {
        let function = self.functions.get(index);
        function.map_or(Err(Gone::OtherType), |it| it.as_ref().map_err(|gone| *gone))
    }

    /// Returns what says that the same code is there.
    pub fn witness(&self) -> &Witness {
        &self.witness
    }

    /// Returns whether the other one is the same code, which the collector may have read anew at
    /// other addresses of its parts.
    pub fn is_same_code(&self, other: &Self) -> bool {
        let is_same = |one: &ReadFunction, other: &ReadFunction| match (one, other) {
            (Ok(one), Ok(other)) => one.has_source_of(other),
            (one, other) => one.is_err() == other.is_err(),
        };
        self.code == other.code
            && self.tier == other.tier
            && self.own.map(|(_, cookie)| cookie) == other.own.map(|(_, cookie)| cookie)
            && self.positions == other.positions
            && self.links == other.links
            && self.functions.len() == other.functions.len()
            && self.functions.iter().zip(&other.functions).all(|(one, other)| is_same(one, other))
    }

    /// Returns the bytes of memory that the code takes, with its functions.
    pub fn bytes(&self) -> usize {
        let functions: usize = self.functions.iter().flatten().map(|it| it.bytes()).sum();
        size_of::<Self>()
            + functions
            + self.positions.len() * size_of::<(u32, Option<usize>)>()
            + self.links.len() * size_of::<ChainLink>()
            + self.witness.bytes()
    }
}

/// Decodes positions of optimized code, each once.
struct ChainReader<'r, 'm> {
    reader: &'r V8Reader<'m>,
    /// The positions of inlinings, and the indices of their functions.
    inlinings: Vec<(SourcePosition, Option<usize>)>,
    /// The function that was compiled, and those that are inlined: addresses of what they share.
    shared: Vec<Option<u64>>,
    /// Positions whose lines may be wrong.
    doubtful: HashSet<SourcePosition>,
    known: HashMap<SourcePosition, Option<usize>>,
    links: Vec<ChainLink>,
}

impl ChainReader<'_, '_> {
    /// Returns the index of the link of a position. `None` if it is unknown.
    fn link(&mut self, position: SourcePosition) -> Option<usize> {
        if let Some(known) = self.known.get(&position) {
            return *known;
        }
        let found = self.decode(position);
        self.known.insert(position, found);
        found
    }

    /// Finds the positions that go back in their function. The compiler between loses its way in
    /// the source where it repeats the code of a loop: all that follows in the loop has one
    /// position.
    fn find_doubtful(&mut self, table: &[(u32, SourcePosition)]) {
        let mut furthest: HashMap<Option<usize>, u32> = HashMap::new();
        for (_, position) in table {
            let mut next = Some(*position);
            for _ in 0..DEPTH_MAX {
                let Some(position) = next else { break };
                let offset = position.offset().unwrap_or(0);
                let furthest = furthest.entry(position.inlining()).or_default();
                if offset < *furthest {
                    self.doubtful.insert(position);
                }
                *furthest = offset.max(*furthest);
                let inlining = position.inlining().and_then(|index| self.inlinings.get(index));
                next = inlining.map(|(caller, _)| *caller);
            }
        }
    }

    fn decode(&mut self, position: SourcePosition) -> Option<usize> {
        // Innermost first.
        let mut chain = vec![position];
        let mut next = position;
        while let Some(index) = next.inlining() {
            let caller = self.inlinings.get(index)?.0;
            if caller.inlining().is_some_and(|outer| outer >= index) || chain.len() >= DEPTH_MAX {
                return None;
            }
            chain.push(caller);
            next = caller;
        }
        let mut caller = None;
        for position in chain.into_iter().rev() {
            if let Some(known) = self.known.get(&position) {
                caller = Some((*known)?);
                continue;
            }
            let function = match position.inlining() {
                Some(index) => self.inlinings.get(index)?.1?,
                None => 0,
            };
            let shared = *self.shared.get(function)?;
            let known = shared.filter(|_| !self.doubtful.contains(&position));
            let place = known.map(|shared| self.reader.place_in(shared, position));
            let index = self.links.len();
            self.links.push(ChainLink { function, place: place.unwrap_or_default(), caller });
            self.known.insert(position, Some(index));
            caller = Some(index);
        }
        caller
    }
}

impl V8Reader<'_> {
    /// Reads the code that contains an address (AVMA). Baseline code does not tell its function:
    /// `of` is the address and the cookie of what the functions share that it may be compiled from.
    ///
    /// # Errors
    /// [`Gone::OtherType`] if there is no code.
    pub fn code_at(&self, avma: u64, of: Option<(u64, u32)>) -> Result<JsCode, Gone> {
        let found = find_code(self, avma)?;
        let code = match self.tier(&found) {
            JsTier::Baseline => self.baseline_code(&found, of)?,
            tier @ (JsTier::Mid | JsTier::Optimized) => self.optimized_code(&found, tier)?,
            _ if found.kind == REGEXP => self.regexp_code(&found)?,
            tier => JsCode { tier, ..self.code_without_positions(&found)? },
        };
        // The engine may have freed the code meanwhile, and with it what was read.
        if self.holds(&code.witness) { Ok(code) } else { Err(Gone::Changing) }
    }

    /// Returns what the code runs, or what compiled it. Regular expressions and WebAssembly have
    /// code, too, which is of none of these.
    pub(super) fn tier(&self, found: &CodeObject) -> JsTier {
        let kinds = self.heap().layout.kinds;
        let len = found.instructions.end - found.instructions.start;
        // Most versions copy a function of their own, and some say what the copy is for.
        let is_copy = found.kind == BUILTIN && self.machine.trampolines.contains(&len);
        match found.kind {
            kind if kind == kinds.interpreted || is_copy => JsTier::Interpreted,
            kind if kind == kinds.baseline => JsTier::Baseline,
            kind if kind == kinds.baseline + 1 => JsTier::Mid,
            kind if kind == kinds.baseline + 2 => JsTier::Optimized,
            _ => JsTier::Unknown,
        }
    }

    /// Returns code of no function.
    fn code_without_positions(&self, found: &CodeObject) -> Result<JsCode, Gone> {
        Ok(JsCode {
            code: found.instructions.clone(),
            tier: JsTier::Unknown,
            function: None,
            own: None,
            positions: Vec::new(),
            links: Vec::new(),
            functions: Vec::new(),
            exits: u32::MAX,
            witness: self.code_witness(found).ok_or(Gone::Unreadable)?,
        })
    }

    /// Returns code that matches a regular expression, with a function that stands for it: it keeps
    /// no reference to the expression.
    fn regexp_code(&self, found: &CodeObject) -> Result<JsCode, Gone> {
        let function = Some(Arc::new(JsFunction::of_regexps()));
        let functions = function.iter().cloned().map(Ok).collect();
        Ok(JsCode { function, functions, ..self.code_without_positions(found)? })
    }

    fn baseline_code(&self, found: &CodeObject, of: Option<(u64, u32)>) -> Result<JsCode, Gone> {
        let heap = self.heap();
        let fields = heap.layout.code;
        let unnamed = JsCode { tier: JsTier::Baseline, ..self.code_without_positions(found)? };
        let Some((shared, cookie)) = of else { return Ok(unnamed) };
        let Ok(function) = self.function(shared, cookie) else { return Ok(unnamed) };
        let data = heap.object(found.code, fields.deopt).ok_or(Gone::OtherType)?;
        let bytecodes = heap.bytecodes_in(data).ok_or(Gone::OtherType)?;
        if function.bytecodes != bytecodes {
            return Ok(unnamed);
        }
        let table = heap.object(found.code, fields.positions).and_then(|it| heap.table(it));
        let table = table.ok_or(Gone::LineTable)?;
        let bytes = heap.bytecode_bytes(bytecodes).ok_or(Gone::Unreadable)?;
        let starts = baseline_bytecodes(&table, &bytes, &self.machine.sizes);
        let header = heap.layout.bytecodes.data.saturating_sub(1) as u32;
        let (mut positions, mut links) = (Vec::new(), Vec::new());
        for (start, bytecode) in starts.unwrap_or_default() {
            let place = function.place_at(bytecode.saturating_add(header));
            if links.last().is_none_or(|last: &ChainLink| last.place != place) {
                positions.push((start, Some(links.len())));
                links.push(ChainLink { function: 0, place, caller: None });
            }
        }
        Ok(JsCode {
            own: Some((function.shared, function.cookie)),
            functions: vec![Ok(Arc::clone(&function))],
            function: Some(function),
            positions,
            links,
            ..unnamed
        })
    }

    fn optimized_code(&self, found: &CodeObject, tier: JsTier) -> Result<JsCode, Gone> {
        let (heap, wrong) = (self.heap(), Gone::OtherType);
        let data = DeoptData::read(self, found).ok_or(wrong)?;
        let cookie = self.cookie(data.shared)?;
        let table = heap.object(found.code, heap.layout.code.positions);
        let table = table.and_then(|it| heap.table(it)).ok_or(Gone::LineTable)?;
        let table = source_positions(&table).ok_or(Gone::LineTable)?;
        let mut chains = ChainReader {
            reader: self,
            inlinings: data.inlinings,
            shared: data.functions,
            doubtful: HashSet::new(),
            known: HashMap::new(),
            links: Vec::new(),
        };
        if tier == JsTier::Mid {
            chains.find_doubtful(&table);
        }
        let positions: Vec<(u32, Option<usize>)> =
            table.iter().map(|(at, position)| (*at, chains.link(*position))).collect();
        let read =
            |shared: &Option<u64>| shared.map_or(Err(Gone::OtherType), |it| self.function_now(it));
        let functions: Vec<_> = chains.shared.iter().map(read).collect();
        Ok(JsCode {
            tier,
            own: Some((data.shared, cookie)),
            function: functions.first().and_then(|it| it.as_ref().ok()).cloned(),
            positions,
            links: chains.links,
            functions,
            exits: data.exits.unwrap_or(u32::MAX),
            ..self.code_without_positions(found)?
        })
    }

    /// Reads what says that the same code is there.
    fn code_witness(&self, found: &CodeObject) -> Option<Witness> {
        /// Number of bytes of the fields of a code object, and of what is in front of
        /// instructions.
        const FIELDS: usize = 64;
        const STREAM_FIELDS: usize = 16;
        /// Number of bytes of the length of an array and its first elements.
        const DATA: usize = 96;
        let (heap, pages) = (self.heap(), &self.pages);
        let mut witness = Witness::default();
        witness.add_bytes(pages, found.stream, STREAM_FIELDS)?;
        witness.add_bytes(pages, found.code, FIELDS)?;
        if found.kind >= heap.layout.kinds.baseline {
            let data = heap.object(found.code, heap.layout.code.deopt)?;
            witness.add_bytes(pages, data, DATA)?;
        }
        Some(witness)
    }
}

/// What optimized code has to leave it, as far as it tells functions.
struct DeoptData {
    /// What the functions share from whose source it was compiled.
    shared: u64,
    exits: Option<u32>,
    inlinings: Vec<(SourcePosition, Option<usize>)>,
    /// The function itself, and those that are inlined. `None` for what is no function.
    functions: Vec<Option<u64>>,
}

impl DeoptData {
    fn read(reader: &V8Reader<'_>, found: &CodeObject) -> Option<Self> {
        let heap = reader.heap();
        let indices = heap.layout.deopt;
        let data = heap.object(found.code, heap.layout.code.deopt)?;
        let element = |index| heap.element(data, index, WORDS_MAX);
        let mut shared = weak_object(element(indices.shared)?)?;
        if indices.is_wrapped {
            shared = heap.object(shared, WRAPPED)?;
        }
        let is_shared = |object: &u64| heap.is(*object, heap.layout.types.shared);
        let count = small(element(indices.inlined_count)?)? as usize;
        let mut functions = vec![Some(Some(shared).filter(is_shared)?)];
        if count > FUNCTIONS_MAX {
            return None;
        }
        let mut inlinings = Vec::new();
        if count > 0 {
            let literals = weak_object(element(indices.literals)?)?;
            for index in 0..count {
                let literal = heap.element(literals, index as u64, WORDS_MAX);
                let literal = literal.and_then(weak_object);
                let wrapped = || heap.object(literal?, WRAPPED).filter(is_shared);
                functions.push(literal.filter(is_shared).or_else(wrapped));
            }
            let table = weak_object(element(indices.inlining)?)?;
            let bytes = heap.array(table, 1, INLININGS_MAX * INLINING_LEN)?;
            inlinings = inlinings_in(&bytes);
        }
        let exits = small(element(indices.exits)?).filter(|exits| *exits > 0);
        Some(Self { shared, exits, inlinings, functions })
    }
}

fn inlinings_in(bytes: &[u8]) -> Vec<(SourcePosition, Option<usize>)> {
    let (inlinings, _) = bytes.as_chunks::<INLINING_LEN>();
    let inlining = |bytes: &[u8; INLINING_LEN]| {
        let [p0, p1, p2, p3, p4, p5, p6, p7, f0, f1, f2, f3, ..] = *bytes;
        let position = u64::from_le_bytes([p0, p1, p2, p3, p4, p5, p6, p7]);
        // The function that was compiled is -1 here, and comes first among ours.
        let function = i64::from(i32::from_le_bytes([f0, f1, f2, f3])) + 1;
        (SourcePosition(position), usize::try_from(function).ok())
    };
    inlinings.iter().map(inlining).collect()
}
