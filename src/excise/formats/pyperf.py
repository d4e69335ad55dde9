"""pyperf's JSON, also gzipped.

A pyperf file has three levels: benchmarks, worker processes (its "runs") and values. Each value is
one run here, and `block` is the number of its process, so that values of one process are not taken
for independent. A value is a mean over `loops` × `inner_loops` operations: it is kept as
nanoseconds per operation, not as a wall time.

Source: psf/pyperf, pyperf/_bench.py (JSON versions 6 and 1.0).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Annotated, Any, Final

import msgspec

from excise.capture.journal import Loss, Phase, Probe, Run
from excise.capture.manifest import Fact
from excise.clock import Clock
from excise.errors import FormatError
from excise.formats.json_text import parse_json
from excise.formats.model import DEFAULT_CONFIGURATION, Format, Options, Reading

NAME: Final = "pyperf"
_START = re.compile(rb'\A(?:\xef\xbb\xbf)?\s*\{\s*"(?:benchmarks|metadata|version)"\s*:')
_RUNS = re.compile(rb'"runs"\s*:\s*\[\s*\{\s*"(?:metadata|values|warmups)"\s*:')
_VERSIONS: Final = ("6", "1.0")
_NUMBER = int | float
Loops = Annotated[int, msgspec.Meta(ge=1, le=2**62)]


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """One worker process: values per operation, and (loops, value) of its warm-ups."""

    values: list[float] = []
    warmups: list[tuple[Loops, float]] = []
    metadata: dict[str, Any] = {}


class Benchmark(msgspec.Struct, frozen=True, kw_only=True):
    """One benchmark."""

    runs: list[Process]
    metadata: dict[str, Any] = {}


class Suite(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file; `metadata` is what all benchmarks have in common."""

    benchmarks: list[Benchmark]
    metadata: dict[str, Any] = {}
    version: str | int = ""


# Metadata worth keeping as host facts: name here, and whether it must agree to compare.
_FACTS: Final[dict[str, tuple[str, bool, bool]]] = {
    "cpu_model_name": ("cpu.model", True, False),
    "cpu_count": ("cpu.count", True, False),
    "cpu_config": ("cpu.configuration", True, False),
    "cpu_affinity": ("cpu.affinity", True, False),
    "aslr": ("kernel.aslr", True, False),
    "platform": ("platform", True, False),
    "python_version": ("python.version", True, False),
    "python_implementation": ("python.implementation", True, False),
    "perf_version": ("pyperf.version", False, False),
    "timer": ("timer", False, False),
    "hostname": ("hostname", False, True),
}


def detect(head: bytes) -> float:
    """Return 1.0 if the bytes start as pyperf's JSON does, else 0.0."""
    return 1.0 if _START.match(head) and _RUNS.search(head) else 0.0


def read(data: bytes, options: Options) -> Reading:
    """Return one run for each value and warm-up; the benchmark's name is the task.

    Raises:
        FormatError: If it is not pyperf's JSON, of a version that is not known, or empty.
    """
    suite = parse_json(data, Suite, source=options.source)
    if str(suite.version) not in _VERSIONS:
        known = " and ".join(_VERSIONS)
        raise FormatError(
            f"version {suite.version!r} of pyperf's JSON is not known",
            source=options.source,
            line=1,
            field="version",
            hint=f"Known versions: {known}; `pyperf convert` writes the newest",
        )
    runs: list[Run] = []
    losses: list[Loss] = []
    seen: Counter[str] = Counter()
    for number, benchmark in enumerate(suite.benchmarks):
        common = {**suite.metadata, **benchmark.metadata}
        task = options.task or str(common.get("name") or f"benchmark {number}")
        for order, process in enumerate(benchmark.runs):
            values = _Values(f"benchmarks[{number}].runs[{order}]", task, order, options, losses)
            values.add(process, {**common, **process.metadata}, str(suite.version))
            for run in values.runs:
                runs.append(msgspec.structs.replace(run, sequence=len(runs), run=seen[task]))
                seen[task] += 1
    if not runs:
        raise FormatError(
            losses[0].reason if losses else "the file has no values",
            source=options.source,
            line=1,
            field="benchmarks",
        )
    return Reading(
        format=NAME,
        runs=runs,
        losses=losses,
        clock=_clock(suite),
        facts=_facts(suite),
        notes=[
            "block is the number of the worker process: values of one block are not independent",
            "order unknown: pyperf runs one benchmark after the other",
        ],
    )


class _Values:
    """The values of one process, as runs."""

    def __init__(
        self, where: str, task: str, block: int, options: Options, losses: list[Loss]
    ) -> None:
        self.runs: list[Run] = []
        self._where = where
        self._task = task
        self._block = block
        self._options = options
        self._losses = losses

    def add(self, process: Process, metadata: dict[str, Any], version: str) -> None:
        """Take warm-ups and values of a process."""
        unit = metadata.get("unit", "second")
        if unit not in ("second", "byte"):
            count = len(process.values) + len(process.warmups)
            self._lose(f"unit {unit!r} is neither time nor size", count=count)
            return
        inner = _positive(metadata.get("inner_loops"))
        loops = _positive(metadata.get("loops"))
        if not process.values and not process.warmups:
            self._lose("a process without values")
        for own_loops, value in process.warmups:
            if version == "6":  # raw values until JSON version 1.0
                value /= own_loops * inner
            self._one("warmup", value, own_loops * inner, unit)
        for value in process.values:
            self._one("measured", value, loops * inner, unit)

    def _lose(self, reason: str, *, count: int = 1) -> None:
        reason = f"{self._where}: {reason}"
        self._losses.append(Loss(source=self._options.source, reason=reason, count=count))

    def _one(self, phase: Phase, value: float, operations: int, unit: str) -> None:
        if not math.isfinite(value) or not 0.0 <= value < 9e9 or operations >= 2**63:
            self._lose(f"{value!r} is no value")
            return
        probe = None
        if unit == "second":
            probe = Probe(workload=self._task, operations=operations, op_ns=[value * 1e9])
        self.runs.append(
            Run(
                sequence=0,
                run=0,
                block=self._block,
                task=self._task,
                configuration=self._options.configuration or DEFAULT_CONFIGURATION,
                phase=phase,
                max_rss_bytes=round(value) if unit == "byte" else None,
                probe=probe,
            )
        )


def _positive(value: object) -> int:
    """Return a count from metadata; 1 where it is missing or none."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and isinstance(value, int) and value >= 1 else 1


def _all_metadata(suite: Suite) -> dict[str, Any]:
    """Return metadata of the file and its benchmarks, without what differs between them."""
    found: dict[str, list[Any]] = {}
    for metadata in [suite.metadata, *(b.metadata for b in suite.benchmarks)]:
        for name, value in metadata.items():
            found.setdefault(name, []).append(value)
    return {
        name: values[0] for name, values in found.items() if all(v == values[0] for v in values)
    }


def _clock(suite: Suite) -> Clock:
    timer = _all_metadata(suite).get("timer")
    if not isinstance(timer, str):
        return Clock(name="time.perf_counter (pyperf)")
    resolution = re.search(r"resolution: (\d{1,6}(?:\.\d{1,6})?) (ns|us|ms|sec)", timer)
    factors = {"ns": 1.0, "us": 1e3, "ms": 1e6, "sec": 1e9}
    step = float(resolution[1]) * factors[resolution[2]] if resolution else None
    return Clock(name=timer.split(",")[0][:100], resolution_ns=step)


def _facts(suite: Suite) -> list[Fact]:
    metadata = _all_metadata(suite)
    return [
        Fact(name=name, value=metadata[key], must_agree=must_agree, private=private)
        for key, (name, must_agree, private) in _FACTS.items()
        if isinstance(metadata.get(key), str | int | float)
    ]


FORMAT: Final = Format(name=NAME, title="pyperf JSON", detect=detect, read=read)
