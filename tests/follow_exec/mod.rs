//! `record --follow-exec`: one recording of all programs that a process executes.

mod refused;

use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use traceprof::trace::{self, LoadedTrace, LocationId};

use crate::common::{
    Outcome, Recorder, Target, Trace, cpu_clock, needs_recording, together, traceprof, variant,
    wait_until,
};

/// Least share of a program's samples. A signal, a tick or the last period may cost the others.
const SHARE: f64 = 0.85;
/// CPU time that a program uses before the attach, on a machine that lets it run meanwhile.
const UNSAMPLED_MS: u64 = 100;
const FREQ_HZ: u64 = 997;
const FREQ: &str = "997";
/// Timeout of each step, for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the program whose functions are named after `who`.
fn relay(who: &str) -> String {
    let flags = ["-pthread", &format!("-DWHO={who}")];
    let path = variant(&format!("relay_{who}"), "relay.c", "cc", &flags);
    path.into_os_string().into_string().expect("a path that is text")
}

/// Returns the arguments of a chain of programs: which program, in which way and for how long.
fn chain(links: &[(&str, &str, &str)]) -> Vec<String> {
    links.iter().flat_map(|(who, how, ms)| [relay(who), (*how).into(), (*ms).into()]).collect()
}

fn record_command(options: &[&str], words: &[String]) -> Outcome {
    let trace = Trace::new();
    let mut command = traceprof(&["record", "--follow-exec", "--no-children", "--freq", FREQ]);
    command
        .args(["--stats", "--exit-code", "recording"])
        .args(options)
        .arg("--output")
        .arg(trace.path())
        .arg("--")
        .args(words);
    Outcome { output: command.output().expect("traceprof"), trace }
}

/// Starts the first of several programs, and a recorder of it.
fn start(words: &[String], options: &[&str]) -> (Target, Recorder) {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    let target = Target::spawn(command);
    let pid = target.pid().to_string();
    let args = ["--pid", &pid, "--freq", FREQ];
    let recorder = Recorder::start(&[&args[..], options].concat());
    (target, recorder)
}

/// Waits until the target runs this program and has the agent.
fn wait_until_in(recorder: &mut Recorder, target: &Target, who: &str) {
    let pid = target.pid();
    let name = format!("relay_{who}");
    let is_there = || {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        maps.contains("/SYSV") && maps.contains(&name)
    };
    let attached = wait_until(PATIENCE, || is_there() || recorder.has_exited());
    assert!(attached && !recorder.has_exited(), "not attached to {name}");
    // A program that was just attached to may not have its handler yet.
    let handles = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("");
        u64::from_str_radix(caught.trim(), 16).is_ok_and(|mask| mask >> 14 & 1 == 1)
    };
    assert!(wait_until(PATIENCE, handles), "{name} does not become ready");
}

/// Returns the number that a program printed under this key.
fn printed(text: &str, key: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {key} in:\n{text}"))
}

fn loaded(trace: &Trace) -> LoadedTrace {
    trace::load(&trace.path()).expect("a trace")
}

/// Returns the least number of samples of a program that uses this much CPU time.
fn least(ms: u64) -> u64 {
    (ms.saturating_sub(UNSAMPLED_MS) as f64 * FREQ_HZ as f64 / 1000.0 * SHARE) as u64
}

/// Checks that the functions of a program are named after its own module and no other, and are
/// under their own callers.
fn check_names(trace: &Trace, who: &str, least: u64) {
    let (burn, lead) = (format!("burn_{who}"), format!("lead_{who}"));
    let folded = trace.folded();
    let count = folded.count_of(&burn);
    assert!(count >= least, "{burn}: {count} samples, {least} at least");
    assert_eq!(folded.count_with_other_caller(&burn, &lead), 0, "{burn}");
    let loaded = loaded(trace);
    for method in loaded.methods.iter().filter(|method| method.name == burn) {
        let module = &loaded.modules[method.module.expect("a module").0 as usize].path;
        assert!(module.ends_with(&format!("/relay_{who}")), "{burn} in {module}");
    }
    // The samples are in threads with the program's name, as the kernel truncates it.
    let name = format!("relay_{who}");
    for thread in &loaded.threads {
        let mut own = 0;
        let mut others = 0;
        thread.for_each_sample(&mut |_, stack| {
            let names = stack.iter().map(|id| {
                let location = &loaded.locations[id.0 as usize];
                loaded.methods[location.method.0 as usize].name.as_str()
            });
            let burns: Vec<_> = names.filter(|name| name.starts_with("burn_")).collect();
            own += u64::from(burns.contains(&burn.as_str()));
            others += u64::from(!burns.is_empty() && !burns.contains(&burn.as_str()));
        });
        let is_its = thread.thread().name == name;
        assert!(if is_its { others == 0 } else { own == 0 }, "{burn} in {:?}", thread.thread());
    }
}

/// Returns the name and the times of each executed program: when the exec was noticed, and when
/// sampling began.
fn executions(trace: &Trace) -> Vec<(String, u64, Option<u64>)> {
    let mut listed: Vec<(u64, _)> = Vec::new();
    for object in trace.objects("METADATA") {
        let key = object["key"].as_str().expect("a key");
        let Some(number) = key.strip_prefix("executed.") else { continue };
        let value = &object["value"];
        let name = value[0].as_str().expect("a name").to_owned();
        let time = value[1].as_u64().expect("a time");
        listed.push((number.parse().expect("a number"), (name, time, value[2].as_u64())));
    }
    listed.sort_by_key(|(number, _)| *number);
    listed.into_iter().map(|(_, execution)| execution).collect()
}

/// Checks that every byte of the trace is sound, and that every view reads it.
fn check_sound(trace: &Trace) {
    assert!(trace.view(&["verify"]).contains("clean"), "{}", trace.view(&["verify"]));
    assert!(trace.view(&["print", "--timeline"]).contains("burn_"));
    assert!(trace.view(&["dump"]).contains("executed.1"));
}

/// Records a chain of three programs with one recorder.
fn a_chain_is_one_trace(engine: &str) {
    needs_recording!();
    let _machine = together();
    let links = [("one", "main", "500"), ("two", "main", "600"), ("three", "main", "400")];
    let outcome = record_command(&["--engine", engine, "--preserve", "50"], &chain(&links));
    let outcome = outcome.expect_code(0);
    let text = outcome.text();
    assert!(text.contains("exited with code 17"), "{text}");
    let trace = &outcome.trace;
    for (who, _, ms) in links {
        let ms: u64 = ms.parse().unwrap();
        check_names(trace, who, least(ms));
    }
    check_sound(trace);
    let executed = executions(trace);
    let names: Vec<&str> = executed.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(names, [relay("two"), relay("three")]);
    assert_eq!(trace.number("executions"), 2);
    let header = trace.view(&["print", "--tree"]);
    let line = header.lines().find(|line| line.starts_with("executed ")).expect("a line");
    assert!(line.contains("relay_two after ") && line.contains("relay_three after "), "{line}");
    check_threads(trace, &executed);
    // Only the reported part of the CPU time is missing.
    let used_ns = printed(&text, "three_ns");
    let reported_ns = trace.number("cpu_time_ns");
    assert!(reported_ns >= used_ns * 9 / 10, "{reported_ns} of {used_ns}");
    let between_ns = trace.number("unsampled_between_ns");
    assert!(0 < between_ns && between_ns < reported_ns / 2, "{between_ns} of {reported_ns}");
    // The handlers' counters cover all programs. A few samples are expiries in the kernel, which no
    // handler stores.
    let (stored, samples) = (trace.number("samples_stored"), trace.number("samples"));
    assert!(stored >= samples * 8 / 10, "{stored} of {samples} samples");
    let sampled_ns = trace.folded().total() * 1_000_000_000 / FREQ_HZ;
    let most_ns = reported_ns + reported_ns / 20;
    let least_ns = (reported_ns - between_ns) * 9 / 10;
    assert!((least_ns..=most_ns).contains(&sampled_ns), "{sampled_ns} of {reported_ns}\n{text}");
    // The heaviest call traces are those of all programs, with their stacks.
    let loaded = loaded(trace);
    let heaviest = trace.objects("METADATA");
    let heaviest = heaviest.iter().find(|it| it["key"] == "preserved_traces").expect("a list");
    let heaviest = heaviest["value"].as_array().expect("a list");
    let stacks: Vec<_> = heaviest
        .iter()
        .map(|it| loaded.call_traces.get(it[0].as_u64().expect("an id")).expect("its stack"))
        .collect();
    let has_stack = |who: &str| {
        let burn = format!("burn_{who}");
        let name = |id: &LocationId| {
            &loaded.methods[loaded.locations[id.0 as usize].method.0 as usize].name
        };
        stacks.iter().any(|it| it.stack.iter().any(|id| *name(id) == burn))
    };
    assert!(["one", "two", "three"].into_iter().all(has_stack));
}

/// Checks that each program has its thread under its own name, until the next exec.
fn check_threads(trace: &Trace, executed: &[(String, u64, Option<u64>)]) {
    let loaded = loaded(trace);
    let threads: Vec<_> = loaded.threads.iter().map(|it| it.thread()).collect();
    let names: Vec<&str> = threads.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["relay_one", "relay_two", "relay_three"]);
    assert!(threads.iter().all(|it| it.tid == it.pid && it.pid == threads[0].pid), "{threads:?}");
    let mut before_ns = 0;
    for (number, (name, seen_ns, sampled_ns)) in executed.iter().enumerate() {
        let sampled_ns = sampled_ns.expect("a program that was sampled");
        assert!(before_ns < *seen_ns && *seen_ns < sampled_ns, "{name}: {executed:?}");
        let (former, later) = (threads[number].ended_ns, threads[number + 1].first_seen_ns);
        assert_eq!(former, Some(*seen_ns), "{name}: {threads:?}");
        assert!(later > *seen_ns, "{name}: {later} {executed:?}");
        before_ns = sampled_ns;
    }
}

#[test]
fn a_chain_of_programs_is_one_trace_with_perf_events() {
    a_chain_is_one_trace("perf");
}

#[test]
fn a_chain_of_programs_is_one_trace_with_timers() {
    a_chain_is_one_trace("timer");
}

#[test]
fn a_running_process_is_followed_and_goes_on_unharmed() {
    needs_recording!();
    let _machine = together();
    let words =
        chain(&[("one", "main", "wait"), ("two", "fork", "wait"), ("three", "thread", "wait")]);
    let (mut target, mut recorder) = start(&words, &["--follow-exec", "--verify-detach"]);
    for who in ["one", "two", "three"] {
        wait_until_in(&mut recorder, &target, who);
        recorder.wait_for_cpu(target.pid(), Duration::from_millis(700));
        if who != "three" {
            target.send(Signal::SIGTERM);
        }
    }
    recorder.send(Signal::SIGINT);
    let outcome = recorder.finish().expect_code(0);
    assert!(outcome.text().contains("verified"), "{}", outcome.text());
    for who in ["one", "two", "three"] {
        check_names(&outcome.trace, who, 300);
    }
    check_sound(&outcome.trace);
    target.goes_on_and_ends_by_itself();
}

#[test]
fn a_thread_that_executes_a_program_takes_the_process_with_it() {
    needs_recording!();
    let _machine = together();
    for engine in ["perf", "timer"] {
        let words =
            chain(&[("one", "thread", "300"), ("two", "thread", "200"), ("three", "main", "300")]);
        let outcome = record_command(&["--engine", engine], &words).expect_code(0);
        assert!(outcome.text().contains("exited with code 17"), "{}", outcome.text());
        // Four threads. The one that executes has used all of its CPU time.
        for (who, ms) in [("one", 300), ("two", 200), ("three", 300)] {
            check_names(&outcome.trace, who, least(ms));
        }
        let loaded = loaded(&outcome.trace);
        let of = |who: &str| {
            let name = format!("relay_{who}");
            loaded.threads.iter().filter(|it| it.thread().name == name).count()
        };
        let counts = (of("one"), of("two"), of("three"));
        assert_eq!(counts, (4, 4, 1), "{engine}: {}", outcome.text());
    }
}

#[test]
fn a_shell_that_executes_a_program_is_followed() {
    needs_recording!();
    let _machine = together();
    let script = format!("exec {} main 500", relay("one"));
    let words = ["/bin/sh", "-c", &script].map(str::to_owned);
    let outcome = record_command(&[], &words).expect_code(0);
    assert!(outcome.text().contains("exited with code 17"), "{}", outcome.text());
    check_names(&outcome.trace, "one", least(500));
    check_sound(&outcome.trace);
}

#[test]
fn the_duration_is_that_of_all_programs() {
    needs_recording!();
    let _machine = together();
    let words = chain(&[("one", "main", "300"), ("two", "main", "300"), ("three", "main", "3400")]);
    let begin = Instant::now();
    let outcome = record_command(&["--duration", "1"], &words);
    assert!(outcome.text().contains("exited with code 17"), "{}", outcome.text());
    assert!(begin.elapsed() > Duration::from_secs(4), "the recorder waited for the program");
    let elapsed_ns = outcome.trace.number("elapsed_ns");
    assert!((950_000_000..3_000_000_000).contains(&elapsed_ns), "{elapsed_ns}");
    let used_ns = outcome.trace.number("cpu_time_ns");
    assert!(used_ns < 3_000_000_000, "sampled after the duration: {used_ns}");
    // On a busy machine the programs may get less CPU time than a timer's first tick takes.
    let code = if outcome.trace.number("samples") == 0 && used_ns < 50_000_000 { 4 } else { 0 };
    let outcome = outcome.expect_code(code);
    // On a busy machine the time may end during the first program.
    let first_ms = (used_ns / 1_000_000).min(300);
    check_names(&outcome.trace, "one", least(first_ms));
}

#[test]
fn programs_that_execute_others_at_once_are_counted_and_unharmed() {
    needs_recording!();
    let _machine = together();
    for engine in ["perf", "timer"] {
        let mut words = chain(&[("one", "main", "100")]);
        // At every step of an attach, sooner or later.
        for number in 0..60u32 {
            let who = if number % 2 == 0 { "two" } else { "three" };
            let ms = (number * 7 % 29).to_string();
            let how = if number % 5 == 0 { "thread" } else { "main" };
            words.extend(chain(&[(who, how, &ms)]));
        }
        words.extend(chain(&[("one", "main", "400")]));
        let outcome = record_command(&["--engine", engine], &words).expect_code(0);
        let text = outcome.text();
        assert!(text.contains("exited with code 17"), "{text}");
        // Programs that had exited before the recorder checked are in no list.
        let count = outcome.trace.number("executions");
        assert!((10..=61).contains(&count), "{engine}: {count}\n{text}");
        let executed = executions(&outcome.trace);
        assert_eq!(executed.len() as u64, count);
        assert_eq!(executed.last().map(|(name, ..)| name.clone()), Some(relay("one")));
        check_names(&outcome.trace, "one", 400 * FREQ_HZ / 1000 * 8 / 10);
        check_sound(&outcome.trace);
    }
}

#[test]
fn without_the_option_the_recording_ends_at_once_and_says_so() {
    needs_recording!();
    let _machine = together();
    for engine in ["perf", "timer"] {
        let words = chain(&[("one", "main", "wait"), ("two", "main", "wait")]);
        let (mut target, mut recorder) = start(&words, &["--engine", engine]);
        wait_until_in(&mut recorder, &target, "one");
        recorder.wait_for_cpu(target.pid(), Duration::from_millis(500));
        let used = cpu_clock(target.pid());
        target.send(Signal::SIGTERM);
        let ended = wait_until(PATIENCE, || recorder.has_exited());
        let later = cpu_clock(target.pid()) - used;
        assert!(ended && later < Duration::from_secs(3), "seen after {later:?}");
        let outcome = recorder.finish().expect_code(0);
        assert!(outcome.text().contains("--follow-exec"), "{}", outcome.text());
        check_names(&outcome.trace, "one", 200);
        assert_eq!(outcome.trace.folded().count_of("burn_two"), 0);
        // The program may not have its handler yet.
        std::thread::sleep(Duration::from_millis(100));
        target.goes_on_and_ends_by_itself();
    }
}

#[test]
fn a_target_that_is_killed_in_between_leaves_its_data() {
    needs_recording!();
    let _machine = together();
    for delay_us in [0, 2_000, 6_000, 12_000, 20_000, 40_000] {
        let words = chain(&[("one", "main", "wait"), ("two", "main", "wait")]);
        let (target, mut recorder) = start(&words, &["--follow-exec"]);
        wait_until_in(&mut recorder, &target, "one");
        recorder.wait_for_cpu(target.pid(), Duration::from_millis(300));
        target.send(Signal::SIGTERM);
        let exe = format!("/proc/{}/exe", target.pid());
        let is_second = || std::fs::read_link(&exe).is_ok_and(|it| it.ends_with("relay_two"));
        assert!(wait_until(PATIENCE, is_second));
        std::thread::sleep(Duration::from_micros(delay_us));
        target.send(Signal::SIGKILL);
        let outcome = recorder.finish().expect_code(0);
        check_names(&outcome.trace, "one", 150);
        assert!(outcome.trace.view(&["verify"]).contains("clean"), "after {delay_us} us");
    }
}

#[test]
fn the_end_may_be_asked_for_in_between() {
    needs_recording!();
    let _machine = together();
    for delay_us in [0, 1_000, 4_000, 9_000, 15_000, 30_000] {
        let words = chain(&[("one", "main", "wait"), ("two", "main", "wait")]);
        let (mut target, mut recorder) = start(&words, &["--follow-exec"]);
        wait_until_in(&mut recorder, &target, "one");
        recorder.wait_for_cpu(target.pid(), Duration::from_millis(300));
        target.send(Signal::SIGTERM);
        std::thread::sleep(Duration::from_micros(delay_us));
        recorder.send(Signal::SIGINT);
        let outcome = recorder.finish().expect_code(0);
        assert!(!outcome.text().contains("the detach failed"), "{}", outcome.text());
        check_names(&outcome.trace, "one", 150);
        assert!(outcome.trace.view(&["verify"]).contains("clean"), "after {delay_us} us");
        std::thread::sleep(Duration::from_millis(100));
        target.goes_on_and_ends_by_itself();
    }
}

#[test]
fn a_recorder_that_is_killed_in_the_second_program_leaves_both() {
    needs_recording!();
    let _machine = together();
    let words = chain(&[("one", "main", "wait"), ("two", "main", "wait")]);
    let (mut target, mut recorder) = start(&words, &["--follow-exec"]);
    wait_until_in(&mut recorder, &target, "one");
    recorder.wait_for_cpu(target.pid(), Duration::from_millis(500));
    target.send(Signal::SIGTERM);
    wait_until_in(&mut recorder, &target, "two");
    recorder.wait_for_cpu(target.pid(), Duration::from_millis(2500));
    recorder.send(Signal::SIGKILL);
    let trace = recorder.finish().trace;
    let saved = Trace::new();
    let recover = traceprof(&["recover"]).arg(trace.path()).arg(saved.path()).output();
    let recover = recover.expect("traceprof");
    assert!(recover.status.success(), "{}", String::from_utf8_lossy(&recover.stderr));
    check_names(&saved, "one", 200);
    check_names(&saved, "two", 200);
    assert_eq!(executions(&saved).len(), 1);
    let restored = wait_until(PATIENCE, || {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", target.pid()));
        !maps.unwrap_or_default().contains("/SYSV")
    });
    assert!(restored, "the guardian restores the second program as well");
    target.goes_on_and_ends_by_itself();
}
