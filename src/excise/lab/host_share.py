"""This host's excise inside a guest: on an ext4 disk with labels, and a network of single ports.

Interpreter and third-party packages are an image that is built once for their versions; excise
itself is on the work disk, which changes with it. Every file carries its `security.ima`, so that
they run under every mode of IMA, and are measured as programs of a machine's disk are.
"""

from __future__ import annotations

import dataclasses
import importlib.machinery
import importlib.util
import marshal
import shlex
import shutil
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Final

import msgspec

from excise.errors import HostError
from excise.lab import packages
from excise.lab.cache import digest_of, stored
from excise.lab.configurations import Preset
from excise.lab.disk import WorkFile, make_image, run_debugfs
from excise.lab.host_share_tree import SITE, distributions, fill, interpreter
from excise.lab.kernel import Kernel
from excise.lab.machine import Machine
from excise.lab.plan import Plan

ROOT: Final = "/python"
"""Where a guest has the disk; programs of it see it as their root."""
PACKAGE: Final = "excise-package"
"""Folder of excise on the work disk."""
HOST_ADDRESS: Final = "10.0.2.100"
"""Address at which a guest reaches the ports of this host's loopback that it was given."""

_SPARE_MIB: Final = 96
_GUEST_ADDRESS: Final = "10.0.2.15/24"
_MODULES: Final = ("virtio_pci", "virtio_blk", "virtio_net")
_MOUNTED: Final = ". /lab/host_share.sh\n"


def share_image() -> Path:
    """Return the ext4 image of interpreter and packages, built at its first use.

    Raises:
        HostError: If a package is missing, or the image cannot be made.
    """
    versions = [f"{name} {found.version}" for name, found in distributions().items()]
    program = interpreter()
    key = digest_of("python 2", sys.version, str(program), *versions)

    def build(into: Path) -> None:
        tree, values = into / "tree", into / "values"
        tree.mkdir()
        values.mkdir()
        fill(tree)
        files = [path for path in sorted(tree.rglob("*")) if path.is_file()]
        size = sum(path.stat().st_size + 4096 for path in files)
        image = into / "python.ext4"
        inodes = 2 * len(files) + 1024
        make_image(tree, image, size_mib=(size >> 20) * 9 // 8 + _SPARE_MIB, inodes=inodes)
        run_debugfs(list(_labels(tree, files, values=values)), image=image, folder=into)
        shutil.rmtree(tree, ignore_errors=True)
        shutil.rmtree(values, ignore_errors=True)

    return stored("python", key[:24], build) / "python.ext4"


def _labels(tree: Path, files: list[Path], *, values: Path) -> Iterator[str]:
    """Yield the debugfs commands that make files root's and label them for appraisal."""
    for path in sorted(tree.rglob("*")):
        name = f"/{path.relative_to(tree)}"
        yield from (f'sif "{name}" {owner} 0' for owner in ("uid", "gid"))
    for path in files:
        value = WorkFile(data=path.read_bytes(), selinux="").attributes()["security.ima"]
        stored_value = values / value.hex()
        stored_value.write_bytes(value)
        yield f'ea_set -f {stored_value} "/{path.relative_to(tree)}" security.ima'


def with_share(plan: Plan, *, machine: Machine) -> Plan:
    """Return the plan with what its work disk has of this host: the machine's files, and excise.

    Raises:
        HostError: If a file cannot be read.
    """
    files = {**plan.files}
    for place, name in machine.files.items():
        try:
            files[place.lstrip("/")] = WorkFile(data=Path(name).read_bytes(), selinux="")
        except OSError as error:
            raise HostError(f"cannot be read ({error.strerror})", source=name) from error
    if machine.python:
        files |= package_files()
    return msgspec.structs.replace(plan, files=files)


def package_files() -> dict[str, WorkFile]:
    """Return excise's modules and data for the work disk, compiled, by path."""
    base = Path(str(resources.files("excise")))
    found: dict[str, WorkFile] = {}
    for path in sorted(base.rglob("*")):
        parts = path.relative_to(base).parts
        if not path.is_file() or {"__pycache__", "_bin", "assets"} & set(parts):
            continue
        name = f"{PACKAGE}/excise/{'/'.join(parts)}"
        data = path.read_bytes()
        found[name] = WorkFile(data=data, selinux="")
        if path.suffix == ".py":
            target = Path(importlib.util.cache_from_source(name))
            found[str(target)] = WorkFile(data=_compiled(path, data), selinux="")
    return found


def _compiled(path: Path, source: bytes) -> bytes:
    """Return a module's byte code in the form that is not checked against its source's time."""
    module = ".".join(["excise", path.stem])
    code = importlib.machinery.SourceFileLoader(module, str(path)).get_code(module)
    unchecked = (1).to_bytes(4, "little")  # PEP 552
    head = importlib.util.MAGIC_NUMBER + unchecked + importlib.util.source_hash(source)
    return head + marshal.dumps(code)


def shared_preset(preset: Preset, *, machine: Machine) -> Preset:
    """Return the preset with the disk and the network of a machine that has this host's Python."""
    if not machine.python:
        return preset
    return dataclasses.replace(preset, mounted=_MOUNTED + preset.mounted)


def share_files(kernel: Kernel, *, machine: Machine) -> dict[str, bytes]:
    """Return the files that a guest's root has for it: modules, set-up, the programs' wrappers.

    Raises:
        HostError: If the kernel lacks a module.
    """
    if not machine.python:
        return {}
    wanted: dict[str, bytes] = {}
    for name in _MODULES:
        wanted |= kernel.modules_for(name)
    files = {
        f"lab/modules/share/{number:02d}-{name}.ko": data
        for number, (name, data) in enumerate(wanted.items())
    }
    files["lab/host_share.sh"] = _setup(machine).encode()
    files["bin/python"] = _wrapper().encode()
    entry = "from excise.cli.main import main; main()"
    files["bin/excise"] = _wrapper("-c", entry).encode()
    return files


def _setup(machine: Machine) -> str:
    text = resources.files("excise.lab").joinpath("host_share.sh").read_text()
    network = f"network {_GUEST_ADDRESS}\n" if machine.ports else ""
    return f"{text}share {ROOT}\n{network}"


def _wrapper(*words: str) -> str:
    """Return the script that runs this host's Python in a guest with the words before its own."""
    variables = {
        "PATH": f"{interpreter().parent}:/bin:/usr/bin",
        "HOME": "/tmp",  # the guest's own
        "PYTHONHOME": f"{sys.base_prefix}:{sys.base_exec_prefix}",
        "PYTHONPATH": f"/{SITE}:/excise/ext4/{PACKAGE}",
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LC_ALL": "C.UTF-8",
    }
    before = [f"{name}={value}" for name, value in variables.items()]
    command = [*before, "chroot", ROOT, str(interpreter()), *words]
    return f'#!/bin/busybox sh\nexport PATH=/bin\nexec env {shlex.join(command)} "$@"\n'


def network_options(machine: Machine) -> list[str]:
    """Return QEMU's options of a network that ends at single ports of this host's loopback.

    All else that the guest sends is dropped (`restrict=on`); nothing of the host's network is
    touched. Each connection is a busybox nc of its own, so the guest can have many.

    Raises:
        HostError: If busybox cannot be fetched.
    """
    if not machine.ports:
        return []
    program = packages.fetch("busybox-static").root / "bin/busybox"
    if not program.is_file():
        program = program.parents[1] / "usr/bin/busybox"
    if set(str(program)) & set(", \t\"'\\"):
        raise HostError("the lab's cache is at a path with spaces or commas", source=str(program))
    forwards = [
        f"guestfwd=tcp:{HOST_ADDRESS}:{port}-cmd:{program} nc 127.0.0.1 {port}"
        for port in machine.ports
    ]
    return [
        *("-netdev", ",".join(["user,id=net,restrict=on", *forwards])),
        *("-device", "virtio-net-pci,netdev=net,romfile="),
    ]
