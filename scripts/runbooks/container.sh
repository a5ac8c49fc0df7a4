#!/usr/bin/env bash
# Records a process in a container: from the host, or with a traceprof inside of the container.
set -euo pipefail

usage() {
    cat <<'END'
Usage: container.sh [-i] -p PID [-d SECONDS] [-o FILE]

From the host (needs root there, and nothing in the container):

  container.sh -p PID       PID as the host sees it, for example from
                            docker inspect -f '{{.State.Pid}}' NAME
                            crictl inspect -o go-template --template '{{.info.pid}}' ID

As if in the container, for what only its own pids are known of:

  container.sh -i -p PID    PID is any process of the container, as the host sees it; what is
                            recorded is process 1 of its pid namespace

  -p PID      the process
  -i          enter its pid namespace, with the host's traceprof and files
  -d SECONDS  how long to record (default: 10)
  -o FILE     trace file (default: container.trace)
  -h, --help  this text

In a container itself, with the capability SYS_PTRACE, it is `traceprof record --pid 1` as anywhere.
TRACEPROF names the command.
END
}

traceprof=${TRACEPROF:-traceprof}
pid='' inside='' seconds=10 output=container.trace
while (($#)); do
    case $1 in
    -p) pid=${2:?-p needs a pid} && shift 2 ;;
    -i) inside=1 && shift ;;
    -d) seconds=${2:?-d needs seconds} && shift 2 ;;
    -o) output=${2:?-o needs a file} && shift 2 ;;
    -h | --help) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
    esac
done
if [[ -z $pid ]]; then
    usage >&2
    exit 2
fi

if [[ -n $inside && $(readlink "/proc/$pid/ns/pid") == "$(readlink /proc/self/ns/pid)" ]]; then
    echo "process $pid is in the pid namespace of this shell, whose process 1 is not a container's:" \
        "record it without -i" >&2
    exit 2
fi

record=("$traceprof" record --duration "$seconds" --output "$output")
if [[ -z $inside ]]; then
    # The files of the container are found through /proc/PID/root.
    "${record[@]}" --pid "$pid"
else
    # A /proc of that namespace is mounted for this command alone: the one of the host lists other pids.
    nsenter --target "$pid" --pid -- unshare --mount --propagation private -- \
        sh -c 'mount -t proc proc /proc && exec "$@"' sh "${record[@]}" --pid 1
fi
"$traceprof" print "$output"
