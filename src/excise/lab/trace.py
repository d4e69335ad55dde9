"""Hooks of the lab's system calls: the workloads of a guest, traced after they were counted.

Each task is run untraced as ever. Then it is run twice under the probe's tracer: with the hooks
alone, for counts and exact costs, and with the functions of the modules too, which tell where in a
hook the cost lies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import stdev
from typing import Final

import msgspec

from excise.capture.journal import Aggregate, Loss
from excise.collect.probe import probe_path
from excise.cost.hook_operations import OperationHooks, PartCost, hook_name, operation_hooks
from excise.errors import FormatError, UsageError
from excise.formats.trace_rows import CALIBRATION_ERROR
from excise.lab.configurations import Preset
from excise.lab.configurations import preset as preset_of
from excise.lab.count import counts
from excise.lab.jobs import GuestJob
from excise.lab.machine import Machine
from excise.lab.plan import Plan, Step
from excise.lab.result import INSTRUCTIONS, GuestResult, file_safe
from excise.lab.workloads import syscalls

TASKS: Final = (
    *("stat/ext4", "open_close/ext4", "create_0k/ext4", "delete_0k/ext4"),
    "fork_execve",
)
_RESULTS_MIB: Final = 400
_TIMEOUT_S: Final = 1500.0
# The tracer is a copy of the probe under a name of its own: profiles and domains of the workload,
# which go by the program's path, must not confine it.
TRACER: Final = "lab/tracer"
BATCHES: Final = 24
# A traced operation takes up to 100,000 instructions, and a timer tick comes after 4 million.
_MOST_OPERATIONS: Final = 16
_BUFFER_KIB: Final = 49152
# The begin of a part takes some 230 instructions: parts are so long that most batches have none.
_SUBBUFFER_KIB: Final = 512
_HOOKS, _FUNCTIONS = "hooks", "functions"


def traced_syscalls(preset: Preset, *, only: tuple[str, ...] = TASKS) -> Plan:
    """Return the plan that counts system calls, then traces their hooks.

    Args:
        preset: Whose options the probe gets, and whose modules' functions are traced.
        only: Names of system calls or tasks.

    Raises:
        UsageError: If a name in `only` is not known.
    """
    plan = syscalls(preset, only=only)
    traced = [
        _traced(step, preset=preset, functions=functions)
        for step in plan.steps
        if step.round == 0
        for functions in (False, True)
    ]
    tracer = {TRACER: Path(probe_path()).read_bytes()}
    return msgspec.structs.replace(
        plan,
        steps=(_warm_up(), *plan.steps, *traced),
        root_files={**plan.root_files, **tracer},
    )


def traced_jobs(
    presets: Sequence[str],
    *,
    only: tuple[str, ...] = TASKS,
    kernel: str = "6.12",
    modules: str | None = None,
) -> list[GuestJob]:
    """Return the guests that are counted and traced, one a preset; the first is the baseline.

    Args:
        presets: Names of presets.
        only: Names of system calls or tasks.
        kernel: A series, a package, or a bzImage.
        modules: Folder of a kernel's modules.

    Raises:
        UsageError: If there are not two presets, one is named twice, or a name is not known.
    """
    if len(set(presets)) < max(2, len(presets)):
        raise UsageError("needs a baseline and at least one other preset, each named once")
    machine = Machine(
        kernel=kernel,
        modules=modules,
        memory_mib=768,
        results_mib=_RESULTS_MIB,
        timeout_s=_TIMEOUT_S,
    )
    return [
        GuestJob(
            configuration=name,
            machine=machine,
            preset=preset_of(name),
            plan=traced_syscalls(preset_of(name), only=only),
        )
        for name in presets
    ]


def _warm_up() -> Step:
    """Return a first run of the tracer, before anything is counted.

    What the tracer asks of a module stays in the module's caches: SELinux, for one, puts its newest
    decisions in front of older ones, and a lookup then takes longer. So they are there throughout.
    """
    words = [f"/{TRACER}", "trace", "--backend", "function_graph", "--drain", "end"]
    words += ["--hooks", "security_*", "--output", "/run/warm.trace", "--summary", "/run/warm.json"]
    workload = [
        "excise-probe",
        "run",
        "--workload",
        "null",
        "--operations",
        "100",
        "--batches",
        "1",
    ]
    return Step(task="(warm-up of the tracer)", command=(*words, "--", *workload))


def _traced(step: Step, *, preset: Preset, functions: bool) -> Step:
    kind = _FUNCTIONS if functions else _HOOKS
    base = f"/run/out/evidence/{file_safe(step.task)}.{kind}"
    words = [f"/{TRACER}", "trace", "--backend", "function_graph", "--drain", "end"]
    words += ["--buffer-kb", str(_BUFFER_KIB), "--subbuffer-kb", str(_SUBBUFFER_KIB)]
    words += ["--hooks", "security_*"]
    if functions:
        words += ["--lsm", ",".join(modules_of(preset))]
    words += ["--output", f"{base}.trace", "--summary", f"{base}.json", "--"]
    workload = list(step.command)
    batches, operations = (workload.index(word) + 1 for word in ("--batches", "--operations"))
    workload[batches] = str(BATCHES)
    workload[operations] = str(min(int(workload[operations]), _MOST_OPERATIONS))
    return Step(task=f"{step.task} ({kind} traced)", command=(*words, *workload, "--mark"))


def modules_of(preset: Preset) -> tuple[str, ...]:
    """Return the modules whose functions are traced under a preset."""
    names = [name for name in preset.lsm if name != "integrity"]
    if any(word.startswith("ima_policy=") for word in preset.words):
        names += ["ima", "evm"]
    return ("capability", *names)


def traced_tasks(result: GuestResult) -> list[str]:
    """Return the tasks of a guest that were traced."""
    suffix = f" ({_HOOKS} traced)"
    names = [step.step.task for step in result.steps]
    return [name.removesuffix(suffix) for name in names if name.endswith(suffix)]


def task_hooks(result: GuestResult, task: str, *, functions: bool = False) -> OperationHooks:
    """Return the hooks of one operation of a traced task.

    Args:
        result: A guest that ran `traced_syscalls`.
        task: One of `traced_tasks`.
        functions: From the trace of the modules' functions rather than of the hooks alone.

    Raises:
        FormatError: If the trace is missing, or lost events.
    """
    name = f"{file_safe(task)}.{_FUNCTIONS if functions else _HOOKS}.trace"
    source = f"{result.configuration}: {name}"
    try:
        text = result.evidence[name]
        calibration = result.evidence[f"{name}.calibration"]
    except KeyError as error:
        raise FormatError("the guest brought back no such trace", source=source) from error
    return operation_hooks(text, calibration=calibration, source=source)


def hook_records(result: GuestResult) -> Iterator[Aggregate | Loss]:
    """Yield the journal's rows about a guest's traced tasks; none for a guest that has none.

    For each task: its steady count, each hook's cost and calls, the cost and calls of the modules'
    functions in each hook, and the tracer's own cost.
    """
    tasks = traced_tasks(result)
    steady = counts(result) if tasks else {}
    for task in tasks:
        try:
            hooks = task_hooks(result, task)
            inner = task_hooks(result, task, functions=True)
        except FormatError as error:
            yield Loss(source=f"{result.configuration}: {task}", reason=error.reason)
            continue
        yield msgspec.structs.replace(
            _row(result, task), mean=steady[task].steady, sd=_round_spread(result, task)
        )
        yield from _tracer(result, task, inner)
        for function, part in hooks.hooks.items():
            yield from _part(result, task, part, layer="hook", event=hook_name(function))
        for (outermost, function), part in inner.functions.items():
            yield from _part(
                result,
                task,
                part,
                layer="function",
                event=function,
                labels=f"hook={hook_name(outermost)}",
            )


def _round_spread(result: GuestResult, task: str) -> float:
    """Return the standard deviation of the rounds' least batches."""
    least = [
        min(step.probe.op_ns)
        for step in result.steps
        if step.step.task == task and step.probe is not None and step.probe.op_ns
    ]
    return stdev(least) if len(least) > 1 else 0.0


def _part(
    result: GuestResult, task: str, part: PartCost, *, layer: str, event: str, labels: str = ""
) -> Iterator[Aggregate]:
    row = _row(result, task, layer=layer, event=event, labels=labels)
    spread = part.spread / part.calls if part.calls else 0.0
    yield msgspec.structs.replace(row, mean=part.per_call, sd=spread)
    yield msgspec.structs.replace(row, metric="per_call", mean=part.calls, unit="1")
    if part.error and part.calls:
        yield msgspec.structs.replace(row, metric=CALIBRATION_ERROR, mean=part.error / part.calls)


def _tracer(result: GuestResult, task: str, inner: OperationHooks) -> Iterator[Aggregate]:
    """Yield what the tracer adds to a call, which has been taken out of the figures; its error."""
    tracer = inner.tracer
    base = _row(result, task, layer="probe", event="function_graph")
    row = msgspec.structs.replace(base, metric="tracer_cost", count=float(tracer.calls))
    floor = msgspec.structs.replace(row, labels="share=floor,state=subtracted", mean=tracer.floor)
    yield msgspec.structs.replace(
        floor,
        min=tracer.floor_p05,
        max=tracer.floor_p95,
        note="5th and 95th percentile of an empty function; "
        f"{inner.quiet} of {inner.batches} batches had no interrupt inside",
    )
    nested = msgspec.structs.replace(
        row, labels="share=nested,state=subtracted", mean=tracer.nested
    )
    yield msgspec.structs.replace(nested, note=f"tested on calls {tracer.deepest} deep")
    for each, error in ((floor, tracer.floor_error), (nested, tracer.nested_error)):
        yield msgspec.structs.replace(each, metric=CALIBRATION_ERROR, mean=error)


def _row(
    result: GuestResult, task: str, *, layer: str = "task", event: str = "", labels: str = ""
) -> Aggregate:
    return Aggregate(
        task=task,
        configuration=result.configuration,
        metric="duration",
        unit=INSTRUCTIONS,
        layer=layer,
        event=event,
        labels=labels,
    )
