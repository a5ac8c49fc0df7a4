//! The command as a user meets it: arguments, messages, exit codes, pipes.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;
use traceprof::trace::{
    Location, Method, Module, Sample, Thread, TraceWriter, Value, WriterOptions,
};

use crate::snapshot;

/// A new directory in which the command runs.
struct Place {
    directory: TempDir,
}

impl Place {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_traceprof"));
        command.args(words).current_dir(self.directory.path()).stdin(Stdio::null());
        command.env_remove("COLUMNS").env("NO_COLOR", "1").env("LC_ALL", "C.UTF-8");
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// Runs the command, checks the exit code and returns standard output and standard error.
    fn check(&self, words: &[&str], code: i32) -> (String, String) {
        let output = self.run(words);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{words:?}\n{out}\n{err}");
        (out, err)
    }

    /// Runs a command that must fail with a one-line message and no standard output. Returns the
    /// message.
    fn refuse(&self, words: &[&str], code: i32) -> String {
        let (out, err) = self.check(words, code);
        assert_eq!(out, "", "{words:?}");
        assert_eq!(err.lines().count(), 1, "{words:?}: {err}");
        assert!(err.starts_with("traceprof: "), "{words:?}: {err}");
        err
    }

    fn trace(&self, name: &str, leaves: u32) {
        write_trace(&self.path(name), leaves);
    }
}

/// Writes a trace of two threads to this path, with one sample for each of the `leaves` leaf
/// functions.
pub(crate) fn write_trace(path: &Path, leaves: u32) {
    let mut writer = TraceWriter::create(path, WriterOptions::default()).unwrap();
    for (key, value) in [
        ("engine", Value::Text("perf".to_owned())),
        ("period_ns", Value::Unsigned(1_000_000)),
        ("pid", Value::Unsigned(7)),
    ] {
        writer.set_metadata(key, value).unwrap();
    }
    let module = Module { path: "/usr/bin/demo".to_owned(), build_id: vec![0xab, 1] };
    let module = writer.module(&module).unwrap();
    let mut locations = Vec::new();
    for index in 0..=leaves {
        let name = if index == 0 { "main".to_owned() } else { format!("leaf_{index}") };
        let start_svma = 0x1000 + u64::from(index) * 16;
        let method = Method { module: Some(module), name, start_svma, ..Method::default() };
        let method = writer.method(&method).unwrap();
        let file = (index % 2 == 0).then(|| "demo.c".to_owned());
        let svma = start_svma + 4;
        let line = if file.is_some() { index + 1 } else { 0 };
        let location = Location { file, line, ..Location::at(method, svma) };
        locations.push(writer.location(&location).unwrap());
    }
    let mut time_ns = 1_000_000_000;
    for (tid, name) in [(7, "demo"), (8, "work\u{1b}er")] {
        let thread = Thread { pid: 7, tid, name: name.to_owned(), ..Thread::default() };
        let thread = writer.thread(&thread).unwrap();
        for leaf in &locations[1..] {
            time_ns += 1_000_000;
            let sample =
                Sample { time_ns, trace_id: 1 << 32, weight: tid - 6, ..Sample::default() };
            writer.sample(thread, &sample, &[locations[0], *leaf]).unwrap();
        }
        time_ns += 1_000_000;
        let cut =
            Sample { time_ns, trace_id: 1 << 32, weight: 1, end_reason: 1, ..Sample::default() };
        writer.sample(thread, &cut, &[locations[1]]).unwrap();
    }
    writer.finish().unwrap();
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn help_is_on_the_standard_output_and_ends_well() {
    let place = Place::new();
    let (out, err) = place.check(&["--help"], 0);
    assert_eq!(err, "");
    snapshot::check("tests/snapshots/help.txt", out.as_bytes());
    for action in [
        "record",
        "doctor",
        "stacks",
        "print",
        "dump",
        "export",
        "view",
        "verify",
        "recover",
        "reindex",
        "completions",
    ] {
        let (out, _) = place.check(&[action, "--help"], 0);
        snapshot::check(&format!("tests/snapshots/help-{action}.txt"), out.as_bytes());
    }
}

#[test]
fn files_that_are_no_traces_are_refused_in_one_line() {
    let place = Place::new();
    fs::write(place.path("text"), "hello, world\n".repeat(100)).unwrap();
    fs::write(place.path("empty"), "").unwrap();
    fs::write(place.path("short"), [0x89]).unwrap();
    fs::create_dir(place.path("directory")).unwrap();
    symlink("nowhere", place.path("dangling")).unwrap();
    let long_name = "x".repeat(5000);
    let binary = env!("CARGO_BIN_EXE_traceprof");
    for (file, code) in [
        ("text", 10),
        ("empty", 10),
        ("short", 10),
        ("directory", 10),
        ("/dev/null", 10),
        (binary, 10),
        ("dangling", 13),
        ("missing", 13),
        (long_name.as_str(), 13),
    ] {
        for words in [
            &["print", file][..],
            &["print", "--verbose", file],
            &["print", "--timeline", file],
            &["print", "--follow", file],
            &["verify", file],
            &["verify", "--json", file],
            &["recover", file, "recovered.trace"],
            &["reindex", file],
            &["dump", file],
            &["dump", "--json", file],
            &["export", file, "--format", "folded"],
        ] {
            place.refuse(words, code);
        }
    }
    assert!(!place.path("recovered.trace").exists(), "a recovery of nothing");
    let message = place.refuse(&["print", "bad\nname\u{1b}"], 13);
    assert!(message.contains("bad name\\u{1b}"), "{message}");
}

#[test]
fn print_dump_and_export_show_a_trace() {
    let place = Place::new();
    place.trace("out.trace", 3);
    let (out, err) = place.check(&["print", "--tree", "out.trace"], 0);
    assert_eq!(err, "");
    snapshot::check("tests/snapshots/cli-print.txt", out.as_bytes());
    let (out, _) = place.check(&["print", "-v", "out.trace"], 0);
    snapshot::check("tests/snapshots/cli-verbose.txt", out.as_bytes());
    let (out, _) = place.check(&["export", "out.trace", "-f", "folded"], 0);
    let (dash, _) = place.check(&["export", "out.trace", "-f", "folded", "-o", "-"], 0);
    assert_eq!(out, dash);
    snapshot::check("tests/snapshots/cli.folded", out.as_bytes());
}

#[test]
fn dump_lists_the_same_in_text_and_json_and_needs_no_index() {
    let place = Place::new();
    place.trace("out.trace", 3);
    let (plain, err) = place.check(&["dump", "out.trace"], 0);
    assert_eq!(err, "");
    assert!(plain.chars().all(|c| c == '\n' || !c.is_control()), "{plain:?}");
    assert!(plain.contains("\"work\\u{1b}er\""), "{plain}");
    let (json, _) = place.check(&["dump", "--json", "out.trace"], 0);
    let lines: Vec<serde_json::Value> =
        json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), plain.lines().count());
    let cells = lines.iter().filter(|line| line["file"] == "index").count();
    assert!(cells > 0 && cells < lines.len());
    assert!(lines.iter().any(|line| line["file"] == "data" && line["kind"] == "TRACEPOINT_SAMPLE"));
    fs::remove_file(place.path("out.trace.idx")).unwrap();
    let (out, err) = place.check(&["dump", "--json", "out.trace"], 0);
    assert_eq!(out.lines().count(), lines.len() - cells);
    assert!(err.starts_with("note: there is no index file out.trace.idx"), "{err}");
    symlink("out.trace.idx", place.path("out.trace.idx")).unwrap();
    let (_, err) = place.check(&["dump", "out.trace"], 1);
    assert!(err.starts_with("traceprof: cannot read out.trace.idx: "), "{err}");
    place.check(&["print", "out.trace"], 0);
}

#[test]
fn a_trace_cut_anywhere_is_read_or_refused_but_never_a_crash() {
    let place = Place::new();
    place.trace("whole.trace", 40);
    let whole = fs::read(place.path("whole.trace")).unwrap();
    let mut readable = 0;
    for length in (0..whole.len()).step_by(whole.len() / 25 + 1) {
        fs::write(place.path("cut.trace"), &whole[..length]).unwrap();
        for action in ["print", "dump"] {
            let output = place.run(&[action, "cut.trace"]);
            let code = output.status.code();
            assert!(matches!(code, Some(0 | 10)), "{action} of {length} bytes: {code:?}");
            readable += u32::from(code == Some(0));
            let err = text(&output.stderr);
            assert!(err.lines().count() <= 2 && !err.contains("panicked"), "{err}");
        }
    }
    assert!(readable > 0, "no prefix of the trace is readable");
}

#[test]
fn an_output_file_is_complete_and_replaced_only_by_force() {
    let place = Place::new();
    place.trace("out.trace", 3);
    let export = ["export", "out.trace", "-o", "out.folded"];
    place.check(&export, 0);
    let first = fs::read(place.path("out.folded")).unwrap();
    let err = place.refuse(&export, 6);
    assert!(err.contains("--force"), "{err}");
    fs::write(place.path("out.folded"), "mine").unwrap();
    place.refuse(&export, 6);
    assert_eq!(fs::read(place.path("out.folded")).unwrap(), b"mine");
    place.check(&["export", "out.trace", "-o", "out.folded", "--force"], 0);
    assert_eq!(fs::read(place.path("out.folded")).unwrap(), first);
    place.check(&["print", "out.trace", "-o", "tree.txt"], 0);
    place.refuse(&["print", "out.trace", "-o", "no/such/place"], 6);
    place.refuse(&["print", "out.trace", "-o", ".", "--force"], 6);
    place.refuse(&["print", "out.trace", "-o", "/dev/full"], 6);
    for own in ["out.trace", "./out.trace", "out.trace.idx"] {
        place.refuse(&["print", "out.trace", "-o", own, "--force"], 6);
    }
    place.check(&["print", "out.trace"], 0);
    // No temporary file remains.
    let mut names: Vec<_> = fs::read_dir(place.directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["out.folded", "out.trace", "out.trace.idx", "tree.txt"]);
}

#[test]
fn the_export_format_is_named_or_guessed() {
    let place = Place::new();
    place.trace("out.trace", 3);
    for name in ["a.folded", "a.collapsed", "a.svg"] {
        place.check(&["export", "out.trace", "-o", name], 0);
    }
}

#[test]
fn a_reader_that_goes_away_ends_the_output_quietly() {
    let place = Place::new();
    // Much more than fits into a pipe, so that the writer still writes when the reader exits.
    place.trace("big.trace", 4000);
    for words in [
        &["print", "--min-percent", "0", "big.trace"][..],
        &["print", "--timeline", "--min-percent", "0", "big.trace"],
        &["print", "--follow", "--min-percent", "0", "big.trace"],
        &["dump", "big.trace"],
        &["dump", "--json", "big.trace"],
        &["export", "big.trace", "-f", "folded"],
    ] {
        let mut command = place.command(words);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first = String::new();
        BufReader::with_capacity(64, child.stdout.take().unwrap()).read_line(&mut first).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(text(&output.stderr), "", "{words:?}");
        assert_eq!(output.status.code(), Some(0), "{words:?}");
        assert!(!first.is_empty());
    }
}

#[test]
fn a_full_disk_under_the_standard_output_is_an_output_error() {
    let place = Place::new();
    place.trace("out.trace", 3);
    for words in [
        &["print", "out.trace"][..],
        &["print", "--timeline", "out.trace"],
        &["print", "--follow", "out.trace"],
        &["verify", "out.trace"],
        &["verify", "--json", "out.trace"],
        &["dump", "out.trace"],
        &["completions", "bash"],
    ] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let output = place.command(words).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(6), "{words:?}");
        assert!(text(&output.stderr).starts_with("traceprof: writing the output: No space"));
    }
}

#[test]
fn completions_and_manual_pages_are_those_of_the_repository() {
    let place = Place::new();
    let committed =
        |path: &str| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    for (shell, path) in [
        ("bash", "completions/traceprof.bash"),
        ("zsh", "completions/_traceprof"),
        ("fish", "completions/traceprof.fish"),
    ] {
        let (out, _) = place.check(&["completions", shell], 0);
        assert_eq!(out, committed(path), "{shell}");
    }
    place.check(&["man", "."], 0);
    let page = fs::read_to_string(place.path("traceprof-record.1")).unwrap();
    assert_eq!(page, committed("man/traceprof-record.1"));
    place.refuse(&["man", "no/such/place"], 6);
}
