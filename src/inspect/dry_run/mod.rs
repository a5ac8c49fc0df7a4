//! The steps that a recording would take, without taking them.
//!
//! # Invariants
//! - The checks and the choices that follow from them are the recording's own. The addresses and
//!   the thread to stop are chosen as they would be now; a recording chooses them again.

mod files;

use std::borrow::Cow;
use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context, anyhow};
use traceprof_abi::layout::{self, PRIMING, SAMPLING};

use crate::inject::{self, Guardian};
use crate::proc;
use crate::record::contract::error::{NO_HOLE, RecordError, guardian_error, target_error};
use crate::record::contract::options::{Children, NamedProcesses, Options, Target};
use crate::record::contract::sampling::Engine;
use crate::record::run::plan::{Candidate, Plan};
use crate::record::run::processes;
use crate::record::source::kernel::Obstacle;
use crate::record::target::command;
use crate::record::target::namespace::check_proc;
use crate::record::target::privileges;
use crate::record::write::output;

/// A step: its label, and what happens.
type PlannedStep = (String, String);

/// Makes the checks of a recording and returns the steps that would follow.
///
/// The caller has no other threads yet.
///
/// # Errors
/// Fails as the recording would.
pub fn dry_run(options: &Options) -> Result<Vec<PlannedStep>, RecordError> {
    output::check_early(options)?;
    check_proc()?;
    let (mut settled, mut first) = (Cow::Borrowed(options), None);
    let mut steps = match &options.target {
        Target::Pid(pid) => of_process(*pid, options)?,
        Target::Pids(pids) => of_processes(pids, options)?,
        Target::Name(named) => {
            let named = NamedProcesses { wait: None, ..named.clone() };
            let found = processes::named::find(&named)?;
            first = found.first().copied();
            if let Some(first) = first {
                settled = output::named(options, first)?;
            }
            of_processes(&found, options)?
        }
        Target::Command(command) => of_command(command, options)?,
    };
    let until = match options.children {
        Children::None => None,
        Children::OfCommand => Some("the program exits"),
        Children::All => Some("the last one exits"),
    };
    steps.extend(until.map(|until| {
        let text = "sampled by the kernel from their start, and by an agent after 300 ms";
        step("descendants", format!("{text}, until {until}"))
    }));
    steps.extend(options.measure.wall_interval().map(waiting));
    steps.extend(files::steps(&settled, first));
    steps.extend([
        step("exec", exec(options)),
        step("end", end(options)),
        step(
            "detach",
            "every thread is stopped once, everything is restored, the segments are detached",
        ),
        step("dry run", "none of this was done"),
    ]);
    Ok(steps)
}

fn step(label: &str, text: impl Into<String>) -> PlannedStep {
    (label.to_owned(), text.into())
}

/// Returns the steps for the processes that can be recorded, and why others cannot; fails if none
/// can.
fn of_processes(pids: &[i32], options: &Options) -> Result<Vec<PlannedStep>, RecordError> {
    let mut steps = Vec::new();
    let mut refused = Vec::new();
    for &pid in pids {
        match of_process(pid, options) {
            Ok(of_one) => steps.extend(of_one),
            Err(error) => refused.push((pid, error)),
        }
    }
    if steps.is_empty() {
        let none = || RecordError::TargetGone(anyhow!("there is no process to record"));
        return Err(refused.into_iter().next().map_or_else(none, |(_, error)| error));
    }
    let refusals = refused
        .iter()
        .map(|(pid, error)| step("not recorded", format!("process {pid}: {}", error.text())));
    steps.extend(refusals);
    Ok(steps)
}

fn of_process(pid: i32, options: &Options) -> Result<Vec<PlannedStep>, RecordError> {
    let mut guardian = Guardian::start().map_err(guardian_error)?;
    let plan = Plan::new(&Candidate::running(pid, options, &mut guardian)?, options)?;
    let gone = |error| target_error(pid, error);
    let status = proc::status(pid).map_err(gone)?;
    let mappings = proc::mappings(pid).map_err(gone)?;
    let (tid, why) = inject::first_choice(pid, &mappings)
        .with_context(|| format!("process {pid} has no thread to stop"))
        .map_err(RecordError::TargetGone)?;
    let base =
        inject::find_gap(&mappings, layout::SPAN).context(NO_HOLE).map_err(RecordError::Other)?;
    let modules = mappings.iter().filter(|mapping| mapping.exec && mapping.inode != 0).count();
    let threads = status.threads;
    Ok(vec![
        step("target", format!("process {pid} \"{}\", threads: {threads}", status.name)),
        step("seccomp", plan.seccomp.clone()),
        engine(&plan),
        kernel_frames(&plan),
        step(
            "tables",
            format!("unwind tables of the code in {modules} mappings are compiled first"),
        ),
        step("map", segments(base)),
        step("stop", format!("thread {tid}, twice for about a tenth of a millisecond: {why}")),
        signal(&plan),
        sampling(&plan, threads),
    ])
}

/// Returns the steps for a program to start. This process stands in for it.
fn of_command(command: &[OsString], options: &Options) -> Result<Vec<PlannedStep>, RecordError> {
    let name = command.first().map(OsString::as_os_str).unwrap_or_default();
    let path = command::startable(name).map_err(|error| command::not_started(name, &error))?;
    privileges::check(name)?;
    let pid = std::process::id() as i32;
    let plan = Plan::new(&Candidate::started(pid, None), options)?;
    let held = match command::takes_all_signals(path.as_os_str()) {
        true => "attached to as soon as it has installed its own handlers",
        false => "held before its first instruction until the agent is there",
    };
    Ok(vec![
        step("start", format!("{}, {held}", path.display())),
        engine(&plan),
        kernel_frames(&plan),
        step("map", segments_anywhere()),
        signal(&plan),
        sampling(&plan, 1),
    ])
}

fn engine(plan: &Plan) -> PlannedStep {
    let kernel = if plan.attach.setup.kernel { "with" } else { "without" };
    let choice = &plan.attach.choice;
    let text = format!("{}: {}; {kernel} time in the kernel", choice.engine.name(), choice.why);
    step("engine", text)
}

fn kernel_frames(plan: &Plan) -> PlannedStep {
    let frames = plan.attach.setup.frames;
    let text = match Obstacle::to(frames) {
        Some(obstacle) => obstacle.line(),
        None if frames.are_shown() => "samples in it show its functions".to_owned(),
        None => "its functions are not shown, as requested".to_owned(),
    };
    step("kernel", text)
}

/// The parts of the agent: name, distance from its start, length and access.
const PARTS: [(&str, u64, u64, &str); 3] = [
    ("code", 0, layout::CODE_LEN, "r-x"),
    ("tables", layout::TABLES_DISTANCE, layout::TABLES_LEN, "r--"),
    ("data", layout::DATA_DISTANCE, layout::DATA_LEN, "rw-"),
];

fn segments(base: u64) -> String {
    let part = |(name, distance, len, access): (&str, u64, u64, &str)| {
        format!("{name} {:#x} {} KiB {access}", base + distance, len >> 10)
    };
    format!("{} (shared memory, filled as it is used)", PARTS.map(part).join(", "))
}

fn segments_anywhere() -> String {
    let part = |(name, _, len, access): (&str, u64, u64, &str)| {
        format!("{name} {} KiB {access}", len >> 10)
    };
    format!("{} (shared memory, filled as it is used)", PARTS.map(part).join(", "))
}

fn signal(plan: &Plan) -> PlannedStep {
    let signals = &plan.attach.signals;
    let other = if plan.attach.choice.engine == Engine::Signal { "perf events" } else { "timers" };
    let named = [(SAMPLING, "perf events"), (PRIMING, other)];
    let used = named.iter().filter(|(place, _)| signals[*place] != 0);
    let used =
        used.map(|(place, what)| format!("{} for {what}", proc::signal_name(signals[*place])));
    let used = used.collect::<Vec<_>>().join(", ");
    step("signals", format!("{used}: a handler in front of the application's own"))
}

fn sampling(plan: &Plan, threads: u32) -> PlannedStep {
    let what = match plan.attach.choice.engine {
        Engine::Perf => "a perf event, opened from outside and inherited by new threads",
        Engine::Signal => {
            "a perf event of its own, opened from outside; new threads are sampled without a \
             signal until they have theirs"
        }
        Engine::Timer => "a CPU timer, armed by its own handlers",
    };
    let period = plan.attach.setup.period_ns as f64 / 1e6;
    let budget = plan.max_overhead_percent.map(|percent| {
        format!(", or less often where that would cost more than {percent} % of what it uses")
    });
    step(
        "sampling",
        format!(
            "each thread (now {threads}) gets {what}; a sample every {period:.3} ms of CPU time{}",
            budget.unwrap_or_default()
        ),
    )
}

/// Describes the additional work of mode `wall`.
fn waiting(interval: Duration) -> PlannedStep {
    let interval = interval.as_secs_f64() * 1e3;
    step(
        "waiting",
        format!(
            "threads that do not run are checked from outside every {interval:.3} ms; a thread \
             that went to sleep elsewhere is stopped for a moment if its stack cannot be read \
             otherwise"
        ),
    )
}

fn exec(options: &Options) -> &'static str {
    match options.follow_exec {
        true => "a program that the target executes is attached to as well",
        false => "if the target executes another program, the recording ends",
    }
}

fn end(options: &Options) -> String {
    let until = "when the target exits, or at Ctrl-C or SIGTERM";
    match options.duration {
        Some(duration) => format!("after {:.3} s, or {until}", duration.as_secs_f64()),
        None => until.to_owned(),
    }
}
