#!/usr/bin/env bash
# Sourced by checks.sh: the steps that checks are made of. A step that fails prints why and ends its
# check.
#
# To start a process takes a tenth of a second here. So these steps start few.
# shellcheck disable=SC2030,SC2031 # each check has a process and variables of its own

release=$(uname -r)
if [[ $release =~ ^([0-9]+)\.([0-9]+) ]]; then
    major=${BASH_REMATCH[1]} minor=${BASH_REMATCH[2]}
fi
# How long anything may take that comes by itself, and a check, on a host that does much else.
wait_s=120
check_s=900
# Nothing ever comes from here.
exec {never}<> <(:)

report() {
    printf '%s\n' "$*" >/dev/ttyS1
}

# pause SECONDS, without a process.
pause() {
    read -rt "$1" -u "$never" || true
}

# The programs where everybody can run them, and the settings that the checks expect.
set_up() {
    programs=/run/programs
    # shellcheck disable=SC2153 # this and the next are settings of the guest
    cp -r "$PROGRAMS" "$programs"
    # shellcheck disable=SC2153
    cp "$TRACEPROF" "$programs/traceprof"
    chmod -R a+rX "$programs"
    traceprof=$programs/traceprof
    echo 2 >/proc/sys/kernel/perf_event_paranoid
    echo 0 >/proc/sys/kernel/yama/ptrace_scope
    ulimit -c 0
}

# at_least VERSION: whether the kernel is this version or a later one.
at_least() {
    ((major > ${1%.*} || major == ${1%.*} && minor >= ${1#*.}))
}

# check NAME COMMAND...: makes a check, reports its result, and ends what it has started.
check() {
    local name=$1 body code guard start_s=$SECONDS
    shift
    if [[ ! $name =~ $ONLY ]]; then
        return
    fi
    directory=$(mktemp -d)
    chmod 777 "$directory"
    # Without job control, a background process has no process group of its own.
    set -m
    (
        set -eu
        trace=$directory/out.trace
        as=root
        "$@"
    ) >"$directory/log" 2>&1 &
    body=$!
    (
        pause "$check_s"
        echo "not finished within $check_s s" >>"$directory/log"
        kill -KILL -- "-$body"
    ) &
    guard=$!
    set +m
    wait "$body"
    code=$?
    kill -KILL -- "-$guard" "-$body" 2>/dev/null
    wait "$guard" 2>/dev/null
    # A guardian has a process group of its own.
    pkill -KILL '^traceprof'
    if ((code == 0)); then
        report "ok	$name"
    else
        report "FAILED	$name	$(tail -n 1 "$directory/log" | tr '\t' ' ')"
        printf '== %s\n' "$name"
        cat "$directory/log"
    fi
    printf '%s s for %s\n' "$((SECONDS - start_s))" "$name"
    rm -rf "$directory"
}

fail() {
    if [[ -e $directory/output ]]; then
        cat "$directory/output"
    fi
    echo "$*"
    exit 1
}

# has FILE TEXT: whether the file has this text.
has() {
    local whole=
    # The end of the file, instead of a byte 0, is a failure of read.
    IFS= read -rd '' whole <"$1" || true
    [[ $whole == *"$2"* ]]
}

# wait_for COMMAND...: until the command succeeds.
wait_for() {
    local end=$((SECONDS + wait_s))
    until "$@"; do
        if ((SECONDS > end)); then
            fail "waited in vain for: $*"
        fi
        pause 0.2
    done
}

# started USER PROGRAM ARGUMENT...: starts a target, sets pid, and keeps what it looks like.
started() {
    local user=$1
    shift
    : >"$directory/target"
    if [[ $user == root ]]; then
        "$@" >"$directory/target" 2>&1 &
    else
        setpriv --reuid=65534 --regid=65534 --clear-groups "$@" >"$directory/target" 2>&1 &
    fi
    pid=$!
    wait_for has "$directory/target" ready
    # The message is a moment older than the loop behind it.
    pause 0.3
    snapshot
    before=$snapshot
}

start() {
    local user=$1 program=$2
    shift 2
    started "$user" "$programs/$program" "$@"
}

# What a recording could change in a process, as text in a variable.
snapshot() {
    local lines line task file
    snapshot=
    mapfile -t lines <"/proc/$pid/maps"
    for line in "${lines[@]}"; do
        # These two have only one fixed end.
        case $line in
        *\[stack\]) line=${line#*-} ;;
        *\[heap\]) line=${line%%-*} ;;
        esac
        snapshot+="mapping $line"$'\n'
    done
    for task in "/proc/$pid/task/"*; do
        # Some targets end threads all the time.
        if ! { mapfile -t lines <"$task/status"; } 2>/dev/null; then
            continue
        fi
        for line in "${lines[@]}"; do
            case $line in
            TracerPid* | Threads* | S[ih][gd]P* | SigBlk* | SigIgn* | SigCgt* | Seccomp:* | NoNew*)
                snapshot+="thread ${task##*/} $line"$'\n'
                ;;
            esac
        done
    done
    for file in "/proc/$pid/fd/"*; do
        snapshot+="descriptor ${file##*/}"$'\n'
    done
    mapfile -t lines <"/proc/$pid/timers"
    for line in "${lines[@]}"; do
        snapshot+="timer $line"$'\n'
    done
    mapfile -t lines </proc/sysvipc/shm
    snapshot+="${#lines[@]} lines of shared memory"$'\n'
}

# Checks that the target is as it was before the recording.
is_as_before() {
    local tries
    for ((tries = 0; tries < wait_s; tries++)); do
        snapshot
        if [[ $snapshot == "$before" ]]; then
            return
        fi
        pause 1
    done
    diff <(echo "$before") <(echo "$snapshot") || true
    fail 'left in the target: see the difference above'
}

nothing_is_left() {
    local lines
    mapfile -t lines </proc/sysvipc/shm
    if ((${#lines[@]} != 1)); then
        fail "shared memory is left: ${lines[1]}"
    fi
}

# ended CODE PID: waits for the end of a process.
ended() {
    local seen=0
    wait "$2" || seen=$?
    if ((seen != $1)); then
        fail "the target ended with code $seen, not $1"
    fi
}

# Checks that nothing is left of the recording, and that the target goes on and ends by itself.
ends_as_before() {
    is_as_before
    kill -TERM "$pid"
    ended 17 "$pid"
    nothing_is_left
}

# acting COMMAND...: becomes a command as the user of this check.
acting() {
    if [[ $as == root ]]; then
        exec "$@"
    fi
    exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@"
}

# run ARGUMENT...: runs traceprof and sets code.
run() {
    code=0
    (cd "$directory" && acting timeout --kill-after=5 300 "$traceprof" "$@") \
        >"$directory/output" 2>&1 || code=$?
}

record() {
    run record --stats --exit-code recording --force --output "$trace" "$@"
}

# record_in_background ARGUMENT...: sets recorder and guardian.
record_in_background() {
    (cd "$directory" && acting "$traceprof" record --stats --output "$trace" "$@") \
        >"$directory/output" 2>&1 &
    recorder=$!
    wait_for has "$directory/output" 'sampling '
    guardian=$(pgrep -x traceprof-guard)
}

# Whether the recorder has written samples.
has_samples() {
    "$traceprof" verify "$trace" >"$directory/verified" 2>&1 || true
    has "$directory/verified" 'samples ' && ! has "$directory/verified" 'samples   0 in'
}

# Whether a child has ended, waited for or not.
is_gone() {
    local stat
    ! { read -r stat <"/proc/$1/stat"; } 2>/dev/null || [[ $stat == *') Z '* ]]
}

# Waits for the end of a recorder in the background and sets code.
ended_recorder() {
    wait_for is_gone "$recorder"
    code=0
    wait "$recorder" || code=$?
}

# expect_code CODE...: traceprof ended with one of these.
expect_code() {
    if [[ " $* " != *" $code "* ]]; then
        fail "traceprof: code $code, not $*: $(grep -v '^$' "$directory/output" | tail -n 1)"
    fi
}

# expect TEXT...: what traceprof printed has one of these texts.
expect() {
    local text
    for text in "$@"; do
        if has "$directory/output" "$text"; then
            return
        fi
    done
    fail "not in the output: $1"
}

# expect_of_target TEXT: the target printed this line.
expect_of_target() {
    if ! has "$directory/target" "$1"$'\n'; then
        tail -n 5 "$directory/target"
        fail "the target did not print: $1"
    fi
}

# stacks_have FUNCTION...: the stacks of the trace have each of these.
stacks_have() {
    local function
    "$traceprof" export --format folded "$trace" >"$directory/folded"
    for function in "$@"; do
        if ! has "$directory/folded" "$function"; then
            head -n 20 "$directory/folded"
            fail "no sample has $function"
        fi
    done
}
