"""What one RA_PERF mark costs on this machine, in Python and in C."""

from __future__ import annotations

import io
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from statistics import median
from time import monotonic_ns
from typing import Final

from excise.errors import HostError
from excise.perf import Recorder

_ROUNDS: Final = 200
_MARKS: Final = 4096  # RA_PERF_CAPACITY of perf_cost.c
_COMPILERS: Final = ("cc", "gcc", "clang")


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkCost:
    """What one mark costs: two readings of the clock, and what is done beside them.

    Attributes:
        language: `C` or `Python`.
        mark_ns: Nanoseconds of a mark, median of the rounds; for Python less an empty loop's.
        clock_ns: Nanoseconds of the two readings alone, measured in the same rounds.
        beside_ns: Nanoseconds beside the clock, median of the rounds' differences.
        rounds: Rounds, each of 4,096 marks.
    """

    language: str
    mark_ns: float
    clock_ns: float
    beside_ns: float
    rounds: int


def header() -> str:
    """Return the text of `ra_perf.h`."""
    return _resource("ra_perf.h")


def python_cost() -> MarkCost:
    """Return what a mark of `excise.perf` costs, measured here and now (half a second)."""
    recorder = Recorder(capacity=_MARKS, enabled=True, file=io.StringIO())
    measure = recorder.measure
    pairs = []
    for _ in range(_ROUNDS):
        began_ns = monotonic_ns()
        for _ in range(_MARKS):
            with measure("host", "empty"):
                pass
        marked_ns = monotonic_ns() - began_ns
        recorder.flush()
        began_ns = monotonic_ns()
        for _ in range(_MARKS):
            monotonic_ns()
            monotonic_ns()
        clocked_ns = monotonic_ns() - began_ns
        began_ns = monotonic_ns()
        for _ in range(_MARKS):
            pass
        empty_ns = monotonic_ns() - began_ns
        pairs.append((marked_ns - empty_ns, clocked_ns - empty_ns))
    return _cost("Python", pairs)


def c_cost(compiler: str | None = None) -> MarkCost:
    """Return what a mark of `ra_perf.h` costs, compiled with -O2 and measured here and now.

    Args:
        compiler: C compiler; `cc`, `gcc` or `clang` when None, whichever is there.

    Raises:
        HostError: If there is no compiler, or it cannot compile the header.
    """
    candidates = (compiler,) if compiler else _COMPILERS
    found = next(filter(None, map(shutil.which, candidates)), None)
    if found is None:
        raise HostError(
            f"there is no C compiler ({', '.join(candidates)})",
            hint="Install one (Debian: apt install gcc), or measure Python alone",
        )
    with tempfile.TemporaryDirectory(prefix="excise-") as name:
        folder = Path(name)
        for file in ("ra_perf.h", "perf_cost.c"):
            (folder / file).write_text(_resource(file))
        words = [found, "-std=c99", "-O2", "-o", str(folder / "cost"), str(folder / "perf_cost.c")]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise HostError(f"{found} cannot compile ra_perf.h: {done.stderr.strip()[:500]}")
        printed = subprocess.run([folder / "cost"], capture_output=True, text=True, check=True)
    rows = [line.split() for line in printed.stdout.splitlines()]
    return _cost("C", [(int(marked), int(clocked)) for marked, clocked in rows])


def _cost(language: str, rounds_ns: list[tuple[int, int]]) -> MarkCost:
    return MarkCost(
        language=language,
        mark_ns=median(marked for marked, _ in rounds_ns) / _MARKS,
        clock_ns=median(clocked for _, clocked in rounds_ns) / _MARKS,
        beside_ns=median(marked - clocked for marked, clocked in rounds_ns) / _MARKS,
        rounds=len(rounds_ns),
    )


def _resource(name: str) -> str:
    return resources.files("excise").joinpath("data", name).read_text(encoding="utf-8")
