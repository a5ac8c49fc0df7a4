//! The targets without a recorder. What passes here and fails under a recording is the recorder's
//! fault.

use std::process::Command;
use std::time::Duration;

use crate::common::{Snapshot, Target, cpu_clock, program, together, wait_until};

fn run_for_a_moment(name: &str, args: &[&str]) -> Target {
    let mut target = Target::start(name, args);
    let before = Snapshot::take(target.pid());
    std::thread::sleep(Duration::from_millis(300));
    // A signal that a program sends to itself is pending for a moment.
    let mut differences = Vec::new();
    let is_as_before = wait_until(Duration::from_secs(20), || {
        differences = before.differences(&Snapshot::take(target.pid()));
        differences.is_empty()
    });
    assert!(is_as_before, "{name} changes by itself: {differences:#?}");
    target.goes_on_and_ends_by_itself();
    target
}

#[test]
fn split_is_split_as_it_says() {
    let _machine = together();
    let target = run_for_a_moment("split", &[]);
    let spent = ["alpha_ns", "beta_ns", "gamma_ns"].map(|key| target.fact(key) as f64);
    let whole: f64 = spent.iter().sum();
    for (part, share) in spent.iter().zip([50.0, 30.0, 20.0]) {
        let percent = 100.0 * part / whole;
        assert!((percent - share).abs() < 1.0, "{percent:.2} % instead of {share} %");
    }
}

#[test]
fn sleepers_sleep() {
    let _machine = together();
    for call in ["nanosleep", "poll", "read", "futex", "sigwait"] {
        let target = run_for_a_moment("sleeper", &[call, "burn"]);
        assert_eq!((target.fact("eintr"), target.fact("other")), (0, 0), "{call}");
    }
}

/// Compilers merge equal functions and inline small ones.
#[test]
fn functions_that_tests_distinguish_are_separate() {
    use object::{Object, ObjectSymbol};
    for (name, functions) in [
        ("split", &["kernel_alpha", "kernel_beta", "kernel_gamma", "caller_alpha"][..]),
        ("threads", &["crunch_zero", "crunch_one", "crunch_two", "crunch_three", "chain"]),
        ("exitcode", &["first_phase", "second_phase"]),
    ] {
        let bytes = std::fs::read(program(name)).expect("the built target");
        let elf = object::File::parse(&*bytes).expect("an ELF file");
        let address = |function: &&str| {
            let mut symbols = elf.symbols();
            let found = symbols.find(|symbol| symbol.name().is_ok_and(|it| it.contains(function)));
            found.unwrap_or_else(|| panic!("{name} has no {function}")).address()
        };
        let mut addresses: Vec<u64> = functions.iter().map(address).collect();
        addresses.sort_unstable();
        addresses.dedup();
        assert_eq!(addresses.len(), functions.len(), "{name}: {functions:?}");
    }
}

/// The test of `reader` is only valid if the kernel really uses most of its CPU time.
#[test]
fn reader_is_in_the_kernel() {
    let _machine = together();
    let target = run_for_a_moment("reader", &[]);
    assert_eq!(target.fact("failed"), 0);
    let (user, kernel) = (target.fact("user_us"), target.fact("kernel_us"));
    assert!(kernel > 9 * user, "{kernel} us in the kernel, {user} us outside");
}

#[test]
fn short_threads_use_nearly_all_of_the_time() {
    let _machine = together();
    let mut target = Target::start("shortlived", &[]);
    std::thread::sleep(Duration::from_millis(300));
    let whole = cpu_clock(target.pid()).as_nanos() as f64;
    target.goes_on_and_ends_by_itself();
    assert_eq!(target.fact("failed"), 0);
    let each_ms = target.fact("threads_ns") as f64 / target.fact("threads") as f64 / 1e6;
    assert!((1.0..1.2).contains(&each_ms), "{each_ms:.3} ms each");
    assert!(target.fact("threads_ns") as f64 > 0.8 * whole);
}

#[test]
fn the_others_end_as_they_should() {
    let _machine = together();
    let plugin = program("plugin");
    run_for_a_moment("threads", &[]);
    run_for_a_moment("many_threads", &["20"]);
    run_for_a_moment("dlopen_late", &[plugin.to_str().expect("path")]);
    let traps = run_for_a_moment("sigtrap_user", &[]);
    assert_eq!(traps.fact("raised"), traps.fact("handled"));
    assert_eq!(traps.fact("own_handler"), 1);
    assert!(run_for_a_moment("blocked", &[]).fact("blocked_tid") > 0);
    let status = Command::new(program("exitcode")).args(["42", "10", "10"]).status();
    assert_eq!(status.expect("exitcode").code(), Some(42));
}
