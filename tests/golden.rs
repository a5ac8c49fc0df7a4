//! Traces that an earlier version recorded: every view of them stays as that version printed it.
//!
//! `tests/golden/traces` has small recordings of real programs in format 1.0: native code
//! (uncompressed), a program that is mostly in the kernel, all time of three threads, several
//! processes, and code that Node.js generated. Beside them are complete outputs of that version,
//! and the lengths and checksums of its other outputs. `UPDATE=1` rewrites them, which is right
//! only if a view changes for all traces, never to make an old trace readable.

use std::fs;
use std::path::{Path, PathBuf};

use traceprof::trace::{self, FileState, FrameKind, IndexState, LazyTrace, WriterOptions};

use crate::common::traceprof;
use crate::snapshot;

const TRACES: [&str; 5] = ["native", "kernel", "wall", "several", "jit"];
/// The outputs that are kept in full, by the ending of their file.
const WHOLE: [(&str, &[&str]); 4] = [
    ("print.txt", &["print", "--tree"]),
    ("folded", &["export", "--format", "folded"]),
    ("perf.txt", &["export", "--format", "perf-script"]),
    ("speedscope.json", &["export", "--format", "speedscope"]),
];
/// The outputs of which the length and the checksum are kept.
const DIGESTED: [&str; 10] = [
    "print --verbose",
    "print --top 10",
    "print --inverted",
    "print --by line",
    "print --timeline",
    "print --timeline --json --verbose",
    "print --json",
    "dump",
    "dump --json",
    "export --format pprof",
];
/// Outputs that would be too large.
const LEFT_OUT: [(&str, &str); 2] = [("jit", "perf.txt"), ("kernel", "perf.txt")];

fn path(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    root.join(format!("tests/golden/traces/{name}.trace"))
}

/// Returns what a command prints of a trace.
fn output(trace: &Path, words: &[&str]) -> Vec<u8> {
    let words = [&words[..1], &[trace.to_str().unwrap()], &words[1..]].concat();
    let output = traceprof(&words).env("NO_COLOR", "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{trace:?} {words:?}: {said}");
    output.stdout
}

#[test]
fn golden_traces_look_as_they_did() {
    let mut digests = String::new();
    for name in TRACES {
        let trace = path(name);
        for (ending, words) in WHOLE {
            if !LEFT_OUT.contains(&(name, ending)) {
                let printed = output(&trace, words);
                snapshot::check(&format!("tests/golden/{name}.{ending}"), &printed);
            }
        }
        for words in DIGESTED {
            let printed = output(&trace, &words.split(' ').collect::<Vec<_>>());
            let (length, crc) = (printed.len(), crc32fast::hash(&printed));
            digests.push_str(&format!("{name} {length} {crc:08x} {words}\n"));
        }
    }
    snapshot::check("tests/golden/digests.txt", digests.as_bytes());
}

#[test]
fn golden_traces_are_sound_and_can_be_written_anew() {
    let dir = tempfile::tempdir().unwrap();
    for name in TRACES {
        let old = path(name);
        let verification = trace::verify(&old).unwrap();
        assert_eq!(verification.state(), FileState::Clean, "{name}");
        assert_eq!(verification.index, IndexState::Sound, "{name}");
        let loaded = trace::load(&old).unwrap();
        assert!(loaded.locations.iter().all(|it| it.kind == FrameKind::Native), "{name}");
        assert!(loaded.methods.iter().all(|it| it.line == 0), "{name}");
        let objects = LazyTrace::open(&old).unwrap().load_objects().unwrap();
        assert_eq!((&objects.methods, &objects.locations), (&loaded.methods, &loaded.locations));

        let new = dir.path().join(format!("{name}.trace"));
        let options = WriterOptions { trace_ids: true, ..WriterOptions::default() };
        trace::recover(&old, &new, options).unwrap();
        let again = trace::load(&new).unwrap();
        assert_eq!(again.locations, loaded.locations, "{name}");
        for (again, loaded) in again.threads.iter().zip(&loaded.threads) {
            assert_eq!(format!("{again:?}"), format!("{loaded:?}"), "{name}");
        }
        for words in
            [&["print", "--tree"][..], &["print", "--timeline"], &["export", "--format", "folded"]]
        {
            assert!(output(&old, words) == output(&new, words), "{name} {words:?}");
        }
        // With an index that was made from the data.
        let alone = dir.path().join(format!("{name}.alone"));
        fs::copy(&old, &alone).unwrap();
        trace::reindex(&alone, false).unwrap();
        assert!(
            output(&old, &["print", "--tree"]) == output(&alone, &["print", "--tree"]),
            "{name}"
        );
    }
}
