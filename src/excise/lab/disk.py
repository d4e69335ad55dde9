"""The ext4 work disk: made without root, the same bytes for the same files, labels included.

Every configuration gets the same image, so that a label or an extended attribute is never an
advantage of one of them. Owner, times and attributes are written by debugfs, because mke2fs takes
them from the files it copies, whose change time and owner nobody but root can choose.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from excise.errors import HostError

EPOCH_S: Final = 1767225600  # 2026-01-01T00:00:00Z, also the guests' clock at power-on
_UUID: Final = "6578636c-6162-4d65-8000-000000000001"
# Stated, not taken from the host's /etc/mke2fs.conf: these are what ext4 is made with by default.
_FEATURES: Final = (
    "has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super,"
    "large_file,huge_file,dir_nlink,extra_isize,metadata_csum"
)
_IMA_XATTR_DIGEST_NG: Final = 0x04
_HASH_ALGO_SHA256: Final = 4


class WorkFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the work disk.

    Attributes:
        data: Content.
        mode: Permission bits.
        ima: Whether it carries `security.ima` with its SHA-256, as `ima_appraise=fix` would set.
        selinux: Its `security.selinux` label, or "" for none.
    """

    data: bytes
    mode: int = 0o644
    ima: bool = True
    selinux: str = "system_u:object_r:usr_t:s0"

    def attributes(self) -> dict[str, bytes]:
        """Return extended attributes by name. Source: security/integrity/integrity.h."""
        found = {}
        if self.selinux:
            found["security.selinux"] = self.selinux.encode() + b"\0"
        if self.ima:
            head = bytes([_IMA_XATTR_DIGEST_NG, _HASH_ALGO_SHA256])
            found["security.ima"] = head + hashlib.sha256(self.data).digest()
        return found


def build_image(files: Mapping[str, WorkFile], *, size_mib: int, folder: Path) -> Path:
    """Return an ext4 image with the files, whose bytes depend on nothing else.

    Args:
        files: Content by path relative to the image's root.
        size_mib: Size of the image in MiB.
        folder: Where to work; the image is left there as `work.ext4`.

    Raises:
        HostError: If e2fsprogs is missing or the files do not fit.
    """
    tree, image = folder / "tree", folder / "work.ext4"
    tree.mkdir()
    for path, entry in files.items():
        target = tree / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(entry.data)
        target.chmod(entry.mode)
    make_image(tree, image, size_mib=size_mib, inodes=size_mib * 1024)
    _normalise(files, tree=tree, image=image, folder=folder)
    return image


def make_image(tree: Path, image: Path, *, size_mib: int, inodes: int) -> None:
    """Make an ext4 image of a folder's files.

    Raises:
        HostError: If e2fsprogs is missing or the files do not fit.
    """
    extended = f"hash_seed={_UUID},root_owner=0:0,lazy_itable_init=0,lazy_journal_init=0"
    command = ["mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096", "-I", "256", "-m", "0"]
    command += ["-O", f"none,{_FEATURES}", "-N", str(inodes), "-U", _UUID]
    command += ["-E", extended, "-d", str(tree)]
    _call([*command, str(image), f"{size_mib}M"])


def _normalise(files: Mapping[str, WorkFile], *, tree: Path, image: Path, folder: Path) -> None:
    """Set owner, times and extended attributes of every file and folder in the image."""
    lines = []
    values = folder / "values"
    values.mkdir()
    everything = [path.relative_to(tree).as_posix() for path in sorted(tree.rglob("*"))]
    for path in ["", *everything]:
        lines += [f'sif "/{path}" {owner} 0' for owner in ("uid", "gid")]
        lines += [
            f'sif "/{path}" {name} @{EPOCH_S}' for name in ("atime", "ctime", "mtime", "crtime")
        ]
        lines += [f'sif "/{path}" {name}_extra 0' for name in ("atime", "ctime", "mtime", "crtime")]
        if path in files:
            for name, value in sorted(files[path].attributes().items()):
                stored = values / hashlib.sha256(value).hexdigest()
                stored.write_bytes(value)
                lines.append(f'ea_set -f {stored} "/{path}" {name}')
    run_debugfs(lines, image=image, folder=folder)


def run_debugfs(lines: Sequence[str], *, image: Path, folder: Path) -> None:
    """Run debugfs commands on an image.

    Raises:
        HostError: If one of them fails; it is named.
    """
    script = folder / "debugfs.txt"
    script.write_text("\n".join(lines) + "\n")
    done = _call(["debugfs", "-w", "-f", str(script), str(image)])
    faults = [line for line in done.stderr.splitlines() if not line.startswith("debugfs ")]
    if faults:
        raise HostError(f"debugfs failed: {faults[0]}", source=str(image))


def _call(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "E2FSPROGS_FAKE_TIME": str(EPOCH_S),
        "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin",
        "MKE2FS_CONFIG": "/dev/null",
        "DEBUGFS_PAGER": "cat",
    }
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    except FileNotFoundError as error:
        raise HostError(f"{command[0]} is not installed", hint="Install e2fsprogs") from error
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        said = [line for line in lines if not line.startswith("Warning")]
        reason = said[0] if said else f"exit code {done.returncode}"
        raise HostError(f"{command[0]} failed: {reason}")
    return done
