//! Recorders, guardians and targets that die at each fault point, and at random moments.
//!
//! The points are those of the library that the command is made of. Each scenario is run once
//! without harm to see which of them it passes; then somebody dies at each, in the first scenario
//! that passes it: who it is changes with the seed of the run. In a long run all of them die, in
//! all scenarios.

mod prey;
mod strike;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use traceprof::fault::Point;

use crate::common::{Random, is_long_run, needs_fault_points, needs_recording, seed, together};
use prey::{SCENARIOS, Scenario};
use strike::{Deed, Fault, Outcome};

/// Strikes at once: most of the time they wait.
const WORKERS: usize = 4;
/// Attempts to pass a point that a scenario has passed before: some need luck.
const TRIES: usize = 12;
/// Moments at which the target is not known yet.
const BEFORE_THE_TARGET: [Point; 2] = [Point::GuardianStarted, Point::RecordStarted];

/// One thing to try.
#[derive(Debug, Clone, Copy)]
struct Job {
    scenario: &'static Scenario,
    point: Point,
    deed: Deed,
}

/// What came of all.
#[derive(Debug, Default)]
struct Tally {
    struck: BTreeMap<&'static str, usize>,
    with_rest: usize,
    naked: usize,
    naked_deaths: usize,
    eintr: usize,
    wrong: Vec<String>,
}

impl Tally {
    fn note(&mut self, job: &Job, result: Result<Outcome, String>) {
        match result {
            Ok(outcome) => {
                *self.struck.entry(job.point.name()).or_default() += 1;
                self.with_rest += usize::from(outcome.had_rest);
                self.eintr += usize::from(outcome.saw_eintr);
                self.naked += usize::from(outcome.is_naked);
                self.naked_deaths += usize::from(outcome.is_naked && outcome.target_died);
            }
            Err(error) => {
                let Job { scenario, point, deed } = job;
                self.wrong.push(format!("{}, {point:?}={deed:?}: {error}", scenario.name));
            }
        }
    }
}

/// Which points each scenario passes: always, and with luck.
type Passed = BTreeMap<&'static str, [BTreeSet<Point>; 2]>;

fn passed() -> Passed {
    let passed = Mutex::new(BTreeMap::new());
    in_parallel(&SCENARIOS, |scenario| {
        let (first, second) = (strike::dry_run(scenario).0, strike::dry_run(scenario).0);
        let both = [&first & &second, &first | &second];
        passed.lock().unwrap().insert(scenario.name, both);
    });
    passed.into_inner().unwrap()
}

fn in_parallel<T: Sync>(all: &'static [T], work: impl Fn(&'static T) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            // Relaxed: each index is given once; the results have locks of their own.
            scope.spawn(|| {
                while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    work(one);
                }
            });
        }
    });
}

/// Every deed at every point in every scenario that passes it, in a long run. Else each point once,
/// in the first scenario that passes it, with one of the deeds: the next one with the next seed.
fn jobs(passed: &Passed) -> Vec<Job> {
    let turn = seed() as usize;
    let mut jobs = Vec::new();
    for (index, &point) in Point::ALL.iter().enumerate() {
        let always = |it: &Scenario| passed[it.name][0].contains(&point);
        let needs_luck = !SCENARIOS.iter().any(always);
        let passes = |it: &&Scenario| passed[it.name][usize::from(needs_luck)].contains(&point);
        let how_many = if is_long_run() { usize::MAX } else { 1 };
        for scenario in SCENARIOS.iter().filter(passes).take(how_many) {
            let has_target = !BEFORE_THE_TARGET.contains(&point);
            let makes_sense =
                |deed: &Deed| scenario.bears(*deed) && (has_target || !deed.is_of_target());
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

/// Tries until the point was passed.
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
    let nowhere: Vec<&Point> = Point::ALL
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
    let Tally { struck, with_rest, naked, naked_deaths, wrong, .. } = tally.into_inner().unwrap();
    let _ = writeln!(
        std::io::stderr(),
        "seed {}: {strikes} strikes at {} points, {with_rest} left a rest; of {naked} naked ones \
         {naked_deaths} killed the target",
        seed(),
        struck.len()
    );
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(struck.len(), Point::ALL.len());
    // Otherwise they died too early or too late.
    let guardians = jobs.iter().filter(|job| matches!(job.deed, Deed::Guardian | Deed::Both));
    let guardians = guardians.count();
    assert!(with_rest * 8 > guardians, "{with_rest} of {guardians}");
}

/// Every system call that changes something of a thread, from its seizure to its release, in each
/// way in which a thread is used: the states between them are all there are. A long run tries all
/// ways, else it is one: the next one with the next seed.
#[test]
fn guardian_dies_after_every_touch_of_a_thread() {
    const NAMES: [&str; 7] = ["nap", "bare", "spin", "epoll", "fiber", "crowd", "poor"];
    needs_recording!();
    needs_fault_points!();
    let _machine = together();
    let turn = seed() as usize % NAMES.len();
    let names = if is_long_run() { &NAMES[..] } else { &NAMES[turn..=turn] };
    let of_name = |name: &&str| SCENARIOS.iter().find(|it| it.name == *name).unwrap();
    let mut jobs = Vec::new();
    for scenario in names.iter().map(of_name) {
        let (_, touches) = strike::dry_run(scenario);
        assert!(touches > 30, "{}: {touches} touches", scenario.name);
        jobs.extend((1..=touches).map(|turn| (scenario, turn)));
    }
    let tally = Mutex::new(Tally::default());
    let reached = AtomicUsize::new(0);
    let jobs: &'static [(&Scenario, usize)] = jobs.leak();
    in_parallel(jobs, |(scenario, turn)| {
        let deed = Deed::Guardian;
        let result = strike::strike(scenario, &Fault::AtTouch(*turn, deed)).transpose();
        // One run needs more of them than the other.
        let Some(result) = result else { return };
        // Relaxed: read after the threads have ended.
        reached.fetch_add(1, Ordering::Relaxed);
        let job = Job { scenario, point: Point::ThreadTouched, deed };
        tally.lock().unwrap().note(&job, result.map_err(|error| format!("{turn}: {error}")));
    });
    let Tally { naked, naked_deaths, eintr, wrong, .. } = tally.into_inner().unwrap();
    let reached = reached.into_inner();
    let _ = writeln!(
        std::io::stderr(),
        "{names:?}: {reached} touches of a thread, {eintr} targets saw an EINTR; of {naked} naked \
         ones \
         {naked_deaths} killed the target"
    );
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(reached > jobs.len() * 9 / 10, "{reached} of {}", jobs.len());
}

/// How many strikes at random; as many hundreds in a long run.
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
        let deeds = [Deed::Recorder, Deed::Guardian, Deed::Both, Deed::Kill];
        let deed = deeds[below(4) as usize];
        let after = Duration::from_micros(below(400_000));
        let job = Job { scenario, point: Point::RecordLooped, deed };
        let result = strike::strike(scenario, &Fault::After(after, deed));
        let result = result.map(Option::unwrap_or_default);
        tally.lock().unwrap().note(&job, result.map_err(|error| format!("{after:?}: {error}")));
    });
    let tally = tally.into_inner().unwrap();
    let _ = writeln!(
        std::io::stderr(),
        "{} strikes at random moments, {} left a rest, {} targets saw an EINTR",
        rounds.len(),
        tally.with_rest,
        tally.eintr
    );
    // It takes a kill in some microseconds.
    assert!(tally.eintr <= rounds.len() / 10, "{}", tally.eintr);
    assert!(tally.wrong.is_empty(), "{} wrong:\n{}", tally.wrong.len(), tally.wrong.join("\n"));
}
