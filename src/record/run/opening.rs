//! Creates the trace, with the metadata that is known before the first sample.

use crate::proc;
use crate::record::contract::clock;
use crate::record::contract::error::{RecordError, output_error};
use crate::record::contract::options::Options;
use crate::record::contract::sampling::{Choice, Setup};
use crate::record::run::opened::OpenedProcess;
use crate::record::target::attach::Attached;
use crate::record::write::output;
use crate::trace::{FIRST_PROCESS_START, Metadata, TraceSeries, Value};

pub(crate) fn create(
    options: &Options,
    opened: &OpenedProcess,
    attached: &Attached<'_>,
) -> Result<TraceSeries, RecordError> {
    let mut writer = output::create(options, opened.pid).map_err(output_error)?;
    let command_line = &opened.command_line;
    let opening = opening(options, opened.pid, command_line, attached.setup, &attached.choice);
    for (key, value) in opening {
        writer.set_metadata(&key, value).map_err(output_error)?;
    }
    let start = Value::Unsigned(opened.start_time);
    writer.set_metadata("target_start_ticks", start).map_err(output_error)?;
    let start = Value::Unsigned(start_realtime_ns(opened.start_time));
    writer.set_metadata(FIRST_PROCESS_START, start).map_err(output_error)?;
    // Readers can identify the file from the start, even if the recorder is killed.
    writer.flush().map_err(output_error)?;
    Ok(writer)
}

/// Returns the time of a start in ticks since boot, in nanoseconds of CLOCK_REALTIME: the end of
/// that tick.
pub(crate) fn start_realtime_ns(ticks: u64) -> u64 {
    let realtime_ns = clock::clock_ns(nix::time::ClockId::CLOCK_REALTIME);
    let start_ns = proc::start_ns(ticks).saturating_add(proc::tick_ns());
    realtime_ns.saturating_sub(clock::monotonic_now_ns().saturating_sub(start_ns))
}

/// Returns the metadata that is known before the first sample.
fn opening(
    options: &Options,
    pid: i32,
    command_line: &[std::ffi::OsString],
    setup: Setup,
    choice: &Choice,
) -> Metadata {
    let number = Value::Unsigned;
    let text = |text: String| Value::Text(text);
    let realtime = clock::clock_ns(nix::time::ClockId::CLOCK_REALTIME);
    let host = nix::sys::utsname::uname().ok();
    let part = |value: Option<&std::ffi::OsStr>| {
        text(value.map(|value| value.to_string_lossy().into_owned()).unwrap_or_default())
    };
    let arguments = command_line.iter().map(|word| text(word.to_string_lossy().into_owned()));
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let interval = options.measure.wall_interval();
    let interval = interval.map(|it| ("wall_interval_ns", number(it.as_nanos() as u64)));
    [
        ("traceprof_version", text(env!("CARGO_PKG_VERSION").to_string())),
        ("engine", text(choice.engine.name().to_string())),
        ("engine_why", text(choice.why.clone())),
        ("period_ns", number(setup.period_ns)),
        ("freq_hz", number(u64::from(options.freq_hz))),
        ("mode", text(options.measure.name().to_string())),
        ("kernel_included", number(u64::from(setup.kernel))),
        ("kernel_stacks", number(u64::from(setup.frames.are_shown()))),
        ("pid", number(pid as u64)),
        ("command_line", Value::List(arguments.collect())),
        ("host", part(host.as_ref().map(|host| host.nodename()))),
        ("kernel", part(host.as_ref().map(|host| host.release()))),
        ("cpus", number(cpus as u64)),
        ("start_realtime_ns", number(realtime)),
        ("start_monotonic_ns", number(clock::monotonic_now_ns())),
    ]
    .into_iter()
    .chain(interval)
    .map(|(key, value)| (key.to_string(), value))
    .collect()
}
