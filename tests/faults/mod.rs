//! Recorders, guardians and targets that die at each fault point, and at random moments. Guardians
//! are also stopped there.
//!
//! The library of the command defines the fault points. Each scenario first runs without a death,
//! to see which points it passes. Then one process dies at each point, in the first scenario that
//! passes it. Which process dies changes with the seed of the run. In a long run every process dies
//! at every point of all scenarios.

mod frozen;
mod kills;
mod prey;
mod strike;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use traceprof::fault::FaultPoint;

use crate::common::{Random, is_long_run, needs_fault_points, needs_recording, seed, together};
use prey::{SCENARIOS, Scenario};
use strike::{Deed, Fault, Outcome};

/// Number of strikes at the same time: most of the time they wait.
const WORKERS: usize = 4;
/// Number of attempts to pass a point that a scenario passed before. Some points need luck.
const TRIES: usize = 12;
/// Points at which the target is not known yet.
const BEFORE_THE_TARGET: [FaultPoint; 2] = [FaultPoint::GuardianStarted, FaultPoint::RecordStarted];

/// One fault in one scenario.
#[derive(Debug, Clone, Copy)]
struct Job {
    scenario: &'static Scenario,
    point: FaultPoint,
    deed: Deed,
}

/// The results of all strikes.
#[derive(Debug, Default)]
struct Tally {
    struck: BTreeMap<&'static str, usize>,
    with_residue: usize,
    bare_strikes: usize,
    bare_deaths: usize,
    eintr: usize,
    wrong: Vec<String>,
}

impl Tally {
    fn note(&mut self, job: &Job, result: Result<Outcome, String>) {
        match result {
            Ok(outcome) => {
                *self.struck.entry(job.point.name()).or_default() += 1;
                self.with_residue += usize::from(outcome.had_residue);
                self.eintr += usize::from(outcome.saw_eintr);
                self.bare_strikes += usize::from(outcome.is_bare);
                self.bare_deaths += usize::from(outcome.is_bare && outcome.target_died);
            }
            Err(error) => {
                let Job { scenario, point, deed } = job;
                self.wrong.push(format!("{}, {point:?}={deed:?}: {error}", scenario.name));
            }
        }
    }
}

/// The points that each scenario passes: always, and with luck.
type Passed = BTreeMap<&'static str, [BTreeSet<FaultPoint>; 2]>;

fn passed() -> Passed {
    let passed = Mutex::new(BTreeMap::new());
    in_parallel(&SCENARIOS, |scenario| {
        let (first, second) = (strike::dry_run(scenario), strike::dry_run(scenario));
        let both = [&first & &second, &first | &second];
        passed.lock().unwrap().insert(scenario.name, both);
    });
    passed.into_inner().unwrap()
}

fn in_parallel<T: Sync>(all: &'static [T], work: impl Fn(&'static T) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            // Relaxed: each index is given out once, and the results have their own locks.
            scope.spawn(|| {
                while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    work(one);
                }
            });
        }
    });
}

/// Returns the jobs. A long run has every deed at every point in every scenario that passes it. A
/// normal run has each point once, in the first scenario that passes it, with one deed: the next
/// seed gives the next deed.
fn jobs(passed: &Passed) -> Vec<Job> {
    let turn = seed() as usize;
    let mut jobs = Vec::new();
    for (index, &point) in FaultPoint::ALL.iter().enumerate() {
        let always = |it: &Scenario| passed[it.name][0].contains(&point);
        let needs_luck = !SCENARIOS.iter().any(always);
        let passes = |it: &&Scenario| passed[it.name][usize::from(needs_luck)].contains(&point);
        let how_many = if is_long_run() { usize::MAX } else { 1 };
        for scenario in SCENARIOS.iter().filter(passes).take(how_many) {
            let has_target = !BEFORE_THE_TARGET.contains(&point);
            let makes_sense =
                |deed: &Deed| scenario.allows(*deed) && (has_target || !deed.is_of_target());
            let deeds: Vec<Deed> = Deed::ALL.into_iter().filter(makes_sense).collect();
            let chosen = match is_long_run() {
                true => &deeds[..],
                false => std::slice::from_ref(&deeds[turn.wrapping_add(index) % deeds.len()]),
            };
            jobs.extend(chosen.iter().map(|&deed| Job { scenario, point, deed }));
        }
    }
    jobs
}

/// Repeats the strike until the run passes the point.
fn try_job(job: &Job) -> Result<Outcome, String> {
    for _ in 0..TRIES {
        if let Some(outcome) = strike::strike(job.scenario, &Fault::At(job.point, job.deed))? {
            return Ok(outcome);
        }
    }
    Err(format!("not reached in {TRIES} runs"))
}

#[test]
fn somebody_dies_at_every_fault_point() {
    needs_recording!();
    needs_fault_points!();
    let _machine = together();
    let passed = passed();
    let nowhere: Vec<&FaultPoint> = FaultPoint::ALL
        .iter()
        .filter(|point| !passed.values().any(|[_, any]| any.contains(point)))
        .collect();
    assert!(nowhere.is_empty(), "no scenario passes {nowhere:?}");
    let tally = Mutex::new(Tally::default());
    let jobs: &'static [Job] = jobs(&passed).leak();
    in_parallel(jobs, |job| {
        let result = try_job(job);
        tally.lock().unwrap().note(job, result);
    });
    let strikes = jobs.len();
    let Tally { struck, with_residue, bare_strikes, bare_deaths, wrong, .. } =
        tally.into_inner().unwrap();
    let _ = writeln!(
        std::io::stderr(),
        "seed {}: {strikes} strikes at {} points, {with_residue} left residue; of {bare_strikes} in \
         bare calls {bare_deaths} killed the target",
        seed(),
        struck.len()
    );
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(struck.len(), FaultPoint::ALL.len());
    // Otherwise they died too early or too late.
    let guardians = jobs.iter().filter(|job| matches!(job.deed, Deed::Guardian | Deed::Both));
    let guardians = guardians.count();
    assert!(with_residue * 8 > guardians, "{with_residue} of {guardians}");
}

/// Kills the guardian after every system call that changes a thread, from seize to release, in each
/// way in which a thread is used. There are no other states in between. A long run tries all ways.
/// A normal run tries one: the next seed gives the next one.
#[test]
fn guardian_dies_after_every_touch_of_a_thread() {
    const NAMES: [&str; 7] = ["nap", "bare", "spin", "epoll", "fiber", "crowd", "poor"];
    needs_recording!();
    needs_fault_points!();
    let _machine = together();
    let turn = seed() as usize % NAMES.len();
    let names = if is_long_run() { &NAMES[..] } else { &NAMES[turn..=turn] };
    for name in names {
        strike_each_touch(SCENARIOS.iter().find(|it| it.name == *name).unwrap());
    }
}

/// Strikes at the first touch, at the second, and so on, until runs end before they get there. One
/// run has more touches than another.
fn strike_each_touch(scenario: &'static Scenario) {
    let (next, beyond) = (AtomicUsize::new(1), AtomicUsize::new(0));
    let tally = Mutex::new(Tally::default());
    in_parallel(&[(); WORKERS], |()| {
        // Relaxed, all: each turn is given out once, and no more than a few runs depend on when the
        // end is seen.
        while beyond.load(Ordering::Relaxed) < TRIES {
            let turn = next.fetch_add(1, Ordering::Relaxed);
            let deed = Deed::Guardian;
            let result = strike::strike(scenario, &Fault::AtTouch(turn, deed)).transpose();
            let Some(result) = result else {
                beyond.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            match &result {
                Ok(_) => beyond.store(0, Ordering::Relaxed),
                Err(_) => drop(beyond.fetch_add(1, Ordering::Relaxed)),
            }
            let job = Job { scenario, point: FaultPoint::ThreadTouched, deed };
            tally.lock().unwrap().note(&job, result.map_err(|error| format!("{turn}: {error}")));
        }
    });
    let Tally { struck, bare_strikes, bare_deaths, eintr, wrong, .. } = tally.into_inner().unwrap();
    let struck = struck.values().sum::<usize>();
    let _ = writeln!(
        std::io::stderr(),
        "{}: {struck} touches of a thread, {eintr} targets saw an EINTR; of {bare_strikes} in bare \
         calls {bare_deaths} killed the target",
        scenario.name
    );
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(struck > 30, "{struck} touches");
}

/// Returns the number of random strikes.
fn random_strikes() -> usize {
    if is_long_run() { 600 } else { 40 }
}

#[test]
fn somebody_dies_at_random_moments() {
    needs_recording!();
    let _machine = together();
    let random = Mutex::new(Random::new(11));
    let below = |limit: u64| random.lock().unwrap().below(limit);
    let tally = Mutex::new(Tally::default());
    let rounds: &'static [usize] = (0..random_strikes()).collect::<Vec<_>>().leak();
    let whole: Vec<&'static Scenario> =
        SCENARIOS.iter().filter(|scenario| scenario.is_plain()).collect();
    in_parallel(rounds, |round| {
        let scenario = whole[round % whole.len()];
        let deeds = [Deed::Recorder, Deed::Guardian, Deed::Both, Deed::Freeze, Deed::Kill];
        let deed = deeds[below(deeds.len() as u64) as usize];
        let after = Duration::from_micros(below(400_000));
        let job = Job { scenario, point: FaultPoint::RecordLooped, deed };
        let result = strike::strike(scenario, &Fault::After(after, deed));
        let result = result.map(Option::unwrap_or_default);
        tally.lock().unwrap().note(&job, result.map_err(|error| format!("{after:?}: {error}")));
    });
    let tally = tally.into_inner().unwrap();
    let _ = writeln!(
        std::io::stderr(),
        "{} strikes at random moments, {} left residue, {} targets saw an EINTR",
        rounds.len(),
        tally.with_residue,
        tally.eintr
    );
    // It takes a kill within some microseconds.
    assert!(tally.eintr <= rounds.len() / 10, "{}", tally.eintr);
    assert!(tally.wrong.is_empty(), "{} wrong:\n{}", tally.wrong.len(), tally.wrong.join("\n"));
}
