"""A guest that boots by itself: Debian with systemd, sshd and GRUB on a disk of its own."""

from __future__ import annotations

import importlib.resources
import io
import shutil
import struct
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from excise.campaign.target_spec import SshTarget
from excise.lab import packages
from excise.lab.cache import digest_of, stored
from excise.lab.host_share_tree import distributions
from excise.lab.processes import child
from ports import free_port

if TYPE_CHECKING:
    from excise.collect.remote import RemoteMachine
    from excise.errors import ConnectionLost

GUEST_PYTHON = (3, 11)  # of Debian 12, with the package python3
SITE = "/opt/site"
EXCISE = f"PYTHONPATH={SITE} python3 -m excise"
BOOTABLE = (
    "systemd,systemd-sysv,udev,dbus,openssh-server,kmod,initramfs-tools,linux-image-cloud-amd64"
)
PACKAGES = f"{BOOTABLE},grub-pc-bin,grub2-common"
SECTOR = 512
PART_SECTORS = 1_843_200  # 900 MiB, after 1 MiB for GRUB
HOST_NAME = "excise-lab"
GRUB_DEFAULTS = """\
GRUB_DEFAULT=0
GRUB_TIMEOUT=0
GRUB_DISTRIBUTOR=Debian
GRUB_CMDLINE_LINUX_DEFAULT="quiet"
GRUB_CMDLINE_LINUX="console=ttyS0 root=/dev/vda1 no_timer_check panic=3"
GRUB_DISABLE_LINUX_UUID=true
GRUB_DISABLE_OS_PROBER=true
GRUB_DISABLE_RECOVERY=true
"""
NETWORK = """\
[Match]
Type=ether
[Network]
Address=10.0.2.15/24
LinkLocalAddressing=no
IPv6AcceptRA=no
"""
# The first boot of configuration 1 dies as by a power cut, early and once.
FAILS_ONCE = """\
[Unit]
DefaultDependencies=no
After=local-fs.target
Before=sysinit.target
ConditionKernelCommandLine=excise.configuration=1
ConditionPathExists=!/var/lib/failed-once
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'touch /var/lib/failed-once; sync; echo b >/proc/sysrq-trigger'
[Install]
WantedBy=sysinit.target
"""
NEVER = [
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
]


def disk_image(*further: str) -> Path:
    """Return a raw disk that boots by itself, built at its first use; needs root.

    Args:
        *further: Packages that are installed beside those of a bootable machine.
    """
    wanted = ",".join((PACKAGES, *further))
    key = digest_of("reboot 1", wanted, GRUB_DEFAULTS, NETWORK, FAILS_ONCE, debootstrap().version)

    def build(into: Path) -> None:
        tree = unpacked_root(wanted, into)
        configure(tree, "/dev/vda1 / ext4 errors=remount-ro 0 1\n")
        _configure_grub(tree)
        _write_disk(tree, into)
        shutil.rmtree(tree)

    return stored("reboot-guest", key[:24], build) / "disk.raw"


def debootstrap() -> packages.Package:
    """Return the program that installs Debian into a folder."""
    return packages.fetch("mmdebstrap")


def unpacked_root(wanted: str, into: Path) -> Path:
    """Install Debian with packages into a folder below another; return it."""
    tool = debootstrap()
    command = ["perl", str(tool.root / "usr/bin/mmdebstrap"), "--variant=minbase"]
    command += ["--format=tar", f"--include={wanted}", "--skip=output/mknod"]
    command += [f"--dpkgopt=path-exclude=/usr/share/{each}/*" for each in ("doc", "man")]
    tree = into / "tree"
    programs = {"PATH": f"{tool.root}/usr/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    subprocess.run(
        [*command, "bookworm", str(into / "root.tar")],
        check=True,
        capture_output=True,
        env=programs,
    )
    tree.mkdir()
    unpack = ["tar", "-C", str(tree), "--numeric-owner", "-xpf", str(into / "root.tar")]
    subprocess.run(unpack, check=True)
    (into / "root.tar").unlink()
    return tree


def configure(tree: Path, mounts: str) -> None:
    """Give an installed system its name, network, mounts and the unit that fails once."""
    (tree / "etc/hostname").write_text(f"{HOST_NAME}\n")
    (tree / "etc/hosts").write_text(f"127.0.0.1 localhost {HOST_NAME}\n")
    (tree / "etc/fstab").write_text(mounts)
    (tree / "etc/systemd/network/10-lab.network").write_text(NETWORK)
    units = tree / "etc/systemd/system"
    (units / "fails-once.service").write_text(FAILS_ONCE)
    for target, unit in (
        ("multi-user.target", "/lib/systemd/system/systemd-networkd.service"),
        ("sysinit.target", "/etc/systemd/system/fails-once.service"),
    ):
        (units / f"{target}.wants").mkdir(exist_ok=True)
        (units / f"{target}.wants" / Path(unit).name).symlink_to(unit)
    for unit in NEVER:
        (units / unit).unlink(missing_ok=True)
        (units / unit).symlink_to("/dev/null")
    (tree / "var/log/journal").mkdir(exist_ok=True)
    (tree / "root/.ssh").mkdir(mode=0o700, exist_ok=True)


def _configure_grub(tree: Path) -> None:
    (tree / "etc/default/grub").write_text(GRUB_DEFAULTS)
    shutil.copytree(tree / "usr/lib/grub/i386-pc", tree / "boot/grub/i386-pc")
    kernel = next((tree / "boot").glob("vmlinuz-*")).name.removeprefix("vmlinuz-")
    (tree / "boot/grub/grub.cfg").write_text(
        f"linux /boot/vmlinuz-{kernel} root=/dev/vda1 ro console=ttyS0 quiet panic=3\n"
        f"initrd /boot/initrd.img-{kernel}\nboot\n"
    )


def _write_disk(tree: Path, into: Path) -> None:
    """Put a partition table, GRUB and the file system together, without any device of the host."""
    modules = "biosdisk part_msdos ext2 normal configfile linux echo test ls cat search loadenv"
    core = ["grub-mkimage", "-O", "i386-pc", "-o", "/core.img", "-p", "(hd0,msdos1)/boot/grub"]
    subprocess.run(["chroot", str(tree), *core, *modules.split()], check=True)
    subprocess.run(
        ["chroot", str(tree), "grub-editenv", "/boot/grub/grubenv", "create"], check=True
    )
    core_image = (tree / "core.img").read_bytes()
    (tree / "core.img").unlink()
    boot = (tree / "usr/lib/grub/i386-pc/boot.img").read_bytes()
    part = root_partition(tree, into)
    entry = struct.pack("<B3sB3sII", 0x80, b"\xfe" * 3, 0x83, b"\xfe" * 3, 2048, PART_SECTORS)
    with (into / "disk.raw").open("wb") as disk:
        disk.write(boot[:440] + b"XCSE\0\0" + entry + bytes(48) + b"\x55\xaa" + core_image)
        assert disk.tell() < 2048 * SECTOR, "GRUB does not fit before the partition"
        disk.seek(2048 * SECTOR)
        with part.open("rb") as source:
            shutil.copyfileobj(source, disk)
    part.unlink()


def root_partition(tree: Path, into: Path) -> Path:
    """Return a file with an ext4 of a folder's content, below another folder."""
    part = into / "part.raw"
    make = ["mke2fs", "-q", "-t", "ext4", "-O", "^metadata_csum_seed,^orphan_file", "-m", "0"]
    subprocess.run(
        [*make, "-d", str(tree), str(part), f"{PART_SECTORS // 2}k"],
        check=True,
        env={"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"},
    )
    return part


@contextmanager
def reboot_guest(folder: Path, *further: str) -> Iterator[SshTarget]:
    """Boot a guest on a disk of its own, persistent from boot to boot; give it as a target.

    Args:
        folder: Where its disk, its console's text and the key to log in are.
        *further: Packages that it has beside those of a bootable machine.
    """
    with booted(disk_image(*further), folder, offset=2048 * SECTOR) as target:
        yield target


@contextmanager
def booted(image: Path, folder: Path, *more: str, offset: int) -> Iterator[SshTarget]:
    """Boot a copy of a disk; give it as a target.

    Args:
        image: The disk.
        folder: Where the copy is, its console's text and the key to log in.
        *more: Further words for QEMU.
        offset: Where on the disk the root file system begins, in bytes.
    """
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key")], check=True
    )
    disk = folder / "disk.raw"
    subprocess.run(["cp", "--sparse=always", str(image), str(disk)], check=True)
    _let_in(disk, (folder / "key.pub").read_bytes(), folder=folder, offset=offset)
    port = free_port()
    command = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none"]
    command += ["-machine", "graphics=off", "-accel", "tcg,thread=multi"]
    # QEMU 7.2 miscalculates with vectors: with XSAVEOPT Polars crashed and gave wrong sums, never
    # without. (Polars needs AVX2, without which other guests are.)
    command += ["-cpu", "max,xsaveopt=off"]
    command += ["-m", "768", "-smp", "2", "-serial", f"file:{folder / 'console.log'}"]
    command += ["-drive", f"file={disk},format=raw,if=none,id=root,cache=unsafe"]
    command += ["-device", "virtio-blk-pci,drive=root", "-device", "virtio-rng-pci"]
    command += ["-netdev", f"user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{port}-:22"]
    command += ["-device", "virtio-net-pci,netdev=net,romfile=", *more]
    target = SshTarget(
        host="127.0.0.1",
        port=port,
        user="root",
        identities=[str(folder / "key")],
        check_host_key=False,
        config="/dev/null",
        connect_timeout="45s",
        keepalive="10s",
        boot_timeout="15min",
        reboot=True,
        machine=HOST_NAME,
    )
    with child(command, log=folder / "qemu.log"):
        yield target


def _let_in(disk: Path, public_key: bytes, *, folder: Path, offset: int) -> None:
    """Write who may log in into the file system on the disk."""
    (folder / "authorized_keys").write_bytes(public_key)
    script = folder / "debugfs.txt"
    script.write_text(
        f"write {folder / 'authorized_keys'} /root/.ssh/authorized_keys\n"
        "sif /root/.ssh/authorized_keys uid 0\nsif /root/.ssh/authorized_keys gid 0\n"
        "sif /root/.ssh/authorized_keys mode 0100600\n"
    )
    place = f"{disk}?offset={offset}"
    done = subprocess.run(
        ["/usr/sbin/debugfs", "-w", "-f", str(script), place],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "File not found" not in done.stderr, done.stderr


def wait_until_up(
    target: SshTarget, *, seconds: float = 600.0, settle: str = "update-grub && sync"
) -> None:
    """Wait for the first login, and run what the machine's owner would have run once by then."""
    from excise.campaign.targets.ssh import address_of
    from excise.collect.remote import RemoteMachine

    deadline = time.monotonic() + seconds
    with RemoteMachine(address_of(target)) as machine:
        while True:
            try:
                machine.connect()
                break
            except ConnectionLost:
                assert time.monotonic() < deadline, "the guest did not come up"
                time.sleep(0.5)
        done = machine.run(settle, timeout_s=seconds)
        assert done.exit_code == 0, done.reason


def install_excise(machine: RemoteMachine, *further: str) -> None:
    """Put this excise, and packages that it imports, on the guest's disk.

    Args:
        machine: The guest, which has Debian's `python3`; this Python must be of its version.
        *further: Packages beside those of a campaign.
    """
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        package = Path(str(importlib.resources.files("excise")))
        archive.add(package, "excise", filter=_needed)
        for found in distributions(("msgspec", "typer", "rich", *further)).values():
            for file in found.files or ():
                source = Path(str(found.locate_file(file)))
                if ".." not in file.parts and source.is_file():
                    archive.add(source, str(file), filter=_needed)
    unpack = f"mkdir -p {SITE} && tar -C {SITE} -x && sync"
    done = machine.run(unpack, stdin=data.getvalue(), timeout_s=300.0)
    assert done.exit_code == 0, done.reason


def _needed(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    left_out = {"__pycache__", "assets", "tests", "datasets"}
    return None if left_out & set(Path(entry.name).parts) else entry
