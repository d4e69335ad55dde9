"""Run one guest: kernel, work disk, initramfs, boot, results, and the proof that it was set up."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from excise.capture.journal import Probe
from excise.collect.probe import probe_path
from excise.errors import HostError, UsageError
from excise.lab import guest, initramfs, kernels
from excise.lab.cache import digest_of, stored
from excise.lab.configurations import Preset
from excise.lab.debian import debian_image
from excise.lab.disk import build_image
from excise.lab.effects import check_effects, require_effects
from excise.lab.host_share import (
    network_options,
    share_files,
    share_image,
    shared_preset,
    with_share,
)
from excise.lab.kernel import Kernel
from excise.lab.machine import Machine, kernel_command_line
from excise.lab.plan import Plan
from excise.lab.quote import QUOTE_NONCE, quote_files
from excise.lab.result import GuestResult, StepResult, clock_of


def run_guest(
    machine: Machine,
    *,
    preset: Preset,
    plan: Plan,
    configuration: str | None = None,
    qualifying_data: bytes | None = None,
    on_stage: Callable[[str], None] = lambda _: None,
    stop: threading.Event | None = None,
) -> GuestResult:
    """Boot a machine under a preset, run the plan, and return what came back.

    Args:
        machine: The machine.
        preset: Its security configuration.
        plan: What it runs.
        configuration: Name for the results; the preset's if not given.
        qualifying_data: Asks the guest's TPM for a quote that signs this; None for no quote.
        on_stage: Called with `boot`, then with the name of each stage that the guest announces.
        stop: Ends the guest when it is set, from another thread.

    Raises:
        UsageError: If a quote is asked of a machine without a TPM.
        EffectError: If the configuration did not take effect; it says what is missing.
        HostError: If the guest cannot be built or booted, panics, hangs, or a step fails.
    """
    if qualifying_data is not None and machine.mode != "tpm":
        raise UsageError('a quote needs mode = "tpm"')
    modules = Path(machine.modules) if machine.modules else None
    kernel = kernels.resolve(machine.kernel, modules=modules)
    _refuse_missing_lsm(kernel, preset=preset)
    preset, plan = shared_preset(preset, machine=machine), with_share(plan, machine=machine)
    root = _root(machine, kernel=kernel, preset=preset, plan=plan, qualifying_data=qualifying_data)
    disk = debian_image() if machine.rootfs == "debian" else None
    disk = share_image() if machine.python else disk
    cmdline = kernel_command_line(machine, words=preset.command_line())
    accelerator = choose_accelerator(machine, kernel=kernel)
    on_stage("boot")
    booted = guest.boot(
        machine,
        image=kernel.image,
        initramfs=root,
        cmdline=cmdline,
        accelerator=accelerator,
        root_disk=disk,
        network=network_options(machine),
        on_stage=on_stage,
        stop=stop,
    )
    return _result(
        booted,
        machine=machine,
        kernel=kernel,
        preset=preset,
        plan=plan,
        configuration=configuration or preset.name,
        cmdline=cmdline,
        qualifying_data=qualifying_data,
    )


def _root(
    machine: Machine,
    *,
    kernel: Kernel,
    preset: Preset,
    plan: Plan,
    qualifying_data: bytes | None,
) -> bytes:
    """Return the initramfs of a guest."""
    quote = quote_files(qualifying_data) if qualifying_data is not None else {}
    return initramfs.build_initramfs(
        kernel,
        preset=preset,
        plan=plan,
        work_image=work_image(plan, size_mib=machine.work_disk_mib),
        root_disk=machine.rootfs == "debian",
        probe=Path(probe_path()),
        more={**_guest_program(preset), **quote, **share_files(kernel, machine=machine)},
    )


def _result(
    booted: guest.Boot,
    *,
    machine: Machine,
    kernel: Kernel,
    preset: Preset,
    plan: Plan,
    configuration: str,
    cmdline: str,
    qualifying_data: bytes | None,
) -> GuestResult:
    """Return what came back from a boot.

    Raises:
        EffectError: If the configuration did not take effect.
        HostError: If a step that must work failed.
    """
    facts = _facts(booted.files)
    asked = {QUOTE_NONCE: qualifying_data.hex().encode() + b"\n"} if qualifying_data else {}
    dmesg = booted.files.get("dmesg", b"")
    effects = check_effects(
        facts,
        expectations=preset.expectations,
        cmdline=cmdline,
        configuration=configuration,
        dmesg=dmesg.decode("utf-8", "replace"),
        refused=booted.files.get("refused", b"").decode("utf-8", "replace").strip(),
    )
    require_effects(effects, configuration=configuration, kernel=kernel.release)
    steps = _step_results(plan, booted.files)
    _refuse_failed_steps(steps, configuration=configuration)
    return GuestResult(
        configuration=configuration,
        preset=preset.name,
        kernel=kernel,
        machine=machine,
        cmdline=cmdline,
        clock=clock_of(machine, accelerator=booted.accelerator),
        steps=steps,
        facts=facts,
        effects=effects,
        marks_ns=_marks(booted.files.get("marks", b"")),
        stages_s=booted.stages_s,
        evidence={
            path.removeprefix("evidence/"): data
            for path, data in booted.files.items()
            if path.startswith("evidence/")
        }
        | asked,
        dmesg=dmesg,
        console=booted.console,
        wall_s=booted.wall_s,
    )


def _refuse_missing_lsm(kernel: Kernel, *, preset: Preset) -> None:
    """Say before the boot what the kernel's build options already tell."""
    missing = [name for name in preset.lsm if kernel.lsm_built_in(name) is False]
    if missing:
        raise HostError(
            f"kernel {kernel.release} is built without {', '.join(missing)}, "
            f"which the preset {preset.name} needs",
            source=str(kernel.image),
        )


def _guest_program(preset: Preset) -> dict[str, bytes]:
    """Return the program for what a shell cannot do; every guest has it where it was built.

    Raises:
        HostError: If the preset needs it and it was not built.
    """
    path = Path(probe_path()).with_name("excise-guest")
    if path.is_file():
        return {"bin/excise-guest": path.read_bytes()}
    if preset.needs_guest_program:
        raise HostError(
            f"the preset {preset.name} needs excise-guest, which is missing",
            source=path.name,
            hint="Build it with tools/build-guest.sh",
        )
    return {}


def work_image(plan: Plan, *, size_mib: int) -> bytes:
    """Return the ext4 work disk of a plan, from the cache where it was built before."""
    parts = [
        f"{path}\0".encode() + msgspec.json.encode(plan.files[path]) for path in sorted(plan.files)
    ]
    key = digest_of(f"image 3 {size_mib}", *parts)

    def build(into: Path) -> None:
        working = into / "building"
        working.mkdir()
        build_image(plan.files, size_mib=size_mib, folder=working).rename(into / "work.ext4")
        shutil.rmtree(working)

    return (stored("images", key[:24], build) / "work.ext4").read_bytes()


def _facts(files: dict[str, bytes]) -> dict[str, str]:
    found = {}
    for prefix, name in (("facts/", ""), ("attempts/", "attempt.")):
        for path, data in files.items():
            if path.startswith(prefix):
                found[name + path.removeprefix(prefix)] = data.decode("utf-8", "replace").strip(
                    "\n\0 "
                )
    return found


def _marks(data: bytes) -> dict[str, int]:
    pairs = (line.split() for line in data.decode().splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}


def _step_results(plan: Plan, files: dict[str, bytes]) -> tuple[StepResult, ...]:
    results = []
    for number, step in enumerate(plan.steps):
        base = f"steps/{number:04d}"
        stdout = files.get(f"{base}.out", b"")
        code = files.get(f"{base}.rc", b"").strip()
        exit_code = int(code) if code.isdigit() else -1
        took = files.get(f"{base}.ns", b"").strip()
        listed = files.get(f"{base}.ima", b"").strip()
        probe = None
        if step.probe and exit_code == 0:
            try:
                probe = msgspec.json.decode(stdout, type=Probe)
            except msgspec.DecodeError:
                exit_code = -1
        results.append(
            StepResult(
                step=step,
                exit_code=exit_code,
                wall_ns=int(took) if took.isdigit() else None,
                stdout=stdout,
                stderr=files.get(f"{base}.err", b""),
                probe=probe,
                ima_entries=int(listed) if listed.isdigit() else None,
            )
        )
    return tuple(results)


def _refuse_failed_steps(steps: tuple[StepResult, ...], *, configuration: str) -> None:
    for result in steps:
        if result.step.must_work and result.exit_code != 0:
            text = result.stderr.decode("utf-8", "replace").strip().splitlines()
            raise HostError(
                f"{result.step.task} failed in the guest {configuration} with exit code "
                f"{result.exit_code}: {(text or ['no reason given'])[0]}"
            )


_KVM_TRIAL_S = 20.0
_kvm_works: dict[str, bool] = {}


def choose_accelerator(machine: Machine, *, kernel: Kernel) -> Literal["tcg", "kvm"]:
    """Return what to run on; KVM only where a short real boot with it succeeds.

    Raises:
        HostError: If the machine asks for KVM and it does not work.
    """
    if machine.mode == "count" or machine.accelerator == "tcg":
        return "tcg"
    if kernel.release not in _kvm_works:
        _kvm_works[kernel.release] = _try_kvm(machine, kernel=kernel)
    if machine.accelerator == "kvm" and not _kvm_works[kernel.release]:
        raise HostError(
            "KVM does not work here: a short boot with it failed",
            hint='Use accelerator = "auto" or "tcg"',
        )
    return "kvm" if _kvm_works[kernel.release] else "tcg"


def _try_kvm(machine: Machine, *, kernel: Kernel) -> bool:
    if not Path("/dev/kvm").exists():
        return False
    from excise.lab.configurations import preset

    plan = Plan(steps=())
    trial = msgspec.structs.replace(machine, timeout_s=_KVM_TRIAL_S)
    none = preset("none")
    try:
        root = initramfs.build_initramfs(
            kernel,
            preset=none,
            plan=plan,
            work_image=work_image(plan, size_mib=8),
            probe=Path(probe_path()),
        )
        words = kernel_command_line(trial, words=none.command_line())
        guest.boot(trial, image=kernel.image, initramfs=root, cmdline=words, accelerator="kvm")
    except HostError:
        return False
    return True
