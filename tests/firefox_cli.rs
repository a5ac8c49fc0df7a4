//! Profiles of the Firefox Profiler, read with the profiler's own command line.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value as Json;
use tempfile::TempDir;

use crate::common::{Node, Trace, scratch_dir, skip, traceprof, wait_until};
use crate::{exports, firefox};

/// Name of the session in the profiler.
const NAME: &str = "test";
/// Timeout of loading a small profile, for a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A profile that the profiler's daemon has read.
struct Session {
    dir: TempDir,
    daemon: Child,
}

fn modules() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("npm/node_modules")
}

fn cli() -> PathBuf {
    modules().join("@firefox-devtools/profiler-cli/dist/profiler-cli.js")
}

/// Returns the Node.js that the profiler needs, which is newer than the distribution's.
fn newest_node() -> Option<Node> {
    Node::of(24)
}

/// Returns the profiler with these arguments, with its files in `dir`.
fn profiler(dir: &TempDir, words: &[&str]) -> Command {
    let mut command = newest_node().expect("node 24").command();
    command.arg(cli()).args(words).stdin(Stdio::null());
    command.env("PROFILER_CLI_SESSION_DIR", dir.path()).env("PROFILER_CLI_NO_SYMBOLICATE", "1");
    command
}

macro_rules! needs_profiler {
    () => {
        if !cli().exists() || newest_node().is_none() {
            skip!("the Firefox profiler's own command line, and node 24 for it: not installed");
        }
    };
}

impl Session {
    /// Exports a trace and loads it into the profiler.
    fn load(made: &Trace, options: &[&str]) -> Self {
        let dir = scratch_dir();
        let path = dir.path().join("profile.json");
        let mut command = traceprof(&["export", "--format", "firefox", "--force", "--output"]);
        let output = command.arg(&path).arg(made.path()).args(options).output().expect("traceprof");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // The profiler's `load` starts the daemon in this way, but gives up after half a second.
        let mut command = profiler(&dir, &["--daemon"]);
        command.arg(&path).args(["--session", NAME]).stdout(Stdio::null()).stderr(Stdio::null());
        let session = Self { daemon: command.spawn().expect("node"), dir };
        // A query before that may make the daemon forget the session.
        let log = session.dir.path().join(format!("{NAME}.log"));
        let message = || std::fs::read_to_string(&log).unwrap_or_default();
        let is_ready = || message().contains("Profile loaded successfully");
        assert!(wait_until(PATIENCE, is_ready), "it is not loaded: {}", message());
        session
    }

    fn run(&self, words: &[&str]) -> String {
        let mut command = profiler(&self.dir, words);
        let output = command.args(["--session", NAME]).output().expect("node");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{words:?}: {message}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, words: &[&str]) -> Json {
        let text = self.run(&[words, &["--json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{words:?}: {error}: {text}"))
    }

    /// Returns the handles of all threads by thread id.
    fn threads(&self) -> BTreeMap<String, String> {
        let found = self.json(&["profile", "info", "--all"]);
        let text = |value: &Json| value.as_str().unwrap().to_owned();
        let processes = found["processes"].as_array().unwrap().iter();
        let threads = processes.flat_map(|process| process["threads"].as_array().unwrap());
        threads.map(|thread| (text(&thread["tid"]), text(&thread["threadHandle"]))).collect()
    }

    /// Returns the self and total weight of each function of a thread, idle time included.
    fn functions(&self, thread: &str) -> BTreeMap<String, [f64; 2]> {
        let found = self.json(&["thread", "functions", "--thread", thread, "--include-idle"]);
        let weights =
            |it: &Json| ["selfSamples", "totalSamples"].map(|key| it[key].as_f64().unwrap());
        let mut functions: BTreeMap<String, [f64; 2]> = BTreeMap::new();
        // Functions of two files may have the same name.
        for it in found["functions"].as_array().unwrap() {
            let sums = functions.entry(it["name"].as_str().unwrap().to_owned()).or_default();
            sums.iter_mut().zip(weights(it)).for_each(|(sum, weight)| *sum += weight);
        }
        functions
    }

    /// Returns the total weight of all threads.
    fn total(&self) -> f64 {
        let threads = self.threads();
        threads.values().flat_map(|thread| self.functions(thread)).map(|(_, [own, _])| own).sum()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The daemon may have exited by itself.
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

fn near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-6, "{found}, not {expected}");
}

/// All threads together and in adjacent windows, which the export or the profiler itself selects.
#[test]
fn the_profiler_finds_all_weight_and_its_windows_add_up() {
    needs_profiler!();
    let made = exports::demo();
    for (mode, is_wall) in [("cpu", false), ("wall", true)] {
        let unit = if is_wall { 1e-3 } else { 1.0 };
        let whole = exports::weight(&made, |_, it| exports::is_wall(it) == is_wall) * unit;
        near(Session::load(&made, &["--mode", mode]).total(), whole);
        let parts = [["--to", "30.5ms"], ["--from", "30.5ms"]];
        let parts = parts
            .map(|part| Session::load(&made, &[&["--mode", mode], &part[..]].concat()).total());
        assert!(parts.iter().all(|part| *part > 0.0), "{parts:?}");
        near(parts.iter().sum(), whole);
    }
}

#[test]
fn the_profiler_finds_functions_lives_and_spans() {
    needs_profiler!();
    let session = Session::load(&firefox::demo(), &[]);
    let threads = session.threads();
    assert_eq!(threads.keys().collect::<Vec<_>>(), ["100", "100.1"], "two threads with one id");
    let functions = session.functions(&threads["100"]);
    assert_eq!(functions["serve"], [20.0, 20.0]);
    assert_eq!(functions["main"], [0.0, 23.0]);
    assert_eq!(functions["inlined_part"], [3.0, 3.0]);
    assert_eq!(session.functions(&threads["100.1"])["[truncated]"], [0.0, 1.0]);
    let markers = session.json(&["thread", "markers", "--thread", &threads["100"], "--list"]);
    let markers = markers.to_string();
    for text in ["0000000000000011", "0000000000000022"] {
        assert!(markers.contains(text), "{text}: {markers}");
    }
}
