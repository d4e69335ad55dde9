"""Collecting reads what is new and sends what the verifier has not."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from excise.attest.sensor import Collector, Embedding
from excise.errors import HostError

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


def test_nothing_is_read_when_the_kernels_count_stands_still(log: Path) -> None:
    count = log.with_name("runtime_measurements_count")
    count.write_text("1\n")
    with _collector(log) as collector:
        collector.acknowledge(collector.collect(FACE).list_end)
        _grow(log, b"second")
        assert collector.collect(FACE).list_entries == b""
        count.write_text("2\n")
        assert collector.collect(FACE).list_entries == b"second"


def test_a_list_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"cannot be opened .*--list"), _collector(tmp_path / "no"):
        pass
    with pytest.raises(HostError, match="not open"):
        _collector(tmp_path / "no").collect(FACE)
