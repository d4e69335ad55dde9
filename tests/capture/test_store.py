"""The capture on disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from captures import manifest
from excise.capture.journal import Calibration, Loss, decode, encode
from excise.capture.manifest import SCHEMA_VERSION
from excise.capture.store import (
    JOURNAL,
    MANIFEST,
    Capture,
    end_of_last_line,
    journal_chunks,
    journal_records,
    read_manifest,
)
from excise.errors import CaptureError, HostError, OutputError


def records(path: Path) -> list[object]:
    return [decode(line) for line in (path / JOURNAL).read_bytes().splitlines()]


def test_what_is_appended_is_read_back(tmp_path: Path) -> None:
    written = [Calibration(task="stat", operations=1000), Loss(reason="cut", line=3)]
    with Capture.create(tmp_path / "c", manifest()) as capture:
        capture.append(written[0])
        capture.extend([written[1]])
    assert records(tmp_path / "c") == written
    assert read_manifest(tmp_path / "c") == manifest()


def test_a_torn_last_line_is_dropped_and_declared(tmp_path: Path) -> None:
    with Capture.create(tmp_path / "c", manifest()) as capture:
        capture.append(Calibration(task="stat", operations=1))
    whole = (tmp_path / "c" / JOURNAL).read_bytes()
    torn = encode(Calibration(task="read", operations=2))[:-7]
    (tmp_path / "c" / JOURNAL).write_bytes(whole + torn)
    with Capture.open(tmp_path / "c") as capture:
        assert capture.torn_bytes == len(torn)
    kept, declared = records(tmp_path / "c")
    assert kept == Calibration(task="stat", operations=1)
    assert isinstance(declared, Loss)
    assert declared.offset == len(whole)
    assert declared.text == torn.decode()


def test_two_writers_are_refused(tmp_path: Path) -> None:
    with (
        Capture.create(tmp_path / "c", manifest()),
        pytest.raises(OutputError, match="another process is writing"),
    ):
        Capture.open(tmp_path / "c")


def test_an_existing_folder_with_content_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(OutputError, match="already exists"):
        Capture.create(tmp_path, manifest())
    assert (tmp_path / "mine.txt").read_text() == "precious"


def test_raw_data_is_never_overwritten(tmp_path: Path) -> None:
    with Capture.create(tmp_path / "c", manifest()) as capture:
        capture.add_raw("../../a.log", b"one")
        with pytest.raises(OutputError, match="already exists"):
            capture.add_raw("a.log", b"two")
    assert (tmp_path / "c" / "raw" / "a.log").read_bytes() == b"one"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "cannot be understood"),
        (b'{"id":"1","created":"","title":"t","origin":"dreamt"}', "Invalid enum value"),
        (
            b'{"id":"1","created":"","title":"t","origin":"measured","schema_version":%d}'
            % (SCHEMA_VERSION + 1),
            "known are those up to",
        ),
    ],
)
def test_a_manifest_that_is_not_one_is_named(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / MANIFEST).write_bytes(content)
    with pytest.raises(CaptureError, match=reason):
        read_manifest(tmp_path)


def test_a_folder_without_manifest_is_not_a_capture(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="is not a capture"):
        read_manifest(tmp_path)
    with pytest.raises(CaptureError, match="nothing: there is no such file or folder"):
        read_manifest(tmp_path / "nothing")


@given(st.lists(st.binary(max_size=40).map(lambda b: b.replace(b"\n", b" "))), st.integers(1, 50))
def test_chunks_are_whole_lines_and_together_the_journal(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], size: int
) -> None:
    folder = tmp_path_factory.mktemp("c")
    data = b"\n".join(lines)
    (folder / JOURNAL).write_bytes(data)
    chunks = list(journal_chunks(folder, chunk_bytes=size))
    assert b"".join(chunk for _, chunk in chunks) == data
    assert all(chunk.endswith(b"\n") for _, chunk in chunks[:-1])
    position = 0
    for offset, chunk in chunks:
        assert offset == position
        position += len(chunk)


def test_records_are_read_in_order_and_a_damaged_line_is_told(tmp_path: Path) -> None:
    records = [Loss(reason="one"), Loss(reason="two")]
    (tmp_path / JOURNAL).write_bytes(b"".join(map(encode, records)))
    assert list(journal_records(tmp_path)) == records
    (tmp_path / JOURNAL).write_bytes(encode(records[0]) + b"{}\n")
    with pytest.raises(CaptureError, match="line 2 is no record"):
        list(journal_records(tmp_path))


@given(st.binary(max_size=300))
def test_the_end_of_the_last_line_is_found(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("f") / "f"
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    try:
        assert end_of_last_line(fd, len(data)) == data.rfind(b"\n") + 1
    finally:
        os.close(fd)


def test_a_writer_that_is_just_ending_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Capture.create(tmp_path / "c", manifest())
    monkeypatch.setattr("excise.capture.store.time.sleep", lambda _: first.close())
    with Capture.open(tmp_path / "c") as second:
        second.append(Calibration(task="stat", operations=1))
    assert records(tmp_path / "c") == [Calibration(task="stat", operations=1)]


def test_what_creating_left_when_it_was_cut_short_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "c" / "raw").mkdir(parents=True)
    (tmp_path / "c" / "manifest.json.partial").write_text("{")
    Capture.create(tmp_path / "c", manifest()).close()
    assert read_manifest(tmp_path / "c") == manifest()
    (tmp_path / "d" / "raw").mkdir(parents=True)
    (tmp_path / "d" / "raw" / "mine").write_text("precious")
    with pytest.raises(OutputError, match="already exists"):
        Capture.create(tmp_path / "d", manifest())


def test_a_journal_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    Capture.create(tmp_path / "c", manifest()).close()
    (tmp_path / "c" / JOURNAL).unlink()
    (tmp_path / "c" / JOURNAL).mkdir()
    with pytest.raises(OutputError, match=r"journal\.jsonl: cannot be written"):
        Capture.open(tmp_path / "c")


def test_a_file_in_the_place_of_a_capture_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("precious")
    with pytest.raises(OutputError, match="already exists"):
        Capture.create(tmp_path / "c", manifest())
    with pytest.raises(OutputError, match="cannot be written"):
        Capture.create(tmp_path / "c" / "below", manifest())
    assert (tmp_path / "c").read_text() == "precious"


def test_a_full_disk_is_told_with_what_to_do(tmp_path: Path) -> None:
    import resource

    with Capture.create(tmp_path / "c", manifest()) as capture:
        capture.append(Calibration(task="stat", operations=1))
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (60, hard))
        try:
            with pytest.raises(HostError, match="the disk is full") as caught:
                capture.append(Calibration(task="read", operations=2))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "run the same command again to resume" in (caught.value.hint or "")
    with Capture.open(tmp_path / "c"):
        pass
    first, loss = records(tmp_path / "c")
    assert first == Calibration(task="stat", operations=1)
    assert isinstance(loss, Loss)
