//! Wall clock time of Python programs: where in the program its threads sleep.

use std::collections::{BTreeMap, BTreeSet};

use traceprof::trace::{FrameKind, LoadedTrace, LocationId, RunState, load};
use traceprof_abi::storage::log::flags::WALL;

use crate::common::{
    Target, Trace, needs_recording, record, skip, some_pythons, together, traceprof,
};

/// A Python frame: function, file and line.
type PythonFrame = (String, String, u64);

/// The sleep of one thread, in microseconds.
#[derive(Debug, Default)]
struct Slept {
    /// By its Python frames, innermost first.
    stacks: BTreeMap<Vec<PythonFrame>, u64>,
    /// The time of waits for the GIL.
    for_gil_us: u64,
    /// The native frames below which each innermost function slept.
    natives: BTreeMap<String, BTreeSet<Vec<u64>>>,
}

impl Slept {
    fn all(&self) -> u64 {
        self.stacks.values().sum()
    }

    /// Returns the share of the sleep in an innermost function, in percent.
    fn percent_in(&self, function: &str) -> f64 {
        let is_it =
            |stack: &[PythonFrame]| stack.first().is_some_and(|(name, ..)| name == function);
        let own = self.stacks.iter().filter(|(stack, _)| is_it(stack)).map(|(_, us)| us);
        own.sum::<u64>() as f64 * 100.0 / self.all().max(1) as f64
    }
}

/// Returns the sleep of a trace's threads, by thread id.
fn slept(trace: &Trace) -> BTreeMap<u32, Slept> {
    let loaded = load(&trace.path()).expect("a trace");
    let mut threads = BTreeMap::new();
    for thread in &loaded.threads {
        let mut slept = Slept::default();
        thread.for_each_sample(&mut |sample, stack| {
            if sample.flags & WALL == 0 || sample.state != RunState::Sleeping as u8 {
                return;
            }
            let python = python_frames(&loaded, stack);
            if let Some((name, ..)) = python.first() {
                let native = stack.iter().map(|it| &loaded.locations[it.0 as usize]);
                let native = native.filter(|it| it.kind != FrameKind::Python).map(|it| it.svma);
                slept.natives.entry(name.clone()).or_default().insert(native.collect());
            }
            let waits_on = sample.waits_on.and_then(|text| loaded.texts.get(&text));
            if waits_on.is_some_and(|text| text == "the GIL") {
                slept.for_gil_us += u64::from(sample.weight);
            }
            *slept.stacks.entry(python).or_default() += u64::from(sample.weight);
        });
        threads.insert(thread.thread().tid, slept);
    }
    threads
}

/// Returns the Python frames of a stack, innermost first.
fn python_frames(loaded: &LoadedTrace, stack: &[LocationId]) -> Vec<PythonFrame> {
    let locations = stack.iter().rev().map(|it| &loaded.locations[it.0 as usize]);
    let python = locations.filter(|it| it.kind == FrameKind::Python);
    python
        .map(|it| {
            let name = loaded.methods[it.method.0 as usize].name.clone();
            (name, it.file.clone().unwrap_or_default(), u64::from(it.line))
        })
        .collect()
}

#[test]
fn sleepers_have_the_frames_that_they_report() {
    needs_recording!();
    let pythons = some_pythons(34);
    if pythons.is_empty() {
        skip!("python 3.8 or later: not installed");
    }
    let _machine = together();
    for (python, mode) in pythons.iter().zip(["wall", "cpu,wall"].into_iter().cycle()) {
        let mut target = Target::spawn(python.runs("still.py"));
        let outcome = record(target.pid(), 2, &["--mode", mode]);
        let told: BTreeMap<u32, Vec<PythonFrame>> =
            serde_json::from_str(&target.facts()["frames"]).expect("frames by thread");
        let threads = slept(&outcome.trace);
        for (tid, expected) in &told {
            let slept = threads.get(tid).unwrap_or_else(|| panic!("no thread {tid}"));
            let only: Vec<_> = slept.stacks.keys().collect();
            assert_eq!(only, [expected], "3.{}\n{}", python.minor, outcome.text());
            assert!(slept.all() > 1_500_000, "3.{}: {slept:?}", python.minor);
        }
        target.goes_on_and_ends_by_itself();
    }
}

#[test]
fn two_functions_that_sleep_through_the_same_native_frames_are_told_apart() {
    needs_recording!();
    let pythons = some_pythons(35);
    if pythons.is_empty() {
        skip!("python 3.8 or later: not installed");
    }
    let _machine = together();
    for python in &pythons {
        let mut target = Target::spawn(python.runs("turns.py"));
        let outcome = record(target.pid(), 5, &["--mode", "wall"]);
        let threads = slept(&outcome.trace);
        let turner = &threads[&(target.fact("turner") as u32)];
        target.goes_on_and_ends_by_itself();
        for (function, expected) in [("long_nap", 75.0), ("short_nap", 25.0)] {
            let found = turner.percent_in(function);
            eprintln!("3.{}: {function} {found:.1} %", python.minor);
            // Of some 30 naps, the first and the last may be cut.
            assert!((found - expected).abs() < 12.0, "3.{}: {turner:?}", python.minor);
        }
        let of = |function: &str| turner.natives.get(function).cloned().unwrap_or_default();
        let shared = of("long_nap").intersection(&of("short_nap")).count();
        assert!(shared > 0, "3.{}: other native frames: {:?}", python.minor, turner.natives);
        let (known, read) =
            (outcome.trace.number("wall.stacks_known"), outcome.trace.number("wall.stacks_read"));
        assert!(known > read, "3.{}: {known} recognised, {read} read", python.minor);
    }
}

#[test]
fn threads_that_compute_wait_for_the_gil() {
    needs_recording!();
    let pythons = some_pythons(36);
    if pythons.is_empty() {
        skip!("python 3.8 or later: not installed");
    }
    let _machine = together();
    for python in &pythons {
        let mut target = Target::spawn(python.runs("callers.py"));
        let outcome = record(target.pid(), 3, &["--mode", "wall"]);
        let pid = target.pid().to_string();
        let text = || {
            let output = traceprof(&["stacks", "--pid", &pid]).output().expect("text");
            String::from_utf8(output.stdout).expect("UTF-8")
        };
        let is_told = |text: &String| text.contains(" in futex(the GIL, 0x");
        let mut last = String::new();
        let has_told = (0..5).any(|_| {
            last = text();
            is_told(&last)
        });
        assert!(has_told, "3.{}: {last}", python.minor);
        target.goes_on_and_ends_by_itself();
        let threads = slept(&outcome.trace);
        let (mut all, mut for_gil) = (0, 0);
        for (tid, thread) in &threads {
            if *tid == pid.parse::<u32>().expect("a pid") {
                // The main thread only waits for a signal.
                assert_eq!(thread.for_gil_us, 0, "3.{}", python.minor);
            } else {
                (all, for_gil) = (all + thread.all(), for_gil + thread.for_gil_us);
            }
        }
        eprintln!("3.{}: {for_gil} us of {all} us asleep for the GIL", python.minor);
        assert!(all > 2_000_000, "3.{}: {all} us\n{}", python.minor, outcome.text());
        assert!(for_gil * 100 > all * 95, "3.{}: {for_gil} of {all}", python.minor);
    }
}
