//! The kernel's frames of sleeping threads, from `/proc/PID/task/TID/stack`.
//!
//! The kernel names the functions there and hides their addresses, so a frame word is a number that
//! stands for a name.
//!
//! # Invariants
//! - A number stands for one function, in all programs of all recordings of this process.
//! - A stack is read once for each sleep that the scan finds: a call on the same descriptor may
//!   wait in another place each time.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use traceprof_abi::runtime::word::{kernel_function, split_kernel};

use crate::proc;
use crate::record::batch::kernel_functions::{FoundFunction, NewKernelFunctions};

/// The number of the next function.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Reads the kernel's frames of one process's threads.
pub(super) struct KernelFrameReader {
    pid: i32,
    /// Whether the frames are wanted, and this user may read them.
    pub(super) is_on: bool,
    words: HashMap<FoundFunction, u64>,
    /// The functions that no batch has yet.
    new: NewKernelFunctions,
}

impl KernelFrameReader {
    /// Makes a reader that reads nothing unless `is_wanted`.
    pub(super) fn new(pid: i32, is_wanted: bool) -> Self {
        let is_on = is_wanted && proc::kernel_stack(pid, pid).is_ok();
        Self { pid, is_on, words: HashMap::new(), new: Vec::new() }
    }

    /// Returns the frame words of a thread that sleeps, innermost first.
    ///
    /// They are wrong if the thread ran meanwhile.
    pub(super) fn read(&mut self, tid: i32) -> Vec<u64> {
        if !self.is_on {
            return Vec::new();
        }
        let lines = proc::kernel_stack(self.pid, tid).unwrap_or_default();
        lines.iter().filter_map(|line| Some(self.word(parse(line)?))).collect()
    }

    /// Returns the frames at a known location with those of the kernel read again, since a thread
    /// that sleeps again in the same call may sleep elsewhere in the kernel.
    ///
    /// `None` if they are the same. A location without a stack stays so.
    pub(super) fn read_again(&mut self, tid: i32, frames: &[u64]) -> Option<Arc<[u64]>> {
        if !self.is_on || frames.is_empty() {
            return None;
        }
        let (before, others) = split_kernel(frames);
        let now = self.read(tid);
        (now != before).then(|| [&now, others].concat().into())
    }

    /// Returns the functions that no batch has yet.
    pub(super) fn take_new(&mut self) -> NewKernelFunctions {
        std::mem::take(&mut self.new)
    }

    fn word(&mut self, function: FoundFunction) -> u64 {
        if let Some(word) = self.words.get(&function) {
            return *word;
        }
        // Relaxed: only the numbers must differ.
        let word = kernel_function(NEXT.fetch_add(1, Ordering::Relaxed));
        self.new.push((word, function.clone()));
        self.words.insert(function, word);
        word
    }
}

/// Parses `nft_do_chain+0x6e/0xf0 [nf_tables]`.
fn parse(line: &str) -> Option<FoundFunction> {
    let (symbol, module) = match line.trim().rsplit_once(" [") {
        Some((symbol, module)) => (symbol, module.strip_suffix(']').map(str::to_owned)),
        None => (line.trim(), None),
    };
    let name = symbol.rsplit_once("+0x").map_or(symbol, |(name, _)| name);
    // A function without a name is an address.
    let is_name = !name.is_empty() && !name.starts_with("0x");
    is_name.then(|| FoundFunction { name: name.to_owned(), module })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_name_a_function_and_its_module() {
        let check = |line: &str, expected: Option<(&str, Option<&str>)>| {
            let found = parse(line);
            let found = found.as_ref().map(|it| (it.name.as_str(), it.module.as_deref()));
            assert_eq!(found, expected, "{line}");
        };
        check("futex_wait_queue+0x6e/0xf0", Some(("futex_wait_queue", None)));
        check("f.isra.0+0x1/0x2 [nf_tables]", Some(("f.isra.0", Some("nf_tables"))));
        check("odd", Some(("odd", None)));
        check("0xffffffff81000000", None);
        check("", None);
        check("+0x1/0x2", None);
    }

    #[test]
    fn a_function_has_one_word_and_is_announced_once() {
        let own = std::process::id() as i32;
        let mut reader = KernelFrameReader { is_on: true, ..KernelFrameReader::new(own, false) };
        let function = |name: &str| parse(name).unwrap();
        let words = ["a", "b", "a"].map(|name| reader.word(function(name)));
        assert!(words[0] == words[2] && words[0] != words[1]);
        assert_eq!(split_kernel(&words), (&words[..], &[][..]));
        let new = reader.take_new();
        assert_eq!(new, [(words[0], function("a")), (words[1], function("b"))]);
        assert!(reader.take_new().is_empty() && reader.word(function("b")) == words[1]);
        let mut other = KernelFrameReader::new(own, false);
        assert_ne!(other.word(function("a")), words[0]);
        assert!(other.read(own).is_empty(), "not wanted");
    }

    #[test]
    fn frames_of_the_kernel_are_read_for_each_sleep() {
        let own = std::process::id() as i32;
        let read_again = |frames: &[u64], is_on| {
            KernelFrameReader { is_on, ..KernelFrameReader::new(own, false) }
                .read_again(own, frames)
        };
        let frames = [kernel_function(7), 0x5000, kernel_function(9)];
        let again = read_again(&frames, true).expect("the function does not exist");
        assert_eq!(split_kernel(&again).1, split_kernel(&frames).1);
        assert_eq!(read_again(&[], true), None, "no stack");
        assert_eq!(read_again(&frames, false), None, "not permitted");
    }
}
