//! One run in which somebody dies, and what must hold afterwards.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use traceprof::fault::Point;
use traceprof::trace;

use super::prey::{Scenario, Work};
use crate::common::{Snapshot, Target, child_named, scratch_dir, traceprof, wait_until};

/// For what should take a second.
const PATIENCE: Duration = Duration::from_secs(45);
/// The guardian's name as a process.
const GUARDIAN: &str = "traceprof-guard";
/// How a prey ends that saw an EINTR.
const EINTR_SEEN: i32 = 18;

/// Who dies, or what else happens to the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deed {
    Recorder,
    Guardian,
    Both,
    /// SIGKILL to the target.
    Kill,
    /// The target executes another program.
    Exec,
    /// The target ends by itself.
    Exit,
}

impl Deed {
    pub(super) const ALL: [Deed; 6] =
        [Deed::Recorder, Deed::Guardian, Deed::Both, Deed::Kill, Deed::Exec, Deed::Exit];

    fn name(self) -> &'static str {
        match self {
            Deed::Recorder => "recorder",
            Deed::Guardian => "guardian",
            Deed::Both => "both",
            Deed::Kill => "target",
            Deed::Exec => "exec",
            Deed::Exit => "exit",
        }
    }

    pub(super) fn is_of_target(self) -> bool {
        matches!(self, Deed::Kill | Deed::Exec | Deed::Exit)
    }
}

/// When somebody dies.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fault {
    At(Point, Deed),
    /// At this passing of [`Point::ThreadTouched`], counted from 1.
    AtTouch(usize, Deed),
    After(Duration, Deed),
}

impl Fault {
    fn deed(self) -> Deed {
        match self {
            Fault::At(_, deed) | Fault::AtTouch(_, deed) | Fault::After(_, deed) => deed,
        }
    }

    /// The point, and how the command under test is told.
    fn point(self) -> Option<(Point, String)> {
        let (point, turn) = match self {
            Fault::At(point, _) => (point, 1),
            Fault::AtTouch(turn, _) => (Point::ThreadTouched, turn),
            Fault::After(..) => return None,
        };
        Some((point, format!("{}.{turn}={}", point.name(), self.deed().name())))
    }
}

/// What a strike came to.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Something was left in the target, which was removed.
    pub(super) had_rest: bool,
    /// The guardian died while the target depended on it.
    pub(super) is_naked: bool,
    pub(super) target_died: bool,
    /// A call of the target's ended with EINTR, as the documentation says it may.
    pub(super) saw_eintr: bool,
}

fn check(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

/// A run under way.
struct Run {
    child: Child,
    directory: TempDir,
}

impl Run {
    fn start(words: &[&str], pid: Option<i32>, faults: &str) -> Run {
        let directory = scratch_dir();
        let file = |name: &str| std::fs::File::create(directory.path().join(name)).unwrap();
        let mut command = traceprof(&words[..1]);
        if let Some(pid) = pid {
            command.args(["--pid", &pid.to_string()]);
        }
        if words[0] == "record" {
            command.arg("--output").arg(directory.path().join("out.trace"));
        }
        command.args(&words[1..]).env("TRACEPROF_FAULT", faults);
        command.env("TRACEPROF_FAULT_LOG", directory.path().join("log"));
        command.stdout(file("stdout")).stderr(file("stderr")).stdin(Stdio::null());
        Run { child: command.spawn().expect("traceprof"), directory }
    }

    fn of(scenario: &Scenario, pid: Option<i32>, faults: &str) -> Run {
        let mut words = match scenario.work {
            Work::Detach => vec!["detach"],
            Work::Record | Work::Command => vec!["record", "--freq", "997"],
        };
        if scenario.work != Work::Detach && !scenario.options.contains(&"--duration") {
            words.extend(["--duration", "130ms"]);
        }
        words.extend(scenario.options);
        let program = crate::common::program(scenario.program.0);
        if scenario.work == Work::Command {
            words.extend(["--", program.to_str().unwrap(), scenario.program.1]);
        }
        let all = [scenario.first, faults].join(",");
        Run::start(&words, pid, &all)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn did(&self, point: Point, deed: Deed) -> bool {
        let line = format!("{}={}", point.name(), deed.name());
        self.text("log").lines().any(|it| it == line)
    }

    /// When the guardian died, its thread was about to make a call with nothing behind it, or had
    /// made it and was not back. Tells so from the points that were passed before, of which the
    /// first touch after one may lead into the call.
    fn died_naked(&self) -> bool {
        let log = self.text("log");
        let end = format!("{}=", Point::ThreadTouched.name());
        let before = log.lines().take_while(|line| !line.starts_with(&end));
        let names = before.filter_map(|line| line.strip_suffix(" guardian"));
        let mut is_naked = false;
        for name in names.filter(|name| *name != Point::ThreadTouched.name()) {
            is_naked = match Point::ALL.iter().find(|point| point.name() == name) {
                Some(Point::MapStopped | Point::RestoreUnmapped | Point::RestoreOthersReleased) => {
                    true
                }
                Some(Point::BareSet) => true,
                Some(Point::StepWritten | Point::LaunchWritten | Point::BackMasked)
                | Some(Point::BareEntry | Point::BareExit)
                | Some(Point::MapBare | Point::RestoreUnmappedBare) => is_naked,
                _ => false,
            };
        }
        is_naked
    }

    /// A call of the target's may end with EINTR: whoever died did so where that cannot be avoided.
    ///
    /// - From the request to stop to the repair of the call that the stop ends. The kernel has
    ///   `epoll_wait` and its like return EINTR to whoever is woken for a tracer, and only a tracer
    ///   can have it say otherwise.
    /// - While a thread is on a chain whose sleep the kernel had restarted before: what is left of
    ///   it is in the kernel alone, which forgets it with the chain's end.
    fn may_see_eintr(&self, scenario: &Scenario, fault: &Fault) -> bool {
        if matches!(fault, Fault::After(..)) {
            return scenario.sees_restart() || scenario.sees_stop();
        }
        let log = self.text("log");
        let deed = fault.point().map_or(String::new(), |(point, _)| format!("{}=", point.name()));
        let (mut call, mut is_on_chain, mut is_going_back) = ("", false, false);
        for line in log.lines().take_while(|line| !line.starts_with(&deed)) {
            match line.split_once(' ') {
                Some(("call", name)) => {
                    call = name;
                    let is_back = is_going_back && call == "PTRACE_SETREGSET";
                    is_on_chain &= !is_back;
                }
                Some((point, "guardian")) => {
                    is_on_chain |= point == Point::StepWritten.name();
                    is_going_back = point == Point::BackMasked.name()
                        || (is_going_back && point == Point::ThreadTouched.name());
                }
                _ => {}
            }
        }
        (scenario.sees_restart() && is_on_chain)
            || (scenario.sees_stop() && call == "PTRACE_INTERRUPT")
    }

    fn end(&mut self) -> Result<ExitStatus, String> {
        let ended = wait_until(PATIENCE, || self.child.try_wait().unwrap().is_some());
        if !ended {
            let _ = self.child.kill();
        }
        let status = self.child.wait().unwrap();
        check(ended, || format!("the recorder does not end: {}", self.text("stderr")))?;
        check(!self.text("stderr").contains("panicked"), || self.text("stderr"))?;
        Ok(status)
    }

    /// System V segments that the recorder has made and that are still there.
    fn segments(&self) -> usize {
        let table = std::fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
        let own = self.child.id().to_string();
        table.lines().filter(|line| line.split_whitespace().nth(4) == Some(&own)).count()
    }

    fn samples(&self) -> usize {
        match trace::load(&self.path("out.trace")) {
            Ok(trace) => {
                let mut count = 0;
                trace.threads.iter().for_each(|it| it.for_each_sample(&mut |_, _| count += 1));
                count
            }
            Err(_) => 0,
        }
    }
}

/// The points that a scenario passes with nobody dying beyond what it begins with, and how often
/// its guardian touches a thread.
pub(super) fn dry_run(scenario: &Scenario) -> (BTreeSet<Point>, usize) {
    let mut target = (scenario.work != Work::Command).then(|| start(scenario).0);
    let mut run = Run::of(scenario, target.as_ref().map(Target::pid), "");
    run.end().expect(scenario.name);
    // A guardian goes on without its recorder.
    std::thread::sleep(Duration::from_millis(if scenario.first.is_empty() { 0 } else { 500 }));
    if let Some(target) = &mut target {
        assert!(!target.has_ended(), "{} killed its target", scenario.name);
    }
    let log = run.text("log");
    let names: Vec<&str> = log.lines().filter_map(|line| line.split(' ').next()).collect();
    let touch = format!("{} guardian", Point::ThreadTouched.name());
    let touches = log.lines().filter(|line| *line == touch).count();
    let passed = Point::ALL.iter().copied().filter(|point| names.contains(&point.name()));
    (passed.collect(), touches)
}

/// The target, and how it looked before anything was done to it.
fn start(scenario: &Scenario) -> (Target, Snapshot) {
    let (program, argument) = scenario.program;
    let target = Target::start(program, &[argument]);
    let before = Snapshot::take(target.pid());
    if scenario.work == Work::Detach {
        let mut run = Run::start(&["record", "-q"], Some(target.pid()), "RecordLooped=both");
        run.end().expect("a recorder that is killed");
    }
    (target, before)
}

/// Runs a scenario in which somebody dies; `None` if the point was not passed.
pub(super) fn strike(scenario: &Scenario, fault: &Fault) -> Result<Option<Outcome>, String> {
    if scenario.work == Work::Command {
        return strike_command(scenario, fault);
    }
    let (mut target, before) = start(scenario);
    let Some((run, status)) = run(scenario, Some(&target), fault)? else { return Ok(None) };
    let outcome = match fault.deed() {
        deed if deed.is_of_target() => {
            check_end(&mut target, &run, status, deed)?;
            Outcome::default()
        }
        deed => {
            let is_naked = deed != Deed::Recorder
                && match fault {
                    Fault::At(point, _) => scenario.is_naked(*point),
                    Fault::AtTouch(..) => scenario.may_be_naked() && run.died_naked(),
                    Fault::After(..) => false,
                };
            let may_see_eintr = deed != Deed::Recorder && run.may_see_eintr(scenario, fault);
            check_harmless(scenario, &mut target, &before, (fault, is_naked, may_see_eintr))?
        }
    };
    let gone = wait_until(PATIENCE, || run.segments() == 0);
    check(gone, || format!("{} segments are left", run.segments()))?;
    Ok(Some(outcome))
}

/// Runs it until the recorder has ended and the deed is done.
fn run(
    scenario: &Scenario,
    target: Option<&Target>,
    fault: &Fault,
) -> Result<Option<(Run, ExitStatus)>, String> {
    let faults = fault.point().map_or(String::new(), |(_, faults)| faults);
    let mut run = Run::of(scenario, target.map(Target::pid), &faults);
    if let Fault::After(delay, deed) = fault {
        std::thread::sleep(*delay);
        let recorder = run.child.id() as i32;
        let guardian = child_named(recorder, GUARDIAN);
        let doomed = match deed {
            Deed::Recorder => vec![Some(recorder)],
            Deed::Guardian => vec![guardian],
            Deed::Both => vec![Some(recorder), guardian],
            Deed::Kill | Deed::Exec | Deed::Exit => vec![target.map(Target::pid)],
        };
        for pid in doomed.into_iter().flatten() {
            // One that has ended by itself is as good as killed.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
    let status = run.end()?;
    let Some((point, _)) = fault.point() else { return Ok(Some((run, status))) };
    // A guardian goes on without its recorder.
    let patience = if scenario.first.is_empty() { 0 } else { 5000 };
    let done = wait_until(Duration::from_millis(patience), || run.did(point, fault.deed()));
    Ok(done.then_some((run, status)))
}

fn holds_agent(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default().contains("/SYSV")
}

/// The program that it executed has its handler of SIGTERM.
fn is_next_program(pid: i32) -> bool {
    const SIGTERM: u64 = 1 << 14;
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}"));
    let status = read("status").unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    read("cmdline").unwrap_or_default().contains("again") && caught & SIGTERM != 0
}

/// `detach --pid`; gives how it ended and what it said.
fn remove_rest(pid: i32) -> (Option<i32>, String) {
    let output = traceprof(&["detach", "--pid", &pid.to_string()]).output().expect("traceprof");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The target goes on as if nothing had been, and nothing is left in it in the end.
fn check_harmless(
    scenario: &Scenario,
    target: &mut Target,
    before: &Snapshot,
    (fault, is_naked, may_see_eintr): (&Fault, bool, bool),
) -> Result<Outcome, String> {
    let deed = fault.deed();
    let mut outcome = Outcome { is_naked, ..Outcome::default() };
    if is_naked {
        // What it would die of, it dies of at once.
        std::thread::sleep(Duration::from_millis(20));
        if target.has_ended() {
            outcome.target_died = true;
            return Ok(outcome);
        }
    }
    let guardian_lives = deed == Deed::Recorder && !scenario.first.contains("both");
    // Nobody is left to remove it: the next recorder or `detach` does.
    let leaves_segment = matches!(fault, Fault::At(Point::SegmentMade, Deed::Both));
    let mut last = (None, String::new());
    let differences = |target: &Target| before.differences(&Snapshot::take(target.pid()));
    if scenario.is_stopped() {
        target.send(Signal::SIGCONT);
    }
    let is_clean = wait_until(Duration::from_secs(20), || {
        if target.has_ended() {
            return true;
        }
        if !guardian_lives && (leaves_segment || holds_agent(target.pid())) {
            outcome.had_rest = true;
            last = remove_rest(target.pid());
        }
        differences(target).is_empty()
    });
    check(!target.has_ended(), || format!("the target is dead: {}", target.wait()))?;
    check(is_clean, || format!("left: {:#?}; detach: {last:?}", differences(target)))?;
    if outcome.had_rest {
        check(last.0 == Some(0), || format!("detach: {last:?}"))?;
    }
    let code = end(target)?.code();
    outcome.saw_eintr = code == Some(EINTR_SEEN) && may_see_eintr;
    check(code == Some(scenario.code) || outcome.saw_eintr, || {
        format!("the target ended with {code:?}")
    })?;
    Ok(outcome)
}

/// Asks the target to end: more than once, as a thread that is just about to issue its call again
/// takes the signal before that, and then waits in it.
fn end(target: &mut Target) -> Result<ExitStatus, String> {
    let mut asked = None;
    let ended = wait_until(PATIENCE, || {
        if asked.is_none_or(|since: Instant| since.elapsed() > Duration::from_secs(1)) {
            // One that has ended takes none.
            let _ = kill(Pid::from_raw(target.pid()), Signal::SIGTERM);
            asked = Some(Instant::now());
        }
        target.has_ended()
    });
    check(ended, || "the target does not react to SIGTERM".to_owned())?;
    Ok(target.wait())
}

/// The target ended, or executed another program: its recorder ends well, with what there is.
fn check_end(target: &mut Target, run: &Run, status: ExitStatus, deed: Deed) -> Result<(), String> {
    let code = status.code();
    let said = || format!("code {code:?}, {} samples: {}", run.samples(), run.text("stderr"));
    let is_killed = code.is_none();
    let expected: &[i32] = if run.samples() > 0 { &[0] } else { &[0, 4, 7] };
    check(is_killed || expected.contains(&code.unwrap_or(-1)), said)?;
    if deed == Deed::Exec {
        let is_up = wait_until(Duration::from_secs(20), || is_next_program(target.pid()));
        check(is_up, || "it has not executed".to_owned())?;
        let clean = wait_until(Duration::from_secs(20), || !holds_agent(target.pid()));
        check(clean, || "the agent is in the next program".to_owned())?;
        let code = end(target)?.code();
        return check(code == Some(17), || format!("the next program ended with {code:?}"));
    }
    let ended = wait_until(PATIENCE, || target.has_ended());
    check(ended, || "the target does not end".to_owned())?;
    let code = target.wait().code();
    let expected = if deed == Deed::Exit { Some(3) } else { None };
    check(code == expected, || format!("the target ended with {code:?}"))
}

/// A program that is started for the recording runs to its end, whoever dies; but where the
/// recording could not be had and the recorder lives, it is never let go.
fn strike_command(scenario: &Scenario, fault: &Fault) -> Result<Option<Outcome>, String> {
    let Some((run, status)) = run(scenario, None, fault)? else { return Ok(None) };
    let said = || format!("{status}: {}", run.text("stderr"));
    let ran = || wait_until(PATIENCE, || run.text("stdout") == "fine\n");
    match (fault.deed(), status.code()) {
        (Deed::Kill, code) => check(matches!(code, Some(0 | 4 | 7)), said)?,
        (_, None | Some(0 | 4)) => check(ran(), || format!("it did not run; {}", said()))?,
        (Deed::Guardian, Some(1 | 7)) => {}
        _ => return Err(said()),
    }
    check(wait_until(PATIENCE, || run.segments() == 0), || "segments are left".to_owned())?;
    Ok(Some(Outcome::default()))
}
