"""What the readers of traces and profiles share: rows of a summary, histograms, security names."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from excise.capture.journal import Aggregate
from excise.formats.model import DEFAULT_CONFIGURATION, Options
from excise.formats.trace_syscalls import canonical_syscall

DEFAULT_TASK: Final = "trace"
HOOK: Final = "hook"
LSM: Final = "lsm"
FUNCTION: Final = "function"
PATH: Final = "path"
SYSCALL: Final = "syscall"
EVENT: Final = "event"
HISTOGRAM: Final = "histogram"
INSIDE: Final = "inside"
CALIBRATION_ERROR: Final = "calibration_error"
"""By how much a cost may be off, from which a tracer's own was taken out."""
CALL_SITE: Final = "call_site"
DETAIL_METRICS: Final = frozenset(
    {"self", "interrupt", "off_cpu", INSIDE, CALL_SITE, CALIBRATION_ERROR, HISTOGRAM}
)
"""Metrics that stand beside a `duration` of the same key, and are no row of a summary."""

_MODULES = re.compile(
    r"(?:__)?(?:selinux|apparmor|tomoyo|smack|landlock|yama|loadpin|safesetid|lockdown|bpf_lsm|ima|"
    r"evm|ipe|integrity|cap|avc)_|hook_(?:path|file|inode|sb|ptrace|task|mount|move|cred|socket)_?"
)


@dataclass(slots=True)
class Values:
    """Numbers that are only kept as their sums."""

    count: int = 0
    sum: float = 0.0
    min: float = math.inf
    max: float = -math.inf
    squares: float = field(default=0.0, repr=False)

    def add(self, value: float) -> None:
        """Count a value."""
        self.count += 1
        self.sum += value
        self.min = min(self.min, value)
        self.max = max(self.max, value)

    def fields(self) -> dict[str, Any]:
        """Return count, sum, min, mean and max as an aggregate has them."""
        if not self.count:
            return {"count": 0.0}
        return {
            "count": float(self.count),
            "sum": self.sum,
            "min": self.min,
            "mean": self.sum / self.count,
            "max": self.max,
        }


def key_of(options: Options, *, task: str = "") -> dict[str, Any]:
    """Return task and configuration of a row: what the options say, else the defaults."""
    return {
        "task": options.task or task or DEFAULT_TASK,
        "configuration": options.configuration or DEFAULT_CONFIGURATION,
    }


def layer_and_event(function: str) -> tuple[str, str]:
    """Return the layer of a function and the name that it has there.

    `security_file_open` is the hook `file_open`; `selinux_file_open` is a function of a security
    module and keeps its name; all others are functions.
    """
    if function.startswith("security_") and len(function) > len("security_"):
        return HOOK, function.removeprefix("security_")
    if _MODULES.match(function):
        return LSM, function
    return FUNCTION, function


def is_security(function: str) -> bool:
    """Return whether a function is a hook of the LSM framework or belongs to a security module."""
    return layer_and_event(function)[0] != FUNCTION


def histogram_rows(
    buckets: Iterable[tuple[float, float | None, float | None]], **key: Any
) -> list[Aggregate]:
    """Return one row a bucket in use: `labels` say `from=` and `to=`, `count` how many.

    Args:
        buckets: Count, smallest value (None: none), and the value above the largest (None: none).
        **key: Task, configuration, layer, event, unit of the values, further labels.
    """
    further = key.pop("labels", "")
    rows = []
    for count, low, high in buckets:
        if not count:
            continue
        labels = [*further.split(",")] if further else []
        labels += [] if low is None else [f"from={low:.15g}"]
        labels += [] if high is None else [f"to={high:.15g}"]
        rows.append(
            Aggregate(metric=HISTOGRAM, count=float(count), labels=",".join(sorted(labels)), **key)
        )
    return rows


def label(name: str, value: str) -> str:
    """Return `name=value` with the signs that part labels replaced."""
    return f"{name}={re.sub(r'[,=|]', ' ', value).strip()}"


def labels_of(text: str) -> dict[str, str]:
    """Return the `name=value` pairs of a row's labels."""
    pairs = (part.partition("=") for part in text.split(",") if part)
    return {name: value for name, _, value in pairs}


def syscall_key(options: Options, name: str) -> dict[str, Any]:
    """Return task, configuration, layer and event of a system call's row, by its one name.

    The system call is the task, unless the task's name was given: then it is an event of that.
    """
    name = canonical_syscall(name)
    return {
        **key_of(options, task=name),
        "layer": SYSCALL,
        "event": name if options.task else "",
    }
