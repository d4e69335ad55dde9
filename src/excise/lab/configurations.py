"""Security configurations by the field's names: what each boots with, loads, and must prove."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from excise.errors import UsageError
from excise.lab import own_rules, policies
from excise.lab.effects import Expectation

_S: Final = "/sys/kernel/security"
_REFUSED_PROBE: Final = (
    "excise-probe run --workload open_close --operations 10 --directory /excise/refused"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One security configuration.

    Attributes:
        name: Its name.
        summary: One line for `excise lab list`.
        lsm: Modules for `lsm=`, in order; those a kernel always adds are not named.
        words: Further words of the command line.
        files: Makes the files of the initramfs that the set-up loads, by path.
        setup: Shell fragment before the work disks are mounted.
        mounted: Shell fragment after they are mounted, before the measurement.
        proof: Shell fragment after the measurement: attempts that show the mechanism at work.
        probe_options: Options that put the probe itself under a mechanism.
        expectations: What the guest's facts must say.
        needs_guest_program: Whether a fragment calls `excise-guest`.
        rules_sha256: Digest of the further rules that a file gave it, None without.
    """

    name: str
    summary: str
    lsm: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    files: Callable[[], Mapping[str, bytes]] = dict
    setup: str = ""
    mounted: str = ""
    proof: str = ""
    probe_options: tuple[str, ...] = ()
    expectations: tuple[Expectation, ...] = field(default=())
    needs_guest_program: bool = False
    rules_sha256: str | None = None

    def command_line(self) -> tuple[str, ...]:
        """Return the preset's words of the kernel's command line.

        `integrity` is always listed: on 6.1 it is the LSM that IMA keeps its records in, and a
        kernel that lacks it by name ignores it.
        """
        return (f"lsm={','.join(('integrity', *self.lsm))}", *self.words)


def _listed(*names: str) -> tuple[Expectation, ...]:
    return tuple(Expectation(fact="lsm", rule="word", expected=name) for name in names)


def _attempt(name: str, rule_text: str, *, allowed: bool = False) -> Expectation:
    if allowed:
        return Expectation(fact=f"attempt.{name}", rule="equals", expected="allowed")
    return Expectation(fact=f"attempt.{name}", rule="matches", expected=f"^refused:.*{rule_text}")


_SELINUX_LOAD: Final = """\
mount -t selinuxfs selinuxfs /sys/fs/selinux || refuse "selinuxfs is not there"
dd if=/lab/selinux-policy of=/sys/fs/selinux/load bs=8M 2>/run/dd.err || \\
    refuse "the SELinux policy was not loaded: $(tail -n 1 /run/dd.err)"
echo {enforce} >/sys/fs/selinux/enforce || refuse "SELinux's mode could not be set"
"""
_SELINUX_PROOF: Final = """\
attempt selinux_transition sh -c 'printf %s system_u:system_r:sshd_t:s0 >/proc/self/attr/current'
"""


def _selinux(name: str, *, enforce: int) -> Preset:
    denied = _attempt("selinux_transition", "", allowed=not enforce)
    return Preset(
        name=name,
        summary=f"SELinux with Debian's reference policy, {name.split('-')[1]}",
        lsm=("selinux",),
        files=lambda: {"lab/selinux-policy": policies.selinux_policy()},
        setup=_SELINUX_LOAD.format(enforce=enforce),
        proof=_SELINUX_PROOF,
        expectations=(
            *_listed("selinux"),
            Expectation(fact="selinux_enforce", rule="equals", expected=str(enforce)),
            Expectation(fact="selinux_classes", rule="at_least", expected="100"),
            Expectation(fact="selinux_cache_stats", rule="matches", expected=r"\n[1-9]\d+ "),
            denied,
        ),
    )


_TOMOYO_SETUP: Final = f"""\
T={_S}/tomoyo
[ -d $T ] || refuse "TOMOYO is not in this kernel"
for f in profile manager exception_policy domain_policy; do
    cat /lab/tomoyo/$f >$T/$f || refuse "TOMOYO did not take its $f"
done
/lab/tomoyo/trigger
"""
_TOMOYO_WORDS: Final = (
    "TOMOYO_trigger=/lab/tomoyo/trigger",
    "TOMOYO_loader=/lab/tomoyo/loader",
)
_TOMOYO_PROOF: Final = f"mkdir -p /excise/refused\nattempt tomoyo_path {_REFUSED_PROBE}\n"


def _tomoyo_files(profile: int) -> Mapping[str, bytes]:
    script = b"#!/bin/busybox sh\nexit 0\n"
    return {
        "lab/tomoyo/profile": policies.TOMOYO_PROFILE.encode(),
        "lab/tomoyo/manager": policies.TOMOYO_MANAGER.encode(),
        "lab/tomoyo/exception_policy": policies.TOMOYO_EXCEPTIONS.encode(),
        "lab/tomoyo/domain_policy": policies.tomoyo_domain_policy(profile=profile).encode(),
        "lab/tomoyo/trigger": script,
        "lab/tomoyo/loader": script,
    }


def _tomoyo(name: str, *, profile: int) -> Preset:
    learning = profile == 1
    return Preset(
        name=name,
        summary=f"TOMOYO with a policy for the workload, {name.split('-')[1]}",
        lsm=("tomoyo",),
        words=_TOMOYO_WORDS,
        files=lambda: _tomoyo_files(profile),
        setup=_TOMOYO_SETUP,
        proof=_TOMOYO_PROOF,
        expectations=(
            *_listed("tomoyo"),
            Expectation(
                fact="tomoyo_domain_policy",
                rule="matches",
                expected=rf"<kernel> /bin/excise-probe\nuse_profile {profile}\n",
            ),
            _attempt("tomoyo_path", "", allowed=learning),
        ),
    )


_APPARMOR_SETUP: Final = f"""\
[ -d {_S}/apparmor ] || refuse "AppArmor is not in this kernel"
cat /lab/apparmor-profile >{_S}/apparmor/.load || refuse "the AppArmor profile was not loaded"
"""
_APPARMOR_PROOF: Final = f"mkdir -p /excise/refused\nattempt apparmor_path {_REFUSED_PROBE}\n"
_APPARMOR_EXPECTED: Final = (
    *_listed("apparmor"),
    Expectation(
        fact="apparmor_profiles",
        rule="contains",
        expected=f"{policies.APPARMOR_PROFILE_NAME} (enforce)",
    ),
    _attempt("apparmor_path", ""),
)
_IMA_PROOF: Final = """\
attempt ima_labelled cat /excise/ext4/proof/labelled
attempt ima_unlabelled cat /excise/ext4/proof/unlabelled
"""
_YAMA_SETUP: Final = (
    'echo 1 >/proc/sys/kernel/yama/ptrace_scope || refuse "Yama is not in this kernel"\n'
)
_YAMA_PROOF: Final = """\
echo 3 >/proc/sys/kernel/yama/ptrace_scope
sleep 30 &
attempt ptrace_access head -c 1 /proc/$!/mem
kill $!
"""
_YAMA_EXPECTED: Final = (
    *_listed("yama"),
    Expectation(fact="yama_ptrace_scope", rule="equals", expected="3"),
    _attempt("ptrace_access", "Permission denied"),
)
_LOCKDOWN_EXPECTED: Final = (
    *_listed("lockdown"),
    Expectation(fact="lockdown", rule="contains", expected="[integrity]"),
    _attempt("dev_mem", "Operation not permitted"),
)
_DEV_MEM: Final = "attempt dev_mem head -c 1 /dev/mem\n"
_LANDLOCK_PROOF: Final = """\
mkdir -p /excise/refused
confined="excise-probe exec --landlock --directory /excise/tmpfs --"
attempt landlock_inside $confined /bin/touch /excise/tmpfs/x
attempt landlock_outside $confined /bin/touch /excise/refused/x
"""
_LANDLOCK_EXPECTED: Final = (
    *_listed("landlock"),
    _attempt("landlock_inside", "", allowed=True),
    _attempt("landlock_outside", "Permission denied"),
)

_IMA_APPRAISE: Final = "ima_policy=tcb|appraise_tcb"


def _ima(name: str, summary: str, *, words: tuple[str, ...], refused: bool, least: int) -> Preset:
    measured = Expectation(
        fact="ima_count", rule="at_least" if least > 1 else "equals", expected=str(least)
    )
    return Preset(
        name=name,
        summary=summary,
        words=words,
        proof=_IMA_PROOF,
        expectations=(
            measured,
            _attempt("ima_labelled", "", allowed=True),
            _attempt("ima_unlabelled", "Permission denied", allowed=not refused),
        ),
    )


_BPF_HOOKS: Final = (
    "file_open",
    "file_permission",
    "inode_permission",
    "inode_getattr",
    "inode_create",
    "inode_unlink",
    "socket_create",
    "unix_stream_connect",
    "bprm_check_security",
    "task_alloc",
)
_BPF_SETUP: Final = f"""\
mount -t bpf bpf /sys/fs/bpf || refuse "this kernel has no BPF file system"
excise-guest bpf-lsm /sys/fs/bpf {" ".join(_BPF_HOOKS)} 2>/run/bpf.err || \\
    refuse "the BPF programs were not attached: $(cat /run/bpf.err)"
"""
_BPF_RAN: Final = r"file_open [1-9]\d+\n"
_BPF_PROOF: Final = "fact bpf_counts excise-guest bpf-count /sys/fs/bpf\n"
_EVM_SETUP: Final = """\
excise-guest evm-key 2>/run/evm.err || refuse "EVM has no key: $(cat /run/evm.err)"
"""
_EVM_PROOF: Final = """\
cat /excise/ext4/proof/labelled >/dev/null
fact evm_attribute excise-guest attribute /excise/ext4/proof/labelled security.evm
echo x >/excise/ext4/proof/new
fact evm_attribute_new excise-guest attribute /excise/ext4/proof/new security.evm
"""
_EVM_HMAC_SHA1: Final = "^02[0-9a-f]{40}$"  # EVM_XATTR_HMAC, then an HMAC-SHA-1

_PRESETS: Final = (
    Preset(
        name="none",
        summary="no LSM beyond those the kernel always has",
        expectations=(Expectation(fact="lsm", rule="contains", expected="capability"),),
    ),
    Preset(
        name="yama",
        summary="Yama, ptrace_scope 1",
        lsm=("yama",),
        setup=_YAMA_SETUP,
        proof=_YAMA_PROOF,
        expectations=_YAMA_EXPECTED,
    ),
    Preset(
        name="lockdown",
        summary="lockdown in its integrity mode",
        lsm=("lockdown",),
        words=("lockdown=integrity",),
        proof=_DEV_MEM,
        expectations=_LOCKDOWN_EXPECTED,
    ),
    Preset(
        name="landlock",
        summary="Landlock, the workload inside a ruleset",
        lsm=("landlock",),
        probe_options=("--landlock",),
        proof=_LANDLOCK_PROOF,
        expectations=_LANDLOCK_EXPECTED,
    ),
    Preset(
        name="apparmor",
        summary="AppArmor, the workload under an enforced profile",
        lsm=("apparmor",),
        files=lambda: {"lab/apparmor-profile": policies.apparmor_profile()},
        setup=_APPARMOR_SETUP,
        proof=_APPARMOR_PROOF,
        expectations=_APPARMOR_EXPECTED,
    ),
    _selinux("selinux-permissive", enforce=0),
    _selinux("selinux-enforcing", enforce=1),
    _tomoyo("tomoyo-learning", profile=1),
    _tomoyo("tomoyo-enforcing", profile=3),
    Preset(
        name="bpf",
        summary="BPF LSM, a program that counts and allows on ten hooks",
        lsm=("bpf",),
        setup=_BPF_SETUP,
        proof=_BPF_PROOF,
        expectations=(
            *_listed("bpf"),
            Expectation(fact="bpf_counts", rule="matches", expected=_BPF_RAN),
        ),
        needs_guest_program=True,
    ),
    _ima("ima-off", "IMA built in, no policy", words=("ima_appraise=off",), refused=False, least=1),
    _ima("ima-measure", "IMA measures (tcb)", words=("ima_policy=tcb",), refused=False, least=3),
    _ima(
        "ima-fix",
        "IMA measures and labels (tcb, appraise_tcb, fix)",
        words=(_IMA_APPRAISE, "ima_appraise=fix"),
        refused=False,
        least=3,
    ),
    _ima(
        "ima-enforce",
        "IMA measures and appraises (tcb, appraise_tcb, enforce)",
        words=(_IMA_APPRAISE, "ima_appraise=enforce"),
        refused=True,
        least=3,
    ),
    Preset(
        name="evm",
        summary="EVM with an HMAC key, over IMA in its fix mode",
        words=(_IMA_APPRAISE, "ima_appraise=fix", "evm=fix"),
        setup=_EVM_SETUP,
        proof=_EVM_PROOF,
        expectations=(
            Expectation(fact="evm", rule="equals", expected="1"),
            Expectation(fact="ima_count", rule="at_least", expected="3"),
            Expectation(fact="evm_attribute", rule="matches", expected=_EVM_HMAC_SHA1),
            Expectation(fact="evm_attribute_new", rule="matches", expected=_EVM_HMAC_SHA1),
        ),
        needs_guest_program=True,
    ),
    Preset(
        name="fips",
        summary="kernel crypto in FIPS mode",
        words=("fips=1",),
        expectations=(Expectation(fact="fips_enabled", rule="equals", expected="1"),),
    ),
    Preset(
        name="all",
        summary="Yama, lockdown, Landlock, AppArmor, TOMOYO, BPF LSM and IMA measurement together",
        lsm=("landlock", "lockdown", "yama", "apparmor", "tomoyo", "bpf"),
        words=("lockdown=integrity", "ima_policy=tcb", *_TOMOYO_WORDS),
        files=lambda: {
            "lab/apparmor-profile": policies.apparmor_profile(),
            **_tomoyo_files(3),
        },
        setup=_YAMA_SETUP + _APPARMOR_SETUP + _TOMOYO_SETUP + _BPF_SETUP,
        probe_options=("--landlock",),
        proof="".join(
            (
                _APPARMOR_PROOF,
                _TOMOYO_PROOF,
                _DEV_MEM,
                _IMA_PROOF,
                _BPF_PROOF,
                _YAMA_PROOF,
            )
        ),
        expectations=(
            *_YAMA_EXPECTED,
            *_LOCKDOWN_EXPECTED,
            *_APPARMOR_EXPECTED,
            *_listed("landlock", "tomoyo", "bpf"),
            _attempt("tomoyo_path", ""),
            Expectation(fact="bpf_counts", rule="matches", expected=_BPF_RAN),
            Expectation(fact="ima_count", rule="at_least", expected="3"),
        ),
        needs_guest_program=True,
    ),
)


def presets() -> dict[str, Preset]:
    """Return all presets by name, in the order tables list them."""
    return {preset.name: preset for preset in _PRESETS}


def preset(name: str) -> Preset:
    """Return a preset by name, or by a name and a file of further rules: `apparmor:FILE`.

    Of Landlock also by a number of them: `landlock:256`.

    Raises:
        UsageError: If there is none of that name, in which case the hint lists all, or the file
            cannot be read.
        HostError: If its rules do not compile.
    """
    plain, separator, path = name.partition(own_rules.SEPARATOR)
    found = presets().get(plain)
    if found is None:
        raise UsageError(f"no preset {plain}", hint=f"Presets: {', '.join(presets())}")
    if not separator:
        return found
    rules = own_rules.read_rules(path, preset=plain, files=found.files)
    return replace(
        found,
        name=name,
        files=lambda: rules.files,
        mounted=found.mounted + rules.mounted,
        proof=found.proof + rules.proof,
        probe_options=(*found.probe_options, *rules.probe_options),
        expectations=(*found.expectations, *rules.expectations),
        rules_sha256=rules.sha256,
    )
