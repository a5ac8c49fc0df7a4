//! Saves of a ring, which wait for the batches that belong to them.

use std::time::Duration;

use super::*;
use crate::trace::{RingPlan, RotateAfter, SeriesPlan};

#[test]
fn a_save_has_what_waited_for_names_when_it_was_asked_for_and_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_owned();
    let [saved, last] = ["saved", "last"].map(|name| dir.join(name));
    let (save, end) = (saved.clone(), last.clone());
    let ring = RingPlan {
        time: Duration::from_secs(60),
        directory: dir.clone(),
        save: Arc::new(move || save.clone()),
        last: Box::new(move || end.clone()),
    };
    let name = Box::new(move |number| dir.join(format!("{number}.trace")));
    let (turn, ring) = (RotateAfter::Age(Duration::from_secs(60)), Some(ring));
    let plan = SeriesPlan { name, rotate_after: turn, keep: None, ring };
    let writer = TraceSeries::create(plan, WriterOptions::default()).unwrap();
    let (writer, go) = over_blocked_names(writer, backlog::ROOM);
    writer.send(first_batch());
    writer.send(next_batch(&[(2, 0x1020, false)], 10));
    writer.save();
    wait_until("the batches are taken", || is_taken(&writer));
    assert_eq!(writer.saved(), []);
    drop(go);
    wait_until("the ring is saved", || !writer.saves.all().is_empty());
    let news = writer.saved();
    writer.send(next_batch(&[(2, 0x1020, true)], 20));
    assert_eq!(news[0].outcome.as_ref().unwrap().samples, 1);
    assert_eq!(names(&saved), [(10, "f1020".to_owned())]);
    writer.finish().close(Metadata::new(), &[]);
    assert_eq!(names(&last).len(), 2);
}
