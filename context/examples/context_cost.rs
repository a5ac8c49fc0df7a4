//! What telling a span costs, and what reading it does: `scripts/bench context` prints it as a
//! table.
//!
//! Prints a line "WHAT MEAN P50 P99 P999" each, in nanoseconds per call: of batches of 32 calls,
//! which are timed with the processor's cycle counter, so that reading the clock is a small part.
//!
//! # Safety
//! The rows that keep no protocol write a context of their own, which no profiler knows.
#![allow(clippy::print_stdout, reason = "it is what it is for")]

use std::arch::x86_64::{_mm_mfence, _rdtsc};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use traceprof_abi::context::{Context, ContextTable, Values, checksum};
use traceprof_context::{Tag, clear, set, set_all, span};

const BATCH: u64 = 32;
const BATCHES: usize = 200_000;

/// Ticks of the cycle counter in a nanosecond.
fn ticks_per_ns() -> f64 {
    let (from, since) = (ticks(), Instant::now());
    while since.elapsed().as_millis() < 200 {}
    (ticks() - from) as f64 / since.elapsed().as_nanos() as f64
}

fn ticks() -> u64 {
    // SAFETY: every x86_64 processor has it.
    unsafe { _rdtsc() }
}

/// Measures `call`, which is given a number that is another one each time.
fn measure(what: &str, per_ns: f64, mut call: impl FnMut(u64)) {
    let mut batches = vec![0_u64; BATCHES];
    let mut turn = 1;
    // The first round warms up.
    for _ in 0..2 {
        for batch in &mut batches {
            let from = ticks();
            for _ in 0..BATCH {
                turn += 1;
                call(black_box(turn));
            }
            *batch = ticks() - from;
        }
    }
    batches.sort_unstable();
    let each = |ticks: u64| ticks as f64 / BATCH as f64 / per_ns;
    let at = |share: usize| each(batches[BATCHES * share / 1000]);
    let mean = batches.iter().map(|ticks| each(*ticks)).sum::<f64>() / BATCHES as f64;
    println!("{what} {mean:.2} {:.2} {:.2} {:.2}", at(500), at(990), at(999));
}

/// The same fields without any order: what the stores alone cost.
fn plain(context: &Context, span: u64, root_span: u64) {
    context.span.store(span, Ordering::Relaxed);
    context.root_span.store(root_span, Ordering::Relaxed);
    context.checksum.store(checksum(span, root_span), Ordering::Relaxed);
}

/// The protocol with a store and a fence at its end instead of the swap.
fn fenced(context: &Context, span: u64, root_span: u64) {
    context.checksum.store(0, Ordering::Release);
    context.span.store(span, Ordering::Release);
    context.root_span.store(root_span, Ordering::Release);
    context.checksum.store(checksum(span, root_span), Ordering::Release);
    // SAFETY: every x86_64 processor has it.
    unsafe { _mm_mfence() };
}

/// The table of this process.
fn table() -> ContextTable<'static> {
    let base = traceprof_context::traceprof_context_table_v1.load(Ordering::Acquire);
    // SAFETY: the address of a table, which stays mapped.
    unsafe { ContextTable::new(base as *const u8) }
}

fn main() {
    let per_ns = ticks_per_ns();
    let own = Context::default();
    let tenant = Tag::number("tenant").expect("a tag");
    let tags = [7; 10];
    let tid = std::fs::read_link("/proc/thread-self").expect("the thread's number");
    let tid = tid.file_name().and_then(|name| name.to_str()?.parse().ok()).expect("a number");
    measure("plain_stores", per_ns, |turn| plain(black_box(&own), turn, 1));
    measure("store_and_mfence", per_ns, |turn| fenced(black_box(&own), turn, 1));
    measure("rust_set", per_ns, |turn| set(turn, 1));
    measure("rust_set_and_tag", per_ns, |turn| {
        set(turn, 1);
        tenant.set(turn as u32);
    });
    measure("rust_set_all", per_ns, |turn| set_all(&Values { span: turn, root_span: 1, tags }));
    measure("rust_span_guard", per_ns, |turn| drop(span(turn, 1)));
    measure("rust_clear", per_ns, |_| clear());
    set_all(&Values { span: 1, root_span: 2, tags });
    let table = table();
    let sum = AtomicU64::new(0);
    measure("read", per_ns, |_| {
        if let Some(context) = black_box(table).find(black_box(tid)) {
            let traceprof_abi::context::Reading::Set(values) = context.read() else { return };
            sum.store(black_box(values).span, Ordering::Relaxed);
        }
    });
    assert_eq!(sum.load(Ordering::Relaxed), 1, "the context was found");
}
