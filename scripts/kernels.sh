#!/usr/bin/env bash
# Sourced by scripts/test-kernels: gets an emulator and kernels, and shows the reports of guests.
#
# The packages come from where this machine's other packages come from. The lists are kept apart
# from those of the machine.

# apt_in DIRECTORY SETTING...: writes a configuration of apt with lists of its own.
apt_in() {
    local directory=$1
    shift
    mkdir -p "$directory"/{lists/partial,cache/archives/partial}
    {
        printf 'Dir::State::Lists "%s";\n' "$directory/lists"
        printf 'Dir::Cache "%s";\n' "$directory/cache"
        printf 'APT::Sandbox::User "root";\nAcquire::Languages "none";\nAcquire::Retries "3";\n'
        printf 'Acquire::http::Timeout "60";\nAcquire::https::Timeout "60";\n'
        printf 'Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";\n'
        # Nothing is installed, so the package manager's lock is of no use.
        printf 'Debug::NoLocking "true";\n'
        printf '%s\n' "$@"
    } >"$directory/apt.conf"
}

# apt_with DIRECTORY COMMAND...: runs a command of apt with these lists.
apt_with() {
    local directory=$1
    shift
    APT_CONFIG=$directory/apt.conf timeout --kill-after=10 600 "$@"
}

# first_of FILE...: prints the first that exists.
first_of() {
    local file
    for file in "$@"; do
        if [[ -e $file ]]; then
            echo "$file"
            return
        fi
    done
    echo "none of these was in the packages: $*" >&2
    return 1
}

# fetch_emulator STORE: unpacks the emulator, its file server, and busybox.
fetch_emulator() {
    local store=$1 lists=$1/lists packages=(qemu-system-x86 qemu-system-common busybox-static)
    if [[ -e $store/emulator/complete ]]; then
        return
    fi
    echo "unpacking: ${packages[*]}" >&2
    rm -rf "$store/emulator" "$lists"
    apt_in "$lists"
    # A source that cannot be reached may be one that is not needed.
    apt_with "$lists" apt-get update -qq >&2 || true
    # A package of its own since Debian 13.
    if [[ -n $(apt_with "$lists" apt-cache pkgnames virtiofsd) ]]; then
        packages+=(virtiofsd)
    fi
    apt_with "$lists" apt-get install -qq --reinstall --download-only --no-install-recommends \
        --yes "${packages[@]}" >&2
    mkdir "$store/emulator"
    for package in "$lists"/cache/archives/*.deb; do
        dpkg-deb --extract "$package" "$store/emulator"
    done
    touch "$store/emulator/complete"
    rm -rf "$lists/cache"
}

# fetch_kernel STORE VERSION: unpacks the last kernel of this version and sets kernel_name.
fetch_kernel() {
    local store=$1 version=$2 name
    name=$(cat "$store/named-$version" 2>/dev/null || true)
    if [[ -z $name || ! -e $store/$name/vmlinuz ]]; then
        look_up_kernels "$store"
        name=$(kernel_named "$version" <"$store/kernels")
        if [[ -z $name ]]; then
            echo "not to be had: a kernel $version; there are:" \
                "$(tr '\n' ' ' <"$store/kernels")" >&2
            return 1
        fi
        unpack_kernel "$store" "$name"
        echo "$name" >"$store/named-$version"
    fi
    # shellcheck disable=SC2034 # for the script that sources this
    kernel_name=$name
}

# kernel_named VERSION: prints the last of the kernels of the standard input that has this version.
kernel_named() {
    local kernels=() version=$1
    mapfile -t kernels < <(sort -V)
    case $version in
    oldest) version=$(grep -oE '^[0-9]+\.[0-9]+' <<<"${kernels[0]-}") ;;
    newest) version=$(grep -oE '^[0-9]+\.[0-9]+' <<<"${kernels[-1]-}") ;;
    esac
    printf '%s\n' "${kernels[@]}" | { grep -E "^${version//./\\.}[.+-]" || true; } | tail -n 1
}

# look_up_kernels STORE: lists the kernels of several releases of Debian, once a run.
look_up_kernels() {
    local store=$1 lists=$1/kernel-lists site suite sites=() key
    if [[ $is_looked_up == true ]]; then
        return
    fi
    if [[ ! -e $store/lists/apt.conf ]]; then
        apt_in "$store/lists"
    fi
    apt_with "$store/lists" apt-get update -qq >&2 || true
    # shellcheck disable=SC2016
    mapfile -t sites < <(apt_with "$store/lists" apt-get indextargets \
        --format '$(REPO_URI)|$(RELEASE)' 'Created-By: Packages' 'Origin: Debian' | sort -u)
    rm -rf "$lists"
    apt_in "$lists" "Dir::Etc::SourceList \"$lists/sources.list\";" 'Dir::Etc::SourceParts "-";'
    key=/usr/share/keyrings/debian-archive-keyring.gpg
    for site in "${sites[@]}"; do
        case ${site#*|} in
        *-security) suites=({bullseye,bookworm,trixie,forky}-security) ;;
        *-updates | *-backports) continue ;;
        *) suites=({bookworm,trixie,forky}-backports testing) ;;
        esac
        for suite in "${suites[@]}"; do
            echo "deb [signed-by=$key] ${site%|*} $suite main"
        done
    done >"$lists/sources.list"
    # Some of these are not there yet, or no longer.
    apt_with "$lists" apt-get update 2>&1 | grep -E '^(Err|E:|W:)' >&2 || true
    apt_with "$lists" apt-cache pkgnames linux-image- |
        sed -nE 's/^linux-image-([0-9]+\.[0-9]+[.+-].*-cloud-amd64)$/\1/p' | sort -V >"$store/kernels"
    if [[ ! -s $store/kernels ]]; then
        echo "not to be had: any of Debian's kernels, from ${sites[*]-no source of packages}" >&2
        return 1
    fi
    is_looked_up=true
}
is_looked_up=false

# unpack_kernel STORE NAME: unpacks a kernel and its modules.
unpack_kernel() {
    local store=$1 name=$2 place=$1/$2 part packages=()
    # Newer releases have parts of it in packages of their own.
    for part in image binary modules; do
        if apt_with "$store/kernel-lists" apt-cache show "linux-$part-$name" >/dev/null 2>&1; then
            packages+=("linux-$part-$name")
        fi
    done
    echo "unpacking: ${packages[*]}" >&2
    rm -rf "$place"
    mkdir -p "$place/new"
    (cd "$place" && apt_with "$store/kernel-lists" apt-get download -qq "${packages[@]}" >&2)
    for part in "$place"/*.deb; do
        dpkg-deb --extract "$part" "$place/new"
    done
    # Where they are depends on the release, too.
    find "$place/new" -path '*/modules/*' -type d -name kernel -exec mv '{}' "$place/modules" ';' -prune
    find "$place/new" -type f -name 'vmlinuz*' -exec mv '{}' "$place/vmlinuz" ';'
    rm -rf "$place/new" "$place"/*.deb
    if [[ ! -e $place/vmlinuz || ! -d $place/modules ]]; then
        echo "not what was expected in the packages of a kernel: ${packages[*]}" >&2
        return 1
    fi
}

# make_initrd STORE NAME FILE: makes the first file system of a guest. Its settings are the standard
# input.
make_initrd() {
    local store=$1 name=$2 file=$3 busybox module found
    local root=$file.d
    busybox=$(first_of "$store"/emulator/{usr/,}bin/busybox)
    mkdir -p "$root"/{bin,proc,sys,dev,files,changes,new,modules}
    cp "$busybox" "$root/bin/busybox"
    cp tests/kernels/init "$root/init"
    cat >"$root/settings"
    # What is not there is part of the kernel.
    for module in virtio virtio_ring virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci \
        fuse virtiofs overlay; do
        found=$(find "$store/$name/modules" -name "$module.ko*" | head -n 1)
        case $found in
        *.xz) "$busybox" unxz -c "$found" >"$root/modules/$module.ko" ;;
        *.ko) cp "$found" "$root/modules/$module.ko" ;;
        "") ;;
        *)
            echo "$found: not a compression that is known here" >&2
            return 1
            ;;
        esac
    done
    (cd "$root" && find . | "$busybox" cpio -o -H newc 2>/dev/null) | gzip -1 >"$file"
    rm -rf "$root"
}

# print_table STORE NAME...: prints the results of all checks in all guests, and why some failed.
print_table() {
    local store=$1
    shift
    awk -F '\t' -v store="$store" '
        BEGIN {
            for (n = 1; n < ARGC; n++) {
                title = title " | " ARGV[n]; rule = rule "|---"
                file = store "/" ARGV[n] ".report"
                while ((getline < file) > 0) {
                    # A serial line has these ends.
                    sub(/\r$/, "")
                    if ($1 == "ok" || $1 == "FAILED") {
                        if (!($2 in seen)) { seen[$2] = 1; checks[++count] = $2 }
                        result[$2, n] = $1
                        if ($1 != "ok") reasons = reasons ARGV[n] ": " $2 ": " $3 "\n"
                    }
                }
            }
            gsub(/\.[0-9]+[-+][^ ]*/, "", title)
            print "| check" title " |\n|---" rule "|"
            for (c = 1; c <= count; c++) {
                line = "| " checks[c]
                for (n = 1; n < ARGC; n++) {
                    one = result[checks[c], n]; line = line " | " (one == "" ? "-" : one)
                    if (one == "ok") passed++; else failed++
                }
                print line " |"
            }
            printf "\n%s%d passed, %d failed\n", reasons, passed, failed
        }' "$@"
}

# all_passed STORE NAME...: whether all guests made their checks to the end, and none failed.
all_passed() {
    local store=$1 name
    shift
    for name in "$@"; do
        if ! grep -qs '^done' "$store/$name.report" || grep -q '^FAILED' "$store/$name.report"; then
            return 1
        fi
    done
}
