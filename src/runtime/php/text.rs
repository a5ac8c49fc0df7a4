//! The interpreter's strings.

use traceprof_abi::runtime::php::{TEXT_HASH, TEXT_LENGTH, TEXT_START, TextHash};

use crate::runtime::memory::{MemoryPiece, TargetMemory};
use crate::text::printable;

/// Number of bytes of the first read. Most names end in it.
const FIRST: usize = 128;
/// Maximum length of a name: the hash is that of all its bytes.
const LENGTH_MAX: u64 = 1 << 16;

/// Reads a string that has the hash of its bytes, as it can be printed. `None` if there is none.
///
/// A byte 0 ends what is shown: the names of classes without a name have more behind it.
pub(super) fn read(memory: &dyn TargetMemory, avma: u64) -> Option<String> {
    if avma == 0 || !avma.is_multiple_of(8) {
        return None;
    }
    let mut head = [0; FIRST];
    let got = memory.read(avma, &mut head);
    let head = MemoryPiece { avma, bytes: head.get(..got)? };
    let hash = head.word(usize::from(TEXT_HASH))?;
    let len = head.word(usize::from(TEXT_LENGTH)).filter(|len| *len <= LENGTH_MAX)? as usize;
    let start = usize::from(TEXT_START);
    let mut bytes = vec![0; len];
    match head.bytes.get(start..start + len) {
        Some(all) => bytes.copy_from_slice(all),
        None => {
            let got = memory.read(avma.checked_add(start as u64)?, &mut bytes);
            (got == len).then_some(())?;
        }
    }
    let found = bytes.iter().fold(TextHash::EMPTY, |hash, byte| hash.with(*byte)).finish();
    if hash != 0 && hash != found {
        return None;
    }
    let shown = bytes.split(|byte| *byte == 0).next()?;
    Some(printable(&String::from_utf8_lossy(shown)))
}
