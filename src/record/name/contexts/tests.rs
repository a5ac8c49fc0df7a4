//! Tables of the test's own process.

use std::sync::Arc;

use nix::unistd::gettid;
use traceprof_abi::context::{
    self, ContextTable, TABLE_MAGIC, TABLE_VERSION, Values, table_layout,
};
use traceprof_abi::sync::{AtomicU32, AtomicU64};

use super::*;
use crate::record::batch::threads::ThreadLife;
use crate::record::target::shm::{own_context_table, own_data};
use crate::trace::TagKey;

/// Makes a table of this process without its first word, and returns its address.
fn table() -> (u64, ContextTable<'static>) {
    let (address, table) = own_context_table();
    let store = |word: &AtomicU32, value| word.store(value, Ordering::Relaxed);
    store(&table.header.version, TABLE_VERSION);
    store(&table.header.pid, std::process::id());
    (address, table)
}

fn put_text(words: &[AtomicU32], text: &str) {
    let bytes: Vec<u8> = text.bytes().chain([0; 3]).collect();
    words[0].store(text.len() as u32, Ordering::Relaxed);
    for (word, chunk) in words[1..].iter().zip(bytes.as_chunks::<4>().0) {
        word.store(u32::from_le_bytes(*chunk), Ordering::Relaxed);
    }
}

fn put_name(table: &ContextTable<'_>, place: usize, name: &str, kind: context::TagKind) {
    let key = &table.header.tags[place];
    key.len.store(name.len() as u32, Ordering::Relaxed);
    let bytes: Vec<u8> = name.bytes().chain([0; 7]).collect();
    for (word, chunk) in key.name.iter().zip(bytes.as_chunks::<8>().0) {
        AtomicU64::store(word, u64::from_le_bytes(*chunk), Ordering::Relaxed);
    }
    key.kind.store(kind as u32, Ordering::Relaxed);
}

fn contexts(data: DataSegment) -> Contexts {
    let mut contexts = Contexts::default();
    data.control().pid.store(std::process::id(), Ordering::Relaxed);
    contexts.begin(std::process::id() as i32, data);
    contexts
}

fn ready(table: &ContextTable<'_>) {
    table.header.magic.store(TABLE_MAGIC, Ordering::Release);
}

#[test]
fn tables_are_found_once_they_are_ready_and_only_those_of_the_process_itself() {
    let data = own_data();
    let sources = data.context_sources();
    let (address, table) = table();
    let mut contexts = contexts(data);
    let refresh = |contexts: &mut Contexts| {
        let mappings = proc::mappings(std::process::id() as i32).unwrap();
        let own = mappings.into_iter().filter(|it| it.start == address).collect::<Vec<_>>();
        assert_eq!(own.len(), 1);
        contexts.refresh(&own, &AddressMap::default(), sources);
        sources.tables_used.load(Ordering::Relaxed)
    };
    assert_eq!(refresh(&mut contexts), 0, "the table is being made");
    ready(&table);
    table.header.pid.store(1, Ordering::Relaxed);
    assert_eq!(refresh(&mut contexts), 0, "the table of the parent");
    table.header.pid.store(std::process::id(), Ordering::Relaxed);
    assert_eq!(refresh(&mut contexts), 1);
    assert_eq!(refresh(&mut contexts), 1);
    assert_eq!(sources.tables[0].load(Ordering::Relaxed), address);
    let tid = gettid().as_raw();
    assert_eq!(contexts.outside().read(tid), ThreadContext::default());
    let context = table.claim(tid as u32).unwrap();
    context.set_all(&Values { span: 1, root_span: 2, tags: [7; 10] });
    let read = contexts.outside().read(tid);
    assert_eq!((read.source, read.span, read.root_span, read.tags), (1, 1, 2, [7; 10]));
    context.checksum.store(5, Ordering::Relaxed);
    assert_eq!(contexts.outside().read(tid), ThreadContext::default(), "torn");
    table.header.pid.store(1, Ordering::Relaxed);
    refresh(&mut contexts);
    assert_eq!(sources.tables[0].load(Ordering::Relaxed), 0, "it is no longer a table");
    table.header.pid.store(std::process::id(), Ordering::Relaxed);
    assert_eq!(refresh(&mut contexts), 2, "handlers may still read the first slot");
    assert_eq!(sources.tables[1].load(Ordering::Relaxed), address);
    contexts.refresh(&[], &AddressMap::default(), sources);
    assert_eq!(sources.tables[1].load(Ordering::Relaxed), 0, "gone");
    contexts.recycle();
    assert_eq!(refresh(&mut contexts), 2);
    assert_eq!(sources.tables[0].load(Ordering::Relaxed), address);
    contexts.refresh(&[], &AddressMap::default(), sources);
    assert_eq!(contexts.outside().read(tid), ThreadContext::default());
}

#[test]
fn tags_of_the_application_become_those_of_the_trace() {
    let data = own_data();
    let (address, table) = table();
    put_name(&table, 3, "route", context::TagKind::Text);
    put_name(&table, 5, "tenant", context::TagKind::Number);
    let at = table_layout::TEXT_WORDS - 3;
    put_text(&table.texts.words[..4], "/checkout");
    put_text(&table.texts.words[at..], "/cart/x");
    ready(&table);
    let mut contexts = contexts(data);
    let mappings = proc::mappings(std::process::id() as i32).unwrap();
    let own: Vec<_> = mappings.into_iter().filter(|it| it.start == address).collect();
    contexts.refresh(&own, &AddressMap::default(), data.context_sources());
    let sample = |tags| Sample { source: 1, span: 9, tags, ..Sample::default() };
    let mut batch = Batch {
        samples: vec![
            sample([0, 0, 0, 1, 0, 42, 0, 0, 0, 0]),
            sample([0, 0, 0, at as u32 + 1, 0, 0, 0, 8, 0, 0]),
            sample([0, 0, 0, 1, 0, 0, 0, 0, 0, 0]),
            Sample { tags: [1; 10], ..Sample::default() },
        ],
        ..Batch::default()
    };
    let waits_on = batch.text(&Arc::from("a file"));
    contexts.name(&mut batch);
    let tags = batch.samples.iter().map(|it| [it.tags[0], it.tags[1]]).collect::<Vec<_>>();
    assert_eq!((waits_on, tags), (1, vec![[2, 42], [3, 0], [2, 0], [1, 1]]));
    assert_eq!(
        batch.texts.iter().map(|it| &**it).collect::<Vec<_>>()[1..],
        ["/checkout", "/cart/x"]
    );
    assert_eq!(batch.text_tags, 1);
    let keys = TagKey::of(&batch.metadata);
    let keys: Vec<_> = keys.iter().map(|key| (&*key.name, key.kind)).collect();
    assert_eq!(keys, [("route", TagKind::Text), ("tenant", TagKind::Number)]);
    let stats = contexts.end();
    assert_eq!((stats.samples, stats.tags_lost), (3, 1), "a tag without a name");
}

#[test]
fn texts_without_room_are_left_out_and_counted() {
    let data = own_data();
    let (address, table) = table();
    put_name(&table, 0, "request", context::TagKind::Text);
    put_text(&table.texts.words[..4], "kept");
    put_text(&table.texts.words[4..8], "left out");
    ready(&table);
    let mut contexts = contexts(data);
    let mappings = proc::mappings(std::process::id() as i32).unwrap();
    let own: Vec<_> = mappings.into_iter().filter(|it| it.start == address).collect();
    contexts.refresh(&own, &AddressMap::default(), data.context_sources());
    let sample = |text| {
        let mut sample = Sample { source: 1, span: 9, ..Sample::default() };
        sample.tags[0] = text;
        sample
    };
    let texts_of = |contexts: &mut Contexts, texts: &[u32]| {
        let samples = texts.iter().map(|text| sample(*text)).collect();
        let mut batch = Batch { samples, ..Batch::default() };
        contexts.name(&mut batch);
        batch.samples.iter().map(|it| it.tags[0]).collect::<Vec<_>>()
    };
    assert_eq!(texts_of(&mut contexts, &[1]), [1]);
    let fills = |number: &usize| contexts.texts.admit(&Arc::from(number.to_string()));
    assert!((0..).take_while(fills).count() > 100_000);
    assert_eq!(texts_of(&mut contexts, &[5, 1, 5]), [0, 1, 0]);
    assert_eq!(contexts.end().tags_lost, 2);
}

#[test]
fn a_thread_from_before_the_table_may_leave_a_stale_entry_too() {
    const TID: u32 = 4_000_001;
    let data = own_data();
    let (address, table) = table();
    let mut contexts = contexts(data);
    let inner = (std::process::id(), TID);
    let life = ThreadLife { tid: TID as i32, inner, name: String::new(), start_ns: 0 };
    let seen = ThreadChange::Seen { key: (1, 0), life };
    contexts.name(&mut Batch { threads: vec![seen], ..Batch::default() });
    ready(&table);
    let mappings = proc::mappings(std::process::id() as i32).unwrap();
    let own: Vec<_> = mappings.into_iter().filter(|it| it.start == address).collect();
    contexts.refresh(&own, &AddressMap::default(), data.context_sources());
    // The thread exits without returning its entry.
    table.claim(TID).unwrap().set(7, 8);
    let sample =
        |slot| Sample { slot, tid: TID, source: 1, span: 7, root_span: 8, ..Sample::default() };
    let gone = ThreadChange::Exited { key: (1, 0), time_ns: 5 };
    let samples = vec![sample(1), sample(2)];
    let mut batch = Batch { threads: vec![gone], samples, ..Batch::default() };
    contexts.name(&mut batch);
    assert_eq!(batch.samples.iter().map(|it| it.span).collect::<Vec<_>>(), [7, 0]);
}

#[test]
fn the_entry_of_a_living_thread_with_a_reused_id_is_not_stale() {
    let data = own_data();
    let (address, table) = table();
    let mut contexts = contexts(data);
    ready(&table);
    let mappings = proc::mappings(std::process::id() as i32).unwrap();
    let own: Vec<_> = mappings.into_iter().filter(|it| it.start == address).collect();
    contexts.refresh(&own, &AddressMap::default(), data.context_sources());
    // This thread has the id of one that exited, and sets the context that the other one had.
    let tid = gettid().as_raw();
    table.claim(tid as u32).unwrap().set(7, 8);
    let inner = (std::process::id(), tid as u32);
    let life = ThreadLife { tid, inner, name: String::new(), start_ns: 0 };
    let threads = vec![
        ThreadChange::Seen { key: (1, 0), life },
        ThreadChange::Exited { key: (1, 0), time_ns: 5 },
    ];
    let own =
        Sample { slot: 2, tid: tid as u32, source: 1, span: 7, root_span: 8, ..Sample::default() };
    let mut batch = Batch { threads, samples: vec![own], ..Batch::default() };
    contexts.name(&mut batch);
    assert_eq!(batch.samples[0].span, 7);
}
