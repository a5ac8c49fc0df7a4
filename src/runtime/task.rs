//! Names of the tasks that threads run: what a capture has written, as text.

use traceprof_abi::runtime::{RuntimeBlock, TASK_CUT, TASK_NUMBER, TASK_WORDS, capture_task};
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
) -> Option<String> {
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

/// Returns a name from the bytes that a capture has written. `None` if they are none.
pub fn task_name(bytes: &[u8]) -> Option<String> {
    let (kind, name) = bytes.split_first_chunk::<WORD>()?;
    let kind = u64::from_le_bytes(*kind);
    if kind == TASK_NUMBER {
        return Some(format!("Task-{}", u64::from_le_bytes(*name.first_chunk()?)));
    }
    let width = usize::try_from(kind & !TASK_CUT).ok().filter(|it| matches!(it, 1 | 2 | 4))?;
    let mut text: String = name
        .chunks_exact(width)
        .map(|unit| {
            let mut number = [0; 4];
            number[..width].copy_from_slice(unit);
            char::from_u32(u32::from_le_bytes(number)).unwrap_or(char::REPLACEMENT_CHARACTER)
        })
        .collect();
    if kind & TASK_CUT != 0 {
        text.push('…');
    }
    (!text.is_empty()).then(|| printable(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(kind: u64, bytes: &[u8]) -> Option<String> {
        task_name(&[&kind.to_le_bytes(), bytes].concat())
    }

    #[test]
    fn names_are_numbers_or_characters() {
        let named = |text: &str| Some(text.to_owned());
        assert_eq!(name(0, &7u64.to_le_bytes()), named("Task-7"));
        assert_eq!(name(1, b"caf\xe9"), named("café"));
        assert_eq!(name(2, &[0x61, 0, 0xac, 0x20]), named("a€"));
        assert_eq!(name(4, &[0x61, 0, 0, 0, 0x42, 0xf6, 1, 0]), named("a🙂"));
        assert_eq!(name(TASK_CUT | 1, b"long"), named("long…"));
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
