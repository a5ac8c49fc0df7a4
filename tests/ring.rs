//! `record --ring`: the last minutes, what makes the recorder save them, and what becomes of them.

use std::fs;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;
use traceprof::trace;

use crate::common::{
    Outcome, Recorder, Target, needs_recording, scratch_dir, together, traceprof, wait_until,
};
use crate::output_names::{names_in, record_in, text, weight_of};

/// Whether the file is a complete trace.
fn is_closed(path: &Path) -> bool {
    trace::load(path).is_ok_and(|trace| trace.closed)
}

#[test]
fn a_ring_is_bounded_and_saved_by_a_signal_and_at_the_end() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("threads", &[]);
    let pid = target.pid().to_string();
    let args = ["--json", "--pid", &pid, "--ring", "1s", "-F", "997"];
    let mut recorder = Recorder::start(&args);
    let dir = recorder.trace().dir().to_owned();
    let ring = dir.join("out.trace.ring");
    let parts = || if ring.exists() { names_in(&ring) } else { Vec::new() };
    let is_round = || parts().iter().any(|name| name.as_str() >= "000012.trace");
    assert!(wait_until(Duration::from_secs(180), is_round), "{:?}", parts());
    assert!(parts().len() <= 22 && !parts().contains(&"000001.trace".to_owned()), "{:?}", parts());
    recorder.send(Signal::SIGUSR2);
    let saved = dir.join("out-1.trace");
    assert!(wait_until(Duration::from_secs(60), || is_closed(&saved)), "not saved");
    assert!(!recorder.has_exited());
    recorder.wait_for_cpu(target.pid(), Duration::from_millis(200));
    recorder.send(Signal::SIGINT);
    let outcome = recorder.finish().expect_code(0);
    target.goes_on_and_ends_by_itself();
    assert!(outcome.text().contains("requested by SIGUSR2"), "{}", outcome.text());
    assert!(!ring.exists(), "the parts remain");
    let summary: serde_json::Value =
        serde_json::from_slice(&outcome.output.stdout).expect("one object");
    for (place, path) in [saved, dir.join("out.trace")].iter().enumerate() {
        let (_, samples) = weight_of(path);
        assert!(samples > 0);
        assert_eq!(summary["saved"][place]["samples"], samples, "{summary}");
        assert_eq!(summary["saved"][place]["output"], path.to_string_lossy().as_ref());
        let printed = traceprof(&["print", "--tree"]).arg(path).output().expect("traceprof");
        assert!(text(&printed.stdout).contains("threads::crunch_zero"));
    }
    assert!(
        summary["figures"]["samples"].as_u64() > summary["samples_in_file"].as_u64(),
        "{summary}"
    );
}

#[test]
fn the_ring_of_a_program_that_ends_is_all_of_it() {
    needs_recording!();
    let _machine = together();
    let dir = scratch_dir();
    let output = record_in(dir.path(), &["--ring", "60s", "-F", "997", "--json", "-o", "x.ring"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(names_in(dir.path()), ["x.ring", "x.ring.idx"]);
    let line = text(&output.stdout);
    let summary: serde_json::Value =
        serde_json::from_str(line.lines().last().expect("a line")).expect("one object");
    let (weight, samples) = weight_of(&dir.path().join("x.ring"));
    let head =
        traceprof(&["print", "--tree"]).arg(dir.path().join("x.ring")).output().expect("traceprof");
    assert!(text(&head.stdout).contains("\ncpu time "), "{}", text(&head.stdout));
    let figures = &summary["figures"];
    assert_eq!((&figures["samples"], &figures["weight_sum"]), (&samples.into(), &weight.into()));
}

#[test]
fn the_parts_of_a_ring_outlive_a_killed_recorder() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("threads", &[]);
    let pid = target.pid().to_string();
    let mut recorder = Recorder::start(&["--pid", &pid, "--ring", "2s", "-F", "997"]);
    let ring = recorder.trace().dir().join("out.trace.ring");
    let has_four = || ring.join("000005.trace").exists();
    assert!(wait_until(Duration::from_secs(180), has_four), "no parts");
    recorder.send(Signal::SIGKILL);
    let outcome = recorder.finish();
    let mut parts = names_in(&ring);
    parts.retain(|name| name.ends_with(".trace"));
    // The newest one may have nothing yet.
    parts.pop_if(|name| fs::metadata(ring.join(name)).is_ok_and(|it| it.len() == 0));
    let mut printed = 0;
    for name in parts {
        let print =
            traceprof(&["print", "--tree"]).arg(ring.join(&name)).output().expect("traceprof");
        assert!(print.status.success(), "{name}: {}", text(&print.stderr));
        printed += usize::from(text(&print.stdout).contains("threads::"));
    }
    assert!(printed >= 2, "{printed} parts with samples");
    // The next recording does not overwrite them.
    let output = record_in(outcome.trace.dir(), &["--ring", "2s", "-o", "out.trace"]);
    assert_eq!(output.status.code(), Some(6), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("print them as traces"), "{}", text(&output.stderr));
    target.goes_on_and_ends_by_itself();
}

#[test]
fn a_file_that_appears_has_the_ring_saved() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let pid = target.pid().to_string();
    let dir = scratch_dir();
    let file = dir.path().join("now");
    let trigger = format!("file:{}", file.display());
    let args = ["--pid", &pid, "--ring", "60s", "-F", "997", "--trigger", &trigger];
    let mut recorder = Recorder::start(&args);
    recorder.wait_until_attached(target.pid());
    recorder.wait_for_cpu(target.pid(), Duration::from_millis(300));
    let saved = recorder.trace().dir().join("out-1.trace");
    assert!(!saved.exists());
    // A file that is written again once the recorder polls. Before its first poll the file exists
    // already.
    let is_saved = || {
        fs::write(&file, format!("{:?}", std::time::Instant::now())).expect("a file");
        std::thread::sleep(Duration::from_millis(100));
        is_closed(&saved)
    };
    assert!(wait_until(Duration::from_secs(60), is_saved), "not saved");
    assert!(weight_of(&saved).1 > 0);
    recorder.send(Signal::SIGINT);
    let outcome = recorder.finish().expect_code(0);
    assert!(outcome.text().contains("was written"), "{}", outcome.text());
    let others = names_in(outcome.trace.dir());
    assert!(!others.contains(&"out-2.trace".to_owned()), "saved twice: {others:?}");
    target.goes_on_and_ends_by_itself();
}

#[test]
fn a_request_to_save_an_idle_ring_fails_and_says_so() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("prey", &["pause"]);
    let mut recorder = Recorder::start(&["--pid", &target.pid().to_string(), "--ring", "5s"]);
    recorder.wait_until_attached(target.pid());
    recorder.send(Signal::SIGUSR2);
    std::thread::sleep(Duration::from_secs(1));
    recorder.send(Signal::SIGINT);
    let outcome = recorder.finish().expect_code(4);
    assert!(outcome.text().contains("no samples are written yet"), "{}", outcome.text());
    target.send(Signal::SIGTERM);
    assert!(target.wait().code().is_some(), "killed");
}

#[test]
fn a_request_to_save_without_a_ring_is_answered() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let pid = target.pid().to_string();
    let mut recorder = Recorder::start(&["--pid", &pid, "-F", "997"]);
    recorder.wait_until_attached(target.pid());
    recorder.send(Signal::SIGUSR2);
    recorder.wait_for_cpu(target.pid(), Duration::from_millis(300));
    recorder.send(Signal::SIGINT);
    let outcome = recorder.finish().expect_code(0);
    assert!(outcome.text().contains("--ring"), "{}", outcome.text());
    target.goes_on_and_ends_by_itself();
}

/// Records the program `threads` in a ring until its sixth part, and then sends these signals.
fn ring_until_signals(args: &[&str], signals: &[Signal]) -> (Outcome, serde_json::Value) {
    let mut target = Target::start("threads", &[]);
    let pid = target.pid().to_string();
    let options = ["--json", "--pid", &pid, "--ring", "4s", "-F", "997"];
    let mut recorder = Recorder::start(&[&options, args].concat());
    let ring = recorder.trace().dir().join("out.trace.ring");
    let has_parts = || ring.join("000002.trace").exists();
    assert!(wait_until(Duration::from_secs(180), has_parts), "no parts");
    signals.iter().for_each(|signal| recorder.send(*signal));
    let outcome = recorder.finish().expect_code(0);
    target.goes_on_and_ends_by_itself();
    let summary = serde_json::from_slice(&outcome.output.stdout).expect("one object");
    (outcome, summary)
}

#[test]
fn a_ring_that_nobody_asked_for_is_dropped_if_it_is_not_to_be_saved_at_the_end() {
    needs_recording!();
    let _machine = together();
    let (outcome, summary) = ring_until_signals(&["--ring-save", "trigger"], &[Signal::SIGINT]);
    assert_eq!(names_in(outcome.trace.dir()), [""; 0]);
    assert!(summary["output"].is_null() && summary["index"].is_null(), "{summary}");
    assert_eq!(
        (&summary["saved"], &summary["samples_in_file"]),
        (&serde_json::json!([]), &0.into())
    );
    assert!(summary["figures"]["samples"].as_u64() > Some(0), "{summary}");
    let report = outcome.text();
    assert!(report.contains("dropped at the end: no save was requested"), "{report}");
    assert!(!report.contains("traceprof print"), "{report}");
}

#[test]
fn a_save_that_is_asked_for_just_before_the_end_is_made() {
    needs_recording!();
    let _machine = together();
    let signals = [Signal::SIGUSR2, Signal::SIGINT];
    let (outcome, summary) = ring_until_signals(&["--ring-save", "trigger"], &signals);
    let names = names_in(outcome.trace.dir());
    // At the end, or just before it.
    let saved = summary["output"].as_str().expect("a name").to_owned();
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(saved.ends_with(&names[0]), "{saved}, {names:?}");
    let (_, samples) = weight_of(Path::new(&saved));
    assert!(samples > 0);
    assert_eq!(summary["samples_in_file"], samples);
    assert!(outcome.text().contains("traceprof print"), "{}", outcome.text());
}

#[test]
fn a_file_that_a_program_writes_as_it_dies_has_the_ring_saved() {
    needs_recording!();
    let _machine = together();
    let dir = scratch_dir();
    let work = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo x > flag; kill -KILL $$";
    let args = ["record", "--ring", "60s", "--ring-save", "trigger", "--trigger", "file:flag"];
    let mut command = traceprof(&[&args[..], &["-F", "997", "-o", "x.trace"]].concat());
    let output = command.args(["--", "sh", "-c", work]).current_dir(dir.path()).output();
    let output = output.expect("traceprof");
    let report = text(&output.stderr);
    assert_eq!(output.status.code(), Some(137), "{report}");
    assert!(!report.contains("no save was requested"), "{report}");
    // At the end, or by a poll just before it.
    let names = names_in(dir.path());
    let saved = names.iter().find(|name| name.ends_with(".trace")).expect("a trace");
    assert_eq!(names.len(), 3, "with its index and the flag: {names:?}");
    assert!(weight_of(&dir.path().join(saved)).1 > 0);
}

#[test]
fn call_traces_of_a_ring_are_those_of_the_saved_samples() {
    needs_recording!();
    let _machine = together();
    {
        let option = &["--preserve", "3"];
        let (outcome, _) = ring_until_signals(option, &[Signal::SIGINT]);
        let trace = trace::load(&outcome.trace.path()).expect("a trace");
        let mut found = 0;
        for thread in &trace.threads {
            thread.for_each_sample(&mut |sample, stack| {
                if let Some(call_trace) = trace.call_traces.get(sample.trace_id) {
                    assert_eq!(call_trace.stack, stack, "{option:?}");
                    found += 1;
                }
            });
        }
        assert!(found > 0, "{option:?}: no sample has a call trace");
    }
}
