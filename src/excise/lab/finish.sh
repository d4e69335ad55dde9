# Runs as a service in Debian: waits for the end of the boot, then does what init.sh does elsewhere.
export PATH=/run/lab/bin:/bin:/sbin:/usr/bin:/usr/sbin
exec >/dev/console 2>&1
O=/run/out
. /run/lab/functions.sh
systemctl is-system-running --wait >/run/state 2>&1
stage booted
C=/sys/kernel/security/ima/runtime_measurements_count
[ -e $C ] && fact ima_count_booted cat $C
H=/sys/kernel/tracing/events/kprobes/excise_tpm/hist
[ -e $H ] && fact tpm_commands cat $H
fact systemd_state cat /run/state
fact systemd_time systemd-analyze time
fact systemd_blame systemd-analyze --no-pager blame
fact systemd_critical_chain systemd-analyze --no-pager critical-chain
fact systemd_timestamps sh -c 'systemctl show | grep TimestampMonotonic='
fact systemd_failed systemctl --no-pager --no-legend --failed
mkdir -p /excise/tmpfs /excise/ext4
mount -t tmpfs tmpfs /excise/tmpfs
mount -t ext4 -o loop,noatime /run/lab/work.ext4 /excise/ext4
stage measure
. /run/lab/plan.sh
stage measured
. /run/lab/proof.sh
stage collect
. /run/lab/collect.sh
save
systemctl --no-block poweroff
