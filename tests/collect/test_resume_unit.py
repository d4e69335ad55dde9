"""The unit that goes on with a campaign after a boot: its text, and what it refuses."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from excise.collect import resume_unit
from excise.collect.local_shell import LocalShell
from excise.errors import HostError
from skips import skip


def text_of(capture: Path, **environment: str) -> str:
    return resume_unit.unit_text(
        capture=capture,
        words=("campaign", "resume", str(capture)),
        folders=["/var/tmp"],
        directory=str(capture.parent),
        environment=environment,
    )


def values(text: str, key: str) -> list[str]:
    return [line.partition("=")[2] for line in text.splitlines() if line.startswith(f"{key}=")]


def test_the_unit_runs_once_a_boot_and_is_disabled_by_a_failure(tmp_path: Path) -> None:
    text = text_of(tmp_path / "c")
    assert values(text, "After") == ["multi-user.target"]
    assert values(text, "WantedBy") == ["multi-user.target"]
    assert values(text, "Restart") == ["no"]
    assert "network" not in text
    (command,) = values(text, "ExecStart")
    assert shlex.split(command)[1:] == ["-m", "excise", "campaign", "resume", str(tmp_path / "c")]
    (after,) = values(text, "ExecStopPost")
    script = shlex.split(after)[-1].replace("$$", "$")
    for result, disables in (("success", False), ("exit-code", True), ("signal", True)):
        told = subprocess.run(
            ["sh", "-c", script.replace("systemctl", "echo")],
            env={"SERVICE_RESULT": result},
            capture_output=True,
            text=True,
            check=True,
        )
        assert (told.stdout == "disable excise-campaign.service\n") == disables


def test_the_unit_has_the_variables_that_programs_are_found_by_and_no_secret(
    tmp_path: Path,
) -> None:
    given = {"PATH": "/opt/a b:/usr/bin", "PYTHONPATH": "/opt/100%", "AWS_SECRET": "x"}
    found = values(text_of(tmp_path / "c", **given), "Environment")
    assert found == [
        '"EXCISE_UNIT=excise-campaign.service"',
        '"PATH=/opt/a b:/usr/bin"',
        '"PYTHONPATH=/opt/100%%"',
    ]


def test_systemd_takes_the_unit_for_a_capture_with_an_odd_name(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        skip("systemd-analyze is not installed")
    capture = tmp_path / 'a "b" 100% $c'
    capture.mkdir()
    unit = tmp_path / resume_unit.NAME
    unit.write_text(text_of(capture, PATH="/usr/bin"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert resume_unit.NAME not in done.stderr


def test_one_campaign_at_a_time_reboots_a_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = tmp_path / resume_unit.NAME
    monkeypatch.setattr(resume_unit, "UNIT", unit)
    resume_unit.require_free(tmp_path / "c")
    unit.write_text(text_of(tmp_path / "c"))
    resume_unit.require_free(tmp_path / "c")
    with pytest.raises(HostError, match=f"is under way on this machine, in {tmp_path}/c"):
        resume_unit.require_free(tmp_path / "d")


def test_a_script_here_answers_as_one_over_ssh() -> None:
    done = LocalShell().run("cat; echo why >&2; exit 3", stdin=b"given")
    assert (done.exit_code, done.text, done.reason) == (3, "given", "why")
    with pytest.raises(HostError, match=r"no answer in 0 s"):
        LocalShell().run("sleep 5", timeout_s=0.1)
