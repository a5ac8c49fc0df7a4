//! Measures the cost of setting a span and of reading it. `scripts/bench context` prints it as a
//! table.
//!
//! Prints a line "WHAT MEAN P50 P99 P999" for each measurement, in nanoseconds per call. Batches of
//! 32 calls are timed with the processor's cycle counter, so that reading the clock is a small
//! part.
//!
//! # Safety
//! The rows without the protocol write a context of their own, which no profiler knows.
#![allow(clippy::print_stdout, reason = "its output is its purpose")]

use std::arch::x86_64::{_mm_mfence, _rdtsc};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use traceprof_abi::context::{Context, ContextTable, Values, checksum};
use traceprof_context::{Tag, clear, set, set_all, span};

const BATCH: u64 = 32;
const BATCHES: usize = 200_000;

/// Returns the number of cycle counter ticks in a nanosecond.
fn ticks_per_ns() -> f64 {
    let (from, since) = (ticks(), Instant::now());
    while since.elapsed().as_millis() < 200 {}
    (ticks() - from) as f64 / since.elapsed().as_nanos() as f64
}

fn ticks() -> u64 {
    // SAFETY: every x86_64 processor has it.
    unsafe { _rdtsc() }
}

/// Measures `call`, which gets a different number each time.
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

/// Sets the same fields without any order, to measure the stores alone.
fn plain(context: &Context, span: u64, root_span: u64) {
    context.span.store(span, Ordering::Relaxed);
    context.root_span.store(root_span, Ordering::Relaxed);
    context.checksum.store(checksum(span, root_span), Ordering::Relaxed);
}

/// Sets the fields by the protocol, with a store and a fence at its end instead of the swap.
fn fenced(context: &Context, span: u64, root_span: u64) {
    context.checksum.store(0, Ordering::Release);
    context.span.store(span, Ordering::Release);
    context.root_span.store(root_span, Ordering::Release);
    context.checksum.store(checksum(span, root_span), Ordering::Release);
    // SAFETY: every x86_64 processor has it.
    unsafe { _mm_mfence() };
}

/// Returns the table of this process.
fn table() -> ContextTable<'static> {
    let base = traceprof_context::traceprof_context_table_v1.load(Ordering::Acquire);
    // SAFETY: it is the address of a table, which stays mapped.
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
