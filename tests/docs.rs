//! Manual pages and completions match the definition of the command line.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use traceprof::cli::arguments::definition;
use traceprof::cli::documents::{documents, long_options};
use traceprof::cli::exit::ExitCode;

use crate::snapshot;

const COLUMNS_MAX: usize = 100;
const README_LINES_MAX: usize = 250;
const README: &str = include_str!("../README.md");

/// Returns a generated page.
fn page(name: &str) -> String {
    let path = format!("man/{name}.1");
    let found = documents().unwrap().into_iter().find(|document| document.path == path);
    String::from_utf8(found.unwrap_or_else(|| panic!("no {path}")).bytes).unwrap()
}

#[test]
fn generated_files_are_up_to_date() {
    for document in documents().unwrap() {
        snapshot::check(&document.path, &document.bytes);
    }
}

#[test]
fn no_page_or_completion_is_left_over() {
    let generated: BTreeSet<String> =
        documents().unwrap().into_iter().map(|document| document.path).collect();
    for folder in ["man", "completions"] {
        for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            // Sections 5 and 7 are hand-written; pictures come from real recordings.
            let path = format!("{folder}/{name}");
            let is_made = [".5", ".7", ".png"].iter().any(|end| name.ends_with(end));
            assert!(is_made || generated.contains(&path), "{path} is not generated");
        }
    }
}

#[test]
fn every_long_option_is_in_its_page_and_the_reverse() {
    for (name, options) in long_options() {
        let page = page(&name).replace("\\-", "-");
        // The groups of the help are sections of the page. Examples may also name options.
        let (_, section) = page.split_once(".SH DESCRIPTION").unwrap();
        let section = section.split(".SH EXAMPLES").next().unwrap();
        let section = section.split(".SH \"EXIT STATUS\"").next().unwrap();
        let documented: BTreeSet<&str> =
            section.split("\\fB--").skip(1).map(|rest| rest.split('\\').next().unwrap()).collect();
        let defined: BTreeSet<&str> = options.iter().map(String::as_str).collect();
        assert_eq!(documented, defined, "{name}");
    }
}

#[test]
fn untested_features_are_named() {
    let names =
        ["yama", "SELinux", "AppArmor", "shadow stacks", "AMX", "kernels but", "32-bit hardware"];
    for action in ["record", "detach"] {
        let page = page(&format!("traceprof-{action}"));
        let (_, section) = page.split_once(".SH \"NOT TRIED\"").unwrap();
        let section = section.split(".SH ").next().unwrap().replace("\\-", "-");
        for name in names {
            assert!(section.contains(name), "{action} lacks {name}: {section}");
        }
    }
}

#[test]
fn every_page_lists_the_exit_codes() {
    let actions = long_options().into_iter().map(|(name, _)| name);
    for name in actions.chain(["traceprof".to_owned()]) {
        let page = page(&name).replace("\\-", "-");
        for code in ExitCode::ALL {
            let entry = format!(".B {}\n{}\n", code.number(), code.meaning());
            assert!(page.contains(&entry), "{name} lacks exit code {}", code.number());
        }
    }
}

/// Returns the name of each hand-written page, such as `traceprof-data.5`, with its text.
fn written_pages() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("man");
    let mut pages = Vec::new();
    for entry in fs::read_dir(&folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".5") || name.ends_with(".7") {
            let text = fs::read_to_string(folder.join(&name)).unwrap();
            pages.push((name, text));
        }
    }
    pages.sort();
    pages
}

/// Returns the text of a page as a reader sees it, line by line.
fn plain(roff: &str) -> String {
    let escapes = [
        ("\\-", "-"),
        ("\\fB", ""),
        ("\\fI", ""),
        ("\\fR", ""),
        ("\\(aq", "'"),
        ("\\(ti", "~"),
        ("\\&", ""),
    ];
    escapes.iter().fold(roff.to_owned(), |text, (escape, shown)| text.replace(escape, shown))
}

/// Returns the pages of this program that a text refers to, such as `traceprof-data.5`.
fn references(text: &str) -> BTreeSet<String> {
    let text = plain(text).replace(" (", "(");
    let is_name = |c: char| c.is_ascii_lowercase() || c == '-';
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices("traceprof") {
        let (name, rest) = text[at..].split_at(text[at..].find(|c| !is_name(c)).unwrap_or(0));
        if let Some((section, _)) = rest.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
            found.insert(format!("{name}.{section}"));
        }
    }
    found
}

#[test]
fn every_written_page_is_listed_and_the_reverse() {
    let listed = page("traceprof");
    let (_, listed) = listed.split_once(".SH \"SEE ALSO\"").unwrap();
    let listed: BTreeSet<String> =
        references(listed).into_iter().filter(|name| !name.ends_with(".1")).collect();
    let written: BTreeSet<String> = written_pages().into_iter().map(|(name, _)| name).collect();
    assert_eq!(listed, written);
    for name in &written {
        assert!(README.contains(&format!("](man/{name})")), "no link to {name}");
    }
}

#[test]
fn written_pages_refer_to_pages_that_are_there() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("man");
    let mut seen = 0;
    for (name, text) in written_pages() {
        for reference in references(&text) {
            assert!(folder.join(&reference).exists(), "{name} refers to {reference}");
            seen += 1;
        }
    }
    assert!(seen > 50, "{seen} references");
}

/// Returns the words that a page prints in bold, as a user types them.
fn bold(text: &str) -> Vec<String> {
    let pieces = text.split("\\fB").skip(1);
    pieces.map(|piece| plain(piece.split("\\fR").next().unwrap())).collect()
}

/// Whether code defines an item of this kind and name; a name with a `*` is the beginning of one.
fn is_defined(code: &str, kind: &str, name: &str) -> bool {
    let start = name.trim_end_matches('*');
    code.match_indices(&format!("{kind}{start}")).any(|(at, found)| {
        let next = code[at + found.len()..].chars().next();
        start != name || !next.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

/// Appends all source files below a folder.
fn sources(folder: &Path, into: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|end| end == "rs") {
            into.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
}

/// Figures need a test that shows them.
#[test]
fn files_and_tests_that_written_pages_name_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut code = String::new();
    for folder in ["src", "elf/src", "unwind/src", "tests", "context/tests"] {
        sources(&root.join(folder), &mut code);
    }
    let folders = ["src/", "elf/", "unwind/", "tests/", "scripts/", "abi/", "context/"];
    let (mut files, mut tests) = (0, 0);
    for (page, text) in written_pages() {
        for name in bold(&text) {
            let name = name.split_whitespace().next().unwrap();
            if folders.iter().any(|folder| name.starts_with(folder)) {
                assert!(root.join(name).exists(), "{page}: {name}");
                files += 1;
            } else if name.contains("::") {
                for item in name.split("::") {
                    let is_there =
                        ["fn ", "mod ", " as "].iter().any(|kind| is_defined(&code, kind, item));
                    assert!(is_there, "{page}: {name}");
                }
                tests += 1;
            }
        }
    }
    assert!(files > 20 && tests > 5, "{files} files, {tests} tests");
}

#[test]
fn written_pages_are_well_formed() {
    for (name, text) in written_pages() {
        let (title, section) = name.rsplit_once('.').unwrap();
        let head = format!(".TH {} {section} ", title.to_uppercase());
        assert!(plain(&text).contains(&head), "{name}: no {head}");
        assert!(plain(&text).contains(&format!("\n.SH NAME\n{title} - ")), "{name}: no name");
        for (open, close) in
            [(".TS", ".TE"), (".EX", ".EE"), (".RS", ".RE"), (".nf", ".fi"), ("T{", "T}")]
        {
            let count = |mark: &str| match mark {
                "T{" | "T}" => text.matches(mark).count(),
                _ => text.lines().filter(|line| line.starts_with(mark)).count(),
            };
            assert_eq!(count(open), count(close), "{name}: {open} and {close}");
        }
        let is_table = text.starts_with("'\\\" t\n");
        assert_eq!(text.contains("\n.TS\n"), is_table, "{name}: the first line asks for tbl");
        lines_are_short(&name, &text);
    }
}

fn lines_are_short(name: &str, text: &str) {
    for (number, line) in text.lines().enumerate() {
        let columns = line.chars().count();
        assert!(columns <= COLUMNS_MAX, "{name}:{} has {columns} columns", number + 1);
    }
}

#[test]
fn the_readme_is_short() {
    let lines = README.lines().count();
    assert!(lines <= README_LINES_MAX, "{lines} lines");
    lines_are_short("README.md", README);
    lines_are_short("CHANGELOG.md", include_str!("../CHANGELOG.md"));
}

#[test]
fn links_of_the_readme_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut seen = 0;
    for rest in README.split("](").skip(1) {
        let (target, _) = rest.split_once(')').unwrap();
        assert!(root.join(target).exists(), "{target}");
        seen += 1;
    }
    assert!(seen > 20, "{seen} links");
}

/// The command lines in code blocks, without prompts and comments. `a/{b,c}/d` stands for two
/// paths.
#[test]
fn folders_that_the_readme_names_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    let named: Vec<&str> =
        readme.split('`').filter(|text| text.starts_with("src/") && !text.contains(' ')).collect();
    assert!(named.len() > 10, "the source map is missing: {named:?}");
    for name in named {
        let (stem, group) = name.split_once('{').unwrap_or((name, ""));
        let (group, rest) = group.split_once('}').unwrap_or(("", ""));
        for part in group.split(',') {
            let path = format!("{stem}{part}{rest}");
            assert!(root.join(&path).exists(), "{path} of {name} does not exist");
        }
    }
}

fn command_lines(text: &str, begin: &str, end: &str) -> Vec<String> {
    let mut in_block = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.starts_with(if in_block { end } else { begin }) {
            in_block = !in_block;
            continue;
        }
        let line = line.trim_start_matches("$ ").split(" #").next().unwrap().trim_end();
        let command = line.strip_prefix("sudo ").unwrap_or(line);
        if in_block && command.starts_with("traceprof ") {
            found.push(command.to_owned());
        }
    }
    found
}

fn check_command_lines(name: &str, lines: &[String]) {
    for line in lines {
        let parsed = definition().try_get_matches_from(line.split_whitespace());
        assert!(parsed.is_ok(), "{name}: {line}: {}", parsed.unwrap_err());
    }
}

#[test]
fn every_command_line_of_the_readme_is_valid() {
    let lines = command_lines(README, "```", "```");
    check_command_lines("README.md", &lines);
    for (name, _) in long_options() {
        let start = name.replace('-', " ");
        assert!(lines.iter().any(|line| line.starts_with(&start)), "no example of {start}");
    }
}

#[test]
fn every_command_line_of_a_written_page_is_valid() {
    let mut seen = 0;
    for (name, text) in written_pages() {
        let lines = command_lines(&plain(&text), ".EX", ".EE");
        check_command_lines(&name, &lines);
        seen += lines.len();
    }
    assert!(seen > 25, "{seen} command lines");
}

/// A removed option must not remain in the texts.
#[test]
fn no_text_names_an_option_that_is_not_there() {
    let known: BTreeSet<String> = long_options().into_iter().flat_map(|(_, all)| all).collect();
    let written = written_pages().into_iter().map(|(name, text)| {
        // Bold text that begins with dashes is an option of this program.
        (name, text.replace("\\fB\\-\\-", "`--").replace("\\-", "-"))
    });
    for (name, text) in written.chain([("README.md".to_owned(), README.to_owned())]) {
        for (at, _) in text.match_indices("`--") {
            let rest = &text[at + 3..];
            let option = rest.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).next();
            let option = option.unwrap();
            assert!(option.is_empty() || known.contains(option), "{name}: --{option}");
        }
    }
}
