//! One recording in which a system call fails, and what must hold afterwards.

use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use traceprof::trace;

use super::kinds::Kind;
use super::supervisor::{Call, Next, Supervisor};
use crate::common::{
    OWN_EXIT_CODE, Snapshot, Target, cpu_clock, scratch_dir, traceprof, wait_until,
};

/// Timeout of steps that normally take a second.
const PATIENCE: Duration = Duration::from_secs(60);
const HZ: f64 = 997.0;
/// The fewest ticks of a kernel in a second.
const TICKS_HZ: f64 = 100.0;
/// Exit code of a prey that saw an EINTR.
const EINTR_SEEN: i32 = 18;
/// The exit codes of `record`: they are documented.
const OK: i32 = 0;
const FAILED: i32 = 1;
const NOT_PERMITTED: i32 = 3;
const NO_SAMPLES: i32 = 4;
const OUTPUT: i32 = 6;

/// What is recorded.
#[derive(Debug)]
pub(super) struct Scenario {
    pub(super) name: &'static str,
    pub(super) engine: &'static str,
    pub(super) program: &'static str,
    pub(super) mode: &'static str,
}

/// The call that fails: the n-th of its kind, counted from 1.
#[derive(Debug, Clone, Copy)]
pub(super) struct Failure {
    pub(super) kind: &'static Kind,
    pub(super) n: usize,
}

/// The recorder, its target, and the files of the recording.
struct Run {
    child: Child,
    directory: TempDir,
}

/// What happened when the call failed.
#[derive(Default)]
struct Failed {
    /// The call; `None` if the run makes fewer of its kind.
    call: Option<String>,
    /// The target's CPU time since sampling began.
    sampled: Duration,
}

fn check(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

impl Run {
    fn start(scenario: &Scenario, pid: i32, calls: &[libc::c_long]) -> (Run, Supervisor) {
        let directory = scratch_dir();
        let file = |name: &str| std::fs::File::create(directory.path().join(name)).unwrap();
        let mut command = traceprof(&["record", "--duration", "130ms"]);
        command.args(["--freq", &HZ.to_string(), "--engine", scenario.engine]);
        command.args(["--mode", scenario.mode, "--pid", &pid.to_string(), "--output"]);
        command.arg(directory.path().join("out.trace"));
        command.stdout(file("stdout")).stderr(file("stderr")).stdin(Stdio::null());
        let calls = [calls, &[libc::SYS_sigaltstack]].concat();
        let (child, supervisor) = Supervisor::start(command, &calls);
        (Run { child, directory }, supervisor)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn stderr(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.path("stderr")).unwrap_or_default()).into()
    }

    /// Answers all calls until the recorder and all its children have exited. The calls with which
    /// the loader and the language's runtime start are not passed on; the last of them sets an
    /// alternate stack.
    fn supervise(
        &mut self,
        supervisor: &Supervisor,
        pid: i32,
        mut fails: impl FnMut(&Call) -> Option<(String, i32)>,
    ) -> Result<(ExitStatus, Failed), String> {
        let (started, mut failed, mut is_in_main) = (Instant::now(), Failed::default(), false);
        // The target's CPU time when the recorder said that it samples, and that it detaches.
        let [mut began, mut ended] = [None; 2];
        loop {
            for (time, word) in [(&mut began, "sampling "), (&mut ended, "detaching")] {
                if time.is_none() && self.stderr().contains(word) {
                    *time = Some(cpu_clock(pid));
                }
            }
            match supervisor.next(Duration::from_millis(20)) {
                Next::Call(call) if !is_in_main || call.number == libc::SYS_sigaltstack => {
                    is_in_main |= call.sets_alternate_stack();
                    supervisor.answer(&call, None);
                }
                Next::Call(call) => {
                    let failure = fails(&call);
                    if let Some((text, _)) = &failure {
                        let now = ended.unwrap_or_else(|| cpu_clock(pid));
                        failed.sampled = began.map_or(Duration::ZERO, |since| now - since);
                        failed.call = Some(text.clone());
                    }
                    supervisor.answer(&call, failure.map(|(_, errno)| errno));
                }
                Next::Nothing if started.elapsed() > PATIENCE => {
                    let _ = self.child.kill();
                    let _ = self.child.wait();
                    let call = failed.call;
                    return Err(format!("{call:?}: it does not end: {}", self.stderr()));
                }
                Next::Nothing => {}
                Next::Ended => break,
            }
        }
        let status = self.child.wait().expect("the recorder's exit");
        Ok((status, failed))
    }

    /// Returns the number of System V segments that the recorder made and that still exist.
    fn segments(&self) -> usize {
        let table = std::fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
        let own = self.child.id().to_string();
        table.lines().filter(|line| line.split_whitespace().nth(4) == Some(&own)).count()
    }

    fn samples(&self) -> Result<usize, String> {
        let trace = trace::load(&self.path("out.trace")).map_err(|error| error.to_string())?;
        let mut count = 0;
        trace.threads.iter().for_each(|it| it.for_each_sample(&mut |_, _| count += 1));
        Ok(count)
    }
}

/// Returns how many calls of each kind a run makes.
pub(super) fn counts(scenario: &Scenario, kinds: &'static [Kind]) -> Vec<usize> {
    // On a busy machine the target may not get a processor in time.
    const TRIES: usize = 5;
    let counted = (0..TRIES).find_map(|_| try_counts(scenario, kinds).ok());
    counted.unwrap_or_else(|| try_counts(scenario, kinds).expect("a recording"))
}

fn try_counts(scenario: &Scenario, kinds: &'static [Kind]) -> Result<Vec<usize>, String> {
    let all: Vec<_> = kinds.iter().flat_map(|kind| kind.calls).copied().collect();
    let target = Target::start("prey", &[scenario.program]);
    let (mut run, supervisor) = Run::start(scenario, target.pid(), &all);
    let mut counts = vec![0; kinds.len()];
    let result = run.supervise(&supervisor, target.pid(), |call| {
        let kind = kinds.iter().position(|kind| kind.calls.contains(&call.number));
        counts[kind.expect("only these calls are supervised")] += 1;
        None
    });
    let code = result?.0.code();
    check(matches!(code, Some(OK | NO_SAMPLES)), || format!("{code:?} {}", run.stderr()))?;
    Ok(counts)
}

/// Runs a recording in which a call fails. Returns what the recorder said; `None` if there was no
/// such call.
pub(super) fn fail(scenario: &Scenario, failure: Failure) -> Result<Option<String>, String> {
    let mut target = Target::start("prey", &[scenario.program]);
    let before = Snapshot::take(target.pid());
    let (mut run, supervisor) = Run::start(scenario, target.pid(), failure.kind.calls);
    let mut count = 0;
    let (status, failed) = run.supervise(&supervisor, target.pid(), |_call| {
        count += 1;
        (count == failure.n).then(|| (_call.text(failure.kind.name), failure.kind.errno))
    })?;
    let Some(call) = &failed.call else { return Ok(None) };
    let text = run.stderr();
    let outcome = format!("{call}: {status}, {text}");
    let told = |what: &str| format!("{what}; {outcome}");
    // Without that request, the tracer cannot repair a call that its stop broke.
    let may_see_eintr = failure.kind.name == "ptrace";
    check_target(&mut target, &before, may_see_eintr).map_err(|what| told(&what))?;
    let no_segment = wait_until(Duration::from_secs(5), || run.segments() == 0);
    check(no_segment, || told("a segment is left"))?;
    if is_abort_without_memory(failure.kind, status.code(), &text) {
        // As if it had been killed, which other tests do.
        return Ok(Some(outcome));
    }
    check(!text.contains("panicked"), || told("a panic"))?;
    check_report((scenario, &run), status.code(), &failed).map_err(|what| told(&what))?;
    Ok(Some(outcome))
}

/// Whether the language's runtime ended the recorder because it got no memory, or one of its
/// threads before that began.
fn is_abort_without_memory(kind: &Kind, code: Option<i32>, text: &str) -> bool {
    let is_aborted = code.is_none() && text.contains("memory allocation of");
    kind.errno == libc::ENOMEM && (is_aborted || text.contains("alternative stack"))
}

/// Checks that the target goes on as if nothing had happened, and that nothing remains in it.
fn check_target(target: &mut Target, before: &Snapshot, may_see_eintr: bool) -> Result<(), String> {
    let differences = |target: &Target| before.differences(&Snapshot::take(target.pid()));
    let is_clean = wait_until(Duration::from_secs(5), || {
        target.has_exited() || differences(target).is_empty()
    });
    check(!target.has_exited(), || format!("the target is dead: {}", target.wait()))?;
    check(is_clean, || format!("left: {:#?}", differences(target)))?;
    kill(Pid::from_raw(target.pid()), Signal::SIGTERM).expect("a signal to the target");
    check(wait_until(PATIENCE, || target.has_exited()), || "the target does not end".to_owned())?;
    let code = target.wait().code();
    let is_right = code == Some(OWN_EXIT_CODE) || (may_see_eintr && code == Some(EINTR_SEEN));
    check(is_right, || format!("the target ended with {code:?}"))
}

/// Checks that the last line, which says why there is no recording, names the failed step and what
/// to do.
fn check_advice(text: &str) -> Result<(), String> {
    const REMEDIES: [&str; 9] = [
        "try again",
        "raise ",
        "free ",
        "check ",
        "choose ",
        "mount ",
        "use ",
        "doctor",
        "detach ",
    ];
    let last = text.lines().last().unwrap_or_default();
    let says = last.strip_prefix("traceprof: ").unwrap_or_default();
    // A message that begins with the kernel's own words names no step.
    let names_step =
        !says.is_empty() && !says.split(':').next().unwrap_or("").contains("(os error");
    let has_remedy = REMEDIES.iter().any(|remedy| says.contains(remedy));
    check(names_step && has_remedy, || "no step or no remedy in the message".to_owned())
}

/// Checks that what was sampled is in the trace, and that a failure has its exit code and reason.
fn check_report(
    (scenario, run): (&Scenario, &Run),
    code: Option<i32>,
    failed: &Failed,
) -> Result<(), String> {
    // A timer signals at most once in each tick of the kernel.
    let hz = if scenario.engine == "timer" { TICKS_HZ } else { HZ };
    let samples = run.samples();
    // Half of what would have been sampled, on a busy machine.
    let sampled = (failed.sampled.as_secs_f64() - 0.05) * hz / 2.0;
    match code {
        Some(OK) => check(samples.clone()? > 0, || format!("{samples:?} samples"))?,
        Some(NO_SAMPLES) => {}
        Some(OUTPUT | FAILED | NOT_PERMITTED) => check_advice(&run.stderr())?,
        _ => return Err("an exit code that is not documented for this".to_owned()),
    }
    if sampled > 0.0 && code != Some(OUTPUT) {
        let count = samples?;
        check(count as f64 >= sampled, || format!("{count} samples of {sampled}"))?;
    }
    Ok(())
}
