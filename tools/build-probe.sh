#!/bin/sh
# Build the static program excise-probe and put it where the Python package looks for it.
#
#   tools/build-probe.sh                          for this machine, to src/excise/_bin/excise-probe
#   tools/build-probe.sh --target TRIPLE [--output FILE]    for another one (see docs/probe.md)
#
# Works with rustup's toolchain and with Debian's cargo-web/rustc-web; CARGO and RUSTC choose others.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cargo=${CARGO:-cargo}
rustc=${RUSTC:-rustc}
target=
output=

while [ $# -gt 0 ]; do
    case $1 in
        --target) target=${2:?--target needs a triple}; shift 2 ;;
        --output) output=${2:?--output needs a file}; shift 2 ;;
        -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) echo "build-probe: unknown argument $1 (see --help)" >&2; exit 2 ;;
    esac
done

if ! command -v "$cargo" >/dev/null 2>&1; then
    echo "build-probe: no $cargo found. On Debian: apt-get install cargo-web rustc-web" >&2
    exit 4
fi
export RUSTC="$rustc"

host=$("$rustc" -vV | sed -n 's/^host: //p')
target=${target:-$host}
if [ -z "$output" ]; then
    if [ "$target" = "$host" ]; then
        output=$root/src/excise/_bin/excise-probe
    else
        output=$root/target/$target/excise-probe
    fi
fi

# Not position-independent, abort on panic, stripped: a small file, and few pages touched by its
# start, because the launcher's own memory is a floor under what it can see of its children's.
cd "$root"
"$cargo" build --locked --release --package excise-probe --target "$target" \
    --config "target.$target.rustflags=['-C','target-feature=+crt-static','-C','relocation-model=static']" \
    --config 'profile.release.panic="abort"' \
    --config 'profile.release.strip=true' \
    --config 'profile.release.debug=0' \
    --config 'profile.release.lto="fat"' \
    --config 'profile.release.opt-level="s"'

built=${CARGO_TARGET_DIR:-$root/target}/$target/release/excise-probe
mkdir -p "$(dirname "$output")"
# By a rename, so that a program that runs at this moment is never written into.
cp "$built" "$output.new"
mv "$output.new" "$output"
echo "built $output ($(wc -c <"$output") bytes)"
