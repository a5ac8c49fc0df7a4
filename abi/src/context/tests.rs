//! Tests of contexts and of a table's threads, and memory for tables.
//!
//! # Safety
//! The memory of a [`Room`] has the length and the alignment of a table, and lives as long as the
//! room.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};

use super::*;

/// Memory for a table, freed with the value.
pub(super) struct Room(*mut u8);

impl Room {
    pub(super) fn new() -> Self {
        // SAFETY: the layout's length is not 0.
        let base = unsafe { alloc_zeroed(Self::layout()) };
        if base.is_null() {
            handle_alloc_error(Self::layout());
        }
        let room = Self(base);
        room.table().initialise(7);
        room
    }

    fn layout() -> Layout {
        Layout::from_size_align(TABLE_LEN as usize, 4096).expect("a layout")
    }

    pub(super) fn table(&self) -> ContextTable<'_> {
        // SAFETY: the memory has that length, is aligned and writable, and is borrowed from the
        // room. It is accessed by atomics only.
        unsafe { ContextTable::new(self.0) }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with the same layout.
        unsafe { dealloc(self.0, Self::layout()) };
    }
}

// SAFETY: the memory contains only atomics.
unsafe impl Sync for Room {}

#[test]
fn checksums_are_the_published_ones() {
    for (span, root_span, sum) in [
        (0, 0, u64::MAX),
        (1, 0, 0x9E37_79B9_7F4A_7C15),
        (0, 1, 0x7F4A_7C15_0000_0000),
        (1, 2, 0x60A3_8193_7F4A_7C15),
        (100, 200, 0xBF9B_7C1D_B918_7834),
        (0x1234_5678_90AB_CDEF, 0xFEDC_BA09_8765_4321, 0x53D6_8557_223C_3626),
        (0x00F0_67AA_0BA9_02B7, 0xA3CE_929D_0E0E_4736, 0x8393_C0B1_A74B_CFE2),
    ] {
        assert_eq!(checksum(span, root_span), sum, "{span:x} {root_span:x}");
    }
    // Equal products, whose checksum would be 0.
    assert_eq!(checksum(0x1234_5678_9ABC_DEF0, 0x9ABC_DEF0_1234_5678), u64::MAX);
}

fn values(span: u64) -> Values {
    Values { span, root_span: span + 1, tags: std::array::from_fn(|at| span as u32 + at as u32) }
}

#[test]
fn what_is_set_is_read() {
    let context = Context::default();
    assert_eq!((context.read(), context.is_set()), (Reading::None, false));
    context.set_all(&values(5));
    assert_eq!((context.read(), context.is_set()), (Reading::Set(values(5)), true));
    context.set(8, 9);
    let expected = Values { span: 8, root_span: 9, ..values(5) };
    assert_eq!(context.read(), Reading::Set(expected), "the tags stay");
    context.set_tag(9, 77);
    context.set_tag(TAGS, 78);
    assert!(matches!(context.read(), Reading::Set(values) if values.tags[8..] == [13, 77]));
    context.clear();
    assert_eq!((context.read(), context.values()), (Reading::None, Values::default()));
}

#[test]
fn a_tag_without_a_span_is_read() {
    let context = Context::default();
    context.set_tag(0, 1);
    let mut expected = Values::default();
    expected.tags[0] = 1;
    assert_eq!(context.read(), Reading::Set(expected));
}

#[test]
fn a_context_with_another_span_under_its_checksum_is_torn() {
    let context = Context::default();
    context.set(1, 2);
    context.span.store(3, Ordering::Relaxed);
    assert_eq!(context.read(), Reading::Torn);
}

#[test]
fn a_table_is_ready_when_its_magic_is_there() {
    let room = Room::new();
    let header = room.table().header;
    let read = [&header.version, &header.pid].map(|word| word.load(Ordering::Relaxed));
    assert_eq!(read, [TABLE_VERSION, 7]);
    assert_eq!(header.magic.load(Ordering::Relaxed), TABLE_MAGIC);
}

#[test]
fn a_thread_finds_its_own_context_until_it_ends() {
    let room = Room::new();
    let table = room.table();
    assert!(table.find(12).is_none());
    table.claim(12).unwrap().set_all(&values(5));
    table.claim(13).unwrap().set_all(&values(6));
    assert_eq!(table.find(12).unwrap().read(), Reading::Set(values(5)));
    table.release(12);
    assert!(table.find(12).is_none());
    assert_eq!(table.find(13).unwrap().read(), Reading::Set(values(6)));
}

#[test]
fn threads_that_start_exit_and_are_reused_do_not_inherit_contexts() {
    let room = Room::new();
    let table = room.table();
    // One thread releases its entry. The other, like a killed thread, does not.
    for tid in [100, 101] {
        table.claim(tid).unwrap().set_all(&values(u64::from(tid)));
    }
    table.release(100);
    for tid in [100, 101] {
        assert_eq!(table.claim(tid).unwrap().read(), Reading::None, "{tid}");
        assert_eq!(table.claim(tid).unwrap().values(), Values::default());
    }
}

/// Returns `count` thread ids that have the same run of entries.
fn neighbours(count: usize) -> Vec<u32> {
    let line = table_layout::first(1);
    (1..u32::MAX).filter(|tid| table_layout::first(*tid) == line).take(count).collect()
}

#[test]
fn a_thread_without_an_entry_is_refused_and_counted() {
    let room = Room::new();
    let table = room.table();
    let tids = neighbours(table_layout::RUN + 1);
    for tid in &tids[..table_layout::RUN] {
        assert!(table.claim(*tid).is_some(), "{tid}");
    }
    assert!(table.claim(tids[table_layout::RUN]).is_none());
    assert_eq!(table.header.refused.load(Ordering::Relaxed), 1);
    table.release(tids[4]);
    assert!(table.claim(tids[table_layout::RUN]).is_some(), "a released entry is not reused");
    assert_eq!(table.find(tids[4]).map(Context::values), None);
}

#[test]
fn nearly_every_entry_can_be_claimed() {
    let room = Room::new();
    let table = room.table();
    let claimed = (1..40_000).filter(|tid| table.claim(*tid).is_some()).count();
    assert!(claimed > table_layout::ENTRIES * 9 / 10, "{claimed} of {}", table_layout::ENTRIES);
    let refused = table.header.refused.load(Ordering::Relaxed) as usize;
    assert_eq!(claimed + refused, 39_999);
}

#[test]
fn threads_at_once_get_an_entry_each() {
    let room = Room::new();
    std::thread::scope(|scope| {
        for thread in 1..=8 {
            let table = room.table();
            scope.spawn(move || {
                for turn in 0..2_000 {
                    let tid = turn * 8 + thread;
                    let context = table.claim(tid).unwrap();
                    assert_eq!(context.read(), Reading::None, "a context of another thread");
                    context.set_all(&values(u64::from(tid)));
                    assert_eq!(
                        table.find(tid).unwrap().read(),
                        Reading::Set(values(u64::from(tid)))
                    );
                    table.release(tid);
                }
            });
        }
    });
    assert!(room.table().tids.iter().all(|tid| tid.load(Ordering::Relaxed) == 0));
    assert!(room.table().contexts.iter().all(|context| context.values() == Values::default()));
}

#[test]
fn a_child_of_fork_has_the_names_and_texts_but_none_of_the_threads() {
    let room = Room::new();
    let table = room.table();
    table.claim(12).unwrap().set_all(&values(5));
    let (tag, text) =
        (table.tags().register(b"route", TagKind::Text), table.texts.intern(b"checkout"));
    table.adopt(8);
    assert_eq!(table.header.pid.load(Ordering::Relaxed), 8);
    assert!(table.find(12).is_none());
    assert!(table.contexts.iter().all(|context| context.values() == Values::default()));
    assert_eq!(
        (table.tags().register(b"route", TagKind::Text), table.texts.intern(b"checkout")),
        (tag, text)
    );
}
