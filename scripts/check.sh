#!/usr/bin/env bash
# The whole gate. A rule that is not in here is taste.
set -euo pipefail
cd "$(dirname "$0")/.."

gate() {
    printf '\n== %s\n' "$*" >&2
    "$@"
}

gate cargo fmt --all --check
gate cargo clippy --workspace --all-targets -- -D warnings
# Code under cfg(agent_image) is invisible to the line above.
gate cargo clippy -p traceprof-agent --lib -- --cfg agent_image -D warnings
# House rules (tests/tidy.rs) are among the tests.
gate cargo test --workspace
# Every interleaving of the lock-free storage, within loom's bounds.
LOOM_MAX_PREEMPTIONS="${LOOM_MAX_PREEMPTIONS:-2}" RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom \
    gate cargo test -p traceprof-abi --release --test loom
# Private items are documented too, so links to them are right.
RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" \
    gate cargo doc --workspace --no-deps --document-private-items
printf '\nall gates passed\n' >&2
