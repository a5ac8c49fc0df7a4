//! Original functions, files and lines of compiled and bundled TypeScript, against the sources.
//!
//! The programs are made from `tests/targets/typescript` when the tests run: by the compiler of
//! TypeScript, and by esbuild, which `scripts/test` installs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

use serde_json::Value;
use tempfile::TempDir;
use traceprof::trace::FIRST_PROCESS_START;

use crate::common::{
    Node, Outcome, Page, Target, needs_recording, record_cpu, scratch_dir, skip, together, tool,
    traceprof,
};
use crate::node::OPTIONS;

const SOURCES: [(&str, &str); 3] = [
    ("main.ts", include_str!("targets/typescript/main.ts")),
    ("store.ts", include_str!("targets/typescript/store.ts")),
    ("work.ts", include_str!("targets/typescript/work.ts")),
];
/// How esbuild makes one line of all files, with a map beside it, and lines with the map inside.
const MINIFIED: [&str; 4] = ["--bundle", "--minify", "--charset=utf8", "--sourcemap"];
const BUNDLED: [&str; 2] = ["--bundle", "--sourcemap=inline"];

/// The functions of the sources, each with its file and its first and last line.
type Functions = BTreeMap<&'static str, (&'static str, u64, u64)>;

/// Returns the functions that are marked in the sources, and the lines that call others or take
/// time.
fn functions() -> (Functions, BTreeSet<(&'static str, u64)>) {
    let (mut functions, mut marked) = (Functions::new(), BTreeSet::new());
    for (file, text) in SOURCES {
        let names: BTreeSet<&str> =
            text.lines().filter_map(|line| Some(line.split_once("// in ")?.1)).collect();
        for name in names {
            let lines = || (1..).zip(text.lines());
            let is_head = |line: &str| {
                let heads = [format!("function {name}("), format!("const {name} = ")];
                let method = line.trim_start().trim_start_matches("private ");
                heads.iter().any(|head| line.contains(head))
                    || method.starts_with(&format!("{name}(")) && line.ends_with('{')
            };
            let (first, head) = lines().find(|(_, line)| is_head(line)).expect(name);
            let indent = head.len() - head.trim_start().len();
            let is_end =
                |line: &str| line.trim_start().starts_with('}') && line.find('}') == Some(indent);
            let end = lines().find(|(number, line)| *number > first && is_end(line));
            functions.insert(name, (file, first, end.expect(name).0));
            let own = lines().filter(|(_, line)| line.ends_with(&format!("// in {name}")));
            marked.extend(own.map(|(number, _)| (name, number)));
        }
    }
    assert_eq!(functions.len(), 7, "{functions:?}");
    (functions, marked)
}

/// A program that was made of the sources, and the file to run.
struct Made {
    folder: TempDir,
    program: &'static str,
}

impl Made {
    fn path(&self) -> PathBuf {
        self.folder.path().join(self.program)
    }

    /// Makes it by a command that gets the path of the first source and the folder to write to.
    fn by(program: &'static str, make: impl Fn(&Path, &Path) -> Command) -> Self {
        let folder = scratch_dir();
        for (file, text) in SOURCES {
            fs::write(folder.path().join(file), text).unwrap();
        }
        let out = folder.path().join("out");
        let output = make(&folder.path().join("main.ts"), &out).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        Self { folder, program }
    }

    /// Makes it with esbuild. `None` if that is not here.
    fn by_esbuild(options: &[&str]) -> Option<Self> {
        let esbuild =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join("npm/node_modules/go-1.26/bin/esbuild");
        let make = |source: &Path, out: &Path| {
            let mut command = Command::new(&esbuild);
            command.arg(source).args(options).args(["--platform=node", "--log-level=warning"]);
            command.arg(format!("--outdir={}", out.display()));
            command
        };
        esbuild.exists().then(|| Self::by("out/main.js", make))
    }

    /// Makes it with the compiler of TypeScript. `None` if that is not here.
    fn by_typescript(node: &Node) -> Option<Self> {
        let compiler = tool("typescript/node_modules/typescript/lib/tsc.js");
        let make = |source: &Path, out: &Path| {
            let mut command = node.command();
            command.arg(&compiler).arg(source).arg("--outDir").arg(out);
            // Without the types of Node.js it reports errors, but writes the program.
            command.args(["--sourceMap", "--target", "es2022", "--module", "commonjs"]);
            command.args(["--noCheck", "--skipLibCheck"]);
            command
        };
        compiler.exists().then(|| Self::by("out/main.js", make))
    }

    fn record(&self, node: &Node, options: &[&str]) -> Outcome {
        let mut command = node.command();
        command.args(options).arg(self.path());
        let mut target = Target::spawn(command);
        let outcome = record_cpu(target.pid(), Duration::from_secs(3), &OPTIONS);
        target.goes_on_and_ends_by_itself();
        outcome
    }
}

/// A frame of an export: the function, its file and its line.
type Frame = (String, String, Option<u64>);

/// Returns the distinct stacks that an export has, root first, and what it said.
fn stacks(outcome: &Outcome, options: &[&str]) -> (BTreeSet<Vec<Frame>>, String) {
    let mut command = traceprof(&["export", "--format", "speedscope", "--output", "-"]);
    let Output { status, stdout, stderr } =
        command.args(options).arg(outcome.trace.path()).output().unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert!(status.success(), "{said}");
    let all: Value = serde_json::from_slice(&stdout).unwrap();
    let text = |frame: &Value, key: &str| frame[key].as_str().unwrap_or_default().to_owned();
    let frames = all["shared"]["frames"].as_array().unwrap().iter();
    let frames: Vec<Frame> =
        frames.map(|it| (text(it, "name"), text(it, "file"), it["line"].as_u64())).collect();
    let profiles = all["profiles"].as_array().unwrap().iter();
    let samples = profiles.flat_map(|it| it["samples"].as_array().unwrap());
    let stack = |sample: &Value| {
        let ids = sample.as_array().unwrap().iter();
        ids.map(|id| frames[id.as_u64().unwrap() as usize].clone()).collect()
    };
    (samples.map(stack).collect(), said)
}

/// Checks that functions have their names, files and lines, and that callers are at their calls.
fn check(what: &str, outcome: &Outcome) {
    let (functions, marked) = functions();
    let (stacks, said) = stacks(outcome, &["--source-maps"]);
    assert!(!said.contains("source map") && !said.contains("changed"), "{what}: {said}");
    let (mut seen, mut calls, mut lines) = (BTreeSet::new(), 0, 0);
    let (mut frames, mut others) = (0, BTreeMap::<_, u32>::new());
    for stack in &stacks {
        for (at, (name, file, line)) in stack.iter().enumerate() {
            let Some((own, first, last)) = functions.get(name.as_str()) else {
                let files = SOURCES.map(|(own, _)| own).into_iter().chain(["out/main.js"]);
                if files.into_iter().any(|own| file.ends_with(&format!("/{own}"))) {
                    *others.entry((name, file)).or_default() += 1;
                }
                continue;
            };
            frames += 1;
            assert!(file.ends_with(&format!("/{own}")), "{what}: {name} in {file}: {stack:#?}");
            seen.insert(name.as_str());
            let Some(line) = *line else { continue };
            assert!((*first..=*last).contains(&line), "{what}: {name} at {file}:{line}");
            lines += 1;
            // A function that an engine's own calls, such as a compiler, stays where it is.
            let called = stack.get(at + 1).filter(|it| functions.contains_key(it.0.as_str()));
            if let Some((called, ..)) = called {
                let is_call = marked.iter().any(|it| *it == (name.as_str(), line));
                assert!(is_call, "{what}: {name} calls {called} at {file}:{line}");
                calls += 1;
            }
        }
    }
    let names: BTreeSet<&str> = functions.keys().copied().collect();
    eprintln!("{what}: {} stacks, {lines} lines, {calls} calls, {seen:?}", stacks.len());
    eprintln!("{what}: {frames} frames, others: {others:?}");
    // The code outside of functions, what initializes an object, and the constructor, whose short
    // name in a minified class no map tells.
    let is_known = |((name, file), _): &((&String, &String), &u32)| match name.as_str() {
        "(top level)" | "<instance_members_initializer>" | "Store" => true,
        short => short.len() == 1 && file.ends_with("/store.ts"),
    };
    let all = others.iter().map(|(it, count)| (*it, count));
    let unknown: Vec<_> = all.filter(|it| !is_known(it)).collect();
    assert!(unknown.is_empty(), "{what}: {unknown:?}");
    assert_eq!(seen, names, "{what}");
    assert!(lines > 50 && calls > 30, "{what}: {lines} lines, {calls} calls");
}

fn bundles_have_their_originals(version: u32) {
    needs_recording!();
    let Some(node) = Node::of(version) else { skip!("node {version}: not installed") };
    let (Some(minified), Some(bundled)) = (Made::by_esbuild(&MINIFIED), Made::by_esbuild(&BUNDLED))
    else {
        skip!("esbuild: not installed");
    };
    let _machine = together();
    let outcome = minified.record(&node, &[]);
    check("one line", &outcome);
    // Without the option, functions have the names that the program runs with.
    let (plain, _) = stacks(&outcome, &[]);
    let is_one =
        |frame: &Frame| frame.1.ends_with("/out/main.js") && frame.2.is_none_or(|it| it == 1);
    let mut frames = plain.iter().flatten();
    assert!(frames.any(|frame| frame.0.len() == 1 && is_one(frame)), "{plain:#?}");
    assert!(!plain.iter().flatten().any(|frame| frame.1.ends_with(".ts")), "{plain:#?}");
    check_views(&outcome);
    check_others(&minified, &outcome);
    check("several lines", &bundled.record(&node, &[]));
    // The interpreter knows places only once they were needed, unless it is asked to.
    let options = ["--jitless", "--no-enable-lazy-source-positions"];
    check("interpreted", &bundled.record(&node, &options));
}

/// Checks that other views have the originals, too.
fn check_views(outcome: &Outcome) {
    for (view, expected) in [
        (&["print", "--by", "line"][..], "describeAll at "),
        (&["print", "--verbose"], "main.ts:"),
        (&["print", "--timeline", "--verbose"], "main.ts.turnAround()"),
        (&["export", "--format", "folded", "--output", "-"], ";describeAll;weigh"),
        (&["print", "--include", "^describeAll$"], "describeAll"),
    ] {
        let text = outcome.trace.view(&[view, &["--source-maps"]].concat());
        assert!(text.contains(expected), "{view:?}: {text}");
    }
    let page = outcome.trace.path().with_extension("html");
    let page = page.to_str().unwrap();
    outcome.trace.view(&["view", "--source-maps", "--force", "--output", page]);
    let samples = Page::parse(&fs::read_to_string(page).unwrap()).samples("cpu");
    assert!(samples.iter().any(|it| it.stack.iter().any(|name| name == "describeAll")));
}

/// Checks what is said of files that are gone, newer, or others.
fn check_others(made: &Made, outcome: &Outcome) {
    let map = made.folder.path().join("out/main.js.map");
    let bytes = fs::read(&map).unwrap();
    // Between the start of the program and that of the recording.
    let began =
        SystemTime::UNIX_EPOCH + Duration::from_nanos(outcome.trace.number("start_realtime_ns"));
    let started =
        SystemTime::UNIX_EPOCH + Duration::from_nanos(outcome.trace.number(FIRST_PROCESS_START));
    assert!(started < began, "{started:?} {began:?}");
    let unchanged = fs::metadata(&map).unwrap().modified().unwrap();
    assert!(unchanged < started, "{unchanged:?} {started:?}");
    let changed = started + began.duration_since(started).unwrap() / 2;
    fs::File::open(&map).unwrap().set_modified(changed).unwrap();
    let (newer, said) = stacks(outcome, &["--source-maps"]);
    assert_eq!(said.matches("changed after the process started").count(), 1, "{said}");
    assert!(newer.iter().flatten().any(|frame| frame.0 == "describeAll"));
    let (plain, _) = stacks(outcome, &[]);
    let stays = |what: &str| {
        let (shown, said) = stacks(outcome, &["--source-maps"]);
        assert_eq!(said.matches(what).count(), 1, "{said}");
        assert_eq!(shown, plain, "{what}");
    };
    fs::write(&map, b"{}").unwrap();
    stays("missing field");
    fs::remove_file(&map).unwrap();
    stays("No such file");
    fs::write(&map, bytes).unwrap();
    let text = fs::read_to_string(made.path()).unwrap();
    let comment = text.rfind("//#").unwrap();
    fs::write(made.path(), format!("a();\n{}", &text[comment..])).unwrap();
    stays("another file now");
    fs::write(made.path(), "a();").unwrap();
    stays("names no source map");
}

#[test]
fn bundles_on_18_have_their_originals() {
    bundles_have_their_originals(18);
}

#[test]
fn bundles_on_20_have_their_originals() {
    bundles_have_their_originals(20);
}

#[test]
fn bundles_on_22_have_their_originals() {
    bundles_have_their_originals(22);
}

#[test]
fn bundles_on_24_have_their_originals() {
    bundles_have_their_originals(24);
}

#[test]
fn compiled_files_have_their_originals() {
    needs_recording!();
    let Some(node) = Node::all().pop() else { skip!("node: not installed") };
    let Some(made) = Made::by_typescript(&node) else { skip!("typescript: not installed") };
    let _machine = together();
    check("compiled", &made.record(&node, &[]));
}

#[test]
fn a_trace_without_columns_says_so() {
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/traces/jit.trace");
    let output = traceprof(&["print", "--source-maps", "--tree"]).arg(trace).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("--source-maps changes nothing").count(), 1, "{said}");
}
