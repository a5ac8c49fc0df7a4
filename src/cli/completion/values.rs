//! The values of each option, as far as there are words for them, and processes, traces and
//! programs.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use clap::Arg;
use clap_complete::engine::{
    ArgValueCandidates, ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};
use nix::unistd::geteuid;

use crate::proc;
use crate::runtime::ManagedLanguage;
use crate::trace;
use crate::view::export::Format;
use crate::view::text::escape::escaped;

/// The most characters of a command line that are shown.
const WORDS_MAX: usize = 60;
const MODES: &[&str] = &["cpu", "wall", "cpu,wall"];
const ROWS: &[&str] = &["function", "thread", "module", "line", "process"];
const KEYS: &[&str] = &[
    "function",
    "module",
    "line",
    "language",
    "thread",
    "process",
    "span",
    "root-span",
    "task",
    "tag:",
];

/// Returns the argument with what completes its value.
pub(super) fn completed(action: &str, argument: Arg) -> Arg {
    let id = argument.get_id().as_str();
    let words = words(action, id);
    if !words.is_empty() {
        let candidates = move || words.iter().map(CompletionCandidate::new).collect();
        return argument.add(ArgValueCandidates::new(candidates));
    }
    match (action, id) {
        (_, "pid" | "pids") => argument.add(ArgValueCompleter::new(processes)),
        (_, "name") => argument.add(ArgValueCandidates::new(names)),
        (_, "file" | "before" | "after" | "input") => argument.add(traces()),
        (_, "output" | "pidfile") => argument.add(ArgValueCompleter::new(PathCompleter::any())),
        (_, "command") => argument.add(ArgValueCompleter::new(programs)),
        ("export", "format") => argument.add(ArgValueCandidates::new(formats)),
        ("record", "fail_under") => argument.add(ArgValueCandidates::new(qualities)),
        _ => argument,
    }
}

/// The words of an option; those that end with a sign are beginnings.
fn words(action: &str, id: &str) -> &'static [&'static str] {
    match (action, id) {
        ("record" | "top", "mode") => MODES,
        (_, "mode") => &["cpu", "wall"],
        ("top", "by") => ROWS,
        ("print", "by") => KEYS,
        ("export", "by") => &["span", "root-span", "task", "tag:"],
        (_, "engine") => &["auto", "perf", "signal", "timer"],
        (_, "kernel_stacks") => &["yes", "no"],
        (_, "sort") => &["self", "total"],
        (_, "color") => &["auto", "always", "never"],
        (_, "state") => &["running", "runnable", "sleeping", "disk", "stopped"],
        ("record", "compress") => &["none", "fast", "zstd", "zstd:"],
        ("record", "exit_code") => &["command", "recording"],
        ("record", "durability") => &["none", "interval", "frame"],
        ("record", "ring_save") => &["end", "trigger"],
        ("record", "trigger") => &["cpu>", "threads>", "file:"],
        ("diff", "format") => &["table", "json", "folded", "flamegraph"],
        _ => &[],
    }
}

fn formats() -> Vec<CompletionCandidate> {
    Format::ALL.into_iter().map(|format| format.name().into()).collect()
}

fn qualities() -> Vec<CompletionCandidate> {
    let languages = ManagedLanguage::ALL.into_iter();
    languages.map(|it| format!("{}=", it.name().to_ascii_lowercase()).into()).collect()
}

/// Processes that this user may record, by their ids or by the beginning of their names.
fn processes(current: &OsStr) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    let is_meant = |(pid, name): &(i32, String)| {
        pid.to_string().starts_with(&*current) || name.starts_with(&*current)
    };
    let named = named_processes().into_iter().filter(is_meant);
    named
        .map(|(pid, name)| {
            let words = proc::command_line(pid).unwrap_or_default();
            let line: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
            let shown = if line.is_empty() { name } else { line.join(" ") };
            let shown: String = shown.chars().take(WORDS_MAX).collect();
            CompletionCandidate::new(pid.to_string())
                .help(Some(escaped(&shown).into_owned().into()))
        })
        .collect()
}

fn named_processes() -> Vec<(i32, String)> {
    let (user, own) = (geteuid(), std::process::id());
    let status = |pid: i32| {
        let status = proc::status(pid).ok()?;
        let is_permitted = user.is_root() || status.uid == user.as_raw();
        let is_other = u32::try_from(pid) != Ok(own);
        (status.has_memory && is_permitted && is_other).then_some((pid, status.name))
    };
    proc::processes().unwrap_or_default().into_iter().filter_map(status).collect()
}

/// Names of processes that are expressions for themselves.
fn names() -> Vec<CompletionCandidate> {
    let is_plain = |name: &String| {
        name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    let names = named_processes().into_iter().map(|(_, name)| name).filter(is_plain);
    let mut names: Vec<String> = names.collect();
    names.sort();
    names.dedup();
    names.into_iter().map(CompletionCandidate::from).collect()
}

fn traces() -> ArgValueCompleter {
    ArgValueCompleter::new(PathCompleter::any().filter(is_trace))
}

fn is_trace(path: &Path) -> bool {
    if path.extension().is_some_and(|extension| extension == "trace") {
        return true;
    }
    // A pipe would wait for its writer.
    if !fs::metadata(path).is_ok_and(|file| file.is_file()) {
        return false;
    }
    let mut start = [0; 8];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && trace::is_data_start(&start)
}

/// Programs in PATH, or executable files where there is a slash.
fn programs(current: &OsStr) -> Vec<CompletionCandidate> {
    let is_program = |path: &Path| {
        fs::metadata(path)
            .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    let word = current.to_string_lossy();
    if word.contains('/') {
        return PathCompleter::any().filter(is_program).complete(current);
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let mut found: Vec<String> = Vec::new();
    for folder in env::split_paths(&path) {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let entries = entries.filter(|it| it.file_name().to_string_lossy().starts_with(&*word));
        let entries = entries.filter(|it| is_program(&it.path()));
        found.extend(entries.filter_map(|it| it.file_name().into_string().ok()));
    }
    found.sort();
    found.dedup();
    found.into_iter().map(CompletionCandidate::from).collect()
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::*;
    use crate::cli::arguments::definition;

    /// Options of a subcommand that have words, with these.
    fn with_words(command: &Command) -> Vec<(Arg, &'static [&'static str])> {
        let options = command.get_arguments().cloned();
        let of = |argument: Arg| {
            let words = words(command.get_name(), argument.get_id().as_str());
            (!words.is_empty()).then_some((argument, words))
        };
        options.filter_map(of).collect()
    }

    /// Returns the error of an option with this value.
    fn refusal(action: &str, option: &Arg, value: &str) -> Option<String> {
        let long = option.get_long().unwrap();
        let words = ["traceprof", action, "7", &format!("--{long}={value}")];
        let error = definition().try_get_matches_from(words).err()?.to_string();
        error.contains("invalid value").then_some(error)
    }

    /// The words of a message such as `expected a, b or c`.
    fn expected(message: &str) -> Vec<&str> {
        let first = message.lines().next().unwrap();
        let (_, list) = first.rsplit_once("expected ").or(first.rsplit_once(" are")).unwrap();
        let list = list.trim_start_matches(':').split(';').next().unwrap();
        list.split([',', ' ']).filter(|word| !word.is_empty() && *word != "or").collect()
    }

    #[test]
    fn words_are_those_that_the_option_takes() {
        let definition = definition();
        let mut seen = 0;
        for command in definition.get_subcommands() {
            for (option, words) in with_words(command) {
                let action = command.get_name();
                let message = refusal(action, &option, "none-of-them").unwrap();
                // A word stands for the beginnings that it contains.
                let stem = |word: &str| {
                    let end = word.find([':', '>', ',']).unwrap_or(word.len());
                    word[..end].to_owned()
                };
                let mut named: Vec<String> =
                    expected(&message).into_iter().map(stem).filter(|it| !it.is_empty()).collect();
                let mut ours: Vec<String> = words.iter().map(|word| stem(word)).collect();
                named.sort();
                ours.sort();
                named.dedup();
                ours.dedup();
                assert_eq!(ours, named, "{action} {}: {message}", option.get_id());
                for word in words.iter().filter(|word| !word.ends_with([':', '>'])) {
                    assert_eq!(refusal(action, &option, word), None);
                }
                seen += 1;
            }
        }
        assert!(seen > 20, "{seen} options");
    }

    #[test]
    fn this_process_has_a_name_and_only_others_are_offered() {
        let own = std::process::id().to_string();
        assert!(processes(OsStr::new("")).iter().all(|it| it.get_value() != own.as_str()));
        let parent = std::os::unix::process::parent_id().to_string();
        let found = processes(OsStr::new(&parent));
        let parent = found.iter().find(|it| it.get_value() == parent.as_str()).unwrap();
        assert!(!parent.get_help().unwrap().to_string().is_empty());
    }

    #[test]
    fn traces_are_known_by_name_or_content() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        fs::write(path("damaged.trace"), "").unwrap();
        fs::write(path("other"), b"\x89TPDATA\nrest").unwrap();
        fs::write(path("index"), b"\x89TPINDX\nrest").unwrap();
        fs::write(path("short"), b"\x89TP").unwrap();
        let is = |name: &str| is_trace(&path(name));
        assert!(is("damaged.trace") && is("other"));
        assert!(!is("index") && !is("short") && !is("nowhere") && !is_trace(place.path()));
    }

    #[test]
    fn programs_are_in_the_path_or_below_a_folder() {
        let names = |word: &str| {
            let found = programs(OsStr::new(word)).into_iter();
            found.map(|it| it.get_value().to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        assert!(names("en").contains(&"env".to_owned()));
        assert!(names("/usr/bin/en").contains(&"/usr/bin/env".to_owned()));
        assert!(names("no-such-program").is_empty());
    }
}
