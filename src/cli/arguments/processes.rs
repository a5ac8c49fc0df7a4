//! The arguments of `top` and `stacks` that choose running processes.

use anyhow::anyhow;
use clap::Args;

use super::headings::WHAT;
use super::target::pattern;
use crate::cli::exit::{CommandFailure, ExitCode};
use crate::cli::number_values::process_id;
use crate::record::NamedProcesses;
use crate::record::run::processes::named;

/// Which processes.
#[derive(Debug, Default, Args)]
#[command(group = clap::ArgGroup::new("process").required(true).multiple(true)
    .args(["pid", "pids", "name"]))]
pub struct ProcessArguments {
    /// Processes, such as 12 or 12,15; repeatable
    #[arg(short, long, value_name = "PID", value_delimiter = ',', value_parser = process_id)]
    #[arg(help_heading = WHAT)]
    pub pid: Vec<i32>,

    /// Processes, as with --pid
    #[arg(value_name = "PID", value_delimiter = ',', value_parser = process_id)]
    #[arg(help_heading = WHAT, hide_short_help = true)]
    pub pids: Vec<i32>,

    /// Processes whose name or command line matches
    ///
    /// All that this user may inspect. This command, its ancestors and its children never match.
    #[arg(short = 'P', long, value_name = "REGEX", value_parser = pattern, help_heading = WHAT)]
    pub name: Option<String>,
}

impl ProcessArguments {
    /// The processes, each once; at least one.
    pub(in crate::cli) fn find(&self) -> Result<Vec<i32>, CommandFailure> {
        let mut all: Vec<i32> = Vec::new();
        for pid in self.pid.iter().chain(&self.pids) {
            if !all.contains(pid) {
                all.push(*pid);
            }
        }
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
}
