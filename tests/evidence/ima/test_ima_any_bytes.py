"""Arbitrary bytes give rows or a fault, never an exception; piece sizes do not matter."""

from __future__ import annotations

import io
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from excise.evidence.checks import Outcome
from excise.evidence.ima import read_list, verify_list
from ima_builder import ascii_list, binary_list, boot_aggregate, files, ng, violation

PCRS = {"sha1": {10: b"\1" * 20}, "sha256": {10: b"\2" * 32}}


def lists() -> list[bytes]:
    entries = [boot_aggregate({i: bytes(32) for i in range(10)}), *files(6), violation(), ng("/z")]
    return [
        *(binary_list(entries, bank, order) for bank in ("sha1", "sha512") for order in
          ("little", "big")),
        ascii_list(entries),
        ascii_list(entries, "sha256", "big"),
    ]  # fmt: skip


def answer(raw: bytes) -> None:
    result = verify_list(raw, pcrs=PCRS)
    assert result.verdict is not Outcome.PASSED
    assert result.replay.end.offset + result.replay.trailing_bytes <= len(raw)
    with read_list(raw) as rows:
        assert sum(1 for _ in rows) == result.replay.entries
        assert (rows.fault is None) == (result.replay.fault is None)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_answered(raw: bytes):
    answer(raw)


def test_damaged_lists_with_a_fixed_seed_are_answered():
    chance = random.Random(20260101)
    for raw in lists():
        for _ in range(150):
            damaged = bytearray(raw)
            for _ in range(chance.randint(1, 4)):
                at = chance.randrange(len(damaged))
                match chance.randrange(4):
                    case 0:
                        damaged[at] = chance.randrange(256)
                    case 1:
                        del damaged[at : at + chance.randint(1, 40)]
                    case 2:
                        damaged[at:at] = chance.randbytes(chance.randint(1, 9))
                    case _:
                        damaged = damaged[: at + 1]
            answer(bytes(damaged))


def test_a_stream_a_path_and_bytes_give_the_same_answer(tmp_path):
    for raw in lists():
        path = tmp_path / "list"
        path.write_bytes(raw)
        results = [verify_list(x, pcrs=PCRS).as_dict() for x in (raw, path, io.BytesIO(raw))]
        assert results[0] == results[1] == results[2]
