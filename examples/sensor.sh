#!/bin/sh
# Runs examples/sensor.toml with all it needs on this machine: an issuer, a verifier, a member, a
# source of images, and a software TPM where there is no other. All of it is in the folder `sensor`.
#   examples/sensor.sh CAPTURE [OPTIONS OF excise run]      without --blocks: the short form, 10
# SENSOR_SOURCE names a camera, an image or a folder with a face in it; SENSOR_ISSUER and
# SENSOR_VERIFIER where the two services listen.
set -eu
capture=${1:?usage: examples/sensor.sh CAPTURE [OPTIONS]}
shift
[ $# -gt 0 ] || set -- --blocks 10
here=$(dirname "$0")
source=${SENSOR_SOURCE:-/dev/video0}
issuer=${SENSOR_ISSUER:-127.0.0.1:8086}
verifier=${SENSOR_VERIFIER:-127.0.0.1:8088}
started=""
trap 'for p in $started; do kill "$p" 2>/dev/null || :; done' EXIT
trap 'exit 130' INT TERM
wait_for() { # wait_for FILE: until it has a line, or its program's end
    n=0
    while [ ! -s "$1" ] && [ $n -lt 1200 ]; do
        sleep 0.1
        n=$((n + 1))
    done
    [ -s "$1" ] || { echo "$2 did not start" >&2 && exit 1; }
}

mkdir -p sensor
rm -f sensor/issuer.url sensor/verifier.url
tpm=device:/dev/tpmrm0
list=/sys/kernel/security/ima/binary_runtime_measurements
if [ ! -e /dev/tpmrm0 ]; then
    tpm="swtpm:path=$PWD/sensor/tpm.sock"
    mkdir -p sensor/tpm
    swtpm socket --tpm2 --tpmstate "dir=sensor/tpm" --flags startup-clear,not-need-init \
        --server "type=unixio,path=sensor/tpm.sock" --ctrl "type=unixio,path=sensor/tpm.sock.ctrl" >sensor/tpm.log 2>&1 &
    started="$started $!"
fi
[ -r "$list" ] || {
    list=$PWD/sensor/list.made
    [ "${tpm#swtpm}" != "$tpm" ] || { echo "no measurement list: boot with IMA, as root" >&2 && exit 1; }
    sleep 1
    python3 "$here/sensor_list.py" "$tpm" "$list"
}
ln -sfn "$list" sensor/list
ln -sfn "$(realpath "$source")" sensor/source

[ -e sensor/issuer ] || excise daa issuer init sensor/issuer --admit software >/dev/null
excise daa issuer serve sensor/issuer --listen "$issuer" >sensor/issuer.url &
started="$started $!"
excise sensor verifier --group sensor/issuer/ipk.bin --group-rule sensor/issuer/group.json \
    --basename campaign --trust-stated-pcrs --database sensor/verifier.sqlite --listen "$verifier" \
    >sensor/verifier.url &
started="$started $!"
wait_for sensor/issuer.url "the issuer"
wait_for sensor/verifier.url "the verifier"

[ -e sensor/member/cred.bin ] || excise daa member join sensor/member --tpm "$tpm" \
    --issuer "http://$issuer" >/dev/null
excise sensor capture --source sensor/source -o sensor/face.png
excise sensor embed sensor/face.png -o sensor/one.embedding
excise sensor collect sensor/one.embedding --list sensor/list --tpm "$tpm" -o sensor/one.message
sed -e "s,device:/dev/tpmrm0,$tpm,g" -e "s,127.0.0.1:8086,$issuer,g" \
    -e "s,127.0.0.1:8088,$verifier,g" "$here/sensor.toml" >sensor/campaign.toml
excise run sensor/campaign.toml -o "$capture" "$@"
