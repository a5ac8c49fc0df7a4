#!/usr/bin/env bash
# Records the process that uses most CPU time now, and prints where that time goes.
set -euo pipefail

usage() {
    cat <<'END'
Usage: busiest.sh [-d SECONDS] [-o FILE] [-- PRINT-OPTION...]

Finds the process that uses most CPU time during one second, records it, and prints the
trace. Only processes of this user count; for root, all do.

  -d SECONDS  how long to record (default: 10)
  -o FILE     keep the trace in this file (default: it is removed)
  -h, --help  this text

Options after -- go to `traceprof print`. TRACEPROF is the command to run.
END
}

traceprof=${TRACEPROF:-traceprof}
seconds=10 output=
while (($#)); do
    case $1 in
    -d) seconds=${2:?-d needs seconds} && shift 2 ;;
    -o) output=${2:?-o needs a file} && shift 2 ;;
    -h | --help) usage && exit 0 ;;
    --) shift && break ;;
    *) usage >&2 && exit 2 ;;
    esac
done

# Prints "TICKS PID" for each process that can be recorded. Its CPU time is in fields 14 and 15 of
# stat.
ticks() {
    local stat pid line fields
    for stat in /proc/[0-9]*/stat; do
        pid=${stat#/proc/} pid=${pid%/stat}
        ((pid != $$)) || continue
        ((EUID == 0)) || [[ -O /proc/$pid ]] || continue
        # A kernel thread has no program, and any process may have exited meanwhile.
        [[ -n $(readlink "/proc/$pid/exe" 2>/dev/null) ]] || continue
        { IFS= read -r line <"$stat"; } 2>/dev/null || continue
        # The name may contain spaces and brackets; it ends at the last bracket.
        read -ra fields <<<"${line##*) }"
        echo "$((fields[11] + fields[12])) $pid"
    done
}

declare -A before
while read -r used pid; do before[$pid]=$used; done < <(ticks)
sleep 1
busiest=$(ticks | while read -r used pid; do
    echo "$((used - ${before[$pid]:-$used})) $pid"
done | sort -n | tail -n 1)
read -r used pid <<<"$busiest"
if ((used == 0)); then
    echo "no process used CPU time in the last second" >&2
    exit 1
fi
command=$(tr '\0' ' ' <"/proc/$pid/cmdline" | tr -c '[:print:]' '?')
percent=$((used * 100 / $(getconf CLK_TCK)))
echo "process $pid ($command) used $percent % of a processor in the last second" >&2

if [[ -z $output ]]; then
    directory=$(mktemp -d)
    trap 'rm -rf "$directory"' EXIT
    output=$directory/busiest.trace
fi
"$traceprof" record --pid "$pid" --duration "$seconds" --output "$output"
"$traceprof" print "$@" "$output"
[[ -z ${directory:-} ]] || echo "the trace was removed; -o FILE keeps it" >&2
