//! The offsets that the interpreter itself publishes for debuggers, from 3.13 on, at the start of
//! `_PyRuntime`.
//!
//! The numbers stand in words, in blocks for one structure each. The blocks differ between minor
//! versions, and patch releases keep them.
//!
//! # Invariants
//! - Offsets that were read are within the size that is published with them, and aligned.
//! - Code objects are as in the known table: the field that makes cookies unique is not published.

use super::lock::LockPlace;
use super::offsets::Structures;
use crate::runtime::memory::{self, TargetMemory};

const MAGIC: u64 = u64::from_le_bytes(*b"xdebugpy");
/// Number of words that are read: up to the block of strings.
const WORDS: usize = 88;
/// Maximum size of a structure in bytes.
const SIZE_MAX: u64 = 1 << 24;
/// Size of a thread's state that is at least there.
const STATE_MAX: u64 = 1 << 16;

/// The reason why published offsets are not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotPublished {
    /// The memory is unreadable.
    Unreadable,
    /// There are no offsets, or they are those of another version.
    OtherVersion,
    /// The build has no global lock.
    FreeThreaded,
    /// The structures are not those of the known release.
    OtherStructures,
}

/// The first words of the blocks.
struct Blocks {
    runtime: usize,
    interpreter: usize,
    /// The word of the interpreter's block with the offset of the pointer to its lock.
    lock: usize,
    state: usize,
    frame: usize,
    code: usize,
    object: usize,
    kind: usize,
    bytes: usize,
    text: usize,
}

impl Blocks {
    fn of(minor: u8) -> Option<Self> {
        /// Numbers of words of all blocks up to that of strings.
        fn starts<const N: usize>(lens: [usize; N]) -> [usize; N] {
            let mut at = 3;
            lens.map(|len| {
                let start = at;
                at += len;
                start
            })
        }
        Some(match minor {
            13 => {
                let [runtime, interpreter, state, frame, code, object, kind, .., bytes, text] =
                    starts([3, 13, 9, 6, 10, 2, 4, 3, 3, 3, 2, 3, 3, 4]);
                let lock = 8;
                Self { runtime, interpreter, lock, state, frame, code, object, kind, bytes, text }
            }
            // 3.14 has sets as well.
            14 => {
                let [runtime, interpreter, state, frame, code, object, kind, .., bytes, text] =
                    starts([3, 16, 9, 8, 11, 2, 4, 3, 3, 4, 3, 2, 3, 3, 4]);
                let lock = 9;
                Self { runtime, interpreter, lock, state, frame, code, object, kind, bytes, text }
            }
            _ => return None,
        })
    }
}

/// Returns the structures with the offsets that the interpreter publishes. `number` is its version.
pub(super) fn published(
    known: Structures,
    (minor, number): (u8, u32),
    runtime: u64,
    memory: &dyn TargetMemory,
) -> Result<Structures, NotPublished> {
    let Some(blocks) = Blocks::of(minor) else { return Ok(known) };
    let bytes: [u8; WORDS * 8] = memory::array(memory, runtime).ok_or(NotPublished::Unreadable)?;
    let (words, _) = bytes.as_chunks::<8>();
    let word = |at: usize| words.get(at).map_or(0, |word| u64::from_le_bytes(*word));
    if word(0) != MAGIC || word(1) != u64::from(number) {
        return Err(NotPublished::OtherVersion);
    }
    if word(2) != 0 {
        return Err(NotPublished::FreeThreaded);
    }
    read(known, &blocks, &word).ok_or(NotPublished::OtherStructures)
}

fn read(known: Structures, blocks: &Blocks, word: &dyn Fn(usize) -> u64) -> Option<Structures> {
    // A pointer field, within the size in the first word of its block.
    let field = |block: usize, index: usize, size_max: u64| {
        let (size, offset) = (word(block), word(block + index));
        let fits = size <= size_max && offset.checked_add(8)? <= size && offset % 8 == 0;
        fits.then_some(offset)
    };
    let short = |block, index| u16::try_from(field(block, index, STATE_MAX)?).ok();
    let mut here = known;
    let threads = &mut here.threads;
    threads.interpreters = field(blocks.runtime, 2, SIZE_MAX)?;
    threads.interpreter_next = field(blocks.interpreter, 2, SIZE_MAX)?;
    threads.interpreter_threads = field(blocks.interpreter, 3, SIZE_MAX)?;
    // Two pointers are between them. Without it, threads have no names.
    threads.modules = field(blocks.interpreter, blocks.lock - 3, SIZE_MAX).unwrap_or(0);
    threads.lock = LockPlace::Interpreter(field(blocks.interpreter, blocks.lock, SIZE_MAX)?);
    threads.state_next = field(blocks.state, 2, STATE_MAX)?;
    threads.state_interpreter = field(blocks.state, 3, STATE_MAX)?;
    threads.state_pointer = field(blocks.state, 5, STATE_MAX)?;
    threads.state_tid = Some(field(blocks.state, 6, STATE_MAX)?);
    let layout = &mut here.layout;
    layout.state_frame = short(blocks.state, 4)?;
    layout.frame_previous = short(blocks.frame, 1)?;
    layout.frame_code = short(blocks.frame, 2)?;
    layout.frame_instruction = short(blocks.frame, 3)?;
    // The owner is a byte.
    let owner = word(blocks.frame + 5);
    layout.frame_owner = u16::try_from(owner).ok().filter(|_| owner < word(blocks.frame))?;
    let code = &known.code;
    let expected = [
        (blocks.code + 1, code.file),
        (blocks.code + 3, code.name),
        (blocks.code + 4, code.lines),
        (blocks.code + 5, code.first_line),
        (blocks.code + 9, usize::from(known.layout.code_start)),
        (blocks.object + 1, 8),
        (blocks.kind + 1, 24),
        (blocks.bytes + 1, 16),
        (blocks.bytes + 2, 32),
        (blocks.text + 1, 32),
        (blocks.text + 2, 16),
        (blocks.text + 3, known.text.ascii),
    ];
    expected.iter().all(|(at, offset)| word(*at) == *offset as u64).then_some(here)
}
