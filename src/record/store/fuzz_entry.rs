//! Entry point for fuzzing: the shared memory of a target that writes anything to it, at any time.
//!
//! The function panics if an invariant is broken, and only then.

use std::cell::RefCell;
use std::sync::Arc;

use traceprof_abi::layout::{self, ClockMode, FRAME_WORDS_MAX, TRACE_TABLES};
use traceprof_abi::segment::DataSegment;
use traceprof_abi::storage::hazard;
use traceprof_abi::storage::log::Sample;
use traceprof_abi::storage::table::{self, ARENA_WORDS, LOG_RECORDS};
use traceprof_abi::sync::{AtomicU64, Ordering};

use crate::record::batch::Batch;
use crate::record::contract::clock::Clock;
use crate::record::source::missing_expiries;
use crate::record::store::collector::Collector;
use crate::record::store::liveness::LastOfThreads;
use crate::record::store::set_times;
use crate::record::store::threads::Registry;
use crate::record::target::counters::HandlerCounts;
use crate::record::target::shm::{SharedMemory, Use};

/// Number of records that each table declares populated.
const RECORDS: u64 = 256;
/// Number of words that the arena of each table declares populated.
const WORDS: u64 = 8192;
/// Most words that the target writes while a rotation waits for one of its threads.
const WRITES_MEANWHILE: usize = 8;

/// Drains a data segment in which the bytes choose what the target does: what its handlers do, or
/// whatever they must not do.
pub fn drain(bytes: &[u8]) {
    let Ok(shared) = SharedMemory::create(Use::Data, layout::DATA_LEN) else { return };
    let data = shared.as_data();
    for table in (0..TRACE_TABLES).filter_map(|index| data.table(index)) {
        table.header.arena_limit.store(WORDS, Ordering::Relaxed);
        table.header.log_limit.store(RECORDS, Ordering::Relaxed);
    }
    data.control().slots_limit.store(layout::INITIAL_THREAD_SLOTS, Ordering::Relaxed);
    let target = RefCell::new(HostileTarget { data, words: shared.words(), script: bytes });
    let Some(mut recorder) = Recorder::start(data) else { return };
    loop {
        let Some(step) = target.borrow_mut().take() else { break };
        match step % 8 {
            0..4 => target.borrow_mut().write(),
            4 | 5 => target.borrow_mut().sample(),
            _ => recorder.turn(&target),
        }
    }
    recorder.finish();
}

/// The stages of the recorder that read shared memory.
struct Recorder {
    data: DataSegment,
    collector: Collector,
    threads: Registry,
    clock: Clock,
    batch: Batch,
}

impl Recorder {
    /// Starts to record this very process.
    fn start(data: DataSegment) -> Option<Self> {
        let mut collector = Collector::start(data, Arc::default())?;
        collector.register(Box::new(LastOfThreads::new(data)));
        let mut threads =
            Registry::new(std::process::id() as i32, data, 0, &Arc::default()).ok()?;
        threads.scan(true);
        let (clock, batch) = (Clock::start(ClockMode::Monotonic), Batch::default());
        Some(Self { data, collector, threads, clock, batch })
    }

    /// Does one rotation. The target writes meanwhile.
    fn turn(&mut self, target: &RefCell<HostileTarget<'_>>) {
        let Self { collector, threads, batch, .. } = self;
        batch.threads.extend(threads.take_changes());
        let is_gone = |owner| {
            (0..WRITES_MEANWHILE).for_each(|_| target.borrow_mut().write());
            threads.is_owner_gone(owner)
        };
        let is_complete = collector.rotate(batch, &is_gone).is_complete;
        self.process(is_complete);
    }

    fn finish(mut self) {
        self.batch.threads.extend(self.threads.take_changes());
        self.collector.finish(&mut self.batch);
        self.process(true);
    }

    fn process(&mut self, is_complete: bool) {
        let Self { data, collector, threads, clock, batch } = self;
        check_taken(batch);
        clock.advance();
        set_times(clock, batch);
        threads.attribute(&mut batch.samples, &mut batch.threads);
        batch.sort();
        collector.preserve(batch);
        let _ = (threads.exits(is_complete), threads.younger_events(), collector.is_wanted());
        threads.retire(is_complete, &mut batch.threads);
        let counts = HandlerCounts::read(data.control());
        let _ = (counts.lost(), counts.dropped(), missing_expiries::all_expiries(data.control()));
        check_sorted(batch);
        batch.clear();
    }
}

/// Checks that the batch has no more than the tables have room for.
fn check_taken(batch: &Batch) {
    assert!(batch.samples.len() <= TRACE_TABLES * LOG_RECORDS);
    // Once more for the preserved traces.
    assert!(batch.traces.words() <= (TRACE_TABLES + 1) * ARENA_WORDS);
    assert!(batch.samples.iter().all(|sample| (sample.slot as usize) < layout::THREAD_SLOTS));
}

fn check_sorted(batch: &Batch) {
    for entry in batch.traces.entries() {
        assert!(entry.depth() <= FRAME_WORDS_MAX);
        assert_eq!(batch.traces.frames_of(entry).len(), entry.depth());
        assert_eq!(batch.traces.get(entry.id).map(|it| it.id), Some(entry.id));
    }
    assert!(batch.samples.is_sorted_by_key(|it| (it.slot, it.generation, it.time)));
}

/// What the script makes the target do.
struct HostileTarget<'a> {
    data: DataSegment,
    words: &'static [AtomicU64],
    script: &'a [u8],
}

impl HostileTarget<'_> {
    fn take(&mut self) -> Option<u8> {
        let (first, rest) = self.script.split_first()?;
        self.script = rest;
        Some(*first)
    }

    /// Returns the next byte; 0 at the end of the script.
    fn byte(&mut self) -> u64 {
        self.take().unwrap_or(0).into()
    }

    fn short(&mut self) -> u64 {
        self.byte() << 8 | self.byte()
    }

    /// Writes any word of the segment, mostly one that means something.
    fn write(&mut self) {
        if self.script.is_empty() {
            return;
        }
        let (offset, value) = (self.offset() / 8, self.value());
        if let Some(word) = self.words.get(offset as usize) {
            word.store(value, Ordering::Relaxed);
        }
    }

    fn offset(&mut self) -> u64 {
        let (region, at) = (self.byte(), self.short());
        let start = layout::TRACE_TABLES_OFFSET + region / 16 % 8 * layout::TRACE_TABLE_STRIDE;
        match region % 12 {
            0 => at % 120 * 8,
            1 => layout::HAZARD_OFFSET + at % 8192 * 8,
            2 => layout::TID_INDEX_OFFSET + at % 32768 * 8,
            3 => layout::THREAD_SLOTS_OFFSET + at % 1024 * 8,
            4 => layout::EVENTS_RETIRED_OFFSET + at % 1024 * 8,
            5 | 6 => start + at % 7 * 8,
            7 => start + table::SLOTS_OFFSET + at * 8,
            8 => start + table::ARENA_OFFSET + at % WORDS * 8,
            9 => start + table::LOG_OFFSET + at % (RECORDS * 16) * 8,
            10 => start + table::SLICES_OFFSET + at % 2 * 8,
            _ => start + table::SLICES_OFFSET + table::SLICES_HEADER + at % 4096 * 8,
        }
    }

    fn value(&mut self) -> u64 {
        match self.byte() % 6 {
            0 => 0,
            1 => u64::MAX,
            2 => self.short(),
            // A word of two halves, such as a commit word, a slot's word or a hazard.
            3 => self.byte() << 32 | self.short(),
            4 => u64::from(hazard::owner(self.byte() as u32, 0)) << 32 | self.short(),
            _ => (0..8).fold(0, |value, _| value << 8 | self.byte()),
        }
    }

    /// Does what a handler does, and possibly dies inside.
    fn sample(&mut self) {
        let threads = self.data.threads();
        let (tid, frames) = (1 + self.byte() as u32 % 64, 1 + self.byte() % 32);
        let Some(slot) = threads.claim(tid).index() else { return };
        let owner = hazard::owner(slot as u32, 0);
        let Ok(inside) = self.data.hazards().protect(owner, &self.data.control().active) else {
            return;
        };
        let Some(table) = self.data.table(inside.table()) else { return };
        let frames: Vec<_> = (0..frames).map(|_| AtomicU64::new(self.byte())).collect();
        let trace_id = table.put(&frames, 0, 1).id();
        let (slot, weight) = (slot as u32, self.byte() as u32);
        table.append_at(&Sample { tid, trace_id, slot, weight, ..Sample::default() });
        if weight != 255 {
            // The claim may have been overwritten.
            let _ = self.data.hazards().release(inside);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;
    use crate::test_turn::is_long;

    const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fuzz/corpus/shared_memory");

    fn corpus() -> Vec<Vec<u8>> {
        let files = fs::read_dir(Path::new(CORPUS)).unwrap();
        files.map(|file| fs::read(file.unwrap().path()).unwrap()).collect()
    }

    #[test]
    fn segments_that_were_found_are_drained() {
        let corpus = corpus();
        assert!(corpus.len() > 2, "the corpus is not there");
        corpus.iter().for_each(|bytes| drain(bytes));
    }

    #[test]
    fn samples_of_an_honest_target_are_drained() {
        let honest = [4, 1, 2, 7, 8, 1, 4, 2, 0, 9, 1];
        let Ok(shared) = SharedMemory::create(Use::Data, layout::DATA_LEN) else { panic!() };
        let data = shared.as_data();
        for table in (0..TRACE_TABLES).filter_map(|index| data.table(index)) {
            table.header.arena_limit.store(WORDS, Ordering::Relaxed);
            table.header.log_limit.store(RECORDS, Ordering::Relaxed);
        }
        data.control().slots_limit.store(layout::INITIAL_THREAD_SLOTS, Ordering::Relaxed);
        let mut target = HostileTarget { data, words: shared.words(), script: &honest[1..] };
        let mut recorder = Recorder::start(data).unwrap();
        target.sample();
        let status = recorder.collector.rotate(&mut recorder.batch, &|_| false);
        assert!(status.is_complete);
        assert_eq!((recorder.batch.samples.len(), recorder.batch.traces.entries().len()), (1, 1));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if is_long() { 60 } else { 15 }))]

        #[test]
        fn any_segment_is_drained(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
            drain(&bytes);
        }

        #[test]
        fn any_change_of_a_found_segment_is_drained(
            (which, at, byte) in (any::<usize>(), any::<usize>(), any::<u8>()),
        ) {
            let corpus = corpus();
            let mut bytes = corpus[which % corpus.len()].clone();
            let at = at % bytes.len().max(1);
            bytes.iter_mut().skip(at).take(1).for_each(|it| *it = byte);
            drain(&bytes);
        }
    }
}
