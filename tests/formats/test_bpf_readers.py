"""bpftrace as text and JSON, and bcc's histograms."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from excise.errors import FormatError
from excise.formats.model import Options, Reading
from excise.formats.registry import read
from trace_inputs import BCC, BPFTRACE, BPFTRACE_JSON


def _read(data: str | bytes) -> Reading:
    raw = data.encode() if isinstance(data, str) else data
    return read(raw, options=Options(source="bpf"))


def _histogram(reading: Reading, event: str) -> dict[str, float | None]:
    return {
        r.labels: r.count
        for r in reading.aggregates
        if r.event == event and r.metric == "histogram"
    }


def test_maps_statistics_and_histograms_of_bpftrace() -> None:
    reading = _read(BPFTRACE)
    values = {(r.event, r.labels): r.mean for r in reading.aggregates if r.metric == "value"}
    assert values == {("@", "key=gcc  4142"): 2, ("@", ""): 7}
    [statistic] = [row for row in reading.aggregates if row.metric == "statistic"]
    assert (statistic.count, statistic.mean, statistic.sum) == (2, 6, 12)
    assert _histogram(reading, "@h") == {
        "key=cat,to=0": 2,
        "from=1,key=cat,to=2": 3,
        "from=4,key=cat,to=8": 12,
        "from=1024,key=cat,to=2048": 1,
        "from=100,key=cat": 4,
    }
    [stack] = [row for row in reading.aggregates if row.layer == "path"]
    assert (stack.labels, stack.sum) == ("path=vfs_open;do_dentry_open;security_file_open", 5)
    assert [loss.count for loss in reading.losses] == [12]
    assert any("script's own output is left out: 1 line" in note for note in reading.notes)


def test_every_entry_of_a_captured_bpftrace_text_is_a_row(shared_vectors: Path) -> None:
    text = (shared_vectors / "formats/captured/bpftrace_0.17_all.txt").read_text()
    reading = _read(text)
    values = len(re.findall(r"^@\S*\[.*\]: \d+$", text, re.M)) + len(
        re.findall(r"^@\w*: -?\d+$", text, re.M)
    )
    buckets = [int(n) for n in re.findall(r"^[\[(].*[\])] +(\d+) \|", text, re.M)]
    assert sum(row.metric == "value" for row in reading.aggregates) == values > 90
    rows = [row for row in reading.aggregates if row.metric == "histogram"]
    assert len(rows) == sum(count > 0 for count in buckets)
    assert sum(row.count or 0 for row in rows) == sum(buckets)
    assert reading.losses == []


def test_every_entry_of_a_captured_bpftrace_json_is_a_row(shared_vectors: Path) -> None:
    data = (shared_vectors / "formats/captured/bpftrace_0.17_all.ndjson").read_bytes()
    reading = _read(data)
    records = [json.loads(line) for line in data.splitlines() if line.strip()]
    maps = next(record["data"]["@"] for record in records if record["type"] == "map")
    values = {
        r.labels: r.mean for r in reading.aggregates if r.metric == "value" and r.event == "@"
    }
    assert values == {f"key={key}": float(value) for key, value in maps.items()}
    hists = [r["data"] for r in records if r["type"] in ("hist", "lhist")]
    counts = sum(b["count"] for data in hists for row in data.values() for b in row)
    assert sum(r.count or 0 for r in reading.aggregates if r.metric == "histogram") == counts
    assert reading.losses == []


def test_bpftrace_json_keeps_what_was_lost_and_what_has_no_bound() -> None:
    reading = _read(BPFTRACE_JSON)
    assert _histogram(reading, "@h") == {"to=0": 2, "from=4,to=8": 9, "from=100": 3}
    assert [loss.count for loss in reading.losses] == [12]
    values = {(r.event, r.labels): r.mean for r in reading.aggregates if r.metric == "value"}
    assert values == {
        ("@", "key=touch"): 39,
        ("@", "key=cc1"): 2650,
        ("@n", ""): 4,
        ("@a", ""): 8818,
    }


def test_bcc_histograms_are_nanoseconds_of_their_function() -> None:
    reading = _read(BCC)
    assert _histogram(reading, "file_open") == {
        "from=512,process=6556,to=1024": 20,
        "from=1024,process=6556,to=2048": 4,
    }
    assert _histogram(reading, "vfs_read") == {"from=2000,process=6556,to=4000": 7}
    [mean] = [row for row in reading.aggregates if row.metric == "duration"]
    assert (mean.layer, mean.event, mean.count, mean.mean) == ("hook", "file_open", 24, 913)
    assert reading.losses == []


@pytest.mark.parametrize("text", [BPFTRACE, BPFTRACE_JSON, BCC])
def test_a_line_of_another_form_is_a_loss(text: str) -> None:
    damaged = text + ('{"type": 5}\n' if text is BPFTRACE_JSON else "@broken[1: x\n")
    before, after = _read(text), _read(damaged)
    assert len(after.losses) == len(before.losses) + 1
    assert len(after.aggregates) == len(before.aggregates)


def test_bpftrace_without_a_map_is_refused() -> None:
    with pytest.raises(FormatError, match="no entry of a map"):
        _read("Attaching 3 probes...\nhello\n")
