//! Java in conditions that are hard for a profiler: classes that an agent redefines, code that is
//! thrown away all the time, exceptions through native frames, other collectors, the interpreter
//! alone, a server under load, and a compiler from its start.
//!
//! Each program but `JavaMix` has methods with one caller each. No sample may have another one, and
//! stacks reach their roots.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::{
    Folded, Java, Outcome, Target, Trace, has_command, is_long_run, is_unoptimised, java_agent,
    java_classes_of, needs_recording, number_in, record_cpu_and_end, scratch_dir, skip, together,
    traceprof, variant,
};

/// What is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Program {
    /// Classes that an agent gives other code, and the garbage of that.
    Redefine,
    /// Code that becomes wrong, and is compiled again.
    Deopts,
    /// Exceptions that leave, end in and start in native frames.
    Natives,
    /// A server of HTTP, and its clients.
    Serves,
    /// All kinds of code.
    JavaMix,
}

impl Program {
    fn start(self, java: &Java, options: &[&str]) -> Target {
        let name = format!("{self:?}");
        let mut files = vec![format!("{name}.java")];
        let mut all: Vec<String> = options.iter().map(|it| (*it).to_owned()).collect();
        if self == Self::Redefine {
            files.push("Reuse.java".to_owned());
            all.push(format!("-javaagent:{}", java_agent("redefine").display()));
        }
        if self == Self::JavaMix {
            all.push("-Xmx300m".to_owned());
        }
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let mut command = java.runs_in(&java_classes_of(&name, &files), &name, &all);
        if self == Self::Natives {
            command.arg(natives());
        }
        Target::spawn(command)
    }

    /// Returns the only method that calls this one.
    fn only_caller(self, method: &str) -> Option<String> {
        let (class, name) = method.rsplit_once('.')?;
        let before = |name: &str| {
            let (chain, number) = name.split_once('_')?;
            let number = number.parse::<u32>().ok()?.checked_sub(1)?;
            Some(format!("{class}.{chain}_{number}"))
        };
        match (self, class, name) {
            (Self::Redefine, _, "applyAsInt") if class.starts_with("Reuse$") => {
                Some("Redefine.work".to_owned())
            }
            (Self::Redefine, ..) if class.starts_with("Reuse$") => {
                before(name).or_else(|| Some(format!("{class}.applyAsInt")))
            }
            (Self::Deopts, "Deopts$Chain", "d_0") => Some("Deopts.turns".to_owned()),
            (Self::Deopts, "Deopts$Chain", _) => before(name),
            (Self::Deopts, _, "step") => Some("Deopts$Chain.d_4".to_owned()),
            (Self::Deopts, _, "turns") => Some("Deopts.work".to_owned()),
            (Self::Natives, _, "through_0") => Some("Natives.n_0".to_owned()),
            (Self::Natives, _, "through_1") => Some("Natives.n_2".to_owned()),
            (Self::Natives, _, "n_1") => Some("Natives.through_0".to_owned()),
            (Self::Natives, _, "n_3") => Some("Natives.through_1".to_owned()),
            (Self::Natives, _, "n_0") => Some("Natives.turn".to_owned()),
            (Self::Natives, _, "n_2" | "n_4") => before(name),
            (Self::Serves, "Serves", "s_1" | "s_2" | "s_3") => before(name),
            _ => None,
        }
    }

    /// Returns how many of a thousand samples may miss the root.
    fn unrooted_per_mille(self) -> f64 {
        match self {
            // Code takes the place of other code all the time, and a stack that is unwound late
            // ends where it is not proven which of the two ran.
            Self::Redefine => 100.0,
            _ if is_unoptimised() => 20.0,
            _ => 1.0,
        }
    }
}

/// Returns the library of `Natives.java`.
fn natives() -> PathBuf {
    let javac = fs::canonicalize("/usr/bin/javac").expect("a compiler of Java");
    let home = javac.parent().and_then(Path::parent).expect("a home of Java");
    let include = format!("-I{}", home.join("include").display());
    let of_linux = format!("-I{}", home.join("include/linux").display());
    variant("natives", "natives.c", "cc", &["-shared", "-fPIC", &include, &of_linux])
}

/// What a recording shows of the callers.
#[derive(Debug, Default)]
struct Callers {
    right: u64,
    /// Those without a proven name, or a caller.
    unknown: u64,
    wrong: Vec<String>,
}

impl Callers {
    fn of(folded: &Folded, program: Program) -> Self {
        let mut counts = Self::default();
        for (stack, count) in folded.stacks() {
            let mut stack = stack.to_vec();
            if program == Program::Natives {
                // Calls through native code.
                stack.retain(|it| it.starts_with("Natives.") || it == "[Java: method gone]");
            }
            for pair in stack.windows(2) {
                let Some(caller) = program.only_caller(&pair[1]) else { continue };
                match pair[0].as_str() {
                    right if right == caller => counts.right += count,
                    other if other.starts_with('[') => counts.unknown += count,
                    _ => counts.wrong.push(stack.join(";")),
                }
            }
        }
        counts
    }
}

/// Checks that stacks reach their roots, but for as many as three standard deviations above the
/// mean of what is permitted. Returns a row of the table in `PROOFS.md`.
fn row_of(what: &str, outcome: &Outcome, program: Program, unrooted_per_mille: f64) -> String {
    let [samples, rooted] = ["samples", "rooted"].map(|key| outcome.trace.number(key));
    let folded = outcome.trace.folded();
    let callers = Callers::of(&folded, program);
    let share = rooted as f64 * 100.0 / samples.max(1) as f64;
    let row = format!(
        "| {what} | {samples} | {share:.2} % | {} | {} | {} |",
        callers.right,
        callers.unknown,
        callers.wrong.len()
    );
    // Shown by long runs, and by failures.
    eprintln!("{row}");
    assert!(callers.wrong.is_empty(), "{what}: {:#?}", callers.wrong);
    let mean = samples as f64 * unrooted_per_mille / 1000.0;
    let most = mean + 3.0 * mean.sqrt();
    let ends = folded.stacks().filter(|(stack, _)| stack[0] == "[truncated]");
    let ends: Vec<_> = ends.collect();
    let text = outcome.text();
    assert!((samples - rooted) as f64 <= most, "{what}: {row}, {most} may\n{text}\n{ends:#?}");
    row
}

/// Returns how many of a thousand samples may miss the root because the recorder was late: a quarter
/// at most. The frames that it names late say how late it was: beside other work, it may have no
/// processor for a while. Programs that replace their code all the time show that.
fn late_per_mille(program: Program, outcome: &Outcome) -> f64 {
    if !matches!(program, Program::Redefine | Program::Deopts) {
        return 0.0;
    }
    let metadata = outcome.trace.all_metadata();
    let number =
        |key: &str| metadata.iter().find(|it| it.0 == key).and_then(|(_, it)| number_in(it));
    let late = number("frames_unnamed.java.may have been replaced since").unwrap_or(0);
    let all = number("frames.java").unwrap_or(1).max(1);
    eprintln!("{late} of {all} frames were named late");
    (late as f64 * 1000.0 / all as f64).min(250.0)
}

/// Records a program on a version of Java.
fn check(version: u32, program: Program, options: &[&str]) {
    needs_recording!();
    let Some(java) = Java::of(version) else {
        skip!("java {version}: not installed");
    };
    let _machine = together();
    let target = program.start(&java, options);
    let options_of_record = ["--freq", "999", "--no-kernel"];
    let outcome = record_cpu_and_end(target, Duration::from_secs(2), &options_of_record);
    let what = format!("{program:?} {}, {version}", options.join(" "));
    let unrooted = program.unrooted_per_mille() + late_per_mille(program, &outcome);
    row_of(&what, &outcome, program, unrooted);
    let callers = Callers::of(&outcome.trace.folded(), program);
    let least = match program {
        Program::JavaMix => 0,
        // Most of the time is that of the machine's own methods.
        Program::Serves => 20,
        _ => 300,
    };
    assert!(callers.right >= least, "{what}: {callers:#?}\n{}", outcome.text());
    assert!(callers.unknown * 4 <= callers.right, "{what}: {callers:#?}");
}

#[test]
fn redefined_classes_of_8_have_their_callers() {
    check(8, Program::Redefine, &[]);
}

#[test]
fn redefined_classes_of_11_have_their_callers() {
    check(11, Program::Redefine, &[]);
}

#[test]
fn redefined_classes_of_17_have_their_callers() {
    check(17, Program::Redefine, &[]);
}

#[test]
fn redefined_classes_of_21_have_their_callers() {
    check(21, Program::Redefine, &[]);
}

#[test]
fn redefined_classes_of_25_have_their_callers() {
    check(25, Program::Redefine, &[]);
}

#[test]
fn deoptimized_methods_of_8_have_their_callers() {
    check(8, Program::Deopts, &[]);
}

#[test]
fn deoptimized_methods_of_11_have_their_callers() {
    check(11, Program::Deopts, &[]);
}

#[test]
fn deoptimized_methods_of_17_have_their_callers() {
    check(17, Program::Deopts, &[]);
}

#[test]
fn deoptimized_methods_of_21_have_their_callers() {
    check(21, Program::Deopts, &[]);
}

#[test]
fn deoptimized_methods_of_25_have_their_callers() {
    check(25, Program::Deopts, &[]);
}

#[test]
fn exceptions_of_8_pass_native_frames() {
    check(8, Program::Natives, &[]);
}

#[test]
fn exceptions_of_11_pass_native_frames() {
    check(11, Program::Natives, &[]);
}

#[test]
fn exceptions_of_17_pass_native_frames() {
    check(17, Program::Natives, &[]);
}

#[test]
fn exceptions_of_21_pass_native_frames() {
    check(21, Program::Natives, &[]);
}

#[test]
fn exceptions_of_25_pass_native_frames() {
    check(25, Program::Natives, &[]);
}

#[test]
fn exceptions_of_17_pass_interpreted_frames() {
    check(17, Program::Natives, &["-Xint"]);
}

#[test]
fn exceptions_of_25_pass_interpreted_frames() {
    check(25, Program::Natives, &["-Xint"]);
}

#[test]
fn a_server_on_8_is_rooted() {
    check(8, Program::Serves, &[]);
}

#[test]
fn a_server_on_17_is_rooted() {
    check(17, Program::Serves, &[]);
}

#[test]
fn a_server_on_21_is_rooted() {
    check(21, Program::Serves, &[]);
}

#[test]
fn a_server_on_25_is_rooted() {
    check(25, Program::Serves, &[]);
}

#[test]
fn all_code_of_8_is_rooted_when_interpreted() {
    check(8, Program::JavaMix, &["-Xint"]);
}

#[test]
fn all_code_of_21_is_rooted_when_interpreted() {
    check(21, Program::JavaMix, &["-Xint"]);
}

#[test]
fn all_code_of_11_is_rooted_with_the_parallel_collector() {
    check(11, Program::JavaMix, &["-XX:+UseParallelGC"]);
}

#[test]
fn all_code_of_17_is_rooted_with_the_parallel_collector() {
    check(17, Program::JavaMix, &["-XX:+UseParallelGC"]);
}

#[test]
fn all_code_of_25_is_rooted_with_the_parallel_collector() {
    check(25, Program::JavaMix, &["-XX:+UseParallelGC"]);
}

#[test]
fn all_code_of_21_is_rooted_with_zgc() {
    check(21, Program::JavaMix, &["-XX:+UseZGC"]);
}

#[test]
fn all_code_of_25_is_rooted_with_zgc() {
    check(25, Program::JavaMix, &["-XX:+UseZGC"]);
}

/// Writes files for a compiler into a folder, hundreds of them in a long run, and returns the list
/// of them as an argument.
fn sources(folder: &Path) -> String {
    let mut list = String::new();
    let count = if is_long_run() { 400 } else { 60 };
    for class in 0..count {
        let path = folder.join(format!("C{class}.java"));
        let mut source = format!("import java.util.*;\npublic class C{class} {{\n");
        for method in 0..12 {
            let next = (class + method + 1) % count;
            let _ = write!(
                source,
                "    static List<String> m{method}(Map<String, List<Integer>> all, int n) {{\n\
                 \x20       List<String> found = new ArrayList<>();\n\
                 \x20       all.forEach((key, some) -> some.stream().filter(it -> it > n)\n\
                 \x20           .map(it -> key + it * {method}).sorted().forEach(found::add));\n\
                 \x20       return n > 0 ? C{next}.m{method}(all, n - 1) : found;\n    }}\n",
            );
        }
        source.push_str("}\n");
        fs::write(&path, source).unwrap();
        let _ = writeln!(list, "{}", path.display());
    }
    let path = folder.join("files");
    fs::write(&path, list).unwrap();
    format!("@{}", path.display())
}

/// A compiler from its first instruction on: all of its code is new.
#[test]
fn a_compiler_of_java_is_rooted_from_its_start() {
    needs_recording!();
    if !has_command("javac") {
        skip!("javac: not installed");
    }
    let _machine = together();
    let (folder, trace) = (scratch_dir(), Trace::new());
    let files = sources(folder.path());
    let mut command = traceprof(&["record", "--stats", "--freq", "999", "--no-kernel", "--output"]);
    command.arg(trace.path()).args(["--", "javac", "-J-Xmx300m", "-nowarn", "-d"]);
    let output = command.arg(folder.path().join("classes")).arg(files).output().unwrap();
    let outcome = Outcome { output, trace }.expect_code(0);
    // Timers have few ticks, which stand for several samples each.
    let unrooted_per_mille = if is_unoptimised() { 30.0 } else { 5.0 };
    row_of("javac from its start", &outcome, Program::JavaMix, unrooted_per_mille);
    assert!(outcome.trace.folded().count_containing("com.sun.tools.javac.") > 100);
}

/// A machine that starts describes itself piece by piece, and is found once it has done so.
#[test]
fn machines_that_start_are_found() {
    needs_recording!();
    let machines = Java::some(42);
    if machines.is_empty() {
        skip!("java: not installed");
    }
    for java in machines {
        let _machine = together();
        let trace = Trace::new();
        let command = java.runs_in(&java_classes_of("JavaMix", &["JavaMix.java"]), "JavaMix", &[]);
        let mut recorder =
            traceprof(&["record", "--stats", "--freq", "999", "--no-kernel", "--output"]);
        recorder.arg(trace.path()).arg("--").arg(command.get_program());
        let output = recorder.args(command.get_args()).arg("1500").output().unwrap();
        let outcome = Outcome { output, trace }.expect_code(0);
        let text = outcome.text();
        assert!(!text.contains("does not describe"), "Java {}: {text}", java.version);
        let named = outcome.trace.folded().count_containing("JavaMix.");
        assert!(named > 5, "Java {}: {named}\n{text}", java.version);
    }
}
