//! The arguments of `record` that choose what to record.

use std::ffi::OsString;
use std::path::Path;

use clap::Args;

use super::ProcessArguments;
use super::headings::WHAT;
use crate::cli::option_values::RecordingTime;
use crate::record::{NamedProcesses, Target};

/// What to record.
#[derive(Debug, Default, Args)]
pub struct TargetArguments {
    /// Running processes.
    #[command(flatten)]
    pub processes: ProcessArguments,

    /// Program to start and record, with its arguments
    ///
    /// `-- sleep 10` after a process means --duration 10.
    #[arg(last = true, value_name = "COMMAND", group = "target", help_heading = WHAT)]
    pub command: Vec<OsString>,

    /// With --name: wait for a matching process, at most this long
    ///
    /// A process that exits before the attach does not count, and the wait goes on.
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, requires = "name")]
    #[arg(help_heading = WHAT, hide_short_help = true)]
    pub wait: Option<Option<RecordingTime>>,
}

impl TargetArguments {
    /// Removes `-- sleep 10` after a process and returns its time: users of perf give the duration
    /// like this.
    pub(crate) fn take_sleep(&mut self) -> Option<RecordingTime> {
        let is_other = !self.processes.ids().is_empty() || self.processes.name.is_some();
        let [program, time] = &self.command[..] else { return None };
        let program = Path::new(program).file_name();
        let time = time
            .to_str()?
            .parse()
            .ok()
            .filter(|_| is_other && program == Some("sleep".as_ref()))?;
        self.command.clear();
        Some(time)
    }

    /// The target, or why there is more than one.
    pub fn target(self) -> Result<Target, String> {
        let Self { processes, wait, command } = self;
        let (all, name) = (processes.ids(), processes.name);
        let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
        let given = [
            (!all.is_empty()).then(|| all.iter().map(i32::to_string).collect::<Vec<_>>().join(",")),
            name.as_ref().map(|name| format!("--name {name}")),
            (!command.is_empty()).then(|| format!("-- {}", words.join(" "))),
        ];
        let given: Vec<String> =
            given.into_iter().flatten().map(|it| format!("`traceprof record {it}`")).collect();
        if given.len() > 1 {
            let either = given.join(" or ");
            let meanwhile = match given.first().filter(|_| !words.is_empty()) {
                Some(first) => {
                    let (first, command) = (first.trim_matches('`'), words.join(" "));
                    format!("; to record while it runs: `{first} & {command}; kill -INT $!`")
                }
                None => String::new(),
            };
            return Err(format!(
                "these are different things to record: use either {either}{meanwhile}; see --help"
            ));
        }
        Ok(match (name, &all[..]) {
            (Some(pattern), _) => {
                Target::Name(NamedProcesses { pattern, wait: wait.map(|it| it.map(|time| time.0)) })
            }
            (None, &[pid]) => Target::Pid(pid),
            (None, []) => Target::Command(command),
            (None, _) => Target::Pids(all),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn none() -> TargetArguments {
        TargetArguments::default()
    }

    fn of_ids(ids: &[i32]) -> TargetArguments {
        let processes = ProcessArguments { pids: ids.to_vec(), ..ProcessArguments::default() };
        TargetArguments { processes, ..none() }
    }

    fn of_name(name: &str) -> TargetArguments {
        let name = Some(name.to_owned());
        let processes = ProcessArguments { name, ..ProcessArguments::default() };
        TargetArguments { processes, ..none() }
    }

    #[test]
    fn one_process_is_a_recording_of_one() {
        assert_eq!(of_ids(&[5, 7]).target(), Ok(Target::Pids(vec![5, 7])));
        assert_eq!(of_ids(&[5, 5]).target(), Ok(Target::Pid(5)));
    }

    #[test]
    fn two_things_to_record_are_refused_with_what_is_possible() {
        let both = TargetArguments { command: vec!["ls".into()], ..of_ids(&[5]) };
        let text = both.target().unwrap_err();
        assert!(text.contains("`traceprof record 5` or `traceprof record -- ls`"), "{text}");
        assert!(text.contains("`traceprof record 5 & ls; kill -INT $!`"), "{text}");
        let command = vec!["ls".into(), "-l".into()];
        let both = TargetArguments { command, ..of_name("redis") };
        let text = both.target().unwrap_err();
        assert!(text.contains("--name redis` or `traceprof record -- ls -l`"), "{text}");
    }

    #[test]
    fn a_sleep_beside_a_process_is_the_time_of_the_recording() {
        let given = |pids: &[i32], words: &[&str]| TargetArguments {
            command: words.iter().map(OsString::from).collect(),
            ..of_ids(pids)
        };
        let mut of_process = given(&[5], &["/usr/bin/sleep", "1.5"]);
        assert_eq!(of_process.take_sleep(), Some(RecordingTime(Duration::from_millis(1500))));
        assert_eq!(of_process.target(), Ok(Target::Pid(5)));
        for words in [&["sleep"][..], &["sleep", "x"], &["sleep", "1", "2"], &["slept", "1"]] {
            assert_eq!(given(&[5], words).take_sleep(), None, "{words:?}");
        }
        let mut alone = given(&[], &["sleep", "1"]);
        assert_eq!(alone.take_sleep(), None);
        assert_eq!(alone.target(), Ok(Target::Command(vec!["sleep".into(), "1".into()])));
    }

    #[test]
    fn a_name_may_be_waited_for() {
        let wait = Some(Some(RecordingTime(Duration::from_secs(5))));
        let named = TargetArguments { wait, ..of_name("a") };
        let wait = Some(Some(Duration::from_secs(5)));
        assert_eq!(
            named.target(),
            Ok(Target::Name(NamedProcesses { pattern: "a".to_owned(), wait }))
        );
    }
}
