//! Names of the tasks that threads run: what a capture has written, as text.

use traceprof_abi::runtime::{
    RuntimeBlock, TASK_CUT, TASK_NUMBER, TASK_VIRTUAL, TASK_WORDS, capture_task,
};
use traceprof_abi::sync::{AtomicU64, Ordering};

use super::memory::{TargetMemory, TargetWords};
use crate::text::printable;

const WORD: usize = size_of::<u64>();

/// Returns the name of the task that a thread with this thread pointer runs in one of these
/// runtimes.
///
/// The result is exact only if the thread does not run meanwhile.
pub fn running_task(
    blocks: &[RuntimeBlock],
    pointer: u64,
    memory: &dyn TargetMemory,
) -> Option<TaskName> {
    let words: [AtomicU64; TASK_WORDS] = std::array::from_fn(|_| AtomicU64::new(0));
    let capture =
        |block: &RuntimeBlock| capture_task(block, pointer, &mut TargetWords(memory), &words);
    let used = blocks.iter().filter_map(|block| capture(block).ok()).find(|used| *used > 0)?;
    // Relaxed: no other thread has the words.
    let mut words = words.iter().take(used).map(|word| word.load(Ordering::Relaxed));
    let len = usize::try_from(words.next()?).ok()?;
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    task_name(bytes.get(..len)?)
}

/// What has a name in a runtime besides a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskKind {
    /// A task of asyncio.
    Asyncio,
    /// A virtual thread of Java.
    VirtualThread,
}

/// The name of what a thread runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskName {
    /// What has the name.
    pub kind: TaskKind,
    /// The name.
    pub name: String,
}

/// Returns a name from the bytes that a capture has written. `None` if they are none.
pub fn task_name(bytes: &[u8]) -> Option<TaskName> {
    let (bits, name) = bytes.split_first_chunk::<WORD>()?;
    let bits = u64::from_le_bytes(*bits);
    let is_virtual = bits & TASK_VIRTUAL != 0;
    let kind = if is_virtual { TaskKind::VirtualThread } else { TaskKind::Asyncio };
    let number = || Some(u64::from_le_bytes(*name.first_chunk()?));
    let text = match bits & !TASK_CUT {
        TASK_NUMBER => format!("Task-{}", number()?),
        TASK_VIRTUAL => format!("virtual #{}", number()?),
        bits => {
            let width = usize::try_from(bits & !TASK_VIRTUAL).ok();
            characters(name, width.filter(|it| matches!(it, 1 | 2 | 4))?)
        }
    };
    let end = if bits & TASK_CUT != 0 { "…" } else { "" };
    (!text.is_empty()).then(|| TaskName { kind, name: printable(&format!("{text}{end}")) })
}

/// Returns the text of characters of so many bytes.
fn characters(bytes: &[u8], width: usize) -> String {
    let unit = |unit: &[u8]| {
        let mut number = [0; 4];
        number[..width].copy_from_slice(unit);
        u32::from_le_bytes(number)
    };
    let units = bytes.chunks_exact(width).map(unit);
    const OTHER: char = char::REPLACEMENT_CHARACTER;
    if width == 2 {
        // Java has two units for a character beyond the first 65,536. Python has none there.
        return char::decode_utf16(units.map(|it| it as u16))
            .map(|it| it.unwrap_or(OTHER))
            .collect();
    }
    units.map(|it| char::from_u32(it).unwrap_or(OTHER)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(kind: u64, bytes: &[u8]) -> Option<String> {
        let found = task_name(&[&kind.to_le_bytes(), bytes].concat())?;
        assert_eq!(found.kind == TaskKind::VirtualThread, kind & TASK_VIRTUAL != 0);
        Some(found.name)
    }

    #[test]
    fn names_are_numbers_or_characters() {
        let named = |text: &str| Some(text.to_owned());
        assert_eq!(name(0, &7u64.to_le_bytes()), named("Task-7"));
        assert_eq!(name(1, b"caf\xe9"), named("café"));
        assert_eq!(name(2, &[0x61, 0, 0xac, 0x20]), named("a€"));
        assert_eq!(name(4, &[0x61, 0, 0, 0, 0x42, 0xf6, 1, 0]), named("a🙂"));
        assert_eq!(name(TASK_CUT | 1, b"long"), named("long…"));
        assert_eq!(name(TASK_VIRTUAL, &31u64.to_le_bytes()), named("virtual #31"));
        assert_eq!(name(TASK_VIRTUAL | 2, &[0x3d, 0xd8, 0, 0xde]), named("😀"));
        assert_eq!(name(TASK_VIRTUAL | TASK_CUT | 1, b"worker"), named("worker…"));
        assert_eq!(name(1, b"two\nlines"), Some(printable("two\nlines")));
    }

    #[test]
    fn other_bytes_are_no_names() {
        assert_eq!(task_name(b"short"), None);
        assert_eq!(name(0, &[1, 2, 3]), None);
        assert_eq!(name(3, b"abc"), None);
        assert_eq!(name(1, b""), None);
        assert_eq!(name(u64::MAX, b"abcd"), None);
    }
}
