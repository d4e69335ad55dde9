"""Histograms of bcc's tools: funclatency, biolatency, syscount -L and the like.

Source: iovisor/bcc, src/python/bcc/table.py and the tools; libbpf-tools print alike.
"""

from __future__ import annotations

import re
from typing import Any, Final

from excise.capture.journal import Aggregate, Loss
from excise.clock import Clock
from excise.errors import FormatError
from excise.formats.model import Format, Options, Reading
from excise.formats.text import lines, loss, merged_losses
from excise.formats.trace_rows import FUNCTION, histogram_rows, key_of, layer_and_event

NAME: Final = "bcc-histogram"
_LONGEST: Final = 2000
_HEAD = re.compile(r"\s*(?P<unit>\S+(?: \S+)?)\s+: count\s+distribution\s*")
_BUCKET = re.compile(
    r"\s*(?P<low>\d{1,19}) -> (?P<high>\d{1,19})\s*: (?P<count>\d{1,19})\s*\|[* +]*\|\s*"
)
_LINEAR = re.compile(r"\s*(?P<low>\d{1,19})\s+: (?P<count>\d{1,19})\s*\|[* +]*\|\s*")
_SECTION = re.compile(r"(?P<name>[A-Za-z][\w ]{0,40}) = (?P<value>\S.{0,200})")
_AVERAGE = re.compile(
    r"avg = (?P<average>\d{1,19}) (?P<unit>\w+), total: (?P<total>\d{1,19}) \w+, "
    r"count: (?P<count>\d{1,19})\s*"
)
_TALK = re.compile(r"\s*(?:\^C|Tracing|Detaching|Hit Ctrl-C|Attaching|\d\d:\d\d:\d\d).*")
_NS_PER: Final = {"nsecs": 1.0, "usecs": 1e3, "msecs": 1e6, "secs": 1e9}


def detect(head: bytes) -> float:
    """Return 0.95 if a heading of a histogram and a bucket under it stand there."""
    text = [line for line in lines(head[:32_768]) if len(line) <= _LONGEST]
    heads = any(_HEAD.fullmatch(line) for line in text)
    return 0.95 if heads and any(map(_bucket, text)) else 0.0


def read(data: bytes, options: Options) -> Reading:
    """Return the buckets in use of each histogram, and its mean where that is printed.

    Raises:
        FormatError: If there is no histogram.
    """
    found = _Found(options)
    for number, line in enumerate(lines(data), start=1):
        reason = (
            found.take(line) if len(line) <= _LONGEST else "a line longer than 2,000 characters"
        )
        if reason:
            found.losses.append(loss(options.source, number, reason, line))
    found.close()
    if not found.rows:
        first = found.losses[0].line if found.losses else 1
        raise FormatError("there is no histogram", source=options.source, line=first)
    return Reading(
        format=NAME,
        aggregates=found.rows,
        losses=merged_losses(found.losses),
        clock=Clock(name="bpf_ktime_get_ns, as far as units are times"),
    )


def _bucket(line: str) -> re.Match[str] | None:
    return _BUCKET.fullmatch(line) or _LINEAR.fullmatch(line)


class _Found:
    """Histograms as they are read: a section names what the next ones are about."""

    def __init__(self, options: Options) -> None:
        self.rows: list[Aggregate] = []
        self.losses: list[Loss] = []
        self._options = options
        self._section = ""
        self._factor = 1.0
        self._place: dict[str, Any] = {}
        self._buckets: list[tuple[float, float | None, float | None]] = []

    def take(self, line: str) -> str:
        """Take a line; return why it is lost, or ""."""
        if head := _HEAD.fullmatch(line):
            self.close()
            self._factor = _NS_PER.get(head["unit"], 1.0)
            self._place = _place(self._options, self._section, head["unit"])
        elif bucket := _bucket(line):
            if not self._place:
                return "a bucket without a heading"
            low = float(bucket["low"])
            high = float(bucket.groupdict().get("high") or low) + 1
            ends = (low * self._factor, high * self._factor)
            self._buckets.append((float(bucket["count"]), *ends))
        elif average := _AVERAGE.fullmatch(line):
            self.close()
            self.rows.append(_mean(average, self._options, self._section))
        elif section := _SECTION.fullmatch(line):
            self.close()
            self._section = _plain(section["value"])
        elif line.strip() and not _TALK.fullmatch(line):
            return "not a line of a histogram"
        return ""

    def close(self) -> None:
        """End the open histogram."""
        self.rows += histogram_rows(self._buckets, **self._place)
        self._buckets, self._place = [], {}


def _plain(value: str) -> str:
    """Return `vfs_read` of `b'vfs_read' [1234]`."""
    return re.sub(r"^b['\"](.*?)['\"]", r"\1", value.strip())


def _place(options: Options, section: str, unit: str) -> dict[str, Any]:
    name, _, process = section.partition(" ")
    layer, event = layer_and_event(name) if name else (FUNCTION, "all")
    thread = re.sub(r"[^\w]", "", process)
    return {
        **key_of(options),
        "layer": layer,
        "event": event,
        "labels": f"process={thread}" if thread else "",
        "unit": "ns" if unit in _NS_PER else unit,
    }


def _mean(average: re.Match[str], options: Options, section: str) -> Aggregate:
    factor = _NS_PER.get(average["unit"], 1.0)
    return Aggregate(
        **_place(options, section, average["unit"]),
        metric="duration" if average["unit"] in _NS_PER else "value",
        count=float(average["count"]),
        sum=float(average["total"]) * factor,
        mean=float(average["average"]) * factor,
    )


FORMAT: Final = Format(
    name=NAME, title="histograms of bcc's tools (funclatency, ...)", detect=detect, read=read
)
