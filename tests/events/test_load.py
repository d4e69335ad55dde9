"""From journals to tables: every record arrives, whatever wrote it, and every fault is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from captures import manifest, run, write
from excise.capture.archive import pack
from excise.capture.journal import (
    Calibration,
    Event,
    Loss,
    Probe,
    Record,
    Run,
    Session,
    encode,
)
from excise.capture.seal import seal
from excise.capture.store import JOURNAL
from excise.errors import CaptureError, FormatError, Refused
from excise.events.dataset import Dataset, tidy
from excise.events.load import from_records, load_capture
from excise.events.schema import EVENTS, RUNS

whole = st.none() | st.integers(-(2**63), 2**63 - 1)
names = st.text(max_size=12)
op_ns = st.lists(st.floats(1e-3, 1e12), min_size=1, max_size=6)
probes = st.builds(
    Probe,
    workload=names,
    operations=st.integers(1, 2**40),
    op_ns=op_ns,
    first_op_ns=st.none() | st.floats(0, 1e12),
)
runs = st.builds(
    Run,
    sequence=st.integers(0, 2**40),
    block=st.integers(0, 2**40),
    task=names,
    configuration=names,
    run=st.integers(0, 2**40),
    phase=st.sampled_from(["first", "warmup", "measured"]),
    start_ns=whole,
    wall_ns=whole,
    instructions=whole,
    exit_code=whole,
    timed_out=st.booleans(),
    ok=st.booleans(),
    stderr=st.none() | names,
    probe=st.none() | probes,
)
events = st.builds(
    Event,
    sequence=st.integers(0, 2**40),
    layer=names,
    event=names,
    value=st.floats(allow_nan=False, allow_infinity=False),
    unit=names,
    parent=st.none() | names,
    labels=names,
    start_ns=whole,
)


def loaded(*records: Record) -> Dataset:
    return from_records(records, name="d", manifest=manifest())


def median(values: list[float]) -> float:
    value: Any = pl.Series(values).median()
    return float(value)


@given(st.lists(runs, max_size=5))
def test_every_run_arrives_with_every_value(records: list[Run]) -> None:
    data = loaded(*records)
    rows = data.runs.rows(named=True)
    assert data.runs.schema == pl.DataFrame(schema=RUNS).schema
    assert len(rows) == len(records)
    for row, record in zip(rows, records, strict=True):
        for name in ("sequence", "block", "task", "configuration", "run", "phase", "start_ns"):
            assert row[name] == getattr(record, name)
        for name in ("wall_ns", "user_ns", "instructions", "exit_code", "timed_out", "ok"):
            assert row[name] == getattr(record, name)
        assert row["operations"] == (record.probe.operations if record.probe else None)
        assert row["first_op_ns"] == (record.probe.first_op_ns if record.probe else None)
        expected = median(record.probe.op_ns) if record.probe else None
        assert row["op_ns"] == pytest.approx(expected)
    batches = [(r.sequence, value) for r in records if r.probe for value in r.probe.op_ns]
    assert data.op_ns_batches.rows() == batches


@given(st.lists(events, max_size=5))
def test_every_event_arrives_with_every_value(records: list[Event]) -> None:
    data = loaded(*records)
    assert data.events.schema == pl.DataFrame(schema=EVENTS).schema
    assert data.events.rows(named=True) == [msgspec.structs.asdict(record) for record in records]


@given(st.binary(max_size=80))
def test_any_bytes_give_tables_or_one_error_with_its_line(data: bytes) -> None:
    import tempfile

    line = encode(run(0))
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "c", [])
        (path / JOURNAL).write_bytes(line + data + b"\n" + line)
        caught = None
        try:
            assert load_capture(path).runs.height >= 2
        except FormatError as error:
            caught = error
        if caught is not None:
            assert caught.line is not None
            assert 2 <= caught.line <= 2 + data.count(b"\n")
            assert caught.source == str(path / JOURNAL)
            assert caught.reason.startswith("is not a journal record: ")


def test_runs_written_by_the_launcher_and_by_us_are_one_table(tmp_path: Path) -> None:
    path = write(tmp_path / "c", [run(0), Calibration(task="t", operations=5), run(1)])
    launched = (
        b'{"kind":"run","sequence":2,"block":2,"task":"t","configuration":"none","run":2,'
        b'"phase":"measured","start_ns":5,"wall_ns":7,"user_ns":1,"system_ns":2,'
        b'"max_rss_bytes":9,"minor_faults":1,"major_faults":0,"voluntary_switches":1,'
        b'"involuntary_switches":0,"exit_code":1,"signal":null,"timed_out":false,'
        b'"max_rss_floor_bytes":4,"instructions":null,"cycles":3,"probe":{"workload":"stat",'
        b'"operations":8,"op_ns":[3.0,1.0,2.0],"clock":"x"},"ok":false,"stderr":"a\\nb"}\n'
    )
    with (path / JOURNAL).open("ab") as file:
        file.write(launched)
    data = load_capture(path, with_batches=True)
    assert data.runs.get_column("sequence").to_list() == [0, 1, 2]
    last = data.runs.row(2, named=True)
    assert (last["wall_ns"], last["exit_code"], last["signal"], last["ok"]) == (7, 1, None, False)
    assert (last["op_ns"], last["operations"], last["cycles"]) == (2.0, 8, 3)
    assert data.calibrations == (Calibration(task="t", operations=5),)
    assert data.op_ns_batches.rows() == [(2, 3.0), (2, 1.0), (2, 2.0)]
    assert load_capture(path).op_ns_batches.is_empty()


def test_a_torn_last_line_is_dropped_and_declared(tmp_path: Path) -> None:
    path = write(tmp_path / "c", [run(0), run(1)])
    content = (path / JOURNAL).read_bytes()
    (path / JOURNAL).write_bytes(content[:-9])
    data = load_capture(path)
    assert data.runs.height == 1
    (loss,) = data.losses
    assert (loss.line, loss.offset) == (2, content.index(b"\n") + 1)
    assert loss.reason == "torn last line dropped"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "EOF"),
        (b"junk", "expected value"),
        (b"\xff", "expected value"),
        (b'{"kind":"run"}', "lacks the member `sequence`"),
        (b'{"kind":"event","sequence":1,"layer":"a","event":"b","value":"x"}', "invalid type"),
        (b'{"kind":"loss"}', "missing required field `reason`"),
        (b'{"kind":"novelty"}', "Invalid value 'novelty'"),
        (encode(run(1)).rstrip(b"\n").replace(b'"first"', b'"x"').replace(b'"measured"', b'"x"'),
         "`x` is not a phase"),
    ],
)  # fmt: skip
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: bytes, reason: str) -> None:
    path = write(tmp_path / "c", [Session(state="started", at=""), run(0)])
    with (path / JOURNAL).open("ab") as file:
        file.write(line + b"\n" + encode(run(1)))
    with pytest.raises(FormatError, match="is not a journal record") as caught:
        load_capture(path)
    assert caught.value.line == 3
    assert reason in caught.value.reason
    assert caught.value.exit_code == 3


def test_the_line_of_a_fault_is_counted_over_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "c", [run(number) for number in range(500)])
    content = (path / JOURNAL).read_bytes().splitlines(keepends=True)
    content[430] = b"{}\n"
    (path / JOURNAL).write_bytes(b"".join(content))
    from excise.capture.store import journal_chunks

    monkeypatch.setattr(
        "excise.events.load.journal_chunks", lambda folder: journal_chunks(folder, chunk_bytes=3000)
    )
    with pytest.raises(FormatError, match="missing field `kind`") as caught:
        load_capture(path)
    assert caught.value.line == 431


def test_many_chunks_give_the_same_tables_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records: list[Record] = []
    for number in range(300):
        records += [run(number, task=f"t{number % 7}"), Loss(reason=str(number))]
        records.append(Event(sequence=number, layer="a", event=f"e{number % 5}", value=number))
    path = write(tmp_path / "c", records)
    plain = load_capture(path)
    from excise.capture.store import journal_chunks

    monkeypatch.setattr(
        "excise.events.load.journal_chunks", lambda folder: journal_chunks(folder, chunk_bytes=999)
    )
    chunked = load_capture(path)
    assert chunked.runs.equals(plain.runs)
    assert chunked.events.equals(plain.events)
    assert chunked.losses == plain.losses
    assert [loss.reason for loss in chunked.losses] == [str(number) for number in range(300)]
    assert plain.runs.get_column("sequence").to_list() == list(range(300))


def test_archives_and_folders_packed_whole_are_captures_too(tmp_path: Path) -> None:
    path = write(tmp_path / "c", [run(0)])
    assert load_capture(pack(path, tmp_path / "c.tar.zst")).runs.height == 1
    (tmp_path / "outer").mkdir()
    path.rename(tmp_path / "outer" / "c")
    assert load_capture(pack(tmp_path / "outer", tmp_path / "o.tar.zst")).runs.height == 1


def test_what_is_no_capture_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    write(tmp_path / "c", [])
    (tmp_path / "c" / JOURNAL).unlink()
    for name, reason in (
        ("none", "there is no such file or folder"),
        ("file", "is not a capture"),
        ("empty", "is not a capture"),
        ("none.tar.zst", "no such file"),
        ("c", "cannot be read"),
    ):
        with pytest.raises(CaptureError, match=reason) as caught:
            load_capture(tmp_path / name)
        assert name in (caught.value.source or "")


def test_a_sealed_capture_that_was_changed_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "c", [run(0)])
    (path / "raw" / "seal.json").write_text("mine")
    seal(path)
    assert load_capture(path).runs.height == 1
    (path / "raw" / "seal.json").write_text("not mine")
    with pytest.raises(Refused, match="the seal is broken") as caught:
        load_capture(path)
    assert caught.value.differences[0].startswith("raw/seal.json: changed")


def test_the_tidy_form_has_one_row_a_value() -> None:
    data = loaded(run(0, user_ns=5), run(1, max_rss_bytes=4096))
    rows = tidy(data).select("sequence", "metric", "value", "unit").rows()
    assert sorted(rows) == [
        (0, "user_ns", 5.0, "ns"),
        (0, "wall_ns", 1_000_000.0, "ns"),
        (1, "max_rss_bytes", 4096.0, "B"),
        (1, "wall_ns", 1_000_001.0, "ns"),
    ]
