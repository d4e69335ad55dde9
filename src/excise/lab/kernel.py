"""A kernel that can be booted: its image, its modules, its build options."""

from __future__ import annotations

import lzma
import struct
from dataclasses import dataclass
from pathlib import Path

import zstandard

from excise.errors import HostError

_BOOT_MAGIC_OFFSET, _BOOT_MAGIC = 0x202, b"HdrS"
_VERSION_POINTER_OFFSET = 0x20E


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel that can be booted.

    Attributes:
        name: What the user called it.
        release: `uname -r` of it.
        image: bzImage.
        modules: Folder `lib/modules/RELEASE`, or None for a kernel without modules.
        config: Its build options, empty when not known.
        package: `NAME VERSION` of the package, or "".
    """

    name: str
    release: str
    image: Path
    modules: Path | None
    config: dict[str, str]
    package: str = ""

    def module(self, name: str) -> bytes | None:
        """Return a module's bytes, decompressed, or None when it is built in.

        Raises:
            HostError: If the kernel has it neither built in nor as a module.
        """
        if self.modules is not None:
            spelling = name.replace("_", "[-_]")
            for path in sorted(self.modules.rglob(f"{spelling}.ko*")):
                return _decompressed(path)
            builtin = self.modules / "modules.builtin"
            if builtin.is_file() and any(
                Path(line).stem.replace("-", "_") == name for line in builtin.read_text().split()
            ):
                return None
            raise HostError(
                f"kernel {self.release} has no {name}, neither built in nor as a module",
                source=str(self.modules),
            )
        return None

    def modules_for(self, name: str) -> dict[str, bytes]:
        """Return a module and those it depends on, in the order to load them; {} if built in.

        Dependencies are read from the modules themselves: packages ship no `modules.dep`.

        Raises:
            HostError: If the kernel has one of them neither built in nor as a module.
        """
        data = self.module(name)
        if data is None:
            return {}
        found: dict[str, bytes] = {}
        for needed in _depends(data):
            found |= self.modules_for(needed)
        return {**found, name: data}

    def lsm_built_in(self, name: str) -> bool | None:
        """Return whether an LSM is compiled in, or None when the configuration is not known."""
        option = _LSM_OPTIONS.get(name)
        return self.config.get(option) == "y" if option and self.config else None


_LSM_OPTIONS = {
    "apparmor": "CONFIG_SECURITY_APPARMOR",
    "bpf": "CONFIG_BPF_LSM",
    "ima": "CONFIG_IMA",
    "evm": "CONFIG_EVM",
    "landlock": "CONFIG_SECURITY_LANDLOCK",
    "lockdown": "CONFIG_SECURITY_LOCKDOWN_LSM",
    "selinux": "CONFIG_SECURITY_SELINUX",
    "smack": "CONFIG_SECURITY_SMACK",
    "tomoyo": "CONFIG_SECURITY_TOMOYO",
    "yama": "CONFIG_SECURITY_YAMA",
}


def release_of(image: Path) -> str:
    """Return the release a bzImage states in its header.

    Raises:
        HostError: If the file is not a bzImage. Source: Documentation/arch/x86/boot.rst.
    """
    with image.open("rb") as stream:
        head = stream.read(0x8000)
    magic = head[_BOOT_MAGIC_OFFSET : _BOOT_MAGIC_OFFSET + 4]
    if magic != _BOOT_MAGIC:
        raise HostError(
            "not a bzImage: the boot header's magic is missing",
            source=str(image),
            hint="Give arch/x86/boot/bzImage or a distribution's vmlinuz",
        )
    (pointer,) = struct.unpack_from("<H", head, _VERSION_POINTER_OFFSET)
    text = head[pointer + 0x200 :].split(b"\0", 1)[0]
    return text.split(b" ", 1)[0].decode("ascii", "replace")


def _depends(data: bytes) -> list[str]:
    start = data.find(b"\0depends=")
    if start < 0:
        return []
    text = data[start + len(b"\0depends=") :].split(b"\0", 1)[0].decode("ascii", "replace")
    return [name.replace("-", "_") for name in text.split(",") if name]


def _decompressed(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(data)
    if path.suffix == ".zst":
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    return data
