#!/usr/bin/env bash
# Runs all checks. A rule that this script does not check is a matter of taste.
#
#   scripts/check.sh [--quick]
#
# --quick   for a small change: format, clippy, views, a recording with each engine, and unit tests
#           but those that attach to a process or need a runtime of a language
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/install.sh
source scripts/install.sh

is_quick=false
case "${1-}" in
--quick) is_quick=true ;;
"") ;;
*)
    echo "usage: scripts/check.sh [--quick]" >&2
    exit 2
    ;;
esac
target=${CARGO_TARGET_DIR:-target}

gate() {
    printf '\n== %s\n' "$*" >&2
    "$@"
}

# Checks that only read the code. They have their own build directory, so that they do not wait for
# the build of the tests: each alone leaves a processor idle most of the time.
lint() {
    gate cargo clippy --workspace --all-targets --target-dir "$target/lint" -- -D warnings
    if $is_quick; then
        return
    fi
    # Code under cfg(agent_image) is invisible to the line above. The flag also applies to the
    # shared crate, so this build has its own directory.
    RUSTFLAGS="--cfg agent_image" \
        gate cargo clippy -p traceprof-agent --lib --target-dir "$target/image" -- -D warnings
    # Private items are documented, too, so that links to them are checked.
    RUSTDOCFLAGS="-D warnings" gate cargo doc --workspace --no-deps --document-private-items \
        --target-dir "$target/lint"
    # Every interleaving of the lock-free storage, within loom's bounds.
    gate scripts/loom.sh
}

# Prints a filter for the tests of a run with this seed: those without a group, those of
# tests/every-run.txt, and one in turns of the others.
filter_by_turn() {
    local always turn chosen
    always=$(grep -v '^#' tests/every-run.txt | sed 's/.*/test(=&)/' | paste -sd +)
    # Tests choose by the seed itself. So a turn is that of its checksum.
    turn=$(cksum <<<"$1" | cut -d ' ' -f 1)
    chosen=$(cargo nextest list "${tests[@]}" -T oneline -E "($groups) - ($always)" |
        awk -v "turn=$((turn % turns))" -v "turns=$turns" \
            'NR % turns == turn { print "test(=" $NF ")" }' | paste -sd +)
    printf '%s\n' "not ($groups) + $always + $chosen"
}

# Tests of groups run in every tenth run: all of them would take most of an hour.
turns=10
groups='group(recordings) + group(alone) + group(exclusive) + group(large) + group(slow)'
tests=(--workspace --all-targets)
chosen=()
if $is_quick; then
    tests=(-p traceprof --lib --bins --test main)
    # With these it takes seven minutes.
    attaching='test(/^inject::tests::/) + test(/_tests::/) + test(/_steps::/)'
    chosen=(-E "kind(lib) - group(slow) - ($attaching) + not ($groups)
        + test(=engine::where_perf_events_are_refused_timers_sample)
        + test(=recorded_views::tree_shows_the_split_under_its_thread)")
fi
# The seed of the tests' random choices.
export TRACEPROF_TEST_SEED=${TRACEPROF_TEST_SEED-$(date +%s)}

install_nextest
gate cargo fmt --all --check
log=$(mktemp)
lint >"$log" 2>&1 &
linter=$!
trap 'rm -f "$log"; kill "$linter" 2>/dev/null || true' EXIT
# A failure here is visible at once, and a failure of the other half at its end.
gate cargo nextest run "${tests[@]}" --no-run || built=$?
wait "$linter" || linted=$?
cat "$log" >&2
if ((${built-0} != 0 || ${linted-0} != 0)); then
    exit 1
fi
if ! $is_quick; then
    gate cargo test --workspace --doc
fi
printf '\n== TRACEPROF_TEST_SEED=%s\n' "$TRACEPROF_TEST_SEED" >&2
if ! $is_quick && [[ -z ${TRACEPROF_TEST_LONG-} ]]; then
    chosen=(-E "$(filter_by_turn "$TRACEPROF_TEST_SEED")")
fi
# Three times as many as there are processors: with two, recording tests sleep so much that a
# third of the processors' time is idle. One place is for the tests of the group "alone", one
# after the other.
gate cargo nextest run "${tests[@]}" "${chosen[@]}" --test-threads $(($(nproc) * 3)) || failed=$?
# Nextest writes this below the workspace, wherever the build directory is.
scripts/slowest.sh target/nextest/default/junit.xml
exit "${failed-0}"
