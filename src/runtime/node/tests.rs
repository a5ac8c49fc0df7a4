//! Threads in memory that is made by hand.

use std::collections::HashSet;

use super::roles::ThreadRole;
use super::*;
use crate::runtime::memory::read_made;
use crate::runtime::pthreads::Pthreads;
use crate::runtime::{NamesThreads, TargetMemory, ThreadNameMemo, WantedNames};

const START: u64 = 0x7f12_3400_0000;
const HEADS: [u64; 2] = [START, START + 0x10];
const POOL: u64 = 0x40_1000;
const WORKER: u64 = 0x40_2000;

struct Made(Vec<u8>);

impl TargetMemory for Made {
    fn read(&self, avma: u64, into: &mut [u8]) -> usize {
        read_made((START, &self.0), avma, into)
    }
}

impl Made {
    fn put(&mut self, avma: u64, words: &[u64]) {
        for (index, word) in words.iter().enumerate() {
            let at = (avma - START) as usize + index * 8;
            self.0[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
    }

    /// Makes two lists: one with the first thread, and one with these functions and arguments,
    /// which the threads from 101 on run. The threads are [`thread`].
    fn of(threads: &[(u64, u64)]) -> Self {
        let mut made = Self(vec![0; 0x8000]);
        made.put(HEADS[1], &[thread(99), 0]);
        made.put(thread(99), &[HEADS[1], 0, 99, 0, 0]);
        let mut next = HEADS[0];
        for (tid, (start, argument)) in (101..).zip(threads) {
            made.put(thread(tid), &[next, 0, tid, *start, *argument]);
            next = thread(tid);
        }
        made.put(HEADS[0], &[next]);
        made
    }

    fn names(&self) -> Vec<(u32, String)> {
        let exports = NodeExports {
            starts: vec![
                (POOL.wrapping_sub(START), ThreadRole::Named("libuv pool")),
                (WORKER.wrapping_sub(START), ThreadRole::Worker),
            ],
        };
        let node = NodeThreads::of(&exports, START, Some(Pthreads::for_test(HEADS)));
        let tids: HashSet<u32> = (99..=103).collect();
        let wanted = WantedNames { tids: &tids, first: 99 };
        let mut names = node.thread_names(&mut ThreadNameMemo::default(), self, wanted);
        names.sort();
        names
    }
}

fn thread(tid: u64) -> u64 {
    START + 0x4000 + (tid - 99) * 0x100
}

/// Returns an object of the worker with this thread, whose words these follow.
fn worker(tid: u64, words: &[u64]) -> Vec<u64> {
    [&[1, 2, thread(tid), 0xffff_ff01, 0, 0, 0, 0][..], words].concat()
}

fn check(threads: &[(u64, u64)], objects: &[(u64, Vec<u64>)], expected: &[(u32, &str)]) {
    let mut made = Made::of(threads);
    for (avma, words) in objects {
        made.put(*avma, words);
    }
    let expected: Vec<_> = expected.iter().map(|(tid, name)| (*tid, (*name).to_owned())).collect();
    assert_eq!(made.names(), expected);
}

#[test]
fn a_thread_has_the_name_of_what_it_runs() {
    check(&[(POOL, 0), (POOL + 1, 0), (0, 0)], &[], &[(99, "main"), (101, "libuv pool")]);
    // A worker whose object is not there, or another one.
    check(&[(WORKER, 0), (WORKER, START)], &[], &[(99, "main"), (101, "worker"), (102, "worker")]);
}

#[test]
fn a_worker_has_its_number_and_name() {
    let object = START + 0x1000;
    let named = |words: &[u64], name: &str| {
        let expected = [(99, "main"), (101, "libuv pool"), (102, name)];
        check(&[(POOL, 0), (WORKER, object)], &[(object, worker(102, words))], &expected);
    };
    let stack = thread(102) - 0x1000;
    let inside = object + 12 * 8;
    named(&[7, stack, inside, 0], "worker 7");
    named(&[7, stack, inside, 2, 0x6261], "worker 7 (ab)");
    // Newer versions name all of them, and the program's name may end in spaces.
    let known = b"WorkerThread\0\0\0\0".as_chunks::<8>().0;
    let [first, second] = [known[0], known[1]].map(u64::from_le_bytes);
    named(&[7, stack, inside, 12, first, second], "worker 7");
    named(&[7, stack, inside, 4, 0x2020_6261], "worker 7 (ab)");
    // A name elsewhere.
    let mut words = [7, stack, object + 0x100, 20].to_vec();
    words.resize(0x100 / 8 - 8, 0);
    words.extend([0x6161_6161_6161_6161; 3]);
    named(&words, "worker 7 (aaaaaaaaaaaaaaaaaaaa)");
    // No number, no stack, two of both, a string that cannot be.
    named(&[0, stack, inside, 0], "worker");
    named(&[1 << 32, stack, inside, 0], "worker");
    named(&[7, thread(102), inside, 0], "worker");
    named(&[7, stack, 7, stack], "worker");
    named(&[7, stack, inside, 16, 0x6261], "worker 7");
    named(&[7, stack, 5, 4], "worker 7");
}

#[test]
fn damaged_lists_end() {
    let mut made = Made::of(&[(POOL, 0), (POOL, 0)]);
    // The list has a circle without its head, or leads out of the memory.
    for next in [thread(102), START + 0x7fff, 0, u64::MAX] {
        made.put(thread(101), &[next]);
        let names = made.names();
        assert_eq!(
            names[..2],
            [(99, "main".to_owned()), (101, "libuv pool".to_owned())],
            "{next:#x}"
        );
    }
    made.put(HEADS[0], &[u64::MAX]);
    assert_eq!(made.names().len(), 1);
}
