#!/usr/bin/env bash
# Takes down what a process that hangs is doing, before anybody restarts it.
set -euo pipefail

usage() {
    cat <<'END'
Usage: hung-service.sh -p PID [-d SECONDS] [-o DIRECTORY]

Writes into one directory, for a ticket:

  stacks.txt    the stacks of all threads now, and stacks-later.txt after the recording
  doctor.txt    what this host and the process allow
  wall.trace    a recording of all time, also of threads that wait
  print.txt     what it shows
  errors.txt    what could not be had; each step is tried whatever became of those before

  -p PID        the process
  -d SECONDS    how long to record (default: 10)
  -o DIRECTORY  where to (default: hung-PID-DATE)
  -h, --help    this text

The exit code is 0 if everything is there. TRACEPROF names the command.
END
}

traceprof=${TRACEPROF:-traceprof}
pid='' seconds=10 directory=
while (($#)); do
    case $1 in
    -p) pid=${2:?-p needs a pid} && shift 2 ;;
    -d) seconds=${2:?-d needs seconds} && shift 2 ;;
    -o) directory=${2:?-o needs a directory} && shift 2 ;;
    -h | --help) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
    esac
done
if [[ -z $pid ]]; then
    usage >&2
    exit 2
fi
directory=${directory:-hung-$pid-$(date -u +%Y%m%dT%H%M%SZ)}
# Only its owner may read what a service does. A directory that is there has another incident in it.
umask 077
if ! mkdir "$directory"; then
    echo "choose another directory with -o" >&2
    exit 6
fi
errors=$directory/errors.txt trace=$directory/wall.trace
: >"$errors"

failed=0
# try FILE COMMAND...: the output of the command to a file, its errors to errors.txt.
try() {
    local file=$1
    shift
    if ! "$@" >"$file" 2>>"$errors"; then
        echo "failed: $*" | tee -a "$errors" >&2
        failed=1
    fi
}

# First what may be gone next.
try "$directory/stacks.txt" "$traceprof" stacks --verbose --pid "$pid"
try "$directory/doctor.txt" "$traceprof" doctor --pid "$pid"
try /dev/null "$traceprof" record --quiet --mode wall --pid "$pid" --duration "$seconds" --output "$trace"
if [[ -e $trace ]]; then
    try "$directory/print.txt" "$traceprof" print --idle "$trace"
fi
try "$directory/stacks-later.txt" "$traceprof" stacks --verbose --pid "$pid"
echo "everything is in $directory" >&2
exit "$failed"
