#!/usr/bin/env bash
# Collects what a hung process is doing, before it is restarted.
set -euo pipefail

usage() {
    cat <<'END'
Usage: hung-service.sh -p PID [-d SECONDS] [-o DIRECTORY]

Writes into one directory, for a ticket:

  stacks.txt    the stacks of all threads now; stacks-later.txt has them after the recording
  doctor.txt    what this host and the process allow
  wall.trace    a recording of all time, threads that wait included
  print.txt     the recording as text
  errors.txt    which steps failed, and why; every step is tried, even after a failure

  -p PID        the process
  -d SECONDS    how long to record (default: 10)
  -o DIRECTORY  where to write (default: hung-PID-DATE)
  -h, --help    this text

The exit code is 0 if every step succeeded. TRACEPROF is the command to run.
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
# Only the owner may read what a service does. An existing directory belongs to another incident.
umask 077
if ! mkdir "$directory"; then
    echo "choose another directory with -o" >&2
    exit 6
fi
errors=$directory/errors.txt trace=$directory/wall.trace
: >"$errors"

failed=0
# try FILE COMMAND...: writes the output of the command to a file, and its errors to errors.txt.
try() {
    local file=$1
    shift
    if ! "$@" >"$file" 2>>"$errors"; then
        echo "failed: $*" | tee -a "$errors" >&2
        failed=1
    fi
}

# The stacks first, because the process may exit at any time.
try "$directory/stacks.txt" "$traceprof" stacks --verbose --pid "$pid"
try "$directory/doctor.txt" "$traceprof" doctor --pid "$pid"
try /dev/null "$traceprof" record -q -m wall -p "$pid" -d "$seconds" -o "$trace"
if [[ -e $trace ]]; then
    try "$directory/print.txt" "$traceprof" print --idle "$trace"
fi
try "$directory/stacks-later.txt" "$traceprof" stacks --verbose --pid "$pid"
echo "everything is in $directory" >&2
exit "$failed"
