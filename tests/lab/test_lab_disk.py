from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from excise.errors import HostError
from excise.lab.disk import WorkFile, build_image
from skips import skip

FILES = {
    "proof/labelled": WorkFile(data=b"labelled\n"),
    "proof/unlabelled": WorkFile(data=b"unlabelled\n", ima=False),
    "tool": WorkFile(data=b"#!/bin/sh\n", mode=0o755),
}


@pytest.fixture(autouse=True)
def _tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if shutil.which("mke2fs") is None or shutil.which("debugfs") is None:
        skip("e2fsprogs is not installed")


def _image(folder: Path) -> Path:
    folder.mkdir()
    return build_image(FILES, size_mib=8, folder=folder)


def test_the_same_files_give_the_same_image_at_another_time(tmp_path: Path):
    first = _image(tmp_path / "a").read_bytes()
    time.sleep(1.1)  # past the second that ext4 keeps times in
    assert _image(tmp_path / "b").read_bytes() == first


def test_labels_owner_and_mode_are_in_the_image(tmp_path: Path):
    image = _image(tmp_path / "a")

    def ask(words: str) -> str:
        done = subprocess.run(["debugfs", "-R", words, image], capture_output=True, text=True)
        return done.stdout

    digest = hashlib.sha256(b"labelled\n").digest()
    expected = " ".join(f"{byte:02x}" for byte in bytes([4, 4]) + digest)
    assert f"security.ima (34) = {expected}" in ask("ea_list /proof/labelled")
    assert "security.ima" not in ask("ea_list /proof/unlabelled")
    assert "system_u:object_r:usr_t:s0" in ask("ea_list /tool")
    stat = ask("stat /tool")
    assert "Mode:  0755" in stat
    assert "User:     0   Group:     0" in stat


def test_files_that_do_not_fit_are_refused_with_the_tools_own_words(tmp_path: Path):
    large = {"large": WorkFile(data=os.urandom(9 << 20))}
    with pytest.raises(HostError, match="mke2fs failed"):
        build_image(large, size_mib=8, folder=tmp_path)
