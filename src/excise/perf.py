"""Time the steps of a program, one `RA_PERF` line a step, at little cost beside the clock's.

Marks go into a buffer of set size and are printed in one batch after the last time stamp, so that
printing is in no measurement; what printing itself took is the batch's last line, `perf_flush`.
Marks beyond the buffer are counted and told in a line of their own, `perf_overflow`.

    from excise.perf import Recorder

    perf = Recorder(key="plain")
    for _ in range(31):
        with perf.measure("host", "total"):
            with perf.measure("host", "evidence_get"):
                token = attest()
        perf.flush()

The line is `RA_PERF|<layer>|<event>|<duration_us>|key=<mode>`, as in iisec-suzaki/optee-ra,
docs/performance-measurement.md; `excise import` reads it wherever it stands in a log. The same
for C is `ra_perf.h` (`excise perf header` prints it).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from time import monotonic_ns
from typing import Final, ParamSpec, TextIO, TypeVar

from excise.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")

CAPACITY: Final = 1024
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
_KEY = re.compile(r"[a-z]{1,31}|-")
_VALUE = re.compile(r"[A-Za-z0-9_.:/+-]{0,64}")


class _Measured:
    """Two time stamps and a mark between entering and leaving; also when the step failed."""

    __slots__ = ("_began_ns", "_recorder", "_where")

    def __init__(self, recorder: Recorder, where: str) -> None:
        self._recorder = recorder
        self._where = where
        self._began_ns = 0

    def __enter__(self) -> None:
        self._began_ns = monotonic_ns()

    def __exit__(self, *_: object) -> None:
        ended_ns = monotonic_ns()
        recorder = self._recorder
        if recorder._room > 0:
            recorder._room -= 1
            recorder._marks.append((self._where, ended_ns - self._began_ns))
        else:
            recorder._lost += 1


_UNMEASURED: Final = nullcontext()


class Recorder:
    """Keeps marks in memory and prints them when told to.

    Attributes:
        enabled: Whether anything is measured; a recorder that is off prints nothing.
        lost: Marks since the last flush that found no room.
    """

    __slots__ = ("_capacity", "_file", "_key", "_lost", "_marks", "_room", "_shapes", "enabled")

    def __init__(
        self,
        *,
        key: str = "-",
        capacity: int = CAPACITY,
        file: TextIO | None = None,
        enabled: bool | None = None,
    ) -> None:
        """Make a recorder.

        Args:
            key: Mode of the key that is at work: `embedded`, `plain`, `black` or `-`.
            capacity: Marks to keep at most between two flushes.
            file: Where lines go; standard error when None.
            enabled: Whether to measure; None: if the environment's RA_PERF is set and not 0.

        Raises:
            UsageError: If the key is not of the grammar, or there is no room for a mark.
        """
        if not _KEY.fullmatch(key):
            raise UsageError(f"the key mode {key!r} is not lower-case letters or -", source="key")
        if capacity < 1:
            raise UsageError("a buffer holds at least one mark", source="capacity")
        if enabled is None:
            enabled = os.environ.get("RA_PERF", "0") not in ("", "0")
        self.enabled = enabled
        self._key = key
        self._capacity = self._room = capacity
        self._file = file
        self._lost = 0
        self._marks: list[tuple[str, int]] = []
        self._shapes: dict[tuple[str, str, str], str] = {}

    @property
    def lost(self) -> int:
        """Return how many marks since the last flush found no room."""
        return self._lost

    def measure(self, layer: str, event: str, **labels: str) -> AbstractContextManager[None]:
        """Return a context manager that measures one step.

        Args:
            layer: Where it runs: `host`, `ta`, `pta` or `verifier`.
            event: Name of the step.
            labels: Further labels of the line; `key` is put in place of the recorder's.

        Raises:
            UsageError: If a name or value is not of the grammar.
        """
        if not self.enabled:
            return _UNMEASURED
        if labels:
            return _Measured(self, _shape(layer, event, {"key": self._key, **labels}))
        where = self._shapes.get((layer, event, self._key))
        if where is None:
            where = _shape(layer, event, {"key": self._key})
            self._shapes[layer, event, self._key] = where
        return _Measured(self, where)

    def timed(
        self, layer: str, event: str | None = None, **labels: str
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Return a decorator that measures every call of a function.

        Args:
            layer: As for `measure`.
            event: Name of the step; the function's own name when None.
            labels: As for `measure`.
        """

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            name = event if event is not None else function.__name__.lstrip("_")

            @wraps(function)
            def call(*args: P.args, **kwargs: P.kwargs) -> R:
                with self.measure(layer, name, **labels):
                    return function(*args, **kwargs)

            return call

        return decorate

    def note(self, layer: str, event: str, duration_ns: int, **labels: str) -> None:
        """Keep a duration that was measured elsewhere, in nanoseconds.

        Raises:
            UsageError: If a name or value is not of the grammar, or the duration is below zero.
        """
        if duration_ns < 0:
            raise UsageError(f"{layer}|{event} took {duration_ns} ns", source="duration_ns")
        if not self.enabled:
            return
        where = _shape(layer, event, {"key": self._key, **labels})
        if self._room > 0:
            self._room -= 1
            self._marks.append((where, duration_ns))
        else:
            self._lost += 1

    def flush(self, *, layer: str = "host") -> None:
        """Print what was kept, in order, then what printing took; and start anew.

        Args:
            layer: Layer of the lines that are of the recorder itself.
        """
        if not self._marks and not self._lost:
            return
        marks, lost = self._marks, self._lost
        self._marks, self._lost, self._room = [], 0, self._capacity
        file = self._file if self._file is not None else sys.stderr
        began_ns = monotonic_ns()
        file.write("".join(where % (duration_ns // 1000) for where, duration_ns in marks))
        file.flush()
        took_ns = monotonic_ns() - began_ns
        own = _shape(layer, "perf_flush", {"key": self._key}) % (took_ns // 1000)
        if lost:
            own += _shape(layer, "perf_overflow", {"key": self._key}) % lost
        file.write(own)
        file.flush()


def _shape(layer: str, event: str, labels: dict[str, str]) -> str:
    """Return a line but for its duration."""
    for name in (layer, event, *labels):
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"the name {name!r} is not lower-case letters, digits and _", source="RA_PERF"
            )
    if not _KEY.fullmatch(labels["key"]):
        raise UsageError(f"the key mode {labels['key']!r} is not lower-case letters or -")
    for name, value in labels.items():
        if not _VALUE.fullmatch(value):
            raise UsageError(f"the label {name}={value!r} has a sign the line cannot hold")
    key = labels.pop("key")
    further = "".join(f"|{name}={labels[name]}" for name in sorted(labels))
    return f"RA_PERF|{layer}|{event}|%d|key={key}{further}\n"
