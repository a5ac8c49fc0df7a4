//! When scans find that code came to its place.

use std::cell::Cell;

use super::*;

thread_local! {
    static NOW_MS: Cell<u64> = const { Cell::new(0) };
}

/// Returns the time of scans in nanoseconds. A millisecond passes with each call.
fn now_ns() -> u64 {
    NOW_MS.set(NOW_MS.get() + 1);
    NOW_MS.get() * 1_000_000
}

/// Samples in new code are unwound a moment later, by the code that is there then.
#[test]
fn code_is_not_taken_for_what_ran_before_it_came() {
    let block: Vec<u8> = (0..16).collect();
    let one_block = [&block[..], &[0xff; 24]].concat();
    // In the body, where these methods have different rules.
    let (first, second) = (LOW + CODE + COMPLETE, SECOND + CODE + COMPLETE);
    for memory in memories() {
        memory.make_heaps(&[&one_block], SHIFT);
        memory.make_method((LOW, 16), 7, (FOUR, 4));
        let mut scan = CodeScan::with_clock(now_ns);
        let before_all = now_ns();
        memory.settle(&mut scan);
        assert!(!scan.was_there(first, before_all, false), "it may have come later");
        assert!(scan.was_there(first, now_ns(), false) && !scan.was_there(second, now_ns(), false));
        // Other code in a block of the same size.
        let before = now_ns();
        memory.make_method((LOW, 16), 9, (SIX, 6));
        memory.scan(&mut scan, ScanDepth::Seals);
        assert!(!scan.was_there(first, before, false), "number 7 ran");
        assert!(scan.was_there(first, before, true), "number 7 was known");
        assert!(scan.was_there(first, now_ns(), false));
        // Code where there was none.
        let before = now_ns();
        memory.make_heaps(&[&two_blocks()], SHIFT);
        memory.make_method((SECOND, 16), 8, (FOUR, 4));
        memory.scan(&mut scan, ScanDepth::Maps);
        assert!(scan.was_there(second, before, false), "what ran came later, and this did");
        memory.settle(&mut scan);
        // Its block is freed, and used again.
        let before_end = now_ns();
        memory.use_block(SECOND, false, 1);
        memory.scan(&mut scan, ScanDepth::Seals);
        let between = now_ns();
        memory.make_method((SECOND, 16), 10, (SIX, 6));
        memory.note_change(2);
        memory.scan(&mut scan, ScanDepth::Maps);
        let there = [before_end, between].map(|at| scan.was_there(second, at, false));
        assert_eq!(there, [false, true], "number 8 ran at first");
        memory.settle(&mut scan);
        // Its block is joined with others, and cut off again in between.
        let before_end = now_ns();
        memory.make_heaps(&[&one_block], SHIFT);
        memory.scan(&mut scan, ScanDepth::Maps);
        let between = now_ns();
        memory.make_heaps(&[&two_blocks()], SHIFT);
        memory.make_method((SECOND, 16), 11, (FOUR, 4));
        memory.scan(&mut scan, ScanDepth::Maps);
        let there = [before_end, between].map(|at| scan.was_there(second, at, false));
        assert_eq!(there, [false, true], "number 10 ran at first");
        memory.settle(&mut scan);
        // A longer block in its place, within one scan.
        let before = now_ns();
        let long: Vec<u8> = (0..20).collect();
        memory.make_heaps(&[&[&block[..], &[0xff; 4], &long].concat()], SHIFT);
        memory.make_method((SECOND - (4 << SHIFT), 20), 12, (SIX, 6));
        memory.scan(&mut scan, ScanDepth::Maps);
        let third = SECOND - (4 << SHIFT) + CODE + COMPLETE;
        assert!(!scan.was_there(third, before, false), "number 11 was at a part of it");
        assert!(scan.was_there(third, now_ns(), false));
    }
}

#[test]
fn code_that_was_cut_into_parts_is_not_forgotten_by_a_scan_that_ends_between_them() {
    for memory in memories() {
        memory.make_heaps(&[&(0..32).collect::<Vec<u8>>()], SHIFT);
        memory.make_method((LOW, 32), 7, (FOUR, 4));
        let mut scan = CodeScan::with_clock(now_ns);
        memory.settle(&mut scan);
        let before = now_ns();
        let half: Vec<u8> = (0..16).collect();
        memory.make_heaps(&[&[&half[..], &half].concat()], SHIFT);
        let second = LOW + (16 << SHIFT);
        memory.make_method((LOW, 16), 8, (FOUR, 4));
        memory.make_method((second, 16), 9, (SIX, 6));
        for _ in 0..4 {
            let budget = ScanBudget { blocks: 1, ..BUDGET };
            scan.scan(&memory.machine, &memory, ScanDepth::Maps, budget);
        }
        let there = [LOW, second].map(|it| scan.was_there(it + CODE, before, false));
        assert_eq!(there, [false; 2], "number 7 ran");
        assert!(scan.was_there(second + CODE, now_ns(), false));
    }
}

#[test]
fn much_may_have_come_and_gone_between_two_scans_that_are_far_apart() {
    let Some(memory) = memories().pop() else { return };
    let block: Vec<u8> = (0..16).collect();
    memory.make_heaps(&[&[&block[..], &[0xff; 24]].concat()], SHIFT);
    memory.make_method((LOW, 16), 7, (FOUR, 4));
    let mut scan = CodeScan::with_clock(now_ns);
    memory.settle(&mut scan);
    NOW_MS.set(NOW_MS.get() + 1000);
    let before = now_ns();
    memory.make_heaps(&[&two_blocks()], SHIFT);
    memory.make_method((SECOND, 16), 8, (FOUR, 4));
    memory.scan(&mut scan, ScanDepth::Maps);
    assert!(
        !scan.was_there(SECOND + CODE, before, false)
            && scan.was_there(SECOND + CODE, now_ns(), false)
    );
}

/// It does not matter which of two pieces of code ran if both have the same rule at an address.
#[test]
fn code_with_the_rule_of_the_code_before_is_as_good() {
    let block: Vec<u8> = (0..16).collect();
    let one_block = [&block[..], &[0xff; 24]].concat();
    let (entry, body) = (LOW + CODE, LOW + CODE + COMPLETE);
    for memory in memories() {
        memory.make_heaps(&[&one_block], SHIFT);
        memory.make_method((LOW, 16), 7, (FOUR, 4));
        let mut scan = CodeScan::with_clock(now_ns);
        let before_all = now_ns();
        memory.settle(&mut scan);
        let next = |scan: &mut CodeScan, number, code| {
            let before = now_ns();
            memory.make_method((LOW, 16), number, code);
            memory.scan(scan, ScanDepth::Seals);
            [entry, body].map(|avma| scan.was_there(avma, before, false))
        };
        assert_eq!(next(&mut scan, 8, (SIX, 6)), [true, false], "another size of the frame");
        assert!(!scan.was_there(entry, before_all, false), "nothing was known");
        memory.settle(&mut scan);
        assert_eq!(next(&mut scan, 9, (SIX, 6)), [true, true], "compiled again");
        memory.settle(&mut scan);
        // Another one could have been there in between.
        NOW_MS.set(NOW_MS.get() + 200);
        assert_eq!(next(&mut scan, 10, (SIX, 6)), [false, false]);
        memory.settle(&mut scan);
        // It is freed first.
        let before = now_ns();
        memory.use_block(LOW, false, 1);
        memory.scan(&mut scan, ScanDepth::Seals);
        memory.make_method((LOW, 16), 11, (SIX, 6));
        memory.note_change(2);
        memory.scan(&mut scan, ScanDepth::Maps);
        assert!(scan.was_there(body, before, false));
        assert!(!scan.was_there(body, before_all, false));
    }
}
