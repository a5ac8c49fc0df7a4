//! `top` of several processes, and the keys that filter rows and save a trace.

use std::fs;
use std::path::Path;

use super::{files_in, interrupt, text, top};
use crate::common::{
    Target, Tmux, needs_recording, program, scratch_dir, skip, together, traceprof, wait_until,
};

#[test]
fn several_processes_have_a_row_each() {
    needs_recording!();
    let _machine = together();
    let mut targets = [Target::start("split", &[]), Target::start("split", &[])];
    let temporary = tempfile::tempdir().unwrap();
    let pids = targets.each_ref().map(|target| target.pid().to_string());
    let args = ["-n", "2", "--freq", "499", &pids.join(",")];
    let output = top(&temporary, &args).output().expect("traceprof");
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out}\n{err}");
    let last = out.split("\n\n").last().unwrap();
    assert!(last.contains(" and 1 other  "), "{out}");
    let mut sum = 0.0;
    for pid in &pids {
        let row = last.lines().skip(4).find(|row| row.contains(pid.as_str())).expect("a row");
        assert!(row.contains("split"), "{row}");
        sum += super::numbers(row)[2];
    }
    // They share the time, and nobody else has any.
    assert!((99.0..101.0).contains(&sum), "{out}");
    assert_eq!(files_in(temporary.path()), 0, "temporary files");
    targets.iter_mut().for_each(Target::goes_on_and_ends_by_itself);
}

/// When one process ends, the table of the others goes on.
#[test]
fn processes_are_found_by_name_and_may_end_one_by_one() {
    needs_recording!();
    let _machine = together();
    let folder = scratch_dir();
    let own = folder.path().join("watched-by-top");
    fs::copy(program("split"), &own).expect("a copy");
    let start = || Target::spawn(std::process::Command::new(&own));
    let (mut first, mut second) = (start(), start());
    let temporary = tempfile::tempdir().unwrap();
    let tables = folder.path().join("tables");
    let args = ["--by", "process", "--name", "watched-by-t"];
    let mut command = top(&temporary, &args);
    let child = command.stdout(fs::File::create(&tables).unwrap()).spawn().expect("traceprof");
    let shown = || fs::read_to_string(&tables).unwrap();
    let has_both = || {
        let text = shown();
        [first.pid(), second.pid()].iter().all(|pid| text.contains(&format!("{pid}")))
            && text.matches("since start").count() > 1
    };
    assert!(wait_until(super::PATIENCE, has_both), "{}", shown());
    first.goes_on_and_ends_by_itself();
    let before = shown().matches("since start").count();
    let goes_on = || shown().matches("since start").count() > before + 2;
    assert!(wait_until(super::PATIENCE, goes_on), "{}", shown());
    let output = interrupt(child);
    assert_eq!(output.status.code(), Some(0), "{}", shown());
    second.goes_on_and_ends_by_itself();
}

#[test]
fn a_key_saves_the_last_minute_as_a_trace_and_another_filters() {
    needs_recording!();
    if !crate::common::has_command("tmux") {
        skip!("tmux, which scripts/test installs");
    }
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let (tmux, folder) = (Tmux::start(100, 24), scratch_dir());
    tmux.type_line(&format!("cd {}", folder.path().display()));
    super::terminal::start(&tmux, &format!("--freq 997 --pid {}", target.pid()));
    tmux.wait_for("kernel_alpha");
    // The history of the CPU use, once there are two intervals.
    let has_bars = |screen: &str| {
        let after = screen.split("% CPU ").nth(1).and_then(|rest| rest.chars().next());
        after.is_some_and(|first| ('▁'..='█').contains(&first))
    };
    tmux.wait_for_screen(&has_bars, "bars");
    tmux.press_key("/");
    tmux.type_text("ALPHA");
    tmux.wait_for("filter: ALPHA_");
    tmux.press_key("Enter");
    tmux.wait_for_screen(
        &|screen| screen.contains("kernel_alpha") && !screen.contains("kernel_beta"),
        "one row",
    );
    tmux.press_key("S");
    let path = format!("traceprof-top-{}-1.trace", target.pid());
    tmux.wait_for(&format!("s: traceprof print {path}"));
    tmux.press_key("Escape");
    tmux.wait_for("kernel_beta");
    tmux.press_key("q");
    tmux.wait_for("code-0");
    let trace = folder.path().join(&path);
    let said = |words: &[&str]| {
        let output = traceprof(words).arg(&trace).output().expect("traceprof");
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    assert!(said(&["verify"]).contains("clean"));
    let printed = said(&["print", "--top", "5"]);
    let row = printed.lines().find(|line| line.contains("kernel_alpha")).expect("a row");
    assert!(row.contains("split"), "{printed}");
    assert!(Path::new(&trace).with_extension("trace.idx").exists());
    target.goes_on_and_ends_by_itself();
}
