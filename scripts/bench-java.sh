#!/usr/bin/env bash
# Sourced by scripts/bench, whose variables and functions it uses: the slowdown of a Java program, and
# the recorder's CPU time beside it.
# shellcheck disable=SC2154 # dir and traceprof are such variables

# java_run FILE ROUNDS DEPTH OPTION [COMMAND...]: as python_run, with a machine that has this option.
java_run() {
    local pid
    "$java" "$4" -cp "$dir" Fixed "$2" "$3" <"$dir/go" >"$dir/ran" &
    pid=$!
    exec 3>"$dir/go"
    # Its code is warm by then.
    sleep 4
    work_beside "$1" "$pid" "${@:5}"
}
# ticks PID: the CPU time of a process in ms.
ticks() { awk -v hz="$(getconf CLK_TCK)" '{ print ($14 + $15) * 1000 / hz }' "/proc/$1/stat"; }
# share_row NAME PID SECONDS: the CPU time that a recorder uses in so many seconds.
share_row() {
    local before after
    before="$(ticks "$2")"
    sleep "$3"
    after="$(ticks "$2")"
    row "$1" "$(awk "BEGIN { printf \"%.2f %% of a core\", ($after - $before) / $3 / 10 }")" ""
}
# The recorder beside a program whose code no longer changes.
measure_java_warm() { # CLASS
    local pid recorder
    "$java" -cp "$dir" "$1" >/dev/null &
    pid=$!
    sleep 20
    "$traceprof" record -q --pid "$pid" --duration 30 --force --output "$dir/out.trace" &
    recorder=$!
    sleep 4
    share_row "recorder, $1 after 20 s" "$recorder" 20
    wait "$recorder"
    kill "$pid"
    wait "$pid" || true
}
# The recorder beside a compiler from its start.
measure_javac() {
    local at began recorder
    mkdir -p "$dir/javac/out"
    for at in $(seq 200); do
        sed "s/\\bFixed\\b/Fixed$at/g" tests/targets/Fixed.java >"$dir/javac/Fixed$at.java"
    done
    began="$(date +%s%N)"
    "$traceprof" record -q --force --output "$dir/out.trace" -- \
        javac -d "$dir/javac/out" "$dir"/javac/*.java &
    recorder=$!
    while kill -0 "$recorder" 2>/dev/null; do
        ticks "$recorder" >"$dir/ticks.now" 2>/dev/null && mv "$dir/ticks.now" "$dir/ticks"
        sleep 0.05
    done
    wait "$recorder"
    awk -v ns="$(($(date +%s%N) - began))" '{ printf "%.0f %.1f\n", $1, $1 * 1e8 / ns }' \
        "$dir/ticks" | {
        read -r ms percent
        row "recorder, javac from its start to its end" "$percent % of a core" "$ms ms"
    }
}
measure_java() {
    local option depth file java rounds
    local -a command=("$traceprof" record --freq 999 --force --output "$dir/out.trace")
    install_missing javac:default-jdk-headless
    java="$(readlink -f "$(command -v java)")"
    javac -d "$dir" tests/targets/Fixed.java tests/targets/Single.java tests/targets/JavaMix.java
    [[ -p $dir/go ]] || mkfifo "$dir/go"
    for option in -Xmixed -Xint; do
        rounds=12000
        [[ $option == -Xmixed ]] || rounds=600
        for depth in 5 200; do
            file="$dir/java$option.$depth"
            for _ in 1 2 3 4 5; do
                java_run "$file" "$rounds" "$depth" "$option"
                java_run "$file.ours" "$rounds" "$depth" "$option" "${command[@]}"
            done
            bare="$file"
            row "java $option, $depth calls deep" "$(cut -d' ' -f1 "$bare" | median) ms" ""
            python_row "traceprof at 999 Hz, elapsed" "$file.ours" 1
            python_row "traceprof at 999 Hz, CPU time of the thread" "$file.ours" 2
            row "traceprof, each sample in the handler" "$(handler_us "$file.ours") us" ""
        done
        python_frame_row "java $option" "$dir/java$option.5.ours" 5 "$dir/java$option.200.ours" 200
    done
    measure_java_warm Single
    measure_java_warm JavaMix
    measure_javac
}
