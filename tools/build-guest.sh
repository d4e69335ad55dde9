#!/bin/sh
# Build the static program excise-guest, which runs inside lab guests, into src/excise/_bin.
# Works with rustup's toolchain and with Debian's cargo-web/rustc-web; CARGO and RUSTC choose others.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cargo=${CARGO:-cargo}
RUSTC=${RUSTC:-rustc}
export RUSTC
target=$("$RUSTC" -vV | sed -n 's/^host: //p')

cd "$root"
"$cargo" build --locked --release --package excise-guest --target "$target" \
    --config "target.$target.rustflags=['-C','target-feature=+crt-static','-C','relocation-model=static']" \
    --config 'profile.release.panic="abort"' \
    --config 'profile.release.strip=true' \
    --config 'profile.release.debug=0' \
    --config 'profile.release.opt-level="s"'

mkdir -p src/excise/_bin
cp "${CARGO_TARGET_DIR:-$root/target}/$target/release/excise-guest" src/excise/_bin/excise-guest.new
mv src/excise/_bin/excise-guest.new src/excise/_bin/excise-guest
echo "built src/excise/_bin/excise-guest ($(wc -c <src/excise/_bin/excise-guest) bytes)"
