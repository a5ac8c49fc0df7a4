//! Where the names of a recording come from, and what the report says about it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use crate::common::{
    Folded, Recorder, Target, Trace, needs_recording, program, scratch_dir, together, traceprof,
    variant, wait_until,
};

fn run(program: &str, args: &[&str], dir: &std::path::Path) {
    let status = Command::new(program).args(args).current_dir(dir).status();
    assert!(status.unwrap_or_else(|error| panic!("{program}: {error}")).success(), "{args:?}");
}

/// A fetcher with one file replaces the servers.
#[test]
fn debug_information_is_fetched_when_that_is_asked_for() {
    needs_recording!();
    let _machine = together();
    let folder = scratch_dir();
    let path = |name: &str| folder.path().join(name);
    fs::copy(program("split"), path("split")).unwrap();
    run("objcopy", &["--only-keep-debug", "split", "split.debug"], folder.path());
    run("strip", &["split"], folder.path());
    let fetcher = format!(
        "#!/bin/sh\necho \"$@\" >> {0}/asked\necho {0}/split.debug\n",
        folder.path().display()
    );
    fs::write(path("debuginfod-find"), fetcher).unwrap();
    fs::set_permissions(path("debuginfod-find"), fs::Permissions::from_mode(0o755)).unwrap();
    let paths = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let target = Target::spawn(Command::new(path("split")));
    let pid = target.pid().to_string();
    let record = |options: &[&str]| {
        let mut command = traceprof(&["record", "--pid", &pid]);
        command.args(options).env("PATH", &paths).env("DEBUGINFOD_URLS", "http://127.0.0.1:1");
        Recorder::spawn(command, Trace::new()).record_cpu(target.pid(), Duration::from_millis(800))
    };
    let without = record(&[]);
    assert!(!path("asked").exists(), "nothing was requested");
    assert_eq!(without.trace.folded().count_of("kernel_alpha"), 0);
    let info = without.trace.view(&["info"]);
    assert!(info.contains("its exported names only") && info.contains("--debuginfod"), "{info}");

    let with = record(&["--debuginfod"]);
    assert!(with.trace.folded().count_of("kernel_alpha") > 10, "{}", with.text());
    let info = with.trace.view(&["info"]);
    let (_, block) = info.split_once("/split\n").expect("a block of the program");
    let block = block.split("\n\n").next().unwrap();
    assert!(block.contains("debug file") && block.contains("split.debug"), "{info}");
    assert!(!block.contains("for more"), "nothing is missing: {info}");
    let build_id = block.lines().find_map(|line| line.trim().strip_prefix("build id")).unwrap();
    let asked = fs::read_to_string(path("asked")).unwrap();
    assert!(asked.contains(build_id.trim()), "{build_id} in {asked}");
}

#[test]
fn fetching_without_servers_is_reported() {
    needs_recording!();
    let _machine = together();
    let target = Target::start("split", &[]);
    let pid = target.pid().to_string();
    let mut command = traceprof(&["record", "--debuginfod", "--duration", "0.2", "--pid", &pid]);
    command.env_remove("DEBUGINFOD_URLS");
    let outcome = Recorder::spawn(command, Trace::new()).finish();
    assert!(outcome.text().contains("DEBUGINFOD_URLS names no servers"), "{}", outcome.text());
}

/// A stripped program that was built without unwind tables. Its debug file is the only source of
/// frames.
#[test]
fn callers_are_those_of_the_debug_file() {
    needs_recording!();
    let _machine = together();
    let folder = scratch_dir();
    let path = |name: &str| folder.path().join(name);
    let flags = ["-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-gz=zlib"];
    let whole = variant("frameless", "frameless.c", "cc", &flags);
    fs::copy(whole, path("whole")).unwrap();
    run("objcopy", &["--only-keep-debug", "whole", "frameless.debug"], folder.path());
    run("strip", &["-o", "frameless", "whole"], folder.path());
    run("objcopy", &["--add-gnu-debuglink=frameless.debug", "frameless"], folder.path());
    // The names without the frames.
    run("objcopy", &["-R", ".debug_frame", "frameless.debug", "names.debug"], folder.path());
    let record = |program: &str| {
        let target = Target::spawn(Command::new(path(program)));
        let pid = target.pid().to_string();
        let command = traceprof(&["record", "--pid", &pid]);
        let recorded = Recorder::spawn(command, Trace::new());
        recorded.record_cpu(target.pid(), Duration::from_millis(800)).trace.folded()
    };
    let chain =
        [("innermost", "inner"), ("inner", "middle"), ("middle", "outer"), ("outer", "main")];
    // A name must not match another name that begins with it.
    let exact = |folded: &Folded| {
        let samples = folded.count_of("innermost");
        let wrong: u64 = chain
            .iter()
            .map(|(callee, caller)| folded.count_with_other_caller(callee, caller))
            .sum();
        (samples, wrong + samples.saturating_sub(folded.count_of_both("innermost", "main")))
    };
    let (samples, wrong) = exact(&record("frameless"));
    assert!(samples > 100 && wrong == 0, "{wrong} wrong callers of {samples}");

    fs::rename(path("names.debug"), path("frameless.debug")).unwrap();
    run("objcopy", &["--remove-section", ".gnu_debuglink", "frameless"], folder.path());
    run("objcopy", &["--add-gnu-debuglink=frameless.debug", "frameless"], folder.path());
    // Then the program's code says how large its frames are.
    let (samples, wrong) = exact(&record("frameless"));
    assert!(samples > 100 && wrong == 0, "{wrong} wrong callers of {samples}");
}

/// The recorder is killed while it waits for servers that never answer.
#[test]
fn no_fetcher_outlives_its_recorder() {
    needs_recording!();
    let _machine = together();
    let folder = scratch_dir();
    let path = |name: &str| folder.path().join(name);
    fs::copy(program("split"), path("split")).unwrap();
    run("strip", &["-g", "split"], folder.path());
    let fetcher =
        format!("#!/bin/sh\necho $$ >> {}/asked\nexec sleep 100000\n", folder.path().display());
    fs::write(path("debuginfod-find"), fetcher).unwrap();
    fs::set_permissions(path("debuginfod-find"), fs::Permissions::from_mode(0o755)).unwrap();
    let paths = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let target = Target::spawn(Command::new(path("split")));
    let pid = target.pid().to_string();
    let mut command = traceprof(&["record", "--debuginfod", "--pid", &pid]);
    command.env("PATH", paths).env("DEBUGINFOD_URLS", "http://127.0.0.1:1");
    let recorder = Recorder::spawn(command, Trace::new());
    let fetchers = || fs::read_to_string(path("asked")).unwrap_or_default();
    let minute = Duration::from_secs(60);
    assert!(wait_until(minute, || fetchers().ends_with('\n')), "no server was asked");
    // Dropping the value kills the recorder.
    drop(recorder);
    let is_there = |pid: &str| std::path::Path::new("/proc").join(pid).exists();
    let are_gone = || !fetchers().lines().any(is_there);
    assert!(wait_until(minute, are_gone), "{} of {}", fetchers(), target.pid());
}
