//! What shells offer for the word at the cursor, in the shells themselves.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::common::{Target, Tmux, has_command, skip};

const TRACE: &[u8] = b"\x89TPDATA\n and more";

/// A directory with a trace, a file that is none, and a folder.
fn place() -> TempDir {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("a b.trace"), TRACE).unwrap();
    fs::write(place.path().join("recorded"), TRACE).unwrap();
    fs::write(place.path().join("notes.txt"), "text").unwrap();
    fs::create_dir(place.path().join("folder")).unwrap();
    place
}

fn script(name: &str) -> String {
    format!("{}/completions/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Lets a shell run this text in a directory where `traceprof` is a command.
fn shell(words: &[&str], place: &Path) -> Vec<String> {
    let bin = Path::new(env!("CARGO_BIN_EXE_traceprof")).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).current_dir(place).env("PATH", path);
    command.env_remove("TRACEPROF_COMPLETE");
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.is_empty(), "{words:?}: {error}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// What bash offers at the end of a line, whose words are as bash splits them.
fn in_bash(words: &[&str], place: &Path) -> Vec<String> {
    let last = words.last().unwrap();
    // Of a lone `=` the word to complete is what follows.
    let current = if *last == "=" { "" } else { last };
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let text = format!(
        "source '{}'; COMP_WORDS=(traceprof {}); COMP_CWORD={}; COMP_TYPE=63
        _clap_complete_traceprof traceprof '{current}' x; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        script("traceprof.bash"),
        quoted.join(" "),
        words.len()
    );
    shell(&["bash", "--norc", "-c", &text], place)
}

#[test]
fn bash_offers_values_of_options_however_they_are_given() {
    let place = place();
    let check = |words: &[&str], expected: &[&str]| {
        assert_eq!(in_bash(words, place.path()), expected, "{words:?}");
    };
    check(&["export", "x", "--format", "f"], &["folded", "flamegraph", "firefox"]);
    check(&["export", "x", "--format", "=", "sp"], &["speedscope"]);
    check(&["export", "x", "-f", "pp"], &["pprof"]);
    check(&["record", "--mode", ""], &["cpu", "wall", "cpu,wall"]);
    check(&["record", "--engine", "="], &["auto", "perf", "signal", "timer"]);
    check(&["record", "--kernel-stacks", ""], &["yes", "no"]);
    check(&["print", "x", "--color", "a"], &["auto", "always"]);
    check(&["print", "x", "--by", "t"], &["thread", "task", "tag:"]);
    check(&["top", "--by", "p"], &["process"]);
    check(&["print", "x", "--state", "running,s"], &["running,sleeping", "running,stopped"]);
    check(&["print", "--tim"], &["--timeline", "--time-range"]);
    check(&["comp"], &["completions"]);
    check(&["completions", "z"], &["zsh"]);
    check(&["record", "--trigger", "c"], &["cpu\\>"]);
}

#[test]
fn bash_offers_traces_and_programs_where_they_belong() {
    let place = place();
    let offered = |words: &[&str]| in_bash(words, place.path());
    assert_eq!(offered(&["print", ""]), ["a\\ b.trace", "recorded", "folder/"]);
    assert_eq!(offered(&["diff", "recorded", "r"]), ["recorded"]);
    let programs = offered(&["record", "--", "en"]);
    assert!(programs.contains(&"env".to_owned()), "{programs:?}");
    assert_eq!(offered(&["record", "-F", "99", "--", "env", "n"]), ["notes.txt"]);
    assert!(offered(&["record", "--output", "n"]).contains(&"notes.txt".to_owned()));
}

#[test]
fn bash_shows_the_names_of_processes_and_inserts_their_ids() {
    let place = place();
    let targets = [Target::start("split", &[]), Target::start("split", &[])];
    let pids = targets.each_ref().map(|target| target.pid().to_string());
    for action in ["record", "top", "stacks", "detach", "doctor"] {
        let found = in_bash(&[action, "--pid", "spli"], place.path());
        for pid in &pids {
            let is_it = |line: &&String| line.split("  ").next() == Some(pid);
            let line = found.iter().find(is_it).unwrap_or_else(|| panic!("{action}: {found:?}"));
            assert!(line.contains("split"), "{line}");
        }
    }
    // Only its id can be inserted.
    assert_eq!(in_bash(&["stacks", "--pid", &pids[0]], place.path()), [pids[0].as_str()]);
    let second = format!("{},{}", pids[0], pids[1]);
    assert_eq!(in_bash(&["record", "--pid", &second], place.path()), [second.as_str()]);
    assert_eq!(in_bash(&["top", "--name", "spli"], place.path()), ["split"]);
    targets.into_iter().for_each(|mut target| target.goes_on_and_ends_by_itself());
}

#[test]
fn fish_offers_the_same_with_descriptions() {
    if !has_command("fish") {
        skip!("fish, which scripts/test installs");
    }
    let place = place();
    let offered = |line: &str| {
        let text = format!("source '{}'; complete -C '{line}'", script("traceprof.fish"));
        shell(&["fish", "--no-config", "-c", &text], place.path())
    };
    assert_eq!(offered("traceprof export x --format fo"), ["folded"]);
    assert_eq!(offered("traceprof print "), ["a b.trace", "recorded", "folder/"]);
    let found = offered("traceprof print --time-r");
    assert!(found[0].starts_with("--time-range\t--from and --to in one"), "{found:?}");
    let own = std::process::id().to_string();
    let found = offered(&format!("traceprof stacks {own}"));
    assert!(found[0].starts_with(&format!("{own}\t")), "{found:?}");
}

#[test]
fn zsh_completes_at_the_first_key_after_it_has_found_the_script() {
    if !has_command("zsh") {
        skip!("zsh, which scripts/test installs");
    }
    let tmux = Tmux::start(80, 24);
    let bin = Path::new(env!("CARGO_BIN_EXE_traceprof")).parent().unwrap();
    tmux.type_line(&format!("PATH={}:$PATH exec zsh -f", bin.display()));
    tmux.type_line(&format!("fpath=({}/completions $fpath)", env!("CARGO_MANIFEST_DIR")));
    tmux.type_line("autoload -U compinit && compinit -u -D && echo re''ady");
    tmux.wait_for("ready");
    tmux.type_text("traceprof export x --format pp");
    tmux.press_key("Tab");
    tmux.wait_for("--format pprof");
    tmux.type_text("--by r");
    tmux.press_key("Tab");
    tmux.wait_for("--by root-span");
}
