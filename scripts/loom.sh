#!/usr/bin/env bash
# Runs the models of the lock-free steps over all interleavings. Takes some seconds.
set -euo pipefail
cd "$(dirname "$0")/.."
export RUSTFLAGS="--cfg loom"
exec cargo test -p traceprof-abi --release --target-dir "${CARGO_TARGET_DIR:-target}/loom" \
    --test loom --test loom_threads --test loom_context --test loom_code_heap "$@"
