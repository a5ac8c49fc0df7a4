#!/usr/bin/env bash
# Sourced by scripts/bench, whose variables and functions it uses: the slowdown of programs in
# JavaScript, by traceprof and by the profiler of Node.js itself.
# shellcheck disable=SC2154 # dir and traceprof are such variables

# node_run FILE DEPTH OPTION [COMMAND...]: as python_run, with a Node.js that has this option.
node_run() {
    local pid
    "$node" "$3" tests/targets/fixed.js 4000 "$2" <"$dir/go" >"$dir/ran" &
    pid=$!
    exec 3>"$dir/go"
    # Its code is warm by then.
    sleep 3
    work_beside "$1" "$pid" "${@:4}"
}
# node_requests FILE OPTION [COMMAND...]: appends to FILE the number of requests that a server answers
# in ten seconds, beside a process that asks it without pause.
node_requests() {
    local pid profiler=""
    "$node" "$2" tests/targets/server.js >"$dir/served" &
    pid=$!
    until grep -q ready "$dir/served"; do sleep 0.05; done
    if (($# > 2)); then
        "${@:3}" --pid "$pid" >"$dir/said" 2>&1 &
        profiler=$!
    fi
    sleep 10
    kill "$pid"
    wait "$pid" || true
    [[ -z $profiler ]] || wait "$profiler" || cat "$dir/said" >&2
    awk '$1 == "requests" { print $2 }' "$dir/served" >>"$1"
}
# requests_row NAME FILE: the median, and that of the ratios to the runs without a profiler.
requests_row() {
    row "$1" "$(median <"$2") requests" \
        "$(paste -d' ' "$bare" "$2" | awk '{ print $2 / $1 }' | median | sed 's/$/ x/')"
}
measure_node() {
    local bare depth node own="--cpu-prof" nothing="--no-deprecation"
    local -a command=("$traceprof" record --freq 999 --force --output "$dir/out.trace")
    local tools="${CARGO_TARGET_DIR:-target}/tools/node"
    install_nodes "$tools"
    node="$(readlink -f "$tools/node_modules/node22/bin/node")"
    [[ -p $dir/go ]] || mkfifo "$dir/go"
    export NODE_OPTIONS="--cpu-prof-dir=$dir --cpu-prof-interval=1001"
    for depth in 5 200; do
        bare="$dir/node.$depth"
        for _ in 1 2 3 4 5; do
            node_run "$bare" "$depth" "$nothing"
            node_run "$bare.ours" "$depth" "$nothing" "${command[@]}"
            node_run "$bare.own" "$depth" "$own"
        done
        row "Node.js 22, $depth calls deep" "$(cut -d' ' -f1 "$bare" | median) ms" ""
        python_row "traceprof at 999 Hz, elapsed" "$bare.ours" 1
        python_row "traceprof at 999 Hz, CPU time" "$bare.ours" 2
        row "traceprof, each sample in the handler" "$(handler_us "$bare.ours") us" ""
        python_row "node --cpu-prof at 999 Hz, elapsed" "$bare.own" 1
        python_row "node --cpu-prof at 999 Hz, CPU time" "$bare.own" 2
    done
    python_frame_row "Node.js 22" "$dir/node.5.ours" 5 "$dir/node.200.ours" 200
    bare="$dir/served.bare"
    for _ in 1 2 3 4 5; do
        node_requests "$bare" "$nothing"
        node_requests "$bare.ours" "$nothing" "${command[@]}"
        node_requests "$bare.own" "$own"
    done
    row "Node.js 22, a server in ten seconds" "$(median <"$bare") requests" ""
    requests_row "traceprof at 999 Hz" "$bare.ours"
    requests_row "node --cpu-prof at 999 Hz" "$bare.own"
}
