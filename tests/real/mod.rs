//! Real programs, sampled by traceprof and by perf at the same time: stacks reach their roots, and
//! both find the same functions hot.

mod flat;
mod perf;
mod places;
mod programs;

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::ops::RangeInclusive;
use std::time::Duration;

use nix::sys::signal::Signal;
use traceprof::trace::{self, FrameKind, LoadedTrace, LocationId, Sample};
use traceprof_abi::storage::log::flags::KERNEL;
use traceprof_abi::unwind::EndReason;

use crate::common::{
    Outcome, Recorder, Target, is_long_run, needs_recording, scratch_dir, skip, together,
};
use flat::Flat;
use perf::{Perf, PerfSample};
use places::{Naming, Place, Places};
use programs::Start;

/// Share of samples that must reach a root. Samples in the kernel, which copy only a part of the
/// stack, do not count: their number depends on the processor and the kernel.
const ROOTED: f64 = 0.999;
/// Share of the samples in the kernel that must have copied the complete stack.
const COPIED_WHOLE: f64 = 0.5;
/// How much smaller the overlap of hot functions may be than that of two equal samplers.
const HOT_BEYOND_CHANCE: f64 = 0.05;
/// Share of samples with a different name that is permitted where a symbol or a relocation decides
/// the name: two symbols may cover an address.
const MISNAMED: f64 = 0.005;
/// Standard deviations of chance on top of that: one test in a million fails by chance.
const CHANCE: f64 = 5.0;
/// How much smaller the overlap of all functions may be than that of two equal samplers.
const BEYOND_CHANCE: f64 = 0.03;
/// Sampling rate: a prime, and unlike the clock tick.
const HZ: u32 = 4999;
/// What stands for code of regular expressions.
const REGEXP: &str = "(regular expression)";
/// Lines of each kind in a message.
const TOPS: usize = 12;
/// The two sides of a [`Flat`].
const OURS: usize = 0;
const PERFS: usize = 1;

fn cpu_wanted() -> Duration {
    Duration::from_millis(if is_long_run() { 8_000 } else { 2_000 })
}

/// One of our samples, with its function and the caller.
struct Own {
    sample: Sample,
    leaf: Option<LocationId>,
    caller: Option<LocationId>,
}

/// The comparison of a program's two profiles.
struct Comparison {
    samples: usize,
    /// The number of samples in the kernel, and those of them whose copy of the stack ended early.
    in_kernel: usize,
    cut: usize,
    ends: BTreeMap<&'static str, usize>,
    flat: Flat<Place>,
    /// The functions with their callers.
    callers: Flat<(Place, Place)>,
    /// Weight of samples of code whose name is decided.
    named: f64,
    /// Weight of those that have a different name here.
    unlike: f64,
    /// Functions with different names.
    misnamed: Vec<String>,
    /// Where stacks end that do not reach a root.
    short: Vec<String>,
}

/// Runs both profilers on the same process while it uses the CPU time of the test.
fn record_both(target: &Target) -> (Outcome, Vec<PerfSample>, Places) {
    let dir = scratch_dir();
    let (pid, freq) = (target.pid().to_string(), HZ.to_string());
    let args = ["--pid", &pid, "--freq", &freq, "--engine", "perf"];
    let mut recorder = Recorder::start(&args);
    recorder.wait_until_attached(target.pid());
    let mut perf = Perf::start(target.pid(), HZ, dir.path());
    recorder.wait_for_cpu(target.pid(), cpu_wanted());
    let places = Places::of(target.pid());
    perf.stop();
    recorder.send(Signal::SIGINT);
    (recorder.finish().expect_code(0), perf.samples(), places)
}

/// Returns the function of a location, the outermost one if functions are inlined there.
fn function(trace: &LoadedTrace, mut id: LocationId) -> (Option<&str>, &str, u64) {
    let svma = trace.locations[id.0 as usize].svma;
    while let Some(parent) = trace.locations[id.0 as usize].inline_parent {
        id = parent;
    }
    let method = &trace.methods[trace.locations[id.0 as usize].method.0 as usize];
    let module = method.module.map(|module| trace.modules[module.0 as usize].path.as_str());
    (module, &method.name, svma)
}

fn place_of(places: &mut Places, trace: &LoadedTrace, id: LocationId) -> Place {
    let (module, name, svma) = function(trace, id);
    match module {
        Some(path) => places.in_module(path, svma, name),
        None => Place::Named(name.to_owned()),
    }
}

/// Compares the name of a location with the name that it should have: for a stub by its relocation,
/// for other code by perf. `None` if nothing decides it, or perf has no sample of it.
fn compare_names(
    places: &mut Places,
    trace: &LoadedTrace,
    id: LocationId,
    names: &HashMap<Naming, String>,
) -> Option<(String, String, bool)> {
    let (module, name, svma) = function(trace, id);
    let naming = match module {
        Some(path) => places.naming_in(path, svma, name)?,
        None => Naming::Maker(name.to_owned()),
    };
    let other = match &naming {
        Naming::Stub(target) => target,
        Naming::Symbol(..) | Naming::Maker(_) => names.get(&naming)?,
    };
    let is_same = places.is_same(&naming, name, other);
    Some((name.to_owned(), other.clone(), is_same))
}

/// Returns the most samples that chance makes of an expected number.
fn most_by_chance(expected: f64) -> f64 {
    expected + CHANCE * expected.sqrt()
}

/// Returns the caller of the leaf's function, skipping functions that are inlined into that.
fn caller(trace: &LoadedTrace, stack: &[LocationId]) -> Option<LocationId> {
    let is_inlined = |id: &LocationId| trace.locations[id.0 as usize].inline_parent.is_some();
    let own = stack.iter().rposition(|id| !is_inlined(id))?;
    stack[..own].last().copied()
}

/// Returns the time in which both profilers sampled.
fn common_span(samples: &[Own], perf_samples: &[PerfSample]) -> RangeInclusive<u64> {
    let ours = || samples.iter().map(|own| own.sample.time_ns);
    let perfs = || perf_samples.iter().map(|sample| sample.time_ns);
    let from = ours().min().max(perfs().min());
    let to = ours().max().into_iter().chain(perfs().max()).min();
    from.expect("a sample")..=to.expect("a sample")
}

/// Weights by a key, printed with the greatest first.
#[derive(Default)]
struct Tops(BTreeMap<String, f64>);

impl Tops {
    fn add(&mut self, key: String, count: f64) {
        *self.0.entry(key).or_default() += count;
    }

    fn lines(self) -> Vec<String> {
        let mut all: Vec<_> = self.0.into_iter().collect();
        all.sort_by(|(_, a), (_, b)| f64::total_cmp(b, a));
        all.iter().take(TOPS).map(|(key, count)| format!("{count:6.0} {key}")).collect()
    }
}

/// Returns the frames of a stack that perf's registers show: native ones, and compiled ones of
/// JavaScript, which the program names for it.
fn seen_by_perf(trace: &LoadedTrace, stack: &[LocationId]) -> Vec<LocationId> {
    let is_seen = |id: &&LocationId| match trace.locations[id.0 as usize].kind {
        FrameKind::JavaScriptBaseline
        | FrameKind::JavaScriptMiddle
        | FrameKind::JavaScriptOptimized => true,
        FrameKind::JavaScript => function(trace, **id).1 == REGEXP,
        FrameKind::Kernel => false,
        kind => !kind.language().is_managed(),
    };
    stack.iter().filter(is_seen).copied().collect()
}

impl Comparison {
    fn of(outcome: &Outcome, perf_samples: &[PerfSample], places: &mut Places) -> Self {
        let trace = trace::load(&outcome.trace.path()).expect("a trace");
        let (mut samples, mut ends, mut short) = (Vec::new(), BTreeMap::new(), Tops::default());
        let (mut in_kernel, mut cut) = (0, 0);
        for thread in &trace.threads {
            thread.for_each_sample(&mut |sample, stack| {
                let stack = &seen_by_perf(&trace, stack)[..];
                let end = EndReason::from_number(sample.end_reason);
                let is_in_kernel = sample.flags & KERNEL != 0;
                in_kernel += usize::from(is_in_kernel);
                cut += usize::from(is_in_kernel && end == Some(EndReason::Copied));
                let end = end.map_or("unknown", EndReason::name);
                *ends.entry(end).or_default() += 1;
                if end != EndReason::Root.name() {
                    let names = stack.iter().take(3).map(|id| function(&trace, *id).1);
                    let names = names.collect::<Vec<_>>().join(", ");
                    short.add(format!("{end} after {names}, flags {}", sample.flags), 1.0);
                }
                let leaf = stack.last().copied();
                samples.push(Own { sample: sample.clone(), leaf, caller: caller(&trace, stack) });
            });
        }
        let span = common_span(&samples, perf_samples);
        let perf_samples = perf_samples.iter().filter(|sample| span.contains(&sample.time_ns));
        let (mut flat, mut callers, mut names) = (Flat::default(), Flat::default(), HashMap::new());
        for sample in perf_samples {
            let place = places.at(sample.pc, sample.name.as_deref());
            // perf may sample a thread inside our agent, where we do not sample.
            if place == Place::Agent {
                continue;
            }
            if let Some(name) = &sample.name
                && let Some(naming) = places.naming_at(sample.pc, name)
            {
                names.insert(naming, name.clone());
            }
            if let Some(caller) = &sample.caller {
                callers.add(PERFS, (place.clone(), places.of_frame(caller)), 1.0);
            }
            flat.add(PERFS, place, 1.0);
        }
        let (mut named, mut unlike, mut misnamed) = (0.0, 0.0, Tops::default());
        for own in samples.iter().filter(|it| span.contains(&it.sample.time_ns)) {
            let Some(leaf) = own.leaf else { continue };
            let place = place_of(places, &trace, leaf);
            let periods = f64::from(own.sample.weight);
            if let Some((name, other, is_same)) = compare_names(places, &trace, leaf, &names) {
                named += 1.0;
                if !is_same {
                    unlike += 1.0;
                    misnamed.add(format!("{name} is {other}"), 1.0);
                }
            }
            if let Some(caller) = own.caller {
                callers.add(OURS, (place.clone(), place_of(places, &trace, caller)), periods);
            }
            flat.add(OURS, place, periods);
        }
        let (misnamed, short) = (misnamed.lines(), short.lines());
        Self {
            samples: samples.len(),
            in_kernel,
            cut,
            ends,
            flat,
            callers,
            named,
            unlike,
            misnamed,
            short,
        }
    }

    fn named_alike(&self) -> f64 {
        1.0 - self.unlike / self.named.max(1.0)
    }

    /// Whether no more names differ than chance permits.
    fn is_named_alike(&self) -> bool {
        self.unlike <= most_by_chance(MISNAMED * self.named)
    }

    /// Whether enough samples reach a root, with room for chance.
    fn is_rooted(&self, rooted: f64) -> bool {
        let whole = self.samples - self.cut;
        let reached = self.ends.get(EndReason::Root.name()).copied().unwrap_or(0);
        let copied_whole = (self.in_kernel - self.cut) as f64;
        (whole - reached) as f64 <= most_by_chance((1.0 - rooted) * whole as f64)
            && copied_whole >= COPIED_WHOLE * self.in_kernel as f64
    }

    fn rooted(&self) -> f64 {
        let rooted = self.ends.get(EndReason::Root.name()).copied().unwrap_or(0);
        rooted as f64 / self.samples.max(1) as f64
    }

    /// Returns a row of the table that `scripts/compare-perf` prints.
    fn row(&self, program: &str) -> String {
        let [own, other] = self.flat.totals();
        let mut ends = String::new();
        for (end, count) in self.ends.iter().filter(|(end, _)| **end != EndReason::Root.name()) {
            ends += &format!("{end} {count} ");
        }
        format!(
            "| {program:<15} | {:>7} | {:>7.2} | {:<32} | {own:>7.0} / {other:>7} | {:>6.1} | \
             {:>6.1} | {:>6.1} | {:>6.1} | {:>6.1} | {:>6.1} |",
            self.samples,
            100.0 * self.rooted(),
            ends.trim_end(),
            100.0 * self.flat.overlap_of_hot(),
            100.0 * self.flat.overlap(),
            100.0 * self.flat.overlap_by_chance(),
            100.0 * self.callers.overlap(),
            100.0 * self.callers.overlap_by_chance(),
            100.0 * self.named_alike(),
        )
    }

    /// Returns the functions about which the two differ most.
    fn differences(&self) -> String {
        let mut shares = self.flat.shares();
        shares.sort_by(|(_, a), (_, b)| f64::total_cmp(&(b[0] - b[1]).abs(), &(a[0] - a[1]).abs()));
        let lines = shares.iter().take(TOPS).map(|(place, [own, other])| {
            format!("{:6.2} % / {:6.2} % {place:?}", 100.0 * own, 100.0 * other)
        });
        let lines: Vec<_> = lines.collect();
        let mut callers = self.callers.shares();
        callers
            .sort_by(|(_, a), (_, b)| f64::total_cmp(&(b[0] - b[1]).abs(), &(a[0] - a[1]).abs()));
        let callers = callers.iter().take(TOPS).map(|((place, caller), [own, other])| {
            format!("{:6.2} % / {:6.2} % {place:?} by {caller:?}", 100.0 * own, 100.0 * other)
        });
        let callers: Vec<_> = callers.collect();
        [lines, callers, self.misnamed.clone(), self.short.clone()].concat().join("\n")
    }
}

/// Checks a program. `rooted` is the share that must reach a root. `has_callers` is false for
/// generated code, whose callers perf does not find.
fn check(program: &str, start: Start, (rooted, has_callers): (f64, bool)) {
    needs_recording!();
    if !programs::has_perf() {
        skip!("perf: not installed");
    }
    let _machine = together();
    let dir = scratch_dir();
    let Some(target) = start(dir.path()) else {
        skip!("{program}: not installed");
    };
    let (outcome, perf_samples, mut places) = record_both(&target);
    let map = format!("/tmp/perf-{}.map", target.pid());
    drop(target);
    // Only a program that names its compiled code leaves this file.
    let _ = std::fs::remove_file(map);
    let found = Comparison::of(&outcome, &perf_samples, &mut places);
    // A closed stderr is no reason to fail.
    let _ = writeln!(std::io::stderr(), "measured: {}", found.row(program));
    let text = || format!("{}\n{}\n{}", found.row(program), found.differences(), outcome.text());
    assert!(found.is_rooted(rooted), "{}", text());
    let hot = &found.flat;
    let is_alike = hot.overlap_of_hot() >= hot.overlap_of_hot_by_chance() - HOT_BEYOND_CHANCE;
    assert!(is_alike, "{}", text());
    assert!(found.flat.overlap() >= found.flat.overlap_by_chance() - BEYOND_CHANCE, "{}", text());
    assert!(found.named > 0.0 && found.is_named_alike(), "{}", text());
    let callers = &found.callers;
    let is_alike = callers.overlap() >= callers.overlap_by_chance() - BEYOND_CHANCE;
    assert!(is_alike || !has_callers, "{}", text());
}

#[test]
fn python_agrees_with_perf() {
    check("python3", programs::python, (ROOTED, true));
}

#[test]
fn perl_agrees_with_perf() {
    check("perl", programs::perl, (ROOTED, true));
}

#[test]
fn openssl_agrees_with_perf() {
    check("openssl sha256", programs::openssl_sha256, (ROOTED, true));
    check("openssl rsa2048", programs::openssl_rsa, (ROOTED, true));
}

#[test]
fn git_agrees_with_perf() {
    check("git log -p", programs::git, (ROOTED, true));
}

#[test]
fn cc1_agrees_with_perf() {
    check("cc1 -O3", programs::cc1, (ROOTED, true));
}

/// Compiled code that is being discarded (deoptimized) has no frames to follow.
#[test]
fn node_agrees_with_perf() {
    check("node", programs::node, (0.985, false));
}
