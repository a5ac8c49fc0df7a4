//! The runbooks in `scripts/runbooks`, run unchanged against real processes.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;
use traceprof::cli::arguments::definition;

use crate::common::{Target, has_command, is_root, needs_recording, program, skip, together};

fn runbooks() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/runbooks")
}

/// Returns a runbook with the command under test, not yet started.
fn runbook(name: &str, args: &[&str], place: &TempDir) -> Command {
    let mut command = Command::new(runbooks().join(name));
    command.args(args).current_dir(place.path()).stdin(Stdio::null());
    command.env("TRACEPROF", env!("CARGO_BIN_EXE_traceprof")).env("TMPDIR", place.path());
    command
}

fn texts(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Runs a command that must succeed and returns its output.
fn run(mut command: Command) -> String {
    let (code, out, err) = texts(&command.output().expect("bash"));
    assert_eq!(code, Some(0), "{out}\n{err}");
    out
}

fn scripts() -> Vec<PathBuf> {
    let entries = fs::read_dir(runbooks()).expect("the runbooks");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    assert_eq!(paths.len(), 4, "each has its own test here: {paths:?}");
    paths
}

#[test]
fn every_runbook_explains_itself_and_refuses_what_it_does_not_know() {
    let place = tempfile::tempdir().unwrap();
    for path in scripts() {
        let name = path.file_name().unwrap().to_str().unwrap();
        for option in ["--help", "-h"] {
            let help = run(runbook(name, &[option], &place));
            assert!(help.starts_with(&format!("Usage: {name} ")), "{help}");
        }
        let (code, out, err) = texts(&runbook(name, &["--no-such"], &place).output().unwrap());
        assert_eq!((code, out.as_str()), (Some(2), ""), "{name}: {err}");
        assert!(err.starts_with("Usage: "), "{name}: {err}");
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("\nset -euo pipefail\n"), "{name}");
    }
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0, "files");
}

#[test]
fn shellcheck_has_nothing_to_say() {
    if !has_command("shellcheck") {
        skip!("shellcheck: not installed");
    }
    let output = Command::new("shellcheck").args(scripts()).output().expect("shellcheck");
    assert!(output.status.success(), "{}", texts(&output).1);
}

/// A runbook with an invalid command line would only fail in an emergency.
#[test]
fn every_command_line_of_a_runbook_is_valid() {
    let mut seen = 0;
    for path in scripts() {
        for line in fs::read_to_string(&path).unwrap().lines() {
            let Some((_, words)) = line.split_once("\"$traceprof\" ") else { continue };
            let words = words.split([')', '|', ';']).next().unwrap();
            let words = words.replace("\"$pid\"", "1").replace("\"$seconds\"", "1");
            let words = words.replace("\"$@\"", "");
            let matches = definition()
                .try_get_matches_from(["traceprof"].into_iter().chain(words.split_whitespace()));
            // The pid in the container follows in another line.
            let is_part = line.starts_with("record=(");
            assert!(matches.is_ok() || is_part, "{line}: {}", matches.unwrap_err());
            seen += 1;
        }
    }
    assert!(seen >= 10, "{seen} command lines");
}

#[test]
fn before_after_prints_the_changes() {
    needs_recording!();
    let _machine = together();
    let (mut before, mut after) = (Target::start("split", &[]), Target::start("steady", &["2"]));
    let place = tempfile::tempdir().unwrap();
    let (pid, new_pid) = (before.pid().to_string(), after.pid().to_string());
    let deploy = ["--", "sh", "-c", "echo $1 >service.pid", "sh", &new_pid];
    let args = ["-p", &pid, "-n", "service.pid", "-d", "3", "-o", "out"];
    let out = run(runbook("before-after.sh", &[&args[..], &deploy].concat(), &place));
    let row = |name: &str| out.lines().find(|line| line.contains(name)).unwrap_or(&out).to_owned();
    assert!(row("kernel_alpha").contains('-'), "the process exited: {out}");
    assert_eq!(fs::read_to_string(place.path().join("out/diff.txt")).unwrap(), out);
    // A second run does not overwrite the first recording, whichever of the two it is.
    fs::remove_file(place.path().join("out/before.trace")).unwrap();
    let mut again = runbook("before-after.sh", &args, &place);
    let (code, _, err) = texts(&again.output().unwrap());
    assert_eq!(code, Some(6), "{err}");
    before.goes_on_and_ends_by_itself();
    after.goes_on_and_ends_by_itself();
}

#[test]
fn without_a_command_the_change_is_waited_for() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let place = tempfile::tempdir().unwrap();
    let args = ["-p", &target.pid().to_string(), "-d", "2"];
    let mut command = runbook("before-after.sh", &args, &place);
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().expect("bash");
    child.stdin.take().expect("a pipe").write_all(b"\n").expect("a key");
    let (code, out, err) = texts(&child.wait_with_output().expect("output"));
    assert_eq!(code, Some(0), "{out}\n{err}");
    for name in ["before.trace", "after.trace", "diff.txt"] {
        assert!(place.path().join(name).exists(), "no {name}");
    }
    target.goes_on_and_ends_by_itself();
}

#[test]
fn a_hung_service_is_documented_completely() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("sleeper", &["futex"]);
    let place = tempfile::tempdir().unwrap();
    run(runbook(
        "hung-service.sh",
        &["-p", &target.pid().to_string(), "-d", "2", "-o", "hung"],
        &place,
    ));
    let text = |name: &str| fs::read_to_string(place.path().join("hung").join(name)).expect(name);
    assert!(text("stacks.txt").contains("futex"), "{}", text("stacks.txt"));
    assert!(text("stacks-later.txt").contains("futex"), "{}", text("stacks-later.txt"));
    assert!(text("print.txt").contains("[sleeping in "), "{}", text("print.txt"));
    assert!(text("doctor.txt").contains("ok"), "{}", text("doctor.txt"));
    assert_eq!(text("errors.txt"), "");
    target.goes_on_and_ends_by_itself();
}

/// The runbook tries each step and reports which failed.
#[test]
fn a_service_that_has_exited_leaves_the_reasons() {
    let place = tempfile::tempdir().unwrap();
    let mut command = runbook("hung-service.sh", &["-p", "999999999", "-o", "hung"], &place);
    let (code, _, err) = texts(&command.output().unwrap());
    assert_eq!(code, Some(1), "{err}");
    let errors = fs::read_to_string(place.path().join("hung/errors.txt")).unwrap();
    for step in ["stacks", "doctor", "record"] {
        assert!(
            errors.lines().any(|line| line.starts_with("failed: ") && line.contains(step)),
            "{errors}"
        );
    }
    use std::os::unix::fs::PermissionsExt;
    let mode = fs::metadata(place.path().join("hung")).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "others may read it");
    assert!(!place.path().join("hung/print.txt").exists(), "there is nothing to print");
    // The directory belongs to an earlier incident.
    let again = runbook("hung-service.sh", &["-p", "999999999", "-o", "hung"], &place).output();
    let (code, _, err) = texts(&again.unwrap());
    assert_eq!(code, Some(6), "{err}");
    assert_eq!(fs::read_to_string(place.path().join("hung/errors.txt")).unwrap(), errors);
}

/// Returns the reason why no namespaces can be made here, if there is one.
fn namespace_obstacle() -> Option<&'static str> {
    if !is_root() {
        return Some("unshare: needs root");
    }
    let mut unshare = Command::new("unshare");
    let made = unshare.args(["--pid", "--fork", "--mount-proc", "true"]).output();
    let is_made = made.is_ok_and(|output| output.status.success());
    (!is_made).then_some("unshare: namespaces cannot be made")
}

/// In its own namespace, where nothing else is busy.
#[test]
fn the_busiest_process_is_found_and_printed() {
    needs_recording!();
    if let Some(obstacle) = namespace_obstacle() {
        skip!("{obstacle}");
    }
    let _machine = together();
    let place = tempfile::tempdir().unwrap();
    let script = "\"$1\" >/dev/null & busy=$!; sleep 30 & \"$2\" -d 2 -o kept.trace -- \
        --min-percent 1; \
                  code=$?; kill $busy; exit $code";
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child", "bash", "-c", script, "bash"]);
    command.arg(program("split")).arg(runbooks().join("busiest.sh")).current_dir(place.path());
    command.env("TRACEPROF", env!("CARGO_BIN_EXE_traceprof")).stdin(Stdio::null());
    let (code, out, err) = texts(&command.output().expect("unshare"));
    assert_eq!(code, Some(0), "{out}\n{err}");
    assert!(err.contains("/split ) used "), "{err}");
    assert!(out.contains("kernel_alpha"), "{out}");
    assert!(place.path().join("kept.trace").exists());
}

#[test]
fn a_container_is_recorded_from_outside_and_from_inside() {
    needs_recording!();
    if let Some(obstacle) = namespace_obstacle() {
        skip!("{obstacle}");
    }
    let _machine = together();
    let place = tempfile::tempdir().unwrap();
    // Process 1 of this namespace is in no container.
    let own = std::process::id().to_string();
    let refused = runbook("container.sh", &["-i", "-p", &own], &place).output().unwrap();
    let (code, _, err) = texts(&refused);
    assert!(code == Some(2) && err.contains("without -i"), "{err}");
    let mut container = Command::new("unshare");
    container.args(["--pid", "--fork", "--mount-proc", "--kill-child"]).arg(program("split"));
    let mut target = Target::spawn_inside(container);
    let pid = target.pid().to_string();
    let out = run(runbook("container.sh", &["-p", &pid, "-d", "2"], &place));
    assert!(out.contains("kernel_alpha"), "{out}");
    let out =
        run(runbook("container.sh", &["-i", "-p", &pid, "-d", "2", "-o", "in.trace"], &place));
    assert!(out.contains("kernel_alpha") && out.contains("pid 1"), "{out}");
    target.goes_on_and_ends_by_itself();
}
