//! Rules for lengths, names, promises and paths.

use super::import_cycles::CRATES;
use super::source::Source;

const LINES_MAX: usize = 500;
/// Names that do not say what is inside.
const EMPTY_NAMES: [&str; 11] = [
    "util", "utils", "helper", "helpers", "manager", "ctx", "misc", "info", "data", "handler",
    "stuff",
];
const PROMISES: [&str; 2] = [concat!("TO", "DO"), concat!("FIX", "ME")];
/// Beginnings of paths that only exist on one person's machine.
const MACHINE_PATHS: [&str; 4] =
    [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/Us", "ers/")];

fn is_program(file: &Source) -> bool {
    let by_extension = [".rs", ".c", ".h", ".py", ".sh"].iter().any(|end| file.path.ends_with(end));
    by_extension || file.path.starts_with("scripts/") || file.path.starts_with(".ci/")
}

fn files_are_short(file: &Source) -> Vec<String> {
    let lines = file.text.lines().count();
    let too_long = is_program(file) && lines > LINES_MAX;
    if too_long { vec![format!("{lines} lines, at most {LINES_MAX}")] } else { Vec::new() }
}

/// Columns of a line of Rust. Tables of documentation and text in other languages may have more.
const COLUMNS_MAX: usize = 100;

fn lines_fit_a_screen(file: &Source) -> Vec<String> {
    let is_ours =
        CRATES.iter().any(|dir| file.path.starts_with(dir) && !file.path.contains("/tests"));
    let is_long = |line: &&str| {
        let text = line.trim_start();
        let is_table = text.starts_with("//! |") || text.starts_with("/// |");
        line.chars().count() > COLUMNS_MAX && !is_table
    };
    if !file.is_rust() || !is_ours {
        return Vec::new();
    }
    let long = file.text.lines().filter(is_long);
    long.map(|line| format!("over {COLUMNS_MAX} columns: {}", line.trim())).collect()
}

fn modules_have_meaning(file: &Source) -> Vec<String> {
    if !file.is_rust() {
        return Vec::new();
    }
    let mut parts = file.path.trim_end_matches(".rs").split('/').filter(|part| *part != "mod");
    let empty = parts.find(|part| EMPTY_NAMES.contains(part));
    empty.map(|name| format!("the name {name} says nothing")).into_iter().collect()
}

fn files_say_what_they_are(file: &Source) -> Vec<String> {
    let says = file.text.lines().next().is_some_and(|line| line.starts_with("//! "));
    if file.is_rust() && !says { vec!["the first line is no //! text".into()] } else { Vec::new() }
}

/// Nobody keeps a promise without an issue.
fn promises_have_an_issue(file: &Source) -> Vec<String> {
    let is_open = |line: &&str| {
        let numbered =
            line.split('#').skip(1).any(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        PROMISES.iter().any(|word| line.contains(word)) && !numbered
    };
    file.text
        .lines()
        .filter(is_open)
        .map(|line| format!("no issue number: {}", line.trim()))
        .collect()
}

fn paths_are_of_no_machine(file: &Source) -> Vec<String> {
    let starts_path = |line: &str, at: usize| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|c| c.is_whitespace() || c.is_control() || "\"'`(=:<[,".contains(c))
    };
    let is_bad = |line: &&str| {
        MACHINE_PATHS
            .iter()
            .any(|path| line.match_indices(path).any(|(at, _)| starts_path(line, at)))
    };
    file.text.lines().filter(is_bad).map(|line| format!("machine path: {}", line.trim())).collect()
}

fn changelog_has_room_for_the_next_change(file: &Source) -> Vec<String> {
    let has_room = file.text.lines().any(|line| line == "# Unreleased");
    let wrong = file.path == "CHANGELOG.md" && !has_room;
    if wrong { vec!["no \"# Unreleased\" heading".into()] } else { Vec::new() }
}

mod tests {
    use super::super::{assert_tree_follows, check, source};
    use super::*;

    #[test]
    fn tree_is_tidy() {
        assert_tree_follows(files_are_short);
        assert_tree_follows(lines_fit_a_screen);
        assert_tree_follows(modules_have_meaning);
        assert_tree_follows(files_say_what_they_are);
        assert_tree_follows(promises_have_an_issue);
        assert_tree_follows(paths_are_of_no_machine);
        assert_tree_follows(changelog_has_room_for_the_next_change);
        assert!(source::tree().iter().any(|file| file.path == "CHANGELOG.md"), "no CHANGELOG.md");
    }

    #[test]
    fn long_file_is_found() {
        check(files_are_short, "src/x.rs", &"x\n".repeat(LINES_MAX), 0);
        check(files_are_short, "src/x.rs", &"x\n".repeat(LINES_MAX + 1), 1);
        check(files_are_short, "scripts/test", &"x\n".repeat(LINES_MAX + 1), 1);
        check(files_are_short, "README.md", &"x\n".repeat(LINES_MAX + 1), 0);
    }

    #[test]
    fn long_line_is_found() {
        let line = |columns: usize| format!("let _ = 1;\n// {}\n", "ä".repeat(columns - 3));
        check(lines_fit_a_screen, "src/x.rs", &line(COLUMNS_MAX), 0);
        check(lines_fit_a_screen, "src/x.rs", &line(COLUMNS_MAX + 1), 1);
        check(lines_fit_a_screen, "src/x.rs", &format!("//! | {} |", "x".repeat(COLUMNS_MAX)), 0);
    }

    #[test]
    fn empty_name_is_found() {
        check(modules_have_meaning, "src/record/utils.rs", "", 1);
        check(modules_have_meaning, "src/manager/mod.rs", "", 1);
        check(modules_have_meaning, "src/trace/index.rs", "", 0);
    }

    #[test]
    fn silent_file_is_found() {
        check(files_say_what_they_are, "src/x.rs", "use std::fs;\n", 1);
        check(files_say_what_they_are, "src/x.rs", "//! X.\n", 0);
    }

    #[test]
    fn promise_without_an_issue_is_found() {
        let promise = |end: &str| format!("// {} {end}\n", PROMISES[0]);
        check(promises_have_an_issue, "src/x.rs", &promise("soon"), 1);
        check(promises_have_an_issue, "src/x.rs", &promise("see #12"), 0);
        check(promises_have_an_issue, "src/x.rs", &format!("//{}", PROMISES[1]), 1);
    }

    #[test]
    fn machine_path_is_found() {
        let rule = paths_are_of_no_machine;
        for path in MACHINE_PATHS {
            check(rule, "README.md", &format!("see {path}x"), 1);
            check(rule, "README.md", &format!("open(\"{path}x\")"), 1);
            check(rule, "tests/corpus/x", &format!("\0{path}x\0"), 1);
        }
        check(rule, "src/x.rs", concat!("/proc/PID/ro", "ot/tmp"), 0);
    }

    #[test]
    fn changelog_without_room_is_found() {
        check(changelog_has_room_for_the_next_change, "CHANGELOG.md", "# 0.1.0\n", 1);
        check(changelog_has_room_for_the_next_change, "CHANGELOG.md", "# Unreleased\n", 0);
    }
}
