# Facts and evidence, read after the measurement.
S=/sys/kernel/security
fact cmdline cat /proc/cmdline
fact uname uname -a
fact lsm cat $S/lsm
fact fips_enabled cat /proc/sys/crypto/fips_enabled
fact clocksource cat /sys/devices/system/clocksource/clocksource0/current_clocksource
fact mitigations sh -c 'cd /sys/devices/system/cpu/vulnerabilities && head -n 1 *'
fact cpuinfo head -n 30 /proc/cpuinfo
fact meminfo head -n 5 /proc/meminfo
fact mounts cat /proc/mounts
[ -e $S/lockdown ] && fact lockdown cat $S/lockdown
[ -e $S/apparmor/profiles ] && fact apparmor_profiles cat $S/apparmor/profiles
if [ -e /sys/fs/selinux/enforce ]; then
    fact selinux_enforce cat /sys/fs/selinux/enforce
    fact selinux_policyvers cat /sys/fs/selinux/policyvers
    fact selinux_cache_stats cat /sys/fs/selinux/avc/cache_stats
    fact selinux_classes sh -c 'ls /sys/fs/selinux/class | wc -l'
    fact selinux_context cat /proc/self/attr/current
fi
if [ -e $S/tomoyo/stat ]; then
    fact tomoyo_stat cat $S/tomoyo/stat
    fact tomoyo_profile cat $S/tomoyo/profile
    fact tomoyo_domain_policy cat $S/tomoyo/domain_policy
fi
[ -e /proc/sys/kernel/yama/ptrace_scope ] && fact yama_ptrace_scope cat /proc/sys/kernel/yama/ptrace_scope
[ -e $S/evm ] && fact evm cat $S/evm
if [ -d /sys/class/tpm/tpm0 ]; then
    # What is present tells how the kernel protects PCR extends.
    [ -e /sys/class/tpm/tpm0/null_name ] && fact tpm_null_name cat /sys/class/tpm/tpm0/null_name
    P=/sys/module/tpm/parameters
    [ -d $P ] && fact tpm_parameters ls $P
    [ -e $P/disable_pcr_integrity ] && fact tpm_disable_pcr_integrity cat $P/disable_pcr_integrity
    # PCRs before the list: the list may then be longer than the PCRs tell, never shorter.
    for b in /sys/class/tpm/tpm0/pcr-*; do
        for f in "$b"/*; do
            read -r v <"$f" && echo "${b##*pcr-}:${f##*/} $v" >>$O/evidence/pcrs.txt
        done
    done
    for q in /lab/quote.sh /run/lab/quote.sh; do [ -e $q ] && . $q && break; done
    [ -e $S/tpm0/binary_bios_measurements ] && cat $S/tpm0/binary_bios_measurements >$O/evidence/binary_bios_measurements
fi
if [ -d $S/ima ]; then
    for f in $S/ima/*_runtime_measurements*; do
        # The files without a bank are links to those of sha1 where there is one per bank.
        case $f in *_sha1) ;; *) cat "$f" >$O/evidence/${f##*/} ;; esac
    done
    fact ima_count cat $S/ima/runtime_measurements_count
    fact ima_violations cat $S/ima/violations
    [ -r $S/ima/policy ] && cat $S/ima/policy >$O/evidence/ima_policy 2>/dev/null
fi
dmesg >$O/dmesg
