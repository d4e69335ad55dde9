"""The guest's root: busybox, the probe, the modules needed, the preset's files, the plan."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Final

from excise.errors import HostError
from excise.lab import packages
from excise.lab.cache import stored
from excise.lab.configurations import Preset
from excise.lab.cpio import Archive
from excise.lab.kernel import Kernel
from excise.lab.plan import Plan

# Loaded before the measurement, and after it: what carries the results out is not there before.
EARLY_MODULES: Final = ("loop",)
LATE_MODULES: Final = ("virtio_pci", "virtio_console")


def build_initramfs(
    kernel: Kernel,
    *,
    preset: Preset,
    plan: Plan,
    work_image: bytes,
    probe: Path,
    more: Mapping[str, bytes] | None = None,
    root_disk: bool = False,
) -> bytes:
    """Return the initramfs of one guest; the same arguments give the same bytes.

    Args:
        kernel: Whose modules to take.
        preset: Whose files and fragments to put in.
        plan: What PID 1 will run.
        work_image: The ext4 work disk, mounted by loop from memory, so that no device that
            completes in the host's time is part of the measurement.
        probe: The static probe.
        more: Further files, executable, by path.
        root_disk: Whether init hands over to the root on a disk.

    Raises:
        HostError: If busybox cannot be fetched or the kernel lacks a module.
    """
    archive = Archive()
    for folder in (
        "proc",
        "sys",
        "dev",
        "run",
        "tmp",
        "work",
        "lab/modules/early",
        "lab/modules/late",
    ):
        archive.folder(folder)
    archive.device("dev/console", major=5, minor=1)
    archive.device("dev/null", major=1, minor=3)
    _add_busybox(archive)
    archive.file("bin/excise-probe", probe.read_bytes(), mode=0o755)
    _add_modules(archive, kernel, root_disk=root_disk)
    archive.file("init", _text("init.sh"), mode=0o755)
    archive.file("lab/functions.sh", _text("functions.sh"))
    archive.file("lab/collect.sh", _text("collect.sh"))
    archive.file("lab/work.ext4", work_image)
    if root_disk:
        archive.file("lab/switch.sh", _text("switch.sh"))
        archive.file("lab/finish.sh", _text("finish.sh"))
    archive.file("lab/preset.sh", preset.setup.encode())
    archive.file("lab/mounted.sh", preset.mounted.encode())
    archive.file("lab/proof.sh", preset.proof.encode())
    archive.file("lab/plan.sh", plan.render().encode())
    for path, data in {**preset.files(), **plan.root_files, **(more or {})}.items():
        archive.file(path, data, mode=0o755)
    return archive.render()


def _text(name: str) -> bytes:
    return resources.files("excise.lab").joinpath(name).read_bytes()


def _add_modules(archive: Archive, kernel: Kernel, *, root_disk: bool) -> None:
    late = (*LATE_MODULES, "virtio_blk") if root_disk else LATE_MODULES
    for place, names in (("early", EARLY_MODULES), ("late", late)):
        wanted: dict[str, bytes] = {}
        for name in names:
            wanted |= kernel.modules_for(name)
        for number, (name, data) in enumerate(wanted.items()):
            archive.file(f"lab/modules/{place}/{number}-{name}.ko", data)


def _add_busybox(archive: Archive) -> None:
    package = packages.fetch("busybox-static")
    program = package.root / "bin/busybox"
    if not program.is_file():
        program = package.root / "usr/bin/busybox"
    archive.file("bin/busybox", program.read_bytes(), mode=0o755)
    for applet in _applets(program, version=package.version):
        if applet != "busybox":
            archive.link(f"bin/{applet}", "busybox")


def _applets(program: Path, *, version: str) -> list[str]:
    def build(into: Path) -> None:
        done = subprocess.run([program, "--list"], capture_output=True, text=True, check=False)
        if done.returncode or "insmod" not in done.stdout.split():
            raise HostError("busybox does not list its applets", source=str(program))
        (into / "list").write_text(done.stdout)

    folder = stored("busybox", version.replace(":", "~"), build)
    return (folder / "list").read_text().split()
