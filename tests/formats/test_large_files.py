"""Files too large to hold: read in pieces where the format allows it, in memory that stays flat."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from excise.capture.store import JOURNAL, read_manifest, sha256_of
from excise.errors import FormatError
from excise.events.imports import Imported, import_readings
from excise.files import FileOnDisk
from excise.formats import registry
from excise.formats.model import Options
from excise.formats.registry import read
from foreign_inputs import EXAMPLES

IN_PIECES = ("function-graph", "ftrace-events", "trace-cmd")
PROGRAM = Path(sys.executable).with_name("excise")


def _peak_mib(*words: str | Path) -> float:
    """Return the most memory that an import had."""
    with subprocess.Popen(
        [PROGRAM, "import", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as child:
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    return usage.ru_maxrss / 1024


def _held(folder: Path, data: bytes) -> FileOnDisk:
    path = folder / "large"
    path.write_bytes(data)
    return FileOnDisk.of(path)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_a_large_file_gives_what_its_bytes_give(tmp_path: Path, name: str) -> None:
    data = EXAMPLES[name]
    options = Options(source="in")
    wanted = read(data, options=options, format_name=name)
    for given in (data, gzip.compress(data)):
        assert read(_held(tmp_path, given), options=options, format_name=name) == wanted


def test_traces_are_read_in_pieces() -> None:
    found = {known.name for known in registry.FORMATS if known.read_path is not None}
    assert found == {*IN_PIECES}


def test_the_format_of_a_large_file_is_found_by_its_head(tmp_path: Path) -> None:
    for name in IN_PIECES:
        large = _held(tmp_path, EXAMPLES[name])
        assert read(large, options=Options(source="in")).format == name


def test_what_cannot_be_read_in_pieces_has_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "MAX_HELD_BYTES", 10)
    with pytest.raises(FormatError, match="more than 10 bytes"):
        read(_held(tmp_path, EXAMPLES["hyperfine"]), options=Options(source="in"))


def test_a_file_that_is_written_to_meanwhile_is_not_imported(tmp_path: Path) -> None:
    large = _held(tmp_path, EXAMPLES["function-graph"])
    reading = read(large, options=Options(source="in"))
    with large.path.open("ab") as file:
        file.write(b" 0)   1.000 us    |  f();\n")
    with pytest.raises(FormatError, match="was changed while it was read"):
        import_readings(tmp_path / "c.excise", [Imported(name="in", data=large, reading=reading)])
    assert not (tmp_path / "c.excise").exists()


def test_the_memory_of_an_import_does_not_grow_with_the_trace(tmp_path: Path) -> None:
    block = b" 0)               |  a() {\n 0)   1.000 us    |    b();\n 0)   3.000 us    |  }\n"
    peaks_mib = []
    for megabytes in (70, 140):
        trace = tmp_path / f"{megabytes}.txt"
        with trace.open("wb") as file:
            for _ in range(megabytes):
                file.write(block * (1_000_000 // len(block)))
        capture = tmp_path / f"{megabytes}.excise"
        peaks_mib.append(_peak_mib(trace, "-o", capture))
        [source] = read_manifest(capture).sources
        assert source.sha256 == sha256_of(capture / source.path) == sha256_of(trace)
    assert peaks_mib[1] - peaks_mib[0] < 25


def test_the_memory_of_an_import_does_not_grow_with_the_number_of_files(tmp_path: Path) -> None:
    log = tmp_path / "uart.log"
    log.write_bytes(EXAMPLES["ra-perf"] * 1000)
    files = [shutil.copy(log, tmp_path / f"{number}.log") for number in range(4)]
    one = _peak_mib(log, "-o", tmp_path / "one.excise")
    assert _peak_mib(*files, "-o", tmp_path / "four.excise") - one < 12
    sizes = [(tmp_path / name / JOURNAL).stat().st_size for name in ("one.excise", "four.excise")]
    assert sizes[1] > 4 * sizes[0]
