//! Tests of disks that are full, accept data slowly, or are broken.

use std::collections::BTreeSet;

use super::*;
use crate::test_turn::turn;
use crate::trace::index::CELL_BYTES;

/// A faulty disk of two files. It accepts data in pieces, and interrupts every other attempt.
#[derive(Debug, Default)]
struct Disk {
    files: [Vec<u8>; 2],
    /// The number of bytes of the data file that survive a crash of the machine.
    synced: usize,
    /// The most bytes of both files together.
    room: usize,
    /// The part of these bytes that only the end of the data file may use.
    reserve: usize,
    /// The error for a write that does not fit.
    full: i32,
    /// The number of the sync of the data file that fails.
    bad_sync: Option<u32>,
    syncs: u32,
    /// Whether cutting a file always fails.
    stuck: bool,
    interrupted: bool,
    now: Duration,
    /// The number of operations after a failed sync.
    after_failure: u32,
    failed: bool,
}

const DATA: usize = 0;
const INDEX: usize = 1;

#[derive(Debug, Clone)]
struct OnDisk(Arc<Mutex<Disk>>, usize);

impl Write for OnDisk {
    fn write(&mut self, new: &[u8]) -> io::Result<usize> {
        let mut disk = self.0.lock().unwrap();
        disk.after_failure += u32::from(disk.failed);
        disk.interrupted = !disk.interrupted;
        if disk.interrupted {
            return Err(io::Error::from_raw_os_error(libc::EINTR));
        }
        let used: usize = disk.files.iter().map(Vec::len).sum();
        let taken = new.len().min(61).min((disk.room - disk.reserve).saturating_sub(used));
        if taken == 0 {
            return Err(io::Error::from_raw_os_error(disk.full));
        }
        disk.files[self.1].extend_from_slice(&new[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink for OnDisk {
    fn cut(&mut self, bytes: u64) -> io::Result<()> {
        let mut disk = self.0.lock().unwrap();
        if disk.stuck {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        disk.files[self.1].truncate(bytes as usize);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut disk = self.0.lock().unwrap();
        if self.1 == INDEX {
            return Ok(());
        }
        disk.after_failure += u32::from(disk.failed);
        disk.syncs += 1;
        if disk.bad_sync == Some(disk.syncs - 1) {
            disk.failed = true;
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        disk.synced = disk.files[DATA].len();
        Ok(())
    }

    fn uptime(&self) -> Duration {
        self.0.lock().unwrap().now
    }

    fn release(&mut self) {
        self.0.lock().unwrap().reserve = 0;
    }
}

/// The outcome of a writer on a disk.
struct Outcome {
    disk: Arc<Mutex<Disk>>,
    result: Result<Written, TraceError>,
    /// The number of samples of each thread that a flush acknowledged.
    flushed: [usize; 2],
}

impl Outcome {
    fn data(&self) -> Vec<u8> {
        self.disk.lock().unwrap().files[DATA].clone()
    }

    fn index(&self) -> Vec<u8> {
        self.disk.lock().unwrap().files[INDEX].clone()
    }
}

const ROUNDS: u64 = 10;

fn options(durability: Durability) -> WriterOptions {
    let compress = Compression::None;
    WriterOptions { durability, compress, frame_bytes: 600, block_bytes: 300, ..Default::default() }
}

/// Writes until something fails, and then the end.
fn run(disk: Disk, options: WriterOptions) -> Result<Outcome, TraceError> {
    let disk = Arc::new(Mutex::new(disk));
    let target = |which, name: &str| {
        TraceFile::new(Box::new(OnDisk(Arc::clone(&disk), which)), PathBuf::from(name))
    };
    let (data, index) = (target(DATA, "x.trace"), target(INDEX, "x.trace.idx"));
    let options = WriterOptions { salt: Some(7), ..options };
    let mut writer = TraceWriter::with_files(data, index, options)?;
    let mut flushed = [0; 2];
    // Stops at the first error: the trace is ended below in any case.
    let _ = write_rounds(&mut writer, &disk, &mut flushed);
    writer.set_metadata("last_words", Value::Unsigned(1)).unwrap();
    Ok(Outcome { result: writer.finish(), disk, flushed })
}

fn write_rounds(
    writer: &mut TraceWriter,
    disk: &Mutex<Disk>,
    flushed: &mut [usize; 2],
) -> Result<(), TraceError> {
    writer.set_metadata("host", Value::Text("there".into()))?;
    let module = writer.module(&Module { path: "/bin/x".into(), build_id: vec![1] })?;
    let mut threads = Vec::new();
    for tid in 0..2 {
        threads.push(writer.thread(&thread(tid))?);
    }
    let mut written = [0; 2];
    for round in 0..ROUNDS {
        let name = format!("method {round}");
        let method = writer.method(&Method {
            module: Some(module),
            name,
            start_svma: round,
            ..Method::default()
        })?;
        let place = Location::at(method, round);
        let place = writer.location(&place)?;
        for n in 0..20 {
            let which = n as usize % 2;
            writer.sample(threads[which], &sample(round * 100 + n), &[place])?;
            written[which] += 1;
        }
        disk.lock().unwrap().now += Duration::from_millis(400);
        writer.flush()?;
        *flushed = written;
    }
    Ok(())
}

fn roomy() -> Disk {
    Disk { room: usize::MAX, full: libc::ENOSPC, ..Disk::default() }
}

fn loaded(data: &[u8]) -> LoadedTrace {
    load_bytes(data).unwrap_or_else(|error| panic!("{error}"))
}

fn counts(trace: &LoadedTrace) -> [usize; 2] {
    [0, 1].map(|place| trace.threads.get(place).map_or(0, ThreadTrace::sample_count))
}

/// Returns the end of the last frame in the index.
fn indexed_end(index: &[u8]) -> u64 {
    let cells = index[HEADER_BYTES..].chunks_exact(CELL_BYTES);
    let frames = cells.filter(|cell| cell[0] == Kind::Frame as u8);
    let end = |cell: &[u8]| u64::from_be_bytes(cell[13..21].try_into().unwrap());
    frames.map(end).max().unwrap_or(0)
}

#[test]
fn a_disk_that_is_full_at_any_byte_keeps_what_fits_and_the_end() {
    let whole = run(roomy(), options(Durability::Interval)).unwrap();
    let most = whole.result.unwrap();
    let all = loaded(&whole.disk.lock().unwrap().files[DATA]);
    let total = (most.data_bytes + most.index_bytes) as usize;
    let mut closed_short = 0;
    let mut seen = BTreeSet::new();
    for full in [libc::ENOSPC, libc::EDQUOT, libc::EIO, libc::EFBIG, libc::ENODEV] {
        // One error at more bytes than the others.
        let one_in = if full == libc::ENOSPC { 4 } else { 97 };
        for room in turn(2 * HEADER_BYTES..total, one_in) {
            let reserve = 1000;
            let disk = Disk { room: room + reserve, reserve, full, ..Disk::default() };
            let outcome = run(disk, options(Durability::Interval)).unwrap();
            let Err(error) = &outcome.result else {
                // The end of the index used the space that the end of the data did not need.
                assert!(room + reserve >= total, "room {room}: nothing failed");
                continue;
            };
            assert!(error.is_output_error());
            let TraceError::CutShort { source, kept, lost_samples, closed, path } = error else {
                panic!("{error}")
            };
            assert_eq!(source.raw_os_error(), Some(full));
            let data = outcome.data();
            let trace = loaded(&data);
            assert_eq!(trace.closed, *closed, "room {room}: {:?}", trace.notices);
            assert!(closed, "room {room}: the reserve was large enough");
            assert!(trace.notices.is_empty(), "{:?}", trace.notices);
            assert!((0..2).all(|n| counts(&trace)[n] >= outcome.flushed[n]), "room {room}");
            assert_eq!(counts(&trace).iter().sum::<usize>() as u64, kept.samples);
            assert_eq!(kept.data_bytes, data.len() as u64);
            for (part, whole) in trace.threads.iter().zip(&all.threads) {
                let (part, whole) = (samples_of(part), samples_of(whole));
                assert_eq!(part[..], whole[..part.len()], "room {room}");
            }
            if path == Path::new("x.trace") {
                let Some(Value::Text(text)) = trace.metadata.get("write_error") else {
                    panic!("room {room}: no reason in the file")
                };
                assert!(text.contains(&format!("os error {full}")), "{text}");
                assert_eq!(trace.metadata.get("last_words"), Some(&Value::Unsigned(1)));
                assert!(trace.metadata.contains_key("trace_uuid"));
                closed_short += 1;
            } else {
                assert_eq!(*lost_samples, 0, "the index does not end a recording");
            }
            assert!(indexed_end(&outcome.index()) <= data.len() as u64);
            seen.insert(kept.samples);
        }
    }
    assert!(closed_short > 1000 && seen.len() as u64 == ROUNDS + 1, "{closed_short} {seen:?}");
}

#[test]
fn without_a_reserve_a_full_disk_still_leaves_whole_frames() {
    let total = {
        let written = run(roomy(), options(Durability::None)).unwrap().result.unwrap();
        (written.data_bytes + written.index_bytes) as usize
    };
    let mut ended = [0; 2];
    for room in turn(2 * HEADER_BYTES..total, 4) {
        let disk = Disk { room, full: libc::ENOSPC, ..Disk::default() };
        let outcome = run(disk, options(Durability::None)).unwrap();
        let Err(TraceError::CutShort { closed, kept, .. }) = &outcome.result else {
            panic!("room {room}")
        };
        let trace = loaded(&outcome.data());
        assert_eq!((trace.closed, trace.notices.is_empty()), (*closed, *closed));
        assert_eq!(counts(&trace).iter().sum::<usize>() as u64, kept.samples);
        ended[usize::from(*closed)] += 1;
    }
    assert!(ended[0] > 10 && ended[1] > 10, "{ended:?}");
}

#[test]
fn the_metadata_is_left_out_of_an_end_that_has_no_room_for_it() {
    let mut ends = Vec::new();
    for reserve in 0..400 {
        let disk = Disk { room: 1500 + reserve, reserve, full: libc::ENOSPC, ..Disk::default() };
        let outcome = run(disk, options(Durability::None)).unwrap();
        let trace = loaded(&outcome.data());
        let has = |key| trace.metadata.contains_key(key);
        assert_eq!((trace.closed, has("trace_uuid")), (has("write_error"), true));
        ends.push((trace.closed, has("last_words")));
    }
    assert!(ends.is_sorted(), "more room, less said: {ends:?}");
    ends.dedup();
    assert_eq!(ends, [(false, false), (true, false), (true, true)]);
}

#[test]
fn a_file_that_cannot_be_cut_gets_no_end() {
    for room in (400..2000).step_by(31) {
        let disk = Disk { room, stuck: true, full: libc::EIO, ..Disk::default() };
        let outcome = run(disk, options(Durability::None)).unwrap();
        let Err(TraceError::CutShort { closed, kept, .. }) = &outcome.result else {
            panic!("room {room}")
        };
        let trace = loaded(&outcome.data());
        assert!(!closed && !trace.closed);
        assert_eq!(counts(&trace).iter().sum::<usize>() as u64, kept.samples);
    }
}

#[test]
fn a_failed_sync_is_final_and_what_was_synced_before_stays() {
    for durability in [Durability::Interval, Durability::Frame] {
        let good = run(roomy(), options(durability)).unwrap();
        let syncs = good.disk.lock().unwrap().syncs;
        let least = if durability == Durability::Frame { ROUNDS as u32 } else { 2 };
        assert!(syncs > least && good.result.is_ok(), "{syncs}");
        for bad in 0..syncs {
            let disk = Disk { bad_sync: Some(bad), ..roomy() };
            let outcome = run(disk, options(durability)).unwrap();
            let Err(TraceError::CutShort { closed, kept, source, .. }) = &outcome.result else {
                panic!("sync {bad}")
            };
            assert_eq!((*closed, source.raw_os_error()), (false, Some(libc::EIO)));
            let data = outcome.data();
            let trace = loaded(&data);
            assert_eq!(counts(&trace).iter().sum::<usize>() as u64, kept.samples);
            let disk = outcome.disk.lock().unwrap();
            assert_eq!(data.len(), disk.synced.max(HEADER_BYTES), "sync {bad}");
            assert_eq!(disk.after_failure, 0, "sync {bad}: the file was touched again");
            assert!(indexed_end(&disk.files[INDEX]) <= disk.synced as u64);
        }
    }
}

#[test]
fn the_index_names_no_frame_that_a_crash_of_the_machine_could_lose() {
    for durability in [Durability::Interval, Durability::Frame, Durability::None] {
        let disk = Arc::new(Mutex::new(roomy()));
        let target = |which| TraceFile::new(Box::new(OnDisk(Arc::clone(&disk), which)), "x".into());
        let mut writer =
            TraceWriter::with_files(target(DATA), target(INDEX), options(durability)).unwrap();
        let id = writer.thread(&thread(1)).unwrap();
        let mut behind = 0;
        for round in 0..40 {
            writer.sample(id, &sample(round), &[]).unwrap();
            writer.flush().unwrap();
            let mut disk = disk.lock().unwrap();
            disk.now += Duration::from_millis(100);
            let indexed = indexed_end(&disk.files[INDEX]);
            match durability {
                Durability::None => assert_eq!(indexed, disk.files[DATA].len() as u64),
                _ => assert!(indexed <= disk.synced as u64),
            }
            behind += u32::from(indexed < disk.files[DATA].len() as u64);
        }
        let interval = durability == Durability::Interval;
        assert_eq!(behind > 0, interval, "{durability:?}");
        let syncs = disk.lock().unwrap().syncs;
        let expected = match durability {
            Durability::None => 0..=0,
            Durability::Interval => 3..=5,
            Durability::Frame => 40..=40,
        };
        assert!(expected.contains(&syncs), "{durability:?}: {syncs}");
        writer.finish().unwrap();
        let disk = disk.lock().unwrap();
        assert_eq!(disk.synced == disk.files[DATA].len(), durability != Durability::None);
    }
}

#[test]
fn index_groups_that_wait_for_a_sync_stay_few() {
    let disk = Arc::new(Mutex::new(roomy()));
    let target = |which| TraceFile::new(Box::new(OnDisk(Arc::clone(&disk), which)), "x".into());
    let options = WriterOptions { compress: Compression::None, ..WriterOptions::default() };
    let mut writer = TraceWriter::with_files(target(DATA), target(INDEX), options).unwrap();
    // The clock stands still: only bytes count.
    let mut behind_most = 0;
    for number in 0..10_000 {
        let name = format!("{number:01000}");
        writer.method(&Method { module: None, name, ..Method::default() }).unwrap();
        let disk = disk.lock().unwrap();
        behind_most = behind_most.max(disk.files[DATA].len() - disk.synced);
    }
    let disk = disk.lock().unwrap();
    assert!(disk.files[DATA].len() > 9 << 20 && disk.syncs >= 1);
    assert!(behind_most <= (8 << 20) + (512 << 10), "{behind_most}");
}

#[test]
fn a_failed_writer_accepts_nothing_and_does_not_grow() {
    let disk = Disk { room: 2000, full: libc::ENOSPC, ..Disk::default() };
    let disk = Arc::new(Mutex::new(disk));
    let target = |which| TraceFile::new(Box::new(OnDisk(Arc::clone(&disk), which)), "x".into());
    let mut writer =
        TraceWriter::with_files(target(DATA), target(INDEX), options(Durability::None)).unwrap();
    let mut flushed = [0; 2];
    let error = write_rounds(&mut writer, &disk, &mut flushed).unwrap_err();
    assert!(error.to_string().contains("free some space"), "{error}");
    let waiting = writer.waiting();
    for round in 0..100 {
        assert!(writer.sample(ThreadId(0), &sample(round), &[]).is_err());
        assert!(writer.thread_exit(ThreadId(0), 1).is_err() && writer.flush().is_err());
        assert!(writer.thread(&thread(9)).is_err());
    }
    assert_eq!(writer.waiting(), waiting);
}

#[test]
fn headers_that_do_not_fit_are_an_error_at_the_start() {
    for room in 0..2 * HEADER_BYTES {
        let disk = Disk { room, full: libc::ENOSPC, ..Disk::default() };
        let error = run(disk, options(Durability::None)).map(drop).unwrap_err();
        assert!(matches!(error, TraceError::Io { writing: true, .. }), "{error}");
    }
}
