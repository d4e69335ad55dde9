from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from excise.lab.cpio import Archive
from skips import skip

NAME = st.text("abcxyz019._-", min_size=1, max_size=12).filter(lambda s: s not in (".", ".."))
FILES = st.dictionaries(st.tuples(NAME, NAME).map("/".join), st.binary(max_size=200), max_size=8)


def _archive(files: dict[str, bytes], order: list[str]) -> bytes:
    archive = Archive()
    for path in order:
        archive.file(path, files[path])
    return archive.render()


@given(FILES, st.randoms())
def test_the_order_of_adding_files_does_not_change_the_bytes(files, random):
    names = list(files)
    shuffled = random.sample(names, len(names))
    assert _archive(files, names) == _archive(files, shuffled)


def test_cpio_unpacks_what_was_written(tmp_path: Path):
    if shutil.which("busybox") is None and shutil.which("cpio") is None:
        skip("neither cpio nor busybox is installed")
    archive = Archive()
    archive.file("bin/tool", b"#!/bin/sh\n", mode=0o755)
    archive.file("etc/empty", b"")
    archive.link("bin/alias", "tool")
    tool = ["cpio"] if shutil.which("cpio") else ["busybox", "cpio"]
    subprocess.run([*tool, "-idm"], input=archive.render(), cwd=tmp_path, check=True)
    assert (tmp_path / "bin/tool").read_bytes() == b"#!/bin/sh\n"
    assert (tmp_path / "bin/tool").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "bin/alias").readlink() == Path("tool")
    assert (tmp_path / "etc/empty").stat().st_size == 0
