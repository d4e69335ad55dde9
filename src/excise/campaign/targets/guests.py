"""From a visit of a campaign to a guest of the lab: its preset, its plan, its steps."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from excise.campaign.effect import effect_of_text
from excise.campaign.schedule import Visit
from excise.campaign.spec import ALL_CALLS, BOOT, Campaign, Configuration, Task, TookEffect
from excise.campaign.target_spec import LabTarget
from excise.capture.journal import Effect, RunHead
from excise.capture.manifest import Fact
from excise.errors import SpecError, UsageError
from excise.lab import workloads
from excise.lab.comparison import twin_jobs
from excise.lab.configurations import Preset, preset
from excise.lab.jobs import GuestJob
from excise.lab.machine import DEBIAN_MEMORY_MIB, Machine
from excise.lab.plan import Plan, Step
from excise.lab.result import GuestResult


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedGuest:
    """A visit as a guest.

    Attributes:
        heads: Run of each step of the plan, in order.
        boots: Runs that are the boot itself.
        checks: Took-effect entries whose answers the guest brings back, by fact.
    """

    visit: Visit
    job: GuestJob
    heads: tuple[RunHead, ...]
    boots: tuple[RunHead, ...]
    checks: Mapping[str, TookEffect]

    def effects(self, result: GuestResult) -> list[Effect]:
        """Return what proved the configuration, of the preset and of the campaign's own checks."""
        own = [
            effect_of_text(
                check,
                configuration=self.visit.arm,
                text=result.facts.get(name, ""),
                exit_code=_exit_code(result.facts.get(f"{name}.rc")),
            )
            for name, check in self.checks.items()
        ]
        return [*result.effects, *own]


def _exit_code(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def planned_guest(
    campaign: Campaign,
    spec: LabTarget,
    visit: Visit,
    *,
    operations: Mapping[str, int],
    qualifying_data: bytes | None = None,
) -> PlannedGuest:
    """Return the guest that measures a visit's runs.

    Args:
        campaign: The campaign.
        spec: Its target.
        visit: Which runs.
        operations: Operations per batch of each workload task.
        qualifying_data: What the guest's TPM is to sign, None for no quote.
    """
    configuration = campaign.configuration_of(visit.arm)
    found = _preset_of(configuration, preset(configuration.preset or configuration.name))
    steps: list[Step] = []
    heads: list[RunHead] = []
    boots: list[RunHead] = []
    files = workloads.proof_files()
    through_probe = any(each.probe_options for each in _presets(campaign))
    for head in visit.heads:
        task = campaign.task(head.task)
        if task.workload == BOOT:
            boots.append(head)
            continue
        plan = _plan(task, configuration, found, operations, through_probe=through_probe)
        step, more = _only_step(plan, task=task, round_number=head.block), plan.files
        steps.append(step)
        heads.append(head)
        files |= more
    job = GuestJob(
        configuration=visit.arm,
        machine=machine_of(spec.machine, configuration),
        preset=found,
        plan=Plan(steps=tuple(steps), files=files),
        qualifying_data=qualifying_data,
    )
    if visit.arm in campaign.twin_names:
        number = 1 + campaign.twin_names.index(visit.arm)
        job = dataclasses.replace(twin_jobs(job, number=number)[-1], configuration=visit.arm)
    return PlannedGuest(
        visit=visit,
        job=job,
        heads=tuple(heads),
        boots=tuple(boots),
        checks=dict(_named_checks(configuration)),
    )


def machine_of(machine: Machine, configuration: Configuration) -> Machine:
    """Return a configuration's machine: its own kernel and words, room for Debian."""
    changes: dict[str, Any] = {}
    if configuration.kernel is not None:
        changes |= {"kernel": configuration.kernel, "modules": configuration.modules}
    if configuration.cmdline:
        changes["cmdline"] = f"{machine.cmdline} {configuration.cmdline}".strip()
    if machine.rootfs == "debian":
        changes["memory_mib"] = max(machine.memory_mib, DEBIAN_MEMORY_MIB)
    return msgspec.structs.replace(machine, **changes)


def _presets(campaign: Campaign) -> list[Preset]:
    """Return the presets of all configurations, each with its own probe options."""
    return [_preset_of(each, preset(each.preset or each.name)) for each in campaign.configurations]


def rules_facts(campaign: Campaign) -> list[Fact]:
    """Return the digest of each file of rules that a preset was given."""
    found = {each.name: each.rules_sha256 for each in _presets(campaign) if each.rules_sha256}
    return [
        Fact(name=f"lab.rules.{name}.sha256", value=digest, must_agree=True)
        for name, digest in found.items()
    ]


def _preset_of(configuration: Configuration, base: Preset) -> Preset:
    """Return the preset with the configuration's set-up, its checks, and its probe options."""
    mounted = base.mounted
    for words in configuration.setup:
        text = shlex.join(words)
        refusal = shlex.quote(f"a set-up command failed: {text}")
        mounted += f"{text} >/run/setup.out 2>&1 || refuse {refusal}\n"
    proof = base.proof
    for name, check in _named_checks(configuration):
        asked = _asked(check, configuration)
        proof += f"{{ {asked}; echo $? >$O/facts/{name}.rc; }} >$O/facts/{name} 2>&1\n"
    return dataclasses.replace(
        base,
        mounted=mounted,
        proof=proof,
        probe_options=(*base.probe_options, *configuration.probe),
    )


def _named_checks(configuration: Configuration) -> Iterator[tuple[str, TookEffect]]:
    for number, check in enumerate(configuration.took_effect):
        yield f"took_effect.{number}", check


def _asked(check: TookEffect, configuration: Configuration) -> str:
    if check.file is not None:
        return f"cat {shlex.quote(check.file)}"
    words = check.command or ["printenv", str(check.environment)]
    return shlex.join(configuration.wrapped(words))


def _plan(
    task: Task,
    configuration: Configuration,
    found: Preset,
    operations: Mapping[str, int],
    *,
    through_probe: bool,
) -> Plan:
    if task.command is not None:
        words = configuration.wrapped(task.command)
        if task.directory is not None:
            words = ["sh", "-c", 'cd "$0" && exec "$@"', task.directory, *words]
        return workloads.command(*words, preset=found, through_probe=through_probe)
    plan = _workload(task, found, operations=operations)
    [step] = plan.steps
    wrapped = tuple(configuration.wrapped(step.command))
    return msgspec.structs.replace(plan, steps=(msgspec.structs.replace(step, command=wrapped),))


def _only_step(plan: Plan, *, task: Task, round_number: int) -> Step:
    [step] = plan.steps
    # An exit code is judged by the campaign's `expect`, not by the guest.
    return msgspec.structs.replace(step, task=task.name, round=round_number, must_work=False)


def _workload(task: Task, found: Preset, *, operations: Mapping[str, int]) -> Plan:
    name = str(task.workload)
    if distinct := workloads.distinct(name):
        return distinct
    return workloads.syscalls(
        found,
        only=(name,),
        rounds=1,
        batches=task.batches,
        operations=operations.get(task.name),
    )


def calibrated(task: Task) -> int:
    """Return the operations of a batch that the lab has chosen for a workload; 1 where none fit."""
    for call in workloads.SYSTEM_CALLS:
        if task.workload in workloads.tasks(call):
            return workloads.operations_of(call, str(task.workload))
    return 1


def check_spec(campaign: Campaign, spec: LabTarget) -> None:
    """Refuse what a guest does not have, naming the key.

    Raises:
        SpecError: If a preset or a workload is not known, or a key has no meaning in the lab.
    """
    if campaign.work_directory is not None:
        raise SpecError("a guest has its own work folders", key="work_directory")
    if spec.quote and spec.machine.mode != "tpm":
        raise SpecError('a quote needs mode = "tpm"', key="target.quote")
    if spec.machine.mode == "tpm" and spec.twins != 1:
        raise SpecError("in TPM mode there is one A/A arm", key="target.aa_guests")
    for index, configuration in enumerate(campaign.configurations):
        _check_configuration(configuration, f"configurations[{index}]")
    for index, task in enumerate(campaign.tasks):
        _check_task(task, f"tasks[{index}]")


def _check_configuration(configuration: Configuration, key: str) -> None:
    if configuration.teardown:
        raise SpecError("a guest is thrown away after its runs", key=f"{key}.teardown")
    try:
        preset(configuration.preset or configuration.name)
    except UsageError as error:
        hint = f"Name one with preset = ... {error.hint}"
        raise SpecError(error.reason, key=f"{key}.preset", hint=hint) from error
    if configuration.modules is not None and configuration.kernel is None:
        raise SpecError("belongs to a kernel given by path", key=f"{key}.modules")


def _check_task(task: Task, key: str) -> None:
    if task.timeout != Task(name="default").timeout:
        raise SpecError(
            "a guest has one time limit for all it does",
            key=f"{key}.timeout",
            hint="Set timeout_s under [target.machine]",
        )
    if task.workload is None or task.workload == BOOT:
        return
    if task.directory is not None:
        raise SpecError(
            "a workload has its folder in its name, as in open_close/ext4", key=f"{key}.directory"
        )
    known = [*workloads.task_names(), ALL_CALLS, "files:N", "exec:N", BOOT]
    try:
        if workloads.distinct(task.workload) is None and task.workload not in known:
            raise UsageError(f"no workload {task.workload}", hint=f"Known: {', '.join(known)}")
    except UsageError as error:
        raise SpecError(error.reason, key=f"{key}.workload", hint=error.hint) from error


def kernels_of(campaign: Campaign, spec: LabTarget) -> list[tuple[str, Path | None]]:
    """Return the kernels that guests of the campaign boot, each with its folder of modules."""
    machines = [machine_of(spec.machine, each) for each in campaign.configurations]
    pairs = [(m.kernel, Path(m.modules) if m.modules else None) for m in machines]
    return list(dict.fromkeys(pairs))
