"""A guest with EFI firmware and systemd-boot, whose entries kernel-install wrote."""

from __future__ import annotations

import shutil
import struct
import subprocess
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO

from excise.campaign.target_spec import SshTarget
from excise.lab import packages
from excise.lab.cache import digest_of, stored
from reboot_guest import (
    BOOTABLE,
    FAILS_ONCE,
    NETWORK,
    PART_SECTORS,
    SECTOR,
    booted,
    configure,
    debootstrap,
    root_partition,
    unpacked_root,
)

PACKAGES = f"{BOOTABLE},systemd-boot,dosfstools"
MACHINE_ID = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
SYSTEM_PARTITION = "C12A7328-F81F-11D2-BA4B-00A0C93EC93B"
EXTENDED = "BC13C2FF-59E6-4262-A352-B275FD6F7172"
LINUX = "0FC63DAF-8483-4772-8E79-3D69D8477DE4"
IMAGE = "debian.efi"
IMAGE_WORD = "of.the.image=1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A disk.

    Attributes:
        mounts: Lines of its fstab.
        words: Command line of its kernel.
        parts: Types of the GUID table, and sizes in sectors; the last one is the root.
        esp: Where the EFI system partition is mounted.
        boot: Where the partition is mounted that kernels are on.
        image: Whether there is a unified kernel image beside the entry file.
    """

    mounts: str
    words: str
    parts: tuple[tuple[str, int], ...]
    esp: str
    boot: str
    image: bool

    def starts(self) -> list[int]:
        """Return the first sector of each partition, and the one behind the last."""
        return list(accumulate((size for _, size in self.parts), initial=2048))


PLAIN = Layout(
    mounts="""\
/dev/vda2 / ext4 errors=remount-ro 0 1
/dev/vda1 /boot/efi vfat umask=0077 0 2
""",
    words="console=ttyS0 root=/dev/vda2 ro no_timer_check panic=3",
    parts=((SYSTEM_PARTITION, 512 << 11), (LINUX, PART_SECTORS)),
    esp="boot/efi",
    boot="boot/efi",
    image=False,
)
# The loader on a partition of its own, entries and kernels on another: the boot loader
# specification's extended boot loader partition.
TWO = Layout(
    mounts="""\
/dev/vda3 / ext4 errors=remount-ro 0 1
/dev/vda1 /efi vfat umask=0077 0 2
/dev/vda2 /boot vfat umask=0077 0 2
""",
    words="console=ttyS0 root=/dev/vda3 ro no_timer_check panic=3",
    parts=((SYSTEM_PARTITION, 64 << 11), (EXTENDED, 512 << 11), (LINUX, PART_SECTORS)),
    esp="efi",
    boot="boot",
    image=True,
)


def efi_image(layout: Layout) -> Path:
    """Return a raw disk that EFI firmware boots, built at its first use; needs root."""
    parts = (PACKAGES, str(layout), NETWORK, FAILS_ONCE, MACHINE_ID)
    key = digest_of("efi 2", *parts, debootstrap().version)

    def build(into: Path) -> None:
        tree = unpacked_root(PACKAGES, into)
        configure(tree, layout.mounts)
        made = [*_install_loader(tree, into, layout), root_partition(tree, into)]
        disk = into / "disk.raw"
        with disk.open("wb") as file:
            file.truncate((layout.starts()[-1] + 2048) * SECTOR)
            write_table(file, layout)
            for part, first in zip(made, layout.starts(), strict=False):
                file.seek(first * SECTOR)
                with part.open("rb") as source:
                    shutil.copyfileobj(source, file)
                part.unlink()
        shutil.rmtree(tree)

    return stored("efi-guest", key[:24], build) / "disk.raw"


def write_table(disk: BinaryIO, layout: Layout) -> None:
    """Write a GUID partition table at both ends of a disk (UEFI specification, chapter 5)."""
    entries = b""
    for (kind, sectors), first in zip(layout.parts, layout.starts(), strict=False):
        entries += uuid.UUID(kind).bytes_le + uuid.uuid5(uuid.NAMESPACE_OID, kind).bytes_le
        entries += struct.pack("<QQQ72x", first, first + sectors - 1, 0)
    entries = entries.ljust(128 * 128, b"\0")
    last = layout.starts()[-1] + 2048 - 1
    whole = struct.pack("<B3sB3sII", 0, b"\0\2\0", 0xEE, b"\xff" * 3, 1, last)
    disk.write(bytes(446) + whole + bytes(48) + b"\x55\xaa")
    for here, other, table in ((1, last, 2), (last, 1, last - 32)):
        place = struct.pack("<QQQQ", here, other, 34, last - 33)
        place += uuid.uuid5(uuid.NAMESPACE_OID, MACHINE_ID).bytes_le
        place += struct.pack("<QIII", table, 128, 128, zlib.crc32(entries))
        head = b"EFI PART" + struct.pack("<II", 0x10000, 92)
        checksum = zlib.crc32(head + bytes(8) + place)
        disk.seek(table * SECTOR)
        disk.write(entries)
        disk.seek(here * SECTOR)
        disk.write(head + struct.pack("<II", checksum, 0) + place)


def _install_loader(tree: Path, into: Path, layout: Layout) -> list[Path]:
    """Put systemd-boot and the kernel's entry into partitions; return their files, in order."""
    (tree / "etc/machine-id").write_text(f"{MACHINE_ID}\n")
    (tree / "etc/kernel").mkdir(exist_ok=True)
    (tree / "etc/kernel/cmdline").write_text(f"{layout.words}\n")
    esp, boot = tree / layout.esp, tree / layout.boot
    program = "usr/lib/systemd/boot/efi/systemd-bootx64.efi"
    for place in ("EFI/BOOT/BOOTX64.EFI", "EFI/systemd/systemd-bootx64.efi"):
        (esp / place).parent.mkdir(parents=True)
        shutil.copy(tree / program, esp / place)
    (esp / "loader").mkdir()
    (esp / "loader/loader.conf").write_text(f"timeout 0\ndefault {MACHINE_ID}-*\n")
    (boot / "loader/entries").mkdir(parents=True)
    (boot / "loader/entries.srel").write_text("type1\n")
    kernel = next((tree / "boot").glob("vmlinuz-*")).name.removeprefix("vmlinuz-")
    add = ["kernel-install", "add", kernel, f"/boot/vmlinuz-{kernel}"]
    script = (
        f'mount --bind /proc {tree}/proc && exec chroot {tree} env BOOT_ROOT=/{layout.boot} "$@"'
    )
    subprocess.run(["unshare", "--mount", "sh", "-ec", script, "sh", *add], check=True)
    # The chroot has no mount there; on the machine the partition is one.
    for entry in (boot / "loader/entries").glob("*.conf"):
        entry.write_text(entry.read_text().replace(f" /{layout.boot}/", " /"))
    if layout.image:
        _write_image(tree, boot / "EFI/Linux" / IMAGE, kernel, f"{layout.words} {IMAGE_WORD}")
    names = ("EFI", "loader", MACHINE_ID)
    sizes = [sectors // 2 for _, sectors in layout.parts]
    return [
        _fat([each / name for name in names if (each / name).exists()], into / f"{kib}.raw", kib)
        for each, kib in zip(dict.fromkeys((esp, boot)), sizes, strict=False)
    ]


def _write_image(tree: Path, image: Path, kernel: str, words: str) -> None:
    """Put systemd's stub, the kernel, its initrd and its command line into one EFI program."""
    image.parent.mkdir(parents=True)
    line = image.with_suffix(".cmdline")
    line.write_text(f"{words}\n")
    sections = {
        "osrel": (tree / "usr/lib/os-release", 0x20000),
        "cmdline": (line, 0x30000),
        "linux": (tree / f"boot/vmlinuz-{kernel}", 0x2000000),
        "initrd": (tree / f"boot/initrd.img-{kernel}", 0x3000000),
    }
    words_of = [
        word
        for name, (file, address) in sections.items()
        for word in (
            *("--add-section", f".{name}={file}"),
            *("--change-section-vma", f".{name}={address:#x}"),
        )
    ]
    stub = tree / "usr/lib/systemd/boot/efi/linuxx64.efi.stub"
    subprocess.run(["objcopy", *words_of, str(stub), str(image)], check=True)
    line.unlink()


def _fat(folders: list[Path], part: Path, kib: int) -> Path:
    """Return a file with a FAT of folders, which are removed."""
    mkfs = packages.fetch("dosfstools").root / "sbin/mkfs.vfat"
    subprocess.run(
        [str(mkfs), "-F", "32", "-n", "BOOT", "-C", str(part), str(kib)],
        check=True,
        capture_output=True,
    )
    copy = [str(packages.fetch("mtools").root / "usr/bin/mcopy"), "-s", "-i", str(part)]
    subprocess.run([*copy, *map(str, folders), "::/"], check=True)
    for each in folders:
        shutil.rmtree(each)
    return part


@contextmanager
def efi_guest(folder: Path, layout: Layout = PLAIN) -> Iterator[SshTarget]:
    """Boot it with firmware variables of its own, persistent from boot to boot."""
    firmware = packages.fetch("ovmf").root / "usr/share/OVMF"
    variables = folder / "variables.fd"
    shutil.copy(firmware / "OVMF_VARS_4M.fd", variables)
    flash = [f"if=pflash,format=raw,unit=0,readonly=on,file={firmware / 'OVMF_CODE_4M.fd'}"]
    flash += [f"if=pflash,format=raw,unit=1,file={variables}"]
    words = [word for each in flash for word in ("-drive", each)]
    root = layout.starts()[-2] * SECTOR
    with booted(efi_image(layout), folder, *words, offset=root) as target:
        yield target
