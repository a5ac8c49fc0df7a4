//! `traceprof detach`.

use std::io::{self, Write};

use anyhow::anyhow;

use super::arguments::DetachArguments;
use super::exit::{CommandFailure, ExitCode};
use crate::record::{self, Removed};
use crate::view::text::escape::escaped;

/// Removes the agents of killed recordings, and reports them.
pub(super) fn run(arguments: &DetachArguments) -> Result<(), CommandFailure> {
    let pid = arguments.pid;
    let removed = record::detach(pid).map_err(CommandFailure::of_recording)?;
    if let Some(left) = &removed.left {
        let error = anyhow!(
            "left in process {pid}, which runs on unharmed: {left}; run `traceprof detach` again \
             later"
        );
        return Err(CommandFailure::new(ExitCode::LeftBehind, error));
    }
    // A closed standard error leaves nobody to tell; the work is done.
    let _ = writeln!(io::stderr(), "{}", escaped(&text(pid, &removed)));
    Ok(())
}

fn text(pid: i32, removed: &Removed) -> String {
    let what = match removed.agents {
        0 => return format!("nothing of a recording is left in process {pid}"),
        1 => "the agent of a killed recording".to_owned(),
        agents => format!("the agents of {agents} killed recordings"),
    };
    let stopped = removed.stopped_ns as f64 / 1e6;
    format!("removed from process {pid}: {what}; its threads were stopped for {stopped:.3} ms")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_what_was_removed() {
        let removed = |agents| Removed { agents, stopped_ns: 250_000, left: None };
        assert_eq!(text(7, &removed(0)), "nothing of a recording is left in process 7");
        let one = "removed from process 7: the agent of a killed recording; its threads were \
                   stopped for 0.250 ms";
        assert_eq!(text(7, &removed(1)), one);
        assert!(text(7, &removed(2)).contains(": the agents of 2 killed recordings;"));
    }
}
