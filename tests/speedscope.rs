//! Profiles of speedscope, against its published schema and against rules that a schema cannot
//! express.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use traceprof::trace::{self, Sample};
use traceprof_abi::storage::log::flags::WALL;

use crate::common::{Maker, Trace, maker, skip, traceprof};

use maker::{BEGIN_NS, GAP};

/// Two threads; two lines of one function, an inlined function, a truncated stack, and a name that
/// must be escaped.
fn demo() -> Trace {
    let mut maker = Maker::new();
    let front = maker.thread(100, "fro\u{1b}nt");
    for (ms, stack) in
        [(1, "main:10 serve:20"), (2, "main:10 serve:20"), (3, "main:11"), (4, "main:10 serve:20")]
    {
        maker.sample(front, ms, stack);
    }
    maker.inlined_sample(front);
    let back = maker.thread(101, "back");
    maker.sample_ending(back, 30, "memcpy@libc", GAP);
    maker.thread(102, "never ran");
    maker.finish()
}

/// Exports the trace. The file is removed with the trace.
fn exported(made: &Trace, options: &[&str]) -> (PathBuf, Value) {
    let path = made.path().with_extension("speedscope.json");
    let mut command = traceprof(&["export", "--force", "--output"]);
    let output = command.arg(&path).arg(made.path()).args(options).output().expect("traceprof");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains('\u{1b}'));
    let profile = serde_json::from_str(&text).unwrap();
    check(&profile);
    (path, profile)
}

/// Checks that every frame exists, that there are as many weights as samples, and that the weights
/// add up to the end.
fn check(file: &Value) {
    let frames = file["shared"]["frames"].as_array().unwrap().len() as u64;
    for profile in file["profiles"].as_array().unwrap() {
        let (samples, weights) = (&profile["samples"], &profile["weights"]);
        let samples = samples.as_array().unwrap();
        let mut used = samples.iter().flat_map(|stack| stack.as_array().unwrap());
        assert!(used.all(|frame| frame.as_u64().unwrap() < frames));
        let weights: Vec<f64> =
            weights.as_array().unwrap().iter().map(|weight| weight.as_f64().unwrap()).collect();
        assert_eq!(samples.len(), weights.len());
        let end = profile["endValue"].as_f64().unwrap();
        assert!((weights.iter().sum::<f64>() - end).abs() <= end * 1e-12, "{profile}");
    }
}

/// Returns the stacks of a profile in their order, as `function file:line` with their weights.
fn stacks(file: &Value, profile: usize) -> Vec<(String, f64)> {
    let name = |frame: &Value| {
        let frame = &file["shared"]["frames"][frame.as_u64().unwrap() as usize];
        let place = match (frame["file"].as_str(), frame["line"].as_u64()) {
            (Some(file), Some(line)) => format!(" {file}:{line}"),
            (Some(file), None) => format!(" {file}"),
            _ => String::new(),
        };
        format!("{}{place}", frame["name"].as_str().unwrap())
    };
    let profile = &file["profiles"][profile];
    let samples = profile["samples"].as_array().unwrap().iter();
    let weights = profile["weights"].as_array().unwrap().iter();
    samples
        .zip(weights)
        .map(|(stack, weight)| {
            let names: Vec<_> = stack.as_array().unwrap().iter().map(name).collect();
            (names.join(";"), weight.as_f64().unwrap())
        })
        .collect()
}

#[test]
fn every_thread_is_a_profile_in_the_order_of_time() {
    let made = demo();
    let (_, file) = exported(&made, &[]);
    let names: Vec<_> = file["profiles"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert_eq!(names, ["fro\\u{1b}nt (100)", "back (101)"], "one without samples is left out");
    let (main, serve) = ("main src/demo.c:10", "serve src/demo.c:20");
    let both = format!("{main};{serve}");
    let expected = [
        (both.clone(), 2e6),
        ("main src/demo.c:11".to_owned(), 1e6),
        (both, 1e6),
        (format!("{main};inlined_part src/part.h:7"), 3e6),
    ];
    assert_eq!(stacks(&file, 0), expected, "equal adjacent stacks are one");
    assert_eq!(stacks(&file, 1), [("[truncated];memcpy /usr/lib/libc.so.6".to_owned(), 1e6)]);
    let mut periods = 0;
    for thread in &trace::load(&made.path()).unwrap().threads {
        thread.for_each_sample(&mut |sample, _| periods += sample.weight);
    }
    let ends =
        file["profiles"].as_array().unwrap().iter().map(|it| it["endValue"].as_f64().unwrap());
    assert_eq!(ends.sum::<f64>(), f64::from(periods) * 1e6, "nanoseconds");
    assert_eq!(file["profiles"][0]["unit"], "nanoseconds");
}

#[test]
fn wall_clock_time_is_in_microseconds_with_the_wait_reason() {
    let mut maker = Maker::new();
    maker.writer.set_metadata("mode", trace::Value::Text("wall".to_owned())).unwrap();
    let thread = maker.thread(1, "sleeper");
    for (ms, state, weight) in [(300, 2, 300_000), (310, 0, 10_000)] {
        let time_ns = BEGIN_NS + ms * 1_000_000;
        let syscall = (state == 2).then_some(202);
        let sample = Sample { time_ns, flags: WALL, weight, state, syscall, ..Sample::default() };
        maker.full_sample(thread, &sample, "main:1 wait:2");
    }
    let (_, file) = exported(&maker.finish(), &[]);
    assert_eq!(file["profiles"][0]["unit"], "microseconds");
    assert_eq!(file["profiles"][0]["weights"], json!([300_000, 10_000]));
    assert!(stacks(&file, 0)[0].0.ends_with(";[sleeping in futex]"), "{file}");
}

#[test]
fn the_schema_of_speedscope_holds() {
    let modules = Path::new(env!("CARGO_TARGET_TMPDIR")).join("npm/node_modules");
    let schema = modules.join("speedscope/dist/release/file-format-schema.json");
    if !schema.exists() || !modules.join("ajv").exists() {
        skip!("speedscope and ajv: not installed");
    }
    let made = demo();
    let check = "const [ajv, schema, ...files] = process.argv.slice(1);
        const validator = new (require(ajv))({ strict: false }).compile(require(schema));
        for (const file of files)
            if (!validator(require(file))) { console.log(validator.errors); process.exitCode = 1; }";
    let holds = |path: &Path| {
        let mut node = Command::new("node");
        node.args(["-e", check]).arg(modules.join("ajv")).arg(&schema).arg(path);
        let output = node.output().expect("node");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(message.is_empty(), "{message}");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    for options in [&[][..], &["--thread", "back"], &["--thread", "back", "--to", "1ms"]] {
        let (path, mut file) = exported(&made, options);
        let (is_valid, message) = holds(&path);
        assert!(is_valid, "{options:?}: {message}");
        // The validator also finds an error.
        file["shared"]["frames"] = json!([{ "file": "nameless" }]);
        std::fs::write(&path, file.to_string()).unwrap();
        assert!(!holds(&path).0);
    }
}
