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
    let (first, second) = (LOW + CODE, SECOND + CODE);
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
        let third = SECOND - (4 << SHIFT) + CODE;
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

/// A machine lists the blocks that it has freed. No map tells.
#[test]
fn a_block_in_the_list_of_free_ones_has_no_code() {
    for memory in memories() {
        let layout = memory.machine.layout.heaps;
        let first_free = HEAPS + layout.heap_len.unwrap() as u64 - 16;
        let list = |blocks: &[u64]| {
            let links = blocks.iter().map(|block| block + layout.header_len);
            let links = std::iter::once(first_free).chain(links);
            for (link, next) in links.zip(blocks.iter().chain(&[0])) {
                memory.put(link, &next.to_le_bytes());
            }
        };
        memory.make_heaps(&[&two_blocks()], SHIFT);
        memory.make_method((LOW, 16), 7, (FOUR, 4));
        memory.make_method((SECOND, 16), 8, (FOUR, 4));
        let mut scan = CodeScan::with_clock(now_ns);
        memory.settle(&mut scan);
        memory.scan(&mut scan, ScanDepth::Seals);
        let before_end = now_ns();
        for block in [LOW, SECOND] {
            memory.use_block(block, false, 1);
        }
        list(&[LOW, SECOND]);
        memory.scan(&mut scan, ScanDepth::Maps);
        let between = now_ns();
        for (block, number) in [(LOW, 9), (SECOND, 10)] {
            memory.make_method((block, 16), number, (SIX, 6));
        }
        list(&[]);
        memory.note_change(2);
        memory.scan(&mut scan, ScanDepth::Maps);
        for block in [LOW, SECOND] {
            let there = [before_end, between].map(|at| scan.was_there(block + CODE, at, false));
            assert_eq!(there, [false, true]);
        }
        // A list that leads back, out of the heap, and to a block that is used.
        for next in [LOW, 8, LOW + (8 << SHIFT), SECOND] {
            memory.use_block(LOW, false, next);
            list(&[LOW, next]);
            memory.set(SECOND, layout.is_used, 1);
            let changes = memory.scan(&mut scan, ScanDepth::Maps);
            assert!(!segments(&changes.removed).contains(&(24, 40)), "{changes:?}");
        }
    }
}
