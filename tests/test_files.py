import tracemalloc
from pathlib import Path

import pytest

from excise.errors import FormatError
from excise.evidence.pcr import read_pcr_path
from excise.files import read_whole


def test_a_file_of_the_largest_size_is_read_and_one_byte_more_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345678")
    assert read_whole(path, limit_bytes=8) == b"12345678"
    with pytest.raises(FormatError, match="more than 7 bytes"):
        read_whole(path, limit_bytes=7)


def test_a_device_without_end_given_as_pcr_values_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("excise.files.read_whole.__kwdefaults__", {"limit_bytes": 4096})
    with pytest.raises(FormatError, match="not a device"):
        read_pcr_path(Path("/dev/zero"))


def test_a_small_file_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(3 << 20))
    tracemalloc.start()
    try:
        assert len(read_whole(path)) == 3 << 20
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
