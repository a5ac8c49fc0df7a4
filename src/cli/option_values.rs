//! Types of option values, each of which parses itself.

use std::str::FromStr;
use std::time::Duration;

use crate::quantity;
use crate::record::{EngineChoice, Measure};
use crate::runtime::ManagedLanguage;
use crate::trace::{Compression, Durability};

/// Whose exit code this program exits with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ExitOf {
    /// That of the started program, unless the recording failed.
    #[default]
    Command,
    /// That of the recording.
    Recording,
}

impl FromStr for ExitOf {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "command" => Ok(Self::Command),
            "recording" => Ok(Self::Recording),
            _ => Err("expected command or recording".to_owned()),
        }
    }
}

/// How long to record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordingTime(pub Duration);

/// The longest recording.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);

impl FromStr for RecordingTime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let time = quantity::time(text)?;
        if time < Duration::from_millis(1) {
            return Err("the shortest recording is 1ms".to_owned());
        }
        if time > LONGEST {
            return Err("the longest recording is 366 days".to_owned());
        }
        Ok(Self(time))
    }
}

/// Samples per second of CPU time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate(pub u32);

impl Rate {
    const MAX: u32 = 50_000;
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let hz = if text == "max" { Some(Self::MAX) } else { text.parse().ok() };
        match hz {
            Some(hz @ 1..=Self::MAX) => Ok(Self(hz)),
            _ => Err(format!("expected a number from 1 to {}, or `max`", Self::MAX)),
        }
    }
}

/// The time between samples, converted to the nearest rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleInterval(pub u32);

impl FromStr for SampleInterval {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let has_unit = text.ends_with(|character: char| character.is_ascii_alphabetic());
        let seconds = quantity::time(text)?.as_secs_f64();
        if !has_unit {
            // The unit of a bare number differs between profilers by a factor of a million.
            return Err(format!("needs a unit: {text}ms, {text}us or {text}s"));
        }
        match (1.0 / seconds).round() {
            hz @ 1.0..=50_000.0 if seconds <= 1.0 => Ok(Self(hz as u32)),
            _ => Err("expected a time from 20us to 1s".to_owned()),
        }
    }
}

/// What is measured, by the event names of other profilers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventName(pub ModeName);

impl FromStr for EventName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Precision modifiers mean nothing for a clock.
        let (name, modifiers) = text.split_once(':').unwrap_or((text, ""));
        if modifiers.contains('u') && !modifiers.contains('k') {
            return Err(format!("to leave out kernel time: give -e {name} --no-kernel"));
        }
        let is_exact = modifiers.bytes().all(|byte| matches!(byte, b'p' | b'P'));
        let mode = match if is_exact { name } else { text } {
            "cpu-clock" | "task-clock" | "cycles" | "cpu-cycles" | "itimer" | "ctimer" => "cpu",
            other => other,
        };
        mode.parse().map(Self).map_err(|_| {
            "only time is measured: expected cpu, wall or cpu,wall, as with --mode".to_owned()
        })
    }
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModeName {
    /// CPU time, at a rate of its own.
    pub cpu: bool,
    /// All time, also while threads do not run.
    pub wall: bool,
}

impl ModeName {
    /// The same for the recorder; `interval` is between two scans of threads that do not run.
    pub(super) fn measure(self, WallInterval(interval): WallInterval) -> Measure {
        match (self.cpu, self.wall) {
            (_, false) => Measure::Cpu,
            (false, true) => Measure::Wall(interval),
            (true, true) => Measure::Both(interval),
        }
    }
}

/// The default rate of CPU samples.
pub(super) fn default_hz(measure: Measure) -> u32 {
    const HZ: u32 = 199;
    match measure {
        Measure::Wall(interval) => (1.0 / interval.as_secs_f64()).round().max(1.0) as u32,
        Measure::Cpu | Measure::Both(_) => HZ,
    }
}

impl FromStr for ModeName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "cpu" => Ok(Self { cpu: true, wall: false }),
            "wall" => Ok(Self { cpu: false, wall: true }),
            "cpu,wall" | "wall,cpu" => Ok(Self { cpu: true, wall: true }),
            _ => Err("expected cpu, wall or cpu,wall".to_owned()),
        }
    }
}

/// The time between two scans of threads that do not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WallInterval(pub Duration);

impl FromStr for WallInterval {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let time = quantity::time(text)?;
        match (Duration::from_millis(1)..=Duration::from_secs(10)).contains(&time) {
            true => Ok(Self(time)),
            false => Err("expected a time from 1ms to 10s".to_owned()),
        }
    }
}

/// What samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineName(pub EngineChoice);

impl FromStr for EngineName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self(EngineChoice::Auto)),
            "perf" => Ok(Self(EngineChoice::Perf)),
            "signal" => Ok(Self(EngineChoice::Signal)),
            "timer" => Ok(Self(EngineChoice::Timer)),
            _ => Err("expected auto, perf, signal or timer".to_owned()),
        }
    }
}

/// Whether something is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct YesOrNo(pub bool);

impl FromStr for YesOrNo {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "yes" => Ok(Self(true)),
            "no" => Ok(Self(false)),
            _ => Err("expected yes or no".to_owned()),
        }
    }
}

/// A share of a whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Percent(pub f64);

impl FromStr for Percent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match quantity::number(text.strip_suffix('%').unwrap_or(text).trim_end()) {
            Some(percent) if percent <= 100.0 => Ok(Self(percent)),
            _ => Err("expected a number from 0 to 100".to_owned()),
        }
    }
}

/// A quality that a recording must have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LeastQuality {
    /// The share of samples whose stack reaches the root.
    Rooted(Percent),
    /// The share of samples that have a name, of those with frames of a language.
    Named(ManagedLanguage, Percent),
}

impl FromStr for LeastQuality {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((name, least)) = text.split_once('=') else {
            return text.parse().map(Self::Rooted);
        };
        let mut languages = ManagedLanguage::ALL.into_iter();
        let Some(language) = languages.find(|it| it.name().eq_ignore_ascii_case(name)) else {
            let names =
                ManagedLanguage::ALL.map(|it| format!("{}=PERCENT", it.name().to_lowercase()));
            return Err(format!("expected a number from 0 to 100, or {}", names.join(", ")));
        };
        least.parse().map(|least| Self::Named(language, least))
    }
}

/// The share of CPU time that profiling may cost, in percent, above 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OverheadLimit(pub f64);

impl FromStr for OverheadLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(Percent(percent)) if percent >= 0.01 => Ok(Self(percent)),
            _ => Err("expected a number from 0.01 to 100, such as 1% or 0.5%".to_owned()),
        }
    }
}

/// How a trace is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compress(pub Compression);

impl FromStr for Compress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let zstd = |level| Ok(Self(Compression::Zstd(level)));
        match text.split_once(':') {
            None if text == "none" => Ok(Self(Compression::None)),
            None if text == "fast" => zstd(1),
            None if text == "zstd" => zstd(3),
            Some(("zstd", level)) => match level.parse() {
                Ok(level @ 1..=22) => zstd(level),
                _ => Err("the levels of zstd are 1 to 22".to_owned()),
            },
            _ => Err("expected none, fast, zstd or zstd:LEVEL".to_owned()),
        }
    }
}

/// When a trace is forced to disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Durable(pub Durability);

impl FromStr for Durable {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self(Durability::None)),
            "interval" => Ok(Self(Durability::Interval)),
            "frame" => Ok(Self(Durability::Frame)),
            _ => Err("expected none, interval or frame".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::WriterOptions;

    #[test]
    fn impossible_times_are_refused() {
        for text in [
            "", "s", "0", "0.0001s", "-1", "5d", "1e9", "inf", "nan", "9999h", "5 s", "ä", "1m1h",
            "1s1s", "1h30", "1hm",
        ] {
            assert!(text.parse::<RecordingTime>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_quality_is_of_all_stacks_or_of_the_names_of_a_language() {
        let least = |text: &str| text.parse::<LeastQuality>();
        assert_eq!(least("95"), Ok(LeastQuality::Rooted(Percent(95.0))));
        let python = |percent| Ok(LeastQuality::Named(ManagedLanguage::Python, Percent(percent)));
        assert_eq!(least("python=99.5%"), python(99.5));
        assert_eq!(least("Python=0"), python(0.0));
        for wrong in ["python", "python=", "python=101", "=95", "cobol=95", "python=95=95"] {
            assert!(least(wrong).is_err(), "{wrong}");
        }
        let expected = "expected a number from 0 to 100, or python=PERCENT, java=PERCENT, \
            javascript=PERCENT, php=PERCENT, ruby=PERCENT, perl=PERCENT, lua=PERCENT";
        assert_eq!(least("cobol=95"), Err(expected.to_owned()));
    }

    #[test]
    fn rates_are_within_what_engines_deliver() {
        assert_eq!("199".parse(), Ok(Rate(199)));
        assert_eq!("1".parse(), Ok(Rate(1)));
        assert_eq!("50000".parse(), Ok(Rate(50_000)));
        assert_eq!("max".parse(), Ok(Rate(50_000)));
        for text in ["0", "50001", "-1", "", "fast", "1.5", "99999999999"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }

    #[test]
    fn intervals_are_rates_and_need_a_unit() {
        let check = |text: &str, hz| assert_eq!(text.parse(), Ok(SampleInterval(hz)), "{text}");
        check("10ms", 100);
        check("3ms", 333);
        check("20us", 50_000);
        check("1s", 1);
        for text in ["10", "0ms", "19us", "2s", "", "10ns"] {
            assert!(text.parse::<SampleInterval>().is_err(), "{text}");
        }
    }

    #[test]
    fn events_of_other_profilers_are_modes() {
        for (text, cpu, wall) in
            [("task-clock", true, false), ("wall", false, true), ("cycles:pp", true, false)]
        {
            assert_eq!(text.parse(), Ok(EventName(ModeName { cpu, wall })));
        }
        let error = "alloc".parse::<EventName>().unwrap_err();
        assert!(error.contains("only time is measured"), "{error}");
        let error = "cycles:u".parse::<EventName>().unwrap_err();
        assert!(error.contains("-e cycles --no-kernel"), "{error}");
        assert!("cycles:x".parse::<EventName>().is_err());
    }

    #[test]
    fn modes_have_names_in_any_order() {
        for (text, cpu, wall) in
            [("cpu", true, false), ("wall", false, true), ("wall,cpu", true, true)]
        {
            assert_eq!(text.parse(), Ok(ModeName { cpu, wall }));
        }
        assert!(
            ["", "CPU", "cpu,", "cpu wall", "off"].iter().all(|it| it.parse::<ModeName>().is_err())
        );
    }

    #[test]
    fn wall_intervals_are_bounded() {
        let check = |text: &str, ms| {
            assert_eq!(text.parse(), Ok(WallInterval(Duration::from_millis(ms))), "{text}");
        };
        check("20ms", 20);
        check("0.5", 500);
        check("1ms", 1);
        check("10s", 10_000);
        for text in ["0", "0.9ms", "11s", "-1", "", "fast"] {
            assert!(text.parse::<WallInterval>().is_err(), "{text}");
        }
    }

    #[test]
    fn engines_have_names() {
        for (text, expected) in [
            ("auto", EngineChoice::Auto),
            ("perf", EngineChoice::Perf),
            ("signal", EngineChoice::Signal),
            ("timer", EngineChoice::Timer),
        ] {
            assert_eq!(text.parse(), Ok(EngineName(expected)));
        }
        assert!("".parse::<EngineName>().is_err() && "Perf".parse::<EngineName>().is_err());
    }

    #[test]
    fn some_options_are_yes_or_no() {
        assert_eq!(("yes".parse(), "no".parse()), (Ok(YesOrNo(true)), Ok(YesOrNo(false))));
        assert!("".parse::<YesOrNo>().is_err() && "auto".parse::<YesOrNo>().is_err());
    }

    #[test]
    fn compression_has_a_level_within_those_of_zstd() {
        let check = |text: &str, expected| assert_eq!(text.parse(), Ok(Compress(expected)));
        check("none", Compression::None);
        check("fast", Compression::Zstd(1));
        check("zstd", WriterOptions::default().compress);
        check("zstd:22", Compression::Zstd(22));
        for text in ["", "zstd:", "zstd:0", "zstd:23", "zstd:-1", "lz4", "none:1", "fast:2"] {
            assert!(text.parse::<Compress>().is_err(), "{text}");
        }
    }

    #[test]
    fn durability_has_three_values() {
        let check = |text: &str, expected| assert_eq!(text.parse(), Ok(Durable(expected)));
        check("none", Durability::None);
        check("interval", Durability::Interval);
        check("frame", Durability::Frame);
        assert!("".parse::<Durable>().is_err() && "always".parse::<Durable>().is_err());
    }

    #[test]
    fn percentages_are_from_0_to_100() {
        assert_eq!("0.5".parse(), Ok(Percent(0.5)));
        assert_eq!("95%".parse(), Ok(Percent(95.0)));
        for text in ["", "%", "101", "-1", "nan", "1e1"] {
            assert!(text.parse::<Percent>().is_err(), "{text}");
        }
        assert_eq!("0.5%".parse(), Ok(OverheadLimit(0.5)));
        for text in ["0", "0.001%", "200%", "-1", "x"] {
            assert!(text.parse::<OverheadLimit>().is_err(), "{text}");
        }
    }
}
