//! The OpenTelemetry thread context record, as the handler reads it.
//!
//! # Safety
//! A load happens only where a probe has just found the memory readable. The variable is in the
//! thread's own block (the block contains the thread's id), and the record belongs to the thread.
//! Only that thread frees them, and it is in its handler here. The exception is an application that
//! frees a record to which a running thread still points.
//!
//! # Invariants
//! - Nothing is kept from one sample to the next: a library may be unloaded between them.

use traceprof_abi::context::{
    ATTRIBUTES_MAX, RECORD_HEADER, Record, TlsLocation, Unreadable, is_own_block, origin,
};
use traceprof_abi::layout::{ControlBlock, Counter};
use traceprof_abi::segment::DataSegment;
use traceprof_abi::storage::log::Sample;
use traceprof_abi::storage::table::{Put, TraceTable};
use traceprof_abi::sync::{AtomicU64, Ordering};
use traceprof_abi::thread::ThreadSlot;
use traceprof_abi::unwind;

use crate::probe::is_readable;
use crate::sys;

/// Copies the calling thread's context into the sample, from the first source with a valid record.
/// False if no source has one.
///
/// `slot` belongs to the thread, `table` is ACTIVE, and the caller's hazard names it.
pub fn read(
    data: DataSegment,
    slot: &ThreadSlot,
    table: &TraceTable<'_>,
    sample: &mut Sample,
) -> bool {
    let sources = data.context_sources();
    // Acquire: pairs with the recorder's Release; the sources and the flag below are visible.
    let used = sources.records_used.load(Ordering::Acquire) as usize;
    // Relaxed: ordered by the load above.
    if used == 0 || sources.has_fsgsbase.load(Ordering::Relaxed) == 0 {
        return false;
    }
    // SAFETY: the recorder vouches that the processor and the kernel allow programs to use the
    // instruction.
    let thread_pointer = unsafe { sys::thread_pointer() };
    let is_own = is_own_block(thread_pointer, sample.tid, load);
    let noted = if is_own { thread_pointer } else { 0 };
    // Relaxed: only the recorder reads it, to find the record itself while the thread sleeps.
    slot.context[0].store(noted, Ordering::Relaxed);
    if !is_own {
        data.control().count(Counter::RecordForeign);
        return false;
    }
    for source in sources.records.iter().take(used) {
        let Some(way) = source.location() else { continue };
        match find(way, thread_pointer) {
            Ok(Some((avma, record))) => {
                fill(sample, &record);
                keep_attributes(data.control(), table, (avma, &record), sample);
                return true;
            }
            Ok(None) => {}
            Err(Unreadable) => data.control().count(Counter::RecordUnreadable),
        }
    }
    false
}

fn fill(sample: &mut Sample, record: &Record) {
    sample.span = record.span;
    (sample.root_high, sample.root_span) = record.trace;
    sample.source = origin::RECORD;
}

/// Returns the record to which the thread's variable points, if it is valid, and the record's
/// address.
fn find(way: TlsLocation, thread_pointer: u64) -> Result<Option<(u64, Record)>, Unreadable> {
    let Some(variable) = way.variable(thread_pointer, load)? else { return Ok(None) };
    let avma = load(variable).ok_or(Unreadable)?;
    if avma == 0 {
        return Ok(None);
    }
    if !is_readable(avma, RECORD_HEADER as u64) {
        return Err(Unreadable);
    }
    let bytes = avma as *const [u8; RECORD_HEADER];
    // SAFETY: these bytes were just found readable, and any value is valid.
    let header = unsafe { bytes.read_unaligned() };
    Ok(Record::parse(&header).map(|record| (avma, record)))
}

fn load(avma: u64) -> Option<u64> {
    if !sys::readable(avma) {
        return None;
    }
    let word = avma as *const u64;
    // SAFETY: these eight bytes were just found readable, and any value is valid.
    Some(unsafe { word.read_unaligned() })
}

/// Stores the attributes in the trace table, as the frames of a trace whose id the sample names.
/// Equal attributes of several samples take room only once.
///
/// This is a separate function so that its buffer is not on the stack while the stack is walked.
#[inline(never)]
fn keep_attributes(
    control: &ControlBlock,
    table: &TraceTable<'_>,
    (avma, record): (u64, &Record),
    sample: &mut Sample,
) {
    let len = record.attributes_len;
    if len == 0 {
        return;
    }
    let end = avma.wrapping_add((RECORD_HEADER + len) as u64);
    // The check covers the complete record, so that it has at least eight bytes even with few
    // attributes.
    if !is_readable(avma, (RECORD_HEADER + len) as u64) {
        return control.count(Counter::RecordUnreadable);
    }
    let words = [const { AtomicU64::new(0) }; 1 + ATTRIBUTES_MAX.div_ceil(8)];
    let words = words.get(..1 + len.div_ceil(8));
    let Some((first, rest)) = words.and_then(|words| words.split_first()) else {
        return control.count(Counter::Broken);
    };
    // Relaxed, here and below: these are this thread's own words, which the table copies.
    first.store(len as u64, Ordering::Relaxed);
    let start = end.wrapping_sub(len as u64);
    for (index, word) in rest.iter().enumerate() {
        let at = index.wrapping_mul(8);
        // The last word is loaded from a lower address, and the excess bytes are shifted out.
        let excess = at.wrapping_add(8).saturating_sub(len);
        let address = start.wrapping_add(at as u64).wrapping_sub(excess as u64) as *const u64;
        // SAFETY: the bytes are within the record, which was just found readable, and any value is
        // valid.
        let bytes = unsafe { address.read_unaligned() };
        word.store(bytes.to_le() >> (excess as u32).wrapping_mul(8), Ordering::Relaxed);
    }
    let Some(words) = words else { return };
    match table.put(words, u32::from(unwind::ATTRIBUTES), 0) {
        Put::Dropped(_) => control.count(Counter::AttributesLost),
        Put::New(id) | Put::Hit(id) => {
            [sample.tags[0], sample.tags[1]] = [id as u32, (id >> 32) as u32];
        }
    }
}

#[cfg(test)]
mod tests {
    use traceprof_abi::context::RecordKind;
    use traceprof_abi::layout;
    use traceprof_abi::storage::rotation::Rotation;

    use super::*;
    use crate::probe::tests::edge;
    use crate::sample::tests::segment;

    const GETTID: u64 = 186;

    fn record(valid: u8, attributes: &[u8]) -> Vec<u8> {
        let mut bytes: Vec<u8> = (1..=24).collect();
        bytes.extend([valid, 0]);
        bytes.extend((attributes.len() as u16).to_ne_bytes());
        bytes.extend(attributes);
        bytes
    }

    fn own_tid() -> u32 {
        // SAFETY: touches no memory.
        unsafe { sys::syscall4(GETTID, [0; 4]) as u32 }
    }

    /// A thread with a variable, at a fixed address, that a test can point anywhere.
    struct Fixture {
        data: DataSegment,
        variable: &'static AtomicU64,
    }

    impl Fixture {
        fn new() -> Self {
            let data = segment();
            let control = data.control();
            let tables: Vec<_> =
                (0..layout::TRACE_TABLES).filter_map(|index| data.table(index)).collect();
            tables[0].header.arena_limit.store(1000, Ordering::Relaxed);
            let _ = Rotation::start(&tables, &control.active);
            let variable: &AtomicU64 = Box::leak(Box::default());
            let sources = data.context_sources();
            // SAFETY: the machines that run the tests allow it, or the tests fail loudly.
            let thread = unsafe { sys::thread_pointer() };
            let offset = (variable.as_ptr() as u64).wrapping_sub(thread);
            sources.records[0].set(Some(TlsLocation {
                kind: RecordKind::Offset,
                offset,
                module: 0,
            }));
            sources.has_fsgsbase.store(1, Ordering::Relaxed);
            sources.records_used.store(1, Ordering::Release);
            Self { data, variable }
        }

        fn read(&self, avma: u64) -> Option<Sample> {
            // SAFETY: as in `new`.
            let thread = unsafe { sys::thread_pointer() };
            self.read_as(own_tid(), thread, avma)
        }

        /// Reads for the thread with this id. Expects that the slot then holds `noted` as the
        /// thread pointer.
        fn read_as(&self, tid: u32, noted: u64, avma: u64) -> Option<Sample> {
            self.variable.store(avma, Ordering::Relaxed);
            let mut sample = Sample { tid, ..Sample::default() };
            let table = self.data.table(0).unwrap();
            let slot = &self.data.threads().slots[0];
            let is_read = read(self.data, slot, &table, &mut sample);
            assert_eq!(slot.context[0].load(Ordering::Relaxed), noted);
            is_read.then_some(sample)
        }

        fn count(&self, counter: Counter) -> u64 {
            self.data.control().counters[counter as usize].load(Ordering::Relaxed)
        }

        /// Returns the attributes of a sample as the recorder reads them.
        fn attributes(&self, sample: &Sample) -> Vec<u8> {
            let id = u64::from(sample.tags[1]) << 32 | u64::from(sample.tags[0]);
            let table = self.data.table(0).unwrap();
            let trace = table.traces().find(|trace| trace.id == id).unwrap();
            assert_eq!((trace.flags, trace.weight), (u32::from(unwind::ATTRIBUTES), 0));
            let words: Vec<u64> =
                trace.frames.iter().map(|word| word.load(Ordering::Relaxed)).collect();
            let bytes: Vec<u8> = words[1..].iter().flat_map(|word| word.to_le_bytes()).collect();
            bytes[..words[0] as usize].to_vec()
        }
    }

    #[test]
    fn a_valid_record_is_read_with_its_attributes_to_the_last_readable_byte() {
        let fixture = Fixture::new();
        let edge = edge();
        for len in (0..24).chain([255, 611, 612]) {
            let attributes: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
            let bytes = record(1, &attributes);
            let avma = edge - bytes.len() as u64;
            // SAFETY: the record ends where the page does.
            unsafe { (avma as *mut u8).copy_from(bytes.as_ptr(), bytes.len()) };
            let sample = fixture.read(avma).unwrap();
            assert_eq!(sample.source, origin::RECORD);
            let ids = [sample.root_high, sample.root_span, sample.span];
            assert_eq!(ids, [0x0102_0304_0506_0708, 0x090a_0b0c_0d0e_0f10, 0x1112_1314_1516_1718]);
            if len == 0 {
                assert_eq!(sample.tags[..2], [0, 0]);
            } else {
                assert_eq!(fixture.attributes(&sample), attributes, "{len}");
            }
        }
        assert_eq!(fixture.count(Counter::RecordUnreadable), 0);
    }

    #[test]
    fn an_unreadable_record_is_counted_and_gives_no_context() {
        let fixture = Fixture::new();
        let edge = edge();
        let bytes = record(1, &[1; 20]);
        // An unreadable record, half a record, a low address and two wild addresses.
        let addresses = [edge, edge - 26, 8, 0xdead_beef_dead_beef, u64::MAX - 3];
        // SAFETY: 26 bytes of the first page.
        unsafe { ((edge - 26) as *mut u8).copy_from(bytes.as_ptr(), 26) };
        for avma in addresses {
            assert_eq!(fixture.read(avma), None, "{avma:x}");
        }
        assert_eq!(fixture.count(Counter::RecordUnreadable), addresses.len() as u64);
        let avma = edge - 30;
        // SAFETY: as above.
        unsafe { (avma as *mut u8).copy_from(bytes.as_ptr(), 30) };
        let sample = fixture.read(avma).unwrap();
        assert_eq!((sample.span, sample.tags[0]), (0x1112_1314_1516_1718, 0));
        assert_eq!(fixture.count(Counter::RecordUnreadable), addresses.len() as u64 + 1);
        assert_eq!(fixture.count(Counter::AttributesLost), 0);
    }

    #[test]
    fn a_thread_without_a_valid_record_has_no_context() {
        let fixture = Fixture::new();
        assert_eq!(fixture.read(0), None);
        for valid in [0, 2] {
            assert_eq!(fixture.read(record(valid, &[]).leak().as_ptr() as u64), None);
        }
        assert_eq!(fixture.count(Counter::RecordUnreadable), 0);
        let sources = fixture.data.context_sources();
        let valid = record(1, &[]).leak().as_ptr() as u64;
        assert!(fixture.read(valid).is_some());
        sources.has_fsgsbase.store(0, Ordering::Relaxed);
        assert_eq!(fixture.read(valid), None, "the instruction would end the target");
    }

    /// Like a thread that `clone` created without a block.
    #[test]
    fn a_thread_that_shares_anothers_block_does_not_get_its_record() {
        let fixture = Fixture::new();
        let valid = record(1, &[]).leak().as_ptr() as u64;
        assert!(fixture.read(valid).is_some());
        assert_eq!(fixture.read_as(own_tid() + 1, 0, valid), None);
        assert_eq!(fixture.count(Counter::RecordForeign), 1);
        assert!(fixture.read(valid).is_some());
    }

    #[test]
    fn attributes_that_find_no_room_are_counted() {
        let fixture = Fixture::new();
        let read = |key: u8| fixture.read(record(1, &[key; 500]).leak().as_ptr() as u64).unwrap();
        let ids: Vec<_> = (0..20).map(|key| read(key).tags[0]).collect();
        // 1000 words have room for 14 entries of 64 words and a header.
        assert_eq!(fixture.count(Counter::AttributesLost), 6);
        assert_eq!(ids[14..], [0; 6]);
        assert_eq!(read(13).tags[0], ids[13], "stored attributes take no room again");
    }
}
