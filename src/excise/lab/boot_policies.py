"""IMA policies to boot with, from none to many entries, and the proof that each was in force."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Final

from excise.errors import UsageError
from excise.files import read_whole
from excise.lab.configurations import Preset, preset
from excise.lab.effects import Expectation

_SECURITYFS: Final = "/sys/kernel/security"
# tmpfs and ramfs hold the initramfs: what is measured then is the root's.
FEW: Final = """\
dont_measure fsmagic=0x9fa0
dont_measure fsmagic=0x62656572
dont_measure fsmagic=0x64626720
dont_measure fsmagic=0x1021994
dont_measure fsmagic=0x858458f6
dont_measure fsmagic=0x73636673
dont_measure fsmagic=0x27e0eb
dont_measure fsmagic=0x63677270
measure func=BPRM_CHECK uid=0
"""
_LOAD: Final = f"""\
cat /lab/ima-policy >{_SECURITYFS}/ima/policy 2>/run/ima.err ||
    refuse "IMA did not take the policy: $(cat /run/ima.err)"
"""
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,40}")
NAMES: Final = ("off", "few", "tcb")
_MOST_BYTES: Final = 1 << 20


def boot_policy(name: str) -> Preset:
    """Return the preset of an IMA policy to boot with.

    Args:
        name: `off`: no policy; `few`: programs that root starts; `tcb`: the kernel's own policy of
            that name, which measures all that root reads; or the path of a policy file.

    Raises:
        UsageError: If there is no such policy, or the file cannot be read or holds no rule.
    """
    if name == "off":
        return dataclasses.replace(preset("ima-off"), proof="", expectations=(_entries(1, 1),))
    if name == "tcb":
        return dataclasses.replace(preset("ima-measure"), proof="", expectations=(_entries(2),))
    if name == "few":
        return _custom("few", FEW.encode())
    path = Path(name)
    if "/" not in name and not path.is_file():
        raise UsageError(
            f"no IMA policy {name}", hint=f"Policies: {', '.join(NAMES)}, or a file's path"
        )
    try:
        data = read_whole(path, limit_bytes=_MOST_BYTES)
    except OSError as error:
        raise UsageError(f"cannot be read ({error.strerror})", source=name) from error
    rules = [
        line for line in data.splitlines() if line.strip() and not line.lstrip().startswith(b"#")
    ]
    if not rules:
        raise UsageError("holds no rule of IMA", source=name)
    return _custom(path.stem if _NAME.fullmatch(path.stem) else "file", data)


def _custom(name: str, data: bytes) -> Preset:
    return Preset(
        name=f"ima-policy-{name}",
        summary=f"IMA with the policy {name}",
        words=("ima_appraise=off",),
        files=lambda: {"lab/ima-policy": data},
        setup=_LOAD,
        expectations=(_entries(2),),
    )


def _entries(least: int, most: int | None = None) -> Expectation:
    if most is not None:
        return Expectation(fact="ima_count", rule="equals", expected=str(most))
    return Expectation(fact="ima_count", rule="at_least", expected=str(least))
