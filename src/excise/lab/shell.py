"""An interactive shell in a guest that is set up as its preset says."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from pathlib import Path

import msgspec

from excise.collect.probe import probe_path
from excise.errors import HostError
from excise.lab import initramfs, kernels
from excise.lab.cache import working_folder
from excise.lab.configurations import Preset
from excise.lab.host_share import (
    network_options,
    share_files,
    share_image,
    shared_preset,
    with_share,
)
from excise.lab.machine import Machine, kernel_command_line, qemu_command
from excise.lab.plan import Plan
from excise.lab.processes import require, software_tpm
from excise.lab.run import choose_accelerator, work_image
from excise.lab.workloads import proof_files

_SHELL = "setsid cttyhack sh </dev/console >/dev/console 2>&1"


def open_shell(machine: Machine, *, preset: Preset) -> None:
    """Boot a guest with its console on this terminal, until its shell ends.

    Raises:
        HostError: If it cannot be built, or QEMU fails.
    """
    modules = Path(machine.modules) if machine.modules else None
    kernel = kernels.resolve(machine.kernel, modules=modules)
    plan = Plan(steps=(), files=proof_files(), shell=_SHELL)
    preset, plan = shared_preset(preset, machine=machine), with_share(plan, machine=machine)
    root = initramfs.build_initramfs(
        kernel,
        preset=preset,
        plan=plan,
        work_image=work_image(plan, size_mib=machine.work_disk_mib),
        probe=Path(probe_path()),
        more=share_files(kernel, machine=machine),
    )
    with ExitStack() as stack:
        folder = stack.enter_context(working_folder())
        (folder / "initramfs").write_bytes(root)
        with_tpm = machine.mode == "tpm"
        command = qemu_command(
            msgspec.structs.replace(machine, timeout_s=float("inf")),
            image=kernel.image,
            initramfs=folder / "initramfs",
            cmdline=kernel_command_line(machine, words=preset.command_line()),
            folder=folder,
            tpm_socket=stack.enter_context(software_tpm(folder)) if with_tpm else None,
            accelerator=choose_accelerator(machine, kernel=kernel),
            serial="mon:stdio",
            root_disk=share_image() if machine.python else None,
            network=network_options(machine),
        )
        wrapper = [require("setpriv"), "--pdeathsig", "KILL", "--"]
        done = subprocess.run([*wrapper, *command], check=False)
        if done.returncode:
            raise HostError(f"QEMU ended with code {done.returncode}")
