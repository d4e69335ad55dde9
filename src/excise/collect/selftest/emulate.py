"""Loads of another machine's OpenSSL under QEMU's user emulation, counted in instructions.

A plugin counts instructions into a page that the helper maps: its clock. One load is enough, as
what else this machine does is not counted.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from excise.collect.selftest.measured import Measured
from excise.collect.selftest.native import INSTRUCTION_CLOCK, helper
from excise.collect.selftest.openssl import find_provider
from excise.collect.selftest.tree import OnStep, make_tree
from excise.errors import HostError


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedLoad:
    """One load of a provider on an emulated machine.

    Attributes:
        machine: Such as `aarch64`.
        version: OpenSSL's version.
        configuration: Name of the configuration.
        measured: What the helper measured; its clock counts instructions.
    """

    machine: str
    version: str
    configuration: str
    measured: Measured


def counted_loads(suite: str, *, machine: str, on_step: OnStep | None = None) -> list[CountedLoad]:
    """Return one counted load of a suite's provider under each of its configurations.

    Args:
        suite: Debian suite, such as `trixie`.
        machine: Machine to emulate: `aarch64` or `x86_64`.
        on_step: Called with what is being done, steps done and steps in all.

    Raises:
        HostError: If the emulator, the cross compiler or the packages are not there.
    """
    emulator = shutil.which(f"qemu-{machine}")
    if emulator is None:
        raise HostError(
            f"qemu-{machine} is not installed",
            hint="apt install qemu-user (the static one has no plugins)",
        )
    tree = make_tree(suite, machine=machine, on_step=on_step)
    with tempfile.TemporaryDirectory(prefix="excise-count-") as name:
        folder = Path(name)
        plain = dataclasses.replace(tree, prefix=(emulator,))
        provider = find_provider(plain, folder=folder)
        loads = []
        for done, variant in enumerate(provider.variants):
            if on_step is not None:
                text = f"counting {machine}, {variant.name}"
                on_step(text, done, len(provider.variants))
            clock = folder / f"clock-{done}"
            clock.write_bytes(bytes(4096))
            plugin = f"{helper(INSTRUCTION_CLOCK)},page={clock}"
            counting = dataclasses.replace(tree, prefix=(emulator, "-plugin", plugin))
            counted = dataclasses.replace(provider, tree=counting)
            measured = counted.load(variant, EXCISE_COUNTER=str(clock))
            loads.append(
                CountedLoad(
                    machine=machine,
                    version=provider.version,
                    configuration=variant.name,
                    measured=measured,
                )
            )
    return loads
