//! What the command syncs to the disk, and in which order, as seen from inside the command.

use std::fs;
use std::path::Path;

use crate::common::{Maker, Trace, program, traceprof};

/// A finished trace of a few frames.
fn trace() -> Trace {
    let mut maker = Maker::new();
    let thread = maker.thread(100, "one");
    for ms in 0..30 {
        maker.sample(thread, ms, "main:1 step leaf");
        maker.flush();
    }
    maker.finish()
}

/// Returns what a command syncs and renames, by file name; `/` stands for the files' directory.
fn synced(dir: &Path, words: &[&str]) -> Vec<String> {
    let log = tempfile::tempdir().expect("a directory");
    let log = log.path().join("log");
    let mut command = traceprof(words);
    command.current_dir(dir).env("LD_PRELOAD", program("sync_log")).env("SYNC_LOG", &log);
    let output = command.output().expect("traceprof");
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    let dir = fs::canonicalize(dir).expect("a path");
    let notes = fs::read_to_string(&log).expect("a log");
    let name = |line: &str| {
        let (what, path) = line.split_once(' ').expect("two words");
        let path = Path::new(path).strip_prefix(&dir).unwrap_or(Path::new(path));
        let name = if path.as_os_str().is_empty() { Path::new("/") } else { path };
        format!("{what} {}", name.display())
    };
    notes.lines().map(name).collect()
}

#[test]
fn an_index_is_on_the_disk_before_it_has_its_name() {
    let trace = trace();
    let path = trace.path();
    let file = path.file_name().and_then(|name| name.to_str()).expect("a name");
    let dir = path.parent().expect("a directory");
    let expected = [format!("sync {file}.idx.tmp"), format!("rename {file}.idx"), "sync /".into()];
    assert_eq!(synced(dir, &["reindex", file]), expected);
}

#[test]
fn a_recovered_trace_is_on_the_disk_with_its_name_before_its_index() {
    let trace = trace();
    let path = trace.path();
    let file = path.file_name().and_then(|name| name.to_str()).expect("a name");
    let dir = path.parent().expect("a directory");
    let notes = synced(dir, &["recover", file, "saved.trace"]);
    let place = |what: &str| {
        let found = notes.iter().position(|note| note == what);
        found.unwrap_or_else(|| panic!("no {what}: {notes:?}"))
    };
    let named = place("rename saved.trace.idx");
    assert!(place("sync saved.trace") < place("sync /"), "{notes:?}");
    assert!(place("sync /") < place("sync saved.trace.idx.tmp"), "{notes:?}");
    assert!(place("sync saved.trace.idx.tmp") < named, "{notes:?}");
    assert_eq!(notes.last().map(String::as_str), Some("sync /"), "{notes:?}");
}

/// Runs a command for which no directory can be synced, and returns its exit code and its messages.
fn without_synced_directory(words: &[&str], dir: &Path, errno: i32) -> (Option<i32>, String) {
    let mut command = traceprof(words);
    command.current_dir(dir).env("LD_PRELOAD", program("sync_log"));
    command.env("SYNC_DIRECTORY_ERRNO", errno.to_string());
    let output = command.output().expect("traceprof");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_directory_that_cannot_be_synced_fails_only_what_cannot_be_made_again() {
    // Not every file system can sync a directory, not every user may open it, and there may be no
    // descriptor left for it.
    for errno in [libc::EINVAL, libc::EACCES, libc::EMFILE, libc::EIO] {
        let trace = trace();
        let path = trace.path();
        let file = path.file_name().and_then(|name| name.to_str()).expect("a name");
        let dir = path.parent().expect("a directory");
        fs::remove_file(trace.index_path()).expect("an index");
        // The index has its name by then, and it can be made again.
        let (code, text) = without_synced_directory(&["reindex", file], dir, errno);
        assert_eq!(code, Some(0), "reindex, {errno}: {text}");
        assert!(trace.index_path().exists());
        let saved = ["recover", file, "saved.trace"];
        let (code, text) = without_synced_directory(&saved, dir, errno);
        assert_eq!(code == Some(0), errno != libc::EIO, "recover, {errno}: {text}");
    }
}
