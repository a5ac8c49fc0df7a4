//! Tests of the Python module and the Java class: their contexts are read from outside their
//! process.
#![allow(missing_docs, reason = "a test crate")]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::cc::{built, compile, run, source};
use common::remote::Remote;
use traceprof_abi::context::{Reading, Values};

/// Timeout for the exit of threads that a language has joined.
const EXIT_TIMEOUT: Duration = Duration::from_secs(20);

/// A program that the test reads once it reports that it is ready. It continues when the test
/// writes a line to it.
struct Program {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
    /// The lines that it printed before it was ready.
    said: Vec<String>,
}

impl Program {
    fn start(command: &mut Command) -> Self {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let output = BufReader::new(child.stdout.take().expect("its output"));
        let mut program = Self { child, output, said: Vec::new() };
        while let Some(line) = program.line().filter(|line| line != "ready") {
            program.said.push(line);
        }
        program
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line).expect("a line");
        (read > 0).then(|| line.trim_end().to_owned())
    }

    /// Returns a number that the program printed.
    fn number(&self, name: &str) -> u32 {
        let found = self.said.iter().find_map(|line| line.strip_prefix(name));
        found.expect("said").trim().parse().expect("a number")
    }

    /// Lets the program continue, and checks that it succeeds.
    fn finish(mut self) {
        self.child.stdin.take().expect("its input").write_all(b"\n").expect("a line");
        assert_eq!(self.line().as_deref(), Some("well"), "{:?}", self.said);
        assert!(self.child.wait().expect("its end").success());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Checks the contexts of the program's two threads, and returns the thread ids.
fn check_published(program: &Program) -> (u32, u32) {
    let is_set = |(tid, reading)| match reading {
        Reading::Set(values) => Some((tid, values)),
        Reading::None => None,
        Reading::Torn => panic!("torn"),
    };
    // A language's thread ends before the kernel's, which releases its entry as it exits.
    let deadline = Instant::now() + EXIT_TIMEOUT;
    let (remote, mut published) = loop {
        let remote = Remote::of(program.child.id());
        let published: Vec<(u32, Values)> =
            remote.published().into_iter().filter_map(is_set).collect();
        if published.len() <= 2 || Instant::now() >= deadline {
            break (remote, published);
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    published.sort_by_key(|(_, values)| values.span);
    let [(main, outer), (other, inner)] = published[..] else { panic!("{published:?}") };
    assert_eq!((outer.span, outer.root_span), (0x1234, 0x99));
    let mut tags = remote.tags(&outer);
    tags.sort();
    let expected = [("route", "/checkout"), ("tenant", "42")];
    assert_eq!(tags, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let alone = Values { span: 0x1235, root_span: 0x99, ..Values::default() };
    assert_eq!(inner, alone);
    (main, other)
}

/// Builds the library that the header documents, under a name that the caller chooses.
fn library(path: &str, flags: &[&str], name: &str) -> PathBuf {
    compile("cc", &[&["-fPIC", "-shared"], flags].concat(), path, name)
}

/// Returns a command that runs Python with the module and, if given, the library.
fn python(library: Option<&Path>) -> Command {
    let mut python = Command::new("/usr/bin/python3");
    python.arg("-B").env("PYTHONPATH", source("python"));
    python.env_remove("TRACEPROF_CONTEXT_LIBRARY");
    python.envs(library.map(|library| ("TRACEPROF_CONTEXT_LIBRARY", library)));
    python
}

#[test]
fn python_publishes_its_spans() {
    let library = library("c/traceprof_context.c", &[], "libtraceprof_context.python.so");
    let program = Program::start(python(Some(&library)).arg(source("tests/python/published.py")));
    let (main, other) = check_published(&program);
    assert_eq!((main, other), (program.number("main"), program.number("thread")));
    program.finish();
    // Without the library nothing is published, and no call fails.
    let alone = "import traceprof_context as t\n\
        with t.span(1, 2, route='/'): t.set(3, 4); t.tag('x', 1); t.clear()\n\
        assert not t.is_available()";
    run(python(None).args(["-c", alone]));
}

#[test]
fn python_drops_invalid_values_and_leaves_failed_spans() {
    let library = library("c/traceprof_context.c", &[], "libtraceprof_context.odd.so");
    for library in [Some(library.as_path()), None] {
        assert_eq!(run(python(library).arg(source("tests/python/odd.py"))), "well\n");
    }
}

/// Returns the directory with the headers of a Java that has a compiler.
fn java_headers() -> Option<PathBuf> {
    let compiler = fs::canonicalize("/usr/bin/javac").ok()?;
    let home = compiler.parent()?.parent()?;
    Some(home.join("include")).filter(|include| include.join("jni.h").exists())
}

fn flag(directory: &Path) -> String {
    format!("-I{}", directory.display())
}

#[test]
fn java_publishes_its_spans() {
    let Some(headers) = java_headers() else {
        return common::announce_skip("javac with jni.h is not installed");
    };
    let classes = built("java");
    run(Command::new("javac")
        .args(["-Xlint:all,-try", "-Werror", "-d"])
        .arg(&classes)
        .args([source("java/TraceprofContext.java"), source("tests/java/Published.java")]));
    let includes = [flag(&headers), flag(&headers.join("linux"))];
    let includes = includes.each_ref().map(String::as_str);
    library("java/traceprof_context_jni.c", &includes, "libtraceprof_context_jni.so");
    let java = |library_path: &Path| {
        let mut java = Command::new("java");
        java.arg(format!("-Djava.library.path={}", library_path.display()));
        java.arg("-cp").arg(&classes).arg("Published");
        java
    };
    let program = Program::start(&mut java(&built("")));
    check_published(&program);
    assert!(!program.said.contains(&"virtual true".to_owned()));
    program.finish();
    // Without the library only the program's first check fails.
    let alone = java(&classes).stdin(Stdio::null()).output().expect("java");
    let said = String::from_utf8_lossy(&alone.stderr);
    assert!(said.contains("AssertionError: available"), "{said}");
}
