//! Models of a heap of code whose tables change while a handler reads them. loom runs them over all
//! interleavings: `scripts/loom.sh`.
#![cfg(loom)]
#![allow(missing_docs, reason = "a test crate")]

mod model;

use loom::sync::Arc;
use loom::thread;
use traceprof_abi::sync::planted::Mistake;
use traceprof_abi::sync::{AtomicU32, AtomicU64, Ordering, fence};
use traceprof_abi::unwind::Rule;
use traceprof_abi::unwind::code_heap::{
    CodeHeap, CodeIdentity, CodeRows, HeapSpan, InterpreterLayout,
};
use traceprof_abi::unwind::rule::op;

const SPAN: HeapSpan = HeapSpan { low: 0x1000, high: 0x1000 + 2 * 16, shift: 4 };
const PAGE: u64 = 5 * 8;
const TABLES: [u64; 2] = [7 * 8, 13 * 8];
const WORDS: usize = 19;
const AVMA: u64 = SPAN.low + 4;

/// The words of a heap without code, and the count of handlers that read it.
struct Room {
    words: Vec<AtomicU64>,
    readers: AtomicU32,
}

impl Room {
    fn new() -> Arc<Self> {
        let words: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        CodeHeap::create(&words, 0, SPAN, InterpreterLayout::default()).unwrap();
        Arc::new(Self { words, readers: AtomicU32::new(0) })
    }

    fn heap(&self) -> CodeHeap<'_> {
        CodeHeap::at(&self.words, 0).unwrap()
    }

    /// Publishes code whose number is its length and in its rule.
    fn publish(&self, table: u64, number: i32) {
        let rule = Rule { cfa_off: number, ..Rule::plain(op::SP) };
        let identity = CodeIdentity { at: SPAN.low, value: number as u32, used_before: 0 };
        let (start, length) = (SPAN.low, number as u32);
        let code = CodeRows { start, length, identity, rows: &[(0, rule)] };
        code.store(&self.words, table).unwrap();
        self.heap().publish(0..1, table);
    }

    /// Returns the number of the code that a handler finds.
    fn read(&self) -> Option<i32> {
        let table = self.heap().table(AVMA)?;
        let number = table.rule(AVMA).cfa_off;
        let is_within = |offset: i32| table.contains(SPAN.low + offset as u64);
        assert!(is_within(number - 1) && !is_within(number), "a table of two pieces of code");
        assert_eq!(table.identity().value, number as u32);
        Some(number)
    }
}

fn a_reader_finds_no_code_or_all_of_it() {
    let room = Room::new();
    let reader = {
        let room = Arc::clone(&room);
        thread::spawn(move || assert!([None, Some(8)].contains(&room.read())))
    };
    room.heap().publish_page(0, PAGE);
    room.publish(TABLES[0], 8);
    reader.join().unwrap();
    assert_eq!(room.read(), Some(8));
}

/// The recorder replaces code, and reuses the memory of the first table when no handler reads.
fn a_reader_finds_one_piece_of_code() {
    let room = Room::new();
    room.heap().publish_page(0, PAGE);
    room.publish(TABLES[0], 8);
    let reader = {
        let room = Arc::clone(&room);
        thread::spawn(move || {
            // As a handler that claims its hazard does.
            room.readers.store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let found = room.read();
            room.readers.store(0, Ordering::Release);
            assert!([Some(8), Some(9), Some(10)].contains(&found), "{found:?}");
        })
    };
    room.publish(TABLES[1], 9);
    fence(Ordering::SeqCst);
    if room.readers.load(Ordering::Acquire) == 0 {
        room.publish(TABLES[0], 10);
    }
    reader.join().unwrap();
}

#[test]
fn publish() {
    model::check(None, &[Mistake::AllRelaxed], a_reader_finds_no_code_or_all_of_it);
}

#[test]
fn replace() {
    let mistakes = [Mistake::AllRelaxed, Mistake::NoFence];
    model::check(None, &mistakes, a_reader_finds_one_piece_of_code);
}
