//! Programs built with newer Go versions than distributions have: releases of `esbuild`, stripped,
//! as npm ships them. `scripts/test` installs them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use crate::common::{
    Outcome, Trace, cpu_clock, needs_recording, scratch_dir, skip, together, traceprof,
};

const PACKAGES: &str = "github.com/evanw/esbuild/internal/";
/// Functions of these packages that take time, with their callers while bundling. The few lines of
/// the program's own runtime come to them through other callers, too.
const CALLERS: [(&str, &str); 5] = [
    ("cache.(*JSCache).Parse", "bundler.parseFile"),
    ("js_parser.Parse", "cache.(*JSCache).Parse"),
    ("js_parser.(*parser).parsePrefix", "js_parser.(*parser).parseExprCommon"),
    ("js_parser.(*parser).parseFn", "js_parser.(*parser).parseFnStmt"),
    ("js_printer.Print", "linker.(*linkerContext).generateCodeForFileInChunkJS"),
];

/// Returns the esbuild that was built with this version of Go.
fn esbuild_of(version: &str) -> PathBuf {
    let programs = Path::new(env!("CARGO_TARGET_TMPDIR")).join("npm/node_modules");
    programs.join(version).join("bin/esbuild")
}

/// CPU time of a bundle. The rarest of the functions has a fortieth of it.
const WORK: Duration = Duration::from_secs(2);
/// Number of modules for the first attempt, and the maximum.
const MODULES: u32 = 4;
const MODULES_MAX: u32 = 100;

/// Writes modules of two thousand functions each.
fn write_modules(folder: &Path, count: u32) {
    let mut all = String::new();
    for module in 0..count {
        let function = |number: u32| {
            format!(
                "export function m{module}f{number}(a, b) {{ let x = a * {number} + b; \
                 for (let i = 0; i < 10; i++) {{ x += (i % 2 ? a : b) * i; if (x > {number}) x -= \
                 a }} \
                 return {{ x, y: [a, b, ...[1, 2].map(q => q * {number})], z: `t${{x}}` }} }}\n"
            )
        };
        let text: String = (0..2000).map(function).collect();
        fs::write(folder.join(format!("{module}.js")), text).expect("a module");
        all += &format!("export * from './{module}.js'\n");
    }
    fs::write(folder.join("all.js"), all).expect("the modules' list");
}

/// Makes the command bundle a folder of modules.
fn bundle(folder: &Path, command: &mut Command) {
    command.current_dir(folder);
    command.args(["all.js", "--bundle", "--minify", "--sourcemap", "--outfile=out.js"]);
    command.arg("--log-level=error");
}

/// Returns the number of modules that keeps this processor busy for long enough.
fn modules_for_the_work(program: &Path, folder: &Path) -> u32 {
    write_modules(folder, MODULES);
    let mut command = Command::new(program);
    bundle(folder, &mut command);
    let mut child = command.spawn().expect("esbuild");
    let pid = Pid::from_raw(child.id() as i32);
    // Until the process is reaped, its clock shows all the CPU time that it used.
    waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).expect("its end");
    let used = cpu_clock(pid.as_raw()).max(Duration::from_millis(1));
    assert!(child.wait().expect("its end").success(), "esbuild bundles nothing");
    let needed = f64::from(MODULES) * WORK.as_secs_f64() / used.as_secs_f64();
    (needed.ceil() as u32).clamp(MODULES, MODULES_MAX)
}

fn check(version: &str) {
    needs_recording!();
    let program = esbuild_of(version);
    if !program.exists() {
        skip!("esbuild of {version}: not installed");
    }
    let _machine = together();
    let (folder, trace) = (scratch_dir(), Trace::new());
    write_modules(folder.path(), modules_for_the_work(&program, folder.path()));
    let mut command = traceprof(&["record", "--freq", "999", "--output"]);
    command.arg(trace.path()).arg("--").arg(&program);
    bundle(folder.path(), &mut command);
    let outcome = Outcome { output: command.output().expect("traceprof"), trace }.expect_code(0);
    let (text, folded) = (outcome.text(), outcome.trace.folded());
    assert_eq!(folded.count_containing("[esbuild+0x"), 0, "{text}");
    for (function, caller) in CALLERS {
        let [function, caller] = [function, caller].map(|name| format!("{PACKAGES}{name}"));
        let count = folded.count_of(&function);
        assert!(count > 10, "{function} is rare\n{text}");
        let others = folded.count_with_other_caller(&function, &caller);
        assert!(others * 20 <= count, "{function}: {others} of {count} not by {caller}\n{text}");
    }
    let (rooted, samples) = (outcome.trace.number("rooted"), outcome.trace.number("samples"));
    // When an expiry comes in the kernel while Go's system stack is in use, only that stack is
    // known. These are a few of two hundred samples.
    assert!(rooted * 100 >= samples * 95, "{text}");
    let inlined = outcome.trace.objects("CODE_LOCATION");
    let inlined = inlined.iter().filter(|location| location["inline_parent"].as_i64() >= Some(0));
    assert!(inlined.count() > 10, "inlined calls are known\n{text}");
    let info = outcome.trace.view(&["info"]);
    assert!(info.contains("Go's own function table"), "{info}");
}

#[test]
fn go_1_20_is_followed_and_named() {
    check("go-1.20");
}

#[test]
fn go_1_23_is_followed_and_named() {
    check("go-1.23");
}

/// This version has no build id note, and has an empty field where tables used to have their
/// address.
#[test]
fn go_1_26_is_followed_and_named() {
    check("go-1.26");
}
