//! The tests that need the built command or the whole tree, in one binary.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod agent_image; // what the image must not contain
mod baseline; // the targets without any recorder
mod budget; // the memory of a writer
mod cli; // arguments, foreign files, exit codes
mod command; // record -- COMMAND
mod common; // targets, the command under test, a process seen from outside
mod conservation; // samples against the threads' own clocks
mod context; // spans on samples, against the programs that tell them
mod context_views; // spans and tags in views, from traces made by hand
mod damage; // verify, recover, reindex; views of what is broken
mod detach; // what killed recorders left
mod diff; // what changed, from traces made by hand and of a program that knows it
mod docs; // manual pages and completions against the command line
mod doctor; // what stands in the way, and that record says the same
mod dry_run; // what would be done, and that it is not
mod durable; // what is forced to the disk, in which order
mod engine; // both engines: choice, fallback, end
mod errors; // messages and codes
mod exit_codes; // those that take more than a wrong argument
mod exports; // what all formats have in common
mod faults; // whoever dies, at each step
mod firefox; // profiles for profiler.firefox.com
mod firefox_cli; // and what its own command line makes of them
mod firefox_tables; // what its tables say beside names and weights
mod flamegraph; // pictures of stacks
mod follow; // traces that are still being written
mod follow_exec; // one recording over several programs
mod guests; // children in their parents' memory
mod harm; // what a target must never notice
mod jailed; // targets under seccomp filters
mod kill; // a recorder that is killed at any moment
mod lease; // of the timers, while the recorder stands still
mod misuse; // command lines that make no sense, and what is offered instead
mod modern_go; // programs of newer Go than there is a compiler of
mod nasty; // every kind of target
mod opener; // what a desktop opens pages with
mod otel; // contexts as OpenTelemetry has them
mod otlp; // profiles for collectors of OpenTelemetry
mod output; // disks that are full, limits, two recorders with one file
mod output_side; // names, limits, what is told of a recording
mod overhead; // what profiling costs, and rates that follow a budget
mod page; // a page for a browser: what it holds
mod page_head; // of its threads and times
mod page_manners; // its colours, keys and printing
mod page_shown; // and what a browser makes of it
mod page_sums; // sums that a browser makes
mod perf_script; // text for tools that read that of perf
mod pprof; // profiles for go tool pprof
mod priming; // how threads are found and made ready
mod print; // the summary, trees and tables, as whole texts
mod priority; // whose is raised
mod process_diff; // what changed of several, from traces made by hand
mod process_exports; // what exports make of several, from traces made by hand
mod process_views; // and what views make of them, from traces made by hand
mod processes; // several in one recording
mod progress; // of long work, on terminals
mod ratios; // programs that know where their time is
mod real; // programs, against perf
mod record; // what a recording says, against what the target knows
mod recorded_views; // print, dump, export of a recording
mod ring; // the last minutes: what has them saved, and what becomes of them
mod runbooks; // the scripts for an emergency
mod runtimes; // Go, Node, Java and others
mod snapshot; // whole outputs, kept beside the tests
mod soak; // storms of everything, for a long time
mod speedscope; // profiles for speedscope.app
mod stacks; // of all threads at once, against what the target and gdb know
mod stop; // signals, exits, second thoughts
mod storage; // threads that stop or die inside our handler
mod symbols; // where names come from
mod threads; // which thread a sample belongs to
mod tidy; // the house rules
mod timeline; // calls in the order of their times, as whole texts
mod top; // the live table
mod unique; // every function has one caller
mod views; // the views as whole texts, from profiles made by hand
mod waiters; // programs that wait for signals
mod wall; // of real programs, against what they know of it
mod wall_views; // of wall clock time, from traces made by hand
