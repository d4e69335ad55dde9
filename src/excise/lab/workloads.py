"""Workloads of lab guests, as plans: the probe's system calls, exec of many files, a command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from excise.errors import UsageError
from excise.lab.configurations import Preset
from excise.lab.disk import WorkFile
from excise.lab.plan import Plan, Step

BATCHES: Final = 9
ROUNDS: Final = 3
_PLACES: Final = ("tmpfs", "ext4")


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemCall:
    """A probe workload with the operations of one batch.

    Operations are fixed, so that every guest does the same, and few enough that a batch is well
    below a timer tick's period of 4,000,000 instructions: some batches then hold no tick, and the
    least of them is free of it.

    Attributes:
        operations: Operations of a batch.
        needs_files: Whether it is measured on tmpfs and on ext4.
        operations_tmpfs: Operations of a batch on tmpfs, where they are cheaper: a batch is then
            long enough to pay for the slab pages that its files take.
        batches: More where work put off to a later moment blurs the batches.
    """

    name: str
    operations: int
    needs_files: bool = False
    operations_tmpfs: int | None = None
    batches: int = BATCHES


SYSTEM_CALLS: Final = (
    SystemCall(name="null", operations=2000),
    SystemCall(name="read", operations=1000),
    SystemCall(name="write", operations=1000),
    SystemCall(name="fstat", operations=800, needs_files=True),
    SystemCall(name="stat", operations=250, needs_files=True),
    SystemCall(name="open_close", operations=48, needs_files=True, batches=120),
    SystemCall(name="create_0k", operations=16, needs_files=True, operations_tmpfs=96, batches=25),
    SystemCall(name="delete_0k", operations=16, needs_files=True, operations_tmpfs=96),
    SystemCall(name="create_10k", operations=8, needs_files=True, operations_tmpfs=24, batches=18),
    SystemCall(name="delete_10k", operations=8, needs_files=True, operations_tmpfs=24),
    SystemCall(name="pipe", operations=80),
    SystemCall(name="fork_exit", operations=3, batches=20),
    SystemCall(name="fork_execve", operations=2, batches=15),
    SystemCall(name="mmap_fault", operations=1),
    SystemCall(name="unix_connect", operations=40, batches=20),
    SystemCall(name="signal", operations=300),
)


def proof_files() -> dict[str, WorkFile]:
    """Return the files every work disk has: one labelled for appraisal, one that is not."""
    return {
        "proof/labelled": WorkFile(data=b"labelled\n"),
        "proof/unlabelled": WorkFile(data=b"unlabelled\n", ima=False),
    }


def tasks(call: SystemCall) -> tuple[str, ...]:
    """Return the tasks of a system call: one for each file system where it uses files."""
    if not call.needs_files:
        return (call.name,)
    return tuple(f"{call.name}/{place}" for place in _PLACES)


def task_names() -> list[str]:
    """Return the tasks of all system calls, in the order they are measured."""
    return [task for call in SYSTEM_CALLS for task in tasks(call)]


def operations_of(call: SystemCall, task: str) -> int:
    """Return the operations of a batch of a system call's task."""
    on_tmpfs = task.partition("/")[2] in ("", "tmpfs")
    if on_tmpfs and call.operations_tmpfs is not None:
        return call.operations_tmpfs
    return call.operations


def syscalls(
    preset: Preset,
    *,
    only: tuple[str, ...] = (),
    rounds: int = ROUNDS,
    batches: int | None = None,
    operations: int | None = None,
) -> Plan:
    """Return the plan that measures the probe's system calls on tmpfs and ext4.

    Args:
        preset: Whose options the probe gets.
        only: Names of system calls or tasks; all if empty.
        rounds: How often the whole list is gone through.
        batches: Batches of each measurement; those of the system call if not given.
        operations: Operations of each batch; those of the system call if not given.

    Raises:
        UsageError: If a name in `only` is not known.
    """
    known = {call.name for call in SYSTEM_CALLS} | {t for c in SYSTEM_CALLS for t in tasks(c)}
    for name in only:
        if name not in known:
            raise UsageError(
                f"no system call workload {name}", hint=f"Known: {', '.join(sorted(known))}"
            )
    chosen = [
        (call, task)
        for call in SYSTEM_CALLS
        for task in tasks(call)
        if not only or call.name in only or task in only
    ]
    steps = [
        _probe_step(call, task, preset, round_number=number, batches=batches, operations=operations)
        for number in range(rounds)
        for call, task in chosen
    ]
    return Plan(steps=tuple(steps), files=proof_files())


def _probe_step(
    call: SystemCall,
    task: str,
    preset: Preset,
    *,
    round_number: int,
    batches: int | None,
    operations: int | None,
) -> Step:
    place = task.partition("/")[2] or "tmpfs"
    each = operations or operations_of(call, task)
    command = ["excise-probe", "run", "--workload", call.name, "--operations", str(each)]
    command += [
        "--batches",
        str(batches or call.batches),
        "--directory",
        f"/excise/{place}",
        *preset.probe_options,
    ]
    return Step(task=task, command=tuple(command), round=round_number, probe=True)


def distinct(name: str) -> Plan | None:
    """Return the plan that `files:N` or `exec:N` stands for, None for any other name.

    Raises:
        UsageError: If there is no number after the colon.
    """
    kind, _, number = name.partition(":")
    if kind not in ("files", "exec"):
        return None
    if not number.isdigit() or not int(number):
        raise UsageError("needs a number, as in files:100", source=f"workload {name}")
    return distinct_files(int(number), read=kind == "files")


def distinct_files(count: int, *, read: bool = True) -> Plan:
    """Return the plan that reads (or executes) many distinct files: one IMA entry each.

    Args:
        count: Number of files.
        read: Read them; else execute each as a program.
    """
    files = proof_files()
    for number in range(count):
        data = f"{number}\n" if read else f"#!/bin/busybox true\n# {number}\n"
        files[f"many/{number // 1000:03d}/{number:06d}"] = WorkFile(
            data=data.encode(),
            mode=0o644 if read else 0o755,
            selinux="",  # two attributes would not fit the inode, and cost each file a block more
        )
    action = "cat" if read else "sh -c 'for f; do $f; done' sh"
    text = f"find /excise/ext4/many -type f | sort | xargs -n 500 {action} >/dev/null"
    return Plan(steps=(Step(task="distinct_files", command=("sh", "-c", text)),), files=files)


def command(*words: str, preset: Preset, repetitions: int = 1, through_probe: bool = False) -> Plan:
    """Return the plan that runs a command that the guest has, several times.

    Args:
        words: Program and arguments.
        preset: Whose probe options confine the command.
        repetitions: How often it is run.
        through_probe: Start it by the probe also where nothing confines it, so that the probe's
            start is no part of a difference.
    """
    wrapper: tuple[str, ...] = ()
    if preset.probe_options or through_probe:
        inside = ("--directory", "/excise/tmpfs") if "--landlock" in preset.probe_options else ()
        wrapper = ("excise-probe", "exec", *preset.probe_options, *inside, "--")
    steps = tuple(
        Step(task=" ".join(words), command=(*wrapper, *words), round=number, must_work=False)
        for number in range(repetitions)
    )
    return Plan(steps=steps, files=proof_files())


def boot_only() -> Plan:
    """Return the plan that runs nothing: the boot itself is what is looked at."""
    return Plan(steps=(), files=proof_files())
