"""Whether readings can be of one boot: what two files both tell of it must agree.

systemd prints the same time stamps in several ways, which agree to the digits printed; the kernel's
log has a clock of its own. Stages in common decide; where there are none, the time of a target and
the times of units do. A unit that was started again has another time in a later file, so that what
counts is a difference in most of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from excise.errors import FormatError
from excise.formats import dmesg
from excise.formats.model import Reading
from excise.formats.systemd_analyze import BOOT, UNITS
from excise.units import format_ns

STAGE: Final = "stage"
USERSPACE: Final = "userspace"
# systemd-analyze prints milliseconds: two roundings of one time stamp, and of a difference of two.
_ROUNDING_NS: Final = 2_000_000
# The log counts from where its clock began, on large machines seconds before the monotonic clock.
_LOG_CLOCK_NS: Final = 2_000_000_000
_LOG_CLOCK_RATIO: Final = 0.05
_RELEASE: Final = "kernel.release"


def require_same_boot(readings: Sequence[tuple[str, Reading]], *, source: str | None) -> None:
    """Refuse readings that contradict each other, or themselves.

    Args:
        readings: The name of each file and what it tells.
        source: Name of all of them for errors; None where the names of the files say enough.

    Raises:
        FormatError: If two of them cannot be of one boot, saying what differs.
    """
    told = [_Told.of(name, reading) for name, reading in readings]
    for each in told:
        if each.twice:
            raise FormatError(
                f"has {each.twice} more than once, as the outputs of several boots have",
                source=each.name,
                hint="Give the files of one boot",
            )
    for one, other in combinations(told, 2):
        if what := _contradiction(one, other):
            raise FormatError(
                f"{one.name} and {other.name} are not of one boot: {what}",
                source=source,
                hint="Import the files of each boot by a call of its own: each call adds one boot",
            )


def stage_lengths(reading: Reading, *, sequence: int) -> dict[str, int]:
    """Return the nanoseconds of each stage of a run."""
    return {
        event.event: round(event.value)
        for event in reading.events
        if event.sequence == sequence and event.layer == STAGE and event.parent is None
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What a file tells of its boot, in nanoseconds by name."""

    name: str
    of_log: bool
    release: str
    stages: Mapping[str, int]
    targets: Mapping[str, int]
    units: Mapping[str, int]
    twice: str  # a unit that stands in it more than once; "" if none does

    @classmethod
    def of(cls, name: str, reading: Reading) -> _Told:
        """Return what a reading tells."""
        tasks = {run.sequence: run.task for run in reading.runs}
        boot = next((run.sequence for run in reading.runs if run.task == BOOT), -1)
        blamed = [
            (event.event, round(event.value))
            for event in reading.events
            if event.layer == "unit" and tasks[event.sequence] == UNITS
        ]
        targets = {e.event: round(e.value) for e in reading.events if e.layer == "target"}
        chain = {e.event: round(e.value) for e in reading.events if e.layer == "critical-chain"}
        stages = stage_lengths(reading, sequence=boot)
        release = next((f.value for f in reading.facts if f.name == _RELEASE), "")
        return cls(
            name=name,
            of_log=reading.format == dmesg.NAME and USERSPACE not in stages,
            release=str(release or ""),
            stages=stages,
            targets=targets,
            units={unit: length for unit, length in (chain | dict(blamed)).items() if length},
            twice=next((u for u, n in Counter(unit for unit, _ in blamed).items() if n > 1), ""),
        )


def _contradiction(one: _Told, other: _Told) -> str:
    """Return what differs between two files, or an empty text where nothing does."""
    if one.release and other.release and one.release != other.release:
        return f"kernel {one.release} in the one, {other.release} in the other"
    if one.of_log != other.of_log:
        log, systemd = (one, other) if one.of_log else (other, one)
        return _against_log(log, systemd)
    if differing := _first(_differing(one.stages, other.stages), one, other):
        return differing
    if one.stages.keys() & other.stages.keys():
        return ""
    if differing := _first(_differing(one.targets, other.targets), one, other):
        return differing
    differing_units = list(_differing(one.units, other.units))
    if 2 * len(differing_units) > len(one.units.keys() & other.units.keys()):
        return _first(differing_units, one, other)
    return ""


_Pair = tuple[str, int, int]


def _differing(one: Mapping[str, int], other: Mapping[str, int]) -> Iterator[_Pair]:
    for name, length in one.items():
        if name in other and abs(length - other[name]) > _ROUNDING_NS:
            yield name, length, other[name]


def _first(pairs: Iterable[_Pair], one: _Told, other: _Told) -> str:
    for name, ours, theirs in pairs:
        return f"{name} took {_digits(ours)} in {one.name}, and {_digits(theirs)} in {other.name}"
    return ""


def _digits(length_ns: int) -> str:
    """Return a time with all digits that tell it from another."""
    text = format_ns(length_ns)
    return text if length_ns < 1_000_000_000 else f"{length_ns / 1e9:.3f} s"


def _against_log(log: _Told, systemd: _Told) -> str:
    """Return how the start of user space differs between the kernel's log and systemd.

    The log names it when systemd says its version, which is after the policies of security modules
    were loaded: any time before the end of user space.
    """
    before = ("kernel", "initrd")
    if "kernel" not in log.stages or "kernel" not in systemd.stages:
        return ""
    logged = sum(log.stages.get(name, 0) for name in before)
    began = sum(systemd.stages.get(name, 0) for name in before)
    ended = began + systemd.stages.get(USERSPACE, 0)
    slack = _LOG_CLOCK_NS + round(_LOG_CLOCK_RATIO * ended)
    latest = ended if "initrd" in log.stages else began
    # A log without an initrd has the start of whatever init is, also of an initrd's.
    earliest = began if "initrd" in log.stages else 0
    if earliest - slack <= logged <= latest + slack:
        return ""
    return (
        f"user space began {_digits(began)} after the kernel in {systemd.name}, and "
        f"{_digits(logged)} after it in {log.name}"
    )
