"""Machines: what `[machine]` of a TOML file says, and the QEMU command line it becomes."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from excise.errors import SpecError
from excise.validation import spec_error

Mode = Literal["count", "tpm"]
Accelerator = Literal["auto", "tcg", "kvm"]
Root = Literal["initramfs", "debian"]

QEMU: Final = "qemu-system-x86_64"
GUEST_START: Final = "2026-01-01"
DEBIAN_MEMORY_MIB: Final = 768
"""Least memory that a guest with Debian's root is given."""


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine to boot.

    Attributes:
        kernel: Series (`6.12`), package name, or path of a bzImage.
        modules: Folder of the modules of a kernel given by path.
        mode: `count`: instructions, no TPM; `tpm`: time, with a software TPM.
        cmdline: Words added to the kernel's command line.
        memory_mib: Memory in MiB.
        cpus: Virtual processors; count mode has one.
        rootfs: `initramfs`: busybox and the probe; `debian`: a small Debian with systemd, for boot
            times and its user space, in TPM mode.
        accelerator: `auto` uses KVM where a short real boot works with it; count mode is TCG.
        python: Whether the guest has this host's Python and excise, as `python` and `excise`.
        ports: TCP ports of this host's loopback that such a guest reaches at 10.0.2.100; there is
            no other network.
        files: Files of this host that the work disk (/excise/ext4) has, by their path there.
        work_disk_mib: Size of the ext4 work disk in MiB.
        results_mib: Most that a guest may bring back, and most that its console may print, in MiB.
        timeout_s: Seconds after which a guest is ended as hung; those in which a busy host gave it
            no processor do not count.
    """

    kernel: str = "6.12"
    modules: str | None = None
    mode: Mode = "count"
    cmdline: str = ""
    memory_mib: int = 512
    cpus: int = 1
    rootfs: Root = "initramfs"
    accelerator: Accelerator = "auto"
    python: bool = False
    ports: tuple[int, ...] = ()
    files: dict[str, str] = {}
    work_disk_mib: int = 32
    results_mib: int = 64
    timeout_s: float = 300.0

    def __post_init__(self) -> None:
        """Refuse what cannot be true together."""
        if self.mode == "count" and self.cpus != 1:
            raise ValueError("count mode needs cpus = 1: instructions are counted on one processor")
        if self.mode == "count" and self.accelerator == "kvm":
            raise ValueError('count mode needs accelerator = "tcg" or "auto"')
        if self.mode == "count" and self.rootfs != "initramfs":
            raise ValueError('count mode needs rootfs = "initramfs": a disk answers in host time')
        if self.python and (self.mode == "count" or self.rootfs != "initramfs"):
            raise ValueError('python needs mode = "tpm" and rootfs = "initramfs"')
        if self.ports and not self.python:
            raise ValueError("ports are for a guest with python = true")
        if not all(0 < port < 65536 for port in self.ports):
            raise ValueError("ports must be from 1 to 65535")
        for name, least in (
            ("memory_mib", 1024 if self.python else 128),
            ("cpus", 1),
            ("work_disk_mib", 96 if self.python else 8),
            ("results_mib", 1),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}")


class _File(msgspec.Struct, frozen=True, kw_only=True):
    machine: Machine


def read_machine(path: Path) -> Machine:
    """Return the machine of a TOML file's `[machine]` table; other tables are left alone.

    Raises:
        SpecError: If the file cannot be read, or a key or value is wrong; it names the key.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        return msgspec.convert(data, _File).machine
    except OSError as error:
        raise SpecError(f"cannot read: {error.strerror}", source=str(path)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"not TOML: {error}", source=str(path)) from error
    except msgspec.ValidationError as error:
        raise spec_error(error, model=_File, source=str(path)) from error


# One layout of kernel and programs in every guest, and large hashes: without them counts change by
# some instructions with irrelevant changes.
_COUNT_WORDS: Final = (
    "cryptomgr.notests",
    "nokaslr",
    "norandmaps",
    "dhash_entries=1048576",
    "ihash_entries=262144",
)


def kernel_command_line(machine: Machine, *, words: tuple[str, ...]) -> str:
    """Return the command line: the lab's own words, the preset's, the machine's, in this order."""
    own = ["console=ttyS0", "quiet", "panic=-1"]
    if machine.mode == "count":
        own += _COUNT_WORDS
    return " ".join([*own, *words, *machine.cmdline.split()])


def qemu_command(
    machine: Machine,
    *,
    image: Path,
    initramfs: Path,
    cmdline: str,
    folder: Path,
    tpm_socket: Path | None,
    accelerator: Literal["tcg", "kvm"],
    root_disk: Path | None = None,
    serial: str | None = None,
    network: Sequence[str] = (),
) -> list[str]:
    """Return the QEMU command line of a guest that works in `folder`.

    The guest has no network but what `network` gives it, for which QEMU may start programs. In
    count mode every input is fixed: one thread, one instruction is one nanosecond of the guest's
    clock, seed and date are constants.
    """
    command = [QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    # Each connection of the network is a program, which QEMU starts with setsid(2).
    limits = "" if network else ",elevateprivileges=deny,spawn=deny"
    command += ["-sandbox", f"on,obsolete=deny{limits}"]
    command += ["-m", str(machine.memory_mib), "-smp", str(machine.cpus)]
    if machine.mode == "count":
        command += ["-accel", "tcg,thread=single", "-cpu", "max", "-seed", "1"]
        command += ["-icount", "shift=0,sleep=off", "-rtc", f"base={GUEST_START},clock=vm"]
    elif accelerator == "kvm":
        command += ["-accel", "kvm", "-cpu", "host"]
    else:
        # QEMU 7.2 miscalculates AVX2: NumPy's argsort returns wrong orders under it.
        command += ["-accel", "tcg,thread=multi", "-cpu", "max,avx2=off"]
    command += ["-kernel", str(image), "-initrd", str(initramfs), "-append", cmdline]
    command += ["-serial", serial or f"file:{folder / 'console.log'}"]
    # Not a disk: the firmware would read it, and it answers in the host's time. A serial port with
    # `ioeventfd=off` is answered within the instruction that writes to it.
    command += ["-device", "virtio-serial-pci,ioeventfd=off"]
    command += ["-chardev", f"file,id=results,path={folder / 'results.tar'}"]
    command += ["-device", "virtserialport,chardev=results,name=results"]
    if root_disk is not None:
        drive = f"file={root_disk},format=raw,if=none,id=root,snapshot=on,cache=unsafe"
        command += ["-drive", drive, "-device", "virtio-blk-pci,drive=root"]
    if tpm_socket is not None:
        command += ["-chardev", f"socket,id=chrtpm,path={tpm_socket}"]
        command += ["-tpmdev", "emulator,id=tpm0,chardev=chrtpm", "-device", "tpm-crb,tpmdev=tpm0"]
    return [*command, *network]
