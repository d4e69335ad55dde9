"""Lab: real kernels in QEMU under every security configuration, costs counted in instructions.

A guest is one boot of a distribution's kernel under a *preset*, with a plan to run; it comes back
with measurements, the proof that its configuration took effect, and evidence. Count mode counts
instructions and repeats exactly; TPM mode has a software TPM and measures time.

Names are imported from their modules when they are first used: who only reads a machine's TOML
does not pay for the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from excise.lab.comparison import Comparison, compare, kernel_jobs, preset_jobs
    from excise.lab.configurations import Preset, preset, presets
    from excise.lab.evidence import verify_guest_quote, verify_ima
    from excise.lab.jobs import GuestFailure, GuestJob, Progress, run_all
    from excise.lab.machine import Machine, read_machine
    from excise.lab.plan import Plan, Step
    from excise.lab.result import GuestResult, StepResult
    from excise.lab.run import run_guest

__all__ = [
    "Comparison",
    "GuestFailure",
    "GuestJob",
    "GuestResult",
    "Machine",
    "Plan",
    "Preset",
    "Progress",
    "Step",
    "StepResult",
    "compare",
    "kernel_jobs",
    "preset",
    "preset_jobs",
    "presets",
    "read_machine",
    "run_all",
    "run_guest",
    "verify_guest_quote",
    "verify_ima",
]

_MODULES = {
    "comparison": ("Comparison", "compare", "kernel_jobs", "preset_jobs"),
    "configurations": ("Preset", "preset", "presets"),
    "evidence": ("verify_guest_quote", "verify_ima"),
    "jobs": ("GuestFailure", "GuestJob", "Progress", "run_all"),
    "machine": ("Machine", "read_machine"),
    "plan": ("Plan", "Step"),
    "run": ("GuestResult", "StepResult", "run_guest"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
