//! Progress of a recording on the standard error: a live line on a terminal, plain lines elsewhere.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressState};

use crate::cli::progress_line::style;
use crate::record::{Event, Observer, Progress, addresses_named};
use crate::view::text::escape::escaped;

/// The time between two plain lines.
const PLAIN_INTERVAL: Duration = Duration::from_secs(10);

/// The observer for this standard error. `has_details` adds all that is known of each attach.
pub(super) fn observer(quiet: bool, has_details: bool) -> Box<dyn Observer> {
    if quiet {
        Box::new(Silent)
    } else if io::stderr().is_terminal() {
        Box::new(Live::new(has_details))
    } else {
        Box::new(Plain::new(io::stderr(), has_details))
    }
}

/// Prints nothing.
struct Silent;

impl Observer for Silent {
    fn event(&mut self, _event: Event) {}
    fn tick(&mut self, _progress: &Progress) {}
}

/// One line that is redrawn.
struct Live {
    line: ProgressBar,
    /// The line is a bar, because the duration is known.
    bar: bool,
    has_details: bool,
}

impl Live {
    fn new(has_details: bool) -> Self {
        let line = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
        line.set_style(style("{spinner} {wide_msg}"));
        line.set_message("attaching");
        Self { line, bar: false, has_details }
    }
}

impl Observer for Live {
    fn event(&mut self, event: Event) {
        if let Event::Detaching = event {
            // No other event follows, and naming functions may take a while.
            let before = addresses_named();
            self.line.set_style(style("{spinner} {ending}").with_key(
                "ending",
                // Computed each time the line is drawn.
                move |_: &ProgressState, out: &mut dyn fmt::Write| {
                    let _ = out.write_str(&ending(addresses_named(), before));
                },
            ));
            self.line.enable_steady_tick(Duration::from_millis(100));
        } else {
            let text = describe(&event, self.has_details);
            text.iter().for_each(|text| self.line.println(text));
        }
    }

    fn tick(&mut self, progress: &Progress) {
        if let (false, Some(duration)) = (self.bar, progress.duration) {
            self.bar = true;
            self.line.set_style(style("{bar:20} {wide_msg}"));
            self.line.set_length(milliseconds(duration));
        }
        self.line.set_message(state(progress));
        self.line.set_position(milliseconds(progress.elapsed));
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.line.finish_and_clear();
    }
}

/// A line every ten seconds.
struct Plain<W: Write> {
    out: W,
    next: Duration,
    has_details: bool,
}

impl<W: Write> Plain<W> {
    fn new(out: W, has_details: bool) -> Self {
        Self { out, next: PLAIN_INTERVAL, has_details }
    }

    fn line(&mut self, text: &str) {
        // A closed standard error leaves nobody to tell; the recording goes on.
        let _ = writeln!(self.out, "{text}");
    }
}

impl<W: Write> Observer for Plain<W> {
    fn event(&mut self, event: Event) {
        if let Some(text) = describe(&event, self.has_details) {
            self.line(&text);
        }
    }

    fn tick(&mut self, progress: &Progress) {
        if progress.elapsed >= self.next {
            // Counted from now, so that one line follows a pause, not many.
            self.next = progress.elapsed + PLAIN_INTERVAL;
            self.line(&state(progress));
        }
    }
}

/// Returns the line about an event; `None` if only a report with all details has one.
fn describe(event: &Event, has_details: bool) -> Option<String> {
    Some(match event {
        Event::Attached { .. } if !has_details => sampling(event, None)?,
        Event::Attached { engine, why, threads, stops_ns, command_pid, executed } => {
            let executed = executed.as_deref().map(|it| format!("executed {}; ", escaped(it)));
            let started = command_pid.map(|pid| format!("started process {pid}; ")).or(executed);
            let stops: Vec<String> =
                stops_ns.iter().map(|ns| format!("{:.3} ms", *ns as f64 / 1e6)).collect();
            let stopped = match stops.len() {
                0 => String::new(),
                _ => format!(", target stopped for {}", stops.join(" + ")),
            };
            let threads = plural(*threads as u64, "thread");
            let started = started.unwrap_or_default();
            let (engine, why) = (escaped(engine), escaped(why));
            format!("{started}sampling {threads} with the {engine} engine ({why}){stopped}")
        }
        Event::Notice(text) => format!("note: {}", escaped(text)),
        Event::Detaching if has_details => "detaching".to_owned(),
        Event::Detaching => return None,
        Event::Of { process, is_later, event } => match &**event {
            Event::Attached { .. } if !has_details && *is_later => return None,
            Event::Attached { .. } if !has_details => sampling(event, Some(process))?,
            event => format!("{}: {}", escaped(process), describe(event, has_details)?),
        },
    })
}

/// Returns the short line about an attach.
fn sampling(event: &Event, process: Option<&str>) -> Option<String> {
    let Event::Attached { threads, command_pid, executed, .. } = event else { return None };
    let started = || command_pid.map(|pid| format!("process {pid}"));
    let what = process.map(str::to_owned).or_else(started);
    let what = what.map_or(String::new(), |what| format!(" {}", escaped(&what)));
    let executed = executed.as_deref().map(|it| format!(", which executed {}", escaped(it)));
    let (threads, executed) = (plural(*threads as u64, "thread"), executed.unwrap_or_default());
    let colon = if what.is_empty() && executed.is_empty() { "" } else { ":" };
    Some(format!("sampling{what}{executed}{colon} {threads}"))
}

fn state(progress: &Progress) -> String {
    let elapsed = format!("{:.1} s", progress.elapsed.as_secs_f64());
    let time = match progress.duration {
        Some(duration) => format!("{elapsed} of {} s", duration.as_secs_f64()),
        None => elapsed,
    };
    format!(
        "{time}  {}  {} lost  {}  {}",
        plural(progress.samples, "sample"),
        progress.lost,
        plural(progress.threads as u64, "thread"),
        HumanBytes(progress.bytes)
    )
}

/// The text while the recording ends, from addresses named and requested, now and before.
fn ending((named, asked): (u64, u64), before: (u64, u64)) -> String {
    // Addresses that were named during the recording do not count.
    let (done, all) = (named.saturating_sub(before.0), asked.saturating_sub(before.0));
    match done.saturating_mul(100).checked_div(all) {
        Some(percent @ ..100) => {
            format!("detaching and naming functions: {percent} %, {done} of {all} addresses")
        }
        _ => "detaching and writing the trace".to_owned(),
    }
}

fn plural(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Progress {
        Progress {
            elapsed: Duration::from_secs_f64(seconds),
            duration: Some(Duration::from_secs(30)),
            samples: 1990,
            lost: 3,
            threads: 1,
            bytes: 20_480,
        }
    }

    fn lines(tell: impl FnOnce(&mut dyn Observer)) -> String {
        let mut plain = Plain::new(Vec::new(), true);
        tell(&mut plain);
        String::from_utf8(plain.out).unwrap()
    }

    #[test]
    fn plain_lines_come_every_ten_seconds_and_never_in_a_burst() {
        let text = lines(|observer| {
            for seconds in [0.1, 9.9, 10.0, 10.1, 45.0, 45.1, 54.9, 55.0] {
                observer.tick(&at(seconds));
            }
        });
        let times: Vec<&str> = text.lines().filter_map(|line| line.split("  ").next()).collect();
        assert_eq!(times, ["10.0 s of 30 s", "45.0 s of 30 s", "55.0 s of 30 s"]);
        assert!(text.starts_with("10.0 s of 30 s  1990 samples  3 lost  1 thread  20.00 KiB\n"));
    }

    #[test]
    fn events_are_one_line_each() {
        let text = lines(|observer| {
            observer.event(Event::Attached {
                engine: "perf".to_owned(),
                why: "requested".to_owned(),
                threads: 2,
                stops_ns: vec![41_000, 38_500],
                command_pid: Some(12),
                executed: None,
            });
            observer.event(Event::Attached {
                engine: "timer".to_owned(),
                why: "it starts".to_owned(),
                threads: 1,
                stops_ns: Vec::new(),
                command_pid: None,
                executed: Some("/bin/a\n".to_owned()),
            });
            observer.event(Event::Notice("a\nb".to_owned()));
            observer.event(Event::Detaching);
        });
        let expected = "started process 12; sampling 2 threads with the perf engine \
                        (requested), target stopped for 0.041 ms + 0.038 ms\nexecuted /bin/a\\n; \
                        sampling 1 thread with the timer engine (it starts)\nnote: a\\nb\n\
                        detaching\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn the_end_tells_how_many_addresses_are_to_be_named() {
        let text = "detaching and naming functions: 25 %, 10 of 40 addresses";
        assert_eq!(ending((110, 140), (100, 120)), text);
        assert_eq!(ending((140, 140), (100, 120)), "detaching and writing the trace");
        assert_eq!(ending((5, 5), (5, 5)), "detaching and writing the trace");
    }

    #[test]
    fn the_live_line_survives_every_event() {
        let mut live = Live::new(false);
        live.event(Event::Notice("x".to_owned()));
        live.tick(&at(1.0));
        live.tick(&Progress { duration: None, ..at(2.0) });
        live.event(Event::Detaching);
        assert_eq!(live.line.position(), 2000);
        assert_eq!(live.line.length(), Some(30_000));
    }
}
