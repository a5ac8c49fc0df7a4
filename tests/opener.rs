//! `view --open` with openers made for the tests.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpgid};

use crate::common::{traceprof, wait_until};
use crate::page::demo;

/// Timeout of each step, for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Makes the script the only opener in the search path.
pub(crate) fn install(dir: &Path, script: &str) {
    let opener = dir.join("xdg-open");
    std::fs::write(&opener, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&opener, std::fs::Permissions::from_mode(0o755)).unwrap();
}

fn open(trace: &Path, dir: &Path) -> Output {
    let mut command = traceprof(&["view", "--open", "--force"]);
    command.arg(trace).env("PATH", dir).output().expect("traceprof")
}

fn stderr_of(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn a_desktop_that_opens_no_page_is_reported() {
    let made = demo();
    let dir = made.dir().join("bin");
    std::fs::create_dir(&dir).unwrap();
    let page = made.dir().join("out.html");
    let check = |reason: &str| {
        let _ = std::fs::remove_file(&page);
        let output = open(&made.path(), &dir);
        let message = stderr_of(&output);
        assert_eq!(output.status.code(), Some(1), "{message}");
        let page = page.to_str().unwrap();
        for part in ["which is written", page, reason] {
            assert!(message.contains(part), "no {part:?} in {message}");
        }
        assert!(Path::new(page).exists());
    };
    check("No such file");
    for (script, reason) in [
        ("exit 3", "a program that it needs is missing"),
        ("exit 4", "no display"),
        ("exit 7", "exit status: 7"),
        ("kill -9 $$", "signal: 9"),
    ] {
        install(&dir, script);
        check(reason);
    }
    install(&dir, "printf %s \"$1\" >\"${0%/*}/opened\"");
    let output = open(&made.path(), &dir);
    assert_eq!(output.status.code(), Some(0), "{}", stderr_of(&output));
    assert_eq!(std::fs::read_to_string(dir.join("opened")).unwrap(), page.display().to_string());
}

/// The browser's descriptors would keep the pipes of a script open, and an interrupt would end it.
#[test]
fn a_browser_that_stays_is_left_to_itself() {
    let made = demo();
    let dir = made.dir().join("bin");
    std::fs::create_dir(&dir).unwrap();
    let script = "echo noise; echo noise >&2; echo $$ >\"${0%/*}/pid.new\"\n\
        /bin/mv \"${0%/*}/pid.new\" \"${0%/*}/pid\"; exec /bin/sleep 600";
    install(&dir, script);
    // This reads until every process that holds the pipe has closed it.
    let output = open(&made.path(), &dir);
    let message = stderr_of(&output);
    assert_eq!((output.status.code(), message.as_str()), (Some(0), ""));
    assert!(wait_until(PATIENCE, || dir.join("pid").exists()));
    let pid: i32 = std::fs::read_to_string(dir.join("pid")).unwrap().trim().parse().unwrap();
    let pid = Pid::from_raw(pid);
    let group = getpgid(Some(pid));
    assert_eq!(group, Ok(pid), "the browser still runs, in its own process group");
    kill(pid, Signal::SIGKILL).unwrap();
}
