//! Methods and lines of a thread in compiled code, compared with what `jstack` prints.

use super::machines::{JavaProgram, folded, machines};
use crate::runtime::java::JavaReader;
use crate::runtime::java::tables::Tables;
use crate::runtime::pages::TargetPages;

/// A method, and the line in it, 0 if it is unknown.
type Frame = (String, u32);

/// Returns the frames of a thread as `jstack` prints them.
fn printed(text: &str, thread: &str) -> Vec<Frame> {
    let lines = text.lines().skip_while(|line| !line.starts_with(&format!("\"{thread}")));
    let lines = lines.skip(1).take_while(|line| !line.is_empty());
    let frames = lines.filter_map(|line| line.trim().strip_prefix("at "));
    let frame = |frame: &str| {
        let (method, place) = frame.split_once('(').unwrap();
        let line = place.trim_end_matches(')').rsplit_once(':').map(|(_, line)| line);
        (folded(method), line.map_or(0, |line| line.parse().unwrap()))
    };
    frames.map(frame).collect()
}

/// Returns the frames of a thread that waits in a native method, as far as they are compiled. All
/// of its frames have the size that their blobs say.
fn compiled_frames(program: &JavaProgram, tid: u32) -> Vec<Frame> {
    let (machine, exports, bias) = program.machine();
    let memory = program.memory();
    let pages = TargetPages::of(&memory);
    let tables = Tables::read(&exports, bias, &pages).unwrap();
    let word = |name: &str, at: u64| tables.field(&[name]).unwrap().read(&pages, at).unwrap();
    let threads = machine.now(&memory).structures().unwrap();
    let thread = threads.into_iter().find(|(known, _)| *known == tid).unwrap().1;
    let anchor = thread + tables.field(&["JavaThread::_anchor"]).unwrap().at;
    let mut sp = word("JavaFrameAnchor::_last_Java_sp", anchor);
    let mut pc = match word("JavaFrameAnchor::_last_Java_pc", anchor) {
        0 => pages.word(sp - 8).unwrap(),
        pc => pc,
    };
    let reader = machine.now(&memory);
    let mut found = Vec::new();
    while let Some((frames, words)) = frames_at(&reader, pc - 1) {
        found.extend(frames);
        sp += u64::from(words) * 8;
        pc = pages.word(sp - 8).unwrap();
    }
    found
}

fn frames_at(reader: &JavaReader<'_>, avma: u64) -> Option<(Vec<Frame>, u32)> {
    let blob = reader.blob_at(avma)?;
    blob.compiled?;
    let code = reader.compiled(&blob).unwrap();
    let frame = |position: &crate::runtime::java::JavaPosition<'_>| {
        (position.method.unwrap().full_name(), position.line())
    };
    Some((code.at(avma).iter().map(frame).collect(), blob.frame_words))
}

#[test]
fn methods_and_lines_are_those_that_jstack_prints() {
    for (version, launcher) in machines() {
        for options in [&[][..], &["-XX:TieredStopAtLevel=1"]] {
            let program = JavaProgram::start(&launcher, options, 1500);
            let text = program.asked("jstack", &[]);
            let expected = printed(&text, "the worker");
            let (machine, ..) = program.machine();
            let memory = program.memory();
            let threads = machine.now(&memory).threads().unwrap();
            let named = |name: &str| name.starts_with("the worker");
            let worker = threads.into_iter().find(|it| it.name.as_deref().is_some_and(named));
            let ours = compiled_frames(&program, worker.unwrap().inner_tid);
            eprintln!("Java {version} {options:?}: {} of {}", ours.len(), expected.len());
            assert_eq!(ours, expected[..ours.len()], "Java {version} {options:?}");
            // park, parkNanos, leaf, inlined, the lambda and its class, middle, loop
            assert!(ours.len() >= 8, "Java {version} {options:?}: {ours:?}");
        }
    }
}
