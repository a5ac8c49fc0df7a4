//! The arguments of `record` that choose what to record.

use std::ffi::OsString;
use std::path::Path;

use clap::Args;
use regex_lite::Regex;

use super::headings::WHAT;
use crate::cli::option_values::RecordingTime;
use crate::record::{NamedProcesses, Target};

/// What to record.
#[derive(Debug, Default, Args)]
#[command(group = clap::ArgGroup::new("target").required(true).multiple(true)
    .args(["pid", "pids", "name", "command"]))]
pub struct TargetArguments {
    /// Processes, such as 12 or 12,15; repeatable
    ///
    /// Several processes go into one trace with one clock. Each has its own guardian. The recording
    /// goes on when one of them exits. The closing report names processes that could not be
    /// recorded. The recording fails if none can be recorded.
    #[arg(short, long, value_name = "PID", value_delimiter = ',', value_parser = process_id)]
    #[arg(alias = "pids", help_heading = WHAT)]
    pub pid: Vec<i32>,

    /// Processes to record, as with --pid
    #[arg(value_name = "PID", value_delimiter = ',', value_parser = process_id)]
    #[arg(help_heading = WHAT, hide_short_help = true)]
    pub pids: Vec<i32>,

    /// Processes whose name or command line matches
    ///
    /// Records all matching processes that this user may record. The recorder, its ancestors and
    /// its own children never match.
    #[arg(short = 'P', long, value_name = "REGEX", value_parser = pattern, help_heading = WHAT)]
    pub name: Option<String>,

    /// Program to start and record, with its arguments
    ///
    /// `-- sleep 10` after a process means --duration 10.
    #[arg(last = true, value_name = "COMMAND", help_heading = WHAT)]
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
        let is_other = !self.pid.is_empty() || !self.pids.is_empty() || self.name.is_some();
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
        let Self { pid, pids, name, wait, command, .. } = self;
        let mut all: Vec<i32> = Vec::new();
        for pid in pid.into_iter().chain(pids) {
            if !all.contains(&pid) {
                all.push(pid);
            }
        }
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

fn process_id(text: &str) -> Result<i32, String> {
    match text.parse() {
        Ok(pid @ 1..) => Ok(pid),
        Ok(_) => Err("a process id is 1 or more".to_owned()),
        Err(_) if text.is_empty() => {
            Err("it is empty: if it comes from pgrep, nothing matched; --name \
                                          REGEX finds processes, with --wait also later ones"
                .to_owned())
        }
        Err(_) if text == "sleep" => Err("--duration is how long to record, as in \
                                          `traceprof record --duration 10 --pid PID`"
            .to_owned()),
        Err(_) => Err(format!(
            "not a process id; a program to start comes after --, as in `traceprof record -- \
             {text}`, and --name {text} finds a running one"
        )),
    }
}

pub(super) fn pattern(text: &str) -> Result<String, String> {
    match Regex::new(text) {
        Ok(_) if text.is_empty() => Err("it would match every process".to_owned()),
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn none() -> TargetArguments {
        TargetArguments::default()
    }

    #[test]
    fn ids_are_taken_from_wherever_they_stand_each_once() {
        let several = TargetArguments { pid: vec![5, 7], pids: vec![7, 6], ..none() };
        assert_eq!(several.target(), Ok(Target::Pids(vec![5, 7, 6])));
        let one = TargetArguments { pid: vec![5], pids: vec![5], ..none() };
        assert_eq!(one.target(), Ok(Target::Pid(5)));
    }

    #[test]
    fn two_things_to_record_are_refused_with_what_is_possible() {
        let both = TargetArguments { pids: vec![5], command: vec!["ls".into()], ..none() };
        let text = both.target().unwrap_err();
        assert!(text.contains("`traceprof record 5` or `traceprof record -- ls`"), "{text}");
        assert!(text.contains("`traceprof record 5 & ls; kill -INT $!`"), "{text}");
        let name = Some("redis".to_owned());
        let both = TargetArguments { name, command: vec!["ls".into(), "-l".into()], ..none() };
        let text = both.target().unwrap_err();
        assert!(text.contains("--name redis` or `traceprof record -- ls -l`"), "{text}");
    }

    #[test]
    fn a_sleep_beside_a_process_is_the_time_of_the_recording() {
        let given = |pids: &[i32], words: &[&str]| TargetArguments {
            pids: pids.to_vec(),
            command: words.iter().map(OsString::from).collect(),
            ..none()
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
        let named = TargetArguments { name: Some("a".to_owned()), wait, ..none() };
        let wait = Some(Some(Duration::from_secs(5)));
        assert_eq!(
            named.target(),
            Ok(Target::Name(NamedProcesses { pattern: "a".to_owned(), wait }))
        );
    }

    #[test]
    fn what_is_no_process_id_is_said_with_the_way_out() {
        assert_eq!(process_id("12"), Ok(12));
        assert!(process_id("0").is_err() && process_id("-3").is_err());
        assert!(process_id("ls").unwrap_err().contains("traceprof record -- ls"));
        assert!(process_id("sleep").unwrap_err().contains("--duration 10"));
        assert!(process_id("").unwrap_err().contains("pgrep"));
        assert!(pattern("(").is_err() && pattern("").is_err());
    }
}
