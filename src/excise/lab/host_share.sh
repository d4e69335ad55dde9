# Mounts the disk with this host's Python, and sets up the network; sourced before the measurement.
share() {
    for m in /lab/modules/share/*.ko; do [ -e "$m" ] && insmod "$m" 2>/dev/null; done
    w=0
    while [ ! -b /dev/vda ] && [ $w -lt 100 ]; do
        sleep 0.1
        w=$((w + 1))
    done
    mkdir -p "$1"
    mount -t ext4 -o rw,noatime /dev/vda "$1" || refuse "cannot mount the disk with Python"
    for d in proc sys dev run tmp excise; do mount --rbind /$d "$1/$d"; done
    mkdir -p /excise/ext4/tmp
    ip link set lo up 2>/dev/null
}

network() {
    w=0
    while [ ! -e /sys/class/net/eth0 ] && [ $w -lt 100 ]; do
        sleep 0.1
        w=$((w + 1))
    done
    ip link set eth0 up && ip addr add "$1" dev eth0 || refuse "the network cannot be set up"
}
