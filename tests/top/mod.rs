//! `top`: the live table in a pipe and on a terminal, and what remains after it.

mod rows;
mod screens;
mod several;
mod signals;
mod terminal;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::common::{
    Snapshot, Target, Trace, as_nobody, cpu_clock, needs_recording, program, program_for_everyone,
    scratch_dir, skip, together, traceprof, unprivileged_obstacle, wait_until,
};

/// Timeout of an expected text, for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns `top` with these arguments and its own directory of temporary files.
fn top(temporary: &TempDir, args: &[&str]) -> Command {
    let mut command = traceprof(&["top"]);
    command.args(args).env("TMPDIR", temporary.path());
    command
}

fn files_in(place: &Path) -> usize {
    fs::read_dir(place).expect("a directory").count()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// Returns the four numbers of a row; `-` is 0.
fn numbers(row: &str) -> Vec<f64> {
    row.split_whitespace().take(4).map(|word| word.parse().unwrap_or(0.0)).collect()
}

/// Checks that the CPU use of a table is at least what its samples stand for, with a wide margin:
/// the last table also has the samples that come while `top` ends.
fn check_use(table: &str) {
    let before = |what: &str| -> f64 {
        let part = table.split("  ").find_map(|part| part.strip_suffix(what));
        part.and_then(|text| text.trim().parse().ok())
            .unwrap_or_else(|| panic!("no {what}: {table}"))
    };
    let hz =
        table.lines().find_map(|line| line.strip_suffix(" Hz")?.rsplit(' ').next()?.parse().ok());
    let hz: f64 = hz.unwrap_or_else(|| panic!("no rate: {table}"));
    let (samples, percent) = (before(" samples/s"), before(" % CPU"));
    assert!(percent >= samples / hz * 25.0, "{table}");
}

/// Interrupts the child like Ctrl-C and returns its output.
fn interrupt(child: Child) -> Output {
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).expect("a signal");
    child.wait_with_output().expect("output")
}

/// Waits until the first table begins.
fn first_table(child: &mut Child) {
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    while !line.contains("kernel_alpha") {
        line.clear();
        assert!(lines.read_line(&mut line).expect("output") > 0, "no table");
    }
    std::thread::spawn(move || lines.lines().for_each(drop));
}

#[test]
fn the_requested_number_of_tables_is_printed_with_the_hot_function_first() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let before = Snapshot::take(target.pid());
    let temporary = tempfile::tempdir().unwrap();
    let pid = target.pid().to_string();
    let args = ["--iterations", "3", "--freq", "997", "--cumulative", &pid];
    let output = top(&temporary, &args).output().expect("traceprof");
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out}\n{err}");
    assert!(!out.contains('\x1b') && !err.contains('\x1b'), "{out}\n{err}");
    let tables: Vec<&str> = out.split("\n\n").collect();
    assert_eq!(tables.len(), 3, "{out}");
    check_use(tables[2]);
    let rows: Vec<&str> = tables[2].lines().skip(4).collect();
    assert!(rows[0].contains("kernel_alpha") && rows[0].ends_with("split"), "{out}");
    let alpha = numbers(rows[0]);
    assert!((40.0..60.0).contains(&alpha[2]), "the function has half of all time: {out}");
    // The caller has the same total, and no time of its own.
    let main = rows.iter().find(|row| row.contains(" main ")).expect("main");
    assert!(numbers(main)[3] > 95.0, "{out}");
    // The last row sums up what is in no other row.
    let own: f64 = rows.iter().map(|row| numbers(row)[2]).sum();
    assert!((98.0..102.0).contains(&own), "{own} in:\n{out}");
    assert_eq!(before.marks_left(&Snapshot::take(target.pid())), Vec::<String>::new());
    assert_eq!(files_in(temporary.path()), 0, "temporary files");
    target.goes_on_and_ends_by_itself();
}

#[test]
fn a_process_that_ends_is_shown_to_its_end() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let temporary = tempfile::tempdir().unwrap();
    let mut command = top(&temporary, &["--pid", &target.pid().to_string()]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    first_table(&mut child);
    target.goes_on_and_ends_by_itself();
    let output = child.wait_with_output().expect("output");
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{err}");
    assert!(err.contains("note: the target exited"), "{err}");
    assert_eq!(files_in(temporary.path()), 0, "temporary files");
}

#[test]
fn a_signal_ends_it_as_a_recording_and_the_last_samples_are_shown() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let temporary = tempfile::tempdir().unwrap();
    // The first table would come after an hour.
    let args = ["--interval", "1h", "--pid", &target.pid().to_string()];
    let mut command = top(&temporary, &args);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let target_maps = || fs::read_to_string(format!("/proc/{}/maps", target.pid())).unwrap();
    let attached = wait_until(PATIENCE, || target_maps().contains("/SYSV"));
    assert!(attached, "not attached");
    let (begin, enough) = (cpu_clock(target.pid()), Duration::from_millis(500));
    let used = || cpu_clock(target.pid()).saturating_sub(begin) >= enough;
    assert!(wait_until(PATIENCE, used), "there is nothing to sample");
    let output = interrupt(child);
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(out.contains("kernel_alpha"), "{out}");
    check_use(&out);
    target.goes_on_and_ends_by_itself();
}

#[test]
fn a_kill_leaves_neither_files_nor_a_trace_of_it_in_the_target() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let before = Snapshot::take(target.pid());
    let temporary = tempfile::tempdir().unwrap();
    let mut command = top(&temporary, &["--pid", &target.pid().to_string()]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    first_table(&mut child);
    assert_eq!(files_in(temporary.path()), 0, "the trace still has a name");
    child.kill().expect("a kill");
    child.wait().expect("its end");
    let is_restored = || before.marks_left(&Snapshot::take(target.pid())).is_empty();
    assert!(wait_until(PATIENCE, is_restored), "the guardian did not restore it");
    target.goes_on_and_ends_by_itself();
}

#[test]
fn a_large_trace_is_replaced_by_a_new_one_and_the_table_goes_on() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let temporary = tempfile::tempdir().unwrap();
    let pid = target.pid().to_string();
    let args = ["--max-size", "128K", "--freq", "9973", "--cumulative", "--pid", &pid];
    let folder = scratch_dir();
    let tables = folder.path().join("tables");
    let mut command = top(&temporary, &args);
    let notes = tables.with_file_name("notes");
    let file = |path: &Path| fs::File::create(path).unwrap();
    command.stdout(file(&tables)).stderr(file(&notes));
    let child = command.spawn().unwrap();
    let messages = || fs::read_to_string(&notes).unwrap();
    // A busy machine leaves little to write.
    let renewed =
        wait_until(3 * PATIENCE, || messages().contains("note: a new temporary trace starts"));
    assert!(renewed, "{}", messages());
    let shown = || fs::read_to_string(&tables).unwrap();
    let before = shown().len();
    let goes_on = wait_until(PATIENCE, || shown()[before..].matches("kernel_alpha").count() > 1);
    assert!(goes_on, "{}", shown());
    let output = interrupt(child);
    assert_eq!(output.status.code(), Some(0), "{}", shown());
    let out = shown();
    let last = out.split("\n\n").last().unwrap();
    assert!(numbers(last.lines().nth(4).unwrap())[2] > 40.0, "{out}");
    assert_eq!(files_in(temporary.path()), 0, "temporary files");
    target.goes_on_and_ends_by_itself();
}

#[test]
fn a_kept_trace_has_the_samples_of_the_tables() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let (temporary, trace) = (tempfile::tempdir().unwrap(), Trace::new());
    let path = trace.path().display().to_string();
    let args = ["-n", "1", "--by", "module", "--output", &path, &target.pid().to_string()];
    let output = top(&temporary, &args).output().expect("traceprof");
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out}\n{err}");
    assert!(out.lines().nth(4).is_some_and(|row| row.ends_with("split")), "{out}");
    assert!(err.contains(&format!("traceprof print {path}")), "{err}");
    assert!(trace.view(&["verify"]).contains("clean"), "{}", trace.view(&["verify"]));
    assert!(trace.folded().count_of("kernel_alpha") > 0);
    target.goes_on_and_ends_by_itself();
}

#[test]
fn an_unprivileged_user_sees_an_own_process_and_no_other() {
    needs_recording!();
    if let Some(obstacle) = unprivileged_obstacle() {
        skip!("{obstacle}");
    }
    let _machine = together();
    let folder = scratch_dir();
    let split = program_for_everyone(&program("split"), folder.path());
    let ours = program_for_everyone(Path::new(env!("CARGO_BIN_EXE_traceprof")), folder.path());
    let Some(command) = as_nobody(&split) else { skip!("root: needed to act as two users") };
    let mut own = Target::spawn(command);
    let mut others = Target::start("split", &[]);
    let temporary = scratch_dir();
    let look = |pid: i32| {
        let mut command = as_nobody(&ours).expect("root");
        command.args(["top", &pid.to_string()]).env("TMPDIR", temporary.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("traceprof")
    };
    let mut child = look(own.pid());
    first_table(&mut child);
    let output = interrupt(child);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let output = look(others.pid()).wait_with_output().expect("traceprof");
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(
        (output.status.code(), out.as_str(), err.lines().count()),
        (Some(3), "", 1),
        "{err}"
    );
    assert_eq!(files_in(temporary.path()), 0, "temporary files");
    own.goes_on_and_ends_by_itself();
    others.goes_on_and_ends_by_itself();
}

#[test]
fn impossible_requests_are_refused_with_a_line_and_a_code() {
    let temporary = tempfile::tempdir().unwrap();
    let refused = |args: &[&str]| {
        let output = top(&temporary, args).output().expect("traceprof");
        assert_eq!(text(&output.stdout), "");
        (output.status.code().expect("a code"), text(&output.stderr))
    };
    let (code, err) = refused(&["--pid", "999999999"]);
    assert_eq!((code, err.lines().count()), (7, 1), "{err}");
    assert!(err.contains("999999999"), "{err}");
    for wrong in [
        &[][..],
        &["--pid", "1", "--name", "x"],
        &["--name", "("],
        &["--pid", "0"],
        &["1", "--interval", "10ms"],
        &["1", "--iterations", "0"],
        &["1", "--force"],
        &["1", "--output", "x", "--max-size", "1M"],
        &["1", "--by", "colour"],
        &["1", "--idle"],
    ] {
        let (code, err) = refused(wrong);
        assert_eq!(code, 2, "{wrong:?}: {err}");
    }
    let mut nowhere = traceprof(&["top", "1"]);
    let output = nowhere.env("TMPDIR", "/no/such/place").output().expect("traceprof");
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(6), "{err}");
    assert!(err.contains("/no/such/place") && err.contains("TMPDIR"), "{err}");
    assert_eq!(files_in(temporary.path()), 0, "temporary files");
}
