//! The context of the calling thread: the span on which it works.
//!
//! # Safety
//! The handler reads tables at the addresses that the recorder found: page aligned, in private
//! mappings with a table's header. Their writers never unmap them, but the application could unmap
//! its table, revoke the access, or truncate the file. So a load happens only where a probe has
//! just found the memory readable. The exception is an application in which another thread
//! withdraws the memory in the nanoseconds between the probe and the load.

use traceprof_abi::context::{Context, ContextSources, Reading, Unreadable, origin, table_layout};
use traceprof_abi::layout::Counter;
use traceprof_abi::segment::DataSegment;
use traceprof_abi::storage::log::Sample;
use traceprof_abi::sync::{AtomicU32, Ordering};

use crate::probe::{is_readable, page};

/// Copies the thread's context into its sample, from the first table that has one. Uses no
/// thread-local storage: the table finds the thread by its id.
pub fn read(data: DataSegment, sample: &mut Sample) {
    let sources: &ContextSources = data.context_sources();
    // Acquire: pairs with the recorder's Release; the addresses of the used tables are stored.
    let used = sources.tables_used.load(Ordering::Acquire) as usize;
    for (source, address) in (origin::TABLE..).zip(sources.tables.iter().take(used)) {
        // Relaxed: ordered by the load above. If a table no longer exists, a later load sees the 0.
        let address = address.load(Ordering::Relaxed);
        if address == 0 {
            continue;
        }
        match find(address, sample.tid) {
            Err(Unreadable) => data.control().count(Counter::TableUnreadable),
            Ok(None | Some(Reading::None)) => {}
            Ok(Some(Reading::Torn)) => data.control().count(Counter::ContextTorn),
            Ok(Some(Reading::Set(values))) => {
                (sample.span, sample.root_span) = (values.span, values.root_span);
                (sample.tags, sample.source) = (values.tags, source);
                return;
            }
        }
    }
}

/// Reads a thread's context in the table at an address, if the thread has one.
///
/// This makes two probes for most threads: one for the thread's id, and one for its context.
fn find(table: u64, tid: u32) -> Result<Option<Reading>, Unreadable> {
    let mut known_page = None;
    for entry in table_layout::run(tid, table_layout::ENTRIES) {
        let avma = table.wrapping_add(table_layout::tid_at(entry));
        if known_page != Some(page(avma)) {
            // The entries of a page begin at the start of a cache line.
            if !is_readable(avma, size_of::<u64>() as u64) {
                return Err(Unreadable);
            }
            known_page = Some(page(avma));
        }
        let word = avma as *const AtomicU32;
        // SAFETY: aligned, since the table is, in a page that was just found readable, and written
        // with atomics only.
        let word = unsafe { &*word };
        // Acquire: pairs with the swap in `ContextTable::claim`; the context is that thread's.
        if word.load(Ordering::Acquire) != tid {
            continue;
        }
        let avma = table.wrapping_add(table_layout::context_at(entry));
        if !is_readable(avma, size_of::<Context>() as u64) {
            return Err(Unreadable);
        }
        let context = avma as *const Context;
        // SAFETY: as above; a context is in a cache line of its own, and any value is valid.
        return Ok(Some(unsafe { &*context }.read()));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::alloc::{Layout, alloc_zeroed};

    use traceprof_abi::context::{ContextTable, TABLE_LEN, Values};
    use traceprof_abi::layout::ControlBlock;

    use super::*;
    use crate::probe::PAGE;
    use crate::probe::tests::close;
    use crate::sample::tests::segment;

    fn table() -> (u64, ContextTable<'static>) {
        let shape = Layout::from_size_align(TABLE_LEN as usize, 4096).unwrap();
        // SAFETY: the size is not zero.
        let base = unsafe { alloc_zeroed(shape) };
        // SAFETY: of that length, never freed, accessed through this value only.
        (base as u64, unsafe { ContextTable::new(base) })
    }

    fn count(control: &ControlBlock, counter: Counter) -> u64 {
        control.counters[counter as usize].load(Ordering::Relaxed)
    }

    #[test]
    fn a_sample_has_its_threads_context_from_the_first_table_with_one() {
        let data = segment();
        let sources = data.context_sources();
        let (first, second) = (table(), table());
        for (word, (address, _)) in sources.tables.iter().skip(1).zip([&first, &second]) {
            word.store(*address, Ordering::Relaxed);
        }
        let read = |tid| {
            let mut sample = Sample { tid, ..Sample::default() };
            read(data, &mut sample);
            (sample.source, sample.span, sample.root_span, sample.tags[9])
        };
        let mut tags = [0; 10];
        tags[9] = 9;
        second.1.claim(7).unwrap().set_all(&Values { span: 1, root_span: 2, tags });
        assert_eq!(read(7), (0, 0, 0, 0), "no table is in use");
        sources.tables_used.store(3, Ordering::Release);
        assert_eq!(read(7), (3, 1, 2, 9), "the first table is missing");
        assert_eq!(read(8), (0, 0, 0, 0));
        let context = first.1.claim(7).unwrap();
        assert_eq!(read(7), (3, 1, 2, 9), "the entry is clear");
        context.set(3, 4);
        assert_eq!(read(7), (2, 3, 4, 0));
        context.span.store(5, Ordering::Relaxed);
        let counted = || count(data.control(), Counter::ContextTorn);
        assert_eq!((counted(), read(7)), (0, (3, 1, 2, 9)));
        assert_eq!(counted(), 1, "torn");
        first.1.release(7);
        second.1.release(7);
        assert_eq!(read(7), (0, 0, 0, 0));
    }

    /// An application withdraws its table, and the recorder has not noticed it yet.
    #[test]
    fn withdrawn_table_gives_no_context_and_no_fault() {
        let data = segment();
        let sources = data.context_sources();
        let (first, second) = (table(), table());
        for (word, (address, _)) in sources.tables.iter().zip([&first, &second]) {
            word.store(*address, Ordering::Relaxed);
        }
        sources.tables_used.store(2, Ordering::Release);
        first.1.claim(7).unwrap().set(1, 2);
        second.1.claim(7).unwrap().set(3, 4);
        let read = || {
            let mut sample = Sample { tid: 7, ..Sample::default() };
            read(data, &mut sample);
            sample.span
        };
        let entry = table_layout::run(7, table_layout::ENTRIES).next().unwrap();
        let unreadable = || count(data.control(), Counter::TableUnreadable);
        assert_eq!((read(), unreadable()), (1, 0));
        close(page(first.0 + table_layout::context_at(entry)));
        assert_eq!((read(), unreadable()), (3, 1), "a context");
        close(page(second.0 + table_layout::tid_at(entry)));
        assert_eq!((read(), unreadable()), (0, 3), "a thread's id");
        for wild in [PAGE, 0xdead_beef_dead_0000, 1 << 63, page(u64::MAX)] {
            sources.tables[0].store(wild, Ordering::Relaxed);
            assert_eq!(read(), 0, "{wild:x}");
        }
    }
}
