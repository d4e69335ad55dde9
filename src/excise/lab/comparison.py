"""`excise lab compare`: the same system calls under several presets, or in several kernels."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from excise.errors import UsageError
from excise.lab import jobs as lab_jobs
from excise.lab.configurations import preset as preset_of
from excise.lab.count import Difference, TaskCount, counts, differences, noise_floor
from excise.lab.jobs import GuestFailure, GuestJob, Progress
from excise.lab.machine import Machine
from excise.lab.result import GuestResult
from excise.lab.workloads import syscalls

TWIN_WORD: Final = "excise.twin=1"
_TWIN_FILE: Final = {"lab/twin": b"an extra file that nothing reads\n" * 128}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Counts of several guests against the first, with the noise floor found beside them.

    Attributes:
        baseline: Name of the configuration that others are compared with.
        counts: Counts by configuration and task, the baseline among them.
        differences: Differences by configuration, without the baseline.
        noise: Largest relative difference of the A/A guests, by task.
        results: Guests of the configurations.
        twins: A/A guests.
        failures: Guests that gave no results.
    """

    baseline: str
    counts: dict[str, dict[str, TaskCount]]
    differences: dict[str, list[Difference]]
    noise: dict[str, float]
    results: tuple[GuestResult, ...]
    twins: tuple[GuestResult, ...]
    failures: tuple[GuestFailure, ...]

    @property
    def tasks(self) -> list[str]:
        """Return the tasks in the order they were measured."""
        return list(self.noise)


def preset_jobs(
    machine: Machine,
    *,
    presets: Sequence[str],
    only: tuple[str, ...] = (),
) -> list[GuestJob]:
    """Return the guests that compare presets on one kernel; the first preset is the baseline.

    Raises:
        UsageError: If a preset or a system call is not known, named twice, or none is given.
    """
    _refuse_repeated(presets, what="preset")
    return [
        GuestJob(
            configuration=name,
            machine=_counting(machine),
            preset=preset_of(name),
            plan=syscalls(preset_of(name), only=only),
        )
        for name in presets
    ]


def kernel_jobs(
    machines: Sequence[Machine],
    *,
    preset: str = "none",
    only: tuple[str, ...] = (),
) -> list[GuestJob]:
    """Return the guests that compare kernels under one preset; the first kernel is the baseline.

    Raises:
        UsageError: If a name is not known, a kernel is given twice, or none is given.
    """
    _refuse_repeated([machine.kernel for machine in machines], what="kernel")
    found = preset_of(preset)
    plan = syscalls(found, only=only)
    return [
        GuestJob(configuration=m.kernel, machine=_counting(m), preset=found, plan=plan)
        for m in machines
    ]


def _refuse_repeated(names: Sequence[str], *, what: str) -> None:
    if not names:
        raise UsageError(f"no {what} is given")
    if len(set(names)) != len(names):
        raise UsageError(f"a {what} is given twice", hint="The A/A guests are added by themselves")


def _counting(machine: Machine) -> Machine:
    if machine.mode != "count":
        raise UsageError(
            "counts are compared in count mode; times are compared by a campaign",
            hint='Use mode = "count", or excise run with [target] kind = "lab"',
        )
    return machine


def twin_jobs(baseline: GuestJob, *, number: int = 2) -> list[GuestJob]:
    """Return A/A guests: the baseline with a dummy word, a dummy file, then both.

    Raises:
        UsageError: If there are not so many.
    """
    machine = baseline.machine
    word = msgspec.structs.replace(machine, cmdline=f"{machine.cmdline} {TWIN_WORD}".strip())
    filed = msgspec.structs.replace(
        baseline.plan, root_files={**baseline.plan.root_files, **_TWIN_FILE}
    )
    variants = [(word, baseline.plan), (machine, filed), (word, filed)]
    if not 1 <= number <= len(variants):
        raise UsageError(f"there are 1 to {len(variants)} A/A guests, not {number}")
    return [
        dataclasses.replace(
            baseline,
            configuration=f"{baseline.configuration} (A/A {index})",
            machine=twin,
            plan=plan,
        )
        for index, (twin, plan) in enumerate(variants[:number], start=1)
    ]


def compare(
    jobs: Sequence[GuestJob],
    *,
    twins: int = 2,
    parallel: int = 1,
    kept: Mapping[str, GuestResult] = {},
    on_progress: Callable[[Progress], None] = lambda _: None,
    on_result: Callable[[GuestResult | GuestFailure], None] = lambda _: None,
) -> Comparison:
    """Run the guests and the A/A guests of the first, and return the differences.

    Args:
        jobs: Guests, from `preset_jobs` or `kernel_jobs`; the first is the baseline.
        twins: Number of A/A guests; at least one.
        parallel: Guests at a time.
        kept: Results of guests that ran before, by configuration.
        on_progress: Called at each stage of each guest.
        on_result: Called with each guest's result or failure.

    Raises:
        ExciseError: If the baseline or every A/A guest fails; nothing can be compared then.
    """
    pairs = twin_jobs(jobs[0], number=twins)
    everything = [jobs[0], *pairs, *jobs[1:]]
    outcomes = lab_jobs.run_all(
        everything, parallel=parallel, kept=kept, on_progress=on_progress, on_result=on_result
    )
    first = outcomes[0]
    if isinstance(first, GuestFailure):
        raise first.error
    twin_outcomes = outcomes[1 : 1 + len(pairs)]
    found = [twin for twin in twin_outcomes if isinstance(twin, GuestResult)]
    if not found:
        raise next(twin.error for twin in twin_outcomes if isinstance(twin, GuestFailure))
    noise = noise_floor(first, found)
    others = [out for out in outcomes[1 + len(pairs) :] if isinstance(out, GuestResult)]
    return Comparison(
        baseline=first.configuration,
        counts={result.configuration: counts(result) for result in (first, *others)},
        differences={
            result.configuration: differences(first, result, noise=noise) for result in others
        },
        noise=noise,
        results=(first, *others),
        twins=tuple(found),
        failures=tuple(out for out in outcomes if isinstance(out, GuestFailure)),
    )
