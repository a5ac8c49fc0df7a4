//! Objects that refer to each other, and wrong ones.

use super::*;
use crate::trace::LoadLimits;

fn free() -> Budget {
    Budget::new(LoadLimits::default())
}

fn added(objects: &[Neutral]) -> ObjectResult<Neutrals> {
    let mut neutrals = Neutrals::default();
    objects.iter().try_for_each(|object| neutrals.add(object.clone(), &mut free()))?;
    Ok(neutrals)
}

fn string(id: u32, text: &str) -> Neutral {
    Neutral::String { id, text: text.into() }
}

fn method(id: u32, name: u32) -> Neutral {
    Neutral::Method { id, module: NONE, start_svma: 1, name, line: 0, column: 0 }
}

fn location(id: u32, inline_parent: u32) -> Neutral {
    let (method, svma, file, line, column, frame_kind) = (0, 2, NONE, 3, 0, 0);
    Neutral::Location { id, method, svma, file, line, column, inline_parent, frame_kind }
}

fn thread(tid: u32, name: u32) -> Neutral {
    Neutral::Thread { id: 0, tid, pid: 1, name, first_seen: 0, ended: u64::MAX, runtime_name: 0 }
}

#[test]
fn duplicates_must_be_equal_and_ids_dense() {
    assert!(added(&[string(0, "a"), string(0, "a"), string(1, "a")]).is_ok());
    assert!(added(&[string(0, "a"), string(0, "b")]).is_err());
    assert!(added(&[string(1, "a")]).is_err());
    assert!(added(&[method(0, 0), method(0, 1)]).is_err());
    let metadata =
        |id| Neutral::Metadata { id, key: "k".into(), value: super::super::Value::Unsigned(1) };
    assert!(added(&[metadata(0), metadata(1), metadata(1)]).is_ok());
    assert!(added(&[metadata(1)]).is_err());
}

#[test]
fn a_thread_may_change_its_name_only() {
    let renamed = [string(0, "a"), string(1, "b"), thread(7, 0), thread(7, 1)];
    assert_eq!(added(&renamed).unwrap().threads(&mut free()).unwrap()[0].name, "b");
    assert!(added(&[thread(7, 0), thread(8, 0)]).is_err());
}

#[test]
fn references_must_lead_somewhere_and_inlining_must_end() {
    assert!(added(&[method(0, 0)]).unwrap().methods(&mut free()).is_err());
    assert!(added(&[method(0, 0), string(0, "later")]).unwrap().methods(&mut free()).is_ok());
    assert!(added(&[location(0, NONE)]).unwrap().locations(&mut free()).is_err());
    assert!(added(&[location(0, 0)]).is_err());
    assert!(added(&[location(0, 1)]).is_err());
    let chain = [method(0, 0), location(0, NONE), location(1, 0)];
    assert_eq!(added(&chain).unwrap().locations(&mut free()).unwrap().len(), 2);
}
