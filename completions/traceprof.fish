# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_traceprof_global_optspecs
    string join \n h/help V/version
end

function __fish_traceprof_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_traceprof_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_traceprof_using_subcommand
    set -l cmd (__fish_traceprof_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c traceprof -n "__fish_traceprof_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c traceprof -n "__fish_traceprof_needs_command" -s V -l version -d 'Print version'
complete -c traceprof -n "__fish_traceprof_needs_command" -f -a "record" -d 'Record a running process, or start a program and record it'
complete -c traceprof -n "__fish_traceprof_needs_command" -f -a "detach" -d 'Remove the agent that a killed recording left in a process'
complete -c traceprof -n "__fish_traceprof_needs_command" -f -a "doctor" -d 'Check whether this host and a process allow a recording'
complete -c traceprof -n "__fish_traceprof_needs_command" -f -a "stacks" -d 'Print the stacks of all threads of a process, as they are now'
complete -c traceprof -n "__fish_traceprof_needs_command" -f -a "top" -d 'Show where a process spends its time, refreshed every second'
complete -c traceprof -n "__fish_traceprof_needs_command" -f -a "info" -d 'Show where the names of each module came from, and how to get more'
complete -c traceprof -n "__fish_traceprof_needs_command" -f -a "print" -d 'Print a trace: one screen of summary, then call trees'
complete -c traceprof -n "__fish_traceprof_needs_command" -f -a "dump" -d 'List every object of a trace, one a line'
complete -c traceprof -n "__fish_traceprof_needs_command" -f -a "export" -d 'Convert a trace for another tool'
complete -c traceprof -n "__fish_traceprof_needs_command" -f -a "view" -d 'Write a page for a browser: flame graph, time line, functions, spans'
complete -c traceprof -n "__fish_traceprof_needs_command" -f -a "diff" -d 'Show what changed between two traces, or two parts of one'
complete -c traceprof -n "__fish_traceprof_needs_command" -f -a "verify" -d 'Check every byte of a trace and of its index'
complete -c traceprof -n "__fish_traceprof_needs_command" -f -a "recover" -d 'Save the readable part of a damaged or unfinished trace'
complete -c traceprof -n "__fish_traceprof_needs_command" -f -a "reindex" -d 'Rebuild the index of a trace'
complete -c traceprof -n "__fish_traceprof_needs_command" -f -a "completions" -d 'Print the completion script for a shell'
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -s p -l pid -d 'Processes, such as 12 or 12,15; repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -s P -l name -d 'Processes whose name or command line matches' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l wait -d 'With --name: wait for a matching process, at most this long' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -s d -l duration -d 'How long to record, such as 30s or 1h30m' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -s F -l freq -d 'Samples per second of CPU time [default: 199]' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -s m -l mode -d 'Measure cpu, wall or cpu,wall' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l wall-interval -d 'How often threads are checked in mode wall: 1ms to 10s' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l engine -d 'What takes the samples: auto, signal, perf, or timer' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l kernel-stacks -d 'Whether samples in the kernel show its own functions, where permitted: yes or no' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l max-overhead -d 'Limit the cost of profiling to this share of CPU time, such as 1%' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -s o -l output -d 'Trace file to write' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l compress -d 'How to compress the trace: none, fast, zstd, or zstd:LEVEL' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l durability -d 'When to force the trace to disk: none, interval, or frame' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l max-size -d 'End at this size of trace and index, such as 2G' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l rotate -d 'Start a new file at this size (100M) or age (10m)' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l rotate-keep -d 'Keep only the last N files of --rotate' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l ring -d 'Keep only the last TIME, such as 5m' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l ring-save -d 'When to save the ring: end, or trigger' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l trigger -d 'Save the ring at cpu>80%, threads>500, or file:PATH; repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l fail-under -d 'Exit with code 5 if the quality of the recording is below this' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l ready-fd -d 'Write READY=1 to this open descriptor when sampling has started' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l pidfile -d 'Keep the recorder\'s process id in this file while it records' -r -F
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l preserve -d 'Keep the ids of the N heaviest call traces, and write them as objects' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -s e -l event -d 'As --mode, by the name of an event' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l wall -d 'Mode wall, or with -e cpu both, at this interval' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -s i -l interval -d 'As --freq, by the time between two samples' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -s g -l call-graph -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l cstack -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -s n -l native -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l jstackdepth -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l max-stack -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l branch-filter -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -s j -l max-depth -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l all -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -s a -l all-cpus -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l cpu -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -s c -l count -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -s t -l tid -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l per-thread -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l threads -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l main-thread-only -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -s f -l format -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l file -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l nonblocking -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l gil -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l on-cpu -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l off-cpu -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l all-kernel -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l locals -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l nolineno -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l function -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l full-filenames -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -s u -l uid -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -s G -l cgroup -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -s D -l delay -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l no-inherit -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l inherit -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l mmap-pages -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l overwrite -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l tail-synthesize -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -s S -l snapshot -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l control -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l timestamp-filename -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -s b -l branch-any -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -s v -l verbose -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l no-open -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l save-only -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l unstable-presymbolicate -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l presymbolicate -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l lock -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l live -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l nativemem -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l nativelock -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l alloc -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -s I -l include -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l filter -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -s X -l exclude -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l timeout -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l no-kernel -d 'Leave out time spent in the kernel (not with --engine timer)'
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l force -d 'Replace an existing trace file'
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -s q -l quiet -d 'Print nothing but errors'
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l json -d 'Print the result as one JSON object'
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -s s -l subprocesses -d 'Record the descendants as well, also new ones'
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l follow-exec -d 'Go on when the target executes another program'
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l dry-run -d 'Print the steps of the recording, and do nothing'
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l debuginfod -d 'Ask the servers in DEBUGINFOD_URLS for missing debug information'
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l allow-seccomp -d 'Record although a seccomp filter may forbid the system calls'
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l verify-detach -d 'Compare the target before and after, and report differences'
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l collect -d 'Keep all samples in memory until the end'
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l idle -d 'As --mode wall'
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -s h -l help -d 'Print help; --help prints more than -h'
complete -c traceprof -n "__fish_traceprof_using_subcommand detach" -s p -l pid -d 'Process to clean up' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand detach" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c traceprof -n "__fish_traceprof_using_subcommand doctor" -s p -l pid -d 'Process to check (default: any process of this user)' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand doctor" -l json -d 'Write one JSON object'
complete -c traceprof -n "__fish_traceprof_using_subcommand doctor" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c traceprof -n "__fish_traceprof_using_subcommand stacks" -s p -l pid -d 'Process whose stacks to print' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand stacks" -s v -l verbose -d 'Add addresses, files, lines and stop times'
complete -c traceprof -n "__fish_traceprof_using_subcommand stacks" -l json -d 'Write one JSON object'
complete -c traceprof -n "__fish_traceprof_using_subcommand stacks" -l kernel -d 'Add kernel functions of sleeping threads (root)'
complete -c traceprof -n "__fish_traceprof_using_subcommand stacks" -l native-frames -d 'Show the native frames of interpreters, too'
complete -c traceprof -n "__fish_traceprof_using_subcommand stacks" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -s p -l pid -d 'Process to watch' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -s i -l interval -d 'Time between two tables: 1s to 1h' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -s n -l iterations -d 'Print N tables as plain text, and end' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -l by -d 'function, thread, module or line' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -l sort -d 'Sort order: self or total' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -l top -d 'Rows of a printed table' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -s m -l mode -d 'Measure cpu, wall or cpu,wall' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -l wall-interval -d 'How often threads are checked in mode wall: 1ms to 10s' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -s F -l freq -d 'Samples per second of CPU time [default: 199]' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -l engine -d 'What takes the samples: auto, signal, perf, or timer (see `record --help`)' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -l kernel-stacks -d 'Whether samples in the kernel show its own functions (see `record --help`)' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -s o -l output -d 'Keep the trace in this file' -r -F
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -l max-size -d 'Start a new temporary trace at this size: 16K to 1T' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -l cumulative -d 'Sort by the time since the start'
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -l idle -d 'Show idle threads, too (wall-clock time)'
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -l native-frames -d 'Show the native frames of interpreters, too (see `print --help`)'
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -l no-kernel -d 'Leave out time spent in the kernel (not with --engine timer)'
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -l force -d 'Replace an existing trace file'
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -s q -l quiet -d 'Print nothing but tables and errors'
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -l allow-seccomp -d 'Sample although a seccomp filter may forbid the system calls'
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -s h -l help -d 'Print help; --help prints more than -h'
complete -c traceprof -n "__fish_traceprof_using_subcommand info" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l top -d 'Print a table of the N heaviest functions' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l by -d 'Group by function, module, line, thread, ...' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l min-percent -d 'Sum up what is below this share [default: 0.5]' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l depth -d 'Sum up calls deeper than this' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l thread -d 'Only this thread; repeatable, `*` matches any text' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l process -d 'Only the threads of this process; repeatable, `*` matches any text' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l from -d 'From this time on: 2.5s, -30s, 50%, 14:03' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l to -d 'Up to this time: as --from, or +10s after it' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l time-range -d '--from and --to in one: 5s-10s, 14:03..14:05 or 1s+9s' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l mode -d 'CPU time (cpu) or all time (wall)' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l state -d 'Only these states: running, runnable, sleeping, disk, stopped' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l syscall -d 'Only these system calls, by name or number' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l span -d 'Only this span; repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l root-span -d 'Only below this root span (OpenTelemetry: trace id); repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l tag -d 'Only samples with this tag; repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -s I -l include -l focus -d 'Only stacks with this function' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -s X -l exclude -l ignore -d 'No stacks with this function' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -s o -l output -d 'File to write instead of the standard output' -r -F
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l color -d 'When to use colours: auto, always or never' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l summary -d 'Print the summary alone'
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l inverted -d 'Print callees first, and their callers below them'
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l timeline -d 'Print the calls of each thread in time order'
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -s t -l threads -d 'Print one tree for each thread'
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l aggregate -d 'Print one tree for all threads'
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -s v -l verbose -d 'Add file and line to every call'
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l idle -d 'Show idle threads, too (wall-clock time)'
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l follow -d 'Follow the trace until its recording ends'
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l gil -d 'Only samples of threads that held the GIL (Python)'
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l native-frames -d 'Show the native frames of interpreters, too'
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l source-maps -d 'Show original files, lines and names of JavaScript'
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l force -d 'Replace an existing file'
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l json -d 'Write JSON instead of text'
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -s h -l help -d 'Print help; --help prints more than -h'
complete -c traceprof -n "__fish_traceprof_using_subcommand dump" -l json -d 'Write JSON Lines: one JSON object a line'
complete -c traceprof -n "__fish_traceprof_using_subcommand dump" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -s f -l format -d 'Output format, such as flamegraph or pprof' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -s o -l output -d 'File to write (default, and with -: the standard output)' -r -F
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -l by -d 'Make span, root-span, task or tag:NAME the first frame' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -l thread -d 'Only this thread; repeatable, `*` matches any text' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -l process -d 'Only the threads of this process; repeatable, `*` matches any text' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -l from -d 'From this time on: 2.5s, -30s, 50%, 14:03' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -l to -d 'Up to this time: as --from, or +10s after it' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -l time-range -d '--from and --to in one: 5s-10s, 14:03..14:05 or 1s+9s' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -l mode -d 'CPU time (cpu) or all time (wall)' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -l state -d 'Only these states: running, runnable, sleeping, disk, stopped' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -l syscall -d 'Only these system calls, by name or number' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -l span -d 'Only this span; repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -l root-span -d 'Only below this root span (OpenTelemetry: trace id); repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -l tag -d 'Only samples with this tag; repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -s I -l include -l focus -d 'Only stacks with this function' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -s X -l exclude -l ignore -d 'No stacks with this function' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -l force -d 'Replace an existing file'
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -s t -l threads -d 'Make the thread\'s name the first frame'
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -l annotate -d 'Mark functions by the kind of their code'
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -l no-idle -d 'Leave out threads that only wait for work'
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -l gil -d 'Only samples of threads that held the GIL (Python)'
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -l native-frames -d 'Show the native frames of interpreters, too'
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -l source-maps -d 'Show original files, lines and names of JavaScript'
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -s h -l help -d 'Print help; --help prints more than -h'
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -s o -l output -d 'Page to write; - is the standard output' -r -F
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -l source -d 'Show source lines with their weights, from the files below this directory' -r -f -a "(__fish_complete_directories)"
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -l thread -d 'Only this thread; repeatable, `*` matches any text' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -l process -d 'Only the threads of this process; repeatable, `*` matches any text' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -l from -d 'From this time on: 2.5s, -30s, 50%, 14:03' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -l to -d 'Up to this time: as --from, or +10s after it' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -l time-range -d '--from and --to in one: 5s-10s, 14:03..14:05 or 1s+9s' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -l mode -d 'CPU time (cpu) or all time (wall)' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -l state -d 'Only these states: running, runnable, sleeping, disk, stopped' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -l syscall -d 'Only these system calls, by name or number' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -l span -d 'Only this span; repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -l root-span -d 'Only below this root span (OpenTelemetry: trace id); repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -l tag -d 'Only samples with this tag; repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -s I -l include -l focus -d 'Only stacks with this function' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -s X -l exclude -l ignore -d 'No stacks with this function' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -l open -d 'Open the page in a browser (xdg-open)'
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -l force -d 'Replace any existing file'
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -l no-idle -d 'Leave out threads that only wait for work'
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -l gil -d 'Only samples of threads that held the GIL (Python)'
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -l native-frames -d 'Show the native frames of interpreters, too'
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -l source-maps -d 'Show original files, lines and names of JavaScript'
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -s h -l help -d 'Print help; --help prints more than -h'
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l top -d 'Number of changes to print' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -s f -l format -d 'table, json, folded or flamegraph' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -s o -l output -d 'File to write instead of the standard output' -r -F
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l thread -d 'Only this thread; repeatable, `*` matches any text' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l process -d 'Only the threads of this process; repeatable, `*` matches any text' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l from -d 'From this time on: 2.5s, -30s, 50%, 14:03' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l to -d 'Up to this time: as --from, or +10s after it' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l time-range -d '--from and --to in one: 5s-10s, 14:03..14:05 or 1s+9s' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l mode -d 'CPU time (cpu) or all time (wall)' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l state -d 'Only these states: running, runnable, sleeping, disk, stopped' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l syscall -d 'Only these system calls, by name or number' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l span -d 'Only this span; repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l root-span -d 'Only below this root span (OpenTelemetry: trace id); repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l tag -d 'Only samples with this tag; repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -s I -l include -l focus -d 'Only stacks with this function' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -s X -l exclude -l ignore -d 'No stacks with this function' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l base-thread -d 'Only this thread; repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l base-process -d 'Only the threads of this process; repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l base-from -d 'From this time on; without --base-to up to the end' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l base-to -d 'Up to this time; without --base-from from the start' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l base-span -d 'Only this span; repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l base-root-span -d 'Only below this root span; repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l base-tag -d 'Only samples with this tag; repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l paths -d 'Compare every path from the root, too'
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l json -d 'Write one JSON object, as --format json'
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l force -d 'Replace an existing file'
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l gil -d 'Only samples of threads that held the GIL (Python)'
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l native-frames -d 'Show the native frames of interpreters, too'
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l source-maps -d 'Show original files, lines and names of JavaScript'
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -s h -l help -d 'Print help; --help prints more than -h'
complete -c traceprof -n "__fish_traceprof_using_subcommand verify" -l json -d 'Write one JSON object'
complete -c traceprof -n "__fish_traceprof_using_subcommand verify" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c traceprof -n "__fish_traceprof_using_subcommand recover" -l force -d 'Replace an existing trace file'
complete -c traceprof -n "__fish_traceprof_using_subcommand recover" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c traceprof -n "__fish_traceprof_using_subcommand reindex" -l full -d 'Index every call, not only those that are longer than a block'
complete -c traceprof -n "__fish_traceprof_using_subcommand reindex" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c traceprof -n "__fish_traceprof_using_subcommand completions" -s h -l help -d 'Print help (see more with \'--help\')'
