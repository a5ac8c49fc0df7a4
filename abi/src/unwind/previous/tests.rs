//! Walks that take over from the one before, against walks that do not, on stacks that change in
//! every way between them.

use super::super::walk::{Memory, Unwound};
use super::super::{EndReason, RETURN_ADDRESS};
use super::again::{MANY, Observed, Reads, Walk, link};
use super::program::{CLEARS_FP, DEREF_SP, FAR, GAP, OTHERS, Sampled, Stacks, code, zeroes};
use super::*;

const SEEDS: u64 = 150;

#[test]
fn walks_that_take_over_find_what_others_find() {
    let (mut taken, mut depth) = (0, 0);
    let mut rests = [0; 5];
    let mut ends = [0; EndReason::ALL.len()];
    for seed in 1..=SEEDS {
        let mut sampled = Sampled::new(seed, &[20_000, 700, 300]);
        if seed.is_multiple_of(3) {
            // Generated code calls all of it.
            sampled.running[0].pc = code(GAP);
            (0..3).for_each(|_| sampled.call(GAP));
        }
        (0..20).for_each(|number| sampled.call(number));
        for _ in 0..200 {
            sampled.run();
            sampled.disturb();
            let walked = sampled.check();
            // What was not the program's own doing lasts for one walk, or until it returns.
            if !sampled.random.one_in(64) {
                let (at, value) = sampled.disturbed;
                sampled.write(at, value);
                sampled.segment.restore();
            }
            taken += walked.taken;
            depth += walked.unwound.depth;
            rests[walked.rest as usize] += 1;
            ends[walked.unwound.end as usize] += 1;
        }
    }
    std::eprintln!("{taken} of {depth} frames taken over, {rests:?}, {ends:?}");
    assert!(taken * 5 > depth, "{taken} of {depth} frames");
    assert!(rests.iter().all(|&count| count > 100), "{rests:?}");
    assert!(ends[EndReason::Root as usize] > 1000, "{ends:?}");
}

/// A program that has called so many functions of the first blocks.
fn deep(calls: u64, words: usize) -> Sampled {
    let mut sampled = Sampled::new(1, &[words, 700, 300]);
    for number in 0..calls {
        sampled.call(number % OTHERS);
    }
    sampled.stand();
    sampled
}

#[test]
fn of_a_stack_that_stays_all_steps_but_the_last_are_taken_over() {
    let mut sampled = deep(50, 1000);
    assert_eq!((sampled.check().taken, sampled.check().taken), (0, 49));
    // The leaf is another one, and its caller is where it was.
    sampled.running.pop();
    sampled.call(3);
    sampled.stand();
    let walked = sampled.check();
    assert_eq!((walked.taken, walked.rest), (49, Rest::Other));
}

#[test]
fn shallow_stacks_are_not_kept() {
    let mut sampled = deep(3, 1000);
    let mut check = |calls: u64, expected: (usize, Rest), is_kept: bool| {
        (0..calls).for_each(|number| sampled.call(number));
        sampled.stand();
        let walked = sampled.check();
        assert_eq!((walked.taken, walked.rest), expected);
        assert_eq!(sampled.words[0].load(Ordering::Relaxed) != 0, is_kept);
    };
    // What comes after is not known yet.
    check(0, (0, Rest::Unknown), true);
    check(0, (0, Rest::Shallow), false);
    check(20, (0, Rest::Shallow), false);
    check(0, (0, Rest::Unknown), true);
    check(0, (22, Rest::Other), true);
}

/// As a frame whose rule reads more than is kept, or reads it too far away.
#[test]
fn on_both_sides_of_a_step_that_is_not_linked_all_others_are_taken_over() {
    for block in [DEREF_SP, FAR] {
        let mut sampled = deep(30, 4000);
        sampled.call(block);
        (0..30).for_each(|number| sampled.call(number));
        sampled.stand();
        sampled.check();
        let walked = sampled.check();
        assert_eq!((walked.unwound.depth, walked.taken), (62, 59));
    }
}

/// The same functions called from another one: the frames below are where they were.
#[test]
fn frames_whose_caller_has_changed_are_stepped() {
    let mut sampled = deep(60, 1000);
    sampled.check();
    let called = sampled.running.split_off(40);
    let (old, sp) = (sampled.last(), sampled.last().sp);
    sampled.running.pop();
    sampled.call(39 % OTHERS + 9);
    let other = sampled.last();
    assert_eq!((other.sp, other.pc != old.pc), (sp, true), "a frame of the same size");
    sampled.write(sp - 8, other.pc);
    sampled.running.extend(called);
    sampled.stand();
    let walked = sampled.check();
    assert_eq!((walked.unwound.end, walked.rest), (EndReason::Root, Rest::Changed));
    // All but the steps from the leaf, from and to the caller that has changed, and from the root.
    assert_eq!(walked.taken, 60 - 3);
}

#[test]
fn recursion_beyond_the_deepest_stack_is_taken_over_as_it_moves() {
    let mut sampled = deep(3000, 40_000);
    let (mut taken, mut given_up) = (0, 0);
    for round in 0..400 {
        let walked = sampled.check();
        let deepest = Unwound { depth: DEPTH_MAX, end: EndReason::Depth };
        assert_eq!(walked.unwound, deepest);
        taken += walked.taken;
        given_up += usize::from(walked.taken == 0);
        // Most of the time deeper and deeper, then back.
        let calls = match round {
            // More than there is room for.
            100 | 300 => 400,
            0..200 => 9,
            _ => 1,
        };
        let returns = sampled.random.below(6);
        sampled.running.truncate(sampled.running.len() - returns as usize);
        (0..calls).for_each(|_| sampled.call(sampled.running.len() as u64 % OTHERS));
        sampled.stand();
    }
    assert!(taken > 400 * 950, "{taken} taken over");
    // The first, and those that find the room below used up.
    assert!(given_up < 12, "{given_up} walks took over nothing");
    // All the way back.
    while sampled.running.len() > 1 {
        let rest = sampled.running.len() * 3 / 4;
        sampled.running.truncate(rest);
        sampled.stand();
        let walked = sampled.check();
        assert!(rest < DEPTH_MAX || walked.unwound.depth == DEPTH_MAX);
    }
}

/// Memory that looks whether something is kept while the walk goes on, and that ends it at some
/// load.
struct Interrupted<'a>(&'a mut Stacks, &'a AtomicU64, usize);

impl Memory for Interrupted<'_> {
    fn load(&mut self, avma: u64) -> Option<u64> {
        assert_eq!(self.1.load(Ordering::Relaxed), 0, "nothing is kept in the middle");
        self.2 = self.2.checked_sub(1).expect("the handler is left");
        self.0.load(avma)
    }

    fn rebound(&mut self, sp: u64) -> bool {
        self.0.rebound(sp)
    }

    fn bounds(&self) -> (u64, u64) {
        self.0.bounds()
    }
}

#[test]
fn a_walk_that_is_left_in_the_middle_leaves_nothing_behind() {
    let mut sampled = deep(50, 1000);
    for loads in 0..60 {
        let reached = sampled.check();
        assert_eq!(reached.unwound.depth, 51);
        let tables = sampled.segment.tables();
        let snapshot = tables.snapshot().unwrap();
        let left = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| {
            let previous = Previous::new(&sampled.words).unwrap();
            sampled.memory.rebound(sampled.registers.sp);
            let mut memory = Interrupted(&mut sampled.memory, &sampled.words[0], loads);
            unwind_on(&snapshot, &sampled.registers, &mut memory, previous);
        }));
        assert!(left.is_err());
        let walked = sampled.check();
        assert_eq!((walked.taken, walked.rest), (0, Rest::Unknown));
    }
}

#[test]
fn whatever_the_words_hold_the_walk_ends_within_its_bounds() {
    let mut sampled = deep(200, 4000);
    let mut taken = 0;
    for _ in 0..2000 {
        let tables = sampled.segment.tables();
        let snapshot = tables.snapshot().unwrap();
        sampled.check();
        for _ in 0..sampled.random.below(40) {
            let at = match sampled.random.below(3) {
                0 => sampled.random.below(4),
                _ => sampled.random.below(WORDS as u64),
            };
            let value = match sampled.random.below(3) {
                0 => sampled.random.below(2000),
                1 => sampled.place() << 8 | sampled.random.below(2048),
                _ => sampled.random.next(),
            };
            sampled.words[at as usize].store(value, Ordering::Relaxed);
        }
        let previous = Previous::new(&sampled.words).unwrap();
        sampled.memory.rebound(sampled.registers.sp);
        let walked = unwind_on(&snapshot, &sampled.registers, &mut sampled.memory, previous);
        assert!(walked.unwound.depth <= DEPTH_MAX);
        assert_eq!(previous.frames(&walked).len(), walked.unwound.depth);
        taken += walked.taken;
        previous.forget();
    }
    assert!(taken > 2000 * 10, "{taken} taken over");
}

/// Reads of a step that led to pc 0x5000 and [`REACHED`].
fn reads(of: &[(u64, u64)]) -> Reads {
    let mut reads = Reads { count: of.len() as u32, ..Reads::default() };
    reads.first.iter_mut().zip(of).for_each(|(place, &read)| *place = read);
    reads
}

const REACHED: Place = Place { sp: 0x7000_1000, fp: 0x77 };
const PC_READ: (u64, u64) = (REACHED.sp - 8, 0x5000);

#[test]
fn a_step_is_linked_if_all_that_it_read_is_kept() {
    let from = |of: &[(u64, u64)]| link(REACHED, 0x5000, &reads(of)) & FROM_MAX;
    let fp_at = |distance: u64| [(REACHED.sp.wrapping_sub(distance), REACHED.fp), PC_READ];
    assert_eq!(from(&[PC_READ]), NOT_READ);
    assert_eq!([8, 16, 0x3FF0].map(|it| from(&fp_at(it))), [2, 3, FROM_MAX]);
    let others = [
        &[][..],
        &fp_at(0x3FF8),
        &fp_at(8u64.wrapping_neg()),
        &[(PC_READ.0, 0x5001)],
        &[(PC_READ.0 - 8, PC_READ.1)],
        &[(REACHED.sp - 16, 0x78), PC_READ],
        &[PC_READ, (REACHED.sp - 16, REACHED.fp)],
        &[PC_READ, PC_READ, PC_READ],
        &[(REACHED.sp - 16, REACHED.fp), PC_READ, PC_READ],
    ];
    assert_eq!(others.map(from), [UNLINKED; 9]);
    // It can be met all the same, but for one whose sp has no room.
    assert_eq!(sp_of(link(REACHED, 0x5000, &reads(&[]))), REACHED.sp);
    for sp in [REACHED.sp + 4, SP_END, SP_END + REACHED.sp] {
        let place = Place { sp, ..REACHED };
        assert_eq!(link(place, 0x5000, &reads(&[(sp - 8, 0x5000)])), 0);
    }
    let last = Place { sp: SP_END - 8, ..REACHED };
    assert_eq!(sp_of(link(last, 0x5000, &reads(&[]))), SP_END - 8);
}

#[test]
fn reads_that_are_not_kept_are_many() {
    let mut stacks = deep(1, 100).memory;
    stacks.rebound(stacks.stacks[0].base);
    let (lo, _) = stacks.bounds;
    stacks.stacks[0].words[0] = 5;
    let mut count = |what: &mut dyn FnMut(&mut Observed<'_, Stacks>)| {
        let mut memory = Observed { memory: &mut stacks, reads: Reads::default(), moved: false };
        what(&mut memory);
        (memory.reads.count, memory.moved)
    };
    let mut load = |times: u64| {
        count(&mut |memory| (0..times).for_each(|_| assert_eq!(memory.load(lo), Some(5))))
    };
    assert_eq!([0, 1, 2, 3, 9].map(|times| load(times).0), [0, 1, 2, MANY, MANY]);
    assert_eq!(count(&mut |memory| assert!(memory.load_code(lo).is_some())), (MANY, false));
    assert_eq!(count(&mut |memory| assert!(memory.rebound(lo))), (MANY, true));
    let mut torn = Torn;
    let mut memory = Observed { memory: &mut torn, reads: Reads::default(), moved: false };
    assert_eq!((memory.load(lo), memory.reads.count), (None, MANY));
}

/// A stack that cannot be read, with bounds.
struct Torn;

impl Memory for Torn {
    fn load(&mut self, _: u64) -> Option<u64> {
        None
    }

    fn rebound(&mut self, _: u64) -> bool {
        true
    }

    fn bounds(&self) -> (u64, u64) {
        (REACHED.sp + 8, REACHED.sp + 4096)
    }
}

#[test]
fn a_frame_without_a_link_is_not_met_and_one_below_the_stack_not_followed() {
    let words = zeroes(WORDS);
    let previous = Previous::new(&words).unwrap();
    let own = link(REACHED, 0x5000, &reads(&[]));
    let word = 0x5000 | RETURN_ADDRESS;
    let met = |link: u64, fp: u64| {
        let old_sp = sp_of(previous.link(3));
        let mut walk = Walk { old_sp, ..Walk::new(previous, 3..5, 0, Rest::Other) };
        walk.meets(word, fp, link)
    };
    previous.write(3, word, REACHED.fp, own);
    assert!(met(own, REACHED.fp) && !met(own, 0) && !met(0, REACHED.fp));
    previous.write(3, word, 0, 0);
    previous.write(4, word, 0, 0);
    assert!(!met(0, 0));
    // Unlike a step, nobody reads at an sp below the bounds.
    let next = Place { sp: REACHED.sp + 64, ..REACHED };
    let read = [(next.sp - 8, 0x5000)];
    previous.write(3, 0x5000 | RETURN_ADDRESS, REACHED.fp, link(REACHED, 0x5000, &reads(&[])));
    previous.write(4, 0x5000 | RETURN_ADDRESS, REACHED.fp, link(next, 0x5000, &reads(&read)));
    let mut holding = Holding(0x5000, REACHED.sp);
    assert_eq!(previous.unchanged(3..5, &mut holding), 5);
    assert_eq!(previous.unchanged(3..5, &mut Holding(0x5001, REACHED.sp)), 4);
    holding.1 += 8;
    assert_eq!(previous.unchanged(3..5, &mut holding), 4);
}

/// A stack that holds one value, and where it begins.
struct Holding(u64, u64);

impl Memory for Holding {
    fn load(&mut self, _: u64) -> Option<u64> {
        Some(self.0)
    }

    fn rebound(&mut self, _: u64) -> bool {
        true
    }

    fn bounds(&self) -> (u64, u64) {
        (self.1, REACHED.sp + 4096)
    }
}

/// In code without unwind information a frame pointer of zero is the root's if a frame record has
/// it.
#[test]
fn a_zero_from_a_record_is_a_root_however_it_is_reached() {
    let mut sampled = Sampled::new(2, &[1000, 700, 300]);
    sampled.running[0].pc = code(GAP);
    (0..20).for_each(|_| sampled.call(GAP));
    // What is met first is of no record.
    sampled.call(0);
    sampled.stand();
    // The root and the step to it are always taken.
    for taken in [0, 19, 19] {
        let walked = sampled.check();
        assert_eq!((walked.taken, walked.unwound.end), (taken, EndReason::Root));
    }
    // The record that has the zero is another caller's now, and its own again.
    for value in [0, sampled.running[3].fp, 0] {
        sampled.write(sampled.running[1].fp, value);
        sampled.check();
    }
    // The same frame, whose zero comes from elsewhere.
    sampled.running.truncate(1);
    sampled.call(CLEARS_FP);
    (0..10).for_each(|_| sampled.call(GAP));
    sampled.stand();
    sampled.check();
    let walked = sampled.check();
    assert_eq!((walked.taken, walked.unwound.end), (10, EndReason::Gap));
}
