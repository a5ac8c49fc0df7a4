//! `top` on a terminal: keys, sizes, and how it restores the terminal.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{PATIENCE, files_in};
use crate::common::{Snapshot, Target, Tmux, child_named, needs_recording, together, wait_until};

/// Types the line that starts the command, after a line that must be visible again afterwards.
pub(super) fn start(tmux: &Tmux, options: &str) {
    tmux.type_line("echo was''-here");
    tmux.wait_for("was-here");
    tmux.type_line(&format!("{} top {options}; echo code-$?", env!("CARGO_BIN_EXE_traceprof")));
}

/// Returns the first row of the table.
fn first_row(screen: &str) -> &str {
    screen.lines().nth(4).unwrap_or_default()
}

#[test]
fn keys_change_the_table_and_q_restores_the_terminal() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let before = Snapshot::take(target.pid());
    let tmux = Tmux::start(80, 24);
    start(&tmux, &format!("--freq 997 --pid {}", target.pid()));
    tmux.wait_for("kernel_alpha");
    let screen = tmux.screen();
    assert!(!screen.contains("was-here") && screen.lines().all(|line| line.chars().count() <= 80));
    assert!(first_row(&screen).contains("kernel_alpha"), "{screen}");
    assert!(first_row(&screen).ends_with("split"), "{screen}");
    tmux.press_key("t");
    tmux.wait_for(&format!("thread {} \"split\"", target.pid()));
    tmux.press_key("m");
    tmux.wait_for_screen(
        &|screen| !screen.contains("\"split\"") && screen.contains("libc.so"),
        "modules",
    );
    tmux.press_key("l");
    // The end of a path is what identifies the line.
    tmux.wait_for_screen(&|screen| first_row(screen).contains("split.c:"), "a line");
    tmux.press_key("f");
    tmux.press_key("s");
    tmux.wait_for("▾total %");
    tmux.wait_for_screen(&|screen| numbers_of(first_row(screen)).1 > 90.0, "the heaviest by total");
    tmux.press_key("?");
    tmux.wait_for("any key goes back");
    tmux.press_key("x");
    tmux.press_key("p");
    tmux.wait_for("PAUSED");
    let paused = tmux.screen();
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(tmux.screen(), paused, "the table goes on");
    tmux.press_key("p");
    tmux.wait_for_screen(
        &|screen| screen != paused && !screen.contains("PAUSED"),
        "the next table",
    );
    tmux.press_key("q");
    tmux.wait_for("code-0");
    tmux.wait_for("was-here");
    assert!(!tmux.screen().contains("▾"), "{}", tmux.screen());
    // The terminal echoes characters again.
    tmux.type_line("stty -a | grep -ow -e isig -e echo -e icanon");
    tmux.wait_for_screen(&|screen| screen.lines().any(|line| line == "icanon"), "icanon");
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
    tmux.wait_for("q quit");
    // The next table comes after an hour.
    tmux.resize(140, 50);
    tmux.wait_for_screen(
        &|screen| screen.lines().nth(49).is_some_and(|foot| foot.contains("p pause")),
        "a foot",
    );
    tmux.resize(40, 10);
    tmux.wait_for_screen(
        &|screen| screen.lines().nth(9).is_some_and(|foot| foot.starts_with("q quit")),
        "a foot",
    );
    tmux.press_key("C-c");
    tmux.wait_for("code-0");
    target.goes_on_and_ends_by_itself();
}

#[test]
fn a_signal_restores_the_terminal_and_the_target() {
    needs_recording!();
    let _machine = together();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let mut target = Target::start("split", &[]);
        let tmux = Tmux::start(100, 30);
        start(&tmux, &format!("{}", target.pid()));
        tmux.wait_for("q quit");
        let shell = tmux.shell();
        let top = child_named(shell, "traceprof").expect("the command");
        kill(Pid::from_raw(top), signal).expect("a signal");
        tmux.wait_for("code-0");
        tmux.wait_for("was-here");
        tmux.type_line("stty -a | grep -ow -e icanon");
        tmux.wait_for_screen(&|screen| screen.lines().any(|line| line == "icanon"), "icanon");
        assert_eq!(files_in(&tmux.temporary()), 0, "temporary files");
        target.goes_on_and_ends_by_itself();
    }
}

#[test]
fn the_exit_of_the_process_is_reported_below_the_last_table() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let tmux = Tmux::start(100, 40);
    start(&tmux, &format!("{}", target.pid()));
    tmux.wait_for("kernel_alpha");
    target.goes_on_and_ends_by_itself();
    tmux.wait_for("code-0");
    tmux.wait_for("note: the target exited");
    tmux.wait_for("kernel_alpha");
    assert!(wait_until(PATIENCE, || files_in(&tmux.temporary()) == 0), "temporary files");
}

#[test]
fn colours_are_left_out_where_nobody_wants_them() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    for (variable, is_plain) in [("NO_COLOR=1", true), ("NO_COLOR=", false)] {
        let tmux = Tmux::start(80, 24);
        tmux.type_line(&format!("export {variable}"));
        start(&tmux, &format!("{}", target.pid()));
        tmux.wait_for("kernel_alpha");
        assert_eq!(!tmux.colored().contains('\x1b'), is_plain, "{}", tmux.colored());
        tmux.press_key("q");
        tmux.wait_for("code-0");
    }
    target.goes_on_and_ends_by_itself();
}
