# Functions of a guest's scripts. Stages are announced on the console; results go below $O.

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

# Sends everything in $O to the host as one tar.
save() {
    stage save
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
}
