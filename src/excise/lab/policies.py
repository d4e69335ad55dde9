"""Policies that presets load: built once from packages or text, and cached by digest.

Nothing is installed: the policy compilers run from unpacked packages.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from excise.errors import HostError
from excise.lab import packages
from excise.lab.cache import digest_of, stored

SELINUX_POLICY_VERSION: Final = 33
_SELINUX_TOOLS: Final = (
    "policycoreutils",
    "libsemanage2",
    "libsepol2",
    "libselinux1",
    "libaudit1",
    "libcap-ng0",
    "libpcre2-8-0",
    "libbz2-1.0",
)
_SEMANAGE_CONF: Final = """\
module-store = direct
expand-check = 0
bzip-blocksize = 0
save-previous = false
policy-version = {version}
compiler-directory = {compilers}
[setfiles]
path = /bin/true
args =
[end]
[sefcontext_compile]
path = /bin/true
args =
[end]
"""

APPARMOR_PROFILE_NAME: Final = "excise-workload"
APPARMOR_PROFILE: Final = """\
abi <abi/3.0>,
include <tunables/global>
profile excise-workload /bin/excise-probe {
  include <abstractions/base>
  capability,
  network,
  signal,
  unix,
  ptrace,
  /bin/excise-probe mrix,
  /bin/busybox mrix,
  /dev/** rw,
  @{PROC}/** r,
  owner /run/** rwk,
  /excise/ r,
  /excise/tmpfs/ rw,
  /excise/tmpfs/** mrwlkix,
  /excise/ext4/ rw,
  /excise/ext4/** mrwlkix,
  deny /excise/refused/** rwmlkx,
}
"""

TOMOYO_DOMAIN: Final = "<kernel> /bin/excise-probe"
TOMOYO_PROFILE: Final = """\
PROFILE_VERSION=20150505
0-COMMENT=disabled
0-CONFIG={ mode=disabled grant_log=no reject_log=no }
1-COMMENT=learning
1-CONFIG={ mode=learning grant_log=no reject_log=no }
1-PREFERENCE={ max_audit_log=0 max_learning_entry=4096 }
3-COMMENT=enforcing
3-CONFIG={ mode=enforcing grant_log=no reject_log=no }
3-PREFERENCE={ max_audit_log=0 max_learning_entry=4096 }
"""
TOMOYO_EXCEPTIONS: Final = """\
initialize_domain /bin/excise-probe from any
"""
TOMOYO_MANAGER: Final = """\
<kernel>
/bin/busybox
"""


def tomoyo_domain_policy(*, profile: int) -> str:
    """Return the domain policy of the workload under a profile: 1 learning, 3 enforcing.

    The rules of the enforcing policy name what the probe does below `/excise`, one rule for each
    kind of access, with patterns for the file names.
    """
    lines = [TOMOYO_DOMAIN, f"use_profile {profile}", "use_group 0"]
    if profile == 3:
        lines += _tomoyo_rules()
    return "\n".join(["<kernel>", "use_profile 0", "use_group 0", "", *lines, ""])


def _tomoyo_rules() -> list[str]:
    """Return access rules. Source: Documentation/admin-guide/LSM/tomoyo.rst."""
    rules = [
        "misc env \\*",
        "file read/getattr proc:/self/\\*",
        "file getattr proc:/",  # and the next: looked at before a Landlock rule is made of them
        "file getattr proc:/self/",
        "file read/getattr /dev/zero",
        "file write/getattr /dev/null",
        "file read/getattr/execute /bin/excise-probe",
        "network unix stream bind/listen/connect socket",
    ]
    for place in ("/excise/tmpfs", "/excise/ext4"):
        folder = f"{place}/excise-probe-\\$"
        rules += [
            f"file read/getattr {place}/",  # opened by name where a Landlock rule names it
            f"file mkdir {folder}/ 0-0777",
            f"file read/getattr/rmdir {folder}/",
            f"file create {folder}/\\* 0-0777",
            f"file read/write/append/truncate/getattr/unlink {folder}/\\*",
            f"file mksock {folder}/socket 0-0777",
        ]
    return rules


def selinux_policy(*, module: bytes = b"") -> bytes:
    """Return Debian's reference policy with all its modules, as the kernel loads it.

    Args:
        module: A further module in CIL, or nothing.

    Raises:
        HostError: If a package cannot be fetched or the policy does not build.
    """
    policy = packages.fetch("selinux-policy-default")
    tools = packages.fetch("policycoreutils")
    libraries = _library_path()
    conf = _SEMANAGE_CONF.format(
        version=SELINUX_POLICY_VERSION, compilers=tools.root / "usr/libexec/selinux/hll"
    )
    key = digest_of(policy.version, tools.version, conf, *([module] if module else []))

    def build(into: Path) -> None:
        root = into / "root"
        shutil.copytree(policy.root, root, symlinks=True)
        (root / "etc/selinux/semanage.conf").write_text(conf)
        modules = sorted((root / "usr/share/selinux/default").glob("*.pp.bz2"))
        if module:
            modules.append(root / "rules.cil")
            modules[-1].write_bytes(module)
        command = [tools.root / "usr/sbin/semodule", "-p", root, "-s", "default", "-X", "100"]
        added = ["-n", "-i", *map(str, modules)]
        _run([*map(str, command), *added], libraries=libraries, folder=root)
        built = root / f"etc/selinux/default/policy/policy.{SELINUX_POLICY_VERSION}"
        built.rename(into / "policy")
        shutil.rmtree(root)

    return (stored("policies", f"selinux-{key[:16]}", build) / "policy").read_bytes()


def apparmor_profile(*, rules: bytes = b"") -> bytes:
    """Return the workload's AppArmor profile, compiled for the kernel.

    Args:
        rules: Further rules in the profile, or none.

    Raises:
        HostError: If the package cannot be fetched or the profile does not compile.
    """
    package = packages.fetch("apparmor")
    key = digest_of(package.version, APPARMOR_PROFILE, *([rules] if rules else []))

    def build(into: Path) -> None:
        source, profile = into / "profile.txt", APPARMOR_PROFILE
        if rules:  # a file of their own: the parser names it and the line where it finds fault
            (into / "rules").write_bytes(rules)
            profile = profile.removesuffix("}\n") + f'  include "{into / "rules"}"\n}}\n'
        source.write_text(profile)
        parser, base = package.root / "sbin/apparmor_parser", package.root / "etc/apparmor.d"
        command = [
            parser,
            "-I",
            base,
            "-b",
            base,
            "-K",
            "-T",
            "-S",
            "--config-file",
            "/dev/null",
            source,
        ]
        (into / "profile").write_bytes(_run([*map(str, command)], libraries="", folder=into))

    return (stored("policies", f"apparmor-{key[:16]}", build) / "profile").read_bytes()


def _library_path() -> str:
    roots = [packages.fetch(name).root for name in _SELINUX_TOOLS]
    places = ("lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu")
    return ":".join(str(root / place) for root in roots for place in places)


def _run(command: list[str], *, libraries: str, folder: Path) -> bytes:
    """Return what a policy compiler prints; its complaints are told without the working folder."""
    environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C"}
    if libraries:
        environment["LD_LIBRARY_PATH"] = libraries
    done = subprocess.run(command, capture_output=True, check=False, env=environment)
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
        said = lines[-1].replace(f"{folder}/", "")
        raise HostError(f"{Path(command[0]).name} failed: {said}")
    return done.stdout
