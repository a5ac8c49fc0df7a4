//! One run in which a process dies, and what must hold afterwards.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use traceprof::fault::FaultPoint;
use traceprof::trace;

use super::prey::{Scenario, Work};
use crate::common::{Snapshot, Target, child_named, scratch_dir, traceprof, wait_until};

/// Timeout of steps that normally take a second.
const PATIENCE: Duration = Duration::from_secs(45);
/// Process name of the guardian.
pub(super) const GUARDIAN: &str = "traceprof-guard";
/// Exit code of a prey that saw an EINTR.
const EINTR_SEEN: i32 = 18;

/// Which process dies, or what else happens to the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deed {
    Recorder,
    Guardian,
    Both,
    /// SIGSTOP to the guardian.
    Freeze,
    /// SIGKILL to the target.
    Kill,
    /// The target executes another program.
    Exec,
    /// The target exits by itself.
    Exit,
}

impl Deed {
    pub(super) const ALL: [Deed; 7] = [
        Deed::Recorder,
        Deed::Guardian,
        Deed::Both,
        Deed::Freeze,
        Deed::Kill,
        Deed::Exec,
        Deed::Exit,
    ];

    fn name(self) -> &'static str {
        match self {
            Deed::Recorder => "recorder",
            Deed::Guardian => "guardian",
            Deed::Both => "both",
            Deed::Freeze => "freeze",
            Deed::Kill => "target",
            Deed::Exec => "exec",
            Deed::Exit => "exit",
        }
    }

    pub(super) fn is_of_target(self) -> bool {
        matches!(self, Deed::Kill | Deed::Exec | Deed::Exit)
    }
}

/// The moment at which a process dies.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fault {
    At(FaultPoint, Deed),
    /// At this pass of [`FaultPoint::ThreadTouched`], counted from 1.
    AtTouch(usize, Deed),
    After(Duration, Deed),
}

impl Fault {
    fn deed(self) -> Deed {
        match self {
            Fault::At(_, deed) | Fault::AtTouch(_, deed) | Fault::After(_, deed) => deed,
        }
    }

    /// Returns the point, and the text that requests the fault from the command under test.
    fn point(self) -> Option<(FaultPoint, String)> {
        let (point, turn) = match self {
            Fault::At(point, _) => (point, 1),
            Fault::AtTouch(turn, _) => (FaultPoint::ThreadTouched, turn),
            Fault::After(..) => return None,
        };
        Some((point, format!("{}.{turn}={}", point.name(), self.deed().name())))
    }
}

/// The result of a strike.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Something was left in the target, and the test removed it.
    pub(super) had_residue: bool,
    /// The guardian died while the target depended on it.
    pub(super) is_bare: bool,
    pub(super) target_died: bool,
    /// A call of the target ended with EINTR, as the documentation says it may.
    pub(super) saw_eintr: bool,
}

fn check(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

/// A run in progress.
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
            // The program has a code of its own.
            words.extend(["--exit-code", "recording", "--"]);
            words.extend([program.to_str().unwrap(), scenario.program.1]);
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

    fn did(&self, point: FaultPoint, deed: Deed) -> bool {
        let line = format!("{}={}", point.name(), deed.name());
        self.text("log").lines().any(|it| it == line)
    }

    /// Whether the guardian's thread, when it died, was about to make a call with nothing to return
    /// to, or had made it and had not returned. The passed points show it. The first touch after
    /// such a point may lead into the call.
    fn died_in_bare_call(&self) -> bool {
        let log = self.text("log");
        let end = format!("{}=", FaultPoint::ThreadTouched.name());
        let before = log.lines().take_while(|line| !line.starts_with(&end));
        let names = before.filter_map(|line| line.strip_suffix(" guardian"));
        let mut is_bare = false;
        for name in names.filter(|name| *name != FaultPoint::ThreadTouched.name()) {
            is_bare = match FaultPoint::ALL.iter().find(|point| point.name() == name) {
                Some(
                    FaultPoint::MapStopped
                    | FaultPoint::RestoreUnmapped
                    | FaultPoint::RestoreOthersReleased,
                ) => true,
                Some(FaultPoint::BareSet) => true,
                Some(
                    FaultPoint::StepWritten | FaultPoint::LaunchWritten | FaultPoint::BackMasked,
                )
                | Some(FaultPoint::BareEntry | FaultPoint::BareExit)
                | Some(FaultPoint::MapBare | FaultPoint::RestoreUnmappedBare) => is_bare,
                _ => false,
            };
        }
        is_bare
    }

    /// Whether a call of the target may end with EINTR because a process died where that cannot be
    /// avoided:
    ///
    /// - From the request to stop until the repair of the call that the stop ends. The kernel makes
    ///   `epoll_wait` and similar calls return EINTR to a thread that is woken for a tracer, and
    ///   only a tracer can change the result.
    /// - While a thread is on a chain whose sleep the kernel had restarted before. Only the kernel
    ///   knows the remainder of that sleep, and it forgets it when the chain ends.
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
                    is_on_chain |= point == FaultPoint::StepWritten.name();
                    is_going_back = point == FaultPoint::BackMasked.name()
                        || (is_going_back && point == FaultPoint::ThreadTouched.name());
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

    /// Returns the number of System V segments that the recorder made and that still exist.
    fn segments(&self) -> usize {
        let table = std::fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
        let own = self.child.id().to_string();
        table.lines().filter(|line| line.split_whitespace().nth(4) == Some(&own)).count()
    }

    /// Continues a stopped guardian whose recorder was killed. It has the recorder's command line.
    fn continue_guardian(&self) {
        let output = self.path("out.trace").to_string_lossy().into_owned();
        let pids = std::fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
        for pid in pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if String::from_utf8_lossy(&line).contains(&output) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGCONT);
            }
        }
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

/// Returns the points that a scenario passes without a further death.
pub(super) fn dry_run(scenario: &Scenario) -> BTreeSet<FaultPoint> {
    let mut target = (scenario.work != Work::Command).then(|| start(scenario).0);
    let mut run = Run::of(scenario, target.as_ref().map(Target::pid), "");
    run.end().expect(scenario.name);
    // A guardian goes on without its recorder.
    std::thread::sleep(Duration::from_millis(if scenario.first.is_empty() { 0 } else { 500 }));
    if let Some(target) = &mut target {
        assert!(!target.has_exited(), "{} killed its target", scenario.name);
    }
    let log = run.text("log");
    let names: Vec<&str> = log.lines().filter_map(|line| line.split(' ').next()).collect();
    FaultPoint::ALL.iter().copied().filter(|point| names.contains(&point.name())).collect()
}

/// Starts the target and takes a snapshot before anything changes it.
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

/// Runs a scenario in which a process dies; `None` if the run did not pass the point.
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
            let kills_guardian = matches!(deed, Deed::Guardian | Deed::Both);
            let is_bare = kills_guardian
                && match fault {
                    Fault::At(point, _) => scenario.is_bare(*point),
                    Fault::AtTouch(..) => scenario.makes_bare_calls() && run.died_in_bare_call(),
                    Fault::After(..) => false,
                };
            let may_see_eintr = kills_guardian && run.may_see_eintr(scenario, fault);
            // The recorder waits for a guardian that continues.
            let is_well = matches!(status.code(), Some(0 | 4));
            check(deed != Deed::Freeze || !scenario.first.is_empty() || is_well, || {
                format!("{status}: {}", run.text("stderr"))
            })?;
            check_harmless(scenario, &mut target, &before, (fault, is_bare, may_see_eintr))?
        }
    };
    if fault.deed() == Deed::Freeze {
        run.continue_guardian();
    }
    let gone = wait_until(PATIENCE, || run.segments() == 0);
    check(gone, || format!("{} segments are left", run.segments()))?;
    Ok(Some(outcome))
}

/// Runs the scenario until the recorder has exited and the fault was injected.
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
            Deed::Guardian | Deed::Freeze => vec![guardian],
            Deed::Both => vec![Some(recorder), guardian],
            Deed::Kill | Deed::Exec | Deed::Exit => vec![target.map(Target::pid)],
        };
        let signal = if *deed == Deed::Freeze { Signal::SIGSTOP } else { Signal::SIGKILL };
        for pid in doomed.into_iter().flatten() {
            // A process that has exited needs no kill.
            let _ = kill(Pid::from_raw(pid), signal);
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

/// Whether the executed program has its SIGTERM handler.
fn is_next_program(pid: i32) -> bool {
    const SIGTERM: u64 = 1 << 14;
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}"));
    let status = read("status").unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    read("cmdline").unwrap_or_default().contains("again") && caught & SIGTERM != 0
}

/// Runs `detach --pid` and returns its exit code and its output.
fn remove_residue(pid: i32) -> (Option<i32>, String) {
    let output = traceprof(&["detach", "--pid", &pid.to_string()]).output().expect("traceprof");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Checks that the target goes on as if nothing had happened, and that nothing remains in it.
fn check_harmless(
    scenario: &Scenario,
    target: &mut Target,
    before: &Snapshot,
    (fault, is_bare, may_see_eintr): (&Fault, bool, bool),
) -> Result<Outcome, String> {
    let deed = fault.deed();
    let mut outcome = Outcome { is_bare, ..Outcome::default() };
    if is_bare {
        // If the target dies of it, it dies at once.
        std::thread::sleep(Duration::from_millis(20));
        if target.has_exited() {
            outcome.target_died = true;
            return Ok(outcome);
        }
    }
    let guardian_lives = match deed {
        Deed::Recorder => !scenario.first.contains("both"),
        // A guardian whose recorder was killed stays stopped, until `detach` continues it.
        Deed::Freeze => scenario.first.is_empty(),
        _ => false,
    };
    // No process is left to remove it. The next recorder or `detach` does.
    let leaves_segment = matches!(fault, Fault::At(FaultPoint::SegmentMade, Deed::Both));
    let mut last = (None, String::new());
    let differences = |target: &Target| before.differences(&Snapshot::take(target.pid()));
    if scenario.is_stopped() {
        target.send(Signal::SIGCONT);
    }
    let is_clean = wait_until(Duration::from_secs(20), || {
        if target.has_exited() {
            return true;
        }
        if !guardian_lives && (leaves_segment || holds_agent(target.pid())) {
            outcome.had_residue = true;
            last = remove_residue(target.pid());
        }
        differences(target).is_empty()
    });
    check(!target.has_exited(), || format!("the target is dead: {}", target.wait()))?;
    check(is_clean, || format!("left: {:#?}; detach: {last:?}", differences(target)))?;
    if outcome.had_residue {
        check(last.0 == Some(0), || format!("detach: {last:?}"))?;
    }
    let code = end(target)?.code();
    outcome.saw_eintr = code == Some(EINTR_SEEN) && may_see_eintr;
    check(code == Some(scenario.code) || outcome.saw_eintr, || {
        format!("the target ended with {code:?}")
    })?;
    Ok(outcome)
}

/// Asks the target to exit, more than once. A thread that is about to issue its call again takes
/// the signal before that and then blocks in the call.
fn end(target: &mut Target) -> Result<ExitStatus, String> {
    let mut asked = None;
    let ended = wait_until(PATIENCE, || {
        if asked.is_none_or(|since: Instant| since.elapsed() > Duration::from_secs(1)) {
            // A process that has exited needs no signal.
            let _ = kill(Pid::from_raw(target.pid()), Signal::SIGTERM);
            asked = Some(Instant::now());
        }
        target.has_exited()
    });
    check(ended, || "the target does not react to SIGTERM".to_owned())?;
    Ok(target.wait())
}

/// Checks that the recorder ends well with the data that it has, after the target exited or
/// executed another program.
fn check_end(target: &mut Target, run: &Run, status: ExitStatus, deed: Deed) -> Result<(), String> {
    let code = status.code();
    let outcome_text =
        || format!("code {code:?}, {} samples: {}", run.samples(), run.text("stderr"));
    let is_killed = code.is_none();
    let expected: &[i32] = if run.samples() > 0 { &[0] } else { &[0, 4, 7] };
    check(is_killed || expected.contains(&code.unwrap_or(-1)), outcome_text)?;
    if deed == Deed::Exec {
        let is_up = wait_until(Duration::from_secs(20), || is_next_program(target.pid()));
        check(is_up, || "it has not executed".to_owned())?;
        let clean = wait_until(Duration::from_secs(20), || !holds_agent(target.pid()));
        check(clean, || "the agent is in the next program".to_owned())?;
        let code = end(target)?.code();
        return check(code == Some(17), || format!("the next program ended with {code:?}"));
    }
    let ended = wait_until(PATIENCE, || target.has_exited());
    check(ended, || "the target does not end".to_owned())?;
    let code = target.wait().code();
    let expected = if deed == Deed::Exit { Some(3) } else { None };
    check(code == expected, || format!("the target ended with {code:?}"))
}

/// A program that is started for the recording runs to its end, whichever process dies. The
/// exception is a recording that fails while the recorder lives: the program is then never
/// released.
fn strike_command(scenario: &Scenario, fault: &Fault) -> Result<Option<Outcome>, String> {
    let Some((run, status)) = run(scenario, None, fault)? else { return Ok(None) };
    let outcome_text = || format!("{status}: {}", run.text("stderr"));
    let ran = || wait_until(PATIENCE, || run.text("stdout") == "fine\n");
    match (fault.deed(), status.code()) {
        (Deed::Kill, code) => check(matches!(code, Some(0 | 4 | 7)), outcome_text)?,
        (_, None | Some(0 | 4)) => check(ran(), || format!("it did not run; {}", outcome_text()))?,
        (Deed::Guardian, Some(1 | 7)) => {}
        _ => return Err(outcome_text()),
    }
    check(wait_until(PATIENCE, || run.segments() == 0), || "segments are left".to_owned())?;
    Ok(Some(Outcome::default()))
}
