//! The sanity tests of the thread-local context document, by name.
#![allow(missing_docs, reason = "a test crate")]

mod common;

use std::sync::atomic::{Ordering, fence};

use common::{find, tid};
use traceprof_abi::context::{Context, Reading, Values, checksum};

#[test]
fn basic_read_write() {
    let context = Context::default();
    context.span.store(100, Ordering::Relaxed);
    context.root_span.store(200, Ordering::Relaxed);
    context.checksum.store(300, Ordering::Relaxed);
    assert_eq!(context.span.load(Ordering::Relaxed), 100);
    assert_eq!(context.root_span.load(Ordering::Relaxed), 200);
    assert_eq!(context.checksum.load(Ordering::Relaxed), 300);
    assert_eq!(context.read(), Reading::Torn, "300 is not their checksum");
    context.set(100, 200);
    assert_eq!(context.checksum.load(Ordering::Relaxed), checksum(100, 200));
    let expected = Values { span: 100, root_span: 200, ..Values::default() };
    assert_eq!(context.read(), Reading::Set(expected));
}

#[test]
fn sequential_write_read_cycles() {
    let context = Context::default();
    for turn in 1..10_000_u64 {
        let values = Values { span: turn, root_span: turn * 31, tags: [turn as u32; 10] };
        context.set_all(&values);
        fence(Ordering::Acquire);
        assert_eq!(context.read(), Reading::Set(values));
        context.clear();
        fence(Ordering::Acquire);
        assert_eq!(context.read(), Reading::None);
    }
}

#[test]
fn tls_mechanism() {
    traceprof_context::set(123, 456);
    // Finds the context by the thread's id, as a handler does.
    let mine = find(tid()).expect("this thread has an entry");
    assert_eq!(mine.span.load(Ordering::Relaxed), 123);
    std::thread::spawn(|| {
        assert_eq!(traceprof_context::current(), None, "another thread's span");
        traceprof_context::set(124, 456);
        assert_eq!(find(tid()).expect("an entry").values().span, 124);
    })
    .join()
    .unwrap();
    assert_eq!(mine.values().span, 123, "the other thread changed this thread's context");
    assert_eq!(mine.values(), traceprof_context::current().unwrap());
}
