"""A guest with EFI firmware and systemd-boot, whose entries kernel-install wrote."""

from __future__ import annotations

import shutil
import struct
import subprocess
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
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
ESP_FIRST = 2048
ESP_SECTORS = 512 << 11  # 512 MiB
ROOT_FIRST = ESP_FIRST + ESP_SECTORS
MACHINE_ID = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
MOUNTS = """\
/dev/vda2 / ext4 errors=remount-ro 0 1
/dev/vda1 /boot/efi vfat umask=0077 0 2
"""
WORDS = "console=ttyS0 root=/dev/vda2 ro no_timer_check panic=3"
# Partition types of the GUID table: EFI system partition, Linux file system.
PARTITIONS = (
    ("C12A7328-F81F-11D2-BA4B-00A0C93EC93B", ESP_FIRST, ESP_SECTORS),
    ("0FC63DAF-8483-4772-8E79-3D69D8477DE4", ROOT_FIRST, PART_SECTORS),
)
DISK_SECTORS = ROOT_FIRST + PART_SECTORS + 2048


def efi_image() -> Path:
    """Return a raw disk that EFI firmware boots, built at its first use; needs root."""
    parts = (PACKAGES, MOUNTS, WORDS, str(PARTITIONS), NETWORK, FAILS_ONCE, MACHINE_ID)
    key = digest_of("efi 1", *parts, debootstrap().version)

    def build(into: Path) -> None:
        tree = unpacked_root(PACKAGES, into)
        configure(tree, MOUNTS)
        esp = _install_loader(tree, into)
        root = root_partition(tree, into)
        disk = into / "disk.raw"
        with disk.open("wb") as file:
            file.truncate(DISK_SECTORS * SECTOR)
            write_table(file)
            for part, first in ((esp, ESP_FIRST), (root, ROOT_FIRST)):
                file.seek(first * SECTOR)
                with part.open("rb") as source:
                    shutil.copyfileobj(source, file)
                part.unlink()
        shutil.rmtree(tree)

    return stored("efi-guest", key[:24], build) / "disk.raw"


def write_table(disk: BinaryIO) -> None:
    """Write a GUID partition table at both ends of a disk (UEFI specification, chapter 5)."""
    entries = b""
    for kind, first, sectors in PARTITIONS:
        entries += uuid.UUID(kind).bytes_le + uuid.uuid5(uuid.NAMESPACE_OID, kind).bytes_le
        entries += struct.pack("<QQQ72x", first, first + sectors - 1, 0)
    entries = entries.ljust(128 * 128, b"\0")
    last = DISK_SECTORS - 1
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


def _install_loader(tree: Path, into: Path) -> Path:
    """Put systemd-boot and the kernel's entry into an EFI system partition; return its file."""
    (tree / "etc/machine-id").write_text(f"{MACHINE_ID}\n")
    (tree / "etc/kernel").mkdir(exist_ok=True)
    (tree / "etc/kernel/cmdline").write_text(f"{WORDS}\n")
    mounted = tree / "boot/efi"
    program = "usr/lib/systemd/boot/efi/systemd-bootx64.efi"
    for place in ("EFI/BOOT/BOOTX64.EFI", "EFI/systemd/systemd-bootx64.efi"):
        (mounted / place).parent.mkdir(parents=True)
        shutil.copy(tree / program, mounted / place)
    (mounted / "loader/entries").mkdir(parents=True)
    (mounted / "loader/loader.conf").write_text("timeout 0\n")
    (mounted / "loader/entries.srel").write_text("type1\n")
    kernel = next((tree / "boot").glob("vmlinuz-*")).name.removeprefix("vmlinuz-")
    add = ["kernel-install", "add", kernel, f"/boot/vmlinuz-{kernel}"]
    script = f'mount --bind /proc {tree}/proc && exec chroot {tree} env BOOT_ROOT=/boot/efi "$@"'
    subprocess.run(["unshare", "--mount", "sh", "-ec", script, "sh", *add], check=True)
    # The chroot has no mount there; on the machine the partition is one.
    for entry in (mounted / "loader/entries").glob("*.conf"):
        entry.write_text(entry.read_text().replace(" /boot/efi/", " /"))
    return _fat(mounted, into)


def _fat(folder: Path, into: Path) -> Path:
    """Return a file with a FAT of a folder's content; the folder is emptied."""
    esp = into / "esp.raw"
    mkfs = packages.fetch("dosfstools").root / "sbin/mkfs.vfat"
    subprocess.run(
        [str(mkfs), "-F", "32", "-n", "ESP", "-C", str(esp), str(ESP_SECTORS // 2)],
        check=True,
        capture_output=True,
    )
    copy = [str(packages.fetch("mtools").root / "usr/bin/mcopy"), "-s", "-i", str(esp)]
    subprocess.run([*copy, *map(str, sorted(folder.iterdir())), "::/"], check=True)
    for each in folder.iterdir():
        shutil.rmtree(each)
    return esp


@contextmanager
def efi_guest(folder: Path) -> Iterator[SshTarget]:
    """Boot it with firmware variables of its own, persistent from boot to boot."""
    firmware = packages.fetch("ovmf").root / "usr/share/OVMF"
    variables = folder / "variables.fd"
    shutil.copy(firmware / "OVMF_VARS_4M.fd", variables)
    flash = [f"if=pflash,format=raw,unit=0,readonly=on,file={firmware / 'OVMF_CODE_4M.fd'}"]
    flash += [f"if=pflash,format=raw,unit=1,file={variables}"]
    words = [word for each in flash for word in ("-drive", each)]
    with booted(efi_image(), folder, *words, offset=ROOT_FIRST * SECTOR) as target:
        yield target
