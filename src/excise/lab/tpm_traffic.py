"""What a guest's kernel sends to its TPM: commands by code, counted by a probe on `tpm_transmit`.

A kprobe with a histogram trigger counts in the kernel: nothing is written per command, and what
is sent before the guest's init (the boot aggregate, the start-up of the TPM) is not seen.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from excise.collect.tpm.codes import COMMANDS
from excise.lab.configurations import Preset

FACT: Final = "tpm_commands"
_TRACEFS: Final = "/sys/kernel/tracing"
_EVENT: Final = "excise_tpm"
# tpm_transmit(chip, buf, bufsiz): buf holds tag (2), size (4) and command code (4), big-endian.
_SET_UP: Final = f"""\
if [ -d /sys/class/tpm/tpm0 ]; then
    mount -t tracefs tracefs {_TRACEFS} 2>/dev/null
    echo 'p:{_EVENT} tpm_transmit code=+6(%si):u32 size=+2(%si):u32' \\
        >{_TRACEFS}/kprobe_events &&
    echo 'hist:keys=code,size:size=1024' >{_TRACEFS}/events/kprobes/{_EVENT}/trigger ||
        refuse "commands to the TPM cannot be counted: no kprobe on tpm_transmit"
fi
"""
# Where Debian is the root, finish.sh has read it at the end of the boot.
_COLLECT: Final = f"""\
T={_TRACEFS}/events/kprobes/{_EVENT}/hist
[ -e $T ] && [ ! -e $O/facts/{FACT} ] && fact {FACT} cat $T
"""
_ROW = re.compile(r"\{ code:\s*(\d+), size:\s*(\d+)\s*\} hitcount:\s*(\d+)")
_DROPPED = re.compile(r"^\s*Dropped: (\d+)", re.MULTILINE)
_NAMES: Final = {code: name for name, code in COMMANDS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class TpmCommands:
    """Commands of one code.

    Attributes:
        command: Name as in the TPM's specification, or its code.
        count: How often it was sent.
        sent_bytes: Bytes of all of them, without answers.
    """

    command: str
    count: int
    sent_bytes: int


def counting(preset: Preset) -> Preset:
    """Return the preset with commands to the TPM counted from init on."""
    return dataclasses.replace(preset, setup=_SET_UP + preset.setup, proof=_COLLECT + preset.proof)


def commands_of(text: str) -> tuple[Sequence[TpmCommands], int]:
    """Return what a histogram says, the most frequent first, and how many it had no room for.

    Args:
        text: The content of the probe's `hist` file.
    """
    counts: dict[str, tuple[int, int]] = {}
    for code, size, hits in _ROW.findall(text):
        name = _NAMES.get(_swapped(int(code)), f"0x{_swapped(int(code)):08x}")
        count, sent = counts.get(name, (0, 0))
        counts[name] = (count + int(hits), sent + int(hits) * _swapped(int(size)))
    found = [
        TpmCommands(command=name, count=count, sent_bytes=sent)
        for name, (count, sent) in counts.items()
    ]
    dropped = _DROPPED.search(text)
    ordered = sorted(found, key=lambda each: (-each.count, each.command))
    return ordered, int(dropped[1]) if dropped else 0


def _swapped(value: int) -> int:
    """Return a big-endian number of the TPM that the guest's processor read the other way round."""
    return int.from_bytes(value.to_bytes(4, "little"), "big")
