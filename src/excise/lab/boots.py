"""Boots of one guest under several kernels, command lines and IMA policies, as a capture.

Boots are made in rounds, each configuration once a round and each round begun by another one, so
that a load on the host that comes and goes does not fall on one of them alone.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final, Self, get_args

import msgspec

from excise import __version__
from excise.capture import store
from excise.capture.journal import Record, Run, Session
from excise.capture.manifest import Fact, Manifest
from excise.clock import Clock
from excise.collect.tpm.info import HMAC_OPTION
from excise.errors import UsageError
from excise.lab.boot_policies import boot_policy
from excise.lab.boot_stages import (
    BOOT,
    PLAIN_EXTENDS,
    boot_of_guest,
    boot_records,
)
from excise.lab.effects import Expectation
from excise.lab.jobs import GuestFailure, GuestJob, Progress, run_all
from excise.lab.kernels import resolve
from excise.lab.machine import DEBIAN_MEMORY_MIB, Machine, Root
from excise.lab.plan import Plan
from excise.lab.record import lab_facts, no_results, raw_files
from excise.lab.result import GuestResult, clock_of, file_safe
from excise.lab.tpm_traffic import counting
from excise.lab.workloads import boot_only, distinct_files
from excise.units import counted

# The kernel tests its timer for ten ticks, and panics where a loaded host delivers them too late.
_TIMER: Final = "no_timer_check"
_READ_FILES: Final = "find /excise/ext4/many -type f | sort | xargs -n 500 cat >/dev/null\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class BootArm:
    """One configuration to boot.

    Attributes:
        configuration: Its name in tables.
        kernel: As `--kernel` takes it.
        policy: IMA policy: `off`, `few`, `tcb`, or a file.
        words: Words for the kernel's command line.
        files: New files that init reads before it is done; with root `initramfs`.
    """

    configuration: str
    kernel: str
    policy: str = "tcb"
    words: tuple[str, ...] = ()
    files: int = 0

    def job(self, machine: Machine, *, counted: bool = True) -> GuestJob:
        """Return the guest of one boot, with the proof of what it was to boot with.

        Args:
            machine: What all configurations have in common.
            counted: Whether commands to the TPM are counted, by a probe on the way to it.

        Raises:
            HostError: If the kernel cannot be had.
            UsageError: If there is no such policy.
        """
        policy = boot_policy(self.policy)
        found = counting(policy) if counted else policy
        config = resolve(self.kernel).config
        return GuestJob(
            configuration=self.configuration,
            machine=msgspec.structs.replace(
                machine,
                kernel=self.kernel,
                mode="tpm",
                cmdline=" ".join([*self._own_words(), *machine.cmdline.split(), *self.words]),
            ),
            preset=dataclasses.replace(
                found,
                mounted=found.mounted + (_READ_FILES if self.files else ""),
                expectations=(*found.expectations, *self.expectations(config)),
            ),
            plan=Plan(steps=(), files=distinct_files(self.files).files)
            if self.files
            else boot_only(),
        )

    def _own_words(self) -> list[str]:
        """Return the lab's words: a log of initcalls needs more room than the kernel's own."""
        return [_TIMER, *(["log_buf_len=4M"] if "initcall_debug" in self.words else [])]

    def expectations(self, config: dict[str, str]) -> list[Expectation]:
        """Return what shows in a guest that the HMAC sessions of its kernel are as asked.

        Args:
            config: The kernel's build options; none where they are not known.
        """
        if not config:
            return []
        if config.get(HMAC_OPTION) != "y":
            return [Expectation(fact="tpm_null_name", rule="absent", expected="")]
        plain = PLAIN_EXTENDS in self.words
        expected = "^(1|Y)$" if plain else "^(0|N)$"
        return [
            Expectation(fact="tpm_null_name", rule="matches", expected="^[0-9a-f]{68}$"),
            Expectation(fact="tpm_disable_pcr_integrity", rule="matches", expected=expected),
        ]


def boot_machine(base: Machine | None = None, *, root: str = "debian") -> Machine:
    """Return the machine of boots: TPM mode, by default with Debian's systemd as root.

    Raises:
        UsageError: If there is no such root.
    """
    if root not in get_args(Root):
        raise UsageError(f"is {' or '.join(get_args(Root))}", source=f"root {root}")
    machine = base or Machine()
    memory = max(machine.memory_mib, DEBIAN_MEMORY_MIB) if root == "debian" else machine.memory_mib
    return msgspec.convert(
        {**msgspec.to_builtins(machine), "mode": "tpm", "rootfs": root, "memory_mib": memory},
        Machine,
    )


def boot_arms(
    *,
    kernels: Sequence[str],
    policies: Sequence[str],
    words: Sequence[str] = (),
    files: Sequence[int] = (0,),
) -> list[BootArm]:
    """Return one configuration for each kernel, policy and number of files, named by what differs.

    Args:
        kernels: As `--kernel` takes them.
        policies: IMA policies.
        words: Words for the kernel's command line.
        files: Numbers of new files that init reads.

    Raises:
        UsageError: If two would be the same.
    """
    arms = []
    for kernel, policy, count in product(kernels, policies, files):
        names = [Path(policy).stem if "/" in policy else policy]
        if len(kernels) > 1:
            names.insert(0, Path(kernel).name)
        if len(files) > 1:
            names.append(counted(count, "file"))
        arms.append(
            BootArm(
                configuration=" ".join(names),
                kernel=kernel,
                policy=policy,
                words=tuple(words),
                files=count,
            )
        )
    _require_distinct(arms)
    return arms


def _require_distinct(arms: Sequence[BootArm]) -> None:
    for name, count in Counter(arm.configuration for arm in arms).items():
        if count > 1:
            raise UsageError(f"{count} configurations are called {name!r}")


def run_boots(
    arms: Sequence[BootArm],
    *,
    machine: Machine,
    boots: int,
    output: Path,
    title: str,
    parallel: int = 1,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> list[GuestFailure]:
    """Boot every configuration several times into a capture; return the boots that failed.

    A capture of the same boots that was cut short is continued: boots it holds are not repeated.

    Args:
        arms: Configurations; others are compared with the first.
        machine: The machine that all have in common; see `boot_machine`.
        boots: Boots of each.
        output: The capture.
        title: Its title.
        parallel: Guests at a time.
        on_progress: Called at each stage of each guest.

    Raises:
        UsageError: If two configurations have one name, or the capture is of other boots.
        HostError: If a kernel cannot be had.
    """
    _require_distinct(arms)
    jobs = {arm.configuration: arm.job(machine) for arm in arms}
    with BootCapture(
        output,
        jobs=list(jobs.values()),
        arms=arms,
        title=title,
        baseline=arms[0].configuration,
    ) as capture:
        planned = in_rounds(list(jobs.values()), boots=boots, done=capture.done)
        outcomes = run_all(
            planned, parallel=parallel, on_progress=on_progress, on_result=capture.add
        )
    return [each for each in outcomes if isinstance(each, GuestFailure)]


def in_rounds(jobs: Sequence[GuestJob], *, boots: int, done: Mapping[str, int]) -> list[GuestJob]:
    """Return the boots that are missing, in rounds, each begun by another configuration.

    Args:
        jobs: Each configuration's guest.
        boots: Boots of each.
        done: Boots by configuration that were made already.
    """
    return [
        job
        for number in range(boots)
        for job in (*jobs[number % len(jobs) :], *jobs[: number % len(jobs)])
        if number >= done.get(job.configuration, 0)
    ]


class BootCapture:
    """A capture that boots are written to, each on disk as soon as its guest has ended.

    Attributes:
        done: Boots by configuration.
        next_sequence: Number of the next run.
    """

    def __init__(
        self,
        path: Path,
        *,
        jobs: Sequence[GuestJob],
        arms: Sequence[BootArm],
        title: str,
        baseline: str,
    ) -> None:
        """Make the capture, or open one of the same boots.

        Raises:
            CaptureError: If the path exists and is no capture, or is sealed.
            UsageError: If it holds other boots.
        """
        campaign: dict[str, Any] = {
            "kind": "boots",
            "configurations": [
                {
                    "name": arm.configuration,
                    "kernel": job.machine.kernel,
                    "ima_policy": arm.policy,
                    "cmdline": list(arm.words),
                    "files": arm.files,
                }
                for arm, job in zip(arms, jobs, strict=True)
            ],
        }
        self.done: Counter[str] = Counter()
        self.next_sequence = 0
        self._proven: set[str] = set()
        if (path / store.MANIFEST).is_file():
            self._capture = store.Capture.open(path)
            self._take_over(campaign)
            state = "resumed"
        else:
            clocks = [Clock(name=clock_of(jobs[0].machine)), Clock(name="host", resolution_ns=1e7)]
            manifest = Manifest(
                id=store.new_id(),
                created=store.now(),
                title=title,
                origin="measured",
                excise_version=__version__,
                baseline=baseline,
                campaign=campaign,
                host_facts=[*lab_facts(jobs, clocks=[clock_of(jobs[0].machine)]), *_kernels(jobs)],
                clocks=clocks,
                notes=["Stages firmware and shutdown are seen from outside, in the host's time."],
            )
            self._capture = store.Capture.create(path, manifest)
            state = "started"
        self._capture.append(
            Session(
                state="resumed" if state == "resumed" else "started",
                at=store.now(),
                excise_version=__version__,
                runs_done=self.next_sequence,
            )
        )

    def _take_over(self, campaign: dict[str, Any]) -> None:
        """Count the boots of a capture that was cut short."""
        capture = self._capture
        if capture.manifest.campaign != campaign:
            capture.close()
            raise UsageError(
                "holds other boots, so it cannot be continued",
                source=str(capture.path),
                hint="Give another capture with -o",
            )
        for record in store.journal_records(capture.path):
            if isinstance(record, Run):
                self.seen(record)

    def seen(self, run: Run) -> None:
        """Note a run that the capture already holds."""
        self.next_sequence = max(self.next_sequence, run.sequence + 1)
        if run.task == BOOT:
            self.done[run.configuration] += 1

    def add(self, outcome: GuestResult | GuestFailure) -> None:
        """Write one boot with its raw files and the proof of its configuration, or its failure."""
        if isinstance(outcome, GuestFailure):
            self._capture.append(no_results(outcome))
            return
        name = outcome.configuration
        number = self.done[name]
        for each, data in raw_files(outcome).items():
            self.keep_raw(f"{file_safe(name)}.{number}.{each}", data)
        records = boot_records(
            boot_of_guest(outcome),
            configuration=name,
            first_sequence=self.next_sequence,
            run=number,
            clock=outcome.clock,
        )
        self.write(outcome, records)
        self.done[name] += 1

    def keep_raw(self, name: str, data: bytes) -> None:
        """Keep a raw file, in place of one that a session left whose journal lines were lost."""
        self._capture.replace_raw(name, data)

    def write(self, outcome: GuestResult, records: Sequence[Record]) -> None:
        """Write a guest's records, and the proof of its configuration where it is the first."""
        effects = list(outcome.effects) if outcome.configuration not in self._proven else []
        self._proven.add(outcome.configuration)
        self._capture.extend([*effects, *records])
        self.next_sequence += sum(isinstance(record, Run) for record in records)

    def close(self, *, state: str = "finished") -> None:
        """Write the end of the session and close the capture."""
        self._capture.append(
            Session(
                state="finished" if state == "finished" else "interrupted",
                at=store.now(),
                runs_done=self.next_sequence,
            )
        )
        self._capture.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(state="finished" if kind is None else "interrupted")


def _kernels(jobs: Sequence[GuestJob]) -> list[Fact]:
    found = []
    for job in jobs:
        kernel = resolve(job.machine.kernel)
        built_in = kernel.config.get(HMAC_OPTION) == "y"
        hmac = ("built in" if built_in else "not built in") if kernel.config else "unknown"
        found.append(
            Fact(
                name=f"lab.kernel.{job.configuration}",
                value=f"{kernel.release} ({kernel.package or kernel.name}), TPM HMAC sessions "
                f"{hmac}",
            )
        )
    return found
