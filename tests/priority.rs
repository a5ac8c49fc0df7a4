//! Which threads and processes run with a raised priority, and which do not.

use std::process::Command;
use std::time::Duration;

use crate::common::{
    Outcome, Recorder, Target, Trace, child_named, is_root, needs_recording, skip, together,
    wait_until,
};

/// The nice value of the test's recorders, which their child processes must keep.
const GIVEN: &str = "3";

fn recorder(options: &[&str]) -> Command {
    let mut command = Command::new("nice");
    command.args(["-n", GIVEN, env!("CARGO_BIN_EXE_traceprof"), "record"]).args(options);
    command
}

/// Returns the priority in a `stat` file.
fn priority(path: &str) -> Option<i32> {
    let stat = std::fs::read_to_string(path).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(16)?.parse().ok()
}

#[test]
fn a_program_that_is_recorded_has_the_priority_it_would_have() {
    needs_recording!();
    let _machine = together();
    let trace = Trace::new();
    let note = trace.dir().join("stat");
    let mut command = recorder(&["--output"]);
    // A long loop, so that there is a sample.
    let script = format!(
        "cat /proc/self/stat > {}; i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done",
        note.display()
    );
    command.arg(trace.path()).args(["--", "sh", "-c", &script]);
    let outcome = Outcome { output: command.output().expect("traceprof"), trace }.expect_code(0);
    let found = priority(&note.display().to_string());
    assert_eq!(found.map(|it| it.to_string()).as_deref(), Some(GIVEN), "{}", outcome.text());
}

#[test]
fn only_threads_that_drain_tables_are_raised() {
    needs_recording!();
    if !is_root() {
        skip!("root: needed to raise a priority");
    }
    let _machine = together();
    for (engine, raised) in [("perf", &["writer"][..]), ("timer", &["writer", "lease"])] {
        raises(engine, raised);
    }
}

fn raises(engine: &str, raised: &[&str]) {
    let mut target = Target::start("split", &[]);
    let mut command = recorder(&["--engine", engine, "--duration", "600", "--pid"]);
    command.arg(target.pid().to_string());
    let mut recorder = Recorder::spawn(command, Trace::new());
    recorder.wait_until_attached(target.pid());
    recorder.wait_for_cpu(target.pid(), Duration::from_millis(300));
    let pid = recorder.pid();
    let guardian = child_named(pid, "traceprof-guard").expect("a guardian");
    let given: i32 = GIVEN.parse().expect("a number");
    assert_eq!(priority(&format!("/proc/{guardian}/stat")), Some(given), "the guardian's");
    assert_eq!(priority(&format!("/proc/{pid}/task/{pid}/stat")), Some(-20), "the collector's");
    let others = || -> Vec<(String, Option<i32>)> {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads");
        let tids = tasks.map(|task| task.expect("one").file_name().into_string().expect("an id"));
        let named = |tid: String| {
            let folder = format!("/proc/{pid}/task/{tid}");
            let name = std::fs::read_to_string(format!("{folder}/comm")).unwrap_or_default();
            (name.trim().to_owned(), priority(&format!("{folder}/stat")))
        };
        tids.filter(|tid| *tid != pid.to_string()).map(named).collect()
    };
    let found = wait_until(Duration::from_secs(10), || others().len() > raised.len());
    assert!(found, "those and a symbolizer: {:?}", others());
    for (name, found) in others() {
        // The threads that drain the tables or keep timers running must not wait for a processor.
        let wanted = if raised.contains(&name.as_str()) { -20 } else { given };
        assert_eq!(found, Some(wanted), "{name}");
    }
    recorder.send(nix::sys::signal::Signal::SIGINT);
    recorder.finish().expect_code(0);
    target.goes_on_and_ends_by_itself();
}
