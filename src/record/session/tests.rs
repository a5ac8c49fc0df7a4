//! A rotation of the storage, from the shared tables to the writer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use traceprof_abi::layout::TRACE_TABLES;
use traceprof_abi::segment::DataSegment;
use traceprof_abi::storage::log::Sample;
use traceprof_abi::sync::{AtomicU64, Ordering};

use crate::record::batch::threads::{ThreadChange, ThreadLife};
use crate::record::contract::clock::{Clock, monotonic_now_ns};
use crate::record::source::kernel::tests::{feed_sample, without_kernel};
use crate::record::store::collector::Collector;
use crate::record::store::heaviest::Heaviest;
use crate::record::store::liveness::LastOfThreads;
use crate::record::store::set_times;
use crate::record::target::shm::own_data;
use crate::record::write::writer::{Writer, WriterThread};
use crate::trace::tests::heap::allocations;
use crate::trace::{Metadata, TraceSeries, TraceWriter, WriterOptions};

const THREADS: u32 = 4;
const SAMPLES: u64 = 200;

fn segment() -> DataSegment {
    let data = own_data();
    for table in (0..TRACE_TABLES).filter_map(|index| data.table(index)) {
        table.header.arena_limit.store(1 << 16, Ordering::Relaxed);
        table.header.log_limit.store(1 << 12, Ordering::Relaxed);
    }
    data.control().slots_limit.store(THREADS, Ordering::Relaxed);
    data
}

fn slot_of(data: DataSegment, tid: u32) -> u32 {
    let threads = data.threads();
    threads.find(tid).or_else(|| threads.claim(tid).index()).unwrap() as u32
}

/// Does what the handlers of all threads do between two rotations.
fn samples(data: DataSegment, clock_ticks: u64) {
    for number in 0..SAMPLES {
        let tid = number as u32 % THREADS + 1;
        let slot = slot_of(data, tid);
        let owner = data.threads().owner(slot as usize);
        let hazard = data.hazards().protect(owner, &data.control().active).unwrap();
        let table = data.table(hazard.table()).unwrap();
        let frames: Vec<_> = (0..20).map(|frame| AtomicU64::new(frame + number % 50)).collect();
        let trace_id = table.put(&frames, 0, 1).id();
        let time = clock_ticks + number;
        let sample = Sample { slot, tid, time, trace_id, weight: 1, ..Sample::default() };
        assert!(table.append_at(&sample).is_some());
        data.threads().slots[slot as usize].last_trace.store(trace_id, Ordering::Relaxed);
        assert!(data.hazards().release(hazard));
    }
}

/// Waits until the writer is idle: only then has it returned its batches.
fn wait_for(writer: &Writer) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !writer.is_idle() {
        assert!(Instant::now() < deadline, "the writer hangs");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Covers a complete rotation, except for the scans of `/proc` for threads and mappings.
#[test]
fn a_turn_in_steady_state_takes_no_memory() {
    let data = segment();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let writer = TraceSeries::of_one(TraceWriter::create(&path, WriterOptions::default()).unwrap());
    let writing = WriterThread::start(writer).unwrap();
    let writer = writing.join(0, 1, |answers| answers.names(1)).unwrap();
    let mut collector = Collector::start(data, Arc::default()).unwrap();
    collector.register(Box::new(LastOfThreads::new(data)));
    collector.register(Box::new(Heaviest::new(10)));
    let mut kernel = without_kernel();
    let mut clock = Clock::start(Clock::best_mode());
    let mut turn = |number: u64, news: Vec<ThreadChange>| {
        samples(data, number * 10_000);
        let now_ns = monotonic_now_ns();
        for number in 0..SAMPLES {
            // Every tenth sample is too late for this batch.
            let time_ns = if number % 10 == 0 { now_ns + 3_600_000_000_000 } else { now_ns };
            feed_sample(&mut kernel, number as u32 % THREADS, time_ns, 0x1000 + number % 30);
        }
        wait_for(&writer);
        allocations(|| {
            let mut shared = writer.blank();
            let batch = Arc::make_mut(&mut shared);
            batch.threads.extend(news);
            assert!(collector.rotate(batch, &|_| false).is_complete);
            clock.advance();
            set_times(&clock, batch);
            kernel.drain();
            let instance = || collector.take_instance();
            // Samples that were too late in the last rotation are due by now.
            kernel.take(now_ns + (number % 2) * 3_700_000_000_000, batch, instance, |tid, _, _| {
                (tid, 0)
            });
            batch.sort();
            collector.preserve(batch);
            assert!(batch.has_new_data());
            writer.send(shared);
        })
    };
    let seen = |slot| {
        let tid = slot as i32 + 1;
        let life = ThreadLife { tid, inner: (1, tid as u32), name: String::new(), start_ns: 1 };
        ThreadChange::Seen { key: (slot, 0), life }
    };
    assert!(turn(0, (0..THREADS).map(seen).collect()) > 0, "the counter does not count");
    // Two batches in circulation, so that one is free while the writer has the other.
    writer.send(Arc::default());
    let warm: Vec<u64> = (1..30).map(|number| turn(number, Vec::new())).collect();
    let steady: Vec<u64> = (30..60).map(|number| turn(number, Vec::new())).collect();
    assert_eq!(steady, [0; 30], "after {warm:?}");
    assert_eq!(collector.stats.orphans, 0);
    drop(writer);
    let finished = writing.finish();
    let (samples, unknown) = (finished.totals().samples, finished.totals().unattributed);
    assert_eq!((samples, unknown), (60 * 2 * SAMPLES, 0));
    assert!(finished.close(Metadata::new(), &collector.heaviest()).error.is_none());
}
