//! Which files may use an outside crate, or another thing that must stay in one place.

use super::import_cycles::CRATES;
use super::source::{Source, words};

/// A word of code, and the only paths below `src/` where it may occur.
const DOORS: [(&str, &[&str]); 11] = [
    ("clap", &["src/cli/"]),
    ("clap_complete", &["src/cli/"]),
    ("clap_mangen", &["src/cli/"]),
    ("indicatif", &["src/cli/"]),
    ("inferno", &["src/view/export/flamegraph.rs"]),
    ("procfs", &["src/proc/"]),
    // The others are tests', which step their own children. No injection does that.
    ("ptrace", &["src/inject/", "src/runtime/tests/lua_steps.rs", "unwind/src/tests/child.rs"]),
    // The second handles changes of the terminal's size.
    ("signal_hook", &["src/record/contract/stop.rs", "src/cli/top/terminal.rs"]),
    ("blazesym", &["src/symbol/"]),
    ("cpp_demangle", &["src/symbol/"]),
    ("rustc_demangle", &["src/symbol/"]),
];

/// Prefix of the constants with which libc's `ptrace` is used.
const PTRACE_CONSTANTS: &str = "PTRACE_";

fn crates_stay_behind_their_doors(file: &Source) -> Vec<String> {
    // The others are crates of their own, whose Cargo.toml says what they use.
    let is_ours = ["src/", "elf/src/", "unwind/src/"].iter().any(|it| file.path.starts_with(it));
    if !is_ours || !file.is_rust() {
        return Vec::new();
    }
    let code = file.code();
    let is_inside = |doors: &[&str]| doors.iter().any(|door| file.path.starts_with(door));
    let mut wrong = Vec::new();
    for (word, doors) in DOORS {
        if !is_inside(doors) && words(&code, word).next().is_some() {
            wrong.push(format!("{word} belongs into {}", doors.join(" or ")));
        }
    }
    if !is_inside(&["src/inject/"]) && code.contains(PTRACE_CONSTANTS) {
        wrong.push(format!("{PTRACE_CONSTANTS}* belongs into src/inject/"));
    }
    wrong
}

/// A file with unsafe code explains why it is allowed.
fn unsafe_files_say_why(file: &Source) -> Vec<String> {
    let is_ours = CRATES.iter().any(|dir| file.path.starts_with(dir));
    if !file.is_rust() || !is_ours || words(&file.code(), "unsafe").next().is_none() {
        return Vec::new();
    }
    let explained = file.text.lines().any(|line| line.trim() == "//! # Safety");
    if explained { Vec::new() } else { vec!["unsafe without a \"//! # Safety\" section".into()] }
}

mod tests {
    use super::super::{assert_tree_follows, check};
    use super::*;

    #[test]
    fn tree_keeps_its_doors() {
        assert_tree_follows(crates_stay_behind_their_doors);
        assert_tree_follows(unsafe_files_say_why);
    }

    #[test]
    fn crate_outside_of_its_door_is_found() {
        let rule = crates_stay_behind_their_doors;
        check(rule, "src/record/mod.rs", "use clap::Parser;", 1);
        check(rule, "src/record/mod.rs", "use nix::sys::{ptrace, signal};", 1);
        check(rule, "src/record/mod.rs", "libc::ptrace(libc::PTRACE_SEIZE)", 2);
        check(rule, "src/record/drain.rs", "use signal_hook::flag;", 1);
        check(rule, "src/view/mod.rs", "fn f() { blazesym::symbolize() }", 1);
        check(rule, "src/trace/mod.rs", "let all = procfs::process::all_processes();", 1);
    }

    #[test]
    fn crate_behind_its_door_and_words_in_comments_are_not() {
        let rule = crates_stay_behind_their_doors;
        check(rule, "src/cli/mod.rs", "use clap::Parser; // ptrace", 0);
        check(rule, "src/inject/ptrace.rs", "use nix::sys::ptrace;", 0);
        check(rule, "src/record/mod.rs", "//! no clap here\nlet text = \"blazesym\";", 0);
        check(rule, "tests/errors.rs", "use nix::sys::ptrace;", 0);
    }

    #[test]
    fn unexplained_unsafe_is_found() {
        let rule = unsafe_files_say_why;
        check(rule, "src/x.rs", "//! X.\nfn f() { unsafe { g() } }", 1);
        check(
            rule,
            "src/x.rs",
            "//! X.\n//!\n//! # Safety\n//! Why.\nfn f() { unsafe { g() } }",
            0,
        );
        check(rule, "src/x.rs", "//! X.\n#![deny(unsafe_code)] // unsafe", 0);
    }
}
