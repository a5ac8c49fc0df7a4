//! Examples for the help and the manual.

/// An example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Example {
    /// The subcommand it belongs to.
    pub action: &'static str,
    /// Its purpose.
    pub purpose: &'static str,
    /// The command line.
    pub line: &'static str,
}

const fn example(action: &'static str, purpose: &'static str, line: &'static str) -> Example {
    Example { action, purpose, line }
}

/// The examples of the help and of the manual; the tests parse each of them.
pub(super) const EXAMPLES: [Example; 55] = [
    example(
        "record",
        "Record process 4711 for five seconds",
        "traceprof record --pid 4711 --duration 5 --output out.trace",
    ),
    example(
        "record",
        "Start a program and record it to its end",
        "traceprof record -o out.trace -- python3 report.py --all",
    ),
    example(
        "record",
        "Record ten minutes at 999 samples a second, and print only errors",
        "traceprof record -q -F 999 -d 10m -o out.trace -p 4711",
    ),
    example(
        "record",
        "In a script: fail if less than 95 % of the recording is good",
        "traceprof record -p 4711 -d 30 --fail-under 95",
    ),
    example("detach", "Remove the agent of a killed recording", "traceprof detach -p 4711"),
    example("doctor", "What prevents a recording?", "traceprof doctor --pid 4711"),
    example("doctor", "The same for a script", "traceprof doctor --json --pid 4711"),
    example("stacks", "What is process 4711 doing?", "traceprof stacks --pid 4711"),
    example(
        "stacks",
        "The same with file and line, and where in the kernel it sleeps",
        "traceprof stacks --verbose --kernel --pid 4711",
    ),
    example("stacks", "All workers of a server", "traceprof stacks --name gunicorn"),
    example("top", "Where is the time of process 4711 now?", "traceprof top --pid 4711"),
    example("top", "How do the processes of a database share it?", "traceprof top --name postgres"),
    example(
        "top",
        "By thread, waiting included",
        "traceprof top --pid 4711 --by thread --mode wall",
    ),
    example("top", "Three tables for a ticket", "traceprof top --iterations 3 --interval 5s 4711"),
    example("top", "Keep the trace for later", "traceprof top --pid 4711 --output out.trace"),
    example("info", "Why are there no names?", "traceprof info out.trace"),
    example("print", "One screen about a trace", "traceprof print out.trace"),
    example("print", "The call trees, too", "traceprof print --tree out.trace"),
    example("print", "The 20 heaviest functions", "traceprof print --top 20 out.trace"),
    example(
        "print",
        "Who calls the heaviest functions, on all threads?",
        "traceprof print --inverted --min-percent 2 out.trace",
    ),
    example("print", "How much is in which library?", "traceprof print --by module out.trace"),
    example(
        "print",
        "The same numbers for a script",
        "traceprof print --json --top 20 --by module out.trace",
    ),
    example("print", "The call trees with file and line", "traceprof print --verbose out.trace"),
    example("print", "Leave nothing out", "traceprof print --min-percent 0 out.trace"),
    example(
        "print",
        "The second half of two threads",
        "traceprof print --thread 4712 --thread 'pool-*' --from 50% out.trace",
    ),
    example(
        "print",
        "The calls of half a second in time order, with every sample",
        "traceprof print --timeline --verbose --from 2s --to 2.5s out.trace",
    ),
    example("print", "What did all threads do then?", "traceprof print --at 14:03:05 out.trace"),
    example(
        "print",
        "All compilers of a build as one tree",
        "traceprof print --merge-processes build.trace",
    ),
    example("print", "CPU time alone", "traceprof print --mode cpu out.trace"),
    example(
        "print",
        "What do threads wait for in poll and in locks?",
        "traceprof print --state sleeping --syscall poll,futex out.trace",
    ),
    example("print", "Which spans take most time?", "traceprof print --by span out.trace"),
    example(
        "print",
        "Failed requests for one route",
        "traceprof print --tag route=/checkout --tag status=500 --tag status=503 out.trace",
    ),
    example("print", "Watch a recording", "traceprof print --follow out.trace"),
    example("dump", "List the objects of a trace", "traceprof dump out.trace"),
    example("dump", "The same for a script", "traceprof dump --json out.trace"),
    example(
        "export",
        "Write folded stacks to a file",
        "traceprof export out.trace --format folded --output out.folded",
    ),
    example(
        "export",
        "The same of the first ten seconds",
        "traceprof export out.trace --to 10s --output begin.folded",
    ),
    example(
        "export",
        "All time, without threads that only wait for work",
        "traceprof export out.trace --mode wall --no-idle -o wall.folded",
    ),
    example(
        "export",
        "A flame graph with the values of a tag as its first level",
        "traceprof export out.trace --by tag:route -o routes.svg",
    ),
    example(
        "export",
        "A profile for go tool pprof",
        "traceprof export out.trace --output out.pb.gz",
    ),
    example(
        "export",
        "A profile for profiler.firefox.com",
        "traceprof export out.trace --format firefox --output profile.json",
    ),
    example(
        "export",
        "A profile for speedscope.app",
        "traceprof export out.trace --output out.speedscope.json",
    ),
    example(
        "export",
        "Text for tools that read what perf script writes",
        "traceprof export out.trace --format perf-script --output out.perf",
    ),
    example("view", "Look at a trace in a browser", "traceprof view out.trace --open"),
    example(
        "view",
        "A page of two seconds, to attach to a ticket",
        "traceprof view out.trace --from 2s --to 4s -o ticket.html",
    ),
    example("diff", "What changed?", "traceprof diff before.trace after.trace"),
    example(
        "diff",
        "The second half of a trace against its first",
        "traceprof diff out.trace --base-to 50% --from 50%",
    ),
    example(
        "diff",
        "Two routes, with the paths that changed",
        "traceprof diff out.trace --base-tag route=/cart --tag route=/checkout --paths",
    ),
    example(
        "diff",
        "For a differential flame graph",
        "traceprof diff before.trace after.trace --format folded -o both.folded",
    ),
    example(
        "diff",
        "A flame graph of the second trace, coloured by the changes",
        "traceprof diff before.trace after.trace --format flamegraph -o diff.svg",
    ),
    example("verify", "Check a trace", "traceprof verify out.trace"),
    example("verify", "The same for a script", "traceprof verify --json out.trace"),
    example("recover", "Save a damaged trace", "traceprof recover out.trace saved.trace"),
    example("reindex", "Rebuild a lost index", "traceprof reindex out.trace"),
    example("completions", "Print the completion script for bash", "traceprof completions bash"),
];

/// The examples of some subcommands, as the long help shows them.
pub(super) fn with_examples(actions: &[&str]) -> String {
    listed(EXAMPLES.iter().filter(|example| actions.contains(&example.action)))
}

/// The first examples of a subcommand, as the short help shows them.
pub(super) fn first_examples(action: &str) -> String {
    listed(EXAMPLES.iter().filter(|example| example.action == action).take(2))
}

fn listed<'a>(examples: impl Iterator<Item = &'a Example>) -> String {
    let mut text = String::from("Examples:");
    for example in examples {
        text.push_str(&format!("\n  {}:\n    {}", example.purpose, example.line));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::arguments::definition;
    use super::*;

    #[test]
    fn every_example_is_a_valid_command_line() {
        for example in EXAMPLES {
            let words = example.line.split_whitespace();
            let matches = definition().try_get_matches_from(words);
            let action = matches.unwrap_or_else(|error| panic!("{}: {error}", example.line));
            assert_eq!(action.subcommand_name(), Some(example.action));
        }
    }
}
