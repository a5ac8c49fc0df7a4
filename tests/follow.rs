//! `print --follow`: what a reader sees of a trace while it is being written.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use traceprof::trace::{Sample, TagKey, TagKind};

use crate::common::{
    Maker, Recorder, Target, Trace, maker, needs_recording, together, traceprof, wait_until,
};

/// Timeout of a line, for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A `print --follow` that writes into a pipe.
struct Follower {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Follower {
    /// Starts once there is a trace.
    fn start(trace: &Trace, args: &[&str]) -> Self {
        assert!(wait_until(PATIENCE, || trace.path().exists()), "no {}", trace.path().display());
        let mut command = traceprof(&["print", "--follow"]);
        command.args(args).arg(trace.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("traceprof");
        let output: ChildStdout = child.stdout.take().expect("a pipe");
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                // The test that receives may have ended.
                let _ = send.send(line.expect("a line"));
            }
        });
        Self { child, lines, seen: Vec::new() }
    }

    /// Waits for a line that contains this text.
    fn wait_for(&mut self, part: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(left) else {
                let _ = self.child.kill();
                let mut notes = String::new();
                let _ = self.child.stderr.take().expect("a pipe").read_to_string(&mut notes);
                panic!("no {part:?} after:\n{}\n{notes}", self.seen.join("\n"));
            };
            let found = line.contains(part);
            self.seen.push(line);
            if found {
                return;
            }
        }
    }

    /// Returns the exit code, all lines, and the standard error.
    fn end(mut self) -> (i32, Vec<String>, String) {
        let ended = wait_until(PATIENCE, || self.child.try_wait().expect("state").is_some());
        assert!(ended, "it does not end after:\n{}", self.seen.join("\n"));
        let output = self.child.wait_with_output().expect("output");
        self.seen.extend(self.lines);
        let text = String::from_utf8(output.stderr).expect("text");
        (output.status.code().expect("an exit code"), self.seen, text)
    }
}

#[test]
fn every_window_shows_what_is_new_until_the_end() {
    let mut maker = Maker::new();
    let thread = maker.thread(1, "x");
    maker.sample(thread, 10, "main first");
    maker.flush();
    let mut follower = Follower::start(maker.trace(), &[]);
    follower.wait_for("first");
    maker.sample(thread, 500, "main second");
    maker.sample(thread, 501, "main second");
    maker.flush();
    follower.wait_for("== 0.010 s to 0.501 s");
    follower.wait_for("2 periods in 2 samples");
    follower.wait_for("second");
    let later = maker.thread(2, "later");
    maker.sample(later, 900, "start third");
    maker.flush();
    follower.wait_for("== 0.900 s to 0.900 s");
    follower.wait_for("thread 2 \"later\"");
    follower.wait_for("third");
    maker.sample(later, 950, "start fourth");
    maker.finish();
    follower.wait_for("fourth");
    let (code, lines, notes) = follower.end();
    assert_eq!(code, 0, "{notes}");
    assert!(notes.contains("note: the recording has ended"), "{notes}");
    for once in ["first", "second", "third", "fourth"] {
        let times = lines.iter().filter(|line| line.ends_with(once)).count();
        assert_eq!(times, 1, "{once} in:\n{}", lines.join("\n"));
    }
}

#[test]
fn the_objects_of_a_timeline_can_be_followed() {
    let mut maker = Maker::new();
    let thread = maker.thread(7, "x");
    maker.sample(thread, 10, "main first");
    maker.flush();
    let mut follower = Follower::start(maker.trace(), &["--timeline", "--json", "--verbose"]);
    follower.wait_for("\"name\":\"first\"");
    maker.sample(thread, 11, "main second");
    maker.flush();
    follower.wait_for("\"name\":\"second\"");
    maker.finish();
    let (code, lines, notes) = follower.end();
    assert_eq!(code, 0, "{notes}");
    let objects: Vec<serde_json::Value> =
        lines.iter().map(|line| serde_json::from_str(line).expect(line)).collect();
    let of_kind = |kind| objects.iter().filter(move |object| object["kind"] == kind);
    assert_eq!(of_kind("recording").count(), 1, "{lines:?}");
    let times: Vec<_> = of_kind("sample").map(|object| &object["time_ns"]).collect();
    assert_eq!(times, [10_000_000, 11_000_000], "{lines:?}");
    // Finds where each window begins, and which of its lines an earlier window had already.
    let windows: Vec<usize> =
        (0..objects.len()).filter(|place| objects[*place]["kind"] == "window").collect();
    let [window] = windows[..] else { panic!("{windows:?} in {lines:?}") };
    let times =
        |object: &serde_json::Value| [&object["from_ns"], &object["to_ns"]].map(|ns| ns.as_u64());
    assert_eq!(times(&objects[window]), [Some(10_000_001), Some(11_000_000)]);
    let calls = |objects: &[serde_json::Value]| -> Vec<String> {
        let calls = objects.iter().filter(|object| object["kind"] == "call");
        calls.map(|it| format!("{} {} {}", it["name"], it["continued"], it["samples"])).collect()
    };
    assert_eq!(calls(&objects[..window]), ["\"main\" false 1", "\"first\" false 1"]);
    assert_eq!(calls(&objects[window..]), ["\"main\" true 1", "\"second\" false 1"]);
    let others = objects[1..].iter().filter(|object| object["kind"] != "window");
    assert!(others.clone().all(|object| object["tid"] == 7), "{lines:?}");
}

#[test]
fn a_timeline_can_be_followed_for_one_thread() {
    let mut maker = Maker::new();
    let (one, two) = (maker.thread(1, "one"), maker.thread(2, "two"));
    maker.sample(one, 10, "main first");
    maker.flush();
    let mut follower =
        Follower::start(maker.trace(), &["--timeline", "--min-percent", "0", "--thread", "two"]);
    follower.wait_for("samples");
    maker.sample(one, 20, "main second");
    maker.sample(two, 21, "start third");
    maker.flush();
    follower.wait_for("== 0.021 s to 0.021 s");
    follower.wait_for("# Thread 2 (two, tid 2)");
    follower.wait_for("third");
    maker.sample(two, 22, "start fourth");
    maker.flush();
    follower.wait_for("fourth");
    maker.finish();
    let (code, lines, notes) = follower.end();
    assert_eq!(code, 0, "{notes}");
    let text = lines.join("\n");
    assert!(!text.contains("first") && !text.contains("second"), "{text}");
    assert_eq!(text.matches("third").count(), 1, "{text}");
}

#[test]
fn a_recorder_that_has_exited_ends_it() {
    let mut maker = Maker::new();
    let thread = maker.thread(1, "x");
    maker.sample(thread, 10, "main first");
    maker.flush();
    let mut follower = Follower::start(maker.trace(), &[]);
    follower.wait_for("first");
    let _trace = maker.abandon();
    let (code, _, notes) = follower.end();
    assert_eq!(code, 8, "{notes}");
    assert!(notes.contains("recorder exited without closing"), "{notes}");
}

#[test]
fn an_interrupt_ends_it_as_it_ends_any_command() {
    let mut maker = Maker::new();
    let thread = maker.thread(1, "x");
    maker.sample(thread, 10, "main first");
    maker.flush();
    let mut follower = Follower::start(maker.trace(), &[]);
    follower.wait_for("first");
    let pid = nix::unistd::Pid::from_raw(follower.child.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).expect("an interrupt");
    let status = follower.child.wait().expect("its end");
    assert_eq!(status.signal(), Some(nix::libc::SIGINT), "{status}");
}

/// A recorder that has just started has written nothing yet.
#[test]
fn a_recording_without_a_frame_is_waited_for() {
    let mut maker = Maker::new();
    let mut follower = Follower::start(maker.trace(), &[]);
    std::thread::sleep(Duration::from_millis(300));
    assert!(follower.child.try_wait().expect("state").is_none(), "the follower did not wait");
    let thread = maker.thread(1, "x");
    maker.sample(thread, 10, "main first");
    maker.flush();
    follower.wait_for("first");
    maker.finish();
    assert_eq!(follower.end().0, 0);
}

/// The recorder writes blocks of complete stacks of a thread when they are full, before the other
/// blocks.
#[test]
fn samples_that_come_late_are_counted() {
    let mut maker = Maker::new();
    let thread = maker.thread(1, "x");
    maker.sample(thread, 1, "main first");
    maker.flush();
    let mut follower = Follower::start(maker.trace(), &[]);
    follower.wait_for("first");
    maker.sample_ending(thread, 2, "lost", maker::GAP);
    let mut ms = 3;
    let (before, _) = maker.writer.bytes_written();
    while maker.writer.bytes_written().0 == before {
        maker.sample(thread, ms, if ms % 2 == 0 { "main second" } else { "main third" });
        ms += 1;
        assert!(ms < 1_000_000, "nothing is written");
    }
    follower.wait_for("second");
    maker.finish();
    let (code, _, notes) = follower.end();
    assert_eq!(code, 0, "{notes}");
    assert!(notes.contains("note: 1 sample was written too late"), "{notes}");
}

#[test]
fn a_trace_that_is_complete_is_printed_once() {
    let mut maker = Maker::new();
    let thread = maker.thread(1, "x");
    maker.sample(thread, 10, "main first");
    let trace = maker.finish();
    let (code, lines, notes) = Follower::start(&trace, &[]).end();
    assert_eq!(code, 0, "{notes}");
    // The summary names it, too.
    let tree = lines.iter().skip_while(|line| !line.starts_with(" total %  self %"));
    assert_eq!(tree.filter(|line| line.contains("first")).count(), 1);
}

#[test]
fn it_ends_when_no_more_is_wanted() {
    let mut maker = Maker::new();
    let thread = maker.thread(1, "x");
    maker.sample(thread, 10, "main first");
    maker.flush();
    let mut follower = Follower::start(maker.trace(), &["--to", "100ms"]);
    follower.wait_for("first");
    maker.sample(thread, 90, "main second");
    maker.sample(thread, 200, "main third");
    maker.flush();
    let (code, lines, notes) = follower.end();
    assert_eq!(code, 0, "{notes}");
    let text = lines.join("\n");
    assert!(text.contains("second") && !text.contains("third"), "{text}");
}

#[test]
fn spans_and_tags_may_come_while_it_is_followed() {
    let mut maker = Maker::new();
    let thread = maker.thread(1, "x");
    maker.sample(thread, 10, "main early");
    maker.flush();
    let mut follower = Follower::start(maker.trace(), &["--by", "tag:route"]);
    let mut narrow = Follower::start(maker.trace(), &["--tag", "route=/late"]);
    follower.wait_for("early");
    narrow.wait_for("samples   0");
    let route = TagKey { name: "route".to_owned(), kind: TagKind::Text };
    let (key, value) = TagKey::metadata(&[route]);
    maker.writer.set_metadata(key, value).unwrap();
    let late = maker.writer.text("/late").unwrap().0 + 1;
    for (ms, value) in [(100, late), (101, 0)] {
        let time_ns = maker::BEGIN_NS + ms * 1_000_000;
        let tags = [value, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        maker.full_sample(thread, &Sample { time_ns, tags, ..Sample::default() }, "main served");
    }
    maker.flush();
    follower.wait_for("route=/late");
    narrow.wait_for("served");
    maker.finish();
    let (code, lines, notes) = narrow.end();
    assert_eq!((code, notes.contains("the recording has ended")), (0, true), "{notes}");
    let text = lines.join("\n");
    assert!(text.contains("1 period in 1 sample") && !text.contains("early"), "{text}");
    assert_eq!(follower.end().0, 0);
}

#[test]
fn a_real_recording_is_followed_to_its_end() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let pid = target.pid().to_string();
    let mut recorder = Recorder::start(&["--pid", &pid, "--freq", "997"]);
    recorder.wait_until_attached(target.pid());
    let mut follower = Follower::start(recorder.trace(), &["--min-percent", "5"]);
    follower.wait_for("kernel_alpha");
    follower.wait_for("== ");
    follower.wait_for("kernel_alpha");
    recorder.wait_for_cpu(target.pid(), Duration::from_secs(1));
    recorder.send(nix::sys::signal::Signal::SIGINT);
    recorder.finish().expect_code(0);
    let (code, lines, notes) = follower.end();
    assert_eq!(code, 0, "{notes}\n{}", lines.join("\n"));
    target.goes_on_and_ends_by_itself();
}

/// Every view reads the trace that a killed recorder left.
#[test]
fn a_killed_recorders_trace_is_printed() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let pid = target.pid().to_string();
    let mut recorder = Recorder::start(&["--pid", &pid, "--freq", "997"]);
    recorder.wait_until_attached(target.pid());
    recorder.wait_for_cpu(target.pid(), Duration::from_secs(3));
    let mut follower = Follower::start(recorder.trace(), &["--timeline", "--min-percent", "0"]);
    follower.wait_for("kernel_alpha");
    recorder.send(nix::sys::signal::Signal::SIGKILL);
    let outcome = recorder.finish();
    let (code, _, notes) = follower.end();
    assert_eq!(code, 8, "{notes}");
    let tree = outcome.trace.view(&["print", "--tree"]);
    assert!(tree.contains("kernel_alpha") && tree.contains("did not end properly"), "{tree}");
    assert!(
        outcome.trace.view(&["print", "--timeline", "--min-percent", "0"]).contains("kernel_alpha")
    );
    assert!(outcome.trace.folded().count_of("kernel_alpha") > 100);
    target.goes_on_and_ends_by_itself();
}
