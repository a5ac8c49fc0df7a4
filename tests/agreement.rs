//! Damaged traces: what one command can read, all can, and they say the same about the rest.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use traceprof::trace::{
    Compression, Durability, FileState, IndexState, LazyTrace, Location, LocationId, MappedModule,
    Method, Module, Sample, Thread, ThreadId, TraceError, TraceWriter, Value, Verification,
    WriteMode, WriterOptions, dump_objects, index_path, recover, reindex, verify,
};
use traceprof::view::diff::{self, DiffFormat, DiffOptions, DiffSide};
use traceprof::view::export::{self, ExportOptions, Format};
use traceprof::view::html::{self, PageOptions};
use traceprof::view::timeline::{self, TimelineOptions};
use traceprof::view::{self, PrintLimits, Profile, Selected, Selection, ViewError};

use traceprof_abi::storage::log::flags::WALL;

use crate::common::{Maker, Random, Trace, is_long_run, seed, traceprof};

/// The distance between the flipped bits, except in long runs, which flip each bit. It is odd, so
/// that all bits of bytes take part. The first one depends on the seed, so that all bits have their
/// turn.
const BITS_APART: usize = 991;
/// The distance between the lengths of truncated files, except in long runs.
const LENGTHS_APART: usize = 151;

fn options(compress: Compression) -> WriterOptions {
    WriterOptions {
        compress,
        force: true,
        salt: Some(7),
        durability: Durability::None,
        ..WriterOptions::default()
    }
}

/// Writes a trace of three threads whose frames are as a recorder's: with and without samples, with
/// and without objects. Returns the two files.
fn files(trace: &Trace, compress: Compression, closed: bool) -> [Vec<u8>; 2] {
    let mut writer = TraceWriter::create(&trace.path(), options(compress)).unwrap();
    writer.set_metadata("period_ns", Value::Unsigned(1_000_000)).unwrap();
    writer.set_metadata("mode", Value::Text("cpu".to_owned())).unwrap();
    writer.flush().unwrap();
    let path = "/bin/x".to_owned();
    let module = writer.module(&Module { path, build_id: vec![1, 2] }).unwrap();
    let (start, end) = (0x1000, 0x2000);
    let mapped = MappedModule { pid: 1, start, end, file_offset: 0, module, first_seen_ns: 5 };
    writer.mapped_module(&mapped).unwrap();
    let threads = [1, 2, 3].map(|tid| {
        let thread = Thread { pid: 1, tid, name: format!("thread {tid}"), ..Thread::default() };
        writer.thread(&thread).unwrap()
    });
    writer.flush().unwrap();
    let mut locations = Vec::new();
    let mut time_ns = 1_000_000_000;
    for frame in 0..4 {
        for number in 0..3 {
            locations.push(location(&mut writer, module, frame * 3 + number));
        }
        let pipe = writer.text("pipe").unwrap();
        for number in 0..12 {
            time_ns += 1_000_000;
            let place = |depth| locations[(depth * 5 + number / 4 + frame) % locations.len()];
            let stack: Vec<_> = (0..number % 4).map(place).collect();
            let waits_on = (number == 3).then_some(pipe);
            let end_reason = u16::from(number == 7);
            let sample = Sample { time_ns, end_reason, waits_on, ..Sample::default() };
            let thread = threads[number % if frame < 2 { 3 } else { 2 }];
            writer.sample(thread, &sample, &stack).unwrap();
        }
        writer.flush().unwrap();
        if frame == 1 {
            writer.rename_thread(threads[0], "renamed").unwrap();
            writer.flush().unwrap();
            writer.thread_exit(threads[2], time_ns).unwrap();
            writer.flush().unwrap();
        }
    }
    writer.set_metadata("end_monotonic_ns", Value::Unsigned(time_ns)).unwrap();
    writer.flush().unwrap();
    if closed {
        writer.finish().unwrap();
    } else {
        drop(writer);
    }
    [trace.path(), index_path(&trace.path())].map(|path| fs::read(path).unwrap())
}

fn location(writer: &mut TraceWriter, module: traceprof::trace::ModuleId, n: usize) -> LocationId {
    let start_svma = n as u64 * 16;
    let method = Method { module: Some(module), start_svma, ..Method::named(&format!("f{n}")) };
    let method = writer.method(&method).unwrap();
    let file = n.is_multiple_of(2).then(|| "x.c".to_owned());
    let svma = start_svma + 4;
    writer.location(&Location { file, line: 3, ..Location::at(method, svma) }).unwrap()
}

/// What a command says about a file: the number of samples, or the error.
type Answer = Result<u64, String>;

/// Returns an error without its place.
fn named(error: TraceError) -> String {
    match error {
        TraceError::Corrupt { what, .. } => what.to_owned(),
        TraceError::NotATrace { .. } => "not a trace".to_owned(),
        TraceError::NewerVersion { major, .. } => format!("version {major}"),
        other => other.to_string(),
    }
}

fn named_of_view(error: ViewError) -> String {
    match error {
        ViewError::Trace(error) => named(error),
        other => format!("{other:?}"),
    }
}

fn opened(path: &Path) -> Result<(LazyTrace, Selected), String> {
    let trace = LazyTrace::open(path).map_err(named)?;
    let selected = Selection::default().resolve(&trace)?;
    Ok((trace, selected))
}

/// Writes a profile in the forms of `export`, `view` and `diff`, and compares their sums.
fn exported(trace: &LazyTrace, (selected, profile): (&Selected, &Profile), case: &str) {
    let mut folded = Vec::new();
    let options = ExportOptions { threads: true, ..ExportOptions::new(Format::Folded) };
    export::write(trace, (selected, profile), &options, &mut folded).unwrap();
    let folded = String::from_utf8(folded).unwrap();
    let weights = folded.lines().map(|line| line.rsplit_once(' ').unwrap().1);
    let sum = weights.map(|weight| weight.parse::<u64>().unwrap()).sum::<u64>();
    assert_eq!(sum, profile.count().weight, "{case}: export");
    static EXPORTED: AtomicUsize = AtomicUsize::new(0);
    if is_long_run() || EXPORTED.fetch_add(1, Ordering::Relaxed).is_multiple_of(8) {
        let page = PageOptions::default();
        html::write(trace, &[(selected, profile)], &page, &mut Vec::new()).unwrap();
    }
}

/// Counts the samples that `dump` lists.
fn dumped(path: &Path) -> Answer {
    let mut samples = 0;
    for object in dump_objects(path).map_err(named)? {
        samples += u64::from(object.map_err(named)?.kind == "TRACEPOINT_SAMPLE");
    }
    Ok(samples)
}

/// Reads a file as `print`, `export` and `view` do, and compares what they say with the
/// verification.
fn printed(path: &Path, verified: &Result<Verification, String>, case: &str) -> Answer {
    let (trace, selected) = opened(path)?;
    let profile = view::load(&trace, &selected).map_err(named_of_view)?;
    let Ok(verified) = verified else { return Ok(profile.count().samples) };
    exported(&trace, (&selected, &profile), case);
    assert_eq!(trace.state(), verified.state(), "{case}");
    let recording = &profile.recording;
    assert_eq!(recording.bad, verified.bad, "{case}");
    assert_eq!(recording.losses, verified.losses, "{case}");
    assert_eq!(recording.closed, verified.closed, "{case}");
    let noted = !trace.notices().is_empty();
    assert!(noted || verified.state() == FileState::Clean, "{case}: no note");
    let samples = trace.threads().iter().map(|thread| thread.samples).sum::<u64>();
    assert_eq!(samples, verified.samples, "{case}: the threads' samples");
    assert_eq!(trace.threads().len(), verified.threads as usize, "{case}");
    // Samples of CPU time and of all time are views of their own.
    let mut all = 0;
    let window = traceprof::trace::Window::default();
    trace.for_each_sample_as_written(&window, &mut |_, _, _| all += 1).map_err(named)?;
    assert!(profile.count().samples <= all, "{case}");
    Ok(all)
}

fn timeline(path: &Path) -> Answer {
    let (trace, selected) = opened(path)?;
    let limits = PrintLimits { min_percent: 0.0, depth: None };
    let options = TimelineOptions { verbose: true, limits, ..TimelineOptions::default() };
    timeline::write(&trace, &selected, &options, &mut Vec::new()).map_err(named_of_view)?;
    Ok(trace.threads().iter().map(|thread| thread.samples).sum())
}

fn compared(path: &Path) -> Answer {
    let (trace, selected) = opened(path)?;
    let side = DiffSide::load(&trace, &selected, "x").map_err(named_of_view)?;
    let options = DiffOptions { format: DiffFormat::Table, paths: true, top: 30 };
    diff::write(&side, &side, &options, &mut Vec::new()).unwrap();
    Ok(side.samples())
}

/// Checks that all commands agree about a file. Returns its state, if it can be read.
fn check(path: &Path, output: &Path, case: &str) -> Option<FileState> {
    let verified = verify(path).map_err(named);
    let samples = verified.as_ref().map(|verified| verified.samples).map_err(Clone::clone);
    assert_eq!(printed(path, &verified, case), samples, "{case}: print");
    assert_eq!(timeline(path), samples, "{case}: timeline");
    // A view has the samples of one mode.
    match (compared(path), &samples) {
        (Ok(found), Ok(all)) => assert!(found <= *all, "{case}: diff"),
        (found, _) => assert_eq!(found, samples, "{case}: diff"),
    }
    let dumped = dumped(path);
    assert!(samples.is_err() || dumped == samples, "{case}: dump: {dumped:?}");
    let recovered = recover(path, output, options(Compression::None)).map_err(named);
    let saved = recovered.as_ref().map(|recovered| recovered.samples).map_err(Clone::clone);
    assert_eq!(saved, samples, "{case}: recover");
    let state = verified.ok()?.state();
    assert_eq!(recovered.ok()?.was, state, "{case}: recover");
    assert_eq!(verify(output).map_err(named).unwrap().state(), FileState::Clean, "{case}");
    check_new_index(path, &samples, case);
    Some(state)
}

/// Checks that a new index of a file matches it, and changes nothing.
fn check_new_index(path: &Path, samples: &Answer, case: &str) {
    let before = fs::read(index_path(path)).ok();
    match reindex(path, false) {
        Ok(_) => {
            let verified = verify(path).map_err(named);
            let index = verified.as_ref().map(|verified| verified.index.clone());
            assert_eq!(index, Ok(IndexState::Sound), "{case}: reindex");
            assert_eq!(printed(path, &verified, case), *samples, "{case}: reindex");
        }
        Err(_) => assert_eq!(*samples, Ok(0), "{case}: reindex"),
    }
    match before {
        Some(before) => fs::write(index_path(path), before).unwrap(),
        None => drop(fs::remove_file(index_path(path))),
    }
}

/// Checks flipped bits and truncations of a trace that was closed and of one that was not.
fn check_damage(compress: Compression, with_index: bool) {
    let [whole, damaged, saved] = [(); 3].map(|()| Trace::new());
    let [bits_apart, lengths_apart] =
        if is_long_run() { [1, 1] } else { [BITS_APART, LENGTHS_APART] };
    let first = |apart: usize| seed() as usize % apart;
    for closed in [true, false] {
        let [data, index] = files(&whole, compress, closed);
        if with_index {
            fs::write(damaged.index_path(), &index).unwrap();
        }
        let mut lossy = 0;
        for bit in (first(bits_apart)..data.len() * 8).step_by(bits_apart) {
            let mut flipped = data.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            fs::write(damaged.path(), flipped).unwrap();
            let case = format!("{compress:?}, closed {closed}, bit {bit}");
            let state = check(&damaged.path(), &saved.path(), &case);
            // The magic and the major version are the only bytes on which everything depends.
            assert!(state.is_some() || bit / 8 < 12, "{case}: not readable");
            lossy += usize::from(state == Some(FileState::Lossy));
        }
        assert!(lossy > 15, "{lossy}");
        for length in (first(lengths_apart)..data.len()).step_by(lengths_apart) {
            fs::write(damaged.path(), &data[..length]).unwrap();
            let case = format!("{compress:?}, closed {closed}, {length} bytes");
            let state = check(&damaged.path(), &saved.path(), &case);
            assert_eq!(state.is_some(), length >= 16, "{case}");
        }
    }
}

#[test]
fn commands_agree_on_damage_of_a_plain_trace() {
    check_damage(Compression::None, false);
}

#[test]
fn commands_agree_on_damage_of_a_plain_trace_with_index() {
    check_damage(Compression::None, true);
}

#[test]
fn commands_agree_on_damage_of_a_compressed_trace() {
    check_damage(Compression::Zstd(3), false);
}

#[test]
fn commands_agree_on_damage_of_a_compressed_trace_with_index() {
    check_damage(Compression::Zstd(3), true);
}

/// Writes a random trace: renamed threads, exits, modules, texts and metadata between its samples.
fn write_random(trace: &Trace, random: &mut Random) {
    let compress = [Compression::None, Compression::Zstd(3)][random.below(2) as usize];
    let mode = [WriteMode::Streaming, WriteMode::Collect][(random.below(4) == 0) as usize];
    let frame_bytes = [200, 1000, 4000][random.below(3) as usize];
    let block_bytes = [90, 400, 4000][random.below(3) as usize];
    let options = WriterOptions { mode, frame_bytes, block_bytes, ..options(compress) };
    let mut writer = TraceWriter::create(&trace.path(), options).unwrap();
    let mode = ["cpu,wall", "cpu"][random.below(2) as usize];
    writer.set_metadata("mode", Value::Text(mode.to_owned())).unwrap();
    let path = "/bin/x".to_owned();
    let module = writer.module(&Module { path, build_id: Vec::new() }).unwrap();
    let mut live: Vec<ThreadId> = Vec::new();
    let mut locations = Vec::new();
    let mut time_ns = 1_000_000_000;
    for step in 0..50 + random.below(500) {
        time_ns += random.below(3) * 500_000;
        let one = |random: &mut Random, count: usize| random.below(count as u64) as usize;
        match random.below(20) {
            0 => {
                let (tid, name) = (step as u32 + 1, format!("t{}", random.below(4)));
                let thread = Thread { pid: 1, tid, name, ..Thread::default() };
                live.push(writer.thread(&thread).unwrap());
            }
            1 if !live.is_empty() => {
                let ended = live.swap_remove(one(random, live.len()));
                writer.thread_exit(ended, time_ns).unwrap();
            }
            2 if !live.is_empty() => {
                let name = format!("n{}", random.below(5));
                writer.rename_thread(live[one(random, live.len())], &name).unwrap();
            }
            3 => writer.set_metadata(&format!("k{}", step % 8), Value::Unsigned(step)).unwrap(),
            4 => writer.flush().unwrap(),
            5 => locations.push(location(&mut writer, module, locations.len())),
            _ if live.is_empty() || locations.is_empty() => {}
            _ => {
                let depth = random.below(7) as usize;
                let place = |depth| locations[(depth * 3 + step as usize / 40) % locations.len()];
                let stack: Vec<_> = (0..depth).map(place).collect();
                let flags = if random.below(5) == 0 { WALL } else { 0 };
                let end_reason = u16::from(random.below(9) == 0);
                let sample = Sample { time_ns, flags, end_reason, ..Sample::default() };
                writer.sample(live[one(random, live.len())], &sample, &stack).unwrap();
            }
        }
    }
    match random.below(4) {
        0 => drop(writer),
        _ => drop(writer.finish().unwrap()),
    }
}

/// Damages bytes in one of many ways.
fn damage(bytes: &mut Vec<u8>, random: &mut Random) {
    if bytes.is_empty() {
        return;
    }
    let at = random.below(bytes.len() as u64) as usize;
    let length = [1, 8, 50, 300, 2000, 9000][random.below(6) as usize];
    let end = bytes.len().min(at + length);
    match random.below(7) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at..end].fill(0),
        2 => bytes[at..end].fill_with(|| random.below(256) as u8),
        3 => drop(bytes.drain(at..end)),
        4 => {
            let copy = bytes[at..end].to_vec();
            bytes.splice(at..at, copy);
        }
        5 => {
            let room = bytes.len() - (end - at) + 1;
            bytes.copy_within(at..end, random.below(room as u64) as usize);
        }
        _ => bytes.truncate(at + 1),
    }
}

#[test]
fn commands_agree_on_random_damage_of_random_traces() {
    let mut random = Random::new(21);
    let [whole, damaged, saved] = [(); 3].map(|()| Trace::new());
    for round in 0..if is_long_run() { 400 } else { 3 } {
        write_random(&whole, &mut random);
        let [data, index] = [whole.path(), whole.index_path()].map(|path| fs::read(path).unwrap());
        for number in 0..40 {
            let (mut data, mut index) = (data.clone(), index.clone());
            for _ in 0..=random.below(3) {
                damage(&mut data, &mut random);
            }
            if random.below(4) == 0 {
                damage(&mut index, &mut random);
            }
            fs::write(damaged.path(), data).unwrap();
            let _ = fs::remove_file(damaged.index_path());
            if random.below(3) > 0 {
                fs::write(damaged.index_path(), index).unwrap();
            }
            let seed = seed();
            let case = format!("TRACEPROF_TEST_SEED={seed}, trace {round}, damage {number}");
            check(&damaged.path(), &saved.path(), &case);
        }
    }
}

/// Returns the exit code and the standard error of a command with these traces.
fn ran(args: &[&str], paths: &[&Path]) -> (i32, String, String) {
    let output = traceprof(args).args(paths).output().expect("traceprof");
    let [out, err] = [output.stdout, output.stderr].map(|it| String::from_utf8(it).expect("text"));
    (output.status.code().expect("an exit code"), out, err)
}

/// Returns the offsets of the frames.
fn frames(bytes: &[u8]) -> Vec<usize> {
    let magic = b"\xd7FRAME\x1a\n";
    bytes.windows(8).enumerate().filter(|(_, window)| window == magic).map(|(at, _)| at).collect()
}

/// The exit codes of the commands for a trace with a frame that is lost.
fn check_codes(trace: &Trace, frame: usize, damage: &str) {
    let bytes = fs::read(trace.path()).unwrap();
    let path = &*trace.path();
    let mut flipped = bytes.clone();
    flipped[frames(&bytes)[frame] + 40] ^= 1;
    fs::write(path, &flipped).unwrap();
    assert_eq!(ran(&["verify"], &[path]).0, 9);
    for view in [&["print", "--tree"][..], &["print", "--timeline"], &["print", "--top", "3"]] {
        let (code, out, err) = ran(view, &[path]);
        assert_eq!(code, 0, "{view:?}: {err}");
        assert!(err.contains("note: the trace is damaged: "), "{view:?}: {err}");
        assert!(out.contains(damage), "{view:?}: {out}");
    }
    for (view, paths) in [
        (&["export", "--format", "folded"][..], &[path][..]),
        (&["view", "--output", "-"], &[path]),
        (&["diff"], &[path, path]),
    ] {
        let (code, _, err) = ran(view, paths);
        assert_eq!(code, 0, "{view:?}: {err}");
        assert!(err.contains("note: the trace is damaged: "), "{view:?}: {err}");
    }
    let saved = Trace::new();
    assert_eq!(ran(&["recover"], &[path, &saved.path()]).0, 9);
    fs::write(path, &bytes).unwrap();
}

/// Regression test of issue 21: `print` refused such a trace, though nothing but an object was
/// lost.
#[test]
fn a_lost_frame_without_samples_costs_its_objects_only() {
    let mut maker = Maker::new();
    let thread = maker.thread(100, "one");
    maker.flush();
    maker.sample(thread, 1, "main work");
    maker.flush();
    maker.writer.set_metadata("after", Value::Unsigned(1)).unwrap();
    maker.flush();
    maker.sample(thread, 2, "main work");
    let trace = maker.finish();
    check_codes(&trace, 2, " bytes can no longer be read; no sample is lost\n");
    fs::remove_file(trace.index_path()).unwrap();
    check_codes(&trace, 2, " bytes can no longer be read; no sample is lost\n");
}

/// Without its metadata, a trace of all time looked like one of CPU time: `diff` refused to compare
/// it, and the views left most samples out.
#[test]
fn samples_say_the_mode_if_it_is_lost() {
    let made = || {
        let mut maker = Maker::new();
        maker.writer.set_metadata("mode", Value::Text("wall".to_owned())).unwrap();
        maker.flush();
        let thread = maker.thread(100, "one");
        maker.sample(thread, 1, "main work");
        maker.wait_sample(thread);
        maker.finish()
    };
    let (sound, damaged) = (made(), made());
    let mut bytes = fs::read(damaged.path()).unwrap();
    let first = frames(&bytes)[0];
    bytes[first + 40] ^= 1;
    fs::write(damaged.path(), bytes).unwrap();
    let (code, _, err) = ran(&["diff"], &[&sound.path(), &damaged.path()]);
    assert_eq!(code, 0, "{err}");
    let (_, out, _) = ran(&["export", "--format", "folded"], &[&damaged.path()]);
    assert!(out.contains("wait"), "{out}");
}

/// A trace without a sample is no mistake on the command line.
#[test]
fn diff_says_why_a_trace_has_no_sample() {
    let mut maker = Maker::new();
    let thread = maker.thread(100, "one");
    maker.flush();
    maker.sample(thread, 1, "main work");
    let trace = maker.finish();
    let bytes = fs::read(trace.path()).unwrap();
    let frames = frames(&bytes);
    let check = |bytes: &[u8], verified: i32, code: i32, text: &str| {
        fs::write(trace.path(), bytes).unwrap();
        let path = &*trace.path();
        assert_eq!(ran(&["verify"], &[path]).0, verified);
        let (found, _, err) = ran(&["diff"], &[path, path]);
        assert_eq!(found, code, "{err}");
        assert!(err.contains(text), "{err}");
        assert_eq!(ran(&["print", "--tree"], &[path]).0, 0);
    };
    check(&bytes[..frames[1]], 8, 8, "has no sample yet: its recording did not end");
    let mut flipped = bytes.clone();
    flipped[frames[0] + 40] ^= 1;
    flipped[frames[1] + 40] ^= 1;
    check(&flipped, 9, 9, "has no sample left: parts of it are lost");
    let empty = Maker::new().finish();
    check(&fs::read(empty.path()).unwrap(), 0, 4, "has no sample to compare");
}
