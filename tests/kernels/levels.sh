#!/usr/bin/env bash
# Sourced by checks.sh: what each level of kernel.perf_event_paranoid and kernel.yama.ptrace_scope
# permits. The last level of the latter cannot be left again.
# shellcheck disable=SC2154 # the variables are those of steps.sh

# paranoid LEVEL: nobody with each engine.
paranoid() {
    local level=$1
    echo "$level" >/proc/sys/kernel/perf_event_paranoid
    as=nobody
    start nobody split
    record --engine perf --pid "$pid" --duration 1 --freq 997
    if ! at_least 6.1; then
        expect_code 1
    elif ((level > 2)); then
        expect_code 3
        expect 'perf_event_paranoid'
    else
        expect_code 0 4
        if ((level > 1)); then
            expect 'user mode'
        else
            expect 'user and kernel mode'
        fi
    fi
    # Timers need no permission.
    record --engine auto --pid "$pid" --duration 1 --freq 997
    expect_code 0 4
    as=root
    record --pid "$pid" --duration 1 --freq 997
    expect_code 0 4
    expect 'user and kernel mode'
    ends_as_before
}

# yama LEVEL: nobody and root attach to a process that permits it to nobody else, and start one.
yama() {
    local level=$1
    echo "$level" >/proc/sys/kernel/yama/ptrace_scope
    for as in nobody root; do
        started "$as" /bin/bash -c \
            'trap "exit 17" TERM; echo ready; while :; do for i in {1..9999}; do :; done; done'
        record --engine timer --pid "$pid" --duration 1 --freq 997
        if ((level == 0)) || [[ $as == root ]] && ((level < 3)); then
            # It may attach, with samples or without.
            expect_code 0 4
        else
            expect_code 3
            expect "ptrace_scope is $level"
            expect Yama
        fi
        ends_as_before
        record --engine timer --freq 997 -- "$programs/exitcode" 42 200 300
        if ((level < 2)) || [[ $as == root ]] && ((level < 3)); then
            expect_code 0 4
            expect 'exited with code 42'
        else
            expect_code 3
            expect "ptrace_scope is $level"
        fi
    done
}

check_levels() {
    local level
    for level in -1 0 1 2 3; do
        if [[ $LIST == all || $level == 3 ]]; then
            check "perf_event_paranoid $level" paranoid "$level"
        fi
    done
    echo 2 >/proc/sys/kernel/perf_event_paranoid
    for level in 0 1 2 3; do
        if [[ $LIST == all || $level == 2 ]]; then
            check "yama $level" yama "$level"
        fi
    done
}
