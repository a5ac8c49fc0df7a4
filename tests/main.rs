//! End-to-end tests: tests that need the built command or the source tree, in one binary.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod agent_image; // what the agent image must not contain
mod agent_stack; // how much stack the handler uses
mod agreement; // damaged traces: all commands say the same
mod baseline; // the targets without a recorder
mod budget; // a trace writer's memory
mod cgo; // Go that calls C, which calls Go
mod claim; // one recorder at a time, and who may claim a target
mod cli; // arguments, foreign files, exit codes
mod command; // record -- COMMAND
mod common; // targets, the command under test, a process seen from outside
mod completion; // what shells offer for the word at the cursor
mod conservation; // sample weights against the threads' own clocks
mod context; // spans on samples, against the programs that publish them
mod context_views; // spans and tags in views of synthetic traces
mod context_writers; // spans on samples of each writer's programs, against their logs
mod damage; // verify, recover, reindex; views of damaged traces
mod descriptors; // recordings under limits of descriptors
mod detach; // removal of what killed recorders left
mod diff; // changes between synthetic traces, and between recordings of a real program
mod docs; // manual pages and completions against the command line
mod doctor; // obstacles to a recording, and that record agrees
mod dry_run; // the steps of a recording, none of which is taken
mod durable; // what is synced to the disk, in which order
mod engine; // both engines: choice, fallback, end
mod errors; // outputs in the way, other users, damaged traces
mod exit_codes; // codes that need a recording
mod exports; // totals that all formats must agree on
mod failing_calls; // system calls of the recorder that fail, one at a time
mod faults; // processes that die at each step
mod firefox; // profiles for profiler.firefox.com
mod firefox_cli; // profiles read with the Firefox Profiler's own command line
mod firefox_tables; // tables of a profile beside names and weights
mod first_screen; // the screen that print shows without options
mod flamegraph; // pictures of stacks
mod follow; // traces that are still being written
mod follow_exec; // one recording over several programs
mod golden; // traces of an earlier version
mod harm; // what a target must never notice
mod hostile; // small traces that claim much memory
mod jailed; // targets under seccomp filters
mod java; // machines of Java, against the programs
mod java_matrix; // Java in conditions that are hard for a profiler
mod java_threads; // threads of Java machines
mod java_unfilled; // frames that HotSpot has made and not filled
mod kernel_frames; // functions of the kernel in samples, and as perf finds them
mod killed_recorder; // a recorder that is killed at any moment
mod languages; // whose code it is: summaries, exports and the page
mod lease; // the timers' lease while the recorder is stopped
mod lua; // functions of LuaJIT, against the programs
mod lua_programs; // programs that contain LuaJIT: a server and an editor
mod managed; // views without the frames of interpreters
mod managed_stacks; // stacks of Python programs
mod managed_wall; // wall clock time of Python programs
mod messages; // every message that can be provoked, in one table
mod misuse; // invalid command lines, and the corrections offered
mod modern_go; // programs of Go versions newer than the installed compiler
mod nasty; // every kind of target
mod node; // functions of Node.js without a flag, against the programs
mod node_threads; // names of threads of Node.js
mod node_work; // Node.js at work: servers, workers, sleepers, shares, and garbage
mod older_kernels; // calls that older kernels lack, and Yama's levels
mod opener; // the command with which a desktop opens pages
mod otel; // contexts in the format of OpenTelemetry
mod otlp; // profiles for collectors of OpenTelemetry
mod output; // full disks, limits, two recorders with one file
mod output_names; // names and limits of the output, reports of a recording
mod overhead; // the cost of profiling, and rates that follow a budget
mod package; // what the packages contain
mod page; // the contents of a page for a browser
mod page_assembly; // the instructions of its functions
mod page_head; // its threads and times
mod page_interaction; // its colours, keys and print
mod page_shown; // the page in a browser
mod page_source; // its source lines
mod page_sums; // sums that a browser computes
mod page_time; // its stack chart, and zooming in time
mod page_trees; // its call tree, callers and callees, and menu
mod perf_script; // text for tools that read perf script
mod perl; // subs of Perl, against the programs
mod php; // functions of PHP, against the programs
mod php_servers; // PHP that serves pages
mod pprof; // profiles for go tool pprof
mod priming; // how threads are found and prepared
mod print; // complete texts of summary, trees and tables
mod priority; // which threads get a raised priority
mod process_diff; // diff of several processes in synthetic traces
mod process_exports; // exports of several processes in synthetic traces
mod process_views; // views of several processes in synthetic traces
mod processes; // several processes in one recording
mod progress; // progress of long work on terminals
mod python; // interpreters of Python, against the programs and py-spy
mod ratios; // programs that measure where their time goes
mod real; // real programs, compared with perf
mod record; // a recording against what the target itself measures
mod recorded_views; // print, dump, export of a recording
mod ring; // the last minutes: when they are saved, and what becomes of them
mod ruby; // methods of Ruby, against the programs
mod runbooks; // the scripts for an emergency
mod runtimes; // Go, Node, Java and others
mod signal_engine; // events with a harmless signal: resets, sleepers, new threads
mod single_stacks; // stacks at a time and by id, of synthetic traces
mod small_stacks; // threads whose stack has no room for a signal
mod snapshot; // complete outputs, kept beside the tests
mod soak; // storms of everything, for a long time
mod source_maps; // original functions of compiled and bundled TypeScript
mod speedscope; // profiles for speedscope.app
mod stacks; // all threads at once, against the target itself and gdb
mod stop; // signals, exits, repeated requests
mod stopped_in_handler; // threads that stop or die inside our handler
mod symbols; // where names come from
mod threads; // which thread a sample belongs to
mod tidy; // the house rules
mod timeline; // complete texts of calls in time order
mod top; // the live table
mod traced_sleeper; // a sleeping thread that cannot be stopped at first
mod unique; // programs in which every function has one caller
mod version; // the version and the commit of a build
mod vfork_children; // children in their parents' memory
mod views; // complete texts of the views of synthetic profiles
mod waiters; // programs that wait for signals
mod wall; // wall clock time of real programs, against their own measurements
mod wall_views; // views of wall clock time in synthetic traces
