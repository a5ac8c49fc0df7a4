//! The table on a terminal: keys, sizes, and the way back.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{PATIENCE, files_in};
use crate::common::{Snapshot, Target, Tmux, child_named, needs_recording, together, wait_until};

/// The line that starts the command, after one that must come back.
pub(super) fn start(tmux: &Tmux, options: &str) {
    tmux.types("echo was''-here");
    tmux.sees("was-here");
    tmux.types(&format!("{} top {options}; echo code-$?", env!("CARGO_BIN_EXE_traceprof")));
}

/// The first row of the table.
fn first_row(screen: &str) -> &str {
    screen.lines().nth(4).unwrap_or_default()
}

#[test]
fn keys_change_what_is_shown_and_q_gives_the_terminal_back() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let before = Snapshot::take(target.pid());
    let tmux = Tmux::start(80, 24);
    start(&tmux, &format!("--freq 997 --pid {}", target.pid()));
    tmux.sees("kernel_alpha");
    let screen = tmux.screen();
    assert!(!screen.contains("was-here") && screen.lines().all(|line| line.chars().count() <= 80));
    assert!(first_row(&screen).contains("kernel_alpha"), "{screen}");
    assert!(first_row(&screen).ends_with("split"), "{screen}");
    tmux.presses("t");
    tmux.sees(&format!("thread {} \"split\"", target.pid()));
    tmux.presses("m");
    tmux.sees_all(&|screen| !screen.contains("\"split\"") && screen.contains("libc.so"), "modules");
    tmux.presses("l");
    // The end of a path is what tells the line.
    tmux.sees_all(&|screen| first_row(screen).contains("split.c:"), "a line");
    tmux.presses("f");
    tmux.presses("s");
    tmux.sees("▾total %");
    tmux.sees_all(&|screen| numbers_of(first_row(screen)).1 > 90.0, "the heaviest by total");
    tmux.presses("?");
    tmux.sees("any key goes back");
    tmux.presses("x");
    tmux.presses("p");
    tmux.sees("PAUSED");
    let paused = tmux.screen();
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(tmux.screen(), paused, "it goes on");
    tmux.presses("p");
    tmux.sees_all(&|screen| screen != paused && !screen.contains("PAUSED"), "the next table");
    tmux.presses("q");
    tmux.sees("code-0");
    tmux.sees("was-here");
    assert!(!tmux.screen().contains("▾"), "{}", tmux.screen());
    // Characters are echoed again.
    tmux.types("stty -a | grep -ow -e isig -e echo -e icanon");
    tmux.sees_all(&|screen| screen.lines().any(|line| line == "icanon"), "icanon");
    assert_eq!(before.marks_left(&Snapshot::take(target.pid())), Vec::<String>::new());
    assert_eq!(files_in(&tmux.temporary()), 0, "temporary files");
    target.goes_on_and_ends_by_itself();
}

fn numbers_of(row: &str) -> (f64, f64) {
    let numbers = super::numbers(row);
    (numbers.first().copied().unwrap_or(0.0), numbers.get(1).copied().unwrap_or(0.0))
}

#[test]
fn another_size_is_filled_at_once() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let tmux = Tmux::start(80, 24);
    start(&tmux, &format!("--interval 1h {}", target.pid()));
    tmux.sees("q quit");
    // The next table comes after an hour.
    tmux.resizes(140, 50);
    tmux.sees_all(
        &|screen| screen.lines().nth(49).is_some_and(|foot| foot.contains("p pause")),
        "a foot",
    );
    tmux.resizes(40, 10);
    tmux.sees_all(
        &|screen| screen.lines().nth(9).is_some_and(|foot| foot.starts_with("q quit")),
        "a foot",
    );
    tmux.presses("C-c");
    tmux.sees("code-0");
    target.goes_on_and_ends_by_itself();
}

#[test]
fn a_signal_gives_the_terminal_back_and_cures_the_target() {
    needs_recording!();
    let _machine = together();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let mut target = Target::start("split", &[]);
        let tmux = Tmux::start(100, 30);
        start(&tmux, &format!("{}", target.pid()));
        tmux.sees("q quit");
        let shell = tmux.shell();
        let top = child_named(shell, "traceprof").expect("the command");
        kill(Pid::from_raw(top), signal).expect("a signal");
        tmux.sees("code-0");
        tmux.sees("was-here");
        tmux.types("stty -a | grep -ow -e icanon");
        tmux.sees_all(&|screen| screen.lines().any(|line| line == "icanon"), "icanon");
        assert_eq!(files_in(&tmux.temporary()), 0, "temporary files");
        target.goes_on_and_ends_by_itself();
    }
}

#[test]
fn the_end_of_the_process_is_told_below_the_last_table() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let tmux = Tmux::start(100, 40);
    start(&tmux, &format!("{}", target.pid()));
    tmux.sees("kernel_alpha");
    target.goes_on_and_ends_by_itself();
    tmux.sees("code-0");
    tmux.sees("note: the target exited");
    tmux.sees("kernel_alpha");
    assert!(wait_until(PATIENCE, || files_in(&tmux.temporary()) == 0), "temporary files");
}

#[test]
fn colours_are_left_out_where_nobody_wants_them() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    for (variable, is_plain) in [("NO_COLOR=1", true), ("NO_COLOR=", false)] {
        let tmux = Tmux::start(80, 24);
        tmux.types(&format!("export {variable}"));
        start(&tmux, &format!("{}", target.pid()));
        tmux.sees("kernel_alpha");
        assert_eq!(!tmux.colored().contains('\x1b'), is_plain, "{}", tmux.colored());
        tmux.presses("q");
        tmux.sees("code-0");
    }
    target.goes_on_and_ends_by_itself();
}
