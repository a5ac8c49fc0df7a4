//! Compiled code: which methods were compiled into it, and which of them an address belongs to.
//!
//! # Invariants
//! - What is returned was read while the blob held the same compilation.
//! - Scopes refer to scopes with smaller offsets only, so each chain of callers ends.
//! - Stubs behind the code, through which it calls methods that are not compiled, are no part of
//!   its method: the frame there is already that of the callee, and the method is the caller.

use std::collections::HashMap;
use std::ops::Range;

use super::blob::{CodeBlob, CompiledIdentity};
use super::code_layout::offset_in;
use super::follow::{CALL_STUB_LEN, is_call_stub};
use super::layout::{DebugLayout, MachineLayout};
use super::method::{JavaMethod, MethodReader};
use super::numbers::NumberReader;
use crate::runtime::Gone;
use crate::runtime::pages::TargetPages;

/// Maximum number of positions of one piece of code.
const POSITIONS_MAX: u64 = 1 << 16;
/// Maximum number of bytes of scopes.
const SCOPES_LEN_MAX: u64 = 1 << 20;
/// Maximum number of methods that are inlined into each other at one place.
pub(super) const DEPTH_MAX: usize = 128;
/// Maximum number of methods in one piece of code.
const METHODS_MAX: usize = 4096;
/// Maximum number of bytes of the methods of one piece of code.
const BYTES_MAX: usize = 8 << 20;

/// Maximum number of bytes of stubs.
const STUBS_LEN_MAX: u64 = 256 << 10;

/// A method, and a position in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JavaPosition<'c> {
    /// The method. `None` if it could not be read.
    pub method: Option<&'c JavaMethod>,
    /// The bytecode. `None` if it is unknown.
    pub bci: Option<u32>,
}

impl JavaPosition<'_> {
    /// Returns the line, 0 if it is unknown.
    pub fn line(&self) -> u32 {
        self.method.zip(self.bci).map_or(0, |(method, bci)| method.line_at(bci))
    }
}

/// A compiled method with all methods that are inlined into it. Addresses in it need no further
/// read of the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompiledCode {
    /// The blob.
    pub blob: CodeBlob,
    /// The compilation.
    pub identity: CompiledIdentity,
    /// Offsets in the code, sorted, and the scope of each.
    positions: Vec<(u32, Option<u32>)>,
    scopes: Vec<InlineScope>,
    /// The methods: first the one that was compiled.
    methods: Vec<Option<JavaMethod>>,
    /// Offsets in the code of the stubs of calls, sorted.
    calls: Vec<u32>,
}

/// A position in a method, and the position of its caller if it is inlined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct InlineScope {
    /// The index among the methods.
    method: u32,
    bci: Option<u32>,
    caller: Option<u32>,
}

impl CompiledCode {
    /// Returns the methods that an address belongs to, innermost first.
    ///
    /// The address of a return is one byte before it. Compilers record positions only of calls and
    /// of places where a thread may stop. Other addresses get the next one.
    pub fn at(&self, avma: u64) -> Vec<JavaPosition<'_>> {
        let position = |method: u32, bci| JavaPosition {
            method: self.methods.get(method as usize).and_then(Option::as_ref),
            bci,
        };
        // A frame that is to become interpreted does not return to where it was called from.
        let is_deopt =
            [avma, avma.wrapping_add(1)].iter().any(|it| self.identity.is_deopt_handler(*it));
        let offset = avma.checked_sub(self.blob.code.start).filter(|_| !is_deopt);
        let offset = offset.and_then(|offset| u32::try_from(offset).ok());
        let found = offset.and_then(|offset| {
            let index = self.positions.partition_point(|(at, _)| *at < offset);
            self.positions.get(index)?.1
        });
        let mut chain = Vec::new();
        let mut next = found;
        while let Some(scope) = next.and_then(|index| self.scopes.get(index as usize)) {
            chain.push(position(scope.method, scope.bci));
            next = scope.caller;
        }
        if chain.is_empty() {
            chain.push(position(0, None));
        }
        chain
    }

    /// Returns whether an address is in a stub of a call, which is no part of the method.
    pub fn is_call(&self, avma: u64) -> bool {
        let offset = avma.checked_sub(self.blob.code.start).and_then(|it| u32::try_from(it).ok());
        offset.is_some_and(|offset| {
            let index = self.calls.partition_point(|start| *start <= offset);
            let start = index.checked_sub(1).and_then(|index| self.calls.get(index));
            start.is_some_and(|start| offset - start < CALL_STUB_LEN as u32)
        })
    }

    /// Returns the bytes of memory that the code takes.
    pub fn bytes(&self) -> usize {
        let methods: usize = self.methods.iter().flatten().map(JavaMethod::bytes).sum();
        let positions = self.positions.len() * size_of::<(u32, Option<u32>)>();
        let calls = self.calls.len() * size_of::<u32>();
        size_of::<Self>()
            + methods
            + positions
            + calls
            + self.scopes.len() * size_of::<InlineScope>()
    }

    /// Reads the compiled method in a blob.
    pub(super) fn read(
        blob: &CodeBlob,
        layout: &MachineLayout,
        methods: MethodReader<'_>,
    ) -> Result<Self, Gone> {
        let pages = methods.pages;
        let identity = blob.compiled.ok_or(Gone::OtherType)?;
        let ranges = DebugRanges::read(&layout.compiled.debug, blob.start, pages)?;
        let positions = ranges.positions(layout, pages)?;
        let mut scopes = ScopeReader {
            bytes: ranges.bytes(&ranges.scopes, SCOPES_LEN_MAX, pages)?,
            format: methods.format,
            known: HashMap::new(),
            scopes: Vec::new(),
            depths: Vec::new(),
            // The method itself comes first.
            methods: vec![None],
            indices: HashMap::new(),
        };
        let positions: Vec<(u32, Option<u32>)> =
            positions.into_iter().map(|(at, scope)| (at, scopes.scope(scope))).collect();
        let structure = |index: Option<u32>| {
            let Some(index) = index else { return Some(identity.method) };
            let at = ranges.methods.start.checked_add(u64::from(index).checked_sub(1)? * 8)?;
            pages.pointer(at).filter(|_| at < ranges.methods.end)
        };
        let mut bytes = 0;
        let read = |index: &Option<u32>| {
            let method = methods.method(structure(*index)?).ok();
            bytes += method.as_ref().map_or(0, JavaMethod::bytes);
            method.filter(|_| bytes <= BYTES_MAX)
        };
        Ok(Self {
            blob: blob.clone(),
            identity,
            positions,
            scopes: scopes.scopes,
            methods: scopes.methods.iter().map(read).collect(),
            calls: calls(blob, layout, pages).unwrap_or_default(),
        })
    }
}

/// Returns the offsets of the stubs of calls in the code of a blob.
fn calls(blob: &CodeBlob, layout: &MachineLayout, pages: &TargetPages<'_>) -> Option<Vec<u32>> {
    let start = blob.start.checked_add(layout.compiled.stubs?.count(pages, blob.start)?)?;
    let first = offset_in(&blob.code, start)?;
    let len = (blob.code.end - start).min(STUBS_LEN_MAX) as usize;
    Some(calls_in(&pages.bytes(start, len)?, first))
}

/// Returns the offsets of the stubs of calls in bytes that begin at an offset.
fn calls_in(bytes: &[u8], first: u32) -> Vec<u32> {
    let starts = bytes.windows(CALL_STUB_LEN).enumerate().filter(|(_, some)| is_call_stub(some));
    starts.map(|(at, _)| first.saturating_add(at as u32)).collect()
}

/// Where the debug information of compiled code is.
struct DebugRanges {
    positions: Range<u64>,
    scopes: Range<u64>,
    methods: Range<u64>,
}

impl DebugRanges {
    fn read(layout: &DebugLayout, start: u64, pages: &TargetPages<'_>) -> Result<Self, Gone> {
        Self::find(layout, start, pages).ok_or(Gone::Unreadable)
    }

    fn find(layout: &DebugLayout, start: u64, pages: &TargetPages<'_>) -> Option<Self> {
        match *layout {
            DebugLayout::Inside { methods, scopes, positions, positions_end } => {
                let at =
                    |field: super::tables::Field| start.checked_add(field.count(pages, start)?);
                let (scopes, positions) = (scopes.resolve(pages, start)?, at(positions)?);
                Some(Self {
                    positions: positions..at(positions_end)?,
                    scopes: scopes..positions,
                    methods: at(methods)?..scopes,
                })
            }
            DebugLayout::Outside {
                data,
                data_len,
                positions,
                scopes,
                mutable,
                mutable_len,
                relocation_len,
            } => {
                let data = data.pointer(pages, start)?;
                let at = |field: super::tables::Field| data.checked_add(field.count(pages, start)?);
                let mutable = mutable.pointer(pages, start)?;
                let behind =
                    |field: super::tables::Field| mutable.checked_add(field.count(pages, start)?);
                Some(Self {
                    positions: at(positions)?..at(scopes)?,
                    scopes: at(scopes)?..at(data_len)?,
                    methods: behind(relocation_len)?..behind(mutable_len)?,
                })
            }
        }
    }

    fn bytes(
        &self,
        range: &Range<u64>,
        max: u64,
        pages: &TargetPages<'_>,
    ) -> Result<Vec<u8>, Gone> {
        let len = range.end.checked_sub(range.start).filter(|len| *len <= max);
        pages.bytes(range.start, len.ok_or(Gone::OtherType)? as usize).ok_or(Gone::Unreadable)
    }

    /// Returns offsets in the code and offsets of their scopes.
    fn positions(
        &self,
        layout: &MachineLayout,
        pages: &TargetPages<'_>,
    ) -> Result<Vec<(u32, u32)>, Gone> {
        let layout = &layout.compiled;
        let len = layout.position_len;
        let count = self.positions.end.checked_sub(self.positions.start).ok_or(Gone::OtherType)?;
        let count = Some(count / len).filter(|it| *it <= POSITIONS_MAX).ok_or(Gone::OtherType)?;
        let mut found: Vec<(u32, u32)> = Vec::new();
        for index in 0..count {
            let at = self.positions.start.saturating_add(index * len);
            let pc = layout.position_pc.read(pages, at).ok_or(Gone::Unreadable)?;
            let scope = layout.position_scope.read(pages, at).ok_or(Gone::Unreadable)?;
            // The first and the last one are no positions.
            if let (Ok(pc), Ok(scope)) = (u32::try_from(pc as i64), u32::try_from(scope as i64)) {
                found.push((pc, scope));
            }
        }
        if !found.is_sorted_by_key(|(pc, _)| *pc) {
            return Err(Gone::OtherType);
        }
        Ok(found)
    }
}

/// Decodes scopes, each once.
struct ScopeReader {
    bytes: Vec<u8>,
    format: super::numbers::NumberFormat,
    /// Indices of scopes by their offsets.
    known: HashMap<u32, Option<u32>>,
    scopes: Vec<InlineScope>,
    /// The number of methods from each scope to the compiled one.
    depths: Vec<usize>,
    /// The machine's indices of methods; `None` for the method that was compiled.
    methods: Vec<Option<u32>>,
    /// The indices among these.
    indices: HashMap<u32, u32>,
}

impl ScopeReader {
    /// Returns the index of the scope at this offset. `None` if there is none.
    fn scope(&mut self, offset: u32) -> Option<u32> {
        let found = self.decode(offset);
        if offset != 0 {
            self.known.entry(offset).or_insert(found);
        }
        found
    }

    fn decode(&mut self, offset: u32) -> Option<u32> {
        // Innermost first.
        let mut chain: Vec<(u32, u32, Option<u32>)> = Vec::new();
        let mut next = offset;
        let mut caller = None;
        while next != 0 {
            if let Some(known) = self.known.get(&next) {
                caller = Some((*known)?);
                break;
            }
            let bytes = self.bytes.get(next as usize..)?;
            let mut reader = NumberReader::of(bytes, self.format);
            let (parent, method, bci) = (reader.number()?, reader.number()?, reader.number()?);
            if parent >= next || method == 0 || chain.len() >= DEPTH_MAX {
                return None;
            }
            chain.push((next, method, bci.checked_sub(1)));
            next = parent;
        }
        let outer = caller.and_then(|index: u32| self.depths.get(index as usize));
        let outer = outer.copied().unwrap_or(0);
        if outer + chain.len() > DEPTH_MAX {
            return None;
        }
        for (depth, (at, method, bci)) in (outer + 1..).zip(chain.into_iter().rev()) {
            let method = self.method(method)?;
            let index = self.scopes.len() as u32;
            self.scopes.push(InlineScope { method, bci, caller });
            self.depths.push(depth);
            self.known.insert(at, Some(index));
            caller = Some(index);
        }
        caller
    }

    /// Returns the index of a method, given by the machine's index.
    fn method(&mut self, number: u32) -> Option<u32> {
        if let Some(known) = self.indices.get(&number) {
            return Some(*known);
        }
        let index = self.methods.len();
        if index >= METHODS_MAX {
            return None;
        }
        self.methods.push(Some(number));
        self.indices.insert(number, index as u32);
        Some(index as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bytes of a number.
    fn number(value: u32) -> Vec<u8> {
        match value.checked_sub(192) {
            None => vec![value as u8],
            Some(rest) => vec![192 + (rest % 64) as u8, (rest / 64) as u8],
        }
    }

    #[test]
    fn methods_that_are_inlined_too_deep_are_none() {
        let (mut bytes, mut offsets) = (vec![0], vec![0]);
        for _ in 0..2 * DEPTH_MAX {
            let parent = offsets[offsets.len() - 1];
            offsets.push(bytes.len() as u32);
            bytes.extend([parent, 1, 1].into_iter().flat_map(number));
        }
        let mut reader = ScopeReader {
            bytes,
            format: crate::runtime::java::numbers::NumberFormat::Any,
            known: HashMap::new(),
            scopes: Vec::new(),
            depths: Vec::new(),
            methods: Vec::new(),
            indices: HashMap::new(),
        };
        let found = offsets[1..].iter().map(|offset| reader.scope(*offset).is_some());
        assert_eq!(found.filter(|it| *it).count(), DEPTH_MAX);
        assert_eq!(reader.scopes.len(), DEPTH_MAX);
    }

    #[test]
    fn stubs_of_calls_are_found_by_their_code() {
        let mut stub = vec![0x48, 0xbb];
        stub.extend([0x11; 8]);
        stub.extend([0xe9, 1, 2, 3, 4]);
        // Others of its registers, and no jump behind it.
        let other = [&[0x48, 0xb8][..], &stub[2..]].concat();
        let alone = [&stub[..10], &[0xe8, 1, 2, 3, 4]].concat();
        let code = [&[0x90; 3][..], &stub, &other, &stub, &alone, &stub[..14]].concat();
        assert_eq!(calls_in(&code, 100), [103, 133]);
        assert!(calls_in(&[], 100).is_empty());
    }
}
