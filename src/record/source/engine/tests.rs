//! The choice of the engine from made-up facts.

use super::*;
use crate::record::target::signals::TrapWaiter;

fn facts() -> EngineFacts {
    EngineFacts {
        perf: Ok(()),
        kernel: Some((6, 18)),
        descriptors: descriptors(10, 1),
        is_started: false,
        handles_trap: false,
        reporter: None,
        language: None,
        signals: SignalUse::default(),
        period_ns: RARE_NS - 1,
        no_signal: None,
    }
}

fn descriptors(threads: u64, each: u64) -> EventDescriptors {
    EventDescriptors { threads, each, left: 800 + DESCRIPTORS_KEPT, limit: 1024 }
}

fn errno(number: i32) -> io::Result<()> {
    Err(io::Error::from_raw_os_error(number))
}

fn check(change: impl FnOnce(&mut EngineFacts), engine: Engine, why: &str) {
    let mut facts = facts();
    change(&mut facts);
    let choice = choose(EngineChoice::Auto, &facts).unwrap();
    assert_eq!(choice.engine, engine, "{}", choice.why);
    assert!(choice.why.contains(why), "{}", choice.why);
}

#[test]
fn perf_is_chosen_where_it_works_and_is_safe() {
    check(|_| {}, Engine::Perf, "best engine at this rate");
    check(|facts| facts.kernel = None, Engine::Perf, "best engine at this rate");
    check(|facts| facts.kernel = Some((6, 1)), Engine::Perf, "best engine at this rate");
    check(
        |facts| facts.descriptors = descriptors(800, 1),
        Engine::Perf,
        "best engine at this rate",
    );
}

#[test]
fn every_obstacle_and_every_danger_selects_timers_and_is_named() {
    for number in [libc::EACCES, libc::EPERM, libc::EMFILE] {
        check(|facts| facts.perf = errno(number), Engine::Timer, "refused");
    }
    for number in [libc::E2BIG, libc::EINVAL, libc::ENOSYS] {
        check(|facts| facts.perf = errno(number), Engine::Timer, "Linux 6.1 has");
    }
    check(|facts| facts.kernel = Some((5, 19)), Engine::Timer, "Linux 5.19");
    check(|facts| facts.descriptors = descriptors(801, 1), Engine::Timer, "801 threads");
    check(|facts| facts.descriptors = descriptors(267, 3), Engine::Timer, "need 801");
    check(|facts| facts.language = Some("Python"), Engine::Timer, "no Python functions");
}

#[test]
fn where_sigtrap_may_harm_the_program_another_signal_is_used() {
    let check = |change: &dyn Fn(&mut EngineFacts), why| {
        check(change, Engine::Signal, why);
        for no_signal in [FOREIGN, NO_SIGNAL_LEFT, NO_KERNEL_EVENTS] {
            let without_signal = |facts: &mut EngineFacts| {
                change(facts);
                facts.no_signal = Some(no_signal);
            };
            self::check(without_signal, Engine::Timer, why);
        }
        let fast = |facts: &mut EngineFacts| {
            change(facts);
            facts.period_ns = SIGNAL_PERIOD_NS - 1;
        };
        self::check(fast, Engine::Timer, why);
    };
    check(&|facts| facts.is_started = true, "starts");
    check(&|facts| facts.handles_trap = true, "handles SIGTRAP");
    check(&|facts| facts.reporter = Some("Sentry"), "(Sentry)");
    let wait = |waiter| move |facts: &mut EngineFacts| facts.signals.trap_waiter = Some(waiter);
    check(&wait(TrapWaiter::Thread(7)), "thread 7 waits for SIGTRAP");
    check(&wait(TrapWaiter::Descriptor), "a signalfd");
}

#[test]
fn at_a_low_rate_the_safest_engine_is_chosen() {
    let rare = |facts: &mut EngineFacts| facts.period_ns = RARE_NS;
    check(rare, Engine::Signal, "safest");
    let without_signal = |facts: &mut EngineFacts| {
        rare(facts);
        facts.no_signal = Some(NO_KERNEL_EVENTS);
    };
    check(without_signal, Engine::Perf, "best");
    let refused = |facts: &mut EngineFacts| {
        rare(facts);
        facts.perf = errno(libc::EACCES);
    };
    check(refused, Engine::Timer, "refused");
    let in_python = |facts: &mut EngineFacts| {
        rare(facts);
        facts.language = Some("Python");
    };
    check(in_python, Engine::Timer, "no Python functions");
}

#[test]
fn single_threads_have_events_only_where_these_are_safe() {
    let check = |change: fn(&mut EngineFacts), expected: Option<&str>| {
        let mut facts = facts();
        change(&mut facts);
        let why = why_no_events(&facts);
        match expected {
            Some(part) => {
                assert!(why.as_ref().is_some_and(|why| why.contains(part)), "{why:?}")
            }
            None => assert_eq!(why, None),
        }
    };
    check(|_| {}, None);
    check(|facts| facts.descriptors = descriptors(2000, 1), None);
    check(|facts| facts.language = Some("Python"), None);
    check(|facts| facts.is_started = true, Some("starts"));
    check(|facts| facts.handles_trap = true, Some("handles SIGTRAP"));
    check(|facts| facts.reporter = Some("Sentry"), Some("(Sentry)"));
    let wait = |facts: &mut EngineFacts| facts.signals.trap_waiter = Some(TrapWaiter::Thread(7));
    check(wait, Some("thread 7"));
    check(|facts| facts.perf = errno(libc::EPERM), Some("refused"));
    check(|facts| facts.kernel = Some((5, 19)), Some("Linux 5.19"));
}

#[test]
fn a_requested_engine_is_chosen_or_is_an_error() {
    let asked = |asked, change: fn(&mut EngineFacts)| {
        let mut facts = facts();
        change(&mut facts);
        choose(asked, &facts).map(|choice| choice.engine).map_err(|e| e.raw_os_error())
    };
    assert_eq!(asked(EngineChoice::Timer, |_| {}), Ok(Engine::Timer));
    assert_eq!(asked(EngineChoice::Perf, |facts| facts.is_started = true), Ok(Engine::Perf));
    // Time in the kernel is not sampled then.
    let few = |facts: &mut EngineFacts| facts.descriptors = descriptors(864, 3);
    assert_eq!(asked(EngineChoice::Perf, few), Ok(Engine::Perf));
    let too_few = |facts: &mut EngineFacts| facts.descriptors = descriptors(865, 1);
    assert_eq!(asked(EngineChoice::Perf, too_few), Err(Some(libc::EMFILE)));
    let refused = |facts: &mut EngineFacts| facts.perf = errno(libc::EACCES);
    assert_eq!(asked(EngineChoice::Perf, refused), Err(Some(libc::EACCES)));
    assert_eq!(asked(EngineChoice::Timer, refused), Ok(Engine::Timer));
    for engine in [EngineChoice::Auto, EngineChoice::Perf, EngineChoice::Timer] {
        let gone = asked(engine, |facts| facts.perf = errno(libc::ESRCH));
        assert_eq!(gone, Err(Some(libc::ESRCH)));
    }
}
