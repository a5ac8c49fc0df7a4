//! The arguments that choose running processes.

use std::ffi::OsStr;

use anyhow::anyhow;
use clap::builder::TypedValueParser;
use clap::{Arg, Args, Command};
use regex_lite::Regex;

use super::headings::WHAT;
use crate::cli::exit::{CommandFailure, ExitCode};
use crate::record::NamedProcesses;
use crate::record::run::processes::named;

/// Which processes.
#[derive(Debug, Default, Args)]
// `record` adds the program to start.
#[command(group = clap::ArgGroup::new("target").required(true).multiple(true)
    .args(["pid", "pids", "name"]))]
pub struct ProcessArguments {
    /// Processes, such as 12 or 12,15; repeatable
    #[arg(short, long, value_name = "PID", value_delimiter = ',', value_parser = ProcessIdParser)]
    #[arg(alias = "pids", help_heading = WHAT)]
    pub pid: Vec<i32>,

    /// Processes, as with --pid
    #[arg(value_name = "PID", value_delimiter = ',', value_parser = ProcessIdParser)]
    #[arg(help_heading = WHAT, hide_short_help = true)]
    pub pids: Vec<i32>,

    /// Processes whose name or command line matches
    ///
    /// All that this user may trace. This command, its ancestors and its children never match.
    #[arg(short = 'P', long, value_name = "REGEX", value_parser = pattern, help_heading = WHAT)]
    pub name: Option<String>,
}

impl ProcessArguments {
    /// The given process ids, each once.
    pub(super) fn ids(&self) -> Vec<i32> {
        let mut all: Vec<i32> = Vec::new();
        for pid in self.pid.iter().chain(&self.pids) {
            if !all.contains(pid) {
                all.push(*pid);
            }
        }
        all
    }

    /// The processes, each once; at least one.
    pub(in crate::cli) fn find(&self) -> Result<Vec<i32>, CommandFailure> {
        let all = self.ids();
        match &self.name {
            None => Ok(all),
            Some(_) if !all.is_empty() => {
                let text = "--name and process ids are two ways to choose: give one of them";
                Err(CommandFailure::new(ExitCode::Usage, anyhow!(text)))
            }
            Some(pattern) => {
                let named = NamedProcesses { pattern: pattern.clone(), wait: None };
                named::find(&named).map_err(CommandFailure::of_recording)
            }
        }
    }
}

/// Parses process ids. What the message for a word advises depends on the command.
#[derive(Clone)]
struct ProcessIdParser;

impl TypedValueParser for ProcessIdParser {
    type Value = i32;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<i32, clap::Error> {
        let starts_programs = command.get_name() == "record";
        let parse = move |text: &str| process_id(text, starts_programs);
        parse.parse_ref(command, argument, value)
    }
}

fn process_id(text: &str, starts_programs: bool) -> Result<i32, String> {
    /// The largest process id on 64-bit machines (`PID_MAX_LIMIT`).
    const LARGEST: i32 = 4 << 20;
    Err(match text.parse() {
        Ok(pid @ 1..) => return Ok(pid),
        Ok(_) => "a process id is 1 or more".to_owned(),
        Err(_) if text.is_empty() => "it is empty: if it comes from pgrep, nothing matched; \
             --name REGEX finds processes, and `record --wait` waits for one"
            .to_owned(),
        Err(_) if text.bytes().all(|byte| byte.is_ascii_digit()) => {
            format!("no process id: the largest is {LARGEST}")
        }
        Err(_) if !starts_programs => {
            format!("not a process id; --name {text} finds running processes")
        }
        Err(_) if text == "sleep" => "--duration is how long to record, as in \
             `traceprof record --duration 10 --pid PID`"
            .to_owned(),
        Err(_) => format!(
            "not a process id; a program to start comes after --, as in `traceprof record -- \
             {text}`, and --name {text} finds a running one"
        ),
    })
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
    use super::*;

    #[test]
    fn each_process_is_chosen_once_and_in_one_way() {
        let both = ProcessArguments { pid: vec![5, 7], pids: vec![7, 6], name: None };
        assert_eq!(both.find().unwrap(), [5, 7, 6]);
        let mixed = ProcessArguments { name: Some("x".to_owned()), ..both };
        assert_eq!(mixed.find().unwrap_err().code, ExitCode::Usage);
        let nothing = Some("a name that no process has".to_owned());
        let nothing = ProcessArguments { name: nothing, ..ProcessArguments::default() };
        assert_eq!(nothing.find().unwrap_err().code, ExitCode::TargetGone);
    }

    #[test]
    fn what_is_no_process_id_is_said_with_the_way_out() {
        for is_record in [false, true] {
            let refused = |text: &str| process_id(text, is_record).unwrap_err();
            assert_eq!(process_id("12", is_record), Ok(12));
            assert!(process_id("0", is_record).is_err() && process_id("-3", is_record).is_err());
            assert!(refused("").contains("pgrep"));
            assert_eq!(refused("99999999999"), "no process id: the largest is 4194304");
            assert!(refused("ls").contains("--name ls"));
            assert_eq!(refused("ls").contains("traceprof record -- ls"), is_record);
            assert_eq!(refused("sleep").contains("--duration 10"), is_record);
        }
        assert!(pattern("(").is_err() && pattern("").is_err());
    }
}
