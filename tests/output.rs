//! Where a trace is written: full disks, limits, an existing file, and when the trace is readable.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use traceprof::trace::{self, LoadedTrace, ThreadTrace, Value};

use crate::common::{
    Outcome, Recorder, Snapshot, Target, Trace, is_root, needs_recording, program, scratch_dir,
    skip, together, traceprof, wait_until,
};

fn samples(trace: &LoadedTrace) -> usize {
    trace.threads.iter().map(ThreadTrace::sample_count).sum()
}

/// A disk of a few pages of memory, which is unmounted when the value is dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(path: &Path, kib: u32) -> Result<Self, String> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={kib}k"), "tmpfs"]).arg(path);
        let output = mount.output().map_err(|error| error.to_string())?;
        match output.status.success() {
            true => Ok(Self(path.to_owned())),
            false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A lazy unmount: the disk disappears as soon as nobody uses it.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// Checks a recording that ended because no more data fits: the trace is complete and the message
/// is good.
fn assert_cut_short(outcome: &Outcome, path: &Path, code: i32, words: &str) {
    let text = outcome.text();
    assert_eq!(outcome.code(), Some(6), "{text}");
    assert!(text.contains(words) && text.contains("cut short"), "{text}");
    let trace = trace::load(path).expect("a trace");
    assert!(trace.closed && trace.notices.is_empty(), "{:?}", trace.notices);
    let kept = samples(&trace);
    assert!(text.contains(&format!("with {kept} of ")), "{kept} kept: {text}");
    let Some(Value::Text(reason)) = trace.metadata.get("write_error") else {
        panic!("no reason in {:?}", trace.metadata.keys())
    };
    assert!(reason.contains(&format!("os error {code}")), "{reason}");
    // All reports say the same about what is missing.
    let Some(Value::Unsigned(lost)) = trace.metadata.get("lost.not_written") else {
        panic!("no loss in {:?}", trace.metadata.keys())
    };
    assert!(*lost > 0 && text.contains(&format!("{lost} (not written)")), "{lost}: {text}");
    let all = kept as u64 + lost;
    // Samples that came after the failure count, too.
    let number = |key: &str| match trace.metadata.get(key) {
        Some(Value::Unsigned(number)) => *number,
        other => panic!("{key}: {other:?}"),
    };
    let others = ["lost.thread unknown", "lost.size limit", "lost.log holes"];
    let others: u64 = others.into_iter().map(number).sum();
    // A sample that weighs nothing after the corrections is none.
    let others = others + number("balance_removed");
    assert!(all + others >= number("samples_stored"), "{:?}\n{text}", trace.metadata);
    assert!(text.contains(&format!("{kept} of {all} samples are in the trace")), "{text}");
    for (view, words) in [
        ("verify", format!("{lost} samples that could not be written")),
        ("print", format!("not written {lost}")),
    ] {
        let output = traceprof(&[view]).arg(path).output().expect("traceprof");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && text.contains(&words), "{view}: {text}");
    }
    // There was room for the closing metadata, too.
    assert!(trace.metadata.contains_key("cpu_time_ns"), "{:?}", trace.metadata.keys());
}

#[test]
fn a_full_disk_ends_the_recording_and_keeps_the_data_before() {
    needs_recording!();
    if !is_root() {
        skip!("root: needed to mount a disk");
    }
    let _machine = together();
    let dir = scratch_dir();
    let disk = match SmallDisk::mount(dir.path(), 512) {
        Ok(disk) => disk,
        Err(error) => skip!("mount of a tmpfs: {error}"),
    };
    let mut target = Target::start("threads", &[]);
    let before = Snapshot::take(target.pid());
    let path = disk.0.join("full.trace");
    let mut command = traceprof(&["record", "--freq", "20000", "--duration", "120"]);
    command.args(["--compress", "none", "--pid"]).arg(target.pid().to_string());
    let output = command.arg("--output").arg(&path).output().expect("traceprof");
    let outcome = Outcome { output, trace: Trace::new() };
    assert_cut_short(&outcome, &path, libc::ENOSPC, "free some space");
    assert!(samples(&trace::load(&path).expect("a trace")) > 1000, "{}", outcome.text());
    let verified = traceprof(&["verify"]).arg(&path).output().expect("traceprof");
    let text = String::from_utf8_lossy(&verified.stdout);
    assert!(verified.status.success(), "the trace and its index are sound: {text}");
    // Nothing else occupies the disk.
    let names = std::fs::read_dir(&disk.0).expect("disk").map(|entry| entry.unwrap().file_name());
    assert_eq!(names.count(), 2);
    assert_eq!(before.differences(&Snapshot::take(target.pid())), [""; 0]);
    target.goes_on_and_ends_by_itself();
}

#[test]
fn an_index_that_is_refused_leaves_the_data_file_as_it_was() {
    let dir = scratch_dir();
    let path = dir.path().join("c.trace");
    let index = trace::index_path(&path);
    std::fs::create_dir(&index).unwrap();
    for force in [false, true] {
        let options = || trace::WriterOptions { force, ..trace::WriterOptions::default() };
        let error = trace::TraceWriter::create(&path, options()).unwrap_err();
        assert!(error.to_string().contains("c.trace.idx is not a regular file"), "{error}");
        assert!(!path.exists(), "force {force}");
    }
    std::fs::write(&path, "precious").unwrap();
    let options = trace::WriterOptions { force: true, ..trace::WriterOptions::default() };
    trace::TraceWriter::create(&path, options).unwrap_err();
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}

#[test]
fn a_disk_without_any_room_is_left_as_it_was() {
    if !is_root() {
        skip!("root: needed to mount a disk");
    }
    let dir = scratch_dir();
    let disk = match SmallDisk::mount(dir.path(), 16) {
        Ok(disk) => disk,
        Err(error) => skip!("mount of a tmpfs: {error}"),
    };
    let full = std::fs::write(disk.0.join("filler"), vec![1; 1 << 20]);
    assert_eq!(full.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    let options = trace::WriterOptions::default();
    let error = trace::TraceWriter::create(&disk.0.join("a.trace"), options).unwrap_err();
    assert!(error.to_string().contains("free some space"), "{error}");
    let names = std::fs::read_dir(&disk.0).expect("disk").map(|entry| entry.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["filler"]);
}

/// Returns a command in which a shell sets the limit, in blocks of 512 or 1024 bytes, and becomes
/// the recorder.
fn limited(blocks: u32, args: &[&str]) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "ulimit -f \"$0\" && exec \"$@\"", &blocks.to_string()]);
    command.arg(env!("CARGO_BIN_EXE_traceprof")).args(args).stdin(std::process::Stdio::null());
    command
}

#[test]
fn a_limit_on_file_sizes_ends_the_recording_and_kills_nobody() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("threads", &[]);
    let before = Snapshot::take(target.pid());
    let pid = target.pid().to_string();
    let args = ["record", "--freq", "20000", "--duration", "120", "--compress", "none"];
    let command = limited(1000, &[&args[..], &["--pid", &pid]].concat());
    let outcome = Recorder::spawn(command, Trace::new()).finish();
    assert_cut_short(&outcome, &outcome.trace.path(), libc::EFBIG, "ulimit -f");
    assert!(samples(&trace::load(&outcome.trace.path()).expect("a trace")) > 1000);
    assert_eq!(before.differences(&Snapshot::take(target.pid())), [""; 0]);
    target.goes_on_and_ends_by_itself();
}

#[test]
fn a_started_program_has_its_own_way_with_the_limit() {
    needs_recording!();
    let _machine = together();
    let trace = Trace::new();
    let mut command = limited(100_000, &["record", "-q", "--output"]);
    command.arg(trace.path()).args(["--", "/bin/grep", "SigIgn", "/proc/self/status"]);
    let output = command.output().expect("traceprof");
    let text = String::from_utf8_lossy(&output.stdout);
    let mask = text.trim().rsplit('\t').next().expect("a mask");
    let ignored = u64::from_str_radix(mask, 16).expect(mask);
    assert_eq!(ignored >> (libc::SIGXFSZ - 1) & 1, 0, "{text}");
}

#[test]
fn a_trace_that_is_being_recorded_is_not_replaced() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let mut other = Target::start("split", &[]);
    let pid = target.pid().to_string();
    let mut first = Recorder::start(&["--pid", &pid, "--duration", "600", "--freq", "499"]);
    first.wait_until_attached(target.pid());
    first.wait_for_cpu(target.pid(), Duration::from_secs(1));
    let taken = first.output_path();
    assert!(trace::is_being_written(&taken).expect("the file"));
    let mut command = traceprof(&["record", "--force", "--duration", "1", "--pid"]);
    command.arg(other.pid().to_string()).arg("--output").arg(&taken);
    let refused = Outcome { output: command.output().expect("traceprof"), trace: Trace::new() };
    let refused = refused.expect_code(6);
    assert!(refused.text().contains("another recorder is writing"), "{}", refused.text());
    first.send(Signal::SIGINT);
    let outcome = first.finish().expect_code(0);
    assert!(!trace::is_being_written(&taken).expect("the file"));
    assert!(outcome.trace.folded().total() > 100, "the first recording is whole");
    target.goes_on_and_ends_by_itself();
    other.goes_on_and_ends_by_itself();
}

#[test]
fn samples_are_readable_a_second_later_also_when_no_more_come() {
    needs_recording!();
    let _machine = together();
    let dir = scratch_dir();
    let (go, done) = (dir.path().join("go"), dir.path().join("done"));
    let mut shell = Command::new("/bin/sh");
    // Half a second of work and then a long time without any.
    let script = "echo ready; while [ ! -e \"$0\" ]; do sleep 0.02; done; i=0; \
        while [ $i -lt 300000 ]; do i=$((i+1)); done; : > \"$1\"; while :; do sleep 0.2; done";
    shell.args(["-c", script]).arg(&go).arg(&done);
    let target = Target::spawn(shell);
    let pid = target.pid().to_string();
    let mut recorder = Recorder::start(&["--pid", &pid, "--freq", "1999", "--duration", "600"]);
    recorder.wait_until_attached(target.pid());
    let path = recorder.output_path();
    assert!(wait_until(Duration::from_secs(20), || trace::load(&path).is_ok()), "no file");
    std::fs::write(&go, "").expect("a file to wait for");
    assert!(wait_until(Duration::from_secs(60), || done.exists()), "the work is not done");
    let worked = Instant::now();
    let used_s = crate::common::cpu_clock(target.pid()).as_secs_f64();
    let readable = || samples(&trace::load(&path).expect("a trace")) as f64;
    let all = wait_until(Duration::from_secs(10), || readable() >= used_s * 1999.0 * 0.8);
    let took = worked.elapsed();
    assert!(all, "{} samples of {used_s:.2} s", readable());
    // One second, plus some for a busy machine.
    assert!(took < Duration::from_secs(3), "readable after {took:?} only");
    recorder.send(Signal::SIGINT);
    recorder.finish().expect_code(0);
}

#[test]
fn collected_and_streamed_recordings_read_alike() {
    needs_recording!();
    let _machine = together();
    for options in [
        &["--collect", "--compress", "none"][..],
        &["--durability", "frame", "--compress", "zstd:9"],
        &["--durability", "none", "--compress", "fast", "--preserve", "3"],
    ] {
        let trace = Trace::new();
        let mut command = traceprof(&["record", "--stats", "--freq", "997"]);
        command.args(options).arg("--output").arg(trace.path()).arg("--");
        command.arg(program("exitcode")).args(["0", "300", "300"]);
        let outcome = Outcome { output: command.output().expect("traceprof"), trace };
        let outcome = outcome.expect_code(0);
        let loaded = trace::load(&outcome.trace.path()).expect("a trace");
        assert!(loaded.closed && loaded.notices.is_empty(), "{options:?}");
        let folded = outcome.trace.folded();
        let mut weight = 0;
        for thread in &loaded.threads {
            thread.for_each_sample(&mut |sample, _| weight += u64::from(sample.weight));
        }
        assert_eq!(weight, folded.total(), "{options:?}");
        for phase in ["first_phase", "second_phase"] {
            assert!(folded.count_of(phase) > 200, "{options:?}: {phase}");
        }
        let collected = options.contains(&"--collect");
        assert_eq!(outcome.text().contains("bytes held the samples"), collected);
        let mut ids = 0;
        for thread in &loaded.threads {
            thread.for_each_sample(&mut |sample, _| ids += usize::from(sample.trace_id != 0));
        }
        assert!(ids > 0, "{options:?}");
        let objects = outcome.trace.view(&["dump"]);
        let with_traces = options.contains(&"--preserve");
        assert_eq!(objects.contains("CALL_TRACE"), with_traces, "{options:?}");
    }
}
