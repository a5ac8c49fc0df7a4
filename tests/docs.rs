//! Manual pages and completions are what the command line's definition says.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use traceprof::cli::arguments::definition;
use traceprof::cli::documents::{documents, long_options};
use traceprof::cli::exit::ExitCode;

use crate::snapshot;

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
            // Section 5 describes file formats and is written by hand; pictures are of real recordings.
            let path = format!("{folder}/{name}");
            let is_made = [".5", ".png"].iter().any(|end| name.ends_with(end));
            assert!(is_made || generated.contains(&path), "{path} is not generated");
        }
    }
}

#[test]
fn every_long_option_is_in_its_page_and_the_reverse() {
    for (name, options) in long_options() {
        let page = page(&name).replace("\\-", "-");
        let (_, section) = page.split_once(".SH OPTIONS").unwrap();
        let section = section.split(".SH ").next().unwrap();
        let documented: BTreeSet<&str> =
            section.split("\\fB--").skip(1).map(|rest| rest.split('\\').next().unwrap()).collect();
        let defined: BTreeSet<&str> = options.iter().map(String::as_str).collect();
        assert_eq!(documented, defined, "{name}");
    }
}

#[test]
fn what_was_never_tried_is_named() {
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
fn every_page_tells_the_exit_codes() {
    for (name, _) in long_options() {
        let page = page(&name).replace("\\-", "-");
        for code in ExitCode::ALL {
            let entry = format!(".B {}\n{}\n", code.number(), code.meaning());
            assert!(page.contains(&entry), "{name} lacks exit code {}", code.number());
        }
    }
}

const README: &str = include_str!("../README.md");

/// The command lines in the README's blocks of code, without their prompts and comments.
fn readme_lines() -> Vec<&'static str> {
    let mut in_block = false;
    let mut found = Vec::new();
    for line in README.lines() {
        if line.starts_with("```") {
            in_block = !in_block;
            continue;
        }
        let line = line.trim_start_matches("$ ").split(" #").next().unwrap().trim_end();
        let command = line.strip_prefix("sudo ").unwrap_or(line);
        if in_block && command.starts_with("traceprof ") {
            found.push(command);
        }
    }
    found
}

#[test]
fn every_command_line_of_the_readme_is_valid() {
    let lines = readme_lines();
    for line in &lines {
        let parsed = definition().try_get_matches_from(line.split_whitespace());
        assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
    }
    for (name, _) in long_options() {
        let start = name.replace('-', " ");
        assert!(lines.iter().any(|line| line.starts_with(&start)), "no example of {start}");
    }
}

#[test]
fn the_readme_knows_every_long_option_of_record_and_every_exit_code() {
    for (name, options) in long_options() {
        let all = name == "traceprof-record";
        for option in options.iter().filter(|option| all && *option != "help") {
            assert!(README.contains(&format!("`--{option}")), "{name} --{option}");
        }
    }
    for code in ExitCode::ALL {
        let row = format!("| {} | {} |", code.number(), code.meaning());
        assert!(README.contains(&row), "{row}");
    }
}

/// An option that is no more must not live on in the text.
#[test]
fn the_readme_names_no_option_that_is_not_there() {
    let known: BTreeSet<String> = long_options().into_iter().flat_map(|(_, all)| all).collect();
    for (at, _) in README.match_indices("`--") {
        let rest = &README[at + 3..];
        let option = rest.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).next().unwrap();
        assert!(option.is_empty() || known.contains(option), "--{option}");
    }
}
