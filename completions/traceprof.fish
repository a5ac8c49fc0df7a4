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
complete -c traceprof -n "__fish_traceprof_needs_command" -f -a "record" -d 'Record a running process, or a program that is started for it'
complete -c traceprof -n "__fish_traceprof_needs_command" -f -a "detach" -d 'Remove what a recording left whose recorder and guardian were both killed'
complete -c traceprof -n "__fish_traceprof_needs_command" -f -a "doctor" -d 'Say what this host and a process allow, and what a recording would be'
complete -c traceprof -n "__fish_traceprof_needs_command" -f -a "stacks" -d 'Print the stacks of all threads of a process, as they are now'
complete -c traceprof -n "__fish_traceprof_needs_command" -f -a "top" -d 'Show where a process spends its time, in a table that is made anew every second'
complete -c traceprof -n "__fish_traceprof_needs_command" -f -a "info" -d 'Say of each module of a trace where its names came from, and how to get more'
complete -c traceprof -n "__fish_traceprof_needs_command" -f -a "print" -d 'Print a trace: one screen of summary, then call trees'
complete -c traceprof -n "__fish_traceprof_needs_command" -f -a "dump" -d 'List everything a trace holds, one object a line'
complete -c traceprof -n "__fish_traceprof_needs_command" -f -a "export" -d 'Convert a trace for another tool'
complete -c traceprof -n "__fish_traceprof_needs_command" -f -a "view" -d 'Write a page for a browser: flame graph, time line, functions, spans'
complete -c traceprof -n "__fish_traceprof_needs_command" -f -a "diff" -d 'Say what changed between two traces, or two parts of one'
complete -c traceprof -n "__fish_traceprof_needs_command" -f -a "verify" -d 'Check every byte of a trace and of its index'
complete -c traceprof -n "__fish_traceprof_needs_command" -f -a "recover" -d 'Save what can be read of a damaged or unfinished trace'
complete -c traceprof -n "__fish_traceprof_needs_command" -f -a "reindex" -d 'Write the index of a trace anew'
complete -c traceprof -n "__fish_traceprof_needs_command" -f -a "completions" -d 'Print the completion script for a shell'
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -s p -l pid -d 'Processes to record: 12, or 12,15; may be repeated' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -s P -l name -d 'Record all processes whose name or command line matches a regular expression' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l wait -d 'With --name: if there is no such process, wait until there is, so long at most' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -s d -l duration -d 'How long to record: 5, 5s, 500ms, 5m, 1h30m (default: until Ctrl-C or the target\'s end)' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -s o -l output -d 'Trace file to write; its index is written beside it, with .idx appended' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l max-size -d 'End the recording when the trace and its index have this size together: 500M, 2G' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l rotate -d 'Begin the next file when this one has this size (100M) or age (10m, 1h)' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l rotate-keep -d 'Keep only the last N files of --rotate' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l ring -d 'Keep only the last TIME (1s to 24h), and save it when asked to and at the end (see --ring-save)' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l ring-save -d 'When to save the ring: end (when asked to and at the end), or trigger (only when asked to)' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l trigger -d 'Save the ring when this begins: cpu>80% (of one processor), threads>500, or file:PATH appears' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -s F -l freq -d 'Samples per second of CPU time of each thread: 1 to 50000, or max (default: 199)' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -s i -l interval -d 'Time between samples instead of a rate: 20us to 1s, as in 10ms' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l max-overhead -d 'Lower the rate so that profiling costs no more than this share of the target\'s CPU time: 1%' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -s m -l mode -d 'What is measured: cpu, wall, or cpu,wall' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l wall-interval -d 'How often threads are looked at in mode wall: 1ms to 10s' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l engine -d 'What samples: auto, perf, or timer' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l ready-fd -d 'Write the line READY=1 to this open descriptor, and close it, when sampling is on' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l pidfile -d 'Keep the recorder\'s process id in this file while it records' -r -F
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l fail-under -d 'Exit with code 5 if the quality of the recording is below this' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l preserve -d 'Let the N heaviest call traces keep their ids, and write them as objects' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l compress -d 'How to compress the trace: none, fast, zstd, or zstd:LEVEL with a level from 1 to 22' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l durability -d 'When to force the trace to the disk: none, interval (about every second), or frame (always)' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l block-size -d 'Bytes of a block, which is what a reader decodes to look at one place: 1K to 1M' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -s e -l event -d 'As --mode, by the name of an event' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l wall -d 'Mode wall, or with -e cpu both, at this interval' -r
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
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -s s -l subprocesses -d 'Record the descendants as well: those that are there, and those that are started meanwhile'
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l follow-exec -d 'When the target executes another program, go on with that one'
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l force -d 'Replace an existing trace file'
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -s q -l quiet -d 'Print nothing but errors'
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l json -d 'Write what the recording came to as one JSON object to the standard output'
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l dry-run -d 'Say what would be done, and do nothing'
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l allow-seccomp -d 'Record a target whose seccomp filter is not known to permit what is done'
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l verify-detach -d 'Compare the target before the attach and after the detach, and tell what differs'
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l no-kernel -d 'Leave out time spent in the kernel, also where it could be seen (not with --engine timer)'
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l debuginfod -d 'Ask the servers of DEBUGINFOD_URLS for debug information that is not installed'
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l jvm-names -d 'Ask a Java virtual machine (JDK 17 or later) for the names of its compiled methods'
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l collect -d 'Keep all samples in memory and write them at the end, each thread\'s in one piece'
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l no-trace-ids -d 'Leave out the storage\'s id of each sample\'s call trace'
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l call-traces -d 'Also write each call trace as an object, to look up by its id'
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l stats -d 'Print what the storage has counted after the closing report: puts, drops, collisions, waits'
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -l idle -d 'Mode wall: threads that do not run, too'
complete -c traceprof -n "__fish_traceprof_using_subcommand record" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c traceprof -n "__fish_traceprof_using_subcommand detach" -s p -l pid -d 'Process to put back as it was' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand detach" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c traceprof -n "__fish_traceprof_using_subcommand doctor" -s p -l pid -d 'Process to look at; without it any process of this user is meant' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand doctor" -l json -d 'Write one JSON object'
complete -c traceprof -n "__fish_traceprof_using_subcommand doctor" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c traceprof -n "__fish_traceprof_using_subcommand stacks" -s p -l pid -d 'Process to look at' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand stacks" -s v -l verbose -d 'Say where each function is (address, offset, file and line), and how long each thread was stopped'
complete -c traceprof -n "__fish_traceprof_using_subcommand stacks" -l json -d 'Write one JSON object'
complete -c traceprof -n "__fish_traceprof_using_subcommand stacks" -l kernel -d 'Add the kernel\'s functions of threads that sleep in it; only root may see them'
complete -c traceprof -n "__fish_traceprof_using_subcommand stacks" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -s p -l pid -d 'Process to look at' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -s i -l interval -d 'How often the table is made anew: 1s to 1h' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -s n -l iterations -d 'Print so many tables one after the other, and end' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -l by -d 'What has a row: function, thread, module or line' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -l sort -d 'What rows are sorted by: self or total' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -l top -d 'Rows of a table that is printed; what is left out is summed up' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -s m -l mode -d 'What is measured: cpu, wall, or cpu,wall, which shows one of the two (key w)' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -l wall-interval -d 'How often threads are looked at in mode wall: 1ms to 10s' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -s F -l freq -d 'Samples per second of CPU time of each thread: 1 to 50000, or max (default: 199)' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -l engine -d 'What samples: auto, perf, or timer; `record --help` tells them apart' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -s o -l output -d 'Keep the trace in this file' -r -F
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -l max-size -d 'Begin a new temporary trace when one has grown to so much: 16K to 1T' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -l cumulative -d 'Sort by the time since the start, not by the last interval'
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -l idle -d 'Show idle threads too, which have a line together otherwise'
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -l force -d 'Replace an existing trace file'
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -l no-kernel -d 'Leave out time spent in the kernel, also where it could be seen'
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -l allow-seccomp -d 'Look at a process whose seccomp filter is not known to permit what is done'
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -l jvm-names -d 'Ask a Java virtual machine (JDK 17 or later) for the names of its compiled methods'
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -s q -l quiet -d 'Print nothing but tables and errors'
complete -c traceprof -n "__fish_traceprof_using_subcommand top" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c traceprof -n "__fish_traceprof_using_subcommand info" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l by -d 'What trees are made of: function, module, line, thread, process, span, root-span or tag:NAME' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l top -d 'Print a table of the N heaviest functions instead of trees, or of what --by says' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l color -d 'Colours: auto, always or never' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l thread -d 'Look at this thread only; repeatable, and `*` in a name stands for any text' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l process -d 'Look at the threads of this process only, where several were recorded; repeatable, `*` as above' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l from -d 'Look at samples from here on: 2.5s since the begin, -30s before the end, 50%, 14:03' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l to -d 'Look at samples up to here: as --from, or +10s after it' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l time-range -d 'The same as --from and --to: 5s-10s, 14:03..14:05 or 1s+9s' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l mode -d 'Measure CPU time (cpu) or all time (wall); by default all that was recorded' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l state -d 'Look at wall clock time in these states only: running, runnable, sleeping, disk, stopped' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l syscall -d 'Look at wall clock time in these system calls only, by name or number' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l span -d 'Look at samples in this span only: its id as it is printed, in hexadecimal, or dec:NUMBER; repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l root-span -d 'Look at samples below this root span only, with OpenTelemetry the trace id; repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l tag -d 'Look at samples with this value of a tag only; repeatable: any of one name, all of several' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -s I -l include -l focus -d 'Look at stacks only that have a function whose name matches a regular expression; repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -s X -l exclude -l ignore -d 'Leave out stacks that have a function whose name matches a regular expression; repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l min-percent -d 'Sum up calls and threads below this share; 0 shows everything' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l depth -d 'Sum up calls deeper than this' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -s o -l output -d 'File to write instead of the standard output' -r -F
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -s v -l verbose -d 'Say for every call where it is: file and line, or module and offset'
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l summary -d 'Print the summary alone, which is one screen: what was recorded, when the target was busy, the functions that used most'
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l timeline -d 'Print calls in the order of their times'
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -s t -l threads -d 'Give each thread a tree of its own'
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l aggregate -d 'One tree for all threads'
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l inverted -d 'Callees first: the functions that samples were taken in, below each those that called it'
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l idle -d 'Show idle threads too, which are summed up at the end otherwise'
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l follow -d 'Go on with what is added to the trace, until its recording ends'
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l json -d 'Write JSON instead of text: one object of recording, quality, strip, functions, trees or top; with --timeline one object a line'
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -l force -d 'Replace an existing file'
complete -c traceprof -n "__fish_traceprof_using_subcommand print" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c traceprof -n "__fish_traceprof_using_subcommand dump" -l json -d 'Write JSON Lines: one JSON object a line'
complete -c traceprof -n "__fish_traceprof_using_subcommand dump" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -s f -l format -d 'Format to write: folded, flamegraph, pprof, firefox, speedscope, perf-script, otlp or html' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -s o -l output -d 'File to write; - or none is the standard output' -r -F
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -l by -d 'Group folded stacks and flame graphs by span, root-span or tag:NAME, which is the first frame' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -l thread -d 'Look at this thread only; repeatable, and `*` in a name stands for any text' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -l process -d 'Look at the threads of this process only, where several were recorded; repeatable, `*` as above' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -l from -d 'Look at samples from here on: 2.5s since the begin, -30s before the end, 50%, 14:03' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -l to -d 'Look at samples up to here: as --from, or +10s after it' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -l time-range -d 'The same as --from and --to: 5s-10s, 14:03..14:05 or 1s+9s' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -l mode -d 'Measure CPU time (cpu) or all time (wall); by default all that was recorded' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -l state -d 'Look at wall clock time in these states only: running, runnable, sleeping, disk, stopped' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -l syscall -d 'Look at wall clock time in these system calls only, by name or number' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -l span -d 'Look at samples in this span only: its id as it is printed, in hexadecimal, or dec:NUMBER; repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -l root-span -d 'Look at samples below this root span only, with OpenTelemetry the trace id; repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -l tag -d 'Look at samples with this value of a tag only; repeatable: any of one name, all of several' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -s I -l include -l focus -d 'Look at stacks only that have a function whose name matches a regular expression; repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -s X -l exclude -l ignore -d 'Leave out stacks that have a function whose name matches a regular expression; repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -s t -l threads -d 'Keep threads apart in folded stacks and flame graphs: the thread\'s name is the first frame'
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -l no-idle -d 'Leave out threads that only wait for work'
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -l force -d 'Replace an existing file'
complete -c traceprof -n "__fish_traceprof_using_subcommand export" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -s o -l output -d 'Page to write; - is the standard output' -r -F
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -l thread -d 'Look at this thread only; repeatable, and `*` in a name stands for any text' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -l process -d 'Look at the threads of this process only, where several were recorded; repeatable, `*` as above' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -l from -d 'Look at samples from here on: 2.5s since the begin, -30s before the end, 50%, 14:03' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -l to -d 'Look at samples up to here: as --from, or +10s after it' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -l time-range -d 'The same as --from and --to: 5s-10s, 14:03..14:05 or 1s+9s' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -l mode -d 'Measure CPU time (cpu) or all time (wall); by default all that was recorded' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -l state -d 'Look at wall clock time in these states only: running, runnable, sleeping, disk, stopped' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -l syscall -d 'Look at wall clock time in these system calls only, by name or number' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -l span -d 'Look at samples in this span only: its id as it is printed, in hexadecimal, or dec:NUMBER; repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -l root-span -d 'Look at samples below this root span only, with OpenTelemetry the trace id; repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -l tag -d 'Look at samples with this value of a tag only; repeatable: any of one name, all of several' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -s I -l include -l focus -d 'Look at stacks only that have a function whose name matches a regular expression; repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -s X -l exclude -l ignore -d 'Leave out stacks that have a function whose name matches a regular expression; repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -l open -d 'Open the page with the program that the desktop opens pages with (xdg-open)'
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -l no-idle -d 'Leave out threads that only wait for work; by default they are folded into one line'
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -l force -d 'Replace an existing file'
complete -c traceprof -n "__fish_traceprof_using_subcommand view" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l thread -d 'Look at this thread only; repeatable, and `*` in a name stands for any text' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l process -d 'Look at the threads of this process only, where several were recorded; repeatable, `*` as above' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l from -d 'Look at samples from here on: 2.5s since the begin, -30s before the end, 50%, 14:03' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l to -d 'Look at samples up to here: as --from, or +10s after it' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l time-range -d 'The same as --from and --to: 5s-10s, 14:03..14:05 or 1s+9s' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l mode -d 'Measure CPU time (cpu) or all time (wall); by default all that was recorded' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l state -d 'Look at wall clock time in these states only: running, runnable, sleeping, disk, stopped' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l syscall -d 'Look at wall clock time in these system calls only, by name or number' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l span -d 'Look at samples in this span only: its id as it is printed, in hexadecimal, or dec:NUMBER; repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l root-span -d 'Look at samples below this root span only, with OpenTelemetry the trace id; repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l tag -d 'Look at samples with this value of a tag only; repeatable: any of one name, all of several' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -s I -l include -l focus -d 'Look at stacks only that have a function whose name matches a regular expression; repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -s X -l exclude -l ignore -d 'Leave out stacks that have a function whose name matches a regular expression; repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l base-thread -d 'Look at this thread only, before; repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l base-process -d 'Look at the threads of this process only, before, where several were recorded; repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l base-from -d 'Look at samples from here on, before; without --base-to up to the end' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l base-to -d 'Look at samples up to here, before; without --base-from from the begin on' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l base-span -d 'Look at samples in this span only, before; repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l base-root-span -d 'Look at samples below this root span only, before; repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l base-tag -d 'Look at samples with this value of a tag only, before; repeatable' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l top -d 'Most lines of changes' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -s f -l format -d 'Format to write: table, json, folded or flamegraph' -r
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -s o -l output -d 'File to write instead of the standard output' -r -F
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l paths -d 'Compare every path from the root too, not only every function'
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l json -d 'Write one JSON object, as --format json'
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -l force -d 'Replace an existing file'
complete -c traceprof -n "__fish_traceprof_using_subcommand diff" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c traceprof -n "__fish_traceprof_using_subcommand verify" -l json -d 'Write one JSON object'
complete -c traceprof -n "__fish_traceprof_using_subcommand verify" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c traceprof -n "__fish_traceprof_using_subcommand recover" -l force -d 'Replace an existing trace file'
complete -c traceprof -n "__fish_traceprof_using_subcommand recover" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c traceprof -n "__fish_traceprof_using_subcommand reindex" -l full -d 'List every call, not only those that are longer than a block'
complete -c traceprof -n "__fish_traceprof_using_subcommand reindex" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c traceprof -n "__fish_traceprof_using_subcommand completions" -s h -l help -d 'Print help (see more with \'--help\')'
