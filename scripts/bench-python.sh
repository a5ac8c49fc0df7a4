#!/usr/bin/env bash
# Sourced by scripts/bench, whose variables and functions it uses: the slowdown of a Python program by
# traceprof and by py-spy.
# shellcheck disable=SC2154 # dir and traceprof are such variables

# python_run FILE DEPTH [COMMAND...]: appends to FILE the elapsed time and the CPU time of the fixed
# work below so many calls, in ms, by its own clocks. Appends to FILE.taken the samples a second, and
# to FILE.said the output of the profiler, which is this command with the process to attach to. The
# work begins when the profiler takes samples.
python_run() {
    local file="$1" depth="$2" pid said="$dir/said"
    "$python" tests/targets/python/fixed.py 12000 "$depth" <"$dir/go" >"$dir/ran" &
    pid=$!
    exec 3>"$dir/go"
    work_beside "$file" "$pid" "${@:3}"
    # "samples   1,234 (...)" here, and "Samples: 1234 Errors: 0" there.
    awk 'NR == FNR { if ($1 == "elapsed_ms") ms = $2; next }
        tolower($0) ~ /samples:? +[0-9]/ { gsub(/,/, ""); match(tolower($0), /samples:? +/)
            n = substr($0, RSTART + RLENGTH) + 0 }
        END { if (n) printf "%.0f\n", n / ms * 1000 }' "$dir/ran" "$said" >>"$file.taken"
}
median() { sort -n | awk '{ all[NR] = $1 } END { if (NR) print all[int((NR + 1) / 2)] }'; }
# python_row NAME FILE COLUMN: the median of a column, and that of its ratios to the runs without a
# profiler.
python_row() {
    local ms ratio
    ms="$(cut -d' ' -f"$3" "$2" | median)"
    ratio="$(paste -d' ' "$bare" "$2" |
        awk -v at="$3" '{ print $(at + 2) / ($at ? $at : 1) }' | median)"
    row "$1" "$ms ms" "$(awk -v ratio="$ratio" 'BEGIN { printf "%.3f x", ratio }')"
}
python_rows() { # NAME FILE
    python_row "$1, elapsed" "$2" 1
    python_row "$1, CPU time" "$2" 2
    row "$1, samples taken" "$(median <"$2.taken") /s" ""
    handler_us "$2" | {
        read -r us || return 0
        row "$1, each sample in the handler" "$us us" ""
    }
}
# handler_us FILE: the median time of a sample in the handler, if the profiler has one.
handler_us() { sed -nE 's/.*each ([0-9.]+) us in the handler, .*/\1/p' "$1.said" | median; }
# What one more Python frame adds to a sample in the handler.
python_frame_row() { # NAME SHALLOW_FILE SHALLOW_DEPTH DEEP_FILE DEEP_DEPTH
    local shallow deep
    shallow="$(handler_us "$2")" deep="$(handler_us "$4")"
    row "$1, one more frame in the handler" \
        "$(awk "BEGIN { printf \"%.0f ns\", ($deep - $shallow) * 1000 / ($5 - $3) }")" ""
}
# The elapsed time, too, because py-spy stops the program for each sample. The commands alternate, and
# each ratio is to the run before it. Takes the medians of five.
measure_python() {
    local depth name bare python py_spy="${CARGO_TARGET_DIR:-target}/tools/py-spy/bin/py-spy"
    local -a command names=(traceprof_at_999_Hz traceprof_--engine_perf_at_999_Hz)
    local -A how=(
        [traceprof_at_999_Hz]="$traceprof record --freq 999 --force --output $dir/out.trace"
        [traceprof_--engine_perf_at_999_Hz]="$traceprof record --engine perf --freq 999 --force --output $dir/out.trace"
    )
    python="$(readlink -f /usr/bin/python3)"
    unpack_py_spy "${py_spy%/bin/py-spy}"
    if [[ -x $py_spy ]]; then
        names+=(py-spy_at_100_Hz py-spy_at_999_Hz py-spy_--nonblocking_at_999_Hz)
        how[py-spy_at_100_Hz]="$py_spy record --rate 100 --format raw --output $dir/out.raw"
        how[py-spy_at_999_Hz]="$py_spy record --rate 999 --format raw --output $dir/out.raw"
        how[py-spy_--nonblocking_at_999_Hz]="${how[py-spy_at_999_Hz]} --nonblocking"
    else
        echo "SKIP: py-spy is not to be had, rows are missing" >&2
    fi
    mkfifo "$dir/go"
    for depth in 5 100 500; do
        bare="$dir/python.$depth"
        for _ in 1 2 3 4 5; do
            python_run "$bare" "$depth"
            for name in "${names[@]}"; do
                read -ra command <<<"${how[$name]}"
                python_run "$bare.$name" "$depth" "${command[@]}"
            done
        done
        row "$("$python" --version), $depth calls deep" "$(cut -d' ' -f1 "$bare" | median) ms" ""
        for name in "${names[@]}"; do
            python_rows "${name//_/ }" "$bare.$name"
        done
    done
    for name in "${names[@]:0:2}"; do
        python_frame_row "${name//_/ }" "$dir/python.5.$name" 5 "$dir/python.100.$name" 100
    done
}
