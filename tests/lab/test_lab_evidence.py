"""What is made of guests' evidence, of stages, of time in line, and of Debian's archive."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from ended import wait_until
from excise.errors import HostError
from excise.evidence.checks import Outcome
from excise.lab.debian import _unpack
from excise.lab.evidence import verify_guests
from excise.lab.guest import _in_line_s, announced_stages
from skips import skip


def _raw(folder: Path, **files: bytes) -> Path:
    (folder / "raw").mkdir()
    for name, data in files.items():
        (folder / "raw" / f"none.b0.{name.replace('__', '.')}").write_bytes(data)
    return folder


def test_guests_without_a_tpm_have_nothing_to_verify(tmp_path: Path):
    assert verify_guests(_raw(tmp_path, binary_runtime_measurements=b"", dmesg=b"x")) is None


def test_evidence_that_cannot_be_read_fails_its_check_and_no_other(tmp_path: Path):
    found = verify_guests(
        _raw(
            tmp_path,
            pcrs__txt=b"sha256:10 00\n",
            binary_runtime_measurements=b"\xff" * 40,
            quote__response=b"\x80",
            create_primary__response=b"\x80",
            quote__nonce=b"0102\n",
        )
    )
    assert found is not None
    assert [(check.id, check.outcome) for check in found.checks] == [
        ("guest.ima", Outcome.FAILED),
        ("guest.quote", Outcome.FAILED),
    ]
    assert all(check.got.startswith("none.b0: ") for check in found.checks)


def test_a_quote_whose_question_is_not_known_is_not_covered(tmp_path: Path):
    found = verify_guests(
        _raw(tmp_path, pcrs__txt=b"sha256:10 " + b"00" * 32 + b"\n", quote__response=b"\x80")
    )
    assert found is not None
    assert [check.outcome for check in found.checks] == [Outcome.NOT_COVERED]


def test_every_check_of_guests_is_documented():
    text = (Path(__file__).parents[2] / "docs" / "lab.md").read_text()
    assert all(f"`{name}`" in text for name in ("guest.ima", "guest.quote"))


def test_time_in_line_for_a_processor_is_seen():
    if not Path("/proc/self/schedstat").exists():
        skip("this kernel keeps no scheduler statistics")
    one = min(os.sched_getaffinity(0))
    spin = f"import os\nos.sched_setaffinity(0, {{{one}}})\nwhile True: pass"
    spinning = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(2)]
    try:
        wait_until(lambda: min(_in_line_s(each.pid) for each in spinning) >= 0.1)
    finally:
        for each in spinning:
            each.kill()
            each.wait()
    assert _in_line_s(spinning[0].pid) == 0.0, "a process that is gone waits for nothing"


@pytest.mark.parametrize("cut", range(len("EXCISE stage init\r\n") + 1))
def test_a_stage_is_announced_when_its_line_is_written_whole(cut: int):
    line = "EXCISE stage init\r\n"
    before = "[    0.1] booting\r\nEXCISE stage boot\r\n"
    whole = ["boot", "init"] if cut > line.index("\r") else ["boot"]
    assert announced_stages(before + line[:cut]) == whole
    assert announced_stages(before + line + "[    2.1] EXCISE") == ["boot", "init"]


def _archive(path: Path, members: list[tuple[str, bytes, str]]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, kind, content in members:
            member = tarfile.TarInfo(name)
            member.type = kind
            if kind == tarfile.REGTYPE:
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content.encode()))
            else:
                member.linkname = content
                archive.addfile(member)
    return path


def test_files_folders_and_links_of_a_root_are_unpacked(tmp_path: Path):
    archive = _archive(
        tmp_path / "root.tar",
        [
            ("./usr", tarfile.DIRTYPE, ""),
            ("./usr/bin", tarfile.DIRTYPE, ""),
            ("./bin", tarfile.SYMTYPE, "usr/bin"),
            ("./usr/bin/a", tarfile.REGTYPE, "A"),
            ("./usr/bin/b", tarfile.LNKTYPE, "./usr/bin/a"),
            ("./bin/c", tarfile.REGTYPE, "C"),
        ],
    )
    tree = tmp_path / "tree"
    tree.mkdir()
    with tarfile.open(archive) as source:
        for member in source:
            _unpack(source, member, tree=tree, target=tree / member.name.removeprefix("./"))
    assert (tree / "usr/bin/b").read_text() == "A"
    assert (tree / "usr/bin/b").stat().st_ino == (tree / "usr/bin/a").stat().st_ino
    assert (tree / "usr/bin/c").read_text() == "C"


@pytest.mark.parametrize("link", ["/", "../outside"])
def test_a_root_writes_nothing_outside_of_its_folder(tmp_path: Path, link: str):
    (tmp_path / "outside").mkdir()
    members = [("./away", tarfile.SYMTYPE, link), ("./away/x", tarfile.REGTYPE, "X")]
    archive = _archive(tmp_path / "root.tar", members)
    tree = tmp_path / "tree"
    tree.mkdir()
    with tarfile.open(archive) as source:
        first, second = source
        _unpack(source, first, tree=tree, target=tree / "away")
        with pytest.raises(HostError, match="outside of the root's folder"):
            _unpack(source, second, tree=tree, target=tree / "away/x")
    assert list((tmp_path / "outside").iterdir()) == []
