"""Collecting reads what is new and sends what the verifier has not."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from excise.attest.sensor import Collector, Embedding
from excise.attest.sensor.entry_count import EntryCounter
from excise.errors import HostError
from ima_builder import Entry, binary_list, files, violation

PCRS = {"sha256": {10: bytes(32)}}
FACE = Embedding(model="m", values=(0.5,), image_sha256=bytes(32))


def _grow(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "binary_runtime_measurements"
    path.write_bytes(b"first ")
    return path


def _collector(log: Path, *, whole_log: bool = False) -> Collector:
    return Collector(pcrs=lambda: PCRS, measurement_list=log, whole_log=whole_log)


def test_acknowledged_entries_are_not_sent_again(log: Path) -> None:
    with _collector(log) as collector:
        first = collector.collect(FACE)
        assert (first.list_offset, first.list_entries) == (0, b"first ")
        collector.acknowledge(first.list_end)
        _grow(log, b"second")
        second = collector.collect(FACE)
        assert (second.list_offset, second.list_entries) == (6, b"second")
        assert second.list_sha512 == hashlib.sha512(b"first second").digest()


def test_what_was_not_acknowledged_is_sent_with_what_is_new(log: Path) -> None:
    with _collector(log) as collector:
        collector.collect(FACE)
        _grow(log, b"second")
        message = collector.collect(FACE)
        assert (message.list_offset, message.list_entries) == (0, b"first second")


def test_a_verifier_that_lost_its_list_gets_all_of_it(log: Path) -> None:
    with _collector(log) as collector:
        collector.acknowledge(collector.collect(FACE).list_end)
        collector.acknowledge(0)
        message = collector.collect(FACE)
        assert (message.list_offset, message.list_entries) == (0, b"first ")


def test_a_verifier_that_has_a_part_gets_the_rest(log: Path) -> None:
    with _collector(log) as collector:
        collector.collect(FACE)
        collector.acknowledge(2)
        assert collector.collect(FACE).list_entries == b"rst "
        collector.acknowledge(10**9)
        assert collector.collect(FACE).list_entries == b""


def test_the_whole_log_is_read_and_sent_every_time(log: Path) -> None:
    with _collector(log, whole_log=True) as collector:
        for _ in range(3):
            message = collector.collect(FACE)
            collector.acknowledge(message.list_end)
            assert (message.list_offset, message.list_entries) == (0, b"first ")
            assert message.list_sha512 == hashlib.sha512(b"first ").digest()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the sizes of what read(2) gave, as they come."""
    found: list[int] = []
    real = os.read

    def read(descriptor: int, size: int) -> bytes:
        data = real(descriptor, size)
        found.append(len(data))
        return data

    monkeypatch.setattr(os, "read", read)
    return found


@pytest.mark.parametrize("order", ["little", "big"])
def test_the_list_is_read_once_for_what_is_new_and_not_at_all_when_nothing_is(
    log: Path, reads: list[int], order: str
) -> None:
    """Each read(2) walks the kernel's list from its head; a second one would only find its end."""
    old_template = Entry(template="ima", values={"d": bytes(20), "n": b"/bin/a"})
    first = binary_list([*files(50), violation(), old_template], order=order)
    added = binary_list(files(3, prefix="/opt/"), order=order)
    log.write_bytes(first)
    count = log.with_name("runtime_measurements_count")
    count.write_text("52\n")
    with _collector(log) as collector:
        collector.acknowledge(collector.collect(FACE).list_end)
        assert reads == [len(first)]
        assert collector.collect(FACE).list_entries == b""
        _grow(log, added)  # the kernel counts an entry after it is in the list
        assert collector.collect(FACE).list_entries == b""
        assert reads == [len(first)]
        count.write_text("55\n")
        assert collector.collect(FACE).list_entries == added
        assert reads == [len(first), len(added)]
        collector.acknowledge(0)
        assert collector.collect(FACE).list_entries == first + added


def test_entries_that_come_in_pieces_are_counted_when_they_are_whole() -> None:
    data = binary_list([*files(5), violation()])
    for size in (1, 7, 30, 1000):
        counter, counts = EntryCounter(), []
        for at in range(0, len(data), size):
            counter.add(data[at : at + size])
            counts.append(counter.count)
        assert counts == sorted(counts)
        assert counts[-1] == 6


def test_a_file_that_is_no_binary_list_is_read_to_its_end(log: Path, reads: list[int]) -> None:
    log.with_name("runtime_measurements_count").write_text("1\n")
    log.write_bytes(b"10 " + b"f" * 40 + b" ima-ng sha256:00 boot_aggregate\n")
    with _collector(log) as collector:
        assert collector.collect(FACE).list_entries == log.read_bytes()
        assert reads == [log.stat().st_size, 0]


def test_a_list_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"cannot be opened .*--list"), _collector(tmp_path / "no"):
        pass
    with pytest.raises(HostError, match="not open"):
        _collector(tmp_path / "no").collect(FACE)
