"""Sealing and archives."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from captures import manifest
from excise.capture.archive import pack, unpacked
from excise.capture.journal import Calibration
from excise.capture.seal import broken_seal_lines, read_seal, require_unbroken, seal
from excise.capture.store import JOURNAL, Capture
from excise.errors import CaptureError, OutputError, Refused


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    path = tmp_path / "c"
    with Capture.create(path, manifest()) as capture:
        capture.append(Calibration(task="stat", operations=1000))
        capture.add_raw("log.txt", b"raw")
    seal(path)
    return path


def test_an_untouched_seal_holds(sealed: Path) -> None:
    assert require_unbroken(sealed) == read_seal(sealed)


def test_a_sealed_capture_is_refused_for_writing(sealed: Path) -> None:
    with pytest.raises(OutputError, match="is sealed"):
        Capture.open(sealed)
    with pytest.raises(OutputError, match="sealed already"):
        seal(sealed)


@pytest.mark.parametrize("name", [JOURNAL, "manifest.json", "raw/log.txt"])
def test_a_changed_file_is_named(sealed: Path, name: str) -> None:
    content = bytearray((sealed / name).read_bytes())
    content[0] ^= 1
    (sealed / name).write_bytes(content)
    with pytest.raises(Refused, match="seal is broken") as caught:
        require_unbroken(sealed)
    assert [line.partition(":")[0] for line in caught.value.differences] == [name]


def test_missing_and_added_files_are_named(sealed: Path) -> None:
    (sealed / "raw/log.txt").unlink()
    (sealed / "raw/other").write_text("x")
    found = read_seal(sealed)
    assert found is not None
    assert broken_seal_lines(sealed, found) == (
        "raw/log.txt: missing",
        "raw/other: added after sealing",
    )


def test_a_forged_digest_breaks_the_root(sealed: Path) -> None:
    text = (sealed / "seal.json").read_text()
    found = read_seal(sealed)
    assert found is not None
    (sealed / "raw/log.txt").write_bytes(b"forged")
    forged = subprocess.run(
        ["sha256sum", sealed / "raw/log.txt"], capture_output=True, text=True, check=True
    ).stdout.split()[0]
    (sealed / "seal.json").write_text(text.replace(found.digests["raw/log.txt"], forged))
    with pytest.raises(Refused, match="root digest does not follow"):
        require_unbroken(sealed)


def test_the_root_is_what_sha256sum_says(sealed: Path) -> None:
    found = read_seal(sealed)
    assert found is not None
    names = sorted(found.digests)
    listed = subprocess.run(
        ["sha256sum", *names], cwd=sealed, capture_output=True, check=True
    ).stdout
    root = subprocess.run(["sha256sum"], input=listed, capture_output=True, check=True).stdout
    assert root.split()[0].decode() == found.root


def test_packing_keeps_everything_and_is_reproducible(sealed: Path, tmp_path: Path) -> None:
    first = pack(sealed, tmp_path / "a.tar.zst")
    second = pack(sealed, tmp_path / "b.tar.zst")
    assert first.read_bytes() == second.read_bytes()
    with unpacked(first) as folder:
        require_unbroken(folder)
        assert (folder / "raw/log.txt").read_bytes() == b"raw"
    assert not folder.exists()


def test_a_cut_archive_is_an_error_not_a_traceback(sealed: Path, tmp_path: Path) -> None:
    whole = pack(sealed, tmp_path / "a.tar.zst").read_bytes()
    for size in (0, 3, len(whole) // 2, len(whole) - 1):
        cut = tmp_path / f"cut{size}.tar.zst"
        cut.write_bytes(whole[:size])
        with pytest.raises(CaptureError, match="is not a whole capture archive"), unpacked(cut):
            pass


def test_a_capture_is_not_sealed_under_its_writer(tmp_path: Path) -> None:
    with (
        Capture.create(tmp_path / "c", manifest()),
        pytest.raises(OutputError, match="another process is writing"),
    ):
        seal(tmp_path / "c")
    assert not (tmp_path / "c" / "seal.json").exists()


def test_a_torn_line_is_declared_before_it_is_sealed(tmp_path: Path) -> None:
    with Capture.create(tmp_path / "c", manifest()) as capture:
        capture.append(Calibration(task="stat", operations=1))
    with (tmp_path / "c" / JOURNAL).open("ab") as file:
        file.write(b'{"kind":"run"')
    seal(tmp_path / "c")
    require_unbroken(tmp_path / "c")
    assert b"torn last line of 13 bytes" in (tmp_path / "c" / JOURNAL).read_bytes()


def test_raw_files_called_like_the_seal_are_sealed(tmp_path: Path) -> None:
    with Capture.create(tmp_path / "c", manifest()) as capture:
        capture.add_raw("seal.json", b"a")
        capture.add_raw("x.partial", b"b")
    assert {"raw/seal.json", "raw/x.partial"} <= set(seal(tmp_path / "c").digests)


def test_what_cannot_be_a_seal_is_an_error(sealed: Path) -> None:
    (sealed / "seal.json").write_text("{}")
    with pytest.raises(CaptureError, match="cannot be understood"):
        read_seal(sealed)
    (sealed / "seal.json").unlink()
    (sealed / "seal.json").mkdir()
    with pytest.raises(CaptureError, match="cannot be read"):
        read_seal(sealed)


def test_an_archive_that_reaches_out_of_itself_is_refused(tmp_path: Path) -> None:
    import io
    import tarfile

    import zstandard

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo("../escaped")
        member.size = 1
        archive.addfile(member, io.BytesIO(b"x"))
    path = tmp_path / "evil.tar.zst"
    path.write_bytes(zstandard.ZstdCompressor().compress(buffer.getvalue()))
    with pytest.raises(CaptureError, match="is not a whole capture archive"), unpacked(path):
        pass
    assert not list(tmp_path.parent.glob("escaped"))
