//! A recorder that is killed at any moment: everything that it wrote before is readable, and
//! nothing else.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use traceprof::trace::{
    self, Compression, Durability, LazyTrace, Location, LocationId, Method, Sample, Thread,
    TraceWriter, Window, WriterOptions,
};

use crate::common::{
    Random, Snapshot, Target, is_long_run, needs_recording, scratch_dir, together, traceprof,
    wait_until,
};

/// Returns the number of kills: few in a normal run, many in a long run, or the number that
/// `scripts/kill-recorder` sets.
fn rounds(usual: u64, long: u64) -> u64 {
    let asked = std::env::var("TRACEPROF_TEST_KILLS").ok().and_then(|text| text.parse().ok());
    asked.unwrap_or(if is_long_run() { long } else { usual })
}

fn number(bytes: &[u8], at: usize, width: usize) -> u64 {
    bytes[at..at + width].iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// Returns the end and the sample count of each complete frame of a data file, parsed by the
/// specification alone.
fn whole_frames(data: &[u8]) -> Vec<(usize, u64)> {
    const HEADER: usize = 104;
    let mut frames = Vec::new();
    let mut at = 16;
    while data.len() >= at + HEADER {
        let header = &data[at..at + HEADER];
        if number(header, 0, 8) != 0xd746_5241_4d45_1a0a
            || number(header, 16, 8) != at as u64
            || u64::from(crc32fast::hash(&header[..100])) != number(header, 100, 4)
        {
            break;
        }
        let mut end = at + HEADER;
        let mut sound = true;
        for section in [40, 52, 64] {
            let stored = number(header, section, 4) as usize;
            let bytes = data.get(end..end + stored);
            sound &= bytes.is_some_and(|bytes| {
                u64::from(crc32fast::hash(bytes)) == number(header, section + 8, 4)
            });
            end += stored;
        }
        let trailer = data.get(end..end + 8);
        end += 8;
        let length = (end - at) as u64;
        if !sound || trailer.is_none_or(|trailer| number(trailer, 0, 4) != length) {
            break;
        }
        frames.push((end, number(header, 80, 4)));
        at = end;
    }
    frames
}

/// Checks the files of a writer that was killed, and returns the samples of each thread.
fn check_files(path: &Path, round: &str) -> Vec<Vec<(Sample, Vec<LocationId>)>> {
    let data = std::fs::read(path).expect("data file");
    let frames = whole_frames(&data);
    let trace = trace::load(path).unwrap_or_else(|error| panic!("{round}: {error}"));
    let mut threads = Vec::new();
    for thread in &trace.threads {
        let mut samples = Vec::new();
        thread.for_each_sample(&mut |sample, stack| samples.push((sample.clone(), stack.to_vec())));
        assert!(samples.is_sorted_by_key(|(sample, _)| sample.time_ns), "{round}: times go back");
        threads.push(samples);
    }
    let loaded: usize = threads.iter().map(Vec::len).sum();
    let in_frames: u64 = frames.iter().map(|(_, samples)| samples).sum();
    assert_eq!(loaded as u64, in_frames, "{round}: samples of complete frames");
    let end = frames.last().map_or(16, |(end, _)| *end);
    assert!(trace.closed || data.len() == end || !trace.notices.is_empty(), "{round}");
    check_index(path, &frames, round);
    check_lazily(path, &threads, round);
    threads
}

/// Checks that the reader that uses the index returns the same samples.
fn check_lazily(path: &Path, threads: &[Vec<(Sample, Vec<LocationId>)>], round: &str) {
    let lazy = LazyTrace::open(path).unwrap_or_else(|error| panic!("{round}: lazily: {error}"));
    assert!(!lazy.closed() && lazy.losses().is_empty(), "{round}: {:?}", lazy.losses());
    let counts: Vec<u64> = lazy.threads().iter().map(|thread| thread.samples).collect();
    let expected: Vec<u64> = threads.iter().map(|samples| samples.len() as u64).collect();
    assert_eq!(counts, expected, "{round}: lazily");
    let mut read = vec![Vec::new(); threads.len()];
    let all = lazy.for_each_sample(&Window::default(), &mut |thread, sample, stack| {
        read[thread.0 as usize].push((sample.clone(), stack.to_vec()));
    });
    all.unwrap_or_else(|error| panic!("{round}: lazily: {error}"));
    assert!(read == threads, "{round}: other samples lazily");
}

/// Checks that the index is sound or torn at its end, and that it names no missing frame.
fn check_index(path: &Path, frames: &[(usize, u64)], round: &str) {
    let mut index = path.as_os_str().to_owned();
    index.push(".idx");
    let index = Path::new(&index);
    let length = std::fs::metadata(index).map_or(0, |meta| meta.len());
    if length < 16 {
        return;
    }
    let mut indexed = 0;
    for cell in trace::dump_index(index).expect("header of the index") {
        match cell {
            Ok(cell) if cell.kind_name == "FRAME" => {
                let end = frames.get(indexed).map(|(end, _)| *end as i64);
                assert_eq!(Some(cell.end), end, "{round}: a frame of the index");
                indexed += 1;
            }
            Ok(_) => {}
            Err(error) => {
                // Torn by an unfinished write, which can only be at the end.
                let text = error.to_string();
                assert!(text.contains("the index ends within"), "{round}: {text}");
            }
        }
    }
}

/// Environment variable that is set in the process that runs [`a_writer_to_be_killed`].
const WRITER: &str = "TRACEPROF_TEST_WRITER";
const THREADS: usize = 3;

fn time_of(thread: usize, n: u64) -> u64 {
    n * 1000 + thread as u64
}

/// Returns the stack of a thread's sample, with one of the locations 0 to 9 at each depth.
fn stack_of(thread: usize, n: u64, places: &[LocationId]) -> Vec<LocationId> {
    (0..1 + n % 7).map(|depth| places[(n / (3 + depth) + thread as u64) as usize % 10]).collect()
}

/// Not a test by itself: the child process of
/// [`acknowledged_samples_survive_the_death_of_the_writer`]. It writes until it is killed, and
/// prints after each flush what has been flushed.
#[test]
fn a_writer_to_be_killed() {
    let Some(path) = std::env::var_os(WRITER) else { return };
    let mut random = Random::new(7);
    let durability = [Durability::None, Durability::Interval, Durability::Frame];
    let compress = [Compression::None, Compression::Zstd(1), Compression::Zstd(3)];
    let options = WriterOptions {
        durability: durability[random.below(3) as usize],
        compress: compress[random.below(3) as usize],
        frame_bytes: 1 << (9 + random.below(8)),
        block_bytes: 1 << (7 + random.below(8)),
        ..WriterOptions::default()
    };
    let mut writer = TraceWriter::create(Path::new(&path), options).unwrap();
    let method = writer.method(&Method::named("m")).unwrap();
    let place = |svma| Location::at(method, svma);
    let places: Vec<_> = (0..10).map(|svma| writer.location(&place(svma)).unwrap()).collect();
    let thread = |tid| Thread { pid: 1, tid, ..Thread::default() };
    let threads: Vec<_> = (0..THREADS as u32).map(|t| writer.thread(&thread(t)).unwrap()).collect();
    let mut written = [0; THREADS];
    loop {
        for _ in 0..random.below(60) {
            let which = random.below(THREADS as u64) as usize;
            let n = written[which];
            let sample = Sample { time_ns: time_of(which, n), ..Sample::default() };
            let stack = stack_of(which, n, &places);
            writer.sample(threads[which], &sample, &stack).unwrap();
            written[which] += 1;
        }
        writer.flush().unwrap();
        let [a, b, c] = written;
        // In one write, and not through the harness.
        std::io::stdout().write_all(format!("\nflushed {a} {b} {c} .\n").as_bytes()).unwrap();
    }
}

#[test]
fn acknowledged_samples_survive_the_death_of_the_writer() {
    let dir = scratch_dir();
    let mut random = Random::new(1);
    let (mut most, mut beyond) = (0, 0);
    for round in 0..rounds(100, 1000) {
        let path = dir.path().join(format!("{round}.trace"));
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args([
                "killed_recorder::a_writer_to_be_killed",
                "--exact",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(WRITER, &path)
            .env("TRACEPROF_TEST_SEED", random.below(u64::MAX).to_string())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this test again");
        let mut output = BufReader::new(child.stdout.take().expect("piped")).lines();
        let started = output.find(|line| line.as_ref().is_ok_and(|line| line.ends_with('.')));
        let delay = Duration::from_micros(random.below(30_000));
        // The pipe must not fill up, or the writer would block.
        let reader = std::thread::spawn(move || {
            started
                .into_iter()
                .chain(output)
                .map_while(Result::ok)
                .filter(|line| is_whole(line))
                .last()
        });
        std::thread::sleep(delay);
        child.kill().expect("a kill");
        child.wait().expect("its end");
        let last = reader.join().expect("reader").expect("a flush was acknowledged");
        let flushed: Vec<u64> =
            last.split(' ').skip(1).take(THREADS).map(|n| n.parse().expect("a number")).collect();
        let round = format!("round {round}, killed after {delay:?}");
        let threads = check_files(&path, &round);
        for (which, samples) in threads.iter().enumerate() {
            assert!(samples.len() as u64 >= flushed[which], "{round}: acknowledged: {flushed:?}");
            beyond += u64::from(samples.len() as u64 > flushed[which]);
            let places: Vec<_> = (0..10).map(LocationId).collect();
            for (n, (sample, stack)) in (0..).zip(samples) {
                assert_eq!(sample.time_ns, time_of(which, n), "{round}");
                assert_eq!(*stack, stack_of(which, n, &places), "{round}");
            }
        }
        assert_eq!(threads.len(), THREADS, "{round}");
        most = most.max(flushed[0]);
        std::fs::remove_file(&path).expect("done with it");
    }
    // It was killed in the middle of its work, not before.
    assert!(most > 500 && beyond > 0, "{most} {beyond}");
}

fn is_whole(line: &str) -> bool {
    line.starts_with("flushed ") && line.ends_with(" .")
}

/// One of several workers: kills recorders of its own target and returns how many of them left
/// samples.
fn kill_recorders(target: &mut Target, rounds: u64, mut random: Random) -> u64 {
    let before = Snapshot::take(target.pid());
    let pid = target.pid().to_string();
    let mut with_samples = 0;
    for round in 0..rounds {
        let dir = scratch_dir();
        let path = dir.path().join("killed.trace");
        let durability = ["none", "interval", "frame"][random.below(3) as usize];
        let args = ["record", "--pid", &pid, "--freq", "4999"];
        let mut command = traceprof(&args);
        command.args(["--durability", durability, "--output"]).arg(&path);
        let mut recorder = command.stderr(Stdio::null()).spawn().expect("traceprof");
        // Some die before their first frame, some between that and the first samples, and some
        // after a few flushes.
        let frames = random.below(3) as usize;
        wait_until(Duration::from_secs(30), || {
            frames == 0
                || std::fs::read(&path).is_ok_and(|data| whole_frames(&data).len() >= frames)
        });
        let delay = Duration::from_micros(random.below([200_000, 700_000, 700_000][frames]));
        std::thread::sleep(delay);
        recorder.kill().expect("a kill");
        recorder.wait().expect("its end");
        let round = format!("round {round}, killed {delay:?} after frame {frames}, {durability}");
        assert!(!target.has_exited(), "{round}: the target is dead");
        if path.exists() && std::fs::metadata(&path).is_ok_and(|meta| meta.len() >= 16) {
            let threads = check_files(&path, &round);
            with_samples += u64::from(threads.iter().any(|samples| !samples.is_empty()));
        }
        let restored = wait_until(Duration::from_secs(20), || {
            before.differences(&Snapshot::take(target.pid())).is_empty()
        });
        assert!(restored, "{round}: {:#?}", before.differences(&Snapshot::take(target.pid())));
    }
    with_samples
}

#[test]
fn a_recorder_killed_at_any_moment_leaves_all_that_it_wrote() {
    needs_recording!();
    let _machine = together();
    const WORKERS: u64 = 4;
    let rounds = rounds(40, 1000);
    let share = rounds / WORKERS;
    let workers =
        ["threads", "split", "split", "split"].into_iter().zip(1..).map(|(name, salt)| {
            std::thread::spawn(move || {
                let mut target = Target::start(name, &[]);
                let with_samples = kill_recorders(&mut target, share, Random::new(salt));
                target.goes_on_and_ends_by_itself();
                with_samples
            })
        });
    let workers: Vec<_> = workers.collect();
    let with_samples: u64 = workers.into_iter().map(|worker| worker.join().expect("worker")).sum();
    assert!(with_samples > rounds / 10, "only {with_samples} left samples");
}

#[test]
fn a_recorder_of_three_processes_killed_at_any_moment_harms_none_and_the_next_one_works() {
    needs_recording!();
    let _machine = together();
    let mut targets = ["threads", "split", "split"].map(|name| Target::start(name, &[]));
    let before = targets.each_ref().map(|it| Snapshot::take(it.pid()));
    let pids = targets.each_ref().map(|it| it.pid().to_string()).join(",");
    let mut random = Random::new(5);
    for round in 0..rounds(3, 100) {
        let dir = scratch_dir();
        let (killed, whole) = (dir.path().join("killed.trace"), dir.path().join("whole.trace"));
        let mut command = traceprof(&["record", "--pid", &pids, "--freq", "999", "--output"]);
        command.arg(&killed).stderr(Stdio::null()).stdout(Stdio::null());
        let mut recorder = command.spawn().expect("traceprof");
        // In the middle of the attaches, or of the sampling.
        let delay = Duration::from_micros(random.below(1_500_000));
        std::thread::sleep(delay);
        recorder.kill().expect("a kill");
        recorder.wait().expect("its end");
        let round = format!("round {round}, killed after {delay:?}");
        for (before, target) in before.iter().zip(&mut targets) {
            assert!(!target.has_exited(), "{round}: process {} is dead", target.pid());
            let differences = || before.differences(&Snapshot::take(target.pid()));
            let restored = wait_until(Duration::from_secs(60), || differences().is_empty());
            assert!(restored, "{round}: in process {}: {:#?}", target.pid(), differences());
        }
        let mut command = traceprof(&["record", "-q", "-d", "200ms", "--pid", &pids, "--output"]);
        let output = command.arg(&whole).output().expect("traceprof");
        let text = String::from_utf8_lossy(&output.stderr);
        // On a busy machine a fifth of a second may be too short for a sample.
        assert!(matches!(output.status.code(), Some(0 | 4)), "{round}: {text}");
        let listed = trace::load(&whole).expect("a trace").metadata;
        let listed = listed.keys().filter(|key| key.starts_with("process.")).count();
        assert_eq!(listed, 3, "{round}: {text}");
    }
    targets.iter_mut().for_each(Target::goes_on_and_ends_by_itself);
}
