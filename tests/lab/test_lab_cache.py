from __future__ import annotations

import fcntl
import os
import shutil
import socket
from pathlib import Path
from typing import IO

import pytest

from excise.errors import HostError
from excise.lab import packages
from excise.lab.cache import cache_root, digest_of, remove_stale, stored, working_folder
from excise.lab.processes import listens, software_tpm
from skips import skip


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXCISE_LAB_CACHE", str(tmp_path / "cache"))


def test_a_thing_is_built_once():
    built = []

    def build(into: Path) -> None:
        built.append(into)
        (into / "x").write_text("1")

    assert (stored("k", "a", build) / "x").read_text() == "1"
    assert stored("k", "a", build) == cache_root() / "k" / "a"
    assert len(built) == 1


def test_a_build_that_fails_leaves_nothing_that_looks_finished():
    def build(into: Path) -> None:
        (into / "half").write_text("1")
        raise HostError("no")

    with pytest.raises(HostError, match="no"):
        stored("k", "a", build)
    assert [path.name for path in (cache_root() / "k").iterdir() if path.is_dir()] == []


def test_a_working_folder_is_removed_also_after_a_failure():
    seen = []

    def fail() -> None:
        with working_folder() as folder:
            (folder / "file").write_text("1")
            seen.append(folder)
            raise RuntimeError("x")

    with pytest.raises(RuntimeError, match="x"):
        fail()
    assert list(seen[0].parent.iterdir()) == []


def test_a_folder_in_use_is_kept_and_one_left_behind_is_removed():
    with working_folder() as folder:
        left = folder.parent / "guest-left"
        left.mkdir()
        (left / ".lock").touch()
        assert remove_stale(folder.parent) == ["guest-left"]
        assert folder.is_dir()


def test_a_folder_is_never_taken_for_one_left_behind_before_it_is_locked(monkeypatch):
    locking = fcntl.flock
    removed = []

    def removing(stream: IO[str], operation: int) -> None:
        if operation == fcntl.LOCK_EX:  # the moment before: another guest starts and cleans up
            removed.extend(remove_stale(cache_root() / "run"))
        locking(stream, operation)

    monkeypatch.setattr(fcntl, "flock", removing)
    with working_folder() as folder:
        assert folder.is_dir()
    assert removed == []


@pytest.mark.parametrize("half", ["", "linux-image-6.1"])
def test_a_package_whose_pin_is_only_half_there_is_looked_for_anew(monkeypatch, half: str):
    name = "linux-image-6.1"
    asked = []

    def resolve(wanted: str) -> tuple[str, str]:
        asked.append(wanted)
        return name, "6.1.2"

    monkeypatch.setattr(packages, "_resolve", resolve)
    monkeypatch.setattr(packages, "_unpack", lambda _, into: (into / "boot").mkdir())
    (cache_root() / "packages").mkdir()
    pin = cache_root() / "packages" / f"{name}.pin"
    pin.write_text(half)
    for _ in range(2):
        assert packages.fetch(name).version == "6.1.2"
    assert asked == [name]
    assert pin.read_text() == f"{name} 6.1.2\n"


def test_a_socket_that_is_there_but_takes_no_connections_yet_is_waited_for(tmp_path: Path):
    path = tmp_path / "a socket"
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.fspath(path))
        assert path.exists()
        assert not listens(path)
        bound.listen()
        assert listens(path)
    assert not listens(path)


@pytest.mark.parametrize("length", [1, 40, 200])
def test_a_software_tpm_takes_connections_however_long_its_folders_path_is(
    tmp_path: Path, length: int
):
    if shutil.which("swtpm") is None:
        skip("swtpm is not installed")
    folder = tmp_path / ("x" * length)
    folder.mkdir()
    with software_tpm(folder) as path:
        assert len(os.fsencode(path)) < 108
        assert listens(path)
    assert not path.exists()
    assert path.parent == folder or not path.parent.exists()


def test_parts_of_a_digest_do_not_run_together(tmp_path: Path):
    path = tmp_path / "f"
    path.write_bytes(b"ab")
    assert digest_of("ab", "c") != digest_of("a", "bc")
    assert digest_of(path) == digest_of(b"ab") == digest_of("ab")


def test_a_cache_that_cannot_be_made_says_how_to_choose_another(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EXCISE_LAB_CACHE", str(tmp_path / "file" / "x"))
    with pytest.raises(HostError, match="Set EXCISE_LAB_CACHE"):
        cache_root()
