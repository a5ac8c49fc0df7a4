//! The head of a page: its threads, its times and its selection.

use traceprof::trace::{Sample, Value};
use traceprof_abi::storage::log::flags::WALL;

use crate::common::{Maker, Page, Trace, maker, traceprof};

use maker::BEGIN_NS;

fn page(made: &Trace, options: &[&str]) -> Page {
    let mut command = traceprof(&["view", "--output", "-"]);
    let output = command.arg(made.path()).args(options).output().expect("traceprof");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Page::parse(&String::from_utf8(output.stdout).unwrap())
}

#[test]
fn two_lives_of_one_thread_id_have_ids_of_their_own() {
    let mut maker = Maker::new();
    for ms in [1, 20] {
        let thread = maker.thread(100, "x");
        maker.sample(thread, ms, "main");
        maker.writer.thread_exit(thread, BEGIN_NS + (ms + 1) * 1_000_000).unwrap();
    }
    let page = page(&maker.finish(), &[]);
    let threads = page.head["threads"].as_array().unwrap().iter();
    assert_eq!(threads.map(|it| &it["id"]).collect::<Vec<_>>(), ["100", "100.1"]);
}

/// The reported end of a recording may be before its last sample.
#[test]
fn all_samples_are_within_the_times_that_are_shown() {
    let mut maker = Maker::new();
    let end = Value::Unsigned(BEGIN_NS + 5_000_000);
    maker.writer.set_metadata("end_monotonic_ns", end).unwrap();
    let thread = maker.thread(100, "x");
    maker.sample(thread, 4, "main");
    maker.sample(thread, 9, "main");
    let page = page(&maker.finish(), &[]);
    assert_eq!((&page.head["fromUs"], &page.head["toUs"]), (&0.into(), &9000.into()));
}

#[test]
fn the_selection_is_shown_and_states_cover_all_time() {
    let mut maker = Maker::new();
    maker.writer.set_metadata("mode", Value::Text("cpu,wall".to_owned())).unwrap();
    let thread = maker.thread(100, "x");
    maker.sample(thread, 4, "main");
    let sample = Sample { time_ns: BEGIN_NS + 9_000_000, weight: 2_000, ..Sample::default() };
    let sample = Sample { flags: WALL, state: 2, syscall: Some(202), ..sample };
    maker.full_sample(thread, &sample, "main wait");
    let made = maker.finish();
    let modes = |page: &Page| {
        let modes = page.head["modes"].as_array().unwrap().iter();
        modes.map(|it| it["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let whole = page(&made, &[]);
    assert_eq!(
        (modes(&whole), whole.head["window"].is_null()),
        (vec!["wall".into(), "cpu".into()], true)
    );
    let some = page(&made, &["--state", "sleeping", "--from", "5ms"]);
    assert_eq!(modes(&some), ["wall"]);
    let window = some.head["window"].as_str().expect("the selection");
    assert!(window.contains("sleeping"), "{window}");
    assert_eq!(some.head["fromUs"], 5000);
}
