//! Names that a runtime reports for code that it generated: what waits for them, and how long.

use super::*;

/// A process, and its perf map, which only the test writes.
struct Runtime {
    child: std::process::Child,
    map: std::path::PathBuf,
}

impl Runtime {
    fn new() -> Self {
        let child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let map = std::path::PathBuf::from(format!("/tmp/perf-{}.map", child.id()));
        Self { child, map }
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    fn tell(&self, text: &str) {
        std::fs::write(&self.map, text).unwrap();
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        // The process and the file may no longer exist.
        let _ = self.child.kill().and_then(|()| self.child.wait());
        let _ = std::fs::remove_file(&self.map);
    }
}

impl Runtime {
    /// Starts a writer thread for this process, which waits for answers to map requests.
    fn writer(&self, path: &Path, map_requests: &Arc<MapRequests>) -> TestWriter {
        let names = |answers: AnswerSender| {
            let theirs = answers.clone();
            map_requests.answer_by(move |question| {
                theirs.send(Ok(SymbolQuery { question, ..SymbolQuery::default() }));
            });
            let symbolizers = Symbolizers::start(move |answer| answers.send(answer))?;
            let jit = JitNames::start(self.pid(), Arc::clone(map_requests))?.patient();
            Ok(FrameNames::of(symbolizers, jit))
        };
        let writer = TestWriter::with_room(backlog::ROOM, path, self.pid(), names);
        writer.send(Arc::new(Batch { threads: vec![seen(1, 7)], ..Batch::default() }));
        writer
    }
}

/// Returns the names of the samples, and whether the first one waited for the runtime's map.
fn names_of_own_code(is_served: bool) -> (Vec<String>, bool) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let (runtime, map_requests) = (Runtime::new(), Arc::<MapRequests>::default());
    let serving = is_served.then(|| map_requests.serve());
    let writer = runtime.writer(&path, &map_requests);
    writer.send(next_batch(&[(2, 0x1000, false)], 1));
    wait_until("it is never looked at", || is_taken(&writer));
    let has_waited = !writer.is_idle();
    serving.iter().for_each(|it| it.take());
    let _ = map_requests.write(&|| false, || runtime.tell("1000 10 made\n"));
    serving.iter().for_each(|it| it.answer());
    wait_until("not written", || writer.is_idle());
    // The name is known or requested by now, so the writer does not request it again.
    writer.send(next_batch(&[(3, 0x1000, false)], 2));
    wait_until("not written", || writer.is_idle());
    drop(serving);
    let finished = writer.finish();
    assert_eq!(finished.totals().unnamed, 0);
    assert!(finished.close(Metadata::new(), &[]).error.is_none());
    (names(&path).into_iter().map(|(_, name)| name).collect(), has_waited)
}

#[test]
fn samples_wait_for_the_names_of_code_that_a_runtime_is_asked_for() {
    let (names, has_waited) = names_of_own_code(true);
    assert_eq!(names, ["made", "made"]);
    assert!(has_waited);
}

#[test]
fn samples_do_not_wait_for_names_that_nobody_asks_for() {
    let (names, has_waited) = names_of_own_code(false);
    assert_eq!(names, ["[unknown]", "made"], "it was reported later");
    assert!(!has_waited);
}

#[test]
fn a_runtime_that_does_not_answer_is_not_waited_for_without_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let (runtime, map_requests) = (Runtime::new(), Arc::<MapRequests>::default());
    let _serving = map_requests.serve();
    let writer = runtime.writer(&path, &map_requests);
    writer.send(next_batch(&[(2, 0x1000, false)], 1));
    wait_until("its names are still waited for", || is_taken(&writer) && writer.is_idle());
    writer.send(next_batch(&[(3, 0x2000, false)], 2));
    // The end does not wait any longer.
    let finished = writer.finish();
    assert_eq!((finished.totals().samples, finished.totals().unnamed), (2, 2));
    assert!(finished.close(Metadata::new(), &[]).error.is_none());
    assert_eq!(names(&path).len(), 2);
}

#[test]
fn names_reported_before_the_start_belong_to_the_first_program() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let runtime = Runtime::new();
    runtime.tell("1000 10 made\n");
    let writer = runtime.writer(&path, &Arc::default());
    // The number of the first program does not matter.
    for (number, program) in [(2, 1), (3, 1), (4, 2)] {
        let addresses = Some(Arc::new(AddressMap::of_program(program)));
        writer.send(Arc::new(Batch { addresses, ..Batch::default() }));
        writer.send(next_batch(&[(number, 0x1000, false)], number));
    }
    assert!(writer.finish().close(Metadata::new(), &[]).error.is_none());
    let names: Vec<_> = names(&path).into_iter().map(|(_, name)| name).collect();
    assert_eq!(names, ["made", "made", "[unknown]"]);
}
