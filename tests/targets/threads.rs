//! Four named Rust threads, each busy in its own function, one of them through a trait object and
//! one through a closure.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

static UP: Barrier = Barrier::new(5);
static STOP: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    fn signal(number: i32, handler: extern "C" fn(i32)) -> usize;
    fn prctl(option: i32, value: usize, ...) -> i32;
}

extern "C" fn on_sigterm(_number: i32) {
    STOP.store(true, Ordering::Relaxed);
}

#[inline(never)]
fn chain(seed: u64) -> u64 {
    (0..20_000).fold(seed, |x, _| std::hint::black_box(x.wrapping_mul(0x5851_f42d_4c95_7f2d) + 1))
}

// Each has its own constant, because equal functions are merged.
macro_rules! crunch {
    ($($name:ident $constant:literal),*) => { $(
        #[inline(never)]
        fn $name(seed: u64) -> u64 { std::hint::black_box(chain(seed)) ^ $constant }
    )* };
}
crunch!(crunch_zero 16, crunch_one 17, crunch_two 18, crunch_three 19);

trait Work {
    fn step(&self, seed: u64) -> u64;
}

struct Two;

impl Work for Two {
    #[inline(never)]
    fn step(&self, seed: u64) -> u64 {
        std::hint::black_box(crunch_two(seed)) + 1
    }
}

fn run(mut step: impl FnMut(u64) -> u64) -> u64 {
    let mut rounds = 0_u64;
    let mut value = 1;
    UP.wait();
    while !STOP.load(Ordering::Relaxed) {
        value = step(value);
        rounds += 1;
    }
    std::hint::black_box(value);
    rounds
}

fn main() {
    // SAFETY: the handler only stores to an atomic.
    unsafe { signal(15, on_sigterm) };
    // PR_SET_PTRACER, any: where yama lets only parents trace, a test's recorder is only a sibling.
    // SAFETY: this option only takes numbers.
    unsafe { prctl(0x5961_6d61, usize::MAX, 0_usize, 0_usize, 0_usize) };
    let boxed: Box<dyn Work + Send> = Box::new(Two);
    let spawn = |name: &str, work: Box<dyn FnMut(u64) -> u64 + Send>| {
        thread::Builder::new().name(name.into()).spawn(move || run(work)).unwrap()
    };
    let threads = [
        spawn("crunch-0", Box::new(crunch_zero)),
        spawn("crunch-1", Box::new(crunch_one)),
        spawn("crunch-2", Box::new(move |seed| boxed.step(seed))),
        spawn("crunch-3", Box::new(|seed| crunch_three(seed).wrapping_add(1))),
    ];
    UP.wait();
    println!("ready");
    for (index, thread) in threads.into_iter().enumerate() {
        println!("rounds_{index} {}", thread.join().unwrap());
    }
    std::process::exit(17);
}
