#!/bin/busybox sh
# PID 1 of a lab guest. Stages are announced on the console, results leave as a tar through a virtio port.
# Nothing here may depend on the host's time, and everything before `measure` is the same work for
# every preset but for the preset's own fragment.
export PATH=/bin
O=/run/out

# Sets a variable to the guest's clock in nanoseconds.
now() {
    while read -r a b c d; do
        [ "$a$b" = nowat ] && { eval "$1=$c"; break; }
    done </proc/timer_list
}

stage() {
    echo "EXCISE stage $1"
    now at
    echo "$1 $at" >>$O/marks
}

fact() {
    n=$1
    shift
    "$@" >$O/facts/$n 2>$O/facts/.err || { echo "$n: $(cat $O/facts/.err)" >>$O/facts/missing; }
}

# A preset's fragment calls this when a step of its set-up failed: nothing is measured then.
refuse() {
    echo "EXCISE refuse $*"
    echo "$*" >>$O/refused
}

# Records an action that must be refused (or allowed) by the mechanism: name, words, command.
attempt() {
    n=$1
    shift
    if ("$@") >$O/attempts/.out 2>&1; then echo allowed >$O/attempts/$n; else
        echo "refused: $(head -c 200 $O/attempts/.out)" >$O/attempts/$n
    fi
}

finish() {
    stage collect
    . /lab/collect.sh
    stage save
    for m in /lab/modules/late/*.ko; do [ -e "$m" ] && insmod "$m"; done
    port=
    w=0
    while [ -z "$port" ] && [ $w -lt 50 ]; do
        for n in /sys/class/virtio-ports/*/name; do
            [ -e "$n" ] && [ "$(cat $n)" = results ] && port=${n%/name} && port=/dev/${port##*/}
        done
        [ -n "$port" ] || sleep 0.1
        w=$((w + 1))
    done
    rm -f $O/attempts/.out $O/facts/.err
    if [ -z "$port" ]; then
        echo "EXCISE fault no port for them"
    elif ! tar -C $O -cf $port . 2>/run/tar.err; then
        echo "EXCISE fault $(head -n 1 /run/tar.err)"
    else
        echo "EXCISE stage saved"
    fi
    sync
    poweroff -f
    sleep 60
}

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev 2>/dev/null
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs tmpfs /tmp
mkdir -p $O/facts $O/attempts $O/steps $O/evidence
stage init
mount -t securityfs securityfs /sys/kernel/security
mkdir -p /dev/shm /dev/pts
for m in /lab/modules/early/*.ko; do [ -e "$m" ] && insmod "$m"; done
ip link set lo up 2>/dev/null
. /lab/preset.sh
[ -e $O/refused ] && finish
mkdir -p /work/tmpfs /work/ext4
mount -t tmpfs tmpfs /work/tmpfs || refuse "cannot mount tmpfs"
mount -t ext4 -o loop,noatime,i_version /lab/work.ext4 /work/ext4 || refuse "cannot mount the work disk"
. /lab/mounted.sh
[ -e $O/refused ] && finish
stage settle
sleep 2
stage measure
. /lab/plan.sh
stage measured
. /lab/proof.sh
finish
