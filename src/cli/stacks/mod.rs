//! `traceprof stacks`.

mod json;
mod text;

use super::arguments::StacksArguments;
use super::exit::CommandFailure;
use super::notes::note;
use super::output::{Destination, unwritable};
use crate::inspect::stacks::{ProcessStacks, stacks};

/// Prints the stacks of the processes, one after the other. One that cannot be read gets a note if
/// another one can.
pub(super) fn run(arguments: &StacksArguments) -> Result<(), CommandFailure> {
    let pids = arguments.processes.find()?;
    let mut failures: Vec<(i32, CommandFailure)> = Vec::new();
    let mut printed = 0;
    for pid in pids {
        match stacks(pid, arguments.kernel).map_err(CommandFailure::of_recording) {
            Ok(found) => {
                print(found, arguments, printed > 0)?;
                printed += 1;
            }
            Err(failure) => failures.push((pid, failure)),
        }
    }
    if printed == 0 && !failures.is_empty() {
        return Err(failures.swap_remove(0).1);
    }
    failures.iter().for_each(|(pid, failure)| note(&format!("process {pid}: {:#}", failure.error)));
    Ok(())
}

fn print(
    mut found: ProcessStacks,
    arguments: &StacksArguments,
    is_next: bool,
) -> Result<(), CommandFailure> {
    if !arguments.native_frames {
        found.remove_carriers();
    }
    found.notices.iter().for_each(|notice| note(notice));
    Destination::Standard.write(|out| {
        let written = match arguments.json {
            true => json::write(&found, out),
            false if is_next => {
                writeln!(out).and_then(|()| text::write(&found, arguments.verbose, out))
            }
            false => text::write(&found, arguments.verbose, out),
        };
        written.map_err(unwritable)
    })
}
