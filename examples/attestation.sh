#!/bin/sh
# Where the microseconds of an attestation go: 31 rounds, the first dropped, under three key modes
# (embedded, plain, black: loaded from its wrapping for every signature) and two builds of the
# measured system, verified over HTTP; the log is judged, compared and reported.
#   examples/attestation.sh [FOLDER]
# Needs excise with its extras `attest` and `tpm`, and swtpm; EXCISE names the program.
set -eu
folder=${1:-attestation}
excise=${EXCISE:-excise}
rounds=${ROUNDS:-31}
mkdir -p "$folder"
cd "$folder"
state=$(mktemp -d) # short: the path of a socket has 108 bytes at most
started=""
stop() {
    for process in $started; do kill "$process" 2>/dev/null || true; done
    rm -rf "$state"
}
trap stop EXIT INT TERM

swtpm socket --tpm2 --tpmstate "dir=$state" --server "type=unixio,path=$state/s" \
    --ctrl "type=unixio,path=$state/s.ctrl" --flags not-need-init,startup-clear &
started="$started $!"
tcti="swtpm:path=$state/s"
until [ -S "$state/s" ] && [ -S "$state/s.ctrl" ]; do sleep 0.1; done

key() { # key OPTION…: a new key, packed
    "$excise" attester --generate-key --json "$@" | sed -n 's/^ *"key-hex": "\(.*\)",*$/\1/p'
}
key >plain.key
key --key tpm-wrapped --tcti "$tcti" >black.key
options() { # options MODE: how the attester is given the mode's key
    case $1 in
    embedded) echo "" ;;
    plain) echo "--key-hex $(cat plain.key)" ;;
    black) echo "--key tpm-wrapped --tcti $tcti --key-hex $(cat black.key)" ;;
    esac
}

# An application, and two builds of the measured system, of 1 and of 4 MiB; each mode's key is known
# with each build.
head -c 262144 /dev/zero >application.bin
head -c 1048576 /dev/zero >system-small.bin
head -c 4194304 /dev/zero >system-large.bin
for mode in embedded plain black; do
    for build in small large; do
        # shellcheck disable=SC2046  # a list of words
        "$excise" attester $(options $mode) --ta application.bin --tee "system-$build.bin" \
            --write-references "references/$mode" --build "$build" 2>/dev/null
    done
done

"$excise" verifier serve --corim references/embedded --corim references/plain \
    --corim references/black --database verifier.sqlite --listen 127.0.0.1:0 >verifier.url &
started="$started $!"
until [ -s verifier.url ]; do sleep 0.1; done
url=$(head -n 1 verifier.url)

for build in small large; do
    : >"$build.log"
    for mode in embedded plain black; do
        # shellcheck disable=SC2046  # a list of words
        "$excise" attester $(options $mode) --ta application.bin --tee "system-$build.bin" \
            --url "$url" --loop "$rounds" --perf 2>>"$build.log"
    done
    rm -rf "$build.excise"
    "$excise" import "$build.log" --format ra-perf -o "$build.excise"
done

"$excise" lint small.excise large.excise || echo "lint: see above" >&2
"$excise" compare small.excise --baseline plain
"$excise" compare small.excise large.excise
"$excise" report small.excise --beside large.excise -o report.html
echo "Wrote $folder/report.html"
