#!/usr/bin/env bash
# Records a service before and after a change, and prints what changed.
set -euo pipefail

usage() {
    cat <<'END'
Usage: before-after.sh -p PID [-n PID-FILE] [-d SECONDS] [-o DIRECTORY] [-- DEPLOY-COMMAND...]

Records process PID, makes the change, records again, and prints `traceprof diff`.
DEPLOY-COMMAND makes the change. Without one, the script waits until you press Enter.

  -p PID        the process before the change
  -n PID-FILE   file with the pid after the change (default: the same pid)
  -d SECONDS    how long each recording lasts (default: 30)
  -o DIRECTORY  directory for before.trace, after.trace and diff.txt (default: .)
  -h, --help    this text

TRACEPROF is the command to run.
END
}

traceprof=${TRACEPROF:-traceprof}
pid='' pid_file='' seconds=30 directory=.
while (($#)); do
    case $1 in
    -p) pid=${2:?-p needs a pid} && shift 2 ;;
    -n) pid_file=${2:?-n needs a file} && shift 2 ;;
    -d) seconds=${2:?-d needs seconds} && shift 2 ;;
    -o) directory=${2:?-o needs a directory} && shift 2 ;;
    -h | --help) usage && exit 0 ;;
    --) shift && break ;;
    *) usage >&2 && exit 2 ;;
    esac
done
if [[ -z $pid ]]; then
    usage >&2
    exit 2
fi

mkdir -p "$directory"
before=$directory/before.trace after=$directory/after.trace
# Does not overwrite a recording, and does not deploy a change that could not be compared.
for file in "$before" "$after"; do
    if [[ -e $file ]]; then
        echo "$file exists already: choose another directory with -o" >&2
        exit 6
    fi
done
"$traceprof" record --pid "$pid" --duration "$seconds" --output "$before"
if (($#)); then
    "$@"
else
    if ! read -r -p "Make the change, then press Enter: "; then
        echo "no Enter was read; $before is kept" >&2
        exit 1
    fi
fi
if [[ -n $pid_file ]]; then
    pid=$(<"$pid_file")
fi
"$traceprof" record --pid "$pid" --duration "$seconds" --output "$after"
"$traceprof" diff "$before" "$after" | tee "$directory/diff.txt"
