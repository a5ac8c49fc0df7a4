//! The functions that thaw frames of virtual threads, and those to which thawed frames return.
//!
//! The frame that entered the virtual thread is above them. It begins where the thread says, in
//! memory that is no stack, but all along the frame pointer is that frame's: it made the call, or
//! the last thawed frame had saved it.

use std::collections::BTreeMap;

use traceprof_abi::unwind::Rule;
use traceprof_abi::unwind::rule::{fp_op, op};

use super::blob::{BlobKind, CodeBlob};
use super::follow::Followed;

/// `mov rsp, [r15 + offset]`: how the functions begin to which thawed frames return. The offset is
/// where a thread has the frame that entered its virtual thread.
const BARRIER: [u8; 3] = [0x49, 0x8b, 0xa7];
/// `mov [r15 + offset], rsp`: how that frame is made.
const ENTER: [u8; 3] = [0x49, 0x89, 0xa7];
/// Maximum number of different offsets in [`ENTER`].
const ENTERED_MAX: usize = 64;
/// Length of either instruction: an offset of four bytes follows.
const MOVE_LEN: usize = 7;
/// `pop rbp; ret`: the end of a function that has thawed a frame, which then is at the stack
/// pointer.
const RETURN: [u8; 2] = [0x5d, 0xc3];
/// The rules of these two instructions.
const RETURN_RULES: [Rule; 2] = [
    Rule { op: op::SP, fp_op: fp_op::AT_CFA, fp_off: -2, cfa_off: 16 },
    Rule { cfa_off: 8, ..Rule::plain(op::SP) },
];

/// Native methods that store the stack pointer in the thread, by the offset there. One of them
/// enters virtual threads.
#[derive(Debug, Default, Hash)]
pub(super) struct EnteredThreads(BTreeMap<[u8; 4], EnteredThread>);

/// A native method that may enter virtual threads.
#[derive(Debug, Clone, Copy, Hash)]
struct EnteredThread {
    /// An address in its body.
    pc: u64,
    /// The size of its frame.
    words: i16,
}

impl EnteredThread {
    fn of(blob: &CodeBlob) -> Option<Self> {
        // Frames are found by the byte before the address to which they return.
        let pc = blob.frame_complete?.checked_add(1)?;
        Some(Self { pc, words: i16::try_from(blob.frame_words).ok()? })
    }
}

impl EnteredThreads {
    /// Keeps a native method that may be the one that enters virtual threads. There are two offsets
    /// at most: the other one is that of the last frame of Java.
    pub(super) fn note(&mut self, blob: &CodeBlob, bytes: &[u8]) {
        if blob.kind != BlobKind::NativeWrapper {
            return;
        }
        for (_, offset) in moves(bytes, ENTER) {
            if let Some(entered) = EnteredThread::of(blob)
                && self.0.len() < ENTERED_MAX
            {
                self.0.entry(offset).or_insert(entered);
            }
        }
    }

    /// Returns the number of different offsets.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds the rules of the functions to which thawed frames of virtual threads return.
    pub(super) fn add_rules(&self, followed: &mut Followed, blob: &CodeBlob, bytes: &[u8]) {
        for (at, offset) in moves(bytes, BARRIER) {
            let barrier = blob.code.start + at as u64;
            let Some(EnteredThread { pc, words }) = self.0.get(&offset) else { continue };
            let distance = i32::try_from(pc.wrapping_sub(barrier) as i64);
            if let (Ok(distance), Some(before)) = (distance, (at as u32).checked_sub(1)) {
                let rule = Rule { fp_op: fp_op::AT_FP, ..Rule::plain(op::RETURN_BARRIER) };
                // Frames are found by the byte before the address to which they return.
                followed.insert_byte(before, Rule { fp_off: *words, cfa_off: distance, ..rule });
            }
        }
        let offsets = moves(bytes, BARRIER).map(|(_, offset)| offset);
        if let Some(EnteredThread { pc, words }) = offsets.filter_map(|it| self.0.get(&it)).next() {
            let entered = pc.wrapping_sub(blob.code.start) as i64;
            add_thaw_rules(followed, bytes, entered, *words);
        }
    }
}

/// Returns the places of these instructions in code, and their offsets.
fn moves(bytes: &[u8], opcode: [u8; 3]) -> impl Iterator<Item = (usize, [u8; 4])> {
    bytes.windows(MOVE_LEN).enumerate().filter_map(move |(at, bytes)| {
        let (begin, offset) = bytes.split_first_chunk::<3>()?;
        Some((at, *offset.first_chunk()?)).filter(|_| *begin == opcode)
    })
}

/// Whether thawed frames of virtual threads return to functions of this blob.
pub(super) fn has_barriers(blob: &CodeBlob) -> bool {
    blob.kind == BlobKind::Stub && blob.name.contains("ontinuation")
}

/// Gives rules to the instructions in the middle of the functions, and to their ends. They lead to
/// the frame of the code at this offset, which may be outside, and which has this many words.
fn add_thaw_rules(followed: &mut Followed, bytes: &[u8], entered: i64, words: i16) {
    let mut rows: Vec<(u32, Rule)> = Vec::with_capacity(followed.rows.len());
    let mut ends = followed.rows.iter().skip(1).map(|(end, _)| *end).chain([bytes.len() as u32]);
    for (start, rule) in &followed.rows {
        let end = ends.next().unwrap_or(*start);
        if *rule != Rule::BAD {
            rows.push((*start, *rule));
            continue;
        }
        // The address that leads to the frame is relative to the instruction, so each byte has a
        // rule of its own.
        for at in *start..end {
            let distance = i32::try_from(entered - i64::from(at)).ok();
            let code = bytes.get(at as usize..).unwrap_or_default();
            let rule = match distance {
                _ if code.starts_with(&RETURN) => RETURN_RULES[0],
                _ if code.first() == Some(&RETURN[1]) => RETURN_RULES[1],
                Some(cfa_off) => {
                    Rule { op: op::RETURN_BARRIER, fp_op: fp_op::AT_FP, fp_off: words, cfa_off }
                }
                None => Rule::BAD,
            };
            rows.push((at, rule));
        }
    }
    followed.rows = rows;
}
