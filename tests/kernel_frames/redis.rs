//! The heaviest functions of the kernel under redis, beside those that perf finds in the same run.
//!
//! Each sampler sees the other's cost. When the kernel switches to a thread, it starts the thread's
//! events one after another, without interrupts. A sampler counts that time from the start of its
//! own event on, and finds it where interrupts are permitted again: in `finish_task_switch`. With
//! perf started first, perf found 37 % there and we 18 %; with perf started last, 16 % and 20 %
//! (redis-benchmark without a pipeline, 1999 Hz). So that function is left out on both sides.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use traceprof::trace::{FrameKind, load};

use super::symbols::Kallsyms;
use crate::common::{
    Outcome, Recorder, alone, has_command, is_long_run, needs_recording, scratch_dir, skip,
    wait_until,
};

/// How much two samplers of the same clock may differ, in percent of all samples.
const POINTS: f64 = 2.0;
/// Standard deviations of chance on top of that, for each of ten functions.
const CHANCE: f64 = 4.0;
/// The number of functions that are compared.
const TOPS: usize = 10;
const HZ: &str = "1999";
/// The function in which the kernel starts events.
const SWITCH: &str = "finish_task_switch";

/// A program that is killed when the value is dropped.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().expect("a program"))
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    fn interrupt(mut self) {
        // It may have exited by itself.
        let _ = kill(Pid::from_raw(self.pid()), Signal::SIGINT);
        self.0.wait().expect("its end");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The share of each kernel function's own samples, and the variance of a share of 1.
#[derive(Debug, Default)]
struct Shares {
    by_function: BTreeMap<String, f64>,
    /// The weight of all samples, and the sum of the squares of the weights.
    all: (f64, f64),
}

impl Shares {
    fn add(&mut self, function: Option<&str>, weight: f64) {
        if function.is_some_and(|function| function.starts_with(SWITCH)) {
            return;
        }
        self.all.0 += weight;
        self.all.1 += weight * weight;
        if let Some(function) = function {
            *self.by_function.entry(function.to_owned()).or_default() += weight;
        }
    }

    fn of(&self, function: &str) -> f64 {
        self.by_function.get(function).copied().unwrap_or(0.0) / self.all.0
    }

    /// Returns the square of the standard error of this share.
    fn variance(&self, share: f64) -> f64 {
        share * (1.0 - share) * self.all.1 / (self.all.0 * self.all.0)
    }
}

/// Returns our shares.
fn ours(outcome: &Outcome, symbols: &Kallsyms) -> Shares {
    let trace = load(&outcome.trace.path()).expect("a trace");
    let mut shares = Shares::default();
    for thread in &trace.threads {
        thread.for_each_sample(&mut |sample, stack| {
            let leaf = stack.last().map(|id| &trace.locations[id.0 as usize]);
            let leaf = leaf.filter(|location| location.kind == FrameKind::Kernel);
            let name = leaf.map(|it| trace.methods[it.method.0 as usize].name.as_str());
            shares.add(name.map(|name| symbols.first_name(name)), f64::from(sample.weight));
        });
    }
    shares
}

/// Returns the shares of what perf recorded: the first frame of each sample is its leaf.
fn perfs(data: &Path, symbols: &Kallsyms) -> Shares {
    let mut command = Command::new("perf");
    command.args(["script", "-F", "comm,ip,sym,dso", "--no-inline", "-i"]).arg(data);
    let output = command.output().expect("perf script");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "perf script: {stderr}");
    let text = String::from_utf8_lossy(&output.stdout);
    let mut shares = Shares::default();
    for sample in text.split("\n\n") {
        let Some(leaf) = sample.lines().find(|line| line.starts_with([' ', '\t'])) else {
            continue;
        };
        let mut words = leaf.split_whitespace();
        let address = words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
        let name = words.next().filter(|_| address.is_some_and(|it| it >> 63 == 1));
        shares.add(name.map(|name| symbols.first_name(name)), 1.0);
    }
    shares
}

#[test]
fn heaviest_functions_of_the_kernel_have_the_shares_that_perf_finds() {
    needs_recording!();
    let symbols = match Kallsyms::read() {
        Ok(symbols) => symbols,
        Err(why) => skip!("{why}"),
    };
    for tool in ["perf", "redis-server", "redis-benchmark"] {
        if !has_command(tool) {
            skip!("{tool}: not installed");
        }
    }
    let _machine = alone();
    let folder = scratch_dir();
    let (socket, data) = (folder.path().join("socket"), folder.path().join("perf.data"));
    let mut server = Command::new("redis-server");
    server.args(["--port", "0", "--save", "", "--unixsocket"]).arg(&socket);
    let server = Running::start(&mut server);
    assert!(wait_until(Duration::from_secs(20), || socket.exists()), "redis does not start");
    let mut client = Command::new("redis-benchmark");
    client.arg("-s").arg(&socket).args(["-q", "-t", "get,set", "-P", "16", "-d", "2000"]);
    client.args(["-n", "100000000"]);
    let client = Running::start(&mut client);
    let pid = server.pid().to_string();
    let mut perf = Command::new("perf");
    perf.args(["record", "-q", "-N", "-g", "-e", "task-clock", "-F", HZ, "-p", &pid, "-o"]);
    let perf = Running::start(perf.arg(&data));
    let has_head = || std::fs::metadata(&data).is_ok_and(|file| file.len() > 0);
    assert!(wait_until(Duration::from_secs(60), has_head), "perf does not record");
    let cpu = Duration::from_secs(if is_long_run() { 20 } else { 6 });
    let options = ["--pid", &pid, "--freq", HZ, "--engine", "perf"];
    let outcome = Recorder::start(&options).record_cpu(server.pid(), cpu);
    perf.interrupt();
    drop((client, server));
    compare(&ours(&outcome, &symbols), &perfs(&data, &symbols));
}

fn compare(ours: &Shares, perfs: &Shares) {
    let mut tops: Vec<&String> = perfs.by_function.keys().collect();
    tops.sort_by(|a, b| perfs.of(b).total_cmp(&perfs.of(a)));
    tops.truncate(TOPS);
    let kernel: f64 = ours.by_function.values().sum::<f64>() / ours.all.0;
    let mut lines = vec![format!("{:.1} % of our weight is in the kernel", 100.0 * kernel)];
    let mut is_alike = !tops.is_empty();
    for function in tops {
        let (own, perf) = (ours.of(function), perfs.of(function));
        let chance = CHANCE * (ours.variance(own) + perfs.variance(perf)).sqrt();
        let (difference, limit) = (100.0 * (own - perf), POINTS + 100.0 * chance);
        is_alike &= difference.abs() <= limit;
        lines.push(format!(
            "{:5.2} % {:5.2} % {difference:+.2} of {limit:.2} {function}",
            100.0 * own,
            100.0 * perf
        ));
    }
    let text = lines.join("\n");
    // A closed stderr is no reason to fail.
    let _ = writeln!(std::io::stderr(), "ours, perf's, difference:\n{text}");
    assert!(is_alike, "{text}");
}
