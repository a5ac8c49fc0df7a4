//! The claim on a target: who holds it, who is kept away by it, and who cannot hold it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::common::{
    Recorder, Target, Trace, as_nobody, needs_recording, program, program_for_everyone,
    scratch_dir, skip, together, traceprof, wait_until,
};

/// Less than a recorder waits for the guardian of another one.
const SOON: Duration = Duration::from_secs(20);

/// Copies the recorder to where every user can execute it.
fn for_everyone(dir: &Path) -> PathBuf {
    program_for_everyone(env!("CARGO_BIN_EXE_traceprof").as_ref(), dir)
}

/// A program that locks all files of a process that it may open, until it is dropped.
struct Locker(Child);

impl Locker {
    fn of(pid: i32, mut shell: Command) -> Locker {
        const SCRIPT: &str = "for file in /proc/$1 /proc/$1/*; do \
             { exec {fd}<$file && flock --nonblock $fd; } 2>/dev/null; done; echo done; read";
        shell.args(["-c", SCRIPT, "locker"]).arg(pid.to_string());
        shell.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = shell.spawn().expect("bash");
        let stdout = child.stdout.as_mut().expect("a pipe");
        let mut done = [0; 5];
        std::io::Read::read_exact(stdout, &mut done).expect("all is locked");
        Locker(child)
    }
}

impl Drop for Locker {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn check_code(output: &Output, code: i32) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{text}");
    text
}

#[test]
fn locks_of_a_user_who_may_not_trace_keep_nobody_away() {
    needs_recording!();
    let _machine = together();
    let Some(shell) = as_nobody(Path::new("bash")) else {
        skip!("root: needed to act as two users");
    };
    let mut target = Target::start("prey", &["spin"]);
    let pid = target.pid().to_string();
    let _locker = Locker::of(target.pid(), shell);
    let start = Instant::now();
    check_code(&traceprof(&["detach", "--pid", &pid]).output().expect("traceprof"), 0);
    Recorder::start(&["--pid", &pid, "--duration", "0.3"]).finish().expect_code(0);
    assert!(start.elapsed() < SOON, "it took {:?}", start.elapsed());
    target.goes_on_and_ends_by_itself();
}

#[test]
fn a_lock_of_a_user_who_may_trace_is_reported_as_what_it_is() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("prey", &["spin"]);
    let pid = target.pid().to_string();
    let locker = Locker::of(target.pid(), Command::new("bash"));
    let start = Instant::now();
    let output = traceprof(&["detach", "--pid", &pid]).output().expect("traceprof");
    let text = check_code(&output, 3);
    // The lock is of a `flock` that has exited. Who has the file open can hold it.
    assert!(text.contains("another program holds a lock on"), "{text}");
    assert!(text.contains("`fuser /proc/PID/maps`"), "{text}");
    assert!(start.elapsed() < SOON, "it took {:?}", start.elapsed());
    drop(locker);
    check_code(&traceprof(&["detach", "--pid", &pid]).output().expect("traceprof"), 0);
    target.goes_on_and_ends_by_itself();
}

/// Checks that a second recorder is refused by the name of the first, at once, and that the first
/// one goes on.
fn excludes(target: &mut Target, mut first: Command, mut second: Command) {
    let pid = target.pid().to_string();
    let trace = Trace::new();
    std::fs::set_permissions(trace.dir(), std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .expect("a directory for everybody");
    first.args(["record", "--pid", &pid]);
    let mut recorder = Recorder::spawn(first, trace);
    recorder.wait_until_attached(target.pid());
    let start = Instant::now();
    second.args(["detach", "--pid", &pid]);
    let text = check_code(&second.output().expect("a second recorder"), 3);
    let name = format!("another traceprof (pid {}) already records the target", recorder.pid());
    assert!(text.contains(&name), "{text}");
    assert!(start.elapsed() < SOON, "it took {:?}", start.elapsed());
    recorder.send(Signal::SIGINT);
    recorder.finish().expect_code(0);
    target.goes_on_and_ends_by_itself();
}

/// Returns a target of user nobody.
fn nobodys_target(dir: &Path) -> Option<Target> {
    let mut command = as_nobody(&program_for_everyone(&program("prey"), dir))?;
    command.arg("spin");
    Some(Target::spawn(command))
}

#[test]
fn root_is_kept_away_while_the_user_of_the_target_records_it() {
    needs_recording!();
    let _machine = together();
    let dir = scratch_dir();
    let Some(mut target) = nobodys_target(dir.path()) else {
        skip!("root: needed to act as two users");
    };
    let first = as_nobody(&for_everyone(dir.path())).expect("root, as before");
    excludes(&mut target, first, traceprof(&[]));
}

#[test]
fn the_user_of_the_target_is_kept_away_while_root_records_it() {
    needs_recording!();
    let _machine = together();
    let dir = scratch_dir();
    let Some(mut target) = nobodys_target(dir.path()) else {
        skip!("root: needed to act as two users");
    };
    let second = as_nobody(&for_everyone(dir.path())).expect("root, as before");
    excludes(&mut target, traceprof(&[]), second);
}

#[test]
fn a_recorder_in_another_mount_namespace_is_kept_away() {
    needs_recording!();
    let _machine = together();
    let unshare = || {
        let mut command = Command::new("unshare");
        command.arg("--mount");
        command
    };
    if !unshare().arg("true").output().is_ok_and(|output| output.status.success()) {
        skip!("unshare: namespaces are not permitted here");
    }
    let mut target = Target::start("prey", &["spin"]);
    let mut second = unshare();
    second.arg(traceprof(&[]).get_program());
    excludes(&mut target, traceprof(&[]), second);
}

/// Returns `unshare` for a pid namespace with a `/proc` of its own, if the host permits that.
fn container() -> Option<Command> {
    let flags = ["--pid", "--fork", "--kill-child", "--mount-proc"];
    let with_flags = || {
        let mut command = Command::new("unshare");
        command.args(flags);
        command
    };
    let is_permitted =
        with_flags().arg("true").output().is_ok_and(|output| output.status.success());
    is_permitted.then(with_flags)
}

/// Returns `traceprof` with these arguments, for the first process of the target's container.
fn inside(target: &Target, args: &[&str]) -> Command {
    let mut command = Command::new("nsenter");
    command.args(["--pid", "--mount", "--target", &target.pid().to_string()]);
    command.arg(traceprof(&[]).get_program()).args(args).args(["--pid", "1"]);
    command.stdin(Stdio::null());
    command
}

/// Both processes lock files in `/proc`, but not the same ones.
#[test]
fn a_recorder_outside_leaves_the_agent_of_one_in_a_container() {
    needs_recording!();
    let _machine = together();
    let Some(mut container) = container() else {
        skip!("unshare: namespaces are not permitted here");
    };
    container.arg(program("prey")).arg("spin");
    let mut target = Target::spawn_inside(container);
    let mut recorder = Recorder::spawn(inside(&target, &["record"]), Trace::new());
    recorder.wait_until_attached(target.pid());
    recorder.wait_for_cpu(target.pid(), Duration::from_millis(300));
    let pid = target.pid().to_string();
    let text = check_code(&traceprof(&["detach", "--pid", &pid]).output().expect("traceprof"), 3);
    assert!(text.contains("already records the target"), "{text}");
    recorder.wait_for_cpu(target.pid(), Duration::from_millis(300));
    // It waits for the command inside.
    let command = crate::common::child_named(recorder.pid(), "traceprof").expect("a recorder");
    let command = nix::unistd::Pid::from_raw(command);
    nix::sys::signal::kill(command, Signal::SIGINT).expect("a recorder");
    recorder.finish().expect_code(0);
    target.goes_on_and_ends_by_itself();
}

#[test]
fn a_recorder_in_a_container_leaves_the_agent_of_one_outside() {
    needs_recording!();
    let _machine = together();
    let Some(mut container) = container() else {
        skip!("unshare: namespaces are not permitted here");
    };
    container.arg(program("prey")).arg("spin");
    let mut target = Target::spawn_inside(container);
    let mut recorder = Recorder::start(&["--pid", &target.pid().to_string()]);
    recorder.wait_until_attached(target.pid());
    recorder.wait_for_cpu(target.pid(), Duration::from_millis(300));
    let text = check_code(&inside(&target, &["detach"]).output().expect("nsenter"), 3);
    assert!(text.contains("already records the target"), "{text}");
    recorder.wait_for_cpu(target.pid(), Duration::from_millis(300));
    recorder.send(Signal::SIGINT);
    recorder.finish().expect_code(0);
    target.goes_on_and_ends_by_itself();
}

#[test]
fn the_claim_of_a_killed_recorder_is_free_again() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("prey", &["spin"]);
    let pid = target.pid().to_string();
    let mut recorder = Recorder::start(&["--pid", &pid]);
    recorder.wait_until_attached(target.pid());
    recorder.send(Signal::SIGKILL);
    let is_free = || {
        let output = traceprof(&["detach", "--pid", &pid]).output().expect("traceprof");
        output.status.code() == Some(0)
    };
    assert!(wait_until(Duration::from_secs(60), is_free), "the claim stays");
    recorder.finish();
    target.goes_on_and_ends_by_itself();
}
