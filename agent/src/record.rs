//! The thread context record of OpenTelemetry, as the handler reads it.
//!
//! # Safety
//! A load happens only where a probe has just found the memory readable. The variable lies in the
//! thread's own block (it holds the thread's id), and the record is the thread's: nobody but the
//! thread that stands in its handler here gives them back, unless the application frees what a
//! running thread still points to.
//!
//! # Invariants
//! - Nothing is remembered from one sample to the next: a library may be unloaded between them.

use traceprof_abi::context::{
    ATTRIBUTES_MAX, RECORD_HEADER, Record, Unreadable, Way, is_own_block, origin,
};
use traceprof_abi::layout::{ControlBlock, Counter};
use traceprof_abi::segment::DataSegment;
use traceprof_abi::storage::log::Sample;
use traceprof_abi::storage::table::{Put, TraceTable};
use traceprof_abi::sync::{AtomicU64, Ordering};
use traceprof_abi::thread::ThreadSlot;
use traceprof_abi::unwind;

use crate::sys;

/// Pages of memory.
const PAGE: u64 = 4096;

/// Takes the calling thread's context from the first source that has a valid record. False if none
/// has.
///
/// The slot is the thread's, the table is ACTIVE, and the caller's hazard names it.
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
    // SAFETY: the recorder vouches that the processor and the kernel let programs use the
    // instruction.
    let thread_pointer = unsafe { sys::thread_pointer() };
    let is_own = is_own_block(thread_pointer, sample.tid, load);
    let noted = if is_own { thread_pointer } else { 0 };
    // Relaxed: a note for the recorder, which reads the record itself while the thread sleeps.
    slot.context[0].store(noted, Ordering::Relaxed);
    if !is_own {
        data.control().count(Counter::RecordForeign);
        return false;
    }
    for source in sources.records.iter().take(used) {
        let Some(way) = source.way() else { continue };
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

/// The record that the thread's variable points to, if it is valid, and where it is.
fn find(way: Way, thread_pointer: u64) -> Result<Option<(u64, Record)>, Unreadable> {
    let Some(variable) = way.variable(thread_pointer, load)? else { return Ok(None) };
    let avma = load(variable).ok_or(Unreadable)?;
    if avma == 0 {
        return Ok(None);
    }
    if !is_readable(avma, RECORD_HEADER as u64) {
        return Err(Unreadable);
    }
    let place = avma as *const [u8; RECORD_HEADER];
    // SAFETY: these bytes were just found readable; they may have any value.
    let header = unsafe { place.read_unaligned() };
    Ok(Record::parse(&header).map(|record| (avma, record)))
}

fn load(avma: u64) -> Option<u64> {
    if !sys::readable(avma) {
        return None;
    }
    let place = avma as *const u64;
    // SAFETY: these eight bytes were just found readable; the value may be anything.
    Some(unsafe { place.read_unaligned() })
}

/// Memory of eight bytes or more, and no more than a page, can be read: it lies in two pages at
/// most.
fn is_readable(avma: u64, len: u64) -> bool {
    let last = avma.wrapping_add(len).wrapping_sub(8);
    let page = |avma: u64| avma & !(PAGE - 1);
    sys::readable(avma) && (page(avma) == page(last.wrapping_add(7)) || sys::readable(last))
}

/// Keeps the attributes where stacks are kept, as the frames of one, whose id the sample names:
/// those of equal spans take their room once.
///
/// Apart, so that their room on the stack is not taken while the stack is walked.
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
    // The whole record, so that there are eight bytes however few are the attributes'.
    if !is_readable(avma, (RECORD_HEADER + len) as u64) {
        return control.count(Counter::RecordUnreadable);
    }
    let words = [const { AtomicU64::new(0) }; 1 + ATTRIBUTES_MAX.div_ceil(8)];
    let words = words.get(..1 + len.div_ceil(8));
    let Some((first, rest)) = words.and_then(|words| words.split_first()) else {
        return control.count(Counter::Broken);
    };
    // Relaxed, here and below: words of this thread's own, which the table copies.
    first.store(len as u64, Ordering::Relaxed);
    let start = end.wrapping_sub(len as u64);
    for (index, word) in rest.iter().enumerate() {
        let at = index.wrapping_mul(8);
        // The last word begins further down, with bytes that are shifted out.
        let excess = at.wrapping_add(8).saturating_sub(len);
        let place = start.wrapping_add(at as u64).wrapping_sub(excess as u64) as *const u64;
        // SAFETY: within the record, which was just found readable; the value may be anything.
        let bytes = unsafe { place.read_unaligned() };
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
    use crate::sample::tests::segment;

    const NO_ACCESS: u64 = 0;
    const MPROTECT: u64 = 10;
    const GETTID: u64 = 186;

    #[repr(align(4096))]
    struct Pages([u8; 2 * PAGE as usize]);

    /// The address between two pages of which the second cannot be read.
    fn edge() -> u64 {
        let pages: &mut Pages = Box::leak(Box::new(Pages([0; 2 * PAGE as usize])));
        let edge = pages.0.as_mut_ptr() as u64 + PAGE;
        // SAFETY: a page that nobody uses or gives back.
        let closed = unsafe { sys::syscall4(MPROTECT, [edge, PAGE, NO_ACCESS, 0]) };
        assert_eq!(closed, 0);
        edge
    }

    fn record(valid: u8, attributes: &[u8]) -> Vec<u8> {
        let mut bytes: Vec<u8> = (1..=24).collect();
        bytes.extend([valid, 0]);
        bytes.extend((attributes.len() as u16).to_ne_bytes());
        bytes.extend(attributes);
        bytes
    }

    fn own_tid() -> u32 {
        // SAFETY: asks for a number.
        unsafe { sys::syscall4(GETTID, [0; 4]) as u32 }
    }

    /// A thread whose variable, at any address that is not to move, points to somewhere.
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
            // SAFETY: the machines that run tests permit it, or the tests fail loudly.
            let thread = unsafe { sys::thread_pointer() };
            let offset = (variable.as_ptr() as u64).wrapping_sub(thread);
            sources.records[0].set(Some(Way { kind: RecordKind::Offset, offset, module: 0 }));
            sources.has_fsgsbase.store(1, Ordering::Relaxed);
            sources.records_used.store(1, Ordering::Release);
            Self { data, variable }
        }

        fn read(&self, avma: u64) -> Option<Sample> {
            // SAFETY: as in `new`.
            let thread = unsafe { sys::thread_pointer() };
            self.read_as(own_tid(), thread, avma)
        }

        /// For the thread of this id, whose block is expected to be noted.
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

        /// The attributes of a sample as the recorder gets them.
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
            let place = edge - bytes.len() as u64;
            // SAFETY: the record ends where the page does.
            unsafe { (place as *mut u8).copy_from(bytes.as_ptr(), bytes.len()) };
            let sample = fixture.read(place).unwrap();
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
    fn what_cannot_be_read_is_counted_and_none() {
        let fixture = Fixture::new();
        let edge = edge();
        let bytes = record(1, &[1; 20]);
        // No record, half of one, one without its attributes, and addresses of nobody.
        let places = [edge, edge - 26, 8, 0xdead_beef_dead_beef, u64::MAX - 3];
        // SAFETY: 26 bytes of the first page.
        unsafe { ((edge - 26) as *mut u8).copy_from(bytes.as_ptr(), 26) };
        for place in places {
            assert_eq!(fixture.read(place), None, "{place:x}");
        }
        assert_eq!(fixture.count(Counter::RecordUnreadable), places.len() as u64);
        let place = edge - 30;
        // SAFETY: as above.
        unsafe { (place as *mut u8).copy_from(bytes.as_ptr(), 30) };
        let sample = fixture.read(place).unwrap();
        assert_eq!((sample.span, sample.tags[0]), (0x1112_1314_1516_1718, 0));
        assert_eq!(fixture.count(Counter::RecordUnreadable), places.len() as u64 + 1);
        assert_eq!(fixture.count(Counter::AttributesLost), 0);
    }

    #[test]
    fn a_thread_without_a_record_or_with_one_that_is_not_valid_has_no_context() {
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

    /// As one that `clone` made without a block.
    #[test]
    fn a_thread_that_shares_the_block_of_another_one_has_not_its_record() {
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
        // 1000 words hold 14 times 64 of them with an entry's header.
        assert_eq!(fixture.count(Counter::AttributesLost), 6);
        assert_eq!(ids[14..], [0; 6]);
        assert_eq!(read(13).tags[0], ids[13], "what is there takes no room again");
    }
}
