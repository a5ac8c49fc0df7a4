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
# Code under cfg(agent_image) is invisible to the line above. The flag goes to the shared crate too,
# so the build has a directory of its own.
RUSTFLAGS="--cfg agent_image" \
    gate cargo clippy -p traceprof-agent --lib --target-dir target/image -- -D warnings
# So is what the fuzz targets call.
RUSTFLAGS="--cfg fuzzing" \
    gate cargo clippy -p traceprof --lib --target-dir target/fuzzing -- -D warnings
# Private items are documented too, so links to them are right.
RUSTDOCFLAGS="-D warnings" gate cargo doc --workspace --no-deps --document-private-items
# Every interleaving of the lock-free storage, within loom's bounds.
gate scripts/loom.sh
gate cargo test --workspace --doc
gate cargo test --workspace --exclude traceprof --all-targets
gate cargo test -p traceprof --bins --examples
gate scripts/tests.sh -p traceprof --lib
# House rules (tests/tidy.rs) are among these. They come last: their count is the last word. One at a
# time: what each of them measures of its own target, another's recording would disturb.
gate scripts/tests.sh --threads 1 -p traceprof --test main
