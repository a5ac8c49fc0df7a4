//! Manual pages and completions are what the command line's definition says.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

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
            // Section 5 describes file formats and is written by hand.
            let path = format!("{folder}/{name}");
            assert!(name.ends_with(".5") || generated.contains(&path), "{path} is not generated");
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
fn every_page_tells_the_exit_codes() {
    for (name, _) in long_options() {
        let page = page(&name).replace("\\-", "-");
        for code in ExitCode::ALL {
            let entry = format!(".B {}\n{}\n", code.number(), code.meaning());
            assert!(page.contains(&entry), "{name} lacks exit code {}", code.number());
        }
    }
}
