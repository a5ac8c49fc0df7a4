# Sourced by scripts/bench: a build of many short processes, with its children, beside perf.
# shellcheck shell=bash

# make_build DIR: 60 small C files, and a makefile for them.
make_build() {
    local number
    mkdir -p "$1"
    for number in $(seq 60); do
        cat >"$1/f$number.c" <<EOF
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int f$number(int x) { char b[99]; sprintf(b, "%d", x); return strlen(b) + atoi(b) * $number; }
int g$number(int *a, int n) {
    int s = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            s += a[i] * a[j] ^ $number;
    return s;
}
EOF
    done
    # shellcheck disable=SC2016 # make expands them
    printf 'all: $(patsubst %%.c,%%.o,$(wildcard *.c))\n%%.o: %%.c\n\tgcc -O2 -c $< -o $@\n' >"$1/Makefile"
}

# build FILE COMMAND...: builds under a command. Appends the elapsed time in ms.
build() {
    local began file="$1"
    rm -f "$dir/build/"*.o
    began=$(date +%s%N)
    "${@:2}" make -s -j2 -C "$dir/build" >"$dir/said" 2>&1 || cat "$dir/said" >&2
    echo $((($(date +%s%N) - began) / 1000000)) >>"$file"
}

ours_with_children() {
    "$traceprof" record -q --force --subprocesses --output "$dir/out.trace" -- "$@"
}

measure_children() {
    local turn
    install_missing make:make gcc:gcc
    make_build "$dir/build"
    for turn in 1 2 3 4 5; do
        build "$dir/build.bare"
        build "$dir/build.ours" ours_with_children
        if command -v perf >/dev/null 2>&1; then
            build "$dir/build.perf" perf record -q -e cpu-clock -F 199 -g -o "$dir/perf.data" --
        fi
    done
    base="$(least "$dir/build.bare")"
    slowdown "build of 60 small files, not recorded" build.bare
    slowdown "traceprof --subprocesses, 199 Hz" build.ours
    if [[ -e $dir/build.perf ]]; then
        slowdown "perf record -g, 199 Hz" build.perf
    else
        echo "SKIP: perf is not installed, a row is missing" >&2
    fi
    rm -f "$dir/build/"*.o
    # The shell prints the CPU time of its children, as the kernel charges it.
    # shellcheck disable=SC2016
    "$traceprof" record -q --json --force --subprocesses --output "$dir/out.trace" -- \
        bash -c 'make -s -j2 -C "$0"; times' "$dir/build" >"$dir/said"
    "$traceprof" print --json --summary "$dir/out.trace" >"$dir/summary"
    python3 - "$dir/said" "$dir/summary" <<'EOF' | while IFS=, read -r name value ratio; do row "$name" "$value" "$ratio"; done
import json, re, sys
said = open(sys.argv[1]).read()
words = re.findall(r"(\d+)m([\d.]+)s", said)
used = sum(int(minutes) * 60 + float(seconds) for minutes, seconds in words)
figures = json.loads(said.splitlines()[-1])["figures"]
period = json.load(open(sys.argv[2]))["recording"]["period_ns"]
sampled = figures["weight_sum"] * period / 1e9
print(f"CPU time of the build that samples stand for,{sampled:.2f} of {used:.2f} s,{sampled / used:.3f}")
EOF
}
