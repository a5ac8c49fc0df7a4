#!/usr/bin/env bash
# Sourced by scripts/bench, whose variables and functions it uses: the slowdown of a program in PHP,
# Ruby, Perl or Lua by traceprof, and what one more frame of such a program costs the handler.
# shellcheck disable=SC2154 # dir and traceprof are such variables

# scripting_run FILE DEPTH [COMMAND...]: as python_run, with the command and the amount of work that
# measure_scripting has set.
scripting_run() {
    local pid
    "${program[@]}" "$work" "$2" <"$dir/go" >"$dir/ran" &
    pid=$!
    exec 3>"$dir/go"
    work_beside "$1" "$pid" "${@:3}"
}
# measure_scripting NAME WORK COMMAND...: alternating, with the medians of five. The same work below
# few calls and below many tells the cost of a frame.
measure_scripting() {
    local name="$1" work="$2" bare depth shallow=5 deep=100
    local -a program=("${@:3}") command=("$traceprof" record --freq 999 --force --output "$dir/out.trace")
    if ! command -v "$3" >/dev/null 2>&1; then
        echo "SKIP: $3 is not installed, rows are missing" >&2
        return
    fi
    [[ -p $dir/go ]] || mkfifo "$dir/go"
    for depth in "$shallow" "$deep"; do
        bare="$dir/${name// /_}.$depth"
        for _ in 1 2 3 4 5; do
            scripting_run "$bare" "$depth"
            scripting_run "$bare.ours" "$depth" "${command[@]}"
        done
        row "$name, $depth calls deep" "$(cut -d' ' -f1 "$bare" | median) ms" ""
        python_row "traceprof at 999 Hz, elapsed" "$bare.ours" 1
        python_row "traceprof at 999 Hz, CPU time" "$bare.ours" 2
        row "traceprof, each sample in the handler" "$(handler_us "$bare.ours") us" ""
    done
    bare="$dir/${name// /_}"
    python_frame_row "$name" "$bare.$shallow.ours" "$shallow" "$bare.$deep.ours" "$deep"
    row "the handler below $deep calls, to that below $shallow" "" \
        "$(times "$(handler_us "$bare.$shallow.ours")" "$(handler_us "$bare.$deep.ours")")"
}
measure_php() { measure_scripting PHP 9000 php tests/targets/php/fixed.php; }
measure_ruby() { measure_scripting Ruby 1200 ruby tests/targets/ruby/fixed.rb; }
measure_perl() { measure_scripting Perl 2500 perl tests/targets/perl/fixed.pl; }
# The calls are those of the interpreter in both; the work below them is compiled in the first.
measure_luajit() {
    measure_scripting "LuaJIT" 3500 luajit tests/targets/lua/fixed.lua
    measure_scripting "LuaJIT -joff" 3500 luajit -joff tests/targets/lua/fixed.lua
}
