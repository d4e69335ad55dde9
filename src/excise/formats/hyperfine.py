"""hyperfine's `--export-json`.

hyperfine measures one command after the other, so runs of two commands cannot be paired; user and
system time are means over a command's runs.

Source: sharkdp/hyperfine, src/benchmark/benchmark_result.rs (1.15 to 1.20).
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Final

import msgspec

from excise.capture.journal import Aggregate, Loss
from excise.clock import Clock
from excise.errors import FormatError
from excise.formats.json_text import parse_json
from excise.formats.model import Format, Options, Reading
from excise.formats.text import number_runs, seconds_to_ns

NAME: Final = "hyperfine"
DEFAULT_TASK: Final = "command"
_START = re.compile(rb'\A(?:\xef\xbb\xbf)?\s*\{\s*"results"\s*:\s*\[\s*(?:\{\s*"command"|\])')


Code = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**32)]
Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One command's result; times in seconds, memory in bytes."""

    command: str
    mean: float | None = None
    stddev: float | None = None
    median: float | None = None
    user: float | None = None
    system: float | None = None
    min: float | None = None
    max: float | None = None
    times: list[float] | None = None
    exit_codes: list[Code | None] | None = None
    memory_usage_byte: list[Size] | Size | None = None
    parameters: dict[str, Any] = {}


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file."""

    results: list[Result]


def detect(head: bytes) -> float:
    """Return 1.0 if the bytes start as hyperfine's JSON does, else 0.0."""
    return 1.0 if _START.match(head) else 0.0


def read(data: bytes, options: Options) -> Reading:
    """Return one run for each time of each command.

    The command is the configuration; where a configuration name is given, it is the task.

    Raises:
        FormatError: If it is not hyperfine's JSON; it names the field.
    """
    export = parse_json(data, Export, source=options.source)
    if not export.results:
        raise FormatError("the file has no results", source=options.source, field="results")
    drafts: list[dict[str, Any]] = []
    aggregates: list[Aggregate] = []
    losses: list[Loss] = []
    notes = ["order unknown: hyperfine runs one command after the other"]
    for number, result in enumerate(export.results):
        task, configuration = _names(result, options)
        times = _times(result, number, options.source, losses)
        _check(result, number, times, notes)
        drafts.extend(_drafts(result, times, task, configuration))
        aggregates.extend(_aggregates(result, task, configuration, whole=not times))
    return Reading(
        format=NAME,
        runs=number_runs(drafts),
        aggregates=aggregates,
        losses=losses,
        clock=Clock(name="hyperfine wall clock (monotonic)"),
        notes=[*notes, *_notes(export)],
    )


def _names(result: Result, options: Options) -> tuple[str, str]:
    """Return task and configuration of a command."""
    if options.configuration is None:
        return options.task or DEFAULT_TASK, result.command
    return options.task or result.command, options.configuration


def _times(result: Result, number: int, source: str, losses: list[Loss]) -> list[tuple[int, int]]:
    """Return (position, ns) of each time that is one."""
    times = []
    for position, value in enumerate(result.times or []):
        value_ns = seconds_to_ns(value)
        if value_ns is None:
            where = f"results[{number}].times[{position}]"
            losses.append(Loss(source=source, reason=f"{where} is no time", text=repr(value)))
        else:
            times.append((position, value_ns))
    return times


def _drafts(
    result: Result, times: list[tuple[int, int]], task: str, configuration: str
) -> list[dict[str, Any]]:
    codes = result.exit_codes or []
    memory = result.memory_usage_byte
    drafts = []
    for position, value_ns in times:
        known = position < len(codes)
        code = codes[position] if known else None
        rss = memory[position] if isinstance(memory, list) and position < len(memory) else None
        drafts.append(
            {
                "task": task,
                "configuration": configuration,
                "wall_ns": value_ns,
                "max_rss_bytes": rss,
                "exit_code": code,
                "ok": not known or code == 0,
                "error": "ended by a signal" if known and code is None else None,
            }
        )
    return drafts


def _aggregates(result: Result, task: str, configuration: str, *, whole: bool) -> list[Aggregate]:
    """Return what hyperfine gives as means only; with no times, the summary itself."""
    count = float(len(result.times)) if result.times else None
    rows = [
        Aggregate(
            task=task,
            configuration=configuration,
            metric=metric,
            unit="ns",
            count=count,
            mean=seconds * 1e9,
            note="mean over all runs of the command",
        )
        for metric, seconds in (("user", result.user), ("system", result.system))
        if seconds is not None and math.isfinite(seconds)
    ]
    if whole:
        rows.append(
            Aggregate(
                task=task,
                configuration=configuration,
                metric="duration",
                unit="ns",
                min=_ns(result.min),
                mean=_ns(result.mean),
                median=_ns(result.median),
                max=_ns(result.max),
                sd=_ns(result.stddev),
                note="the file has no single times",
            )
        )
    return rows


def _ns(seconds: float | None) -> float | None:
    return None if seconds is None or not math.isfinite(seconds) else seconds * 1e9


def _check(result: Result, number: int, times: list[tuple[int, int]], notes: list[str]) -> None:
    """Note where the file's own summary does not follow from its times."""
    if times and result.mean is not None:
        mean_ns = math.fsum(value for _, value in times) / len(times)
        if abs(mean_ns - result.mean * 1e9) > max(2.0, 1e-6 * mean_ns):
            notes.append(f"results[{number}].mean is not the mean of its times")
    zeros = sum(1 for _, value in times if value == 0)
    if zeros:
        notes.append(
            f"results[{number}]: {zeros} of {len(times)} times are 0: the shell's time that was "
            "subtracted is longer than the command"
        )


def _notes(export: Export) -> list[str]:
    notes = []
    if any(result.memory_usage_byte is not None for result in export.results):
        notes.append("max_rss is a high-water mark over all children so far, not of the single run")
    for result in export.results:
        if result.parameters:
            pairs = ", ".join(f"{key}={value}" for key, value in sorted(result.parameters.items()))
            notes.append(f"{result.command[:60]!r}: parameters {pairs}")
    return notes


FORMAT: Final = Format(name=NAME, title="hyperfine --export-json", detect=detect, read=read)
