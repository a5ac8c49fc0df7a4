//! Names that a runtime reports for code that it generated: to which samples they belong.

use super::*;
use crate::record::batch::java::{FoundJava, NewJava};
use crate::runtime::Gone;
use crate::trace::FrameKind;

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
    /// Starts a writer thread for this process.
    fn writer(&self, path: &Path) -> TestWriter {
        let names = |answers: AnswerSender| {
            let symbolizers = Symbolizers::start(move |answer| answers.send(answer))?;
            Ok(FrameNames::of(symbolizers, JitNames::start(self.pid())?.patient()))
        };
        let writer = TestWriter::with_room(backlog::ROOM, path, self.pid(), names);
        writer.send(Arc::new(Batch { threads: vec![seen(1, 7)], ..Batch::default() }));
        writer
    }
}

#[test]
fn samples_do_not_wait_for_names_that_come_later() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let runtime = Runtime::new();
    let writer = runtime.writer(&path);
    writer.send(next_batch(&[(2, 0x1000, false)], 1));
    wait_until("not written", || is_taken(&writer) && writer.is_idle());
    runtime.tell("1000 10 made\n");
    writer.send(next_batch(&[(3, 0x1000, false)], 2));
    wait_until("not written", || writer.is_idle());
    let finished = writer.finish();
    assert_eq!(finished.totals().unnamed, 0);
    assert!(finished.close(Metadata::new(), &[]).error.is_none());
    let names: Vec<_> = names(&path).into_iter().map(|(_, name)| name).collect();
    assert_eq!(names, ["[unknown]", "made"]);
}

#[test]
fn names_reported_before_the_start_belong_to_the_first_program() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let runtime = Runtime::new();
    runtime.tell("1000 10 made\n");
    let writer = runtime.writer(&path);
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

/// The machine had other code at the address before or after the sample.
#[test]
fn code_of_a_java_machine_that_may_have_been_another_one_is_a_method_without_a_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let writer = TestWriter::start(&path);
    let Ok(mut batch) = Arc::try_unwrap(next_batch(&[(2, 0x1000, false)], 1)) else {
        panic!("a batch of its own");
    };
    let found = vec![FoundJava { avma: 0x1000, since_ns: 0, code: None }];
    batch.java = NewJava { found, ..NewJava::default() };
    batch.threads.push(seen(1, 7));
    writer.send(Arc::new(batch));
    let finished = writer.finish();
    let counts: Vec<_> = finished.totals().managed.numbers().collect();
    assert!(finished.close(Metadata::new(), &[]).error.is_none());
    let loaded = trace::load(&path).unwrap();
    let mut samples = Vec::new();
    loaded.threads[0].for_each_sample(&mut |_, stack| samples.extend(stack.iter().copied()));
    let [location] = samples[..] else { panic!("{samples:?}") };
    let location = &loaded.locations[location.0 as usize];
    let method = &loaded.methods[location.method.0 as usize];
    assert_eq!((method.name.as_str(), method.is_named()), ("[Java: method gone]", false));
    assert_eq!((location.svma, location.kind), (0x1000, FrameKind::JavaCompiled));
    assert_eq!(loaded.modules[method.module.unwrap().0 as usize].path, "[Java]");
    let reason = format!("frames_unnamed.java.{}", Gone::Unproven.name());
    let expected =
        [("samples.java", 1), ("samples_named.java", 0), ("frames.java", 1), (&reason, 1)];
    assert_eq!(counts, expected.map(|(key, number)| (key.to_owned(), number)));
}
