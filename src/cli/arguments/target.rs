//! The arguments of `record` that say what is recorded.

use std::ffi::OsString;
use std::path::Path;

use clap::Args;
use regex_lite::Regex;

use crate::cli::values::RecordingTime;
use crate::record::{Named, Target};

/// What is recorded.
#[derive(Debug, Default, Args)]
#[command(group = clap::ArgGroup::new("target").required(true).multiple(true)
    .args(["pid", "pids", "name", "command"]))]
pub struct TargetArguments {
    /// Processes to record: 12, or 12,15; may be repeated
    ///
    /// Several are recorded into one trace, on one clock, each with a guardian of its own. That one of
    /// them ends does not end the recording, and one that cannot be recorded is named in the closing
    /// report, unless none can.
    #[arg(short, long, value_name = "PID", value_delimiter = ',', value_parser = process_id)]
    #[arg(alias = "pids")]
    pub pid: Vec<i32>,

    /// Processes to record, as with --pid
    #[arg(value_name = "PID", value_delimiter = ',', value_parser = process_id)]
    pub pids: Vec<i32>,

    /// Record all processes whose name or command line matches a regular expression
    ///
    /// Of those that this user may record. The recorder itself, its ancestors and what it has started
    /// are never among them.
    #[arg(short = 'P', long, value_name = "REGEX", value_parser = pattern)]
    pub name: Option<String>,

    /// With --name: if there is no such process, wait until there is, so long at most
    ///
    /// One that ends before it is attached to does not count: the next one is waited for.
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, requires = "name")]
    pub wait: Option<Option<RecordingTime>>,

    /// Record the descendants as well: those that are there, and those that are started meanwhile
    ///
    /// New ones are looked for about every ten milliseconds, and attached to as soon as they have
    /// executed a program, or have not done so for some milliseconds: one that ends before is counted
    /// and not sampled. One whose parent ended before it was seen is nobody's child. What they execute
    /// later is recorded too, as with --follow-exec.
    #[arg(short, long, short_alias = 'C', aliases = ["children", "with-subprocesses"])]
    pub subprocesses: bool,

    /// Program to start and record, with its arguments; behind a process `-- sleep 10` is --duration 10
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

impl TargetArguments {
    /// How long `-- sleep 10` behind a process means, which it then has not any more: so users of perf
    /// say for how long to record.
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

    /// What they mean, or why they mean two things.
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
                "these are different things to record: use either {either}{meanwhile}; --help says \
                 more"
            ));
        }
        Ok(match (name, &all[..]) {
            (Some(pattern), _) => {
                Target::Name(Named { pattern, wait: wait.map(|it| it.map(|time| time.0)) })
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
            Err("there is none: where it comes from pgrep, nothing matched; \
                                          --name REGEX finds processes, with --wait also later ones"
                .to_owned())
        }
        Err(_) if text == "sleep" => Err("for how long to record is said with --duration, as in \
                                          `traceprof record --duration 10 --pid PID`"
            .to_owned()),
        Err(_) => Err(format!(
            "not a process id; a program to start comes after --, as in `traceprof record -- {text}`, \
             and a running one is found by its name with --name {text}"
        )),
    }
}

fn pattern(text: &str) -> Result<String, String> {
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
        assert_eq!(named.target(), Ok(Target::Name(Named { pattern: "a".to_owned(), wait })));
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
