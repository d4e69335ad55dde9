"""A list of many pieces is read alike from memory and from a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from excise.errors import FormatError
from excise.evidence.ima import verify_list
from ima_builder import ascii_list, binary_list, files, pcr_after

PIECE_BYTES = 4 << 20
ENTRIES = files(500)
BLOCKS = {"binary": binary_list(ENTRIES), "ascii": ascii_list(ENTRIES)}


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_memory_and_file_give_one_result_over_many_pieces(tmp_path: Path, block: bytes) -> None:
    times = 9 * PIECE_BYTES // len(block) // 4
    data = block * times
    assert len(data) > 2 * PIECE_BYTES
    (tmp_path / "list").write_bytes(data)
    pcrs = {"sha1": {10: pcr_after(ENTRIES * times, "sha1")}}
    held = verify_list(data, pcrs=pcrs)
    assert held.replay.entries == len(ENTRIES) * times
    assert {check.id: str(check.outcome) for check in held.checks}["ima.coverage"] == "PASSED"
    assert verify_list(tmp_path / "list", pcrs=pcrs).as_dict() == held.as_dict()


@pytest.mark.parametrize("after", [b"", b"\n"])
def test_a_record_longer_than_a_piece_is_refused_in_the_same_words(
    tmp_path: Path, after: bytes
) -> None:
    data = BLOCKS["ascii"] + b"10 " + b"a" * (3 * PIECE_BYTES) + after
    (tmp_path / "list").write_bytes(data)
    said = []
    for source in (data, tmp_path / "list"):
        try:
            said.append(verify_list(source, pcrs={"sha1": {10: bytes(20)}}).as_dict())
        except FormatError as error:
            said.append(str(error).removeprefix(f"{tmp_path / 'list'}: "))
    assert said[0] == said[1]
