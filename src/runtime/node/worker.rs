//! The number and the name by which a program knows a worker.
//!
//! The object of a worker has, in all versions, the worker's thread, and further on its number
//! (`threadId`), the end of its stack, and its name. The offsets differ. The object is recognised
//! by what is in it: the number and the name are those around the only address in the worker's
//! stack.

use crate::runtime::memory::{MemoryPiece, TargetMemory};
use crate::runtime::pthreads::Pthread;
use crate::text::printable;

/// The size of the part of the object that is read, in bytes.
const READ: usize = 640;
/// Maximum distance of the number from the thread, in bytes.
const NUMBER_MAX: usize = 192;
/// Maximum size of a stack. Most have four MiB.
const STACK_MAX: u64 = 64 << 20;
/// Maximum length of a name in bytes that is shown.
const NAME_MAX: u64 = 200;
/// The length up to which a string of the library is in its own object.
const SHORT_MAX: u64 = 15;
/// The name of a worker to which the program gave none, in newer versions.
const NO_NAME: &str = "WorkerThread";

/// Returns the name of the thread of a worker, which its function has as its argument.
pub(super) fn worker_name(memory: &dyn TargetMemory, thread: &Pthread) -> String {
    let Some((number, name)) = number_and_name(memory, thread) else { return "worker".to_owned() };
    match name.filter(|name| !name.is_empty() && name != NO_NAME) {
        Some(name) => format!("worker {number} ({name})"),
        None => format!("worker {number}"),
    }
}

fn number_and_name(memory: &dyn TargetMemory, thread: &Pthread) -> Option<(u64, Option<String>)> {
    let mut bytes = [0; READ];
    let len = memory.read(thread.argument, &mut bytes);
    let object = MemoryPiece { avma: thread.argument, bytes: bytes.get(..len)? };
    let words = || (0..len / 8).map(|index| index * 8);
    // The thread, and whether it is there.
    let is_thread = |at: &usize| {
        object.word(*at) == Some(thread.avma)
            && object.word(*at + 8).is_some_and(|word| word & 0xff == 1)
    };
    let at = words().find(is_thread)?;
    let stack = thread.avma.saturating_sub(STACK_MAX)..thread.avma;
    let is_number = |it: &usize| {
        let number =
            object.word(*it).is_some_and(|number| (1..=u64::from(u32::MAX)).contains(&number));
        number && object.word(*it + 8).is_some_and(|word| stack.contains(&word))
    };
    let mut numbers =
        words().filter(|it| (at + 16..=at + NUMBER_MAX).contains(it)).filter(is_number);
    let found = numbers.next().filter(|_| numbers.next().is_none())?;
    Some((object.word(found)?, string(memory, &object, found + 16)))
}

/// Reads a string of the library for C++: its characters and their number, and the characters
/// themselves if they are few. `None` if it is none.
fn string(memory: &dyn TargetMemory, object: &MemoryPiece<'_>, at: usize) -> Option<String> {
    let (text, len) = (object.word(at)?, object.word(at + 8)?);
    let is_inside = text == object.avma.wrapping_add(at as u64 + 16);
    if is_inside && len > SHORT_MAX {
        return None;
    }
    let mut bytes = vec![0; len.min(NAME_MAX) as usize];
    let is_read = memory.read(text, &mut bytes) == bytes.len();
    is_read.then(|| printable(String::from_utf8_lossy(&bytes).trim()))
}
