"""A small Debian with systemd as a guest's root, for boot times and real user space.

It is built once by mmdebstrap, from its unpacked package, and kept as an ext4 image; each guest
writes to a throw-away layer over it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Final

from excise.errors import HostError
from excise.lab import packages
from excise.lab.cache import cache_root, digest_of, stored
from excise.lab.disk import WorkFile, make_image, run_debugfs

SUITE: Final = "bookworm"
PACKAGES: Final = ("systemd", "systemd-sysv", "udev", "dbus")
_SIZE_MIB: Final = 768
_LEFT_OUT: Final = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")
_UNIT: Final = """\
[Unit]
Description=Results of a lab guest
ConditionPathExists=/run/lab/finish.sh

[Service]
Type=simple
ExecStart=/run/lab/bin/busybox sh /run/lab/finish.sh
StandardOutput=null
StandardError=null
TimeoutStopSec=5

[Install]
WantedBy=multi-user.target
"""
_UNIT_PATH: Final = "etc/systemd/system/excise-lab.service"
_WANTED_PATH: Final = "etc/systemd/system/multi-user.target.wants/excise-lab.service"


def debian_image() -> Path:
    """Return the ext4 image of Debian's root, built at its first use.

    Raises:
        HostError: If mmdebstrap cannot be fetched or fails, or the image cannot be made.
    """
    tool = packages.fetch("mmdebstrap")
    key = digest_of("debian 2", SUITE, *PACKAGES, *_LEFT_OUT, _UNIT, tool.version)

    def build(into: Path) -> None:
        archive = into / "root.tar"
        _bootstrap(tool.root / "usr/bin", archive)
        tree = into / "tree"
        values = into / "values"
        values.mkdir()
        lines = _extract(archive, tree, values=values)
        archive.unlink()
        make_image(tree, into / "root.ext4", size_mib=_SIZE_MIB, inodes=32768)
        run_debugfs(lines, image=into / "root.ext4", folder=into)
        for folder in (tree, values):
            subprocess.run(["rm", "-rf", "--", str(folder)], check=False)

    return stored("debian", key[:24], build) / "root.ext4"


def _bootstrap(programs: Path, archive: Path) -> None:
    command = ["perl", str(programs / "mmdebstrap"), "--variant=minbase", "--format=tar"]
    command += [f"--include={','.join(PACKAGES)}", "--skip=output/mknod"]
    command += [f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT]
    environment = {**os.environ, "PATH": f"{programs}:{os.environ.get('PATH', '/usr/bin:/bin')}"}
    environment["TMPDIR"] = str(cache_root())
    done = subprocess.run(
        [*command, SUITE, str(archive)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        faults = [line for line in done.stderr.splitlines() if line.startswith("E: ")]
        raise HostError(
            f"mmdebstrap failed: {(faults or ['no reason given'])[0].removeprefix('E: ')}",
            hint="As an ordinary user it needs uidmap and a range in /etc/subuid",
        )


def _extract(archive: Path, tree: Path, *, values: Path) -> list[str]:
    """Unpack files, folders and links; return debugfs commands for owners, modes and labels.

    Every file is labelled for appraisal with its SHA-256, as one boot with `ima_appraise=fix` that
    reads all of it would: so one image serves IMA's every mode.
    """
    lines = []
    tree.mkdir()
    with tarfile.open(archive) as source:
        for member in source:
            name = member.name.removeprefix("./").strip("/")
            if member.isdev() or name in ("", "."):
                continue
            _unpack(source, member, tree=tree, target=tree / name)
            if member.islnk():
                continue
            path = f"/{name}"
            lines += [f'sif "{path}" uid {member.uid}', f'sif "{path}" gid {member.gid}']
            if not member.issym():
                kind = 0o040000 if member.isdir() else 0o100000
                lines.append(f'sif "{path}" mode 0{kind | member.mode:o}')
            if member.isfile():
                lines.append(_label(path, (tree / name).read_bytes(), values=values))
    unit = tree / _UNIT_PATH
    unit.write_text(_UNIT)
    wanted = tree / _WANTED_PATH
    wanted.parent.mkdir(parents=True, exist_ok=True)
    wanted.symlink_to(f"/{_UNIT_PATH}")
    for path in (_UNIT_PATH, _WANTED_PATH):
        lines += [f'sif "/{path}" uid 0', f'sif "/{path}" gid 0']
    lines.append(_label(f"/{_UNIT_PATH}", _UNIT.encode(), values=values))
    return lines


def _unpack(source: tarfile.TarFile, member: tarfile.TarInfo, *, tree: Path, target: Path) -> None:
    """Write one file, folder or link of a root's archive, always below the tree.

    `extract(filter=...)` came to Python 3.11 only in 3.11.4, after Debian 12's own.
    """
    root = tree.resolve()
    if not target.parent.resolve().is_relative_to(root):
        raise HostError(f"{member.name} would be written outside of the root's folder")
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if member.issym():
        target.symlink_to(member.linkname)
    elif member.islnk():
        target.hardlink_to(tree / member.linkname.removeprefix("./").lstrip("/"))
    elif (data := source.extractfile(member)) is not None:
        with data, target.open("xb") as file:
            shutil.copyfileobj(data, file)


def _label(path: str, data: bytes, *, values: Path) -> str:
    """Return the debugfs command that gives a file its `security.ima`."""
    value = WorkFile(data=data, selinux="").attributes()["security.ima"]
    stored_value = values / value.hex()
    stored_value.write_bytes(value)
    return f'ea_set -f {stored_value} "{path}" security.ima'
