#!/usr/bin/env bash
# Records a process in a container, seen from the host or from inside the container.
set -euo pipefail

usage() {
    cat <<'END'
Usage: container.sh [-i] -p PID [-d SECONDS] [-o FILE]

From the host (as root; the container needs nothing):

  container.sh -p PID       PID as the host sees it, for example from
                            docker inspect -f '{{.State.Pid}}' NAME
                            crictl inspect -o go-template --template '{{.info.pid}}' ID

From inside the container, where its processes have the pids that it knows:

  container.sh -i -p PID    PID is any process of the container, as the host sees it. The script
                            records process 1 of its pid namespace.

  -p PID      the process
  -i          enter its pid namespace, with the host's traceprof and files
  -d SECONDS  how long to record (default: 10)
  -o FILE     trace file (default: container.trace)
  -h, --help  this text

In a container with the capability SYS_PTRACE, `traceprof record --pid 1` works as anywhere else.
TRACEPROF is the command to run.
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
    echo "process $pid is in the pid namespace of this shell, whose process 1 is no container:" \
        "record it without -i" >&2
    exit 2
fi

record=("$traceprof" record --duration "$seconds" --output "$output")
if [[ -z $inside ]]; then
    # The recorder finds the files of the container in /proc/PID/root.
    "${record[@]}" --pid "$pid"
else
    # /proc of the host lists other pids, so this command gets a /proc of that namespace.
    nsenter --target "$pid" --pid -- unshare --mount --propagation private -- \
        sh -c 'mount -t proc proc /proc && exec "$@"' sh "${record[@]}" --pid 1
fi
"$traceprof" print "$output"
