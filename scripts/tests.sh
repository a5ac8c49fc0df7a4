#!/usr/bin/env bash
# Runs the tests of one test binary; those that fail are run once more, each alone.
#
#   scripts/tests.sh [--threads N] CARGO-TEST-ARGUMENT...
#
# Nearly all of these watch a foreign process from outside, on a scheduler that promises nothing. A test
# that fails twice has failed, and so have more than a few that fail once. One that passes the second
# time is named at the end with what it said at first: it is a defect, of the test or of the project.
set -uo pipefail
cd "$(dirname "$0")/.."

FLAKES_MAX=3
threads=()
if [[ ${1-} == --threads ]]; then
    threads=("--test-threads=$2")
    shift 2
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
if cargo test "$@" -- "${threads[@]}" 2>&1 | tee "$log"; then
    exit 0
fi
# The last list of failures: what stands before it are their outputs.
mapfile -t failed < <(awk '
    /^failures:$/ { count = 0; next }
    /^    [^ ]+$/ { names[count++] = $1 }
    /^test result: FAILED/ { for (i = 0; i < count; i++) print names[i] }' "$log")
if ((${#failed[@]} == 0 || ${#failed[@]} > FLAKES_MAX)); then
    exit 1
fi
printf '\n== once more, alone: %s\n' "${failed[*]}" >&2
for name in "${failed[@]}"; do
    cargo test "$@" -- --exact "$name" --test-threads=1 || exit 1
done
printf '\nFLAKED: failed once, passed alone (%d):\n' "${#failed[@]}" >&2
printf '    %s\n' "${failed[@]}" >&2
