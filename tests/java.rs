//! Java machines of all supported versions: names of threads and methods without a flag, against
//! what the programs do.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use crate::common::{
    Java, Outcome, Target, is_unoptimised, needs_recording, record_cpu_and_end, skip, together,
    traceprof,
};

/// Returns the threads of a process as `stacks --json` prints them.
fn threads(pid: i32) -> Vec<Value> {
    let output = traceprof(&["stacks", "--json", "--pid", &pid.to_string()]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    all["threads"].as_array().unwrap().clone()
}

/// What stands for a method whose code may have been another one.
const METHOD_GONE: &str = "[Java: method gone]";

/// Starts `Machine.java`, which works for some time and then holds still.
fn held(java: &Java, options: &[&str]) -> Target {
    let mut command = java.runs("Machine", options);
    command.arg("1000");
    Target::spawn(command)
}

#[test]
fn threads_have_the_names_that_the_program_gave_them() {
    let machines = Java::some(39);
    if machines.is_empty() {
        skip!("java: not installed");
    }
    for java in machines {
        let _machine = together();
        let mut target = held(&java, &[]);
        let threads = threads(target.pid());
        let named = |name: &str| {
            let found = threads.iter().find(|thread| thread["name"] == name);
            found.unwrap_or_else(|| panic!("Java {}: {name} in {threads:?}", java.version))
        };
        named("the worker of größe 世界 😀 with a long name");
        named("the holder of a lock");
        let is_virtual = |thread: &&Value| {
            thread["name"].as_str().unwrap().starts_with("virtual worker (on ForkJoinPool-1-w")
        };
        let virtuals = threads.iter().filter(is_virtual).count();
        assert_eq!(virtuals, usize::from(java.version > 17), "Java {}", java.version);
        target.goes_on_and_ends_by_itself();
    }
}

/// The frames between the native wrapper and the interpreter, innermost first, and their lines.
const CHAIN: [(&str, u64); 6] = [
    ("Machine.leaf", 23),
    ("Machine.inlined", 30),
    ("Machine.lambda$loop$0", 44),
    ("Machine$$Lambda.applyAsInt", 0),
    ("Machine.middle", 36),
    ("Machine.loop", 47),
];

#[test]
fn compiled_methods_of_a_stack_have_names_and_lines() {
    let machines = Java::some(40);
    if machines.is_empty() {
        skip!("java: not installed");
    }
    for java in machines {
        let _machine = together();
        let target = held(&java, &["-XX:+PreserveFramePointer"]);
        let threads = threads(target.pid());
        let is_worker =
            |thread: &&Value| thread["name"].as_str().unwrap().starts_with("the worker");
        let worker = threads.iter().find(is_worker).unwrap();
        let frames = worker["frames"].as_array().unwrap();
        let named = |frame: &Value| {
            let line = frame["line"].as_u64().unwrap_or(0);
            (frame["function"].as_str().unwrap().to_owned(), line)
        };
        let found: Vec<(String, u64)> = frames.iter().map(named).collect();
        let at = found.iter().position(|(name, _)| name == CHAIN[0].0);
        let at = at.unwrap_or_else(|| panic!("Java {}: {found:?}", java.version));
        let found: Vec<(&str, u64)> =
            found[at..].iter().take(6).map(|(name, line)| (name.as_str(), *line)).collect();
        assert_eq!(found, CHAIN, "Java {}", java.version);
        let kinds: Vec<&str> =
            frames[at..at + 6].iter().map(|frame| frame["kind"].as_str().unwrap()).collect();
        let is_java = |kind: &&str| matches!(*kind, "java-c1" | "java-c2");
        assert!(kinds.iter().all(is_java), "Java {}: {kinds:?}", java.version);
    }
}

#[test]
fn compiled_methods_of_samples_have_names() {
    needs_recording!();
    let machines = Java::some(41);
    if machines.is_empty() {
        skip!("java: not installed");
    }
    for java in machines {
        let _machine = together();
        let options = ["-XX:CompileCommand=quiet", "-XX:CompileCommand=dontinline,Chain.*"];
        let target = Target::spawn(
            java.runs("Chain", &[&options[..], &["-XX:+PreserveFramePointer"]].concat()),
        );
        let options = ["--freq", "1000", "--no-kernel"];
        let outcome = record_cpu_and_end(target, Duration::from_secs(2), &options);
        let folded = outcome.trace.folded();
        // The machine may free code before the first samples in it arrive.
        let gone = folded.only_with(METHOD_GONE);
        let stacks: Vec<_> = gone.stacks().collect();
        let is_rare = gone.total() * 100 < folded.total() * 3;
        assert!(is_rare, "Java {}: {stacks:?}", java.version);
        let (called, total) =
            (folded.count_of_call("Chain.leafChain", "Chain.parentChain"), folded.total());
        assert!(called * 10 > total * 7, "Java {}: {called} of {total}", java.version);
    }
}

/// Of a thousand samples, the number that may miss the root.
const UNROOTED: f64 = 1.0;
/// Returns the number of a thousand samples that may be in code that is newer than the tables: a
/// recorder that hardly gets a processor publishes them late.
fn newer_of_thousand() -> f64 {
    if is_unoptimised() { 20.0 } else { 10.0 }
}

/// Returns the largest number of samples: three standard deviations more than the mean at the
/// permitted rate.
fn most(samples: u64, of_thousand: f64) -> u64 {
    let mean = samples as f64 * of_thousand / 1000.0;
    (mean + 3.0 * mean.sqrt()) as u64
}

fn assert_rooted(java: &Java, outcome: &Outcome) {
    let [samples, rooted, newer] =
        ["samples", "rooted", "ended.no module"].map(|key| outcome.trace.number(key));
    let (version, text) = (java.version, outcome.text());
    let folded = outcome.trace.folded();
    let ends: Vec<_> = folded.stacks().filter(|(stack, _)| stack[0] == "[truncated]").collect();
    let others = samples - rooted - newer;
    let is_rooted =
        others <= most(samples, UNROOTED) && newer <= most(samples, newer_of_thousand());
    assert!(is_rooted, "Java {version}: {others} of {samples} end early\n{text}\n{ends:#?}");
}

/// Returns the only method that calls this one in `Single.java`.
fn only_caller(method: &str) -> Option<&'static str> {
    Some(match method {
        "Single.first_0" | "Single.second_0" | "Single.third_0" => "Single.turn",
        "Single.first_1" => "Single.first_0",
        "Single.first_2" => "Single.first_1",
        "Single.first_3" => "Single.first_2",
        "Single$One.second_1" => "Single.second_0",
        "Single$One.second_2" => "Single$One.second_1",
        "Single$One.second_3" => "Single$One.second_2",
        "Single$$Lambda.applyAsInt" => "Single.third_0",
        "Single.lambda$static$0" => "Single$$Lambda.applyAsInt",
        "Single.third_1" => "Single.lambda$static$0",
        "Single.third_2" => "Single.third_1",
        "Single.third_3" => "Single.third_2",
        "Single.turn" => "Single.main",
        _ => return None,
    })
}

/// Returns the only method that calls this one in `Virtual.java`.
fn only_virtual_caller(method: &str) -> Option<&'static str> {
    Some(match method {
        "Virtual.chain_0" => "Virtual.turn",
        "Virtual.chain_1" => "Virtual.chain_0",
        "Virtual.chain_2" => "Virtual.chain_1",
        "Virtual.chain_3" => "Virtual.chain_2",
        "Virtual.chain_4" => "Virtual.chain_3",
        "Virtual.turn" => "Virtual.lambda$main$0",
        "jdk.internal.vm.Continuation.enterSpecial" => "jdk.internal.vm.Continuation.run",
        "jdk.internal.vm.Continuation.run" => "java.lang.VirtualThread.runContinuation",
        _ => return None,
    })
}

/// Checks that each method has its caller in all samples. Returns how many calls there are. The
/// name of a caller may not be proven for one in ten: of code that is new.
fn check_callers(
    java: &Java,
    outcome: &Outcome,
    only_caller: impl Fn(&str) -> Option<&'static str>,
) -> u64 {
    let folded = outcome.trace.folded();
    let (mut calls, mut unproven, mut wrong) = (0, 0, Vec::new());
    for (stack, count) in folded.stacks() {
        for pair in stack.windows(2) {
            let Some(caller) = only_caller(&pair[1]) else { continue };
            calls += count;
            if pair[0] == METHOD_GONE {
                unproven += count;
            } else if pair[0] != caller && !pair[0].contains("(continuation") {
                // The caller of a virtual thread's lowest frame may be frozen.
                wrong.push(stack.join(";"));
            }
        }
    }
    assert!(wrong.is_empty(), "Java {}: {wrong:#?}", java.version);
    assert!(unproven * 10 < calls, "Java {}: {unproven} of {calls} unproven", java.version);
    calls - unproven
}

/// Records a program in which each method has one caller: compiled, and interpreted.
fn callers_are_right(version: u32) {
    needs_recording!();
    let Some(java) = Java::of(version) else {
        skip!("java {version}: not installed");
    };
    let _machine = together();
    for options in [&[][..], &["-Xint"]] {
        let target = Target::spawn(java.runs("Single", options));
        let options = ["--freq", "1000", "--no-kernel"];
        let outcome = record_cpu_and_end(target, Duration::from_secs(2), &options);
        assert_rooted(&java, &outcome);
        let calls = check_callers(&java, &outcome, only_caller);
        eprintln!("Java {version}: {calls} calls\n{}", outcome.text());
        assert!(calls > 2000, "Java {version}: {calls}");
    }
}

#[test]
fn callers_in_8_are_right() {
    callers_are_right(8);
}

#[test]
fn callers_in_11_are_right() {
    callers_are_right(11);
}

#[test]
fn callers_in_17_are_right() {
    callers_are_right(17);
}

#[test]
fn callers_in_21_are_right() {
    callers_are_right(21);
}

#[test]
fn callers_in_25_are_right() {
    callers_are_right(25);
}

/// Without counters, it is not known when a machine has unloaded the class that an address had.
#[test]
fn a_machine_without_counters_loses_the_first_names_alone() {
    needs_recording!();
    let machines = Java::some(43);
    if machines.is_empty() {
        skip!("java: not installed");
    }
    for java in machines {
        let _machine = together();
        for counters in [&[][..], &["-XX:-UsePerfData"]] {
            let target = Target::spawn(java.runs("Single", &[&["-Xint"], counters].concat()));
            let options = ["--freq", "1000", "--no-kernel"];
            let outcome = record_cpu_and_end(target, Duration::from_secs(2), &options);
            let gone = outcome.trace.folded().only_with(METHOD_GONE).total() > 0;
            let told = outcome.text().contains("(-XX:-UsePerfData)");
            let is_without = !counters.is_empty();
            assert_eq!((gone, told), (is_without, is_without), "{}", outcome.text());
            assert!(check_callers(&java, &outcome, only_caller) > 1000, "{}", outcome.text());
        }
    }
}

/// Records virtual threads whose lower frames are frozen.
fn virtual_threads_are_rooted(version: u32) {
    needs_recording!();
    let Some(java) = Java::of(version) else {
        skip!("java {version}: not installed");
    };
    let _machine = together();
    let target = Target::spawn(java.runs("Virtual", &[]));
    let outcome = record_cpu_and_end(target, Duration::from_secs(3), &["--freq", "1000"]);
    assert_rooted(&java, &outcome);
    let calls = check_callers(&java, &outcome, only_virtual_caller);
    eprintln!("Java {version}: {calls} calls\n{}", outcome.text());
    assert!(calls > 3000, "Java {version}: {calls}");
    // All that reach the root run in a carrier.
    let folded = outcome.trace.folded();
    let carrier =
        ["jdk.internal.vm.Continuation.run", "java.util.concurrent.ForkJoinWorkerThread.run"];
    let is_carried = |stack: &[String]| {
        let mut names = stack.iter();
        // The machine compiles them again, and may free the code before it is read.
        carrier.iter().rev().all(|name| names.any(|it| it == name || it == METHOD_GONE))
    };
    let is_virtual = |stack: &&[String]| {
        stack[0] != "[truncated]" && stack.iter().any(|it| it.starts_with("Virtual.chain_"))
    };
    let stacks = folded.stacks().map(|(stack, _)| stack).filter(is_virtual);
    let alone: Vec<_> = stacks.filter(|stack| !is_carried(stack)).collect();
    assert!(alone.is_empty(), "Java {version}: {alone:#?}");
}

#[test]
fn virtual_threads_of_21_are_rooted() {
    virtual_threads_are_rooted(21);
}

#[test]
fn virtual_threads_of_25_are_rooted() {
    virtual_threads_are_rooted(25);
}

/// Returns the last digits of the numbers in the names of methods that `Churn.java` has loaded.
fn churned(frame: &str) -> Vec<&str> {
    let digit = |part: &'static str| {
        let (_, rest) = frame.split_once(part)?;
        rest.get(3..4)
    };
    ["Churned", "called", "shared"].into_iter().filter_map(digit).collect()
}

/// Counts of the samples of classes that `Churn.java` has loaded.
#[derive(Debug, Default)]
struct Churned {
    /// The samples in each class, as far as they have a name.
    named: BTreeMap<String, u64>,
    unnamed: u64,
    /// Stacks with the name of another class than the one that runs.
    wrong: Vec<String>,
}

impl Churned {
    fn of(outcome: &Outcome) -> Self {
        let (folded, mut counts) = (outcome.trace.folded(), Self::default());
        for (stack, count) in folded.stacks() {
            let Some(at) = stack.iter().position(|frame| frame.starts_with("Churn.stub_")) else {
                continue;
            };
            let running = stack[at].strip_prefix("Churn.stub_").unwrap();
            let callees = &stack[at + 1..];
            let class = callees.iter().find_map(|frame| frame.strip_suffix(".run"));
            if callees.iter().any(|frame| churned(frame).iter().any(|digit| *digit != running)) {
                counts.wrong.push(stack.join(";"));
            }
            match class {
                Some(class) => *counts.named.entry(class.to_owned()).or_default() += count,
                None => counts.unnamed += count,
            }
        }
        counts
    }
}

/// The time that each class of `Churn.java` runs, and a half more: its machine may be slow.
const CLASS_MS_MAX: u64 = 120;

/// Records a program that loads and unloads classes, of which each takes the memory of the last.
fn no_class_has_the_name_of_another(version: u32) {
    needs_recording!();
    let Some(java) = Java::of(version) else {
        skip!("java {version}: not installed");
    };
    let _machine = together();
    for options in [&[][..], &["-Xint"]] {
        let target = Target::spawn(java.runs("Churn", options));
        let options_of_record = ["--freq", "1000", "--no-kernel"];
        let outcome = record_cpu_and_end(target, Duration::from_secs(2), &options_of_record);
        let counts = Churned::of(&outcome);
        let named: u64 = counts.named.values().sum();
        eprintln!("Java {version} {options:?}: {named} named in {counts:?}");
        assert!(counts.wrong.is_empty(), "Java {version} {options:?}: {:#?}", counts.wrong);
        let most = counts.named.values().max().copied().unwrap_or_default();
        assert!(most <= CLASS_MS_MAX, "Java {version} {options:?}: {counts:#?}");
        // What was unloaded before it was read has no name.
        let is_enough = counts.named.len() >= 8 && named * 5 >= named + counts.unnamed;
        assert!(is_enough, "Java {version} {options:?}: {counts:#?}\n{}", outcome.text());
    }
}

#[test]
fn no_class_of_8_has_the_name_of_another() {
    no_class_has_the_name_of_another(8);
}

#[test]
fn no_class_of_11_has_the_name_of_another() {
    no_class_has_the_name_of_another(11);
}

#[test]
fn no_class_of_17_has_the_name_of_another() {
    no_class_has_the_name_of_another(17);
}

#[test]
fn no_class_of_21_has_the_name_of_another() {
    no_class_has_the_name_of_another(21);
}

#[test]
fn no_class_of_25_has_the_name_of_another() {
    no_class_has_the_name_of_another(25);
}

/// Returns the only method that calls this one in `Reuse.java`.
fn only_caller_in_reuse(method: &str) -> Option<String> {
    let (class, rest) = method.strip_prefix("Reuse$")?.split_once('.')?;
    let (letter, number) = rest.split_once('_')?;
    Some(match number.parse::<u32>().ok()?.checked_sub(1) {
        Some(before) => format!("Reuse${class}.{letter}_{before}"),
        None => format!("Reuse${class}.applyAsInt"),
    })
}

/// Records a program whose code is freed, and whose blocks of code are used again, all the time.
fn callers_in_used_blocks_are_right(version: u32) {
    needs_recording!();
    let Some(java) = Java::of(version) else {
        skip!("java {version}: not installed");
    };
    let _machine = together();
    let quiet = "-XX:CompileCommand=quiet";
    let apart = "-XX:CompileCommand=dontinline,Reuse*.*";
    let mut command = java.runs("Reuse", &["-XX:ReservedCodeCacheSize=4m", quiet, apart]);
    command.arg("200");
    let target = Target::spawn(command);
    let options = ["--freq", "1000", "--no-kernel"];
    let outcome = record_cpu_and_end(target, Duration::from_secs(4), &options);
    let folded = outcome.trace.folded();
    let (mut calls, mut ended, mut wrong) = (0, 0, Vec::new());
    for (stack, count) in folded.stacks() {
        for pair in stack.windows(2) {
            let Some(caller) = only_caller_in_reuse(&pair[1]) else { continue };
            match pair[0].as_str() {
                right if right == caller => calls += count,
                // The stack stops early, or the code was freed before its name was read.
                other if other.starts_with('[') => ended += count,
                _ => wrong.push(stack.join(";")),
            }
        }
    }
    eprintln!("Java {version}: {calls} calls, {ended} without a caller\n{}", outcome.text());
    assert!(wrong.is_empty(), "Java {version}: {} of {calls}: {wrong:#?}", wrong.len());
    assert!(calls > 4000, "Java {version}: {calls}");
    // On a busy machine, most of the code is newer than the tables.
    assert!(ended < calls, "Java {version}: {ended} of {calls}");
}

#[test]
fn callers_in_used_blocks_of_8_are_right() {
    callers_in_used_blocks_are_right(8);
}

#[test]
fn callers_in_used_blocks_of_11_are_right() {
    callers_in_used_blocks_are_right(11);
}

#[test]
fn callers_in_used_blocks_of_17_are_right() {
    callers_in_used_blocks_are_right(17);
}

#[test]
fn callers_in_used_blocks_of_21_are_right() {
    callers_in_used_blocks_are_right(21);
}

#[test]
fn callers_in_used_blocks_of_25_are_right() {
    callers_in_used_blocks_are_right(25);
}
