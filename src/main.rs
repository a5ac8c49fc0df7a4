//! Entry point of the command.

use std::process::ExitCode;

fn main() -> ExitCode {
    traceprof::cli::run(std::env::args_os()).into()
}
