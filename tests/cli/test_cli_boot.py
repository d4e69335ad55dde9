"""`excise boot` as a user calls it: boots that are imported, recorded, counted once."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from in_process import Program

TIME = "Startup finished in 3.300s (kernel) + 7.800s (userspace) = 11.100s\n"
LATER = "Startup finished in 3.900s (kernel) + 9.800s (userspace) = 13.700s\n"
LOG = (
    "[    0.000000] Linux version 6.12.1-test (b@h) #1\n[    0.461250] Run /init as init process\n"
)


def _programs(folder: Path, texts: Mapping[str, str]) -> None:
    """Put programs into a folder that print a text, or fail as without a running systemd."""
    folder.mkdir()
    for name in ("systemctl", "systemd-analyze", "dmesg"):
        program = folder / name
        text = texts.get(name)
        lines = f"cat <<'END'\n{text}END\n" if text else "echo 'Host is down' >&2; exit 1\n"
        program.write_text(f"#!/bin/sh\n{lines}")
        program.chmod(0o755)


def test_two_boots_in_one_call_are_refused_and_nothing_is_written(
    excise: Program, tmp_path: Path
) -> None:
    (tmp_path / "t1.txt").write_text(TIME)
    (tmp_path / "t2.txt").write_text(LATER)
    done = excise("boot", "import", "t1.txt", "t2.txt", "-o", "b.excise")
    assert done.returncode == 3
    assert "t1.txt and t2.txt are not of one boot: kernel took 3.300 s in t1.txt" in done.stderr
    assert "Import the files of each boot by a call of its own" in done.stderr
    assert not (tmp_path / "b.excise").exists()


@pytest.mark.parametrize("entries", ["-5", "1e400", "no-list"])
def test_entries_that_are_neither_a_number_nor_a_list_are_refused(
    excise: Program, tmp_path: Path, entries: str
) -> None:
    (tmp_path / "t1.txt").write_text(TIME)
    done = excise("boot", "import", "t1.txt", "--entries", entries, "-o", "b.excise")
    assert done.returncode == 2
    assert f"--entries: '{entries}' is neither a whole number nor a file" in done.stderr
    assert not (tmp_path / "b.excise").exists()


def test_a_boot_is_imported_once_and_a_copy_of_a_file_is_read_once(
    excise: Program, tmp_path: Path
) -> None:
    (tmp_path / "t1.txt").write_text(TIME)
    (tmp_path / "copy.txt").write_text(TIME)
    first = excise("boot", "import", "t1.txt", "copy.txt", "-o", "b.excise")
    assert (first.returncode, "copy.txt: the same as t1.txt, read once" in first.stderr) == (
        0,
        True,
    )
    again = excise("boot", "import", "copy.txt", "-o", "b.excise", "--configuration", "other")
    assert again.returncode == 2
    assert "copy.txt is a file of its boot 1 of 'boot'" in again.stderr
    assert "--another-boot" in again.stderr
    forced = excise("boot", "import", "copy.txt", "-o", "b.excise", "--another-boot")
    assert forced.returncode == 0
    shown = json.loads(excise("boot", "show", "b.excise", "--json").stdout)
    assert [(boot["n"], boot["incomplete"]) for boot in shown["data"]["boots"]] == [(2, 0)]


def test_an_unfinished_boot_is_not_recorded_and_its_log_is_imported_without_a_total(
    excise: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _programs(tmp_path / "down", {"dmesg": LOG})
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", f"{tmp_path / 'down'}:{path}")
    refused = excise("boot", "record", "-o", "b.excise")
    assert refused.returncode == 4
    assert "nothing tells when this boot was ready" in refused.stderr
    assert "not recorded: systemd-analyze time: Host is down" in refused.stderr
    assert not (tmp_path / "b.excise").exists()
    taken = excise("boot", "import", "-", "-o", "b.excise", stdin=LOG.encode())
    assert taken.returncode == 0
    assert "incomplete: no file tells when user space was ready" in taken.stderr
    shown = json.loads(excise("boot", "show", "b.excise", "--json").stdout)
    assert shown["data"]["boots"][0]["boot_ns"] is None

    _programs(tmp_path / "up", {"dmesg": LOG, "systemd-analyze": TIME})
    monkeypatch.setenv("PATH", f"{tmp_path / 'up'}:{path}")
    assert excise("boot", "record", "-o", "c.excise").returncode == 0
