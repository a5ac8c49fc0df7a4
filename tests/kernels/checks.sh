#!/usr/bin/env bash
# What traceprof does on the kernel of a guest that scripts/test-kernels has booted. Prints to the
# second serial line: ok or FAILED, the name of the check and the reason, separated by tabs.
#
# A guest has one or two slow processors. So nothing here depends on times or on shares.
# shellcheck disable=SC2030,SC2031 # each check has a process and variables of its own
set -u
export PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb HOME=/run TMPDIR=/run LC_ALL=C.UTF-8
here=$(dirname "$0")
# shellcheck source=tests/kernels/steps.sh
source "$here/steps.sh"
# shellcheck source=tests/kernels/levels.sh
source "$here/levels.sh"

doctor_agrees() {
    start root split
    run doctor --pid "$pid"
    expect_code 0
    expect "Linux $major.$minor"
    if at_least 6.1; then
        expect 'perf_event_open returns an event'
    else
        expect 'Linux 6.1'
    fi
    if ! at_least 5.14; then
        expect 'MADV_POPULATE_WRITE (Linux 5.14)'
    fi
    ends_as_before
}

# attach USER ENGINE
attach() {
    local engine=$2
    as=$1
    start "$as" split
    record --engine "$engine" --pid "$pid" --duration 2 --freq 997 --verify-detach
    if [[ $engine == perf ]] && ! at_least 6.1; then
        expect_code 1
        expect 'use Linux 6.1 or later, or --engine timer'
    else
        expect_code 0
        expect 'the target is as it was'
        stacks_have main caller_alpha kernel_alpha kernel_beta
    fi
    ends_as_before
}

# auto USER: the engine that the kernel has.
auto() {
    as=$1
    start "$as" split
    record --pid "$pid" --duration 2 --freq 997
    expect_code 0
    if at_least 6.1; then
        expect 'with the perf task clock engine'
    else
        expect 'with the thread CPU timer engine'
    fi
    stacks_have kernel_alpha
    ends_as_before
}

# wall USER ENGINE: a sleeping and a busy thread.
wall() {
    as=$1
    start "$as" sleeper nanosleep burn
    record --engine "$2" --mode wall --pid "$pid" --duration 3
    expect_code 0
    stacks_have burn block 'sleeping in clock_nanosleep'
    ends_as_before
    expect_of_target 'eintr 0'
}

# cpu_and_wall USER
cpu_and_wall() {
    as=$1
    start "$as" sleeper futex burn
    record --mode cpu,wall --pid "$pid" --duration 3 --freq 499
    expect_code 0
    stacks_have burn 'sleeping in futex'
    ends_as_before
    expect_of_target 'eintr 0'
}

# stacks USER
stacks() {
    as=$1
    start "$as" sleeper poll burn
    run stacks --pid "$pid"
    expect_code 0
    expect 'asleep'
    expect ' block '
    expect ' burn '
    ends_as_before
    expect_of_target 'eintr 0'
}

# spawn USER ENGINE
spawn() {
    as=$1
    record --engine "$2" --freq 997 -- "$programs/exitcode" 42 200 1500
    expect_code 0
    expect 'exited with code 42'
    stacks_have main second_phase
    nothing_is_left
}

# killed_recorder USER ENGINE
killed_recorder() {
    as=$1
    start "$as" split
    record_in_background --engine "$2" --pid "$pid" --freq 997
    wait_for has_samples
    kill -KILL "$recorder"
    is_as_before
    run verify "$trace"
    expect_code 8
    stacks_have kernel_alpha
    record --engine timer --pid "$pid" --duration 1 --freq 997
    expect_code 0
    ends_as_before
}

# killed_guardian USER ENGINE
killed_guardian() {
    as=$1
    start "$as" split
    record_in_background --engine "$2" --pid "$pid" --freq 997
    wait_for has_samples
    kill -KILL "$guardian"
    pause 1
    kill -INT "$recorder" 2>/dev/null || true
    ended_recorder
    ends_as_before
}

# both_killed USER: nobody is left to clean up but detach.
both_killed() {
    as=$1
    start "$as" split
    record_in_background --engine timer --pid "$pid" --freq 997
    wait_for has_samples
    kill -STOP "$guardian"
    kill -KILL "$recorder" "$guardian"
    pause 1
    run detach --pid "$pid"
    expect_code 0
    expect 'removed from process'
    ends_as_before
}

killed_target() {
    start root split
    record_in_background --engine timer --pid "$pid" --freq 997
    wait_for has_samples
    kill -KILL "$pid"
    ended_recorder
    expect_code 0
    stacks_have kernel_alpha
    nothing_is_left
}

# python USER ENGINE
python() {
    as=$1
    started "$as" /usr/bin/python3 "$programs/script.py"
    record --engine "$2" --pid "$pid" --duration 3 --freq 499
    expect_code 0
    stacks_have fibonacci
    stacks_have sort_words
    ends_as_before
    expect_of_target 'wrong 0'
}

# again ENGINE: nothing adds up.
again() {
    start root split
    for _ in 1 2 3 4 5; do
        record --engine "$1" --pid "$pid" --duration 0.5 --freq 997 --verify-detach
        expect_code 0
    done
    ends_as_before
}

# eintr ENGINE: next to no call of any kind returns EINTR, and none another wrong result.
eintr() {
    local line count few=2
    start root eintr
    record --engine "$1" --mode cpu,wall --pid "$pid" --duration 5 --freq 997
    expect_code 0
    kill -USR1 "$pid"
    wait_for has "$directory/target" $'\nwrong '
    grep -E '^(eintr|wrong|errno)_.* [1-9]' "$directory/target" || true
    while read -r line count; do
        case $line in
        # Before Linux 5.19, its time limit was counted in ticks, and it ends up to one too early.
        wrong_semtimedop) at_least 5.19 || continue ;;
        # The signal that starts a timer may meet the first moment of a wait, which is longer here:
        # see traceprof-limits(7).
        eintr) ((count > few)) || continue ;;
        wrong_*) ;;
        *) continue ;;
        esac
        ((count == 0)) || fail "the target printed: $line $count"
    done <"$directory/target"
    kill -TERM "$pid"
    ended 17 "$pid"
    nothing_is_left
}

# spans USER: the spans that a program publishes are on its samples.
spans() {
    as=$1
    start "$as" spans 0
    record --engine timer --pid "$pid" --duration 4 --freq 499
    expect_code 0
    run print --by span "$trace"
    expect_code 0
    expect 'span=0000000000003333'
    # It starts threads all the time, so it never looks the same twice.
    kill -TERM "$pid"
    ended 17 "$pid"
    nothing_is_left
}

# crowd ENGINE
crowd() {
    start root many_threads 60
    record --engine "$1" --mode wall --pid "$pid" --duration 2
    expect_code 0
    expect '61 seen'
    ends_as_before
}

# blocked ENGINE: a thread that blocks every signal.
blocked() {
    start root blocked
    record --engine "$1" --pid "$pid" --duration 2 --freq 997
    expect_code 0
    stacks_have open_work
    ends_as_before
}

# children ENGINE: forks, executed programs, and crashes during a recording.
children() {
    start root forks
    record --engine "$1" --pid "$pid" --duration 3 --freq 997
    expect_code 0
    kill -TERM "$pid"
    ended 17 "$pid"
    if grep -E '^wrong_[0-9] [1-9]' "$directory/target"; then
        fail 'a child of the target ended wrongly'
    fi
    nothing_is_left
}

# A child is found late on a slow guest.
subprocesses() {
    record --subprocesses --freq 997 -- /bin/sh -c "'$programs/exitcode' 3 200 6000; exit 4"
    expect_code 0
    expect 'exited with code 4'
    stacks_have second_phase
    nothing_is_left
}

# A filter that lets all pass that a recording needs, and one that kills.
filters() {
    local reboot=169 shmat=30
    start root jailed but "$reboot" 0x80000000
    record --engine timer --pid "$pid" --duration 2 --freq 997
    expect_code 0
    ends_as_before
    start root jailed but "$shmat" 0x80000000
    record --engine timer --pid "$pid" --duration 2
    expect_code 3
    expect 'shmat'
    ends_as_before
}

ring() {
    start root split
    record_in_background --engine timer --pid "$pid" --freq 997 --ring 10s
    pause 4
    kill -USR2 "$recorder"
    wait_for test -e "${trace%.trace}-1.trace"
    kill -INT "$recorder"
    ended_recorder
    expect_code 0
    stacks_have kernel_alpha
    trace=${trace%.trace}-1.trace
    stacks_have kernel_alpha
    ends_as_before
}

# A process of another pid namespace and another IPC namespace.
namespaces() {
    local outer
    setsid unshare --pid --ipc --fork --mount-proc "$programs/split" >"$directory/target" 2>&1 &
    outer=$!
    wait_for has "$directory/target" ready
    pid=$(ps -o pid= --ppid "$outer" | tr -d ' ')
    snapshot
    before=$snapshot
    timeout 300 nsenter --ipc --target "$pid" "$traceprof" record --engine timer --pid "$pid" \
        --duration 2 --freq 997 --output "$trace" >"$directory/output" 2>&1 && code=0 || code=$?
    expect_code 0
    stacks_have kernel_alpha
    is_as_before
    kill -TERM "$pid"
    ended 17 "$outer"
}

# What each kernel is checked for in every run of scripts/test.
set_up
check 'doctor' doctor_agrees
check 'root: attach, timers' attach root timer
check 'root: attach, perf events' attach root perf
check 'nobody: attach, timers' attach nobody timer
check 'nobody: attach, perf events' attach nobody perf
check 'root: wall' wall root auto
check 'nobody: stacks' stacks nobody
check 'nobody: spawn' spawn nobody auto
check 'nobody: python3' python nobody auto
check 'nobody: killed recorder' killed_recorder nobody auto
check 'root: killed guardian' killed_guardian root auto
check 'both killed, then detach' both_killed nobody
if [[ $LIST == all ]]; then
    check 'nobody: wall' wall nobody auto
    check 'root: stacks' stacks root
    check 'root: spawn' spawn root auto
    check 'root: python3' python root auto
    check 'root: killed recorder' killed_recorder root auto
    check 'nobody: killed guardian' killed_guardian nobody auto
    for user in root nobody; do
        check "$user: attach, auto" auto $user
        check "$user: wall, timers" wall $user timer
        check "$user: cpu and wall" cpu_and_wall $user
        check "$user: spans" spans $user
        check "$user: killed recorder, timers" killed_recorder $user timer
        check "$user: killed guardian, timers" killed_guardian $user timer
        check "$user: python3, timers" python $user timer
    done
    for engine in timer auto; do
        check "$engine: five times" again $engine
        check "$engine: no EINTR" eintr $engine
        check "$engine: 61 threads" crowd $engine
        check "$engine: blocked signals" blocked $engine
        check "$engine: forks" children $engine
    done
    check 'killed target' killed_target
    check 'subprocesses' subprocesses
    check 'seccomp filters' filters
    check 'ring' ring
    check 'namespaces' namespaces
fi
check_levels
report 'done'
