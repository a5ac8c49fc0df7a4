//! Closures, trait objects, panics and deep frames: every function has one caller, as in stacks.c.
use std::hint::black_box;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

static STOP: AtomicBool = AtomicBool::new(false);
const ROUNDS: u64 = 60;

unsafe extern "C" {
    fn signal(number: i32, handler: extern "C" fn(i32)) -> usize;
    fn prctl(option: i32, value: u64, a: u64, b: u64, c: u64) -> i32;
}

extern "C" fn on_sigterm(_: i32) {
    STOP.store(true, Ordering::Relaxed);
}

#[inline(never)]
fn leaf_plain(x: u64) -> u64 {
    black_box(x).wrapping_mul(3)
}
#[inline(never)]
fn parent_plain(x: u64) -> u64 {
    let x = black_box(leaf_plain(x));
    black_box(leaf_plain(x).wrapping_add(1))
}
#[inline(never)]
fn root_plain(x: u64) -> u64 {
    let mut x = x;
    for _ in 0..ROUNDS {
        x = black_box(parent_plain(x));
    }
    x
}

trait Way {
    fn leaf_dyn(&self, x: u64) -> u64;
}
struct One(u64);
impl Way for One {
    #[inline(never)]
    fn leaf_dyn(&self, x: u64) -> u64 {
        black_box(x) ^ self.0
    }
}
#[inline(never)]
fn parent_dyn(way: &dyn Way, x: u64) -> u64 {
    let x = black_box(way).leaf_dyn(x);
    black_box(x.wrapping_add(way.leaf_dyn(x)))
}
#[inline(never)]
fn root_dyn(x: u64) -> u64 {
    let one = One(x);
    let mut x = x;
    for _ in 0..ROUNDS {
        x = black_box(parent_dyn(&one, x));
    }
    x
}

#[inline(never)]
fn leaf_large(room: &mut [u64; 9000], x: u64) -> u64 {
    room[(x % 9000) as usize] = x;
    black_box(x)
}
#[inline(never)]
fn parent_large(x: u64) -> u64 {
    let mut room = [0; 9000];
    let x = leaf_large(black_box(&mut room), x);
    black_box(x ^ leaf_large(black_box(&mut room), x))
}
#[inline(never)]
fn root_large(x: u64) -> u64 {
    let mut x = x;
    for _ in 0..4 {
        x = black_box(parent_large(x));
    }
    x
}

#[inline(never)]
fn leaf_panic(x: u64) -> u64 {
    if black_box(x) % 2 == 0 {
        std::panic::resume_unwind(Box::new(x));
    }
    x
}
#[inline(never)]
fn parent_panic(x: u64) -> u64 {
    let kept = vec![x; 3];
    black_box(leaf_panic(x)) + kept[0]
}
#[inline(never)]
fn root_panic(x: u64) -> u64 {
    let mut x = x;
    for round in 0..ROUNDS / 10 {
        x = catch_unwind(AssertUnwindSafe(|| parent_panic(black_box(round)))).unwrap_or(x);
    }
    x
}

fn main() {
    begin();
}

#[inline(never)]
fn begin() {
    // SAFETY: the handler only stores into an atomic; the other call takes numbers.
    unsafe {
        signal(15, on_sigterm);
        // Where yama lets only parents trace, a test's recorder is only a sibling.
        prctl(0x59616d61, u64::MAX, 0, 0, 0);
    }
    println!("ready");
    let mut x = 1;
    while !STOP.load(Ordering::Relaxed) {
        x = black_box(root_plain(x));
        x = black_box(root_dyn(x));
        x = black_box(root_large(x));
        x = black_box(root_panic(x));
    }
    std::process::exit(17);
}
