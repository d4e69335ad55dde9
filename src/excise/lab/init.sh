#!/bin/busybox sh
# PID 1 of a lab guest.
# Nothing here may depend on the host's time, and everything before `measure` is the same work for
# every preset but for the preset's own fragment.
export PATH=/bin
O=/run/out

. /lab/functions.sh

late_modules() {
    for m in /lab/modules/late/*.ko; do [ -e "$m" ] && insmod "$m"; done
}

finish() {
    stage collect
    . /lab/collect.sh
    late_modules
    save
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
[ -e /lab/switch.sh ] && . /lab/switch.sh
mkdir -p /excise/tmpfs /excise/ext4
mount -t tmpfs tmpfs /excise/tmpfs || refuse "cannot mount tmpfs"
mount -t ext4 -o loop,noatime /lab/work.ext4 /excise/ext4 || refuse "cannot mount the work disk"
. /lab/mounted.sh
[ -e $O/refused ] && finish
stage settle
sleep 2
stage measure
. /lab/plan.sh
stage measured
. /lab/proof.sh
finish
