//! Models of contexts and their table. loom runs them over all interleavings: `scripts/loom.sh`.
#![cfg(loom)]
#![allow(missing_docs, reason = "a test crate")]

mod model;

use loom::sync::Arc;
use loom::thread;
use traceprof_abi::context::{
    Context, ContextTable, ContextTableHeader, Reading, TAG_NAME_MAX, TEXT_MAX, TagKind, Texts,
    Values,
};
use traceprof_abi::sync::planted::Mistake;
use traceprof_abi::sync::{AtomicU32, Ordering};

/// Returns values that share no part with those of another number.
fn values(number: u32) -> Values {
    Values {
        span: u64::from(number) * 100,
        root_span: u64::from(number) * 100 + 1,
        tags: std::array::from_fn(|at| number * 100 + 2 + at as u32),
    }
}

fn what_another_core_accepts_was_set_together() {
    let context = Arc::new(Context::default());
    context.set_all(&values(1));
    let writer = {
        let context = Arc::clone(&context);
        thread::spawn(move || context.set_all(&values(2)))
    };
    match context.read() {
        Reading::None | Reading::Torn => {}
        Reading::Set(read) => assert!([values(1), values(2)].contains(&read), "{read:?}"),
    }
    writer.join().unwrap();
    assert_eq!(context.read(), Reading::Set(values(2)), "a later reader sees the last value");
}

#[test]
fn set_and_read() {
    let mistakes = [Mistake::NoMark, Mistake::AllRelaxed];
    model::check(None, &mistakes, what_another_core_accepts_was_set_together);
}

/// Memory for a small table.
struct Room {
    header: ContextTableHeader,
    tids: Vec<AtomicU32>,
    contexts: Vec<Context>,
    text_index: Vec<AtomicU32>,
    texts: Vec<AtomicU32>,
}

impl Room {
    fn new() -> Arc<Self> {
        let words = |count: usize| (0..count).map(|_| AtomicU32::new(0)).collect();
        Arc::new(Self {
            header: ContextTableHeader::default(),
            tids: words(1),
            contexts: vec![Context::default()],
            text_index: words(1),
            texts: words(8),
        })
    }

    fn table(&self) -> ContextTable<'_> {
        let Self { header, tids, contexts, text_index: index, texts: words } = self;
        let (used, refused) = (&header.text_words, &header.texts_refused);
        ContextTable { header, tids, contexts, texts: Texts { index, words, used, refused } }
    }
}

/// A thread exits and another one gets its entry. The entry has one owner at a time.
fn a_thread_does_not_inherit_an_earlier_context() {
    let room = Room::new();
    let inside = Arc::new(AtomicU32::new(0));
    let live = |tid: u32| {
        let (room, inside) = (Arc::clone(&room), Arc::clone(&inside));
        move || {
            let Some(context) = room.table().claim(tid) else { return };
            assert_eq!(context.values(), Values::default(), "the context of another thread");
            // Relaxed, and no swap: stronger operations would provide the order that the entry
            // itself must provide.
            assert_eq!(inside.load(Ordering::Relaxed), 0, "two have the entry");
            inside.store(1, Ordering::Relaxed);
            context.set(u64::from(tid), 9);
            inside.store(0, Ordering::Relaxed);
            room.table().release(tid);
        }
    };
    let other = thread::spawn(live(1));
    live(2)();
    other.join().unwrap();
    assert_eq!(room.tids[0].load(Ordering::Relaxed), 0);
}

#[test]
fn claim_and_release() {
    let mistakes = [Mistake::BlindSwap, Mistake::AllRelaxed];
    model::check(None, &mistakes, a_thread_does_not_inherit_an_earlier_context);
}

fn equal_texts_have_one_id_and_are_complete() {
    let room = Room::new();
    let intern = |room: Arc<Room>| {
        move || {
            let id = room.table().texts.intern(b"route");
            assert_eq!(room.table().texts.get(id, &mut [0; TEXT_MAX]), Some(&b"route"[..]));
            id
        }
    };
    let other = thread::spawn(intern(Arc::clone(&room)));
    let mine = intern(Arc::clone(&room))();
    assert_eq!(other.join().unwrap(), mine);
}

#[test]
fn intern_and_intern() {
    let mistakes = [Mistake::BlindSwap, Mistake::AllRelaxed];
    model::check(None, &mistakes, equal_texts_have_one_id_and_are_complete);
}

fn a_visible_name_is_complete_and_has_one_index() {
    let room = Room::new();
    let other = {
        let room = Arc::clone(&room);
        thread::spawn(move || room.table().tags().register(b"route", TagKind::Text))
    };
    let mut name = [0; TAG_NAME_MAX];
    if let Some(read) = room.header.tags[0].read(&mut name) {
        assert_eq!(read, (TagKind::Text, &b"route"[..]));
    }
    assert_eq!(room.table().tags().register(b"route", TagKind::Text), Ok(0));
    assert_eq!(other.join().unwrap(), Ok(0));
    assert_eq!(room.header.tags_used.load(Ordering::Relaxed), 1);
}

#[test]
fn register_and_register() {
    let mistakes = [Mistake::AllRelaxed];
    // The model also holds over all interleavings, but they take half a minute.
    model::check(Some(3), &mistakes, a_visible_name_is_complete_and_has_one_index);
}
