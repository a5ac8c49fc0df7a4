//! The context of the calling thread: the span on which it works.
//!
//! # Safety
//! The handler reads tables at the addresses that the recorder found, in private mappings whose
//! last words the recorder has read, too. Their writers never unmap them. The remaining risk is an
//! application that itself unmaps its table's memory, revokes the access, or truncates its file.
//! Until the recorder notices, within a second, a sample faults.

use traceprof_abi::context::{Context, ContextSources, ContextTable, Reading, origin};
use traceprof_abi::layout::Counter;
use traceprof_abi::segment::DataSegment;
use traceprof_abi::storage::log::Sample;
use traceprof_abi::sync::Ordering;

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
        // SAFETY: the recorder has seen a table's header there, in a private mapping with a table's
        // length, of which it could read the last word that `find` and `read` touch. The writer
        // never unmaps it and writes it with atomics only.
        let table = unsafe { ContextTable::new(address as *const u8) };
        match table.find(sample.tid).map(Context::read) {
            None | Some(Reading::None) => {}
            Some(Reading::Torn) => data.control().count(Counter::ContextTorn),
            Some(Reading::Set(values)) => {
                (sample.span, sample.root_span) = (values.span, values.root_span);
                (sample.tags, sample.source) = (values.tags, source);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::alloc::{Layout, alloc_zeroed};

    use traceprof_abi::context::{TABLE_LEN, Values};
    use traceprof_abi::layout::ControlBlock;

    use super::*;
    use crate::sample::tests::segment;

    fn table() -> (u64, ContextTable<'static>) {
        let shape = Layout::from_size_align(TABLE_LEN as usize, 4096).unwrap();
        // SAFETY: the size is not zero.
        let base = unsafe { alloc_zeroed(shape) };
        // SAFETY: of that length, never freed, accessed through this value only.
        (base as u64, unsafe { ContextTable::new(base) })
    }

    fn counted(control: &ControlBlock) -> u64 {
        control.counters[Counter::ContextTorn as usize].load(Ordering::Relaxed)
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
        assert_eq!((counted(data.control()), read(7)), (0, (3, 1, 2, 9)));
        assert_eq!(counted(data.control()), 1, "torn");
        first.1.release(7);
        second.1.release(7);
        assert_eq!(read(7), (0, 0, 0, 0));
    }
}
