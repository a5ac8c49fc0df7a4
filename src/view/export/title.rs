//! The title and the details of an export, escaped for display.

use crate::view::profile::processes::Processes;
use crate::view::profile::thread_profile::Profile;
use crate::view::recording::mode::Mode;
use crate::view::recording::unit::WeightUnit;
use crate::view::text::date::utc;
use crate::view::text::escape::escaped;
use crate::view::text::number::counted;

/// Returns the measured time and the program: `CPU time of demo`.
pub(super) fn title(profile: &Profile) -> String {
    let measured = match profile.mode {
        Mode::Cpu => "CPU time",
        Mode::Wall => "Wall clock time",
    };
    match Processes::of(profile).subject() {
        Some(subject) => format!("{measured} of {subject}"),
        None => measured.to_owned(),
    }
}

/// Returns the number of samples and the time of the recording.
pub(super) fn details(profile: &Profile) -> String {
    let (recording, count) = (&profile.recording, profile.count());
    let threads = profile.threads.iter().filter(|thread| thread.count.samples > 0).count();
    let time = WeightUnit::new(profile.mode, recording).seconds(count.weight);
    let mut parts = vec![counted(count.samples, "sample")];
    parts.extend(time.map(|seconds| format!("{seconds} s")));
    parts.push(counted(threads as u64, "thread"));
    parts.extend(recording.window.as_deref().map(|window| escaped(window).into_owned()));
    parts.extend(recording.number("start_realtime_ns").map(|ns| format!("recorded {}", utc(ns))));
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Value;

    #[test]
    fn missing_facts_are_left_out() {
        let mut profile = Profile::default();
        assert_eq!(title(&profile), "CPU time");
        assert_eq!(details(&profile), "0 samples, 0 threads");
        let metadata = &mut profile.recording.metadata;
        let words = ["/usr/bin/de\u{1b}mo", "--all"].map(|word| Value::Text(word.to_owned()));
        metadata.insert("command_line".to_owned(), Value::List(words.into()));
        metadata.insert("start_realtime_ns".to_owned(), Value::Unsigned(1_790_000_000_000_000_000));
        profile.recording.window = Some("thread 7 \"x\"".to_owned());
        profile.mode = Mode::Wall;
        assert_eq!(title(&profile), "Wall clock time of de\\u{1b}mo");
        let expected =
            "0 samples, 0.000 s, 0 threads, thread 7 \"x\", recorded 2026-09-21 14:13:20 UTC";
        assert_eq!(details(&profile), expected);
    }
}
