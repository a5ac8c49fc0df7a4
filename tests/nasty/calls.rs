//! A thread in the middle of every kind of system call.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use super::{Proof, left_alone};
use crate::common::{Target, needs_recording, program, scratch_dir, together};

/// Name of the call, and the set of its outcomes.
type Outcomes = BTreeMap<String, BTreeSet<String>>;

fn outcomes(target: &Target) -> Outcomes {
    let calls = target.facts().iter().filter(|(name, _)| name.starts_with("in_"));
    calls
        .map(|(name, outcomes)| (name.clone(), outcomes.split(',').map(str::to_owned).collect()))
        .collect()
}

#[test]
fn every_call_ends_as_it_would() {
    needs_recording!();
    let _machine = together();
    let dir = scratch_dir();
    let start = || {
        let mut command = Command::new(program("calls"));
        command.current_dir(dir.path());
        Target::spawn(command)
    };
    let mut alone = start();
    left_alone(&mut alone);
    let expected = outcomes(&alone);
    let blocked = expected.values().filter(|it| it.contains("blocked")).count();
    assert!(blocked > 40 && expected.len() > 70, "{blocked} of {}: {expected:?}", expected.len());
    // Its children come and go, and it makes calls with temporary signal masks all the time.
    let recorded = outcomes(&Proof::of(start()).changes().survives());
    // Beside other work, a call that is left alone may end early now and then.
    let is_expected = |name: &String, outcomes: &BTreeSet<String>| {
        let on_time = outcomes.iter().filter(|it| !it.starts_with("early:"));
        recorded.get(name).is_some_and(|it| it == outcomes || it.iter().eq(on_time))
    };
    let differences: Vec<_> = expected
        .iter()
        .filter(|(name, outcomes)| !is_expected(name, outcomes))
        .map(|(name, outcomes)| format!("{name}: {outcomes:?} -> {:?}", recorded.get(name)))
        .collect();
    assert!(differences.is_empty(), "{differences:#?}");
}
