#!/bin/sh
# Install what a target needs: system packages, Rust if cargo is missing or old, the Python
# environment. Usage: tools/setup.sh build|demo|test|docs|lab. Does nothing that is already done.
set -eu
cd "$(dirname "$0")/.."
goal=${1:-build}

wanted=""
need() { # need COMMAND PACKAGE: note the package unless the command is there
    command -v "$1" >/dev/null 2>&1 || wanted="$wanted $2"
}
need_program() { # need_program COMMAND PACKAGE: also where only root's PATH has it
    [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ] || need "$1" "$2"
}
need_file() { # need_file FILE PACKAGE
    [ -e "$1" ] || wanted="$wanted $2"
}

need python3 python3
need gcc gcc
need git git
need gpg gnupg
need gpgconf gnupg
python3 -c 'import ensurepip, venv' 2>/dev/null || wanted="$wanted python3-venv"
python3 -c 'import sysconfig, os, sys
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' 2>/dev/null ||
    wanted="$wanted python3-dev"
[ -n "$(find /usr/lib /usr/lib64 -name libc.a 2>/dev/null | head -n 1)" ] || wanted="$wanted libc6-dev"

# The oldest Rust that builds excise is rust-version in Cargo.toml.
minor=$(sed -n 's/^rust-version = "1\.\([0-9]*\)"/\1/p' Cargo.toml)
have=$(cargo --version 2>/dev/null | sed -n 's/^cargo 1\.\([0-9]*\).*/\1/p')
if [ "${have:-0}" -lt "$minor" ]; then
    # Debian's cargo-web follows Firefox and is new enough where cargo is not.
    wanted="$wanted cargo-web|cargo rustc-web|rustc"
fi

case $goal in
test | lab)
    cargo fmt --version >/dev/null 2>&1 || wanted="$wanted rustfmt-web|rustfmt"
    cargo clippy --version >/dev/null 2>&1 || wanted="$wanted rust-web-clippy|rust-clippy"
    need hyperfine hyperfine
    need zsh zsh
    need fish fish
    need_program sshd openssh-server
    need ssh-keygen openssh-client
    need_program ip iproute2
    need valgrind valgrind
    need cpio cpio
    need evmctl ima-evm-utils
    need chromium chromium
    need chromedriver chromium-driver
    need swtpm swtpm
    need swtpm_setup swtpm-tools
    need swtpm_ioctl swtpm-tools
    need tpm2_quote tpm2-tools
    [ -n "$(ls /usr/lib/postgresql/*/bin/initdb 2>/dev/null)" ] || wanted="$wanted postgresql"
    need pkg-config pkg-config
    pkg-config --exists tss2-esys 2>/dev/null || wanted="$wanted libtss2-dev"
    need_file /usr/lib/x86_64-linux-gnu/libtss2-tcti-swtpm.so libtss2-dev
    ;;
esac
case $goal in
demo | lab)
    need qemu-system-x86_64 qemu-system-x86
    need swtpm swtpm
    need_program mke2fs e2fsprogs
    need_program debugfs e2fsprogs
    need setpriv util-linux
    ;;
esac
case $goal in
lab)
    need debootstrap debootstrap
    need qemu-aarch64 qemu-user
    need aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu
    need arm-linux-gnueabihf-gcc gcc-arm-linux-gnueabihf
    # Of these compilers only a recommendation.
    need_file /usr/aarch64-linux-gnu/lib/libc.a libc6-dev-arm64-cross
    need_file /usr/arm-linux-gnueabihf/lib/libc.a libc6-dev-armhf-cross
    need clang clang
    need bpftrace bpftrace
    need_file /bin/busybox busybox-static
    ;;
esac

if [ -n "$wanted" ]; then
    as_root=""
    [ "$(id -u)" = 0 ] || as_root=sudo
    if ! command -v apt-get >/dev/null || { [ -n "$as_root" ] && ! command -v sudo >/dev/null; }; then
        echo "excise: install these first:$wanted" >&2
        exit 1
    fi
    $as_root apt-get update -q
    packages=""
    for choice in $wanted; do
        for name in $(echo "$choice" | tr '|' ' '); do
            candidate=$(apt-cache policy "$name" | sed -n 's/^  Candidate: //p')
            if [ -n "$candidate" ] && [ "$candidate" != "(none)" ]; then
                packages="$packages $name"
                break
            fi
        done
    done
    # shellcheck disable=SC2086  # a list of words
    DEBIAN_FRONTEND=noninteractive $as_root apt-get install -q -y --no-install-recommends $packages
fi

venv=.venv
[ -x $venv/bin/python ] || python3 -m venv $venv
wheel_mark=$venv/.requirements-$goal
if [ ! -e "$wheel_mark" ] || [ pyproject.toml -nt "$wheel_mark" ]; then
    $venv/bin/python -m pip install -q --upgrade 'pip>=25.1'
    $venv/bin/python -m pip install -q 'maturin>=1.9,<2'
    case $goal in
    test | lab)
        # Tests use every optional part; its requirements stand in pyproject.toml alone.
        $venv/bin/python -c 'import tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
print(*sum(project["optional-dependencies"].values(), []), sep="\n")' >"$venv/extras.txt"
        $venv/bin/python -m pip install -q --group test --group docs -r "$venv/extras.txt"
        ;;
    docs) $venv/bin/python -m pip install -q --group docs ;;
    esac
    touch "$wheel_mark"
fi
